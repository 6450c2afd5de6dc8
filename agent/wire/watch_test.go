package wire

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
	"github.com/ipwitness/ipwitness/tests/alone"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func TestFramesOfAllPortsBecomeClaims(t *testing.T) {
	alone.Run(t, func() {
		w := newWatched(t, best(), nil, []string{"hidden*"})
		a, hidden := w.add("a"), w.add("hidden0")
		stop := w.start()
		w.awaitPorts("a")
		if _, problems := w.Ports(); len(problems) != 0 {
			t.Errorf("problems: got %q, want none", problems)
		}
		w.send("hidden0", macB, claimed)
		w.send("a", macA, claimed)
		w.awaitCount(a, macA, claimed, 1)
		if got := w.count(hidden, macB, claimed); got != 0 {
			t.Errorf("claims by an excluded port: got %d, want none", got)
		}
		told := w.status.Load()

		b := w.add("b") // later, so the change of ports wakes the Wire
		w.awaitPorts("a b")
		wait.Until(t, "the new port is in the status", func() bool { return w.status.Load() > told })
		w.send("b", macB, claimed)
		w.awaitCount(b, macB, claimed, 1)
		told = w.status.Load()

		b.Name = "c"
		w.tell(unix.RTM_NEWLINK, b)
		w.awaitPorts("a c")
		wait.Until(t, "the new name is in the status", func() bool { return w.status.Load() > told })

		w.tell(unix.RTM_DELLINK, b)
		w.awaitPorts("a")
		w.tell(unix.RTM_NEWLINK, b) // an interface with the same index is another one
		w.awaitPorts("a c")
		w.send("b", macB, target)
		w.awaitCount(b, macB, target, 1)

		w.tell(unix.RTM_NEWLINK, rtnetlink.Link{Index: 9999, Name: "gone", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID})
		d := w.add("d")
		w.awaitPorts("a c d")
		if _, problems := w.Ports(); len(problems) != 0 {
			t.Errorf("problems with an interface that is gone: got %q, want none", problems)
		}

		stop()
		w.awaitPorts("")
		seen := w.frames(bpf.ResultEvent)
		w.send("d", macA, claimed)
		if got := w.frames(bpf.ResultEvent); got != seen || w.count(d, macA, claimed) != 0 {
			t.Errorf("frames after the end: got %d events, want %d as before", got, seen)
		}
	})
}

func TestEndedClaimIsReportedAgainByItsNextFrame(t *testing.T) {
	alone.Run(t, func() {
		w, a := watchOne(t)
		w.send("a", macA, claimed)
		w.awaitCount(a, macA, claimed, 1)
		w.send("a", macA, claimed)
		wait.Until(t, "the binding is known", func() bool { return w.frames(bpf.ResultKnown) == 1 })
		again := func(sha net.HardwareAddr, addr netip.Addr) {
			t.Helper()
			w.awaitEarly("the binding is told again", func() bool {
				w.send("a", sha, addr)
				return w.count(a, sha, addr) > 0
			})
		}
		w.kernel.Expire(time.Now().Add(time.Hour))
		if got := w.count(a, macA, claimed); got != 0 {
			t.Fatalf("expired claim: got count %d, want none", got)
		}
		again(macA, claimed)
		// The observer distinguishes bindings by their Ethernet source, too.
		frame := netlab.ARP(2, macA, target, claimed)
		copy(frame[6:], macB)
		proxied := func() bool {
			if err := netlab.Send("out-a", frame); err != nil {
				t.Fatal(err)
			}
			return w.count(a, macA, target) > 0
		}
		wait.Until(t, "the proxied binding is told", proxied)
		w.kernel.Expire(time.Now().Add(time.Hour))
		w.awaitEarly("the proxied binding is told again", proxied)

		// Bindings are forgotten once only.
		again(macA, claimed)
		events := w.frames(bpf.ResultEvent)
		other := netip.MustParseAddr("192.0.2.99")
		w.letGo([]table.ClaimKey{{Address: other}})
		wait.Until(t, "the Wire looks for what to forget", func() bool { return len(w.wake) == 0 })
		w.letGo([]table.ClaimKey{{Address: other}})
		wait.Until(t, "the Wire has forgotten it", func() bool { return len(w.wake) == 0 })
		known := w.frames(bpf.ResultKnown)
		w.send("a", macA, claimed)
		wait.Until(t, "the frame is known", func() bool { return w.frames(bpf.ResultKnown) > known || w.frames(bpf.ResultEvent) > events })
		if got := w.frames(bpf.ResultEvent); got != events {
			t.Errorf("binding that was told since: got %d events, want %d as before", got, events)
		}
	})
}

