package audit_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// risk returns an address that a pod on a node has had since a time.
func risk(address string, n *verdict.Node, since verdict.Stamp) audit.Risk {
	ns := &verdict.Namespace{Node: n, ID: "id-" + address, Who: verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: address}.Who()}
	return audit.Risk{Address: netip.MustParseAddr(address), Owners: []verdict.Owner{{
		ID: ns.ID, Node: n, Namespace: ns, Assigned: true,
		Claims: []*verdict.Claim{{Kind: verdict.Assigned, Times: verdict.Times{AssignedAt: since}, Interface: &verdict.Interface{Namespace: ns}}},
	}}}
}

func TestLostRecords(t *testing.T) {
	n1, n2 := agent("n1", "1"), agent("n2", "1")
	ofNode := func(state ipam.State, lost verdict.Stamp) *verdict.Pool {
		return &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "/var/lib/cni/networks/kind", State: state}, Node: n1, Loss: verdict.Loss{LostAt: lost}}
	}
	ofCluster := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "pool", State: ipam.Known}}
	cilium := &verdict.Pool{Pool: ipam.Pool{IPAM: cilium.IPAM.Name, Traits: registry.Traits(cilium.IPAM.Name), Name: "n1", State: ipam.Known}}
	self := risk("10.0.0.9", n1, start)
	self.Owners[0].Namespace.Who = verdict.Workload{Kind: verdict.Host}.Who()
	onWire := risk("10.0.0.9", n1, start)
	onWire.Owners[0].Assigned = false
	outside := func(since verdict.Stamp) audit.Risk { // a network stack outside of the kernel has it
		r := risk("10.0.0.9", n1, 0)
		r.Owners[0].Assigned, r.Owners[0].Served, r.Owners[0].Claims[0].Kind, r.Owners[0].Claims[0].First = false, &verdict.Intent{}, verdict.Answered, since
		return r
	}
	other := risk("10.0.0.9", n1, start)
	other.Owners[0].Claims[0].Network = "former"
	served := risk("10.0.0.9", n1, start)
	served.Owners[0].Claims[0].Network = "kind"
	ofNetwork := func(lost verdict.Stamp) *verdict.Pool {
		p := ofNode(ipam.Missing, lost)
		p.Network = "kind"
		return p
	}
	server := func(state ipam.State, lost verdict.Stamp) *verdict.Pool {
		p := ofNode(state, lost)
		p.IPAM, p.Traits = dhcp.DnsmasqName, registry.Traits(dhcp.DnsmasqName)
		return p
	}
	one, two := risk("10.0.0.5", n1, start), risk("10.0.0.4", n1, start)
	for _, test := range []struct {
		why  string
		have audit.Given
		want bool
	}{
		{"its directory is gone", audit.Given{Pool: ofNode(ipam.Missing, 0), AtRisk: []audit.Risk{one}}, true},
		{"its directory is gone, and no address is in use", audit.Given{Pool: ofNode(ipam.Missing, 0)}, false},
		{"it has no directory, and the node itself has an address", audit.Given{Pool: ofNode(ipam.Missing, 0), AtRisk: []audit.Risk{self}}, false},
		{"it has no directory, and the node and a pod have addresses", audit.Given{Pool: ofNode(ipam.Missing, 0), AtRisk: []audit.Risk{self, one}}, true},
		{"its directory disappeared after the last pod, and the node itself has an address", audit.Given{Pool: ofNode(ipam.Missing, start), AtRisk: []audit.Risk{self}}, false},
		{"it lost its records, and the node itself has an address", audit.Given{Pool: ofNode(ipam.Known, start), AtRisk: []audit.Risk{self}}, false},
		{"it has no directory, and a pod of another network has an address", audit.Given{Pool: ofNetwork(0), AtRisk: []audit.Risk{other}}, false},
		{"it has no directory, and a pod of its network has an address", audit.Given{Pool: ofNetwork(0), AtRisk: []audit.Risk{other, served}}, true},
		{"it has no directory, and a pod of an unknown network has an address", audit.Given{Pool: ofNetwork(0), AtRisk: []audit.Risk{one}}, true},
		{"it has no directory and serves an unknown network", audit.Given{Pool: ofNode(ipam.Missing, 0), AtRisk: []audit.Risk{other}}, true},
		{"its directory disappeared, and the network may have another name in CNI results", audit.Given{Pool: ofNetwork(start), AtRisk: []audit.Risk{other}}, true},
		{"the file of a DHCP server is gone, and a node has a lease", audit.Given{Pool: server(ipam.Missing, start), AtRisk: []audit.Risk{self}}, true},
		{"a DHCP server lost its leases, and a node has one", audit.Given{Pool: server(ipam.Known, start), AtRisk: []audit.Risk{self}}, true},
		{"it lost its records while an address was in use", audit.Given{Pool: ofNode(ipam.Known, start), AtRisk: []audit.Risk{one}}, true},
		{"it lost its records long before", audit.Given{Pool: ofNode(ipam.Known, start.Add(-61*time.Second)), AtRisk: []audit.Risk{one}}, false},
		{"the address came within a minute", audit.Given{Pool: ofNode(ipam.Known, start.Add(-time.Minute)), AtRisk: []audit.Risk{one}}, true},
		{"it lost its records, another node has the address", audit.Given{Pool: ofNode(ipam.Known, start), AtRisk: []audit.Risk{risk("10.0.0.5", n2, start)}}, false},
		{"it lost its records, only frames show the address", audit.Given{Pool: ofNode(ipam.Known, start), AtRisk: []audit.Risk{onWire}}, false},
		{"it lost its records, and a pod has an address outside of its kernel", audit.Given{Pool: ofNode(ipam.Known, start), AtRisk: []audit.Risk{outside(start)}}, true},
		{"it lost its records long before a pod had an address outside of its kernel", audit.Given{Pool: ofNode(ipam.Known, start.Add(-61*time.Second)), AtRisk: []audit.Risk{outside(start)}}, false},
		{"it lost none", audit.Given{Pool: ofNode(ipam.Known, 0), AtRisk: []audit.Risk{one, two}}, false},
		{"a cluster-wide pool without records, two pods have its addresses", audit.Given{Pool: ofCluster, AtRisk: []audit.Risk{one, two}}, true},
		{"the cluster's has one", audit.Given{Pool: ofCluster, Allocated: 1, AtRisk: []audit.Risk{one, two}}, false},
		{"one pod alone has an address", audit.Given{Pool: ofCluster, AtRisk: []audit.Risk{one}}, false},
		{"a pod and a node have an address", audit.Given{Pool: ofCluster, AtRisk: []audit.Risk{one, self}}, false},
		{"a Cilium pool, whose objects are not its records", audit.Given{Pool: cilium, AtRisk: []audit.Risk{one, two}}, false},
	} {
		if got := audit.Lost(test.have); got != test.want {
			t.Errorf("%s: got lost %t, want %t", test.why, got, test.want)
		}
		found := audit.Pool(policy, test.have)
		if got := len(found) == 1 && found[0].Kind == verdict.FindingIPAMStateLost && found[0].Severity == verdict.Critical; got != test.want {
			t.Errorf("%s: got %+v, want lost %t", test.why, found, test.want)
		}
	}
	found := audit.Pool(policy, audit.Given{Pool: ofCluster, AtRisk: []audit.Risk{one, onWire, two}})
	held := found[0].Stock.AtRisk
	if len(held) != 3 || held[0].Address != two.Address || held[0].Owner.ID != two.Owners[0].ID || held[1].Address != one.Address || held[2].Owner != nil {
		t.Errorf("got %+v, want the addresses in order with their owners", held)
	}
	if !slices.Equal(audit.Addresses(&found[0]), []netip.Addr{two.Address, one.Address, onWire.Address}) {
		t.Errorf("got addresses %v", audit.Addresses(&found[0]))
	}
}

