package wire

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/bpf"
	"github.com/ipwitness/ipwitness/tests/agenttest"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// watched is a Wire in the network namespace of the test process. The kernel's mirror is fed by
// the test, which also has the other end of each port.
type watched struct {
	t      *testing.T
	kernel *kernel.Mirror
	table  *table.Table
	*Wire
	status atomic.Int32 // calls of StatusChanged
	logs   bytes.Buffer // to be read only while the Wire does not run
}

var (
	macA    = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB    = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	target  = netip.MustParseAddr("192.0.2.254")
	claimed = netip.MustParseAddr("192.0.2.1")
)

// best returns the best mode that the kernel has.
func best() bpf.Mode {
	if bpf.HaveTCX() != nil {
		return bpf.Clsact
	}
	return bpf.TCX
}

func newWatched(t *testing.T, mode bpf.Mode, include, exclude []string) *watched {
	t.Helper()
	obs, err := bpf.Load()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = obs.Close() })
	w := &watched{t: t, table: table.New()}
	w.kernel = testKernel(t, agenttest.Fake{}, w.table)
	w.Wire = New(slog.New(slog.NewTextHandler(&w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), w.kernel, w.table, obs, mode, include, exclude)
	w.StatusChanged = func() { w.status.Add(1) }
	return w
}

// add creates a port whose other end is named out-NAME.
func (w *watched) add(name string) rtnetlink.Link {
	w.t.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: net.FlagUp}, PeerName: "out-" + name})
	if err != nil {
		w.t.Fatal("add veth: ", err)
	}
	for _, end := range []string{name, "out-" + name} {
		l, err := netlink.LinkByName(end)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			w.t.Fatal("set up: ", err)
		}
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		w.t.Fatal(err)
	}
	link := rtnetlink.Link{Index: int32(l.Attrs().Index), Name: name, MAC: "hosts1", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
	w.tell(unix.RTM_NEWLINK, link)
	return link
}

// tell tells the mirror that an interface was created, changed or deleted.
func (w *watched) tell(typ uint16, l rtnetlink.Link) {
	w.kernel.Handle(&rtnetlink.Message{Type: typ, NSID: rtnetlink.NoNSID, Link: l})
}

// start runs the Wire and returns a function that stops it.
func (w *watched) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		w.t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.t.Errorf("run: got error %v", err)
			}
		case <-time.After(wait.Patience()):
			w.t.Fatal("Run does not end with its context")
		}
	}
}

// watchOne runs a Wire that watches one port, and returns the port. The Wire stops when the test
// ends.
func watchOne(t *testing.T) (*watched, rtnetlink.Link) {
	t.Helper()
	w := newWatched(t, best(), nil, nil)
	port := w.add("a")
	t.Cleanup(w.start())
	w.awaitPorts("a")
	return w, port
}

// send lets the other end of a port announce an address.
func (w *watched) send(port string, sha net.HardwareAddr, addr netip.Addr) {
	w.t.Helper()
	if err := netlab.Send("out-"+port, netlab.ARP(2, sha, addr, target)); err != nil {
		w.t.Fatal(err)
	}
}

// flood sends frames on the other end of a port. Their addresses and MAC addresses are numbered from
// first on.
func (w *watched) flood(port string, first, frames int) {
	w.t.Helper()
	all := make([][]byte, frames)
	for k := range all {
		i := first + k
		all[k] = netlab.ARP(2, net.HardwareAddr{2, 0, 1, byte(i >> 16), byte(i >> 8), byte(i)}, netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), target)
	}
	if _, err := netlab.Flood("out-"+port, all, netlab.Times(frames)); err != nil {
		w.t.Fatal(err)
	}
}

// names returns the names of the watched ports.
func (w *watched) names() string {
	ports, _ := w.Ports()
	var all []string
	for _, p := range ports {
		all = append(all, p.GetInterface())
	}
	return strings.Join(all, " ")
}

func (w *watched) awaitPorts(want string) {
	w.t.Helper()
	wait.Until(w.t, "ports are "+want, func() bool { return w.names() == want })
}

// count returns how often a claim was seen; 0 if it does not exist.
func (w *watched) count(port rtnetlink.Link, sha net.HardwareAddr, addr netip.Addr) (n uint32) {
	w.table.Update(func() {
		for k, c := range w.table.Claims() {
			if k.At.Index == port.Index && k.MAC == string(sha) && k.Address == addr {
				n = c.Count
			}
		}
	})
	return n
}

func (w *watched) awaitCount(port rtnetlink.Link, sha net.HardwareAddr, addr netip.Addr, want uint32) {
	w.t.Helper()
	wait.Until(w.t, "claim is counted", func() bool { return w.count(port, sha, addr) == want })
}

// awaitEarly waits for a condition that also becomes true when the observer reports a known
// binding again, every 30 s. The test fails if it takes that long, unless the machine is so busy that the
// condition was hardly checked meanwhile.
func (w *watched) awaitEarly(what string, cond func() bool) {
	w.t.Helper()
	begin := time.Now()
	checks := 0
	wait.Until(w.t, what, func() bool { checks++; return cond() })
	if took := time.Since(begin); took > 25*time.Second && checks > 100 {
		w.t.Errorf("%s: got it after %s, as for a known binding", what, took)
	}
}
