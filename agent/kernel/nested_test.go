package kernel

import (
	"maps"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// pairOf returns two ends of a veth pair between namespaces 10 + a and 10 + b.
func pairOf(index, a, b int32) (port, end rtnetlink.Link) {
	port = device(index, "p", "veth", func(l *rtnetlink.Link) { l.Lower, l.LowerNSID = index+1, 10+b })
	end = device(index+1, "eth0", "veth", func(l *rtnetlink.Link) { l.Lower, l.LowerNSID = index, 10+a })
	return port, end
}

// nestedFake has a namespace 11 with a bridge, whose port leads to namespace 12, and a veth between 11 and our own.
func nestedFake(change func(f agenttest.Fake)) agenttest.Fake {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(20, 11))
	f.Put(11, agenttest.PodVeth(20))
	f.Put(11, device(50, "br0", "bridge", nil))
	port, end := pairOf(60, 1, 2)
	port.Master = 50
	f.Put(11, port)
	f.Put(12, end)
	f[12].Addresses = map[int32][]rtnetlink.Address{61: {agenttest.Address(61, "172.20.0.5/24")}}
	if change != nil {
		change(f)
	}
	return f
}

func TestBridgesInNamespacesOfTheNode(t *testing.T) {
	const inner = ipwitnessv1.InterfaceRecord_INNER
	change := func(nsid, index int32, how func(l *rtnetlink.Link)) func(agenttest.Fake) {
		return func(f agenttest.Fake) {
			l := f[nsid].Links[index]
			how(&l)
			f[nsid].Links[index] = l
		}
	}
	detach := change(11, 2, func(l *rtnetlink.Link) { l.LowerNSID = 99 })
	switched := func(f agenttest.Fake) { change(11, 2, func(l *rtnetlink.Link) { l.Master = 50 })(f) }
	named := func(k *Mirror) {
		k.Adopt(11, 4011, false, false)
		k.SetNames(map[uint64]*ipwitnessv1.Workload{4011: {Kind: ipwitnessv1.Workload_CONTAINER, Name: "outer"}}, nil, nil, nil)
	}
	for name, c := range map[string]struct {
		fake  func(agenttest.Fake)
		learn func(k *Mirror)
		want  string // the link of the end in namespace 12; empty if that is not of this node
	}{
		"it is not known to be a container's": {nil, func(k *Mirror) { k.Adopt(11, 4011, false, false) }, ""},
		"it is a container's":                 {nil, named, "br0@4011"},
		"an overlay network": {detach, func(k *Mirror) {
			k.Adopt(11, 4011, false, false)
			k.SetNames(nil, nil, nil, map[uint64]string{4011: "abc"})
		}, "overlay@abc"},
		"nothing leads to the node":             {detach, func(k *Mirror) { k.Adopt(11, 4011, false, false) }, ""},
		"its user namespace is another one":     {detach, func(k *Mirror) { k.Adopt(11, 4011, false, true) }, "br0@4011"},
		"that of the end is another one":        {detach, func(k *Mirror) { k.Adopt(12, 4012, false, true) }, "br0@nsid11"},
		"the bridge tells VLANs apart":          {change(11, 50, func(l *rtnetlink.Link) { l.Filtering = true }), named, ""},
		"the peer is no port":                   {change(11, 60, func(l *rtnetlink.Link) { l.Master = 0 }), named, ""},
		"the peer is another interface":         {change(11, 60, func(l *rtnetlink.Link) { l.Lower = 77 }), named, ""},
		"the bridge is a switch of the machine": {switched, func(k *Mirror) { k.Adopt(11, 4011, false, false) }, ""},
		"a container bridges its own interface": {switched, named, "veth20"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTestKernel(t, nestedFake(c.fake))
			if c.learn != nil {
				c.learn(k)
			}
			ns := k.byNSID[12]
			r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: ns.id, Index: 61})
			if c.want == "" {
				if r != nil {
					t.Errorf("got %v, want no record", r)
				}
				return
			}
			if r.GetLink() != c.want || r.GetAttachment() != inner {
				t.Errorf("got %v, want it inner, on link %s", r, c.want)
			}
			if got := k.byNSID[11].links[50].published; got.GetLink() != c.want || got.GetAttachment() != inner {
				t.Errorf("bridge: got %v, want it inner, on link %s", got, c.want)
			}
		})
	}
}