func TestFullAndUnreadablePools(t *testing.T) {
	for _, test := range []struct {
		why     string
		use     verdict.PoolUse
		state   ipam.State
		problem string
		want    []string
	}{
		{"half full", verdict.PoolUse{Size: 100, Allocated: 89}, ipam.Known, "", nil},
		{"nearly full", verdict.PoolUse{Size: 100, Allocated: 90}, ipam.Known, "", []string{verdict.FindingPoolExhaustion}},
		{"half full, exhausted soon", verdict.PoolUse{Size: 100, Allocated: 50, ExhaustedIn: 3599}, ipam.Known, "", []string{verdict.FindingPoolExhaustion}},
		{"half full, exhausted later", verdict.PoolUse{Size: 100, Allocated: 50, ExhaustedIn: 3600}, ipam.Known, "", nil},
		{"nearly empty, exhausted soon", verdict.PoolUse{Size: 100, Allocated: 49, ExhaustedIn: 60}, ipam.Known, "", nil},
		{"of unknown size", verdict.PoolUse{Allocated: 1000}, ipam.Known, "", nil},
		{"unreadable", verdict.PoolUse{}, ipam.Unreadable, "permission denied", []string{verdict.FindingIPAMUnreadable}},
		{"known, with an invalid block", verdict.PoolUse{}, ipam.Known, "a block of no node", []string{verdict.FindingIPAMUnreadable}},
		{"gone", verdict.PoolUse{}, ipam.Missing, "the IPPool is gone", nil},
		{"unreadable and full", verdict.PoolUse{Size: 1, Allocated: 1}, ipam.Stale, "x", []string{verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion}},
	} {
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "pool", State: test.state, Problem: test.problem}}
		var got []string
		for _, f := range audit.Pool(policy, audit.Given{Pool: p, Use: test.use}) {
			got = append(got, f.Kind)
			if f.Severity != verdict.Warning || f.Pool != p || f.Stock.Use != test.use || f.ID != audit.PoolID(policy, f.Kind, p) {
				t.Errorf("%s: got %+v, want a warning about the pool", test.why, f)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.why, got, test.want)
		}
	}
}