func TestContestedAddressIsReportedMoreOften(t *testing.T) {
	alone.Run(t, func() {
		w, a := watchOne(t)
		w.send("a", macA, claimed)
		w.awaitCount(a, macA, claimed, 1)
		w.Contest(claimed, true)
		w.awaitEarly("a contested binding is told again", func() bool {
			w.send("a", macA, claimed)
			return w.count(a, macA, claimed) > 1
		})
	})
}

func TestContestedAddressIsImportant(t *testing.T) {
	alone.Run(t, func() {
		w := newWatched(t, best(), nil, nil)
		for _, on := range []bool{true, false} {
			w.Contest(claimed, on)
			select {
			case <-w.wake:
			default:
				t.Errorf("contested %v: the observer is not told", on)
			}
			if got := w.table.TakeImportance(); len(got) != 1 || got[claimed] != on {
				t.Errorf("contested %v: got changes of importance %v", on, got)
			}
		}
		if got := w.logs.String(); got != "" {
			t.Errorf("contest that the observer accepts: got logs %s", got)
		}
		_ = w.obs.Close() // so that the kernel refuses the next contest
		if w.Contest(claimed, true); strings.Count(w.logs.String(), "level=WARN") != 1 {
			t.Errorf("contest that the observer rejects: got logs %s, want a warning", &w.logs)
		}
	})
}

