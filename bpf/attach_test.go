package bpf

import (
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// forEachMode runs a test with each method of attaching. The test may lock its thread.
func forEachMode(t *testing.T, test func(t *testing.T, attach func(*Observer, int) (*Attachment, error), mode Mode)) {
	t.Run("tcx", func(t *testing.T) {
		requireRoot(t)
		if err := HaveTCX(); err != nil {
			t.Skip("needs TCX, as Linux 6.6 has: ", err)
		}
		test(t, (*Observer).AttachTCX, TCX)
	})
	t.Run("clsact", func(t *testing.T) { test(t, (*Observer).AttachClsact, Clsact) })
}

// attached fails the test unless the attachment succeeded. It closes the attachment when the test
// ends.
func attached(tb testing.TB, a *Attachment, err error) *Attachment {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = a.Close() })
	return a
}

// counter returns a foreign program that counts frames and returns a verdict.
func counter(tb testing.TB, verdict int32) (*ebpf.Program, func() uint64) {
	tb.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		tb.Fatal("make map: ", err)
	}
	tb.Cleanup(func() { _ = m.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
			asm.Return(),
		},
		License: "Dual BSD/GPL",
	})
	if err != nil {
		tb.Fatal("load program: ", err)
	}
	tb.Cleanup(func() { _ = prog.Close() })
	return prog, func() uint64 {
		var n uint64
		if err := m.Lookup(uint32(0), &n); err != nil {
			tb.Fatal("read count: ", err)
		}
		return n
	}
}

// addFilter adds a foreign filter with the given parent and priority.
func addFilter(tb testing.TB, ifindex int, parent uint32, priority uint16, prog *ebpf.Program) {
	tb.Helper()
	if err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    parent,
			Priority:  priority,
			Protocol:  unix.ETH_P_ALL,
		},
		Fd:           prog.FD(),
		Name:         "somebody_else",
		DirectAction: true,
	}); err != nil {
		tb.Fatal("add filter: ", err)
	}
}

// filterNames returns the names of the filters of one direction.
func filterNames(tb testing.TB, ifindex int, parent uint32) string {
	tb.Helper()
	filters, err := listFilters(ifindex, parent)
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, f := range filters {
		if f.handle == 0 {
			continue // the header entry of a priority
		}
		names = append(names, f.kind+":"+f.name)
	}
	return strings.Join(names, " ")
}

// qdiscKinds returns the kinds of the qdiscs of an interface, except its default one.
func qdiscKinds(tb testing.TB, l netlink.Link) string {
	tb.Helper()
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		tb.Fatal("list qdiscs: ", err)
	}
	var kinds []string
	for _, q := range qdiscs {
		if q.Type() != "noqueue" {
			kinds = append(kinds, q.Type())
		}
	}
	return strings.Join(kinds, " ")
}

func clsactOf(ifindex int) *netlink.Clsact {
	return (&clsactFilter{ifindex: ifindex}).qdisc()
}

