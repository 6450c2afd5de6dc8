package facts

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// caseText returns the part of a case that does not depend on when it was reported, as text in a
// canonical order.
func caseText(c *verdict.Case) string {
	var lines []string
	add := func(what string, format string, args ...any) {
		lines = append(lines, what+" "+fmt.Sprintf(format, args...))
	}
	domain := func(d *verdict.Domain) string {
		if d == nil {
			return "-"
		}
		return d.Node.Name + "/" + d.Name
	}
	link := func(l *verdict.Link) string {
		if l == nil {
			return "-"
		}
		return fmt.Sprintf("%s/%s kind=%d routed=%t domain=%s proven=%s", l.Node.Name, l.Name, l.Kind, l.Routed, domain(l.Domain), domain(l.Proven))
	}
	namespace := func(ns *verdict.Namespace) string {
		return fmt.Sprintf("%s#%d netns=%s id=%s who=%+v intended=%q", ns.Node.Name, ns.Record, ns.Netns, ns.ID, ns.Who.Workload(), ns.Intended)
	}
	iface := func(i *verdict.Interface) string {
		return fmt.Sprintf("[%s] %d %s mac=%s host=%s vrf=%s peer=%d at=%d uplink=%t tap=%t kind=%s link=[%s]",
			namespace(i.Namespace), i.Index, i.Name, i.MAC, i.HostInterface, i.VRF, i.Peer, i.Attachment, i.Uplink, i.Tap, i.Kind, link(i.Link))
	}
	for _, c := range c.Claims {
		add("claim", "%d of %s mac=%s link=[%s] source=%s vlan=%d,%d no-override=%t routed=%t prefix=%d network=%s flags=%d count=%d first=%d last=%d assigned=%d",
			c.Kind, iface(c.Interface), c.MAC, link(c.Link), c.Source, c.VLAN, c.InnerVLAN, c.NoOverride, c.Routed, c.PrefixLength, c.Network, c.Flags, c.Count,
			c.First, c.Last, c.AssignedAt)
	}
	for _, i := range c.Stations {
		add("station", "%s", iface(i))
	}
	for _, n := range c.Namespaces {
		add("namespace", "%s nested=%t pod=%+v", namespace(n.Namespace), n.Nested, n.Pod)
	}
	for _, n := range c.Nodes {
		var pools, subnets []string
		if !slices.ContainsFunc(c.Claims, func(c *verdict.Claim) bool { return c.Node().Key() == n.Node }) {
			n.Pools, n.Subnets = nil, nil // the node of a pool; its pools and subnets do not matter for causes
		}
		for _, p := range n.Pools {
			pools = append(pools, p.Name)
		}
		for _, s := range n.Subnets {
			subnets = append(subnets, fmt.Sprint(s.Prefix, " ", s.Interface.Name, " ", s.LAN, " ", s.Leased))
		}
		slices.Sort(pools)
		slices.Sort(subnets)
		add("node", "%s covered=%t in-cidr=%t pools=%q subnets=%q", n.Node.Name, n.Covered, n.InPodCIDR, pools, subnets)
	}
	for _, a := range c.Answers {
		add("answer", "%s/%s %s addresses=%d owners=%d", a.Link.Node.Name, a.Link.Name, a.MAC, a.Addresses, a.Owners)
	}
	for _, p := range c.Pools {
		q := *p
		q.Node, q.LostHeard = nil, 0
		node := "-"
		if p.Node != nil {
			node = p.Node.Name
		}
		add("pool", "%s %+v", node, q)
	}
	for _, al := range c.Allocations {
		add("allocation", "%s/%s %s of %s/%s on %s, %s at %d, object=%+v sandbox=%t covered=%t",
			al.Pool.Name, al.ContainerID, al.Interface, al.Namespace, al.Pod, al.Node, al.Location, al.AllocatedAt, al.Object, al.Sandbox, al.Covered)
	}
	slices.Sort(lines)
	lines = append(lines, fmt.Sprintf("covered=%t in-cidr=%t", c.Covered, c.InPodCIDR))
	return strings.Join(lines, "\n")
}

