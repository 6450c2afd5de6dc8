package model_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A generator generates random steps. It uses few addresses, MACs and names, so that they often
// collide.
type generator struct {
	*rand.Rand
	left int
}

func pick[T any](g *generator, items ...T) T { return items[g.IntN(len(items))] }

// weighted is a function with the weight with which it is chosen.
type weighted struct {
	weight int
	step   func() step
}

func (g *generator) choose(all ...weighted) step {
	sum := 0
	for _, w := range all {
		sum += w.weight
	}
	at := g.IntN(sum)
	for _, w := range all {
		if at -= w.weight; at < 0 {
			return w.step()
		}
	}
	panic("the weights have changed")
}

// next returns the next step of a run.
func (g *generator) next(r *run) (step, bool) {
	if g.left--; g.left < 0 {
		return step{}, false
	}
	number := 1 + g.IntN(len(r.agents))
	a := r.agents[number-1]
	of := func(verb string, n uint64) func() step {
		return func() step { return step{verb: verb, agent: number, number: n} }
	}
	order := g.Uint64N(1000)
	if a.stream == nil || a.stream.ended() {
		return g.choose(
			weighted{30, of("connect", order)},
			weighted{4, of("begin", order)},
			weighted{6, func() step { return step{verb: "delta", agent: number, change: g.change(a)} }},
			weighted{1, of("reboot", 0)},
			weighted{1, of("restart", g.Uint64N(4))},
			weighted{1, of("rename", 1+g.Uint64N(uint64(len(r.agents))))},
			weighted{8, func() step { return g.sleep(r) }},
		), true
	}
	if a.stream.inside {
		return g.choose(weighted{6, of("finish", order)}, weighted{1, of("begin", order)}, weighted{1, of("disconnect", 0)}, weighted{4, func() step { return g.sleep(r) }}), true
	}
	if a.stream.session.lost && g.IntN(2) == 0 {
		return step{verb: "connect", agent: number, number: order}, true // a snapshot was requested
	}
	if a.deaf.Load() && g.IntN(3) == 0 {
		return step{verb: "deaf", agent: number}, true
	}
	return g.choose(
		weighted{120, func() step { return step{verb: "delta", agent: number, change: g.change(a)} }},
		weighted{2, func() step { return step{verb: "lose", agent: number, change: g.change(a)} }},
		weighted{1, of("late", 0)},
		weighted{2, of("repeat", 0)},
		weighted{2, of("connect", order)},
		weighted{1, of("begin", order)},
		weighted{3, of("disconnect", 0)},
		weighted{1, of("reboot", 0)},
		weighted{1, of("restart", g.Uint64N(4))},
		weighted{1, of("takeover", order)},
		weighted{1, of("older", order)},
		weighted{1, of("deaf", g.Uint64N(2))},
		weighted{1, of("mute", g.Uint64N(2))},
		weighted{25, func() step { return g.sleep(r) }},
	), true
}

// sleep returns a step that advances time: by a short time, to the next timer or just before it, or
// past several timers.
func (g *generator) sleep(r *run) step {
	d := time.Millisecond
	switch g.IntN(8) {
	case 0:
		d = time.Duration(1+g.IntN(400)) * time.Millisecond
	case 1, 2:
		d = time.Duration(1+g.IntN(3000)) * time.Millisecond
	case 3, 4, 5:
		if due := r.next(); due != 0 {
			return step{verb: "sleep", wait: max(d, time.Until(due.Time())+pick(g, -time.Nanosecond, 0, 0, time.Nanosecond))}
		}
	case 6:
		d = time.Duration(1+g.IntN(12)) * time.Second
	case 7:
		d = time.Duration(5+g.IntN(5+60*g.IntN(2))) * time.Second
		connected := slices.ContainsFunc(r.agents, func(a *agent) bool { return a.stream != nil && !a.stream.ended() })
		if !connected && g.IntN(3) == 0 || g.IntN(2000) == 0 { // pings make it slow
			d = 25 * time.Hour
		}
	}
	// With whole seconds, timers of streams and of addresses would be due at the same time.
	return step{verb: "sleep", wait: d + time.Duration(g.IntN(1_000_000))}
}

