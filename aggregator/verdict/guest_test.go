package verdict_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A frame of a virtual machine that arrives at another node is one of its pod, and not of a device
// outside.
func TestFramesOfAGuestThatArriveAtAnotherNode(t *testing.T) {
	const guest, other = "\x02\x00\x00\x00\x00\x06", "\x02\x00\x00\x00\x00\x07"
	for what, test := range map[string]struct {
		machine string
		node    string // that the frame arrives at
		mac     string
		owners  int
	}{
		"of a virtual machine":              {"vm", "n1", guest, 1},
		"of a pod that runs no machine":     {"", "n1", guest, 2},
		"of another device":                 {"vm", "n1", other, 2},
		"at its own node, which sends back": {"vm", "n2", guest, 2},
	} {
		w := newWorld("192.168.1.50")
		uplinks := map[string]*verdict.Interface{}
		for i, n := range verdicttest.OnLAN(w.World, "n1", "n2") {
			uplinks[[]string{"n1", "n2"}[i]] = n
		}
		who := verdicttest.Who("launcher")
		who.VirtualMachine = test.machine
		ns := w.Namespace("n2", 9, "109", who)
		port := w.Interface(w.Host("n2"), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: uplinks["n2"].Link, Peer: 9})
		w.Wire(port, guest)
		w.Wire(uplinks[test.node], test.mac)
		out := w.judge()
		if len(out.Owners) != test.owners {
			t.Errorf("%s: got owners %+v, want %d", what, out.Owners, test.owners)
		}
		for _, o := range out.Owners {
			if o.Namespace != nil && (o.ID != ns.ID || o.Interface != port || o.InGuest() != (test.machine != "")) {
				t.Errorf("%s: got %+v on %s, want the pod and its own port", what, o, o.Interface.Name)
			}
		}
	}
}

// A virtual machine on a bridge of its node is behind its tap, whatever other nodes receive its frames.
func TestThePlaceOfAGuestIsItsTap(t *testing.T) {
	const guest = "\x52\x54\x00\x00\x00\x01"
	for what, test := range map[string]struct {
		ports []string // those that its frames enter, one after the other
		weak  string   // the port at which only frames were seen that make nobody an owner
		place string
		guest verdict.Guest
	}{
		"of the first node":                   {[]string{"n1/tap", "n2/eth0"}, "", "n1/tap", verdict.TapGuest},
		"of a later node":                     {[]string{"n1/eth0", "n3/eth0", "n2/tap"}, "", "n2/tap", verdict.TapGuest},
		"that was migrated":                   {[]string{"n1/tap", "n3/eth0", "n2/tap"}, "", "n2/tap", verdict.TapGuest},
		"that was migrated back":              {[]string{"n3/tap", "n1/tap", "n2/eth0"}, "", "n1/tap", verdict.TapGuest},
		"no guest":                            {[]string{"n3/eth0", "n2/eth0"}, "", "n2/eth0", verdict.NoGuest},
		"for which a guest of n3 speaks":      {[]string{"n3/tap", "n2/eth0"}, "n3/tap", "n2/eth0", verdict.NoGuest},
		"for which another guest speaks, too": {[]string{"n2/tap", "n1/tap"}, "n1/tap", "n2/tap", verdict.TapGuest},
	} {
		w := newWorld("192.168.1.50")
		ports := map[string]*verdict.Interface{}
		for _, i := range verdicttest.OnLAN(w.World, "n1", "n2", "n3") {
			n := i.Namespace.Node.Name
			ports[n+"/eth0"] = i
			ports[n+"/tap"] = w.Interface(w.Host(n), verdict.Interface{Name: "tap", Attachment: verdict.Own, Link: i.Link, Tap: true})
		}
		for _, port := range test.ports {
			w.after(time.Second)
			w.Wire(ports[port], guest).NoOverride = port == test.weak
		}
		out := w.judge()
		if len(out.Owners) != 1 {
			t.Fatalf("%s: got owners %+v, want one", what, out.Owners)
		}
		o := out.Owners[0]
		if at := o.Node.Name + "/" + o.Interface.Name; at != test.place || o.Claims[0].Interface != o.Interface || o.Guest() != test.guest {
			t.Errorf("%s: got %s, guest %d, want %s, guest %d", what, at, o.Guest(), test.place, test.guest)
		}
	}
}