func (f *Facts) text(addr string) string {
	f.RLock()
	defer f.RUnlock()
	return caseText(f.Builder().Case(index.AddressOf(netip.MustParseAddr(addr)), false))
}

// timed returns facts with a clock that only the test advances.
func timed(t testing.TB, now *verdict.Stamp, changed func(*Changes)) *Facts {
	t.Helper()
	stopped := make(chan struct{})
	close(stopped) // no addresses are judged
	return New(Config{
		Policy: &policyForTests, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { return *now }, Changed: changed, OwnersWatched: unwatched, Disputed: undisputed,
		Queues: 2, Stopped: stopped,
	})
}

// reported has all records of an agent by their keys.
type reported struct {
	name        string
	peer        *quiet
	node        *Node
	namespaces  map[uint32]*pb.NamespaceRecord
	links       map[string]*pb.LinkRecord
	interfaces  map[[2]uint32]*pb.InterfaceRecord
	claims      map[string]*pb.ClaimRecord
	pools       map[string]*pb.PoolRecord
	allocations map[string]*pb.AllocationRecord
}

func newReported(name string) *reported {
	r := &reported{
		name: name, namespaces: map[uint32]*pb.NamespaceRecord{}, links: map[string]*pb.LinkRecord{}, interfaces: map[[2]uint32]*pb.InterfaceRecord{},
		claims: map[string]*pb.ClaimRecord{}, pools: map[string]*pb.PoolRecord{}, allocations: map[string]*pb.AllocationRecord{},
	}
	r.namespaces[1] = &pb.NamespaceRecord{Id: 1, Netns: "1", Workload: &pb.Workload{Kind: pb.Workload_HOST}}
	return r
}

func claimName(c *pb.ClaimRecord) string {
	return fmt.Sprint(string(c.GetAddress()), c.GetNamespace(), c.GetIndex(), c.GetKind(), string(c.GetMac()), c.GetVlan(), c.GetInnerVlan(), c.GetNoOverride(), string(c.GetSource()))
}

// sorted returns the values of a map as text, in the order of the keys.
func sorted[K comparable, V any](m map[K]V) (all []V) {
	for _, k := range slices.SortedFunc(maps.Keys(m), func(a, b K) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		all = append(all, m[k])
	}
	return all
}

// all returns the message of a snapshot.
func (r *reported) all() *pb.ReportRequest {
	m := &pb.ReportRequest{
		Namespaces: sorted(r.namespaces), Links: sorted(r.links), Interfaces: sorted(r.interfaces), Claims: sorted(r.claims),
		Pools: sorted(r.pools), Allocations: sorted(r.allocations),
	}
	return proto.Clone(m).(*pb.ReportRequest)
}

// take applies the changes in a message.
func (r *reported) take(m *pb.ReportRequest) {
	for _, x := range m.GetNamespaces() {
		keep(r.namespaces, x.GetId(), x, x.GetGone())
	}
	for _, x := range m.GetLinks() {
		keep(r.links, x.GetName(), x, x.GetGone())
	}
	for _, x := range m.GetInterfaces() {
		keep(r.interfaces, [2]uint32{x.GetNamespace(), x.GetIndex()}, x, x.GetGone())
	}
	for _, x := range m.GetClaims() {
		keep(r.claims, claimName(x), x, x.GetGone())
	}
	for _, x := range m.GetPools() {
		keep(r.pools, x.GetName(), x, x.GetGone())
	}
	for _, x := range m.GetAllocations() {
		keep(r.allocations, x.GetPool()+string(x.GetAddress()), x, x.GetGone())
	}
}

func keep[K comparable, V any](m map[K]V, k K, v V, gone bool) {
	if gone {
		delete(m, k)
	} else {
		m[k] = v
	}
}

