package verdict_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A frame with the MAC of node n1, or of one of its pods, has entered n1 itself and n2. If nothing on n1 may have sent it, it is
// that of a machine outside.
func TestAMachineOutsideHasTheMACOfANode(t *testing.T) {
	ipvlan := func(kind string) func(*world, []*verdict.Interface, *verdict.Claim) {
		return func(w *world, lan []*verdict.Interface, _ *verdict.Claim) {
			w.Child("a", string(lan[0].MAC), lan[0].Link).Kind = kind
		}
	}
	for name, test := range map[string]struct {
		change  func(w *world, lan []*verdict.Interface, atHome *verdict.Claim)
		outside bool
	}{
		"its own card": {nil, true},
		"a macvlan device of a pod": {func(w *world, lan []*verdict.Interface, c *verdict.Claim) {
			c.MAC = w.Child("a", externalMAC, lan[0].Link).MAC
		}, true},
		"another kernel has it":         {func(w *world, lan []*verdict.Interface, _ *verdict.Claim) { w.Assigned(lan[1]) }, true},
		"the machine announces it, too": {func(w *world, lan []*verdict.Interface, _ *verdict.Claim) { w.Wire(lan[0], string(lan[0].MAC)) }, true},
		"a node on another LAN has the MAC, too": {func(w *world, lan []*verdict.Interface, c *verdict.Claim) {
			w.Wire(w.Uplink("n4"), string(c.MAC)).Interface.MAC = lan[0].MAC
		}, true},
		"the LAN returns the frames of the node": {func(_ *world, _ []*verdict.Interface, c *verdict.Claim) { c.FromOutside = false }, false},
		"a speaker on the node has announced it": {func(_ *world, _ []*verdict.Interface, c *verdict.Claim) {
			c.Kind, c.FromOutside = verdict.Announced, false
		}, false},
		"the kernel of the node has it": {func(w *world, lan []*verdict.Interface, _ *verdict.Claim) { w.Assigned(lan[0]) }, false},
		"the kernel of the node would answer": {func(w *world, lan []*verdict.Interface, _ *verdict.Claim) {
			w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: lan[0]})
		}, false},
		"detection of duplicates failed on it": {func(w *world, lan []*verdict.Interface, _ *verdict.Claim) {
			w.Claim(verdict.Claim{Kind: verdict.DADFailed, Interface: lan[0]})
		}, false},
		"it is on the loopback device of the node": {func(w *world, _ []*verdict.Interface, _ *verdict.Claim) {
			w.Assigned(w.Interface(w.Host("n1"), verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		}, false},
		"an ipvlan device of the node": {ipvlan("ipvlan"), false},
		"an ipvtap device of the node": {ipvlan("ipvtap"), false},
		"the node is an ipvlan device": {func(_ *world, lan []*verdict.Interface, _ *verdict.Claim) { lan[0].Kind = "ipvlan" }, false},
		"a macvtap device and its virtual machine": {func(w *world, lan []*verdict.Interface, c *verdict.Claim) {
			c.MAC = w.Interface(w.Host("n1"), verdict.Interface{Name: "macvtap0", MAC: externalMAC, Attachment: verdict.Own, Link: lan[0].Link, Macvtap: true}).MAC
		}, false},
		"a pod that was meant to have it": {func(w *world, lan []*verdict.Interface, c *verdict.Claim) {
			i := w.Child("a", externalMAC, lan[0].Link)
			i.Namespace.Intended, c.MAC = "192.168.1.10 cni-result net1", i.MAC
		}, false},
		"the virtual machine of a pod": {func(w *world, lan []*verdict.Interface, c *verdict.Claim) {
			i := w.Child("a", externalMAC, lan[0].Link)
			who := verdicttest.Pod("a")
			who.VirtualMachine = "vm"
			i.Namespace.Who, c.MAC = who.Who(), i.MAC
		}, false},
		"a guest behind a port of the node": {func(w *world, lan []*verdict.Interface, _ *verdict.Claim) {
			_, port := w.ptp("n1", 7, "launcher", "baaaaa")
			w.Wire(port, string(lan[0].MAC)).Link = lan[0].Link
		}, false},
		"another node with the MAC": {func(_ *world, lan []*verdict.Interface, _ *verdict.Claim) { lan[2].MAC = lan[0].MAC }, false},
		"a distributed gateway":     {func(_ *world, lan []*verdict.Interface, _ *verdict.Claim) { lan[0].Link.Distributed = true }, false},
		"an overlay":                {func(_ *world, lan []*verdict.Interface, _ *verdict.Claim) { lan[0].Kind = "vxlan" }, false},
		"another link of the node": {func(w *world, lan []*verdict.Interface, c *verdict.Claim) {
			i := w.Uplink("n1")
			i.Link, i.MAC, c.MAC = w.Link("n1", "eth1", verdict.Uplink, false), externalMAC, externalMAC
		}, false},
		"a frame of another Ethernet source": {func(_ *world, _ []*verdict.Interface, c *verdict.Claim) { c.Source = other }, false},
		"a controller assigns it": {func(w *world, _ []*verdict.Interface, _ *verdict.Claim) {
			p := w.Pool(hostlocal.Name, "n1", "lan", "192.168.1.1-192.168.1.99")
			p.Traits = ipam.Traits{Assigns: true}
			w.Books(p, "a")
		}, false},
	} {
		w := newWorld("192.168.1.10")
		lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
		atHome := w.Wire(lan[0], string(lan[0].MAC))
		atHome.Kind, atHome.FromOutside = verdict.Used, true
		if test.change != nil {
			test.change(w, lan, atHome)
		}
		w.Wire(lan[1], string(atHome.MAC)).Kind = verdict.Used
		outside, clones := 0, 0
		for range 2 {
			out := w.checked(t)
			outside, clones = 0, 0
			for i := range out.Owners {
				if o := &out.Owners[i]; o.Outside() != nil {
					outside++
				} else if test.outside && (o.Namespace == nil || o.Node.Name == "n1") {
					t.Errorf("%s: got owner %s, want none but the machine outside", name, described(o))
				}
			}
			for _, s := range out.Clones {
				if s.Sender == nil && s.Owner.Outside() != nil && s.Victims[0].Interface.MAC == atHome.MAC {
					clones++
				}
			}
			w.after(w.Policy.Settle)
		}
		want := 0
		if test.outside {
			want = 1
		}
		if outside != want || clones != want {
			t.Errorf("%s: got %d machines outside and %d cloned MACs, want %d", name, outside, clones, want)
		}
	}
}
