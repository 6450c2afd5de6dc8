package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam/advice"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/canary"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The tokens of two agents: node1 is honest, and the token of node2 was stolen.
const (
	wellBehavedToken = "honest-token-0123456789"
	stolenToken      = "stolen-token-0123456789"
	greedyToken      = "greedy-token-0123456789"
	agentTokens      = aliceToken + " operator alice\n" + wellBehavedToken + " agent node1\n" + stolenToken + " agent node2\n" + greedyToken + " reader greedy\n"
)

// newTokens starts an aggregator that authenticates agents by tokens.
func newTokens(t *testing.T) *secured {
	t.Helper()
	return newGuarded(t, agentTokens, false)
}

// file creates a file that contains a token.
func (s *secured) file(token string) string {
	s.t.Helper()
	name := filepath.Join(s.dir, token)
	if err := os.WriteFile(name, []byte(token+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return name
}

// wellBehaved creates node1 with two pods and a real agent that reports with the token of node1.
func (s *secured) wellBehaved() *lab {
	s.t.Helper()
	n := s.addMachine(newHost(s.t), "node1", 1)
	n.boot(1)
	n.pod("a", "10.244.0.7/32")
	n.pod("b", "10.244.0.8/32")
	n.witness("--aggregator", n.managed(s.cluster)+":9640", "--tls-ca", s.servers.File, "--token-file", s.file(wellBehavedToken))
	s.awaitNodes(n)
	s.wantHonest()
	return n
}

// wantHonest waits until the aggregator has the complete state of node1.
func (s *secured) wantHonest() {
	s.t.Helper()
	s.awaitNode("node1", ipwitnessv1.Node_LIVE)
	for addr, pod := range map[string]string{"10.244.0.7": "a", "10.244.0.8": "b"} {
		s.awaitOwner(addr, pod)
	}
	if n := s.nodeCalled("node1"); n.GetIncomplete() || n.GetLeftOut() != 0 {
		s.t.Errorf("the well-behaved node: got %v, want it complete", n)
	}
}

// nodeCalled returns the node with a name.
func (c *cluster) nodeCalled(name string) *ipwitnessv1.Node {
	c.t.Helper()
	nodes := c.allNodes()
	i := slices.IndexFunc(nodes, func(n *ipwitnessv1.Node) bool { return n.GetName() == name })
	if i < 0 {
		c.t.Fatalf("nodes: got %v, want %s", nodes, name)
	}
	return nodes[i]
}

// cli runs a query command and returns its output. The command may exit with exitCannotTell.
func (s *secured) cli(args ...string) string {
	s.t.Helper()
	cmd := s.at.Command(binary, append(args, "--server", "https://127.0.0.1:9641", "--tls-ca", s.servers.File, "--token-file", s.file(aliceToken))...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 3) {
		s.t.Fatalf("%q: %v: %s", args, err, &said)
	}
	return string(out)
}

// dial opens a gRPC connection that authenticates with a token.
func (s *secured) dial(token string) *grpc.ClientConn {
	s.t.Helper()
	config := s.Secure.TLS.Clone()
	config.ServerName = "127.0.0.1"
	conn, err := grpc.NewClient("passthrough:///"+grpcServer, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return streamer(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), desc, conn, method, opts...)
		}),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dialTCP(s.t, s.Host, grpcServer), nil }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// lying is a stream of reports by a client that has an agent's token but no node.
type lying struct {
	stream ipwitnessv1.ReportService_ReportClient
	mu     sync.Mutex // guards last and the order of messages
	last   uint64
	acked  chan uint64
	ended  chan error
}

