package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// gateway gives a bridge of a node the address. The bridges of all nodes have one MAC.
func gateway(w *world, node string, distributed bool) *verdict.Claim {
	i := w.Bridge(node, "vnet0", "10.0.0.1/24")
	i.MAC, i.Link.Distributed = "\xbc\x24\x11\x00\x00\xfe", distributed
	return w.Assigned(i)
}

func TestL13DistributedGatewayIsOneOwner(t *testing.T) {
	w := newWorld("10.0.0.1")
	w.Policy.Networks = []verdict.Network{{Name: "vms", Prefixes: verdicttest.Prefixes("10.0.0.0/24")}}
	for _, n := range []string{"n1", "n2", "n3"} {
		gateway(w, n, true)
	}
	w.wantNone(t)
	w.wantRule(t, verdict.RuleAnycastGateway)

	// A machine with the address of the gateway is another owner.
	vm, _ := w.Veth(w.Namespace("n2", 2, "102", verdicttest.Pod("vm")), "baaaaa", w.Link("n2", "vnet0", verdict.Bridge, true))
	rogue := w.Assigned(vm)
	if out := w.judge(); len(out.Conflicts) != 1 || len(out.Conflicts[0].Owners) != 2 {
		t.Errorf("got conflicts %+v, want one of the gateway and the machine", out.Conflicts)
	}
	w.Drop(rogue)

	for name, change := range map[string]func(*verdict.Interface){
		"a bridge that learns":    func(i *verdict.Interface) { i.Link.Distributed = false },
		"a bridge with its own":   func(i *verdict.Interface) { i.MAC = "\xbc\x24\x11\x00\x00\x01" },
		"a device on that fabric": func(i *verdict.Interface) { i.Kind, i.Name = "veth", "v0" },
		"a VLAN of a card":        func(i *verdict.Interface) { i.Kind, i.Name, i.Link.Distributed = "vlan", "eth0.10", false },
	} {
		w := newWorld("10.0.0.1")
		w.Policy.Networks = []verdict.Network{{Name: "vms", Prefixes: verdicttest.Prefixes("10.0.0.0/24")}}
		gateway(w, "n1", true)
		change(gateway(w, "n2", true).Interface)
		if out := w.judge(); len(out.Conflicts) != 1 {
			t.Errorf("%s: got conflicts %+v, want one", name, out.Conflicts)
		}
	}

	// Devices on the bridges have the address: of a bridge with an address of its own, and of a VLAN of a bridge.
	for kind, name := range map[string]string{"macvlan": "vnet0-v0", "vlan": "vlan10"} {
		w := newWorld("10.0.0.1")
		w.Policy.Networks = []verdict.Network{{Name: "vms", Prefixes: verdicttest.Prefixes("10.0.0.0/24")}}
		for _, n := range []string{"n1", "n2"} {
			i := gateway(w, n, true).Interface
			i.Kind, i.Name = kind, name
		}
		w.wantNone(t)
		w.wantRule(t, verdict.RuleAnycastGateway)
	}
}

func TestAPassthruDeviceHasTheLinkLocalAddressOfItsLowerDevice(t *testing.T) {
	const mac, addr = "\x92\x54\x00\xaa\xbb\x01", "fe80::9054:ff:feaa:bb01"
	for name, test := range map[string]struct {
		change    func(w *world, above *verdict.Interface)
		conflicts int
	}{
		"passthru":          {func(*world, *verdict.Interface) {}, 0},
		"macvtap":           {func(_ *world, above *verdict.Interface) { above.Kind = "macvtap" }, 0},
		"ipvlan":            {func(_ *world, above *verdict.Interface) { above.Kind = "ipvlan" }, 1}, // somebody has set the address
		"another MAC":       {func(_ *world, above *verdict.Interface) { above.MAC = "\x92\x54\x00\xaa\xbb\x02" }, 1},
		"another device":    {func(_ *world, above *verdict.Interface) { above.HostInterface = "eth1" }, 1},
		"set by hand":       {func(w *world, _ *verdict.Interface) { w.Addr = netip.MustParseAddr("fe80::1") }, 1},
		"no link-local one": {func(w *world, _ *verdict.Interface) { w.Addr = netip.MustParseAddr("192.0.2.1") }, 1},
		"a second namespace": {func(w *world, above *verdict.Interface) {
			w.Assigned(w.Interface(w.Namespace("n1", 6, "106", verdicttest.Pod("copy")), verdict.Interface{
				Name: "eth0", Kind: "macvlan", MAC: mac, Attachment: verdict.Lower, Link: above.Link, HostInterface: "eth1",
			}))
		}, 1},
	} {
		w := newWorld(addr)
		below := w.Uplink("n1")
		below.MAC = mac
		above := w.Interface(w.Namespace("n1", 5, "105", verdicttest.Pod("guest")), verdict.Interface{
			Name: "net1", Kind: "macvlan", MAC: mac, Attachment: verdict.Lower, Link: below.Link, HostInterface: below.Name,
		})
		test.change(w, above)
		w.Assigned(below)
		w.Assigned(above)
		out := w.checked(t)
		if len(out.Conflicts) != test.conflicts {
			t.Errorf("%s: got conflicts %+v, want %d", name, out.Conflicts, test.conflicts)
		}
		if test.conflicts == 0 {
			w.wantRule(t, verdict.RulePassthru)
		}
	}
}