func TestTheFullerFamilyLimitsAPool(t *testing.T) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Ranges: []ipam.Range{prefix("10.0.0.0/28"), prefix("fd00::/126")}}}
	for _, test := range []struct {
		allocated audit.Tally
		want      verdict.PoolUse
	}{
		{audit.Tally{8, 1}, verdict.PoolUse{Size: 16, Allocated: 8, Leaked: 2, Family: "IPv4"}},
		{audit.Tally{8, 3}, verdict.PoolUse{Size: 4, Allocated: 3, Leaked: 1, Family: "IPv6"}},
		{audit.Tally{8, 2}, verdict.PoolUse{Size: 16, Allocated: 8, Leaked: 2, Family: "IPv4"}},
	} {
		if got := audit.Use(p, test.allocated, audit.Tally{2, 1}, new(audit.Growth), start); got != test.want {
			t.Errorf("with %v: got %+v, want %+v", test.allocated, got, test.want)
		}
	}
	p.Ranges = p.Ranges[:1]
	if got := audit.Use(p, audit.Tally{3, 0}, audit.Tally{}, new(audit.Growth), start); got != (verdict.PoolUse{Size: 16, Allocated: 3}) {
		t.Errorf("got %+v, want no family where there is one only", got)
	}
}

func TestGrowthOfAPool(t *testing.T) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Ranges: []ipam.Range{prefix("10.0.0.0/24")}}}
	var g audit.Growth
	in := func(minutes, allocated int) float64 {
		now, tally := start.Add(time.Duration(minutes)*time.Minute), audit.Tally{allocated}
		use := audit.Use(p, tally, audit.Tally{}, &g, now)
		g.See(now, tally)
		return use.ExhaustedIn
	}
	if got := in(0, 16); got != 0 {
		t.Errorf("got %v at once, want that it is not known", got)
	}
	if got := audit.Use(p, audit.Tally{76}, audit.Tally{}, &g, start.Add(59*time.Second)).ExhaustedIn; got != 0 {
		t.Errorf("got %v after less than a minute, want that it is not known", got)
	}
	if got := in(1, 76); got != 180 {
		t.Errorf("got %v at one address in a second, want 180", got)
	}
	if got := in(2, 16); got != 0 {
		t.Errorf("got %v without growth, want 0", got)
	}
	if got := in(62, 136); got != 7200 {
		t.Errorf("got %v at 60 addresses in the last hour, want 7200", got)
	}
	if got := in(63, 256); got != 0 {
		t.Errorf("got %v of a full pool, want 0", got)
	}
}