var (
	addresses = []string{"10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.1.1", "fe80::1", "2001:db8::1"}
	macs      = []string{"\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02", "\x02\x00\x00\x00\x00\x03", "\x02\x00\x00\x00\x00\x04", "\x02\x42\x0a\x00\x00\x01", "\x00\x00\x5e\x00\x01\x01"}
)

func (g *generator) address() []byte { return netip.MustParseAddr(pick(g, addresses...)).AsSlice() }

// uplinkMAC returns the MAC of a node's uplink.
func uplinkMAC(number int) []byte { return []byte{2, 0xff, 0, 0, 0, byte(number)} }

func (g *generator) prefix() uint32 { return pick[uint32](g, 24, 24, 32, 8) }

func (g *generator) mac() []byte { return []byte(pick(g, macs...)) }

// change returns a change of an agent's table.
func (g *generator) change(a *agent) *pb.ReportRequest {
	m := &pb.ReportRequest{}
	g.one(a, m)
	for g.IntN(3) == 0 {
		g.one(a, m)
	}
	return m
}

// one adds one change to a message.
func (g *generator) one(a *agent, m *pb.ReportRequest) {
	t := &a.table
	if len(t.interfaces) < 3 && g.IntN(3) > 0 {
		g.build(a, m)
		return
	}
	switch g.IntN(43) {
	case 0, 1:
		g.build(a, m)
	case 2:
		if id := pick[uint32](g, 2, 3, 4, 5); t.namespaces[id] != nil {
			m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: id, Gone: true})
		}
	case 3:
		m.Namespaces = append(m.Namespaces, g.namespace(a, pick[uint32](g, 2, 3, 4, 5)))
	case 4:
		m.Links = append(m.Links, g.link())
		if l := shuffled(g.Rand, t.links); len(l) > 0 { // its cable is pulled, or put back
			l[0].NoCarrier = !l[0].GetNoCarrier()
			m.Links = append(m.Links, l[0])
		}
	case 5:
		g.interfaceChange(a, m)
	case 6:
		if i := g.anyInterface(a); i != nil && g.IntN(2) == 0 {
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: i.GetNamespace(), Index: i.GetIndex(), Gone: true})
		}
	case 7:
		m.Pools = append(m.Pools, g.pool(a))
	case 8, 9, 10:
		g.allocation(a, m)
	case 11:
		if g.IntN(4) == 0 {
			m.Status = &pb.StatusRecord{Wire: "tcx", Blind: g.IntN(2) == 0}
		}
	case 12, 13, 14, 15, 16:
		if c := g.anyClaim(a); c != nil { // the claim ends
			m.Claims = append(m.Claims, &pb.ClaimRecord{
				Address: c.GetAddress(), Kind: c.GetKind(), Namespace: c.GetNamespace(), Index: c.GetIndex(), Mac: c.GetMac(), Vlan: c.GetVlan(),
				InnerVlan: c.GetInnerVlan(), NoOverride: c.GetNoOverride(), Source: c.GetSource(), Gone: true,
			})
			if g.IntN(4) == 0 {
				m.Claims[len(m.Claims)-1].Residence = durationpb.New(time.Duration(g.IntN(500)) * time.Millisecond)
			}
		}
	case 17, 18, 19, 20, 21, 22:
		if c := g.anyClaim(a); c != nil { // the claim is seen again
			if fromKernel(c) && g.IntN(4) == 0 {
				c.PrefixLength = g.prefix()
			}
			m.Claims = append(m.Claims, &pb.ClaimRecord{
				Address: c.GetAddress(), Kind: c.GetKind(), Namespace: c.GetNamespace(), Index: c.GetIndex(), Mac: c.GetMac(), Vlan: c.GetVlan(),
				InnerVlan: c.GetInnerVlan(), NoOverride: c.GetNoOverride(), Source: c.GetSource(), Link: c.GetLink(), Routed: c.GetRouted(),
				PrefixLength: c.GetPrefixLength(), Network: c.GetNetwork(),
			})
		}
	case 23, 24, 25, 26, 27, 28, 29:
		g.assigned(a, m)
	case 30, 31, 32:
		g.belief(a, m)
	default:
		g.frame(a, m)
	}
}