// After a migration, the frames are those of the pod that sent the newest one.
func TestFramesOfAGuestThatWasMigrated(t *testing.T) {
	const guest = "\x02\x00\x00\x00\x00\x06"
	w := newWorld("192.168.1.50")
	uplinks := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	var pods []*verdict.Namespace
	for i, name := range []string{"from", "to"} {
		who := verdicttest.Who(name)
		who.VirtualMachine = "vm"
		n := uplinks[i].Namespace.Node.Name
		ns := w.Namespace(n, 9, "109", who)
		w.Wire(w.Interface(w.Host(n), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: uplinks[i].Link, Peer: 9}), guest)
		w.after(time.Second)
		pods = append(pods, ns)
	}
	seen := w.Wire(uplinks[2], guest)
	for _, o := range w.judge().Owners {
		if has := len(o.Claims) == 2; has != (o.ID == pods[1].ID) {
			t.Errorf("got %d claims of %s, want that of %s to be one of the pod after the migration", len(o.Claims), o.ID, seen.Interface.Name)
		}
	}
}

// A virtual machine behind a macvtap device of n1 has the MAC of the device. Its frames pass no port of n1, and enter n2.
func TestAGuestBehindAMacvtapDeviceIsAnOwner(t *testing.T) {
	const guest = "\x52\x54\x00\x00\x00\x01"
	type scene struct {
		*world
		lan    []*verdict.Interface
		device *verdict.Interface
	}
	answered := func(s scene) { s.Wire(s.lan[1], guest).Kind = verdict.Answered }
	announced := func(s scene) { s.Wire(s.lan[1], guest) }
	asked := func(s scene) { s.Wire(s.lan[1], guest).Kind = verdict.Used }
	believed := func(s scene) { s.Wire(s.lan[1], guest).Kind = verdict.Believed }
	of := func(node int) func(s scene) { return func(s scene) { s.Assigned(s.lan[node-1]) } }
	const machine, n1 = guest + " n1/mvt live LINK=n2/eth0", "n1 n1/eth0 live assigned NODE=n1"
	for name, test := range map[string]struct {
		addr  string
		build []func(s scene)
		want  []string
		rule  string // of the conflict; empty for none
	}{
		"the only owner":                       {"192.0.2.40", []func(s scene){announced}, []string{machine + " 1"}, ""},
		"it announces an address of its node":  {"", []func(s scene){of(1), announced}, []string{machine + " 1", n1 + " 1"}, verdict.RuleAssignedAndWire},
		"it uses an address of its node":       {"", []func(s scene){of(1), asked, answered}, []string{machine + " 2", n1 + " 1"}, verdict.RuleAssignedAndWire},
		"it announces an address of n3":        {"", []func(s scene){of(3), announced}, []string{machine + " 1", "n3 n3/eth0 live assigned NODE=n3 1"}, verdict.RuleAssignedAndWire},
		"it answers for an address of n3":      {"", []func(s scene){of(3), answered}, []string{machine + " 1", "n3 n3/eth0 live assigned NODE=n3 1"}, verdict.RuleAssignedAndWire},
		"it is in a neighbour table":           {"", []func(s scene){of(3), believed}, []string{guest + " n1/mvt live believed 1", "n3 n3/eth0 live assigned NODE=n3 1"}, ""},
		"it announces an address of a pod":     {"", []func(s scene){func(s scene) { s.Assigned(s.Child("a", "baaaaa", s.lan[0].Link)) }, announced}, []string{machine + " 1", "a n1/eth0 live assigned LINK=n1/eth0 1"}, verdict.RuleAssignedAndWire},
		"it answers for an IPv6 address of n1": {"2001:db8::1", []func(s scene){of(1), answered}, []string{machine + " 1", n1 + " 1"}, verdict.RuleAssignedAndWire},

		// While no machine has opened the device, the kernel of its node answers there.
		"an answer for an address of its node": {"", []func(s scene){of(1), answered}, []string{n1 + " 2"}, ""},
		"the node in a neighbour table":        {"", []func(s scene){of(1), believed}, []string{n1 + " 2"}, ""},
		"the node has the address on a loopback": {"", []func(s scene){func(s scene) {
			s.Assigned(s.Interface(s.Host("n1"), verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		}, answered}, []string{"n1 n1/lo live loopback-or-dummy 2"}, ""},
		"the node answers for an address of another": {"", []func(s scene){of(3), func(s scene) {
			s.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: s.lan[0], Answer: verdict.KernelAnswer{By: verdict.ByProxyARP}})
		}, answered}, []string{"n1 n1/eth0 live reachable-via 2", "n3 n3/eth0 live assigned NODE=n3 1"}, ""},

		// Others have the MAC.
		"a macvlan device":                      {"", []func(s scene){of(1), func(s scene) { s.device.Kind, s.device.Macvtap = "macvlan", false }, announced}, []string{n1 + " 2"}, ""},
		"the node has an address on the device": {"", []func(s scene){of(1), func(s scene) { s.device.Macvtap = false }, announced}, []string{n1 + " 2"}, ""},
		"a VLAN of the device": {"", []func(s scene){of(1), func(s scene) {
			s.Interface(s.Host("n1"), verdict.Interface{Name: "mvt.5", Kind: "vlan", MAC: guest, Attachment: verdict.Own, Link: s.lan[0].Link})
		}, announced}, []string{n1 + " 2"}, ""},
		"its link-local address, which the kernel makes, too": {"fe80::5054:ff:fe00:1", []func(s scene){func(s scene) { s.Assigned(s.device) }, announced}, []string{"n1 n1/mvt live assigned LINK=n1/eth0 2"}, ""},
		"a machine with an agent": {"", []func(s scene){func(s scene) {
			i := s.Uplink("vm")
			i.MAC = guest
			s.Assigned(i)
		}, announced}, []string{"vm vm/eth0 live assigned NODE=vm 2"}, ""},
		"a pod with the MAC": {"", []func(s scene){func(s scene) {
			_, port := s.Veth(s.Namespace("n1", 9, "109", verdicttest.Pod("a")), "baaaaa", s.Link("n1", "veth9", verdict.PointToPoint, false))
			s.Wire(port, guest)
		}}, []string{"a n1/veth109 live NODE=n1 1"}, ""},
		"a device outside": {"", []func(s scene){of(1), func(s scene) { s.device.MAC = "\x52\x54\x00\x00\x00\x02" }, announced}, []string{n1 + " 1", guest + " n2/eth0 live LINK=n2/eth0 1"}, verdict.RuleAssignedAndWire},
	} {
		w := newWorld(cmp.Or(test.addr, "192.0.2.11"))
		s := scene{world: w, lan: verdicttest.OnLAN(w.World, "n1", "n2", "n3")}
		s.device = w.Interface(w.Host("n1"), verdict.Interface{Name: "mvt", Kind: "macvtap", MAC: guest, Attachment: verdict.Own, Link: s.lan[0].Link, Macvtap: true})
		for _, build := range test.build {
			build(s)
		}
		w.wantOwners(t, name, test.want...)
		out := w.checked(t)
		switch {
		case len(out.Conflicts) == 0 && test.rule == "":
		case len(out.Conflicts) != 1 || out.Conflicts[0].Rule != test.rule:
			t.Errorf("%s: got conflicts %+v, want one of rule %q", name, out.Conflicts, test.rule)
		case (out.Conflicts[0].Cause == verdict.CauseExternalDevice) != (name == "a device outside"):
			t.Errorf("%s: got cause %s", name, out.Conflicts[0].Cause)
		}
	}
}