func TestSentFramesAreReported(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), mode Mode) {
		c := connect(t)
		o := newObserver(t)
		a, err := attach(o, c.ifindex)
		attached(t, a, err)
		if a.Mode() != mode {
			t.Errorf("got mode %s, want %s", a.Mode(), mode)
		}

		for _, tt := range []struct {
			name        string
			tags        []vlanTag
			vlan, inner uint16
		}{
			{"untagged", nil, 0, 0},
			{"802.1Q", []vlanTag{{0x8100, 10}}, 10, 0},
			{"802.1ad", []vlanTag{{0x88a8, 4094}}, 4094, 0},
			{"QinQ", []vlanTag{{0x88a8, 20}, {0x8100, 10}}, 20, 10},
			{"priority tag with a VLAN inside", []vlanTag{{0x8100, 0xe000}, {0x8100, 7}}, 7, 0},
			{"VLAN with a priority tag inside", []vlanTag{{0x8100, 8}, {0x8100, 0xe000}}, 8, 0},
		} {
			for _, f := range []struct {
				protocol Protocol
				addr     netip.Addr
				bytes    func(tags []vlanTag) []byte
			}{
				{ARP, addrA, func(tags []vlanTag) []byte {
					return arpFrame{source: macB, tags: tags, op: 2, sha: macA, spa: addrA, tpa: addrB}.bytes()
				}},
				{NDP, addr6A, func(tags []vlanTag) []byte {
					return ndpFrame{
						source: macB, tags: tags, from: addr6A, to: addr6B, typ: ndAdvertisement,
						flags: ndSolicited | ndOverride, target: addr6A, options: targetOption(macA),
					}.bytes()
				}},
			} {
				c.send(t, f.bytes(tt.tags))
				got := o.await(t)
				want := Event{
					Ktime:   got.Ktime,
					Ifindex: uint32(c.ifindex),
					VLAN:    tt.vlan, InnerVLAN: tt.inner,
					Protocol: f.protocol,
					Kind:     Answered,
					Addr:     f.addr,
					SHA:      macA, Source: macB,
					Frames: 1,
				}
				if got != want {
					t.Errorf("%s: got %+v, want %+v", tt.name, got, want)
				}
				// The kernel removes the outermost tag from the frame and stores it separately.
				if len(tt.tags) > 0 {
					b, result := Decode(f.bytes(tt.tags[1:]), tt.tags[0][1])
					if result != ResultEvent || b.VLAN != got.VLAN || b.InnerVLAN != got.InnerVLAN {
						t.Errorf("%s: in Go got VLANs %d.%d, in the kernel %d.%d",
							tt.name, b.VLAN, b.InnerVLAN, got.VLAN, got.InnerVLAN)
					}
				}
			}
		}

		// A key has room for two VLANs only. The frame sent afterwards shows that the first one has
		// been processed.
		c.send(t, arpFrame{tags: []vlanTag{{0x88a8, 1}, {0x8100, 2}, {0x8100, 3}}, op: 2, sha: macA, spa: addrA, tpa: addrB}.bytes())
		c.send(t, request(macB, addrB, addrA))
		if got := o.await(t); got.Addr != addrB {
			t.Errorf("three tags: got %+v, want nothing", got)
		}

		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("again: got %v, want no error", err)
		}
		if got := qdiscKinds(t, c.here); got != "" {
			t.Errorf("got qdiscs %q after detaching, want none", got)
		}
	})
}

func TestProgramsBehindAndTheKernelStillSeeTheFrame(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), mode Mode) {
		c := connect(t)
		if err := netlink.AddrAdd(c.here, mustParseAddr(t, addrA.String()+"/24")); err != nil {
			t.Fatal(err)
		}
		behind, count := counter(t, verdictNext)
		o := newObserver(t)
		switch mode {
		case TCX:
			l, err := link.AttachTCX(link.TCXOptions{Interface: c.ifindex, Program: behind, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
		case Clsact:
			if err := netlink.QdiscAdd(clsactOf(c.ifindex)); err != nil {
				t.Fatal(err)
			}
			addFilter(t, c.ifindex, netlink.HANDLE_MIN_INGRESS, 7, behind)
		}
		a, err := attach(o, c.ifindex)
		attached(t, a, err)

		c.answers(t, addrB, addrA)
		if got := o.await(t); got.Addr != addrB || got.SHA != macB || got.Kind != Used {
			t.Errorf("got %+v, want USED %s by %s", got, addrB, macB)
		}
		if count() == 0 {
			t.Error("got no frame at the next program, want all")
		}
	})
}