// build adds parts of a typical node: an uplink, a bridge, or a pod with its veth.
func (g *generator) build(a *agent, m *pb.ReportRequest) {
	switch g.IntN(4) {
	case 0:
		m.Links = append(m.Links, &pb.LinkRecord{Name: "eth0", Kind: pb.LinkRecord_UPLINK, NoCarrier: g.IntN(3) == 0})
		m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
			Namespace: 1, Index: 1, Name: "eth0", Mac: uplinkMAC(a.number), Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true,
		})
		m.Claims = append(m.Claims, &pb.ClaimRecord{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + a.number)}).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 1, PrefixLength: 24,
		})
		if g.IntN(2) == 0 { // and a virtual machine on the link of the uplink
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
				Namespace: 1, Index: 3, Name: "macvtap0", Kind: "macvtap", Mac: g.mac(), Attachment: pb.InterfaceRecord_OWN, Link: "eth0",
			})
		}
	case 1:
		m.Links = append(m.Links, &pb.LinkRecord{Name: "br0", Kind: pb.LinkRecord_BRIDGE, Routed: g.IntN(2) == 0, NoCarrier: g.IntN(3) == 0})
		m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
			Namespace: 1, Index: 2, Name: "br0", Kind: "bridge", Mac: g.mac(), Attachment: pb.InterfaceRecord_OWN, Link: "br0",
		})
	default:
		id := pick[uint32](g, 2, 3, 4)
		number := strconv.Itoa(int(id))
		link := pick(g, "veth"+number, "veth"+number, "br0")
		m.Namespaces = append(m.Namespaces, g.namespace(a, id))
		if link != "br0" {
			m.Links = append(m.Links, &pb.LinkRecord{Name: link, Kind: pb.LinkRecord_POINT_TO_POINT})
		}
		m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
			Namespace: id, Index: 2, Name: "eth0", Kind: "veth", Mac: g.mac(), Attachment: pb.InterfaceRecord_PEER, Link: link, HostInterface: "veth" + number,
		}, &pb.InterfaceRecord{
			Namespace: 1, Index: 10 + id, Name: "veth" + number, Kind: "veth", Mac: []byte{2, 0xee, 0, 0, 0, byte(id)}, Attachment: pb.InterfaceRecord_OWN,
			Link: link, PeerNamespace: id,
		})
		m.Claims = append(m.Claims, &pb.ClaimRecord{
			Address: g.address(), Kind: pb.Evidence_ASSIGNED, Namespace: id, Index: 2, PrefixLength: 24, Network: pick(g, "", "net1", "net1"),
		})
	}
}

func (g *generator) namespace(a *agent, id uint32) *pb.NamespaceRecord {
	ns := &pb.NamespaceRecord{Id: id, Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: pick(g, "a", "b", "c"), Source: "cni-result"}}
	if g.IntN(6) > 0 {
		ns.Netns = strconv.Itoa(4026540000 + 100*a.number + int(id) + pick(g, 0, 0, 0, 10))
		for _, other := range a.table.namespaces { // an agent has one record of each namespace
			if other.GetId() != id && other.GetNetns() == ns.GetNetns() {
				ns.Netns = ""
			}
		}
	}
	w := ns.GetWorkload()
	switch g.IntN(8) {
	case 0:
		ns.Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN}
	case 1:
		ns.Workload = &pb.Workload{Kind: pb.Workload_CONTAINER, Name: "db", ContainerId: pick(g, "c1", "c2"), Source: "cgroup"}
	case 2:
		w.VirtualMachine = pick(g, "vm1", "vm2")
	case 3, 4:
		w.ContainerId, w.Uid = pick(g, "c1", "c2", "c3"), pick(g, "", "uid-1")
	}
	if g.IntN(5) == 0 {
		ns.Intended = []*pb.Intended{{Address: netip.MustParseAddr(pick(g, addresses...)).String(), Source: "cri", Interface: "eth0"}}
	}
	return ns
}

func (g *generator) link() *pb.LinkRecord {
	l := &pb.LinkRecord{Name: pick(g, "eth0", "br0", "veth2", "veth3"), Kind: pb.LinkRecord_POINT_TO_POINT}
	switch l.GetName() {
	case "eth0":
		l.Kind, l.NoCarrier = pb.LinkRecord_UPLINK, g.IntN(3) == 0
	case "br0":
		l.NoCarrier = g.IntN(3) == 0
		l.Kind, l.Routed = pick(g, pb.LinkRecord_BRIDGE, pb.LinkRecord_BRIDGE, pb.LinkRecord_OVS_PORT), g.IntN(2) == 0
	}
	l.Gone = g.IntN(4) == 0
	return l
}

