package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

const duplicates = 200

// stamps records when each address was first seen.
type stamps struct {
	mu   sync.Mutex
	at   map[string]time.Time
	more chan struct{}
}

func newStamps() *stamps {
	return &stamps{at: map[string]time.Time{}, more: make(chan struct{}, 1)}
}

func (s *stamps) set(key string, at time.Time) {
	s.mu.Lock()
	if _, ok := s.at[key]; !ok {
		s.at[key] = at
	}
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *stamps) get(key string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.at[key]
	return at, ok
}

// await waits until there are n stamps.
func (s *stamps) await(ctx context.Context, what string, n int) error {
	for {
		s.mu.Lock()
		have := len(s.at)
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
			return fmt.Errorf("timed out waiting for %s: have %d of %d", what, have, n)
		case <-s.more:
		}
	}
}

// site is a host that runs ipwitness, with a watch that stamps conflicts.
type site struct {
	*netlab.Host
	program              *netlab.Program
	suspected, confirmed *stamps
	watching             chan error
}

// newSite creates a host that runs `ipwitness run`.
func newSite(ctx context.Context, bin string) (*site, error) {
	return openSite(ctx, func(h *netlab.Host) (*netlab.Program, error) { return h.Ipwitness(ctx, bin) })
}

// openSite creates a host, starts ipwitness on it, and watches its conflicts.
func openSite(ctx context.Context, start func(*netlab.Host) (*netlab.Program, error)) (*site, error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	s := &site{Host: host}
	if s.program, err = start(host); err != nil {
		host.Close()
		return nil, err
	}
	if err := s.watchConflicts(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// watchConflicts starts to stamp the conflicts of the program.
func (s *site) watchConflicts(ctx context.Context) error {
	s.suspected, s.confirmed, s.watching = newStamps(), newStamps(), make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		s.watching <- s.program.WatchConflicts(ctx, func(e netlab.Event) bool {
			switch c := e.GetConflict(); {
			case e.GetType() == ipwitnessv1.Watch_BOOKMARK:
				select {
				case <-ready:
				default:
					close(ready)
				}
			case c.GetState() == ipwitnessv1.Conflict_SUSPECTED:
				s.suspected.set(c.GetAddress(), e.Read)
			case c.GetState() == ipwitnessv1.Conflict_CONFIRMED:
				s.confirmed.set(c.GetAddress(), e.Read)
			}
			return true
		})
	}()
	select {
	case <-ready:
		return nil
	case err := <-s.watching:
		return err
	}
}

func (s *site) close() {
	s.program.Kill()
	s.Close()
}

// bareReader stamps RTM_NEWADDR on a host with only a netlink socket: the floor of all latencies.
// It stamps the nth message about an address.
func bareReader(h *netlab.Host, nth int) (*stamps, func(), error) {
	out := newStamps()
	var fd int
	err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_IPV4_IFADDR - 1)})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open bare reader: %w", err)
	}
	file := os.NewFile(uintptr(fd), "rtnetlink")
	go func() {
		buf := make([]byte, 64<<10)
		reports := map[string]int{}
		for {
			n, err := file.Read(buf)
			at := time.Now()
			if err != nil {
				return
			}
			messages, err := parseMessages(buf[:n])
			if err != nil {
				return
			}
			for _, addr := range messages {
				if reports[addr]++; reports[addr] == nth {
					out.set(addr, at)
				}
			}
		}
	}()
	return out, func() { _ = file.Close() }, nil
}