// ending returns the claims and interfaces that end with an interface, or with a namespace if index
// is 0. Agents report these ends, too.
func (r *reported) ending(record, index uint32) *pb.ReportRequest {
	m := &pb.ReportRequest{}
	for _, c := range sorted(r.claims) {
		behind := r.interfaces[[2]uint32{1, c.GetIndex()}].GetPeerNamespace() == record && c.GetNamespace() == 1 && index == 0
		if c.GetNamespace() == record && (index == 0 || c.GetIndex() == index) || behind {
			gone := proto.Clone(c).(*pb.ClaimRecord)
			gone.Gone = true
			m.Claims = append(m.Claims, gone)
		}
	}
	for _, i := range sorted(r.interfaces) {
		if i.GetNamespace() == record && (index == 0 || i.GetIndex() == index) {
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: record, Index: i.GetIndex(), Gone: true})
		}
	}
	return m
}

// affected has the namespaces that may lack an address, and the nodes whose ranges may have changed.
type affected struct {
	ignoring
	lack, ranges map[string]bool
}

func (d *affected) changed(c *Changes) {
	d.ignoring.changed(c)
	for ns := range c.Lacking {
		d.lack[fmt.Sprint(ns.Node.Rec.Name, ns.Record)] = true
	}
	for n := range c.Ranges {
		d.ranges[n.Rec.Name] = true
	}
}

// speech returns the frames and addresses by which each namespace is known.
func (r *reported) speech() map[string]string {
	all := map[string]string{}
	say := func(record uint32, what string, m fmt.Stringer) {
		if record != verdict.OwnRecord && r.namespaces[record] != nil {
			all[fmt.Sprint(r.name, record)] += what + " " + m.String() + "\n"
		}
	}
	for _, ns := range sorted(r.namespaces) {
		say(ns.GetId(), "", ns)
	}
	for _, i := range sorted(r.interfaces) {
		say(i.GetNamespace(), "interface", i)
	}
	for _, c := range sorted(r.claims) {
		known := &pb.ClaimRecord{Address: c.GetAddress(), Kind: c.GetKind(), Mac: c.GetMac()}
		if FromKernel(c) {
			if c.GetKind() == pb.Evidence_ASSIGNED {
				say(c.GetNamespace(), "has", known)
			}
			continue
		}
		say(r.interfaces[[2]uint32{c.GetNamespace(), c.GetIndex()}].GetPeerNamespace(), "sent", known)
		for _, i := range sorted(r.interfaces) {
			if string(i.GetMac()) == string(c.GetMac()) {
				say(i.GetNamespace(), "spoke", known)
			}
		}
	}
	return all
}

// giving returns the facts that determine the address ranges of the node.
func (r *reported) giving() string {
	var all strings.Builder
	for _, p := range sorted(r.pools) {
		fmt.Fprintln(&all, p)
	}
	for _, i := range sorted(r.interfaces) {
		fmt.Fprintln(&all, i)
	}
	for _, c := range sorted(r.claims) {
		if own := r.interfaces[[2]uint32{c.GetNamespace(), c.GetIndex()}].GetAttachment() == pb.InterfaceRecord_OWN; c.GetKind() == pb.Evidence_ASSIGNED && (own || c.GetNetwork() != "") {
			fmt.Fprintln(&all, string(c.GetAddress()), c.GetNamespace(), c.GetIndex(), c.GetNetwork())
		}
	}
	return all.String()
}

func allDisputed(yield func(index.Address) bool) {
	for _, a := range historyAddresses {
		if !yield(index.AddressOf(netip.MustParseAddr(a))) {
			return
		}
	}
}

var historyAddresses = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.9.0.1", "fe80::1"}

