package verdict_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A node with several cards is in a conflict on a link by those of its claims that are on that link.
func TestOwnersOfAConflictOnALinkAreShownThere(t *testing.T) {
	const device = "\x02\x00\x00\x00\x00\x99"
	bridge := func(w *world, node, name string) *verdict.Interface {
		i := w.Bridge(node, name, "10.5.0.0/24")
		i.MAC = verdict.MAC("\x02\x00\x00\x00\x02" + node[1:])
		return i
	}
	routers := func(name string) func(w *world) {
		return func(w *world) {
			lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
			for k, i := range lan[:2] {
				i.MAC = verdict.MAC("\x02\x00\x00\x00\x00" + string(rune('1'+k)))
				w.Assigned(i)
				w.Assigned(bridge(w, i.Namespace.Node.Name, name))
				answer(w, i, lan[2], i.MAC)
			}
		}
	}
	cards := func(w *world) (eth0, eth1 *verdict.Interface) {
		eth0 = w.Uplink("n1")
		eth1 = w.Interface(w.Host("n1"), verdict.Interface{
			Name: "eth1", MAC: "\x02\x00\x00\x00\x01\x01", Attachment: verdict.Own, Uplink: true, Link: w.Link("n1", "eth1", verdict.Uplink, false),
		})
		w.Assigned(eth0)
		w.Assigned(eth1)
		return eth0, eth1
	}
	for _, test := range []struct {
		name, address string
		build         func(w *world)
		want          []string
	}{
		{"routers with one link-local address, also on bridges with a name before that of the card", "fe80::1", routers("br-c"), []string{"eth0 of [eth0]", "eth0 of [eth0]"}},
		{"the same, with a name after it", "fe80::1", routers("xbr"), []string{"eth0 of [eth0]", "eth0 of [eth0]"}},
		{"the same, of which one was refused there", "fe80::1", func(w *world) {
			routers("br-c")(w)
			w.Claims[3].Kind, w.Claims[3].Flags = verdict.DADFailed, verdict.FlagDADFailed
		}, []string{"eth0 of [eth0]", "eth0 of [eth0]"}},
		{"link-local on one link only", "fe80::1", func(w *world) {
			i := bridge(w, "n1", "br-c")
			w.Assigned(i)
			inside, _ := w.Veth(w.Namespace("n1", 5, "105", verdicttest.Pod("web")), "\x02\x00\x00\x00\x00\x05", i.Link)
			w.Assigned(inside)
		}, []string{"br-c of [br-c]", "eth0 of [eth0]"}},
		{"two cards in two LANs, and a device in the second one", "192.0.2.10", func(w *world) {
			_, eth1 := cards(w)
			w.Wire(eth1, device)
		}, []string{"eth1 of []", "eth1 of [eth1]"}},
		{"two cards in one LAN, and a device there", "192.0.2.10", func(w *world) {
			eth0, eth1 := cards(w)
			eth1.Link = eth0.Link
			w.Wire(eth1, device)
		}, []string{"eth1 of []", "eth0 of [eth0 eth1]"}},
		{"a bridge with the second card as a port", "192.0.2.10", func(w *world) {
			eth0, eth1 := cards(w)
			w.Claims = nil
			w.Assigned(eth0)
			br := bridge(w, "n1", "br0")
			eth1.Link = br.Link
			w.Assigned(br)
			w.Wire(eth1, device)
		}, []string{"eth1 of []", "br0 of [br0]"}},
		{"a weak host that has it on another link", "192.0.2.10", func(w *world) {
			_, eth1 := cards(w)
			w.Drop(w.Claims[1])
			other := w.Uplink("n2")
			eth1.Link.Domain = &verdict.Domain{Node: eth1.Link.Node, Name: "eth1"}
			other.Link.Domain = eth1.Link.Domain
			answer(w, eth1, other, eth1.MAC)
			w.Assigned(other)
		}, []string{"eth0 of []", "eth0 of [eth0]"}},
		{"a pod, and a node that routes to it and has it on two cards", "192.0.2.10", func(w *world) {
			cards(w)
			w.Within("n1", "", "", verdicttest.Pod("web"))
		}, []string{"eth0 of [eth0 eth1]", "eth0 of [eth0]"}},
	} {
		w := newWorld(test.address)
		test.build(w)
		out := w.checked(t)
		if len(out.Conflicts) != 1 {
			t.Errorf("%s: got conflicts %+v, want one", test.name, out.Conflicts)
			continue
		}
		c := &out.Conflicts[0]
		var got []string
		for i := range c.Owners {
			o := &c.Owners[i]
			var here []string
			for _, has := range o.Here {
				here = append(here, has.Interface.Name)
			}
			got = append(got, fmt.Sprintf("%s of %v", o.Interface.Name, here))
			if want := c.Kind == verdict.LinkScope && len(here) > 0; o.OnLink != want || o.Namespace != nil && o.MAC != o.Interface.MAC {
				t.Errorf("%s: got owner %+v, on the link: %t", test.name, o, want)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q on %s, want %q", test.name, got, c.Scope, test.want)
		}
		ended := c.End(&verdict.Ended{ID: c.ID, At: w.Now}, out.Owners)
		if ended.Owners[1].Interface != c.Owners[1].Interface || ended.Owners[1].MAC != c.Owners[1].MAC {
			t.Errorf("%s: got %s after the end", test.name, ended.Owners[1].Interface.Name)
		}
	}
}