// parseMessages returns the addresses in RTM_NEWADDR messages.
func parseMessages(b []byte) (out []string, err error) {
	const ifaLocal = unix.SizeofNlMsghdr + unix.SizeofIfAddrmsg
	for len(b) > ifaLocal {
		n := int(binary.NativeEndian.Uint32(b))
		if n < ifaLocal || n > len(b) {
			return out, fmt.Errorf("message of %d bytes", n)
		}
		if binary.NativeEndian.Uint16(b[4:]) == unix.RTM_NEWADDR {
			for a := b[ifaLocal:n]; len(a) >= 8; {
				l := int(binary.NativeEndian.Uint16(a))
				if binary.NativeEndian.Uint16(a[2:]) == unix.IFA_LOCAL {
					addr, _ := netip.AddrFromSlice(a[4:8])
					out = append(out, addr.String())
				}
				if l < 4 || (l+3)&^3 > len(a) {
					break
				}
				a = a[(l+3)&^3:]
			}
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return out, nil
}

// requestRows measures from just before the RTM_NEWADDR request until an HTTP client reads the
// line.
func requestRows(ctx context.Context, bin string) ([]row, error) {
	s, err := newSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.firstOwners(); err != nil {
		return nil, err
	}
	// The observer attaches in the background, under a kernel lock that the requests below also
	// need.
	if err := s.settled(ctx, 2*duplicates); err != nil {
		return nil, err
	}
	bare, stop, err := bareReader(s.Host, 1)
	if err != nil {
		return nil, err
	}
	defer stop()
	hop, err := hopTime(ctx, s.Host, local, 1000, nil)
	if err != nil {
		return nil, err
	}

	requested := map[string]time.Time{}
	for i := range duplicates {
		addr := duplicateAddress(i)
		at, err := request(s.Host, fmt.Sprintf("b%d", i), addr)
		if err != nil {
			return nil, err
		}
		requested[addr] = at
		if err := s.suspected.await(ctx, "SUSPECTED lines", i+1); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, s.program.Log)
		}
	}
	if err := s.confirmed.await(ctx, "CONFIRMED lines", duplicates); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.program.Log)
	}

	suspected, confirmed := s.since(requested)
	rows := latencyRows("RTM_NEWADDR request to the SUSPECTED line", suspected, confirmed)
	rows = append(rows, floorRow(suspected, after(bare, requested), hop))
	took, err := s.program.Stop()
	if err != nil {
		return rows, fmt.Errorf("stop by SIGTERM: %w", err)
	}
	return append(rows, row{"  SIGTERM to exit, with all ports detached", millis(took), "≤ 2 s", took <= 2*time.Second}), nil
}

// firstOwners creates two pods for each duplicate, and gives one of them its address.
func (s *site) firstOwners() error {
	for i := range duplicates {
		for _, side := range []string{"a", "b"} {
			for _, line := range podLines(fmt.Sprintf("%s%d", side, i)) {
				if _, err := s.Run("%s", line); err != nil {
					return err
				}
			}
		}
		if _, err := s.Run("ip -n a%d addr add %s/32 dev eth0", i, duplicateAddress(i)); err != nil {
			return err
		}
	}
	return nil
}

// duplicateAddress returns the address of a duplicate.
func duplicateAddress(i int) string { return fmt.Sprintf("10.9.%d.%d", i/250, i%250+1) }

// request adds an address to a pod, and returns the time of the request.
func request(h *netlab.Host, name, addr string) (at time.Time, err error) {
	pod, err := h.Pod(name)
	if err != nil {
		return at, err
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(pod.Fd()), unix.NETLINK_ROUTE)
	pod.Close()
	if err != nil {
		return at, err
	}
	defer handle.Close()
	link, err := handle.LinkByName("eth0")
	if err != nil {
		return at, err
	}
	a, err := netlink.ParseAddr(addr + "/32")
	if err != nil {
		return at, err
	}
	at = time.Now()
	return at, handle.AddrAdd(link, a)
}

// since returns the time from each request to its line, for CONFIRMED without the settle time.
func (s *site) since(requested map[string]time.Time) (suspected, confirmed []time.Duration) {
	for addr, at := range requested {
		line, _ := s.suspected.get(addr)
		suspected = append(suspected, line.Sub(at))
		line, _ = s.confirmed.get(addr)
		confirmed = append(confirmed, line.Sub(at)-time.Second)
	}
	return suspected, confirmed
}

// after returns the time from each request to the message that a bare reader received.
func after(bare *stamps, requested map[string]time.Time) (all []time.Duration) {
	for addr, at := range requested {
		if heard, ok := bare.get(addr); ok {
			all = append(all, heard.Sub(at))
		}
	}
	return all
}

// floorRow compares the median with the least possible latency.
func floorRow(suspected, bare []time.Duration, hop time.Duration) row {
	f := quantile(bare, 0.5) + 2*hop
	ratio := float64(quantile(suspected, 0.5)) / float64(f)
	return row{
		"  p50, divided by its floor: a bare netlink reader and two gRPC hops",
		fmt.Sprintf("%.1f × (%s + 2 × %s)", ratio, millis(quantile(bare, 0.5)), millis(hop)), "≤ 5 ×", ratio <= 5,
	}
}

func latencyRows(what string, suspected, confirmed []time.Duration) []row {
	p50, p99 := quantile(suspected, 0.5), quantile(suspected, 0.99)
	c99 := quantile(confirmed, 0.99)
	return []row{
		{what + ", p50", millis(p50), "≤ 0.3 ms", p50 <= 300*time.Microsecond},
		{"  p99", millis(p99), "≤ 3 ms", p99 <= 3*time.Millisecond},
		{"  to the CONFIRMED line minus the settle time, p99", millis(c99), "≤ 20 ms", c99 <= 20*time.Millisecond},
	}
}