// change returns messages with a random change of the agent's records. own is part of the MACs.
func (r *reported) change(random *rand.Rand, count uint32, own byte) []*pb.ReportRequest {
	record := 1 + random.Uint32N(4)
	index := 2 + random.Uint32N(2)
	link := pick(random, "l1", "l2", "l3", "")
	mac := pick(random, []byte{2, own, 0, 0, 0, 1}, []byte{2, own, 0, 0, 0, 2}, []byte{2, own, 0, 0, 0, 3}, []byte{2, 0x42, 10, 0, 0, 1}, []byte("twenty bytes of a MAC"), nil)
	addr := netip.MustParseAddr(pick(random, historyAddresses...)).AsSlice()
	one := func(m *pb.ReportRequest) []*pb.ReportRequest { return []*pb.ReportRequest{m} }
	switch random.IntN(16) {
	case 0, 1:
		if record > 1 && random.IntN(3) == 0 {
			return []*pb.ReportRequest{r.ending(record, 0), {Namespaces: []*pb.NamespaceRecord{{Id: record, Gone: true}}}}
		}
		ns := &pb.NamespaceRecord{Id: record, Netns: r.namespaces[record].GetNetns(), Workload: &pb.Workload{
			Kind: pick(random, pb.Workload_POD, pb.Workload_POD, pb.Workload_CONTAINER), Namespace: pick(random, "default", "other"), Name: pick(random, "a", "b"),
			Uid: pick(random, "", "u1"), ContainerId: pick(random, "", "c1", "c2"), Source: pick(random, "cri", "cni-result"),
		}}
		if ns.Netns == "" {
			ns.Netns = pick(random, "", r.name+"00"+fmt.Sprint(record), "7"+r.name[1:]+fmt.Sprint(record))
		}
		if random.IntN(4) == 0 {
			ns.Intended = []*pb.Intended{{Address: "10.0.0.1", Source: "cni-result", Interface: "eth0"}}
		}
		return one(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{ns}})
	case 2, 3:
		return one(&pb.ReportRequest{Links: []*pb.LinkRecord{{
			Name: cmp.Or(link, "l1"), Kind: pick(random, pb.LinkRecord_BRIDGE, pb.LinkRecord_POINT_TO_POINT, pb.LinkRecord_UPLINK), Routed: random.IntN(2) == 0, Gone: random.IntN(4) == 0,
		}}})
	case 4, 5, 6:
		if r.namespaces[record] == nil {
			return nil
		}
		if random.IntN(4) == 0 {
			return one(r.ending(record, index))
		}
		return one(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{
			Namespace: record, Index: index, Name: pick(random, "eth0", "br0"), Mac: mac, Link: link, Kind: pick(random, "veth", "vlan", "bridge", "tun", ""),
			HostInterface: pick(random, "", "h1"), Vrf: pick(random, "", "red"), Attachment: pb.InterfaceRecord_Attachment(1 + random.IntN(5)),
			Uplink: record == 1 && random.IntN(2) == 0, PeerNamespace: pick[uint32](random, 0, 0, 2, 3),
		}}})
	case 7:
		pool := &pb.PoolRecord{Ipam: hostlocal.Name, Name: pick(random, "p1", "p2"), Network: pick(random, "", "net0"), State: pick(random, pb.Pool_KNOWN, pb.Pool_MISSING), Device: pick(random, "", "br0")}
		if random.IntN(2) == 0 {
			pool.Ranges = []*pb.AddressRange{{First: []byte{10, 0, 0, 1}, Last: []byte{10, 0, 0, 99}}}
		}
		if random.IntN(2) == 0 {
			pool.Gateways = [][]byte{{10, 0, 0, 2}}
		}
		if random.IntN(4) > 0 {
			return one(&pb.ReportRequest{Pools: []*pb.PoolRecord{pool}})
		}
		end := &pb.ReportRequest{}
		for _, al := range sorted(r.allocations) {
			if al.GetPool() == pool.Name {
				end.Allocations = append(end.Allocations, &pb.AllocationRecord{Ipam: al.Ipam, Pool: al.Pool, Address: al.Address, Gone: true})
			}
		}
		return []*pb.ReportRequest{end, {Pools: []*pb.PoolRecord{{Ipam: pool.Ipam, Name: pool.Name, Gone: true}}}}
	case 8:
		al := &pb.AllocationRecord{Ipam: hostlocal.Name, Pool: pick(random, "p1", "p2"), Address: addr, ContainerId: pick(random, "c1", "c2"), Interface: pick(random, "eth0", "net1"), Gone: random.IntN(3) == 0}
		if r.pools[al.Pool] == nil {
			return nil
		}
		return one(&pb.ReportRequest{Allocations: []*pb.AllocationRecord{al}})
	}
	if r.interfaces[[2]uint32{record, index}] == nil {
		return nil
	}
	c := &pb.ClaimRecord{
		Address: addr, Kind: pick(random, pb.Evidence_ASSIGNED, pb.Evidence_ASSIGNED, pb.Evidence_DAD_FAILED), Namespace: record, Index: index, Count: count, PrefixLength: pick[uint32](random, 24, 32),
		Flags: random.Uint32N(2), Network: pick(random, "", "net0", "net1"), Gone: random.IntN(4) == 0, FirstSeen: &timestamppb.Timestamp{Seconds: 5}, LastSeen: &timestamppb.Timestamp{Seconds: int64(1 + random.IntN(2))},
	}
	if record == 1 && mac != nil && random.IntN(3) > 0 {
		c.Kind, c.Mac = pick(random, pb.Evidence_ANNOUNCED, pb.Evidence_ANSWERED, pb.Evidence_ANSWERED, pb.Evidence_USED, pb.Evidence_BELIEVED), mac
		c.Link = cmp.Or(link, r.interfaces[[2]uint32{record, index}].GetLink())
		c.PrefixLength, c.Network = 0, ""
		c.Vlan, c.NoOverride, c.Routed = pick[uint32](random, 0, 0, 5), random.IntN(5) == 0, random.IntN(5) == 0
		if random.IntN(5) == 0 {
			c.Source = []byte{2, own, 0, 0, 0, 9}
		}
	}
	return one(&pb.ReportRequest{Claims: []*pb.ClaimRecord{c}})
}