func TestObserverIsBeforeAProgramThatDropsFrames(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), mode Mode) {
		c := connect(t)
		const drop = 2 // TC_ACT_SHOT and TCX_DROP
		dropper, _ := counter(t, drop)
		switch mode {
		case TCX:
			l, err := link.AttachTCX(link.TCXOptions{Interface: c.ifindex, Program: dropper, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
		case Clsact:
			if err := netlink.QdiscAdd(clsactOf(c.ifindex)); err != nil {
				t.Fatal(err)
			}
			addFilter(t, c.ifindex, netlink.HANDLE_MIN_INGRESS, 1, dropper)
		}
		o := newObserver(t)
		a, err := attach(o, c.ifindex)
		attached(t, a, err)
		c.send(t, request(macB, addrB, addrA))
		if got := o.await(t); got.Addr != addrB {
			t.Errorf("got %+v, want address %s", got, addrB)
		}
	})
}

func TestAttachingToAGoneInterfaceSaysSo(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), _ Mode) {
		c := connect(t)
		o := newObserver(t)
		if err := netlink.LinkDel(c.here); err != nil {
			t.Fatal(err)
		}
		a, err := attach(o, c.ifindex)
		if !errors.Is(err, ErrGone) {
			t.Errorf("got %v (%v), want %v", err, a, ErrGone)
		}
		if _, err := o.Limited(c.ifindex); err == nil {
			t.Error("read limited frames of an unattached interface: got no error")
		}
	})
}

func TestClosingAfterTheInterfaceIsGoneIsNoError(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), _ Mode) {
		c := connect(t)
		o := newObserver(t)
		a, err := attach(o, c.ifindex)
		attached(t, a, err)
		if err := netlink.LinkDel(c.here); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("got %v, want no error", err)
		}
	})
}

func TestClosingAfterTheInterfaceMovedIsNoError(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), mode Mode) {
		c := connect(t)
		home, err := netns.Get()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = home.Close() }()
		o := newObserver(t)
		a, err := attach(o, c.ifindex)
		attached(t, a, err)

		other := newNamespace(t)
		if err := netns.Set(home); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetNsFd(c.here, int(other)); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("got %v, want no error", err)
		}

		// The moved interface is as it was before the observer was attached.
		if err := netns.Set(other); err != nil {
			t.Fatal(err)
		}
		moved, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		if got := qdiscKinds(t, moved); got != "" {
			t.Errorf("got qdiscs %q on the moved interface, want none", got)
		}
		if mode == TCX {
			left, err := link.QueryPrograms(link.QueryOptions{Target: moved.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				t.Fatal(err)
			}
			if len(left.Programs) != 0 {
				t.Errorf("got %d programs on the moved interface, want none", len(left.Programs))
			}
		}
	})
}

