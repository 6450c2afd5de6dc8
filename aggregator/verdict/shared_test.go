package verdict_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const groupMAC = "\x03\x00\x60\x0d\xf0\x0d"

// answer is an answer of a node that enters another one.
func answer(w *world, from, at *verdict.Interface, mac verdict.MAC) *verdict.Claim {
	c := w.Wire(at, string(mac))
	c.Kind = verdict.Answered
	if mac != from.MAC {
		c.Source = from.MAC
	}
	return c
}

func TestNodesThatAnswerWithOneGroupMACShareTheLoad(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, lan []*verdict.Interface)
		rule  string
		named bool // whether the remedy names the group
	}{
		{"both answer with it", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
			answer(w, lan[1], lan[2], groupMAC)
		}, "", false},
		{"one has announced the address with its own MAC", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
			answer(w, lan[1], lan[2], groupMAC)
			w.Wire(lan[2], string(lan[0].MAC))
		}, "", false},
		{"one was never asked", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
		}, verdict.RuleAssignedTwice, true},
		{"one answers with its own MAC, too", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
			answer(w, lan[1], lan[2], groupMAC)
			answer(w, lan[1], lan[2], lan[1].MAC)
		}, verdict.RuleAssignedTwice, true},
		{"each has a group of its own", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
			answer(w, lan[1], lan[2], "\x03\x00\x60\x0d\xf0\x0e")
		}, verdict.RuleAssignedTwice, true},
		{"the answers are of another machine", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[2], lan[0], groupMAC)
			answer(w, lan[2], lan[1], groupMAC)
		}, verdict.RuleAssignedTwice, false},
		{"all machines are meant", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], "\xff\xff\xff\xff\xff\xff")
			answer(w, lan[1], lan[2], "\xff\xff\xff\xff\xff\xff")
		}, verdict.RuleAssignedTwice, false},
		{"a third machine has the address", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
			answer(w, lan[1], lan[2], groupMAC)
			w.Assigned(lan[2])
		}, verdict.RuleAssignedTwice, true},
		{"a device outside has the address", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], groupMAC)
			answer(w, lan[1], lan[2], groupMAC)
			w.Wire(lan[2], externalMAC)
		}, verdict.RuleAssignedAndWire, true},
		{"they answer with their own MACs", func(w *world, lan []*verdict.Interface) {
			answer(w, lan[0], lan[2], lan[0].MAC)
			answer(w, lan[1], lan[2], lan[1].MAC)
		}, verdict.RuleAssignedTwice, false},
	} {
		w := newWorld("192.0.2.121")
		lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
		for i, mac := range []verdict.MAC{"\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02", "\x02\x00\x00\x00\x00\x03"} {
			lan[i].MAC = mac
		}
		w.Assigned(lan[0])
		w.Assigned(lan[1])
		w.after(time.Second)
		test.build(w, lan)
		out := w.checked(t)
		if test.rule == "" {
			if len(out.Conflicts) != 0 {
				t.Errorf("%s: got %+v, want no conflict", test.name, out.Conflicts)
			}
			if !slices.ContainsFunc(out.Owners, func(o verdict.Owner) bool { return o.ExcludedBy(verdict.RuleLoadShared) && o.Excluded.MAC == groupMAC }) {
				t.Errorf("%s: got owners %+v, want one that shares the load", test.name, out.Owners)
			}
			continue
		}
		if len(out.Conflicts) != 1 || out.Conflicts[0].Rule != test.rule || (out.Conflicts[0].GroupMAC() != "") != test.named {
			t.Errorf("%s: got %+v, want rule %s, group named %t", test.name, out.Conflicts, test.rule, test.named)
		}
	}
}

func TestNoEngineHandsTheAddressOfItsBridgeOver(t *testing.T) {
	for _, test := range []struct {
		name   string
		bridge string
		change func(w *world, c *verdict.Claim)
		rule   string
		moves  bool
	}{
		{"libvirt", "virbr0", nil, verdict.RuleAssignedTwice, false},
		{"docker", "docker0", nil, verdict.RuleAssignedTwice, false},
		{"a bridge of the node", "br0", nil, verdict.RuleAssignedTwice, true},
		{"a further address on the bridge of libvirt", "virbr0", func(_ *world, c *verdict.Claim) { c.Flags |= verdict.FlagSecondary }, verdict.RuleAssignedTwice, true},
		{"the address of a single host on the bridge of libvirt", "virbr0", func(_ *world, c *verdict.Claim) { c.PrefixLength = 32 }, verdict.RuleAssignedTwice, true},
		{"a program moves addresses", "virbr0", func(w *world, c *verdict.Claim) { program(w.World, c.Node().Name, "keepalived", false) }, verdict.RuleSplitBrain, true},
	} {
		w := newWorld("192.168.122.1")
		d := &verdict.Domain{}
		for _, n := range []string{"n1", "n2"} {
			i := w.Bridge(n, test.bridge, "192.168.122.1/24")
			i.MAC = verdict.MAC("\x52\x54\x00\x7a\x7a" + n[1:])
			if d.Node == nil {
				d.Node, d.Name = i.Link.Node, i.Link.Name
			}
			i.Link.Domain, i.Link.Proven, i.Link.BothWays = d, d, d
			if c := w.Assigned(i); test.change != nil {
				test.change(w, c)
			}
		}
		c := w.want(t, verdict.Suspected, test.rule, verdict.LinkScope, "n1/"+test.bridge)
		if c.Moves != test.moves || c.JoinsEngines() == test.moves || c.Keeper != "" && !test.moves {
			t.Errorf("%s: got moves %v, keeper %q, joined %t", test.name, c.Moves, c.Keeper, c.JoinsEngines())
		}
	}
}