// frames returns another sighting of each wire claim to an address, some on another link.
func (r *reported) frames(random *rand.Rand, addr []byte, count uint32) *pb.ReportRequest {
	m := &pb.ReportRequest{}
	for _, c := range sorted(r.claims) {
		if !FromKernel(c) && string(c.GetAddress()) == string(addr) {
			c.Count = count
			if random.IntN(8) == 0 {
				c.Link = pick(random, "l1", "l2", "l3")
			}
			m.Claims = append(m.Claims, c)
		}
	}
	return proto.Clone(m).(*pb.ReportRequest)
}

// After any sequence of changes, the cases are as if all records had been reported at once, and an
// address is judged again when its case has changed.
func TestCasesFollowFromWhatAgentsHave(t *testing.T) {
	for seed := range uint64(24) {
		lan := seed%3 == 0 // nodes see frames of each other, which join links; a snapshot does not contain all of that
		random := rand.New(rand.NewPCG(seed, 77))
		now := verdict.Stamp(time.Hour)
		l := &affected{ignoring: ignoring{dropped: map[string]int{}}, lack: map[string]bool{}, ranges: map[string]bool{}}
		f := timed(t, &now, l.changed)
		f.Disputed = allDisputed
		f.Kubernetes, f.Followed = &api{}, seed%2 == 0
		sides := []*reported{newReported("n1"), newReported("n2")}
		for _, s := range sides {
			s.peer, s.node = connectNode(t, f, s.name)
			snapshotOf(t, f, s.peer, s.node, s.all())
		}
		f.judgeAll()
		texts := map[string]string{}
		for step := range 120 {
			now = now.Add(time.Second)
			s := sides[random.IntN(2)]
			own := s.name[1]
			if lan {
				own = 0
			}
			for _, a := range historyAddresses {
				texts[a] = f.text(a)
			}
			speech, giving := s.speech(), s.giving()
			ports := false // the senders of frames are determined by judgements
			clear(l.lack)
			clear(l.ranges)
			if random.IntN(20) == 0 {
				snapshotOf(t, f, s.peer, s.node, s.all())
			} else {
				for _, m := range s.change(random, uint32(step)+1, own) {
					ports = ports || slices.ContainsFunc(m.GetInterfaces(), func(i *pb.InterfaceRecord) bool { return i.GetNamespace() == verdict.OwnRecord })
					s.take(proto.Clone(m).(*pb.ReportRequest))
					deltaOf(t, f, s.peer, s.node, m)
				}
			}
			judged := f.judgeAll()
			spoken := s.speech()
			for _, id := range slices.Sorted(maps.Keys(spoken)) {
				if speech[id] != spoken[id] && !l.lack[id] && !ports {
					t.Fatalf("seed %d step %d: no notification that namespace %s may lack an address: it was known by\n%s\nand is by\n%s", seed, step, id, speech[id], spoken[id])
				}
			}
			if after := s.giving(); giving != after && !l.ranges[s.name] {
				t.Fatalf("seed %d step %d: no notification that the ranges of %s changed from\n%s\nto\n%s", seed, step, s.name, giving, after)
			}
			for _, a := range historyAddresses {
				if before, after := texts[a], f.text(a); before != after && !slices.Contains(judged, netip.MustParseAddr(a)) {
					t.Fatalf("seed %d step %d: %s is not judged again, but its case has changed from\n%s\nto\n%s", seed, step, a, before, after)
				}
			}
			// Wire claims of an owner end with it until they are seen again.
			now = now.Add(time.Second)
			for _, s := range sides {
				for _, a := range historyAddresses {
					deltaOf(t, f, s.peer, s.node, s.frames(random, netip.MustParseAddr(a).AsSlice(), uint32(step)+1))
				}
			}
			f.judgeAll()
			if step%4 == 0 && !lan {
				wantAsFresh(t, fmt.Sprintf("seed %d step %d", seed, step), f, sides, now)
			}
			f.check(t, fmt.Sprintf("seed %d step %d", seed, step))
			if step%10 == 0 && f.Followed {
				wantPods(t, fmt.Sprintf("seed %d step %d", seed, step), f, sides)
			}
		}
		if len(l.dropped) > 0 && l.dropped["claim"] > 0 {
			t.Fatalf("seed %d: got %v dropped, want nothing", seed, l.dropped)
		}
	}
}