// Two machines with one MAC on a LAN have one link-local address: frames of the other one show it.
func TestALinkLocalAddressOfACloneIsADuplicate(t *testing.T) {
	w := newWorld("fe80::9054:ff:feaa:bb01")
	below := w.Uplink("n1")
	below.MAC = "\x92\x54\x00\xaa\xbb\x01"
	w.Assigned(below)
	w.Assigned(w.Interface(w.Namespace("n1", 5, "105", verdicttest.Pod("guest")), verdict.Interface{
		Name: "net1", Kind: "macvlan", MAC: below.MAC, Attachment: verdict.Lower, Link: below.Link, HostInterface: below.Name,
	}))
	w.Wire(below, "\x92\x54\x00\xaa\xbb\x09")
	if out := w.checked(t); len(out.Conflicts) != 1 || len(out.Conflicts[0].Owners) != 2 {
		t.Errorf("got conflicts %+v, want one of the pod and the machine outside", out.Conflicts)
	}
}

// refused lets detection of duplicates fail in a pod.
func refused(w *world, name string, record uint32) (*verdict.Claim, *verdict.Interface) {
	inside, _ := w.Veth(w.Namespace("n1", record, "10"+name, verdicttest.Pod(name)), "baaaa"+name, w.Link("n1", "br0", verdict.Bridge, false))
	return w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed, Interface: inside, PrefixLength: 64}), inside
}

func TestDetectionOfDuplicatesFailsWithoutARival(t *testing.T) {
	w := newWorld("fd00:7::a")
	c, i := refused(w, "a", 2)
	i.Hairpin = true
	w.wantNone(t)
	if !w.Case().Refused(&w.judge().Owners[0], &verdict.Judgement{}).Looped {
		t.Error("got not looped, want that the bridge returned the solicitation")
	}
	rival, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "bbbbbb", w.Link("n1", "br0", verdict.Bridge, false))
	w.Assigned(rival)
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	w.Drop(c)

	w = newWorld("fd00:7::a")
	refused(w, "a", 2)
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0") // by a host that no agent sees
}

// The conflict goes on between the others, and says why the owner that has left their link does not use the address.
func TestAnOwnerWhoseDetectionFailedPartsFromAConflict(t *testing.T) {
	w := newWorld("fd00:9::9")
	for k, name := range []string{"p1", "p2"} {
		i, _ := w.Veth(w.Namespace("n1", uint32(3+k), "11"+name, verdicttest.Pod(name)), "bbbb"+name, w.Link("n1", "br0", verdict.Bridge, false))
		w.Assigned(i)
	}
	_, moves := refused(w, "a", 2)
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	w.after(time.Minute)
	moves.Link = w.Link("n1", "br1", verdict.Bridge, false)
	for range 3 {
		w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/br0")
		out := w.judge()
		k := slices.IndexFunc(out.Owners, func(o verdict.Owner) bool { return o.DADFailed() })
		if r := w.Case().Refused(&out.Owners[k], &out); len(out.Conflicts) != 1 || r.Rival == nil || r.Rival.ID == out.Owners[k].ID || r.Until == 0 || r.GaveUp {
			t.Errorf("got %d conflicts and %+v, want one, and a rival from which it has parted", len(out.Conflicts), r)
		}
		w.after(time.Minute)
	}
	moves.Link = w.Link("n1", "br0", verdict.Bridge, false)
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	if c := w.judge().Conflicts[0]; len(c.Owners) != 3 || len(c.Parted) != 0 {
		t.Errorf("got %d owners and %+v, want three and nobody who has parted", len(c.Owners), c.Parted)
	}
}

func TestARivalThatHasLeftIsNotUnknown(t *testing.T) {
	w := newWorld("fd00:9::9")
	one, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("p1")), "bbbbbb", w.Link("n1", "br0", verdict.Bridge, false))
	rival := w.Assigned(one)
	refused(w, "a", 2)
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	w.after(time.Minute).Drop(rival)
	w.want(t, verdict.Resolved, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
	out := w.judge()
	if len(out.Conflicts) != 0 {
		t.Errorf("got conflicts %+v, want none: the rival has left", out.Conflicts)
	}
	if r := w.Case().Refused(&out.Owners[0], &verdict.Judgement{}); r.Rival == nil || r.Rival.ID != "b-n1/103" && r.Rival.Node != "n1" || r.Until == 0 || r.Looped || !r.GaveUp {
		t.Errorf("got %+v, want that p1 gave it up", r)
	}
	w.after(time.Minute)
	w.Assigned(one)
	w.want(t, verdict.Confirmed, verdict.RuleDADFailed, verdict.LinkScope, "n1/br0")
}