func (s *secured) lying(token string) *lying {
	s.t.Helper()
	stream, err := ipwitnessv1.NewReportServiceClient(s.dial(token)).Report(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	l := &lying{stream: stream, acked: make(chan uint64, 1), ended: make(chan error, 1)}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				l.ended <- err
				return
			}
			if m.GetPing() != 0 { // it stays connected
				l.answer(&ipwitnessv1.ReportRequest{Pong: &ipwitnessv1.Pong{Id: m.GetPing(), SentAt: timestamppb.Now()}})
			}
			if m.GetCheck() != nil { // and reports that nothing has changed
				l.answer(&ipwitnessv1.ReportRequest{Checked: []uint64{m.GetCheck().GetId()}})
			}
			select {
			case <-l.acked:
			default:
			}
			l.acked <- m.GetAcknowledged()
		}
	}()
	return l
}

// send sends the next message and returns its sequence number. It ignores an error, because
// ended gives the reason why the stream ended.
func (l *lying) send(m *ipwitnessv1.ReportRequest) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	m.Sequence = l.last
	_ = l.stream.Send(m)
	return l.last
}

// answer sends an answer to the aggregator, but nothing before the hello.
func (l *lying) answer(m *ipwitnessv1.ReportRequest) {
	l.mu.Lock()
	begun := l.last > 0
	l.mu.Unlock()
	if begun {
		l.send(m)
	}
}

// say sends a message and returns the aggregator's response to it.
func (l *lying) say(m *ipwitnessv1.ReportRequest) error {
	n := l.send(m)
	for {
		select {
		case got := <-l.acked:
			if got >= n {
				return nil
			}
		case err := <-l.ended:
			return err
		}
	}
}

// saysHello returns the snapshot of an empty node.
func saysHello(node, boot, netns string) *ipwitnessv1.ReportRequest {
	return &ipwitnessv1.ReportRequest{
		SnapshotBegin: true, SnapshotEnd: true,
		Hello:      &ipwitnessv1.Hello{Node: node, BootId: boot, Netns: netns, Epoch: 1, Version: "v1"},
		Namespaces: []*ipwitnessv1.NamespaceRecord{{Id: 1, Netns: netns}},
	}
}

func TestAttackByAStolenTokenInTheNameOfAnotherNode(t *testing.T) {
	t.Parallel()
	s := newTokens(t)
	s.wellBehaved()
	victim := s.nodeCalled("node1")

	err := s.lying(stolenToken).say(saysHello("node1", bootID(1), victim.GetNetns()))
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("under the name of another node: got %v, want PERMISSION_DENIED", err)
	}
	s.wantHonest()
	wantAttack(t, "stolen-token-name", "nothing: the aggregator refuses the stream", "the agent and the log get: "+status.Convert(err).Message())

	if err := s.lying(stolenToken).say(saysHello("node2", bootID(1), victim.GetNetns())); err != nil {
		t.Errorf("with the boot id of another node: %v", err)
	}
	s.wantHonest()
	for _, name := range []string{"node1", "node2"} {
		wait.Until(t, "a problem of "+name, func() bool {
			return slices.ContainsFunc(s.nodeCalled(name).GetProblems(), func(p string) bool { return strings.Contains(p, "which cannot both be true") })
		})
	}
	wantAttack(t, "stolen-token-boot-id", "one more node is listed; the other one keeps its owners",
		"a problem of both nodes, here of node1: "+s.nodeCalled("node1").GetProblems()[0])
}

// poolOf returns the directory of a host-local pool with a payload in its name.
func poolOf(payload string) string { return "/var/lib/cni/networks/" + payload }