// TestNestedLinksEqualThoseOfAFreshListing changes bridges in namespaces at random, and compares the records
// after each message with those of a fresh listing.
func TestNestedLinksEqualThoseOfAFreshListing(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := nestedFake(nil)
		contain := func(k *Mirror) {
			k.Adopt(11, 4011, false, true)
			k.Adopt(12, 4012, false, true)
		}
		k := newTestKernel(t, f)
		contain(k)
		index := int32(100)
		for range 40 {
			a, b := 1+r.Int32N(4), 1+r.Int32N(4)
			switch r.IntN(5) {
			case 0: // a bridge
				index += 3
				l := device(index, "br", "bridge", nil)
				f.Put(10+a, l)
				k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 10 + a, Link: l})
			case 1: // a pair
				if a == b {
					continue
				}
				index += 3
				port, end := pairOf(index, a, b)
				f.Put(10+a, port)
				f.Put(10+b, end)
				for nsid, l := range map[int32]rtnetlink.Link{10 + a: port, 10 + b: end} {
					l.LowerNSID = 3 // in the table of that namespace
					k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: nsid, Link: l})
				}
				addr := agenttest.Address(index+1, "172.20.0.5/24")
				if f[10+b].Addresses == nil {
					f[10+b].Addresses = map[int32][]rtnetlink.Address{}
				}
				f[10+b].Addresses[index+1] = []rtnetlink.Address{addr}
				k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 10 + b, Address: addr})
			case 2, 3: // a port comes or goes
				ns := f[10+a]
				if ns == nil {
					continue
				}
				var bridge int32
				for _, l := range ns.Links {
					if l.Kind == "bridge" && r.IntN(3) > 0 {
						bridge = l.Index
					}
				}
				for _, l := range ns.Links {
					if l.Kind == "veth" && r.IntN(2) == 0 {
						l.Master = bridge
						ns.Links[l.Index] = l
						k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 10 + a, Link: l})
						break
					}
				}
			case 4: // an interface goes, with its peer
				ns := f[10+a]
				if ns == nil {
					continue
				}
				for _, l := range ns.Links {
					if l.Index < 60 || l.Kind != "veth" || r.IntN(2) == 0 {
						continue
					}
					delete(ns.Links, l.Index)
					delete(f[l.LowerNSID].Links, l.Lower)
					delete(f[l.LowerNSID].Addresses, l.Lower)
					delete(ns.Addresses, l.Index)
					k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: 10 + a, Link: l})
					break
				}
			}
			fresh := newTestKernel(t, f)
			contain(fresh)
			got, want := nestedRecords(k), nestedRecords(fresh)
			if !maps.EqualFunc(got, want, func(a, b *ipwitnessv1.InterfaceRecord) bool { return proto.Equal(a, b) }) {
				t.Fatalf("seed %d: got %v, want %v", seed, got, want)
			}
		}
	}
}

// nestedRecords returns the records of interfaces with addresses in other namespaces, by nsid and index.
func nestedRecords(k *Mirror) map[[2]int32]*ipwitnessv1.InterfaceRecord {
	out := map[[2]int32]*ipwitnessv1.InterfaceRecord{}
	for nsid, ns := range k.byNSID {
		for index, l := range ns.links {
			if l.published != nil && len(l.addrs) > 0 {
				r := proto.CloneOf(l.published)
				r.Namespace = 0
				out[[2]int32{nsid, index}] = r
			}
		}
	}
	return out
}