// wantPods checks that the addresses of a pod are judged again when the Kubernetes API changes it.
func wantPods(t *testing.T, when string, f *Facts, sides []*reported) {
	t.Helper()
	for _, key := range []string{"u1", "default/a", "default/b", "other/a", "other/b"} {
		has := map[netip.Addr]bool{}
		for _, s := range sides {
			for record, ns := range s.namespaces {
				w := ns.GetWorkload()
				if record == verdict.OwnRecord || w.GetKind() != pb.Workload_POD || cmp.Or(w.GetUid(), w.GetNamespace()+"/"+w.GetName()) != key {
					continue
				}
				for _, c := range s.claims {
					port := s.interfaces[[2]uint32{c.GetNamespace(), c.GetIndex()}]
					if c.GetNamespace() == record || c.GetNamespace() == verdict.OwnRecord && port.GetPeerNamespace() == record {
						a, _ := netip.AddrFromSlice(c.GetAddress())
						has[a] = true
					}
				}
			}
		}
		f.PodsChanged([]string{key})
		got := f.judgeAll()
		slices.SortFunc(got, netip.Addr.Compare)
		if want := slices.SortedFunc(maps.Keys(has), netip.Addr.Compare); !slices.Equal(got, want) {
			t.Fatalf("%s: %s: got %v to be judged, want %v", when, key, got, want)
		}
	}
}

// wantAsFresh compares the cases with those of new facts that receive all records at once.
func wantAsFresh(t *testing.T, when string, f *Facts, sides []*reported, now verdict.Stamp) {
	t.Helper()
	fresh := timed(t, &now, func(*Changes) {})
	fresh.Kubernetes, fresh.Followed = f.Kubernetes, f.Followed
	for _, s := range sides {
		p, n := connectNode(t, fresh, s.name)
		snapshotOf(t, fresh, p, n, s.all())
	}
	for _, a := range historyAddresses {
		if got, want := f.text(a), fresh.text(a); got != want {
			t.Fatalf("%s: %s: got\n%s\nwant\n%s", when, a, got, want)
		}
	}
	f.RLock()
	defer f.RUnlock()
	if f.Allocations() != fresh.Allocations() {
		t.Fatalf("%s: got %d allocations, want %d", when, f.Allocations(), fresh.Allocations())
	}
}