// hostile returns a report in which every name that may be free text does harm where it is
// not quoted. It has pods that share addresses, some of them without allocations, and a
// host-local pool.
func hostile(boot, netns string, payloads []string) *ipwitnessv1.ReportRequest {
	m := saysHello("node2", boot, netns)
	for i, payload := range payloads {
		cut := payload[:min(len(payload), 15)] // short enough for the name of an interface
		pool := poolOf(payload)
		network := "net" + fmt.Sprint(i)
		address := func(host byte) []byte { return []byte{10, 245, byte(i), host} }
		m.Pools = append(m.Pools, &ipwitnessv1.PoolRecord{
			Ipam: "host-local", Name: pool, Network: network, State: ipwitnessv1.Pool_KNOWN, Plugin: "ptp", Routed: true, Config: "/etc/cni/net.d/" + payload,
			Device: cut, Ranges: []*ipwitnessv1.AddressRange{{First: address(2), Last: address(254)}}, Gateways: [][]byte{address(1)},
		})
		m.Allocations = append(m.Allocations, &ipwitnessv1.AllocationRecord{
			Ipam: "host-local", Pool: pool, Address: address(6), ContainerId: payload, Interface: cut, AllocatedAt: timestamppb.Now(),
		})
		for j := range uint32(4) { // two pods have .5 without an allocation; .6 and .7 have one pod each
			id := 10 + 4*uint32(i) + j
			port := fmt.Sprint("veth", id)
			namespace, name, ifname, inode, container := payload, payload, cut, fmt.Sprint(4026532000+id), fmt.Sprint("0123456789abcdef", id)
			switch j {
			case 1:
				name, inode, container = fmt.Sprint("web-", i), payload, payload
			case 3: // here only the pool has an odd name, so that there is a command
				namespace, name, ifname = "default", fmt.Sprint("db-", i), "eth0"
			}
			m.Namespaces = append(m.Namespaces, &ipwitnessv1.NamespaceRecord{
				Id: id, Netns: inode, Workload: &ipwitnessv1.Workload{
					Kind: ipwitnessv1.Workload_POD, Namespace: namespace, Name: name, Uid: payload, ContainerId: container,
					Process: payload + " (12)", Source: "cni-result",
				},
				Intended: []*ipwitnessv1.Intended{{Address: fmt.Sprintf("10.245.%d.9", i), Source: "cri", Interface: cut}},
			})
			m.Links = append(m.Links, &ipwitnessv1.LinkRecord{Name: port, Kind: ipwitnessv1.LinkRecord_POINT_TO_POINT})
			m.Interfaces = append(m.Interfaces, &ipwitnessv1.InterfaceRecord{
				Namespace: id, Index: 2, Name: ifname, Kind: "veth", Mac: []byte{2, 9, 0, 0, byte(i), byte(j)},
				Attachment: ipwitnessv1.InterfaceRecord_PEER, Link: port, HostInterface: port,
			})
			m.Claims = append(m.Claims, &ipwitnessv1.ClaimRecord{
				Address: address(4 + byte(max(j, 1))), Kind: ipwitnessv1.Evidence_ASSIGNED, Namespace: id, Index: 2, PrefixLength: 32, Network: network,
			})
		}
	}
	m.Status = &ipwitnessv1.StatusRecord{Wire: "tcx", Problems: payloads, Runtime: payloads[0], NodeName: &ipwitnessv1.NodeName{Name: payloads[0], File: payloads[0]}}
	return m
}

