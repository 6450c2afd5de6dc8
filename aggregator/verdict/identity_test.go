package verdict

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// identical reports whether is holds for two records. It checks that is is symmetric and reflexive.
func identical[T any](t *testing.T, name string, is func(a, b *T) bool, a, b *T) bool {
	t.Helper()
	if !is(a, a) || !is(b, b) || is(a, b) != is(b, a) {
		t.Errorf("%s: got %t and %t for the same one, %t and %t for two", name, is(a, a), is(b, b), is(a, b), is(b, a))
	}
	return is(a, b)
}

// checkIdentity checks that two equal records are identical, and that they differ after each of the
// changes.
func checkIdentity[T any](t *testing.T, name string, is func(a, b *T) bool, record func() *T, changes map[string]func(*T)) {
	t.Helper()
	if !identical(t, name, is, record(), record()) {
		t.Errorf("%s: got two equal records that differ", name)
	}
	for what, change := range changes {
		changed := record()
		change(changed)
		if identical(t, name, is, record(), changed) {
			t.Errorf("%s: got records with different %s considered equal", name, what)
		}
	}
	if is(record(), nil) || is(nil, record()) {
		t.Errorf("%s: got nil equal to a record", name)
	}
}

// Records are identified by their keys and never by their pointers.
func TestIdentity(t *testing.T) {
	node := func() *Node { return &Node{Name: "n1", Boot: "b1", Netns: "1", Vouched: "v1"} }
	namespace := func() *Namespace { return &Namespace{Node: node(), Record: 2} }
	pool := func() *Pool {
		return &Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "p"}, Node: node()}
	}
	checkIdentity(t, "node", (*Node).Is, node, map[string]func(*Node){
		"boot id": func(n *Node) { n.Boot = "b2" }, "network namespace": func(n *Node) { n.Netns = "2" }, "vouched name": func(n *Node) { n.Vouched = "v2" },
	})
	renamed := node()
	renamed.Name = "n2"
	if !identical(t, "node", (*Node).Is, node(), renamed) {
		t.Error("node: got a difference after a renaming")
	}
	checkIdentity(t, "namespace", (*Namespace).Is, namespace, map[string]func(*Namespace){
		"record": func(ns *Namespace) { ns.Record = 3 }, "node": func(ns *Namespace) { ns.Node.Boot = "b2" },
	})
	checkIdentity(t, "interface", (*Interface).Is, func() *Interface { return &Interface{Namespace: namespace(), Index: 2} }, map[string]func(*Interface){
		"index": func(i *Interface) { i.Index = 3 }, "namespace": func(i *Interface) { i.Namespace.Record = 3 },
	})
	checkIdentity(t, "link", (*Link).Is, func() *Link { return &Link{Node: node(), Name: "eth0"} }, map[string]func(*Link){
		"name": func(l *Link) { l.Name = "eth1" }, "node": func(l *Link) { l.Node.Boot = "b2" },
	})
	checkIdentity(t, "domain", (*Domain).Is, func() *Domain { return &Domain{Node: node(), Name: "eth0"} }, map[string]func(*Domain){
		"name": func(d *Domain) { d.Name = "eth1" }, "node": func(d *Domain) { d.Node.Boot = "b2" },
	})
	checkIdentity(t, "pool", (*Pool).Is, pool, map[string]func(*Pool){
		"IPAM": func(p *Pool) { p.IPAM = cilium.IPAM.Name }, "name": func(p *Pool) { p.Name = "q" }, "node": func(p *Pool) { p.Node.Boot = "b2" }, "node, which is nil": func(p *Pool) { p.Node = nil },
	})
	allocation := func() *Allocation {
		return &Allocation{Pool: pool(), Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.0.0.5"), Node: "n1", Namespace: "ns", Pod: "a", ContainerID: "c", Interface: "eth0", Location: "l"}, AllocatedAt: 5, Heard: 6}
	}
	for what, change := range map[string]func(*Allocation){
		"pool": func(al *Allocation) { al.Pool.Name = "q" }, "address": func(al *Allocation) { al.Address = netip.MustParseAddr("10.0.0.6") },
		"node": func(al *Allocation) { al.Node = "n2" }, "namespace": func(al *Allocation) { al.Namespace = "x" }, "pod": func(al *Allocation) { al.Pod = "b" },
		"container": func(al *Allocation) { al.ContainerID = "d" }, "interface": func(al *Allocation) { al.Interface = "eth1" }, "purpose": func(al *Allocation) { al.Purpose = "p" },
		"location": func(al *Allocation) { al.Location = "m" }, "time": func(al *Allocation) { al.AllocatedAt = 7 }, "time when it was received": func(al *Allocation) { al.Heard = 7 },
	} {
		changed := allocation()
		change(changed)
		if identical(t, "allocation", (*Allocation).Is, allocation(), changed) {
			t.Errorf("allocation: got records with different %s considered equal", what)
		}
	}
	if !identical(t, "allocation", (*Allocation).Is, allocation(), allocation()) {
		t.Error("allocation: got two equal records that differ")
	}

	// Nil records.
	if !(*Node)(nil).Is(nil) || !(*Link)(nil).Is(nil) || !(*Pool)(nil).Is(nil) || (*Domain)(nil).Is(nil) {
		t.Error("want nil nodes, links and pools to be equal, and nil domains to differ")
	}
	if (*Node)(nil).Key() != (NodeKey{}) || (*Link)(nil).Key() != (LinkKey{}) || (*Domain)(nil).Key() != (LinkKey{}) || (*Pool)(nil).Key() != (PoolKey{}) {
		t.Error("want zero keys for nil")
	}
	if node().Key() != (NodeKey{"n1", "b1", "1", "v1"}) || pool().Key() != (PoolKey{node().Key(), calico.IPAM.Name, "p"}) || (&Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "p"}}).Key() != (PoolKey{IPAM: calico.IPAM.Name, Name: "p"}) {
		t.Errorf("got keys %+v and %+v", node().Key(), pool().Key())
	}
}