func TestClosingLeavesTheFiltersOfOthers(t *testing.T) {
	const ingress, egress = netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS
	other, _ := counterOf(t)
	for _, tt := range []struct {
		name         string
		before       func(t *testing.T, c *cable)
		during       func(t *testing.T, c *cable)
		qdiscs       string
		ingressAfter string
		egressAfter  string
	}{
		{
			name: "alone",
		},
		{
			name: "an empty qdisc of theirs",
			before: func(t *testing.T, c *cable) {
				if err := netlink.QdiscAdd(clsactOf(c.ifindex)); err != nil {
					t.Fatal(err)
				}
			},
			qdiscs: "clsact",
		},
		{
			name: "their ingress filter at our priority",
			before: func(t *testing.T, c *cable) {
				if err := netlink.QdiscAdd(clsactOf(c.ifindex)); err != nil {
					t.Fatal(err)
				}
				addFilter(t, c.ifindex, ingress, 1, other)
			},
			qdiscs: "clsact", ingressAfter: "bpf:somebody_else",
		},
		{
			name:   "an ingress filter that came later",
			during: func(t *testing.T, c *cable) { addFilter(t, c.ifindex, ingress, 3, other) },
			qdiscs: "clsact", ingressAfter: "bpf:somebody_else",
		},
		{
			name:   "an egress filter that came later",
			during: func(t *testing.T, c *cable) { addFilter(t, c.ifindex, egress, 1, other) },
			qdiscs: "clsact", egressAfter: "bpf:somebody_else",
		},
		{
			name: "the elder ingress qdisc",
			before: func(t *testing.T, c *cable) {
				if err := netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
					LinkIndex: c.ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
				}}); err != nil {
					t.Fatal(err)
				}
				addFilter(t, c.ifindex, ingress, 1, other)
			},
			// An ingress qdisc has a single list of filters, and returns it for both directions.
			qdiscs: "ingress", ingressAfter: "bpf:somebody_else", egressAfter: "bpf:somebody_else",
		},
		{
			name: "our filter taken away by somebody",
			during: func(t *testing.T, c *cable) {
				if err := netlink.QdiscDel(clsactOf(c.ifindex)); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t)
			o := newObserver(t)
			if tt.before != nil {
				tt.before(t, c)
			}
			a, err := o.AttachClsact(c.ifindex)
			attached(t, a, err)
			c.send(t, request(macB, addrB, addrA))
			if got := o.await(t); got.Addr != addrB {
				t.Errorf("got %+v, want address %s", got, addrB)
			}
			if tt.during != nil {
				tt.during(t, c)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if got := qdiscKinds(t, c.here); got != tt.qdiscs {
				t.Errorf("got qdiscs %q, want %q", got, tt.qdiscs)
			}
			if got := filterNames(t, c.ifindex, ingress); got != tt.ingressAfter {
				t.Errorf("got ingress filters %q, want %q", got, tt.ingressAfter)
			}
			if got := filterNames(t, c.ifindex, egress); got != tt.egressAfter {
				t.Errorf("got egress filters %q, want %q", got, tt.egressAfter)
			}
		})
	}
}

// counterOf is like counter, with the verdict that passes frames on.
func counterOf(tb testing.TB) (*ebpf.Program, func() uint64) {
	tb.Helper()
	requireRoot(tb)
	return counter(tb, verdictNext)
}

func TestPrioritiesOfAnotherKindAreSteppedOver(t *testing.T) {
	for _, taken := range []uint16{1, 2, maxPriority + 1} {
		c := connect(t)
		if err := netlink.QdiscAdd(clsactOf(c.ifindex)); err != nil {
			t.Fatal(err)
		}
		for priority := uint16(1); priority <= taken; priority++ {
			if err := netlink.FilterAdd(&netlink.U32{FilterAttrs: netlink.FilterAttrs{
				LinkIndex: c.ifindex,
				Parent:    netlink.HANDLE_MIN_INGRESS,
				Priority:  priority,
				Protocol:  unix.ETH_P_IP,
			}}); err != nil {
				t.Fatal("add u32 filter: ", err)
			}
		}
		before := filterNames(t, c.ifindex, netlink.HANDLE_MIN_INGRESS)
		o := newObserver(t)
		a, err := o.AttachClsact(c.ifindex)
		attached(t, a, err)
		c.send(t, request(macB, addrB, addrA))
		if got := o.await(t); got.Addr != addrB {
			t.Errorf("got %+v, want address %s", got, addrB)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if got := filterNames(t, c.ifindex, netlink.HANDLE_MIN_INGRESS); got != before {
			t.Errorf("got filters %q, want %q", got, before)
		}
	}
}

func TestLeftoversOfAKilledRunAreRemoved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		theirs bool
		qdiscs string
		left   string
	}{
		{"with the qdisc it made", false, "", ""},
		{"but not the qdisc and filters of others", true, "clsact", "bpf:somebody_else"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t)
			if tt.theirs {
				other, _ := counterOf(t)
				if err := netlink.QdiscAdd(clsactOf(c.ifindex)); err != nil {
					t.Fatal(err)
				}
				addFilter(t, c.ifindex, netlink.HANDLE_MIN_INGRESS, 1, other)
			}
			killed, err := Load()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := killed.AttachClsact(c.ifindex); err != nil {
				t.Fatal(err)
			}
			// A killed process closes its descriptors without any other clean-up.
			if err := killed.Close(); err != nil {
				t.Fatal(err)
			}

			o := newObserver(t)
			if a, err := o.AttachClsact(c.ifindex); err == nil {
				t.Errorf("got %s attachment beside the leftover, want an error", a.Mode())
			}
			if removed, err := RemoveLeftovers(c.ifindex); removed != 1 || err != nil {
				t.Errorf("got %d removed and %v, want 1", removed, err)
			}
			if got := qdiscKinds(t, c.here); got != tt.qdiscs {
				t.Errorf("got qdiscs %q, want %q", got, tt.qdiscs)
			}
			if got := filterNames(t, c.ifindex, netlink.HANDLE_MIN_INGRESS); got != tt.left {
				t.Errorf("got filters %q, want %q", got, tt.left)
			}
			if removed, err := RemoveLeftovers(c.ifindex); removed != 0 || err != nil {
				t.Errorf("again: got %d removed and %v, want 0", removed, err)
			}
			a, err := o.AttachClsact(c.ifindex)
			attached(t, a, err)
		})
	}
}