// A stolen token reports names that contain commands. All commands that ipwitness then prints, and
// the plan that it makes, are run in a real shell and must not execute them.
func TestAttackByAStolenTokenThatReportsCommands(t *testing.T) {
	t.Parallel()
	s := newTokens(t)
	s.wellBehaved()
	cage := canary.New(t)
	l := s.lying(stolenToken)
	if err := l.say(hostile(cage.Boot, cage.Netns, canary.Payloads)); err != nil {
		t.Fatal(err)
	}
	for i := range canary.Payloads {
		s.watch.await("a conflict", inState(fmt.Sprintf("10.245.%d.5", i), ipwitnessv1.Conflict_CONFIRMED))
	}
	var plan string
	wait.Until(t, "a plan", func() bool {
		plan = s.cli("audit", "--fix-plan")
		return strings.Contains(plan, "10.245.0.7") && strings.Contains(plan, "10.245.3.7")
	})
	wantWords(t, plan, advice.Quote(poolOf(canary.Payloads[0]))) // a command that contains a payload
	cage.Parses(plan)
	cage.Readable("the plan", plan)
	for _, arguments := range []string{"", " node node2", " cluster"} {
		cage.Add("set --" + arguments + "\n" + plan)
	}
	shown := []string{s.cli("nodes", "-o", "wide"), s.cli("owners", "-o", "wide"), s.cli("conflicts", "-o", "wide"), s.cli("audit", "-o", "wide"), s.cli("audit", "10.245.0.7")}
	for i := range canary.Payloads {
		for _, host := range []int{5, 6, 7, 9} {
			shown = append(shown, s.cli("explain", fmt.Sprintf("10.245.%d.%d", i, host)))
		}
		shown = append(shown, s.cli("conflicts", fmt.Sprintf("10.245.%d.5", i)))
	}
	for _, text := range shown {
		cage.Readable("what is shown", text)
		cage.Advice(text)
	}
	if script := cage.Sings(); script != "" {
		t.Errorf("a command of the attacker would be executed by:\n%s", script)
	}
	s.wantHonest()
	problems := s.nodeCalled("node2").GetProblems()
	i := slices.IndexFunc(problems, func(p string) bool { return strings.Contains(p, "NamespaceRecord.netns") })
	if i < 0 {
		t.Fatalf("problems of the node: got %q, want the names of the fields", problems)
	}
	wantAttack(t, "stolen-token-commands", "nothing: `sh` ran the plan of `audit --fix-plan` and each shown command, but no command of the attacker",
		"a problem of the node: "+problems[i])
}

func TestAttackByANodeThatReportsMoreThanItsShare(t *testing.T) {
	slow(t)
	const limit = 64 // MiB
	t.Setenv("GOMEMLIMIT", fmt.Sprint(limit<<20))
	s := newTokens(t)
	n := s.wellBehaved()
	l := s.lying(stolenToken)
	const bindings, atOnce = 100_000, 4000
	for from := 0; from < bindings; from += atOnce {
		m := &ipwitnessv1.ReportRequest{}
		if from == 0 {
			m = saysHello("node2", bootID(2), "4026531840")
			m.Interfaces = []*ipwitnessv1.InterfaceRecord{{Namespace: 1, Index: 2, Name: "eth0", Attachment: ipwitnessv1.InterfaceRecord_OWN, Link: "eth0", Uplink: true}}
			m.Links = []*ipwitnessv1.LinkRecord{{Name: "eth0", Kind: ipwitnessv1.LinkRecord_UPLINK}}
		}
		for i := range atOnce {
			addr, mac := binding(from + i)
			m.Claims = append(m.Claims, &ipwitnessv1.ClaimRecord{
				Address: addr.AsSlice(), Kind: ipwitnessv1.Evidence_ANNOUNCED, Namespace: 1, Index: 2, Link: "eth0", Mac: mac, Source: mac,
			})
		}
		if err := l.say(m); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "node2 to be incomplete", func() bool { return s.nodeCalled("node2").GetIncomplete() })
	s.wantHonest()
	// There is also room for new reports of the honest node.
	n.pod("c", "10.244.0.7/32")
	s.watch.await("the duplicate of the honest node", inState("10.244.0.7", ipwitnessv1.Conflict_CONFIRMED))
	if n := s.nodeCalled("node1"); n.GetIncomplete() {
		t.Errorf("the well-behaved node: got %v, want it complete", n)
	}
	peak := s.peak()
	t.Logf("peak: %d MiB with GOMEMLIMIT=%d MiB", peak, limit)
	if peak > 2*limit {
		t.Errorf("got a peak of %d MiB, want %d at most", peak, 2*limit)
	}
	lying := s.nodeCalled("node2")
	wantAttack(t, "stolen-token-memory", "its own node is incomplete; another one stays complete, and a new duplicate there is found",
		"a problem of the node: "+masked(strings.Join(lying.GetProblems(), "; "), `.*`))
}