// pluginRows measures the accident with real plugins, from the second RTM_NEWADDR at a bare reader
// to the line.
func pluginRows(ctx context.Context, bin, name, conflist string) ([]row, error) {
	s, err := newSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	cni, err := s.CNI(conflist)
	if err != nil {
		return nil, err
	}
	bare, stop, err := bareReader(s.Host, 2)
	if err != nil {
		return nil, err
	}
	defer stop()
	type loaded struct {
		hop time.Duration
		err error
	}
	quiet, hops := make(chan struct{}), make(chan loaded, 1)
	go func() {
		hop, err := hopTime(ctx, s.Host, local, math.MaxInt, quiet)
		hops <- loaded{hop, err}
	}()
	for _, generation := range []string{"old", "new"} {
		for i := range duplicates {
			if err := cni.Add(fmt.Sprintf("%s%d", generation, i)); err != nil {
				return nil, err
			}
		}
		if generation == "old" {
			if err := cni.Forget(); err != nil {
				return nil, err
			}
		}
	}
	close(quiet)
	hop := <-hops
	if hop.err != nil {
		return nil, hop.err
	}
	if err := s.confirmed.await(ctx, "CONFIRMED lines", duplicates); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.program.Log)
	}
	var conflicts ipwitnessv1.ListConflictsResponse
	if err := s.program.Get(ctx, "/v1/conflicts", &conflicts); err != nil {
		return nil, err
	}
	wrong := 0
	for _, c := range conflicts.GetConflicts() {
		var names []string
		for _, o := range c.GetOwners() {
			names = append(names, o.GetWorkload().GetName())
		}
		slices.Sort(names)
		if len(names) != 2 || !strings.HasPrefix(names[0], "new") || names[1] != "old"+strings.TrimPrefix(names[0], "new") {
			wrong++
		}
	}
	found := len(conflicts.GetConflicts())
	var suspected, confirmed []time.Duration
	for addr, line := range s.confirmed.at {
		heard, ok := bare.get(addr)
		if !ok {
			return nil, fmt.Errorf("%s was confirmed, but its second RTM_NEWADDR was not heard", addr)
		}
		confirmed = append(confirmed, line.Sub(heard)-time.Second)
		line, _ = s.suspected.get(addr)
		suspected = append(suspected, line.Sub(heard))
	}
	rows := []row{{
		name + ": duplicates found, both owners named", fmt.Sprintf("%d, %d", found, found-wrong),
		fmt.Sprint(duplicates), found == duplicates && wrong == 0,
	}}
	rows = append(rows, latencyRows("  bare reader's RTM_NEWADDR to the SUSPECTED line", suspected, confirmed)...)
	ratio := float64(quantile(suspected, 0.5)) / float64(2*hop.hop)
	return append(rows, row{
		"  p50, divided by its floor: two gRPC hops while the plugins run",
		fmt.Sprintf("%.1f × (2 × %s)", ratio, millis(hop.hop)), "≤ 5 ×", ratio <= 5,
	}), nil
}

// settled waits until the observers of all nodes are attached to the given total number of ports.
func (s *site) settled(ctx context.Context, ports uint32) error {
	for {
		nodes, err := s.program.Nodes(ctx)
		if err != nil {
			return err
		}
		var n uint32
		for _, node := range nodes {
			n += node.GetPorts()
		}
		if n == ports {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// local is the server's address for clients on the same host.
const local = "127.0.0.1"

// hopTime returns the median one-way time between a gRPC client on a host and the server at an
// address. It takes n measurements, or measures until stop is closed.
func hopTime(ctx context.Context, h *netlab.Host, server string, n int, stop <-chan struct{}) (time.Duration, error) {
	conn, err := grpc.NewClient("passthrough:///"+server+":9640",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (c net.Conn, err error) {
			err = h.Do(func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
				return err
			})
			return c, err
		}))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	health := healthpb.NewHealthClient(conn)
	var trips []time.Duration
	for range n {
		select {
		case <-stop:
			return quantile(trips, 0.5), nil
		default:
		}
		begin := time.Now()
		if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			return 0, fmt.Errorf("measure gRPC hop: %w", err)
		}
		trips = append(trips, time.Since(begin)/2)
		if stop != nil {
			time.Sleep(10 * time.Millisecond) // keeps the measurement from adding load
		}
	}
	return quantile(trips, 0.5), nil
}