func TestTimeOnALoopbackDeviceIsNoTenure(t *testing.T) {
	w := newWorld("192.0.2.5")
	y := w.Namespace("n1", 2, "102", verdicttest.Pod("y"))
	l := w.Link("n1", "br0", verdict.Bridge, false)
	lo := w.Assigned(w.Interface(y, verdict.Interface{Name: "lo", Attachment: verdict.Local}))
	w.after(6 * time.Second)
	z, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("z")), "bzzzzz", l)
	w.Assigned(z)
	w.after(6 * time.Second)
	eth0, _ := w.Veth(y, "byyyyy", l)
	w.Assigned(eth0)
	if c := w.judge().Conflicts[0]; keeper(&c) != "z" || c.Right != verdict.RightOlderAssignment {
		t.Errorf("got %q by %d, want z, which had it first on the link", keeper(&c), c.Right)
	}
	w.Drop(lo)
	if c := w.judge().Conflicts[0]; keeper(&c) != "z" {
		t.Errorf("got %q, want z", keeper(&c))
	}
}

func TestTimeOnAnotherLinkIsNoTenure(t *testing.T) {
	for bridge, want := range map[string]string{"br1": "z", "br0": "y"} {
		w := newWorld("192.0.2.5")
		y := w.Namespace("n1", 2, "102", verdicttest.Pod("y"))
		first, _ := w.Veth(y, "byyyy1", w.Link("n1", bridge, verdict.Bridge, false))
		w.Assigned(first)
		l := w.Link("n1", "br0", verdict.Bridge, false)
		z, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("z")), "bzzzzz", l)
		rival := w.after(time.Hour).Assigned(z)
		second, _ := w.Veth(y, "byyyyy", l)
		got := w.after(time.Hour).Assigned(second).AssignedAt
		if want == "y" {
			got = verdicttest.Start
		}
		c := w.judge().Conflicts[0]
		if keeper(&c) != want || c.Right != verdict.RightOlderAssignment || c.Order[0] != uint32(slices.Index([]string{"y", "z"}, want)) {
			t.Errorf("first on %s: got keeper %q by %d and order %v, want %s", bridge, keeper(&c), c.Right, c.Order, want)
		}
		w.after(time.Minute).Drop(rival)
		over := w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/br0")
		for _, c := range []verdict.Conflict{c, over} {
			if at := c.Owners[0].AssignedAt(); at != got {
				t.Errorf("first on %s: got %s as the time when y got it, want %s", bridge, at.Time(), got.Time())
			}
		}
	}
}

// An owner whose kernel has the address on another link, and uses it on this one (arp_announce is 0), is not older here.
func TestAnAddressThatIsUsedOnAnotherLinkIsNoTenureThere(t *testing.T) {
	w := newWorld("192.0.2.5")
	y := w.Namespace("n1", 2, "102", verdicttest.Pod("y"))
	first, _ := w.Veth(y, "byyyy1", w.Link("n1", "br1", verdict.Bridge, false))
	w.Assigned(first)
	l := w.Link("n1", "br0", verdict.Bridge, false)
	z, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("z")), "bzzzzz", l)
	w.after(time.Hour).Assigned(z)
	second, port := w.Veth(y, "byyyyy", l)
	w.after(time.Hour).Wire(port, string(second.MAC))
	out := w.judge()
	if len(out.Conflicts) != 1 || keeper(&out.Conflicts[0]) == "y" {
		t.Errorf("got %+v, want one conflict that y does not win", out.Conflicts)
	}
}

func TestClonesMeetWithoutProofOfTheirLinks(t *testing.T) {
	w := newWorld("192.0.2.11")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	const mac = "\x52\x54\x00\xaa\xbb\xcc"
	var claims []*verdict.Claim
	for _, i := range lan {
		i.MAC, i.Link.Proven, i.Link.BothWays = mac, nil, nil
		claims = append(claims, w.Assigned(i))
	}
	frame := w.Wire(lan[0], mac)
	out := w.judge()
	for _, o := range out.Owners {
		for _, c := range o.Claims {
			if c.Wire() && o.Node.Name == "n1" {
				t.Error("a frame that entered n1 with n1's own MAC is evidence for n1")
			}
		}
	}
	w.after(w.Policy.HandoverGrace).Read(claims...)
	w.Seen(frame)
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	if c.Cause != verdict.CauseClonedMachine || c.Keeper != "" {
		t.Errorf("got cause %s, keeper %q, want a clone, and that nothing says which one it is", c.Cause, c.Keeper)
	}
}