func TestRemovedFilterIsDetected(t *testing.T) {
	c := connect(t)
	o := newObserver(t)
	a, err := o.AttachClsact(c.ifindex)
	attached(t, a, err)
	if !a.There() {
		t.Error("just attached: got not attached")
	}
	if err := netlink.QdiscDel(clsactOf(c.ifindex)); err != nil {
		t.Fatal(err)
	}
	if a.There() {
		t.Error("after its qdisc was deleted: got still attached")
	}
	if err := a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestClosingInAnotherNamespaceRemovesNothingThere(t *testing.T) {
	for name, same := range map[string]bool{
		"another program, on a qdisc of ours":    false,
		"the same program, on a qdisc of others": true,
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			o := newObserver(t)
			other := o
			if !same {
				other = newObserver(t)
			}
			home, err := netns.Get()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = home.Close() }()
			a, err := o.AttachClsact(c.ifindex)
			attached(t, a, err)

			newNamespace(t)
			if err := netlink.LinkAdd(&netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1",
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := netlink.LinkByIndex(c.ifindex); err != nil {
				t.Fatalf("find another interface of index %d: %v", c.ifindex, err)
			}
			if same {
				f := clsactFilter{ifindex: c.ifindex}
				if err := netlink.QdiscAdd(f.qdisc()); err != nil {
					t.Fatal(err)
				}
			}
			theirs, err := other.AttachClsact(c.ifindex)
			attached(t, theirs, err)
			if err := a.Close(); err != nil {
				t.Errorf("got %v, want no error", err)
			}
			if got, want := filterNames(t, c.ifindex, netlink.HANDLE_MIN_INGRESS), "bpf:"+clsactName; got != want {
				t.Errorf("got filters %q, want %q", got, want)
			}
			if err := theirs.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFiltersOfTheKernelAreRead(t *testing.T) {
	// A u32 filter has other options, which must not be parsed as those of a bpf filter.
	garbage := []byte{255, 255, 1, 0}
	kind := func(name string) *nl.RtAttr { return nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(name)) }
	message := func(attrs ...*nl.RtAttr) (b []byte) {
		for _, a := range attrs {
			b = append(b, a.Serialize()...)
		}
		return b
	}
	id := []byte{7, 0, 0, 0}
	for _, test := range []struct {
		name    string
		message []byte
		want    clsactFilter
		fails   bool
	}{
		{
			"a bpf filter",
			message(kind("bpf"), nl.NewRtAttr(nl.TCA_OPTIONS, message(
				nl.NewRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(clsactName)), nl.NewRtAttr(nl.TCA_BPF_ID, id)))),
			clsactFilter{kind: "bpf", name: clsactName, programID: 7},
			false,
		},
		{"a filter of another kind", message(kind("u32"), nl.NewRtAttr(nl.TCA_OPTIONS, garbage)), clsactFilter{kind: "u32"}, false},
		{"a bpf filter with broken options", message(kind("bpf"), nl.NewRtAttr(nl.TCA_OPTIONS, garbage)), clsactFilter{kind: "bpf"}, true},
		{"a broken message", garbage, clsactFilter{}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got clsactFilter
			err := got.parse(test.message)
			if got != test.want || (err != nil) != test.fails {
				t.Errorf("got %+v, %v, want %+v, an error: %v", got, err, test.want, test.fails)
			}
		})
	}
}