// slowly opens each connections from every address, and sends an unfinished request on them.
func slowly(t *testing.T, h *netlab.Host, to, request string, each int, from ...string) (open []net.Conn) {
	t.Helper()
	for _, address := range from {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		for range each {
			var c net.Conn
			err := h.Do(func() (err error) {
				c, err = dialer.DialContext(t.Context(), "tcp", to)
				return err
			})
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
				_, err = io.WriteString(c, request)
			}
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
	}
	return open
}

func TestAttackBySlowRequests(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newAggregator(t, "--metrics-listen", "127.0.0.1:9643")
	probes := netlab.Remote("http://127.0.0.1:9643", c.Client())
	const request = "POST /v1/conflicts/abc:acknowledge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
	open := slowly(t, c.Host, "127.0.0.1:9641", request, 256, "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")

	// Send one byte at a time until the server has closed every connection.
	ended := make(chan struct{}, len(open))
	for _, conn := range open {
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			ended <- struct{}{}
		}()
	}
	most := descriptors(t, c.program)
	if _, err := netlab.Remote(netlab.Server, c.Client()).Text(t.Context(), "/v1/owners"); err != nil { // uses a connection of its own
		t.Errorf("REST meanwhile: %v", err)
	}
	wait.Until(t, "all of them to be closed", func() bool {
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if code, err := probes.Status(t.Context(), path); err != nil || code != http.StatusOK {
				t.Errorf("%s of --metrics-listen meanwhile: got %d, %v, want 200", path, code, err)
			}
		}
		most = max(most, descriptors(t, c.program))
		for _, conn := range open {
			_, _ = io.WriteString(conn, " ") // the connection may be closed already
		}
		return len(ended) == len(open)
	})
	if most < len(open) {
		t.Errorf("open files of the aggregator: got at most %d, want %d concurrent connections", most, len(open))
	}
	wantAttack(t, "dripped-requests", "nothing: the oldest of these connections are closed for other clients, and all of them after 10 s",
		"`/v1/owners` answers, and `/healthz`, `/readyz` and `/metrics` of `--metrics-listen` answer 200")
}

func TestAttackByRapidReset(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newAggregator(t)
	fleet, err := sim.Start(c.Host, grpcServer, sim.Size{Nodes: 5, Owners: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Stop()
	c.wantFleet(fleet)

	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, field := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", ipwitnessv1.WitnessService_ListOwners_FullMethodName},
		{":authority", "localhost"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: true}); err != nil { // never indexed, so that each call has the same bytes
			t.Fatal(err)
		}
	}
	conn := dialTCP(t, c.Host, grpcServer)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	if err == nil {
		err = framer.WriteSettings()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	before := c.peak()
	const calls = 200_000
	for n := uint32(0); err == nil && n < calls; n++ {
		id := 2*n + 1
		if err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true}); err == nil {
			err = framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		if n == calls/2 {
			c.wantFleet(fleet)
		}
	}
	c.wantFleet(fleet)
	const most = 32 // MiB
	if taken := c.peak() - before; taken > most {
		t.Errorf("memory for %d calls: got %d MiB, want %d at most", calls, taken, most)
	}
	wantAttack(t, "rapid-reset", "nothing: the connection waits while 128 of its calls are in progress, agents continue to report, and other clients are served", "nothing")
}

func TestAttackByConnectionsOfOneCaller(t *testing.T) {
	t.Parallel()
	s := newTokens(t)
	s.wellBehaved()
	var refused error
	opened := 0
	for ; refused == nil && opened < 1000; opened++ {
		stream, err := ipwitnessv1.NewWitnessServiceClient(s.dial(greedyToken)).WatchOwners(t.Context(), &ipwitnessv1.WatchOwnersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); err != nil {
			refused = err
		}
	}
	if status.Code(refused) != codes.ResourceExhausted {
		t.Errorf("unlimited connections: got %v after %d, want RESOURCE_EXHAUSTED", refused, opened)
	}
	s.wantHonest()
	wantAttack(t, "connections-of-a-caller", "nothing: agents continue to report", "the caller gets: "+status.Convert(refused).Message())
}