func (g *generator) anyInterface(a *agent) *pb.InterfaceRecord {
	all := shuffled(g.Rand, a.table.interfaces)
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

func (g *generator) anyClaim(a *agent) *pb.ClaimRecord {
	all := shuffled(g.Rand, a.table.claims)
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// interfaceChange adds a new interface, or another version of a known one.
func (g *generator) interfaceChange(a *agent, m *pb.ReportRequest) {
	if g.IntN(2) == 0 {
		ns := pick[uint32](g, 1, 2, 3)
		i := &pb.InterfaceRecord{Namespace: ns, Index: pick[uint32](g, 3, 4), Name: pick(g, "net1", "net2"), Mac: g.mac()}
		switch g.IntN(5) {
		case 0:
			i.Attachment = pb.InterfaceRecord_LOCAL
			i.Kind = "dummy"
		case 1:
			i.Attachment = pb.InterfaceRecord_PRIVATE
		case 2:
			i.Attachment, i.Link, i.HostInterface, i.Kind = pb.InterfaceRecord_LOWER, "eth0", "eth0", "macvlan"
		default:
			i.Attachment, i.Link = pb.InterfaceRecord_OWN, pick(g, "br0", "eth0", "eth0.5")
			if ns != 1 {
				i.Attachment = pb.InterfaceRecord_PEER
			} else if g.IntN(3) == 0 {
				i.Kind = "tun"
			} else if g.IntN(3) == 0 {
				i.Kind = "vlan"
			}
		}
		m.Interfaces = append(m.Interfaces, i)
		return
	}
	i := g.anyInterface(a)
	if i == nil {
		return
	}
	switch g.IntN(6) {
	case 0:
		i.Mac = g.mac()
	case 1:
		i.Name += "x"
		if len(i.GetName()) > 8 {
			i.Name = "eth0"
		}
	case 2:
		i.Vrf = pick(g, "", "red")
	case 3:
		if i.GetAttachment() != pb.InterfaceRecord_LOCAL && i.GetAttachment() != pb.InterfaceRecord_PRIVATE {
			i.Link = pick(g, "br0", "eth0", i.GetLink())
		}
	case 4:
		if i.GetNamespace() == 1 && i.GetPeerNamespace() == 0 {
			i.Uplink = !i.GetUplink()
		}
	case 5:
		i.Mac = nil
	}
	m.Interfaces = append(m.Interfaces, i)
}

func (g *generator) assigned(a *agent, m *pb.ReportRequest) {
	i := g.anyInterface(a)
	if i == nil {
		return
	}
	c := &pb.ClaimRecord{
		Address: g.address(), Kind: pb.Evidence_ASSIGNED, Namespace: i.GetNamespace(), Index: i.GetIndex(), PrefixLength: g.prefix(),
		Network: pick(g, "", "", "net1", "net2", "cri"), TakenAlong: g.IntN(12) == 0,
	}
	if g.IntN(12) == 0 {
		c.Kind = pb.Evidence_DAD_FAILED
		c.Flags = pick[uint32](g, unix.IFA_F_DADFAILED, 0) // by the kernel, or by a DHCP client
	}
	m.Claims = append(m.Claims, c)
}

// frame adds a claim from the wire.
func (g *generator) frame(a *agent, m *pb.ReportRequest) {
	i := g.anyInterface(a)
	for try := 0; i != nil && i.GetNamespace() != 1 && try < 5; try++ {
		i = g.anyInterface(a)
	}
	if i == nil || i.GetNamespace() != 1 {
		return
	}
	c := &pb.ClaimRecord{
		Address: g.address(), Kind: pick(g, pb.Evidence_ANNOUNCED, pb.Evidence_ANSWERED, pb.Evidence_ANSWERED, pb.Evidence_USED, pb.Evidence_USED, pb.Evidence_BELIEVED),
		Namespace: 1, Index: i.GetIndex(), Mac: g.mac(), Link: i.GetLink(), NoOverride: g.IntN(10) == 0,
	}
	if i.GetUplink() && g.IntN(2) == 0 {
		other := 1 + g.IntN(4)
		c.Mac = uplinkMAC(other)
		if g.IntN(2) == 0 {
			c.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + other)}).AsSlice()
		}
	}
	switch g.IntN(20) {
	case 0:
		c.Source = g.mac()
	case 1:
		c.Mac = []byte("\xff\xff\xff\xff\xff\xff")
	case 2:
		c.Routed = true
	case 3:
		c.Vlan = 5
	case 4:
		c.Link = pick(g, "", "br0", "eth0.5")
	}
	if g.IntN(6) == 0 {
		c.Age = durationpb.New(time.Duration(g.IntN(2000)) * time.Millisecond)
	}
	m.Claims = append(m.Claims, c)
}