func TestObserverThatAnotherProgramRemovesIsAttachedAgain(t *testing.T) {
	alone.Run(t, func() {
		w := newWatched(t, bpf.Clsact, nil, nil)
		port := w.add("a")
		w.attach(t.Context())
		if got := w.names(); got != "a" {
			t.Fatalf("ports: got %q, want a", got)
		}
		link, err := netlink.LinkByIndex(int(port.Index))
		if err != nil {
			t.Fatal(err)
		}
		qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		filters := func() int {
			all, err := netlink.FilterList(link, netlink.HANDLE_MIN_INGRESS)
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		reports := func(what string, want int32, change func()) {
			t.Helper()
			w.status.Store(0)
			change()
			if got := w.status.Load(); got != want {
				t.Errorf("%s: got the status reported %d times, want %d", what, got, want)
			}
		}
		reports("no change", 0, func() { w.attach(t.Context()) })
		reports("another name", 1, func() {
			port.Name = "b"
			w.tell(unix.RTM_NEWLINK, port)
			w.attach(t.Context())
		})
		if got := w.names(); got != "b" {
			t.Errorf("ports after one was renamed: got %q, want b", got)
		}
		reports("another interface with the same index", 1, func() {
			w.tell(unix.RTM_DELLINK, port)
			port.Name = "a"
			w.tell(unix.RTM_NEWLINK, port)
			w.attach(t.Context())
		})
		if got := w.attached[port.Index].gen; got != w.kernel.Ports()[0].Gen || filters() != 1 {
			t.Errorf("another interface with the same index: got generation %d and %d filters, want its own and one filter", got, filters())
		}
		reports("no flood", 0, func() { w.readCounters(time.Now()) })
		reports("regularly", 1, func() { w.renew(time.Now()) })
		if got := w.names(); got != "a" {
			t.Errorf("ports after a regular check: got %q, want a", got)
		}
		<-w.changed
		w.check()
		if got := w.names(); got != "a" {
			t.Errorf("ports while the filter is there: got %q, want a", got)
		}
		if len(w.changed) != 1 {
			t.Error("ports are not looked at after the check")
		}
		if err := netlink.QdiscDel(qdisc); err != nil {
			t.Fatal(err)
		}
		w.check()
		if got := w.names(); got != "" {
			t.Errorf("ports after another program removed the filter: got %q, want none", got)
		}
		if _, err := w.obs.Limited(int(port.Index)); err == nil {
			t.Error("limits of the port that is watched no more: got some")
		}
		w.attach(t.Context())
		if got := filters(); got != 1 || w.names() != "a" {
			t.Errorf("attached again: got %d filters and ports %q, want one on a", got, w.names())
		}
		ports, _ := w.Ports()
		if got := ports[0].GetMode(); got != "clsact" {
			t.Errorf("mode: got %q, want clsact", got)
		}

		// A killed agent leaves its filter. The next one cannot attach, says so, and removes it.
		next := newWatched(t, bpf.Clsact, nil, nil)
		next.tell(unix.RTM_NEWLINK, port)
		next.attach(t.Context())
		var s ipwitnessv1.StatusRecord
		next.AddStatus(&s, time.Now())
		if s.GetUnwatchedPorts() != 1 || len(s.GetPorts()) != 0 || len(s.GetProblems()) != 1 || !strings.Contains(s.GetProblems()[0], "frames on a are not seen") {
			t.Errorf("status with a port that another agent watches: got %v", &s)
		}
		next.check()
		if got := filters(); got != 1 || len(next.attached) != 0 {
			t.Errorf("before the next attempt: got %d filters and ports %v, want one filter and no port", got, next.attached)
		}
		var said bytes.Buffer
		RemoveLeftovers(slog.New(slog.NewTextHandler(&said, nil)), append(next.kernel.Ports(), kernel.Port{Index: 9999, Name: "gone"}))
		if got := filters(); got != 0 || strings.Count(said.String(), "level=") != 1 {
			t.Errorf("leftovers: got %d filters, want none; said %s", got, said.String())
		}
		next.attach(t.Context())
		if got := filters(); got != 1 || next.names() != "a" {
			t.Errorf("after the leftovers are gone: got %d filters and ports %q, want one on a", got, next.names())
		}
		set := cap.GetProc()
		if err := set.SetFlag(cap.Effective, false, cap.NET_ADMIN); err != nil {
			t.Fatal(err)
		}
		if err := set.SetProc(); err != nil {
			t.Fatal(err)
		}
		said.Reset()
		RemoveLeftovers(slog.New(slog.NewTextHandler(&said, nil)), next.kernel.Ports())
		if filters() != 1 || strings.Count(said.String(), "level=WARN") != 1 {
			t.Errorf("leftovers that cannot be removed: got %d filters, want one; said %s", filters(), said.String())
		}
		if err := set.SetFlag(cap.Effective, true, cap.NET_ADMIN); err != nil {
			t.Fatal(err)
		}
		if err := set.SetProc(); err != nil {
			t.Fatal(err)
		}
		next.detachAll()
		if got := filters(); got != 0 || next.names() != "" {
			t.Errorf("after the end: got %d filters and ports %q, want none", got, next.names())
		}
	})
}

func TestStatusHasWhatTheObserverCouldNotTell(t *testing.T) {
	alone.Run(t, func() {
		w := newWatched(t, best(), nil, nil)
		var ports []string
		for _, name := range []string{"z", "y", "x", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"} {
			w.add(name)
			ports = append(ports, name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.attach(ctx)
		defer w.detachAll()
		cancel()
		slices.Sort(ports)
		if got := w.names(); got != strings.Join(ports, " ") {
			t.Errorf("ports: got %q, want them by name", got)
		}
		w.add("late")
		w.attach(ctx)
		if got := w.names(); strings.Contains(got, "late") {
			t.Errorf("ports after the end of the context: got %q, want none more", got)
		}
		status := func(now time.Time) *ipwitnessv1.StatusRecord {
			s := &ipwitnessv1.StatusRecord{LostEvents: 7}
			w.AddStatus(s, now)
			return s
		}
		now := time.Now()
		if s := status(now); s.GetWire() != best().String() || s.GetLostEvents() != 7 || s.GetUnparsed().GetTags() != 0 || len(s.GetProblems()) != 0 || len(s.GetPorts()) != len(ports) {
			t.Errorf("status at first: got %v", s)
		}
		// Three VLAN tags are more than the observer reads.
		frame := netlab.ARP(2, macA, claimed, target)
		tags := bytes.Repeat([]byte{0x88, 0xa8, 0, 10}, 3)
		if err := netlab.Send("out-x", slices.Concat(frame[:12], tags, frame[12:])); err != nil {
			t.Fatal(err)
		}
		if s := status(now); s.GetUnparsed().GetTags() != 1 || s.GetUnparsed().GetExtensions()+s.GetUnparsed().GetOptions() != 0 {
			t.Errorf("unparsed frames: got %v, want one with too many tags", s.GetUnparsed())
		}
		if s := status(now.Add(Kept)); s.GetUnparsed().GetTags() != 0 {
			t.Errorf("unparsed frames when their claims would have expired: got %v, want none", s.GetUnparsed())
		}
		// A flood is limited, and counted for its port only. Nobody reads the ring, so it gets half
		// full, and frames of later floods are lost before they are limited. That depends on the
		// speed of the machine, so only the first flood must be limited.
		const most = 1024 // frames of a port at once
		sent, limitedOn := uint64(0), map[string]uint64{}
		flood := func(port string, frames int) {
			t.Helper()
			before := w.frames(bpf.ResultLimited)
			w.flood(port, 0, frames)
			sent += uint64(frames)
			wait.Until(t, "the flood is seen", func() bool {
				return w.frames(bpf.ResultEvent)+w.frames(bpf.ResultLimited)+w.frames(bpf.ResultLost)+w.frames(bpf.ResultKnown) == sent
			})
			limitedOn[port] = w.frames(bpf.ResultLimited) - before
		}
		flood("x", 10*most)
		for _, port := range ports {
			if port != "x" && port != "y" {
				flood(port, most)
			}
		}
		lost := w.frames(bpf.ResultLost)
		if limitedOn["x"] == 0 || lost == 0 {
			t.Fatalf("flood: got %d limited and %d lost frames, want both", limitedOn["x"], lost)
		}
		for _, c := range w.leftOut(w.frames(bpf.ResultLimited), w.table.LeftOut()) {
			if c.limited != limitedOn[c.name] {
				t.Errorf("limited frames of %s: got %d, want %d", c.name, c.limited, limitedOn[c.name])
			}
		}
		if got := w.logs.String(); got != "" {
			t.Errorf("counters that can be read: got logs %s", got)
		}
		for _, c := range []struct {
			after    time.Duration
			problems int
		}{{0, 1}, {Kept - 1, 1}, {Kept, 0}} {
			if s := status(now.Add(c.after)); s.GetLostEvents() != uint32(7+lost) || len(s.GetProblems()) != c.problems {
				t.Errorf("status %s after %d frames were lost: got %d lost events and problems %q, want %d problems", c.after, lost, s.GetLostEvents(), s.GetProblems(), c.problems)
			}
		}
	})
}

func TestFloodingPortIsNamedByItsCounters(t *testing.T) {
	alone.Run(t, func() {
		w, _ := watchOne(t)
		if got := w.Flooding(); got != 0 {
			t.Errorf("flooding ports at first: got %d, want none", got)
		}
		told := w.status.Load()
		senders := 0 // a slow machine exceeds their limit, not that of frames per second
		wait.Until(t, "the port is flooding", func() bool {
			const more = 1 << 12
			w.flood("a", senders, more)
			senders += more
			return w.Flooding() == 1
		})
		wait.Until(t, "the flood is in the status", func() bool { return w.status.Load() > told })
		var s ipwitnessv1.StatusRecord
		w.AddStatus(&s, time.Now())
		if len(s.GetFlooding()) != 1 || s.GetFlooding()[0].GetInterface() != "a" {
			t.Errorf("flooding ports in the status: got %v, want a", s.GetFlooding())
		}
	})
}