func TestAttackByWatchesThatDoNotRead(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newAggregator(t)
	fleet, err := sim.Start(c.Host, grpcServer, sim.Size{Nodes: 20, Owners: 200})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Stop()
	c.wantFleet(fleet)
	before := c.peak()
	// With a growing window, the client could receive the complete state without reading it.
	client := ipwitnessv1.NewWitnessServiceClient(dialGRPC(t, c.Host, grpcServer, grpc.WithStaticStreamWindowSize(64<<10)))
	var refused error
	var open []ipwitnessv1.WitnessService_WatchOwnersClient
	for refused == nil && len(open) < 1000 {
		stream, err := client.WatchOwners(t.Context(), &ipwitnessv1.WatchOwnersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if head, err := stream.Header(); err != nil || head.Get("content-type") == nil { // the stream did not begin
			_, refused = stream.Recv()
		}
		open = append(open, stream)
	}
	if status.Code(refused) != codes.ResourceExhausted {
		t.Errorf("unlimited watches: got %v after %d, want RESOURCE_EXHAUSTED", refused, len(open))
	}
	const watches = `ipwitness_aggregator_watches{of="owners"}`
	wait.Until(t, "all of them to be cut off", func() bool { return c.metricOf(c.program, watches) == 0 })
	var end error
	for end == nil { // drain the stream, and get the reason for its end
		_, end = open[0].Recv()
	}
	c.wantFleet(fleet)
	taken, most := c.peak()-before, len(open)/2+8 // half a megabyte per connection
	t.Logf("%d watches took %d MiB", len(open), taken)
	if taken > most {
		t.Errorf("memory for %d watches: got %d MiB, want %d at most", len(open), taken, most)
	}
	reason, after, _ := strings.Cut(status.Convert(end).Message(), "resume_token=")
	_, after, _ = strings.Cut(after, ": ")
	wantAttack(t, "watches-unread", "the memory of the aggregator grows by half a megabyte each at most",
		"one caller gets: "+status.Convert(refused).Message()+". And each, later: "+reason+"resume_token=…: "+after)
}

func TestAttackOnTheFileOfAcknowledgements(t *testing.T) {
	t.Parallel()
	for id, make := range map[string]func(name string) error{
		"acknowledgements-damaged": func(name string) error {
			return os.WriteFile(name, []byte(`{"version":1,"acknowledgements":[{"conf`), 0o600)
		},
		"acknowledgements-fifo": func(name string) error { return unix.Mkfifo(name, 0o600) },
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			if err := errors.Join(os.Mkdir(dir, 0o700), make(filepath.Join(dir, "acknowledgements.json"))); err != nil {
				t.Fatal(err)
			}
			c := newAggregator(t, "--data-dir", dir) // the aggregator is serving
			n := c.addNode("node1")
			n.plant() // and detects duplicates
			var m ipwitnessv1.ListNodesResponse
			if err := c.program.Get(t.Context(), "/v1/nodes", &m); err != nil {
				t.Fatal(err)
			}
			said := strings.ReplaceAll(strings.Join(m.GetProblems(), "; "), dir, "DIR")
			wantAttack(t, id, "earlier acknowledgements are lost; the aggregator starts, and duplicates are found",
				"a problem of the aggregator, and a line of its log: "+masked(said, `\d+T[\d.]+Z`))
		})
	}
}

func TestAttackOnListenersWithoutAuthentication(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1) // from another host, without a token
	c.nodes[0].pod("a", "10.244.0.7/32")
	c.awaitOwner("10.244.0.7", "a")
	var said []string
	for line := range strings.Lines(c.program.Log.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, "listener=") {
			_, text, _ := strings.Cut(line, "level=")
			said = append(said, "`"+strings.TrimSpace(text)+"`")
		}
	}
	wantAttack(t, "open-listeners", "anyone who can reach them can report and read", "lines of the log at the start: "+strings.Join(said, "; "))
}