func TestThreeCapabilitiesAreEnough(t *testing.T) {
	c := connect(t)
	keepCapabilities(t, unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN)
	if err := HaveTCX(); err != nil {
		t.Log("without TCX: ", err)
	}
	o := newObserver(t)
	a, err := o.AttachClsact(c.ifindex)
	attached(t, a, err)
	if HaveTCX() == nil {
		a, err := o.AttachTCX(c.ifindex)
		attached(t, a, err)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestOneCapabilityIsEnoughOnceItIsLoaded(t *testing.T) {
	c := connect(t)
	o := newObserver(t)
	if err := o.WorksUnprivileged(); err != nil {
		t.Skip("Linux before 5.19: ", err)
	}
	tcx := HaveTCX()
	keepCapabilities(t, unix.CAP_NET_ADMIN)
	if tcx == nil {
		a, err := o.AttachTCX(c.ifindex)
		attached(t, a, err)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	a, err := o.AttachClsact(c.ifindex)
	attached(t, a, err)
	addr := netip.MustParseAddr("10.0.0.1")
	if err := errors.Join(o.Contest(addr, true), o.Contest(addr, false), o.Forget(1, 0, 0, addr, MAC{}, MAC{}), a.Close()); err != nil {
		t.Error(err)
	}
	if _, err := o.Counters(); err != nil {
		t.Error(err)
	}
}

func TestCapabilitiesForLoadingAreNotNamedWhenAttachingFails(t *testing.T) {
	c := connect(t)
	o := newObserver(t)
	tcx := HaveTCX()
	keepCapabilities(t)
	if tcx == nil && o.WorksUnprivileged() == nil {
		a, err := o.AttachTCX(c.ifindex) // needs no capability
		attached(t, a, err)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := o.AttachClsact(c.ifindex)
	if err == nil || !strings.Contains(err.Error(), "give this process CAP_NET_ADMIN") || strings.Contains(err.Error(), "BPF,") {
		t.Errorf("got %v, want only CAP_NET_ADMIN named", err)
	}
}

func TestMissingCapabilitiesAreNamed(t *testing.T) {
	enterNamespace(t)
	keepCapabilities(t, unix.CAP_PERFMON)
	for name, err := range map[string]error{"load": loadAndClose(), "tcx": HaveTCX()} {
		if err == nil {
			t.Errorf("%s: got no error, want one", name)
			continue
		}
		for _, want := range []string{"CAP_BPF", "CAP_NET_ADMIN"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want it to name %s", name, err, want)
			}
		}
		if strings.Contains(err.Error(), "CAP_PERFMON") {
			t.Errorf("%s: got %q, want it not to name CAP_PERFMON", name, err)
		}
	}
}

func loadAndClose() error {
	o, err := Load()
	if err != nil {
		return err
	}
	return o.Close()
}

// keepCapabilities drops all other capabilities of the test's thread, which ends with the test.
func keepCapabilities(t *testing.T, keep ...int) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	for _, capability := range keep {
		bit := uint32(1) << (capability % 32)
		sets[capability/32].Effective |= bit
		sets[capability/32].Permitted |= bit
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		t.Fatal("drop capabilities: ", err)
	}
}

func mustParseAddr(tb testing.TB, s string) *netlink.Addr {
	tb.Helper()
	addr, err := netlink.ParseAddr(s)
	if err != nil {
		tb.Fatal(err)
	}
	return addr
}