// belief adds an entry of a neighbour table that no claim of the node bears out, or ends one.
func (g *generator) belief(a *agent, m *pb.ReportRequest) {
	if all := shuffled(g.Rand, a.table.beliefs); len(all) > 0 && g.IntN(3) == 0 {
		m.Beliefs = append(m.Beliefs, &pb.BeliefRecord{Link: all[0].GetLink(), Address: all[0].GetAddress(), Mac: all[0].GetMac(), Gone: true})
		return
	}
	i := g.anyInterface(a)
	if i == nil || i.GetLink() == "" {
		return
	}
	b := &pb.BeliefRecord{
		Link: i.GetLink(), Address: g.address(), Mac: g.mac(), State: pick(g, pb.BeliefRecord_IN_USE, pb.BeliefRecord_IN_USE, pb.BeliefRecord_PERMANENT),
		Count: 1, Holders: []*pb.BeliefRecord_Holder{{Namespace: i.GetNamespace(), Index: i.GetIndex()}},
	}
	if g.IntN(4) == 0 {
		b.Mac = uplinkMAC(1 + g.IntN(4))
	}
	m.Beliefs = append(m.Beliefs, b)
}

func poolRange(first, last byte) *pb.AddressRange {
	return &pb.AddressRange{First: []byte{10, 0, 0, first}, Last: []byte{10, 0, 0, last}}
}

func (g *generator) pool(a *agent) *pb.PoolRecord {
	p := &pb.PoolRecord{
		Name: pick(g, "/var/lib/cni/networks/net1", "/var/lib/cni/networks/net2"), Ipam: hostlocal.Name, State: pb.Pool_KNOWN,
		Plugin: pick(g, "ptp", "bridge"), Device: pick(g, "", "br0"), Routed: g.IntN(3) > 0, Config: "/etc/cni/net.d/10.conf",
	}
	p.Network = p.GetName()[len(p.GetName())-4:]
	switch g.IntN(6) {
	case 0:
	case 1:
		p.Ranges = []*pb.AddressRange{poolRange(3, 3)}
	default:
		p.Ranges, p.Gateways = []*pb.AddressRange{poolRange(0, 255)}, [][]byte{{10, 0, 0, 1}}
		if g.IntN(2) == 0 {
			p.Gateways = nil
		}
	}
	switch g.IntN(12) {
	case 0:
		p.State, p.Problem = pb.Pool_UNREADABLE, "permission denied"
	case 1:
		p.State = pb.Pool_MISSING
	case 2:
		p.State = pb.Pool_READING
	case 3:
		p.LostAt, p.Lost = timestamppb.Now(), 3
	case 4, 5:
		p.Gone = true
	}
	return p
}

func (g *generator) allocation(a *agent, m *pb.ReportRequest) {
	all := shuffled(g.Rand, a.table.pools)
	if len(all) == 0 {
		m.Pools = append(m.Pools, g.pool(a))
		return
	}
	al := &pb.AllocationRecord{
		Ipam: hostlocal.Name, Pool: all[0].GetName(), Address: g.address(), ContainerId: pick(g, "", "c1", "c2", "c3"), Interface: "eth0",
		Gone: g.IntN(3) == 0,
	}
	if len(al.GetAddress()) == 16 {
		al.Address = []byte{10, 0, 0, 3}
	}
	if g.IntN(3) == 0 {
		al.Namespace, al.Pod = pick(g, "default", "other"), pick(g, "a", "b", "d")
	}
	m.Allocations = append(m.Allocations, al)
}