// A declared network has addresses that must be unique although their nodes share no LAN. Nothing hands them over there,
// unless a program or a controller does, or a node had the address before.
func TestAddressesWithoutNeighboursDoNotMove(t *testing.T) {
	tunnel := func(kind, mac string) func(w *world, n string) *verdict.Interface {
		return func(w *world, n string) *verdict.Interface {
			return w.Interface(w.Host(n), verdict.Interface{Name: "mesh0", Kind: kind, MAC: verdict.MAC(mac), Attachment: verdict.Own})
		}
	}
	bridge := func(name string) func(w *world, n string) *verdict.Interface {
		return func(w *world, n string) *verdict.Interface { return w.Bridge(n, name, "10.10.0.2/16") }
	}
	uplink := func(w *world, n string) *verdict.Interface { return w.Uplink(n) }
	for _, test := range []struct {
		name   string
		device func(w *world, n string) *verdict.Interface
		change func(w *world)
		rule   string
		moves  bool
	}{
		{"tun", tunnel("tun", ""), nil, verdict.RuleAssignedTwice, false},
		{"WireGuard", tunnel("wireguard", ""), nil, verdict.RuleAssignedTwice, false},
		{"docker", bridge("docker0"), nil, verdict.RuleAssignedTwice, false},
		{"a bridge of the node that leads nowhere", bridge("br0"), nil, verdict.RuleAssignedTwice, false},
		{"a tap device of a mesh, on which hosts ask for MACs", tunnel("tun", "\x02\x00\x00\x00\x00\x01"), nil, verdict.RuleAssignedTwice, true},
		{"VXLAN", tunnel("vxlan", "\x02\x00\x00\x00\x00\x01"), nil, verdict.RuleAssignedTwice, true},
		{"cards whose LANs may be one", uplink, nil, verdict.RuleAssignedTwice, true},
		{"a program moves addresses between tunnels", tunnel("wireguard", ""), func(w *world) {
			program(w.World, "n1", "keepalived", false)
			program(w.World, "n2", "keepalived", true)
		}, verdict.RuleSplitBrain, true},
	} {
		w := newWorld("10.10.0.2")
		w.Policy.Networks = []verdict.Network{{Name: "mesh", Prefixes: verdicttest.Prefixes("10.10.0.0/16")}}
		var claims []*verdict.Claim
		for _, n := range []string{"n1", "n2"} {
			claims = append(claims, w.Assigned(test.device(w, n)))
		}
		if test.change != nil {
			test.change(w)
		}
		c := w.want(t, verdict.Suspected, test.rule, verdict.NetworkScope, "mesh")
		w.after(w.Policy.Settle).Read(claims...)
		phase := verdict.Confirmed
		if test.moves {
			phase = verdict.Suspected
		}
		w.want(t, phase, test.rule, verdict.NetworkScope, "mesh")
		w.after(w.Policy.HandoverGrace).Read(claims...)
		c = w.want(t, verdict.Confirmed, test.rule, verdict.NetworkScope, "mesh")
		if c.Moves != test.moves || c.Cause != verdict.CauseUnknown {
			t.Errorf("%s: got moves %v, cause %s, want %v", test.name, c.Moves, c.Cause, test.moves)
		}
	}
}

// Nobody may ask for the address for hours. An answer with another MAC ends the sharing, and so does an owner that came later.
func TestLoadIsSharedUntilAnotherAnswer(t *testing.T) {
	w := newWorld("192.0.2.121")
	lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	for i, mac := range []verdict.MAC{"\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02", "\x02\x00\x00\x00\x00\x03"} {
		lan[i].MAC = mac
	}
	first, second := w.Assigned(lan[0]), w.Assigned(lan[1])
	answer(w, lan[0], lan[2], groupMAC)
	answer(w, lan[1], lan[2], groupMAC)
	w.wantNone(t)
	w.after(3 * time.Hour).Read(first)
	w.Read(second)
	if out := w.wantNone(t); len(out.Expired) != 0 {
		t.Errorf("got %d expired claims, want none", len(out.Expired))
	}
	answer(w, lan[1], lan[2], lan[1].MAC)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	w.after(11 * time.Second).Read(first)
	w.Read(second)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
}