func TestTheHistoryOfAPool(t *testing.T) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Ranges: []ipam.Range{prefix("10.0.0.0/8"), prefix("fd00::/126")}}}
	var g audit.Growth
	see := func(after time.Duration, v4 int) { g.See(start.Add(after), audit.Tally{v4, 1}) }
	want := func(why string, allocated audit.Tally, want ...audit.Used) {
		t.Helper()
		if got := g.History(p, allocated); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", why, got, want)
		}
	}
	used := func(after time.Duration, n uint64) audit.Used { return audit.Used{At: start.Add(after), Allocated: n} }
	want("a new pool", audit.Tally{})
	see(0, 1)
	see(20*time.Second, 2)
	see(40*time.Second, 2)
	see(70*time.Second, 5)
	want("the end of each minute", audit.Tally{1 << 20}, used(20*time.Second, 2), used(70*time.Second, 5))
	want("the fuller family", audit.Tally{1, 3}, used(20*time.Second, 1), used(70*time.Second, 1))
	see(59*time.Minute, 6)
	see(89*time.Minute, 7)
	want("the end of each half hour before the last hour", audit.Tally{1 << 20},
		used(70*time.Second, 5), used(59*time.Minute, 6), used(89*time.Minute, 7))
	see(25*time.Hour+10*time.Minute, 8)
	want("what was used a day ago", audit.Tally{1 << 20},
		used(59*time.Minute, 6), used(89*time.Minute, 7), used(25*time.Hour+10*time.Minute, 8))
	for minute := range 50 * 60 {
		see(26*time.Hour+time.Duration(minute)*time.Minute, minute)
	}
	got := g.History(p, audit.Tally{1 << 20})
	if len(got) < 60+46 || len(got) > 60+50 {
		t.Errorf("got %d samples of a pool that changes each minute, want one for each minute of an hour and each half hour of a day", len(got))
	}
	if kept := got[len(got)-1].At.Sub(got[0].At); kept < 24*time.Hour || kept > 24*time.Hour+30*time.Minute {
		t.Errorf("got a history of %s, want a day", kept)
	}
}

func TestFamilies(t *testing.T) {
	if v4, v6 := audit.FamilyOf(netip.MustParseAddr("10.0.0.1")), audit.FamilyOf(netip.MustParseAddr("fd00::1")); v4 != audit.IPv4 || v6 != audit.IPv6 {
		t.Errorf("got families %d and %d", v4, v6)
	}
	if n := (audit.Tally{3, 2}).Of(audit.Both); n != 5 {
		t.Errorf("got %d of both, want 5", n)
	}
}

// The owner that is shown for an address at risk is the one on the node of the pool.
func TestHoldersOnThePoolsNode(t *testing.T) {
	n1, n2 := agent("n1", "1"), agent("n2", "1")
	r := risk("10.0.0.5", n2, start)
	r.Owners = append(r.Owners, risk("10.0.0.5", n1, start).Owners[0], risk("10.0.0.5", n1, start).Owners[0])
	r.Owners[2].ID = "third"
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "/x", State: ipam.Missing}, Node: n1}
	held := audit.Pool(policy, audit.Given{Pool: p, AtRisk: []audit.Risk{r}})[0].Stock.AtRisk
	if len(held) != 1 || held[0].Owner != &r.Owners[1] {
		t.Errorf("got %+v, want the first owner on n1", held)
	}
}
