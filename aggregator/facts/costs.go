package facts

import (
	"math"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The live heap in bytes of one record without its strings. TestRecordsCostWhatIsCharged compares
// these numbers with measurements.
const (
	nodeCost       = 48 << 10 // including its connection and stream
	namespaceCost  = 150
	intendedCost   = 1200 // including a finding
	interfaceCost  = 120
	linkCost       = 60
	KernelCost     = 280
	WireCost       = 560
	rivalCost      = 9000 // additional cost of a claim that may conflict with another one
	poolCost       = 1400
	rangeCost      = 80
	allocationCost = 1800 // including a finding
	statusCost     = 6    // per byte of the message
)

// rivals reports whether the claims to an address have several hardware addresses or several
// namespaces.
func (f *Facts) rivals(a index.Address) bool {
	var first verdict.MAC
	var home ref
	some := false
	for n, c := range f.claimsTo(a) {
		one := n.claims.at(c)
		if mac := n.macAt(c); !some {
			some, first = true, mac
		} else if mac != first {
			return true
		}
		if one.wire() == 0 {
			at := refOf(n.number, n.interfaces.at(one.port).namespace)
			if home != 0 && home != at {
				return true
			}
			home = at
		}
	}
	return false
}

// rival reports whether a claim may conflict with another claim to its address, and thus takes more
// memory.
func (f *Facts) rival(n *Node, a index.Address, port uint32, key claimKey) bool {
	m := n.texts.macOf(key.mac)
	if m == "" {
		m = n.texts.macOf(n.interfaces.at(port).mac)
	}
	for other, c := range f.claimsTo(a) {
		one := other.claims.at(c)
		if other.macAt(c) != m || key.mac.form == noMAC && one.wire() == 0 &&
			(other != n || other.interfaces.at(one.port).namespace != n.interfaces.at(port).namespace) {
			return true
		}
	}
	return false
}

// claimCost returns the charge of a new claim.
func (f *Facts) claimCost(n *Node, a index.Address, port uint32, key claimKey, rec *pb.ClaimRecord) int {
	cost := KernelCost
	if key.mac.form != noMAC {
		cost = WireCost
		if name := rec.GetLink(); name != "" && n.link(name) == 0 {
			cost += linkCost + textCost(name)
		}
	}
	if f.rival(n, a, port, key) {
		cost += rivalCost
	}
	return min(cost+textCost(rec.GetNetwork()), math.MaxUint16) // limited by the size of the field
}

// changedCost returns the charge of a known claim after its network or link changed. It includes a
// new link that only this claim uses.
func changedCost(n *Node, c uint32, rec *pb.ClaimRecord) int {
	one := n.claims.at(c)
	cost := int(one.cost) + textCost(rec.GetNetwork()) - textCost(n.texts.get(one.network))
	if name := rec.GetLink(); one.wire() != 0 && name != "" && n.link(name) == 0 {
		cost += linkCost + textCost(name)
	}
	return min(cost, math.MaxUint16)
}

// textCost returns the charge of strings: their size in blocks of the allocator.
func textCost(texts ...string) (cost int) {
	for _, s := range texts {
		if s != "" {
			cost += 16 + len(s)*9/8
		}
	}
	return cost
}

func namespaceCostOf(rec *pb.NamespaceRecord) int {
	w := rec.GetWorkload()
	cost := namespaceCost + len(rec.GetIntended())*intendedCost
	for field, source := range w.GetSources() {
		cost += textCost(field, source)
	}
	return cost + textCost(rec.GetNetns(), w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId(), w.GetSource(), w.GetProcess(), w.GetVirtualMachine())
}

func interfaceCostOf(rec *pb.InterfaceRecord) int {
	return min(interfaceCost+textCost(rec.GetName(), rec.GetKind(), rec.GetLink(), rec.GetHostInterface(), rec.GetVrf()), math.MaxUint16)
}

func allocationCostOf(al *verdict.Allocation) int {
	return allocationCost + textCost(al.ContainerID, al.Interface, al.Pod, al.Namespace, al.Location, al.MAC, al.Hostname)
}

func poolCostOf(rec *pb.PoolRecord) int {
	return poolCost + (len(rec.GetRanges())+len(rec.GetGateways()))*rangeCost +
		textCost(rec.GetName(), rec.GetIpam(), rec.GetNetwork(), rec.GetProblem(), rec.GetPlugin(), rec.GetDevice(), rec.GetConfig())
}
