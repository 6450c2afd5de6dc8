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
	"github.com/ipwitness/ipwitness/ipam/registry"
)

func TestNodesWithTheSameName(t *testing.T) {
	two := audit.Names(policy, "n1", []verdict.Machine{{Name: "n1@b", Boot: "b"}, {Name: "n1", Boot: "a"}})
	if two.Kind != verdict.FindingDuplicateNodeName || two.Severity != verdict.Warning || two.ID != audit.NamesID(policy, "n1") ||
		!slices.Equal(audit.Nodes(&two), []string{"n1", "n1@b"}) {
		t.Errorf("got %+v, want both in order", two)
	}
}

func TestIntendedAddresses(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")
	intended := verdict.Intent{Address: a, Source: "cri", Interface: "eth0"}
	api := verdict.Intent{Address: b, Source: audit.SourceKubernetes}
	for _, test := range []struct {
		why  string
		pod  *verdict.PodObject
		want []verdict.Intent
	}{
		{"without the API", nil, []verdict.Intent{intended}},
		{"running", &verdict.PodObject{Phase: "Running", IPs: []netip.Addr{b}}, []verdict.Intent{intended, api}},
		{"with the device of a ResourceClaim, and an address of an annotation", &verdict.PodObject{
			Phase: "Running", Memberships: []verdict.Membership{{Address: b, Interface: "net1", Device: true}, {Address: a, Interface: "net2"}},
		}, []verdict.Intent{intended, {Address: b, Source: audit.SourceKubernetes, Interface: "net1"}}},
		{"pending", &verdict.PodObject{Phase: "Pending", IPs: []netip.Addr{b}}, []verdict.Intent{intended}},
		{"in the node's network", &verdict.PodObject{Phase: "Running", HostNetwork: true, IPs: []netip.Addr{b}}, []verdict.Intent{intended}},
		{"absent", &verdict.PodObject{Absent: true}, []verdict.Intent{intended}},
		{"of a runtime class", &verdict.PodObject{Phase: "Running", RuntimeClass: true, IPs: []netip.Addr{b}}, nil},
	} {
		o := verdict.Owner{Pod: test.pod, Namespace: &verdict.Namespace{Intended: "10.0.0.5 cri eth0"}}
		if got := audit.Intended(&o); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", test.why, got, test.want)
		}
	}
	two := verdict.Owner{Namespace: &verdict.Namespace{Intended: "10.0.0.5 cri eth0\n10.0.0.6 cni-result net1"}}
	if got := audit.Intended(&two); !slices.Equal(got, []verdict.Intent{intended, {Address: b, Source: "cni-result", Interface: "net1"}}) {
		t.Errorf("got %+v, want both", got)
	}
	if got := audit.Intended(&verdict.Owner{}); got != nil {
		t.Errorf("got %+v of an external device, want none", got)
	}
}

func TestMissingAddresses(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.5")
	later := start.Add(audit.IntendedAfter)
	for _, test := range []struct {
		why    string
		source string
		pod    verdict.PodObject
		now    verdict.Stamp
		want   bool
		again  verdict.Stamp
	}{
		{"reported by its node", "cri", verdict.PodObject{}, start, true, 0},
		{"listed by the API, at once", audit.SourceKubernetes, verdict.PodObject{}, start, false, later},
		{"listed by the API, later", audit.SourceKubernetes, verdict.PodObject{}, later, true, 0},
		{"listed by the API again", audit.SourceKubernetes, verdict.PodObject{Heard: start.Add(time.Second)}, later, false, later.Add(time.Second)},
		{"it is deleted", "cri", verdict.PodObject{DeletionTimestamp: start}, later, false, 0},
		{"it is absent", "cri", verdict.PodObject{Absent: true}, later, false, 0},
		{"it has ended", "cri", verdict.PodObject{Phase: "Failed"}, later, false, 0},
		{"it runs a virtual machine", "cri", verdict.PodObject{VirtualMachine: "vm"}, later, false, 0},
	} {
		ns := &verdict.Namespace{ID: "id", Node: agent("n1", "1")}
		o := verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns, Pod: &test.pod}
		out := audit.Missing(policy, &o, []verdict.Intent{{Address: a, Source: test.source}}, start, test.now)
		if got := len(out.Findings) == 1; got != test.want || out.Again != test.again {
			t.Errorf("%s: got %+v, want one %t, again at %d", test.why, out, test.want, test.again)
		}
		if test.want && (out.Findings[0].Kind != verdict.FindingIntendedNotObserved || out.Findings[0].Source != test.source || out.Findings[0].Address != a) {
			t.Errorf("%s: got %+v", test.why, out.Findings[0])
		}
	}
}

// A subscriber is sent a finding if its contents change, and not otherwise.
func TestFindingsAreComparedForSubscribers(t *testing.T) {
	base := func() verdict.Finding {
		n := agent("n1", "1")
		r := risk("10.0.0.5", n, start)
		o := r.Owners[0]
		o.Claims[0].Interface.Name, o.Pod = "eth0", &verdict.PodObject{Name: "a", IPs: []netip.Addr{r.Address}}
		o.Interface = o.Claims[0].Interface
		p := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Traits: registry.Traits(calico.IPAM.Name), Name: "pool", State: ipam.Known}}
		return verdict.Finding{
			ID: "x", Severity: verdict.Warning, Address: r.Address, Owners: []verdict.Owner{o}, Pool: p, Source: "cri",
			Allocations: []*verdict.Allocation{{Pool: p, Allocation: ipam.Allocation{Address: r.Address, Pod: "b"}}},
			Spoof:       &verdict.Spoof{MACs: []verdict.MAC{"lacmac"}, Count: 1},
			Stock:       &verdict.Stock{Use: verdict.PoolUse{Size: 2}, AtRisk: []verdict.Held{{Address: r.Address, Owner: &r.Owners[0]}}},
			Overlap:     &verdict.Overlap{Range: prefix("10.0.0.0/24"), Sides: [2]verdict.Side{ofKubernetes("n1", "10.0.0.0/24"), ofAgent(n, "10.0.0.0/24")}, Nodes: []string{"n1"}},
			Namesakes:   &verdict.Namesakes{Name: "n1", Machines: []verdict.Machine{{Name: "n1"}}},
		}
	}
	for what, test := range map[string]struct {
		change func(f *verdict.Finding)
		same   bool
	}{
		"nothing":                         {func(*verdict.Finding) {}, true},
		"more frames":                     {func(f *verdict.Finding) { f.Spoof.Count, f.Spoof.Last = 9, start }, true},
		"the owner was seen again":        {func(f *verdict.Finding) { f.Owners[0].Claims[0].Seen, f.Owners[0].Claims[0].Last = start, start }, true},
		"since when":                      {func(f *verdict.Finding) { f.Since = start }, true},
		"since when of the API":           {func(f *verdict.Finding) { f.Owners[0].Pod.Heard = start }, true},
		"its severity":                    {func(f *verdict.Finding) { f.Severity = verdict.Critical }, false},
		"its source":                      {func(f *verdict.Finding) { f.Source = "cni-result" }, false},
		"its address":                     {func(f *verdict.Finding) { f.Address = f.Address.Next() }, false},
		"one address more":                {func(f *verdict.Finding) { f.Addresses = []netip.Addr{f.Address, f.Address.Next()} }, false},
		"a MAC":                           {func(f *verdict.Finding) { f.Spoof.MACs = append(f.Spoof.MACs, "other1") }, false},
		"no spoof":                        {func(f *verdict.Finding) { f.Spoof = nil }, false},
		"another owner":                   {func(f *verdict.Finding) { f.Owners[0].ID = "other" }, false},
		"the owner's state":               {func(f *verdict.Finding) { f.Owners[0].State = verdict.Unheard }, false},
		"the owner's pod":                 {func(f *verdict.Finding) { f.Owners[0].Pod.Phase = "Running" }, false},
		"the owner's pod's addresses":     {func(f *verdict.Finding) { f.Owners[0].Pod.IPs = nil }, false},
		"the owner's interface":           {func(f *verdict.Finding) { f.Owners[0].Interface = &verdict.Interface{Name: "net1"} }, false},
		"intended addresses of the owner": {func(f *verdict.Finding) { f.Owners[0].Namespace.Intended = "10.0.0.9 cri eth0" }, false},
		"the owner's kind of claim":       {func(f *verdict.Finding) { f.Owners[0].Claims[0].Kind = verdict.DADFailed }, false},
		"one owner more":                  {func(f *verdict.Finding) { f.Owners = append(f.Owners, f.Owners[0]) }, false},
		"another allocation":              {func(f *verdict.Finding) { f.Allocations[0].Pod = "c" }, false},
		"another pool":                    {func(f *verdict.Finding) { f.Pool.Name = "other" }, false},
		"the pool's problem":              {func(f *verdict.Finding) { f.Pool.Problem = "x" }, false},
		"the pool's problem, of an address": {func(f *verdict.Finding) {
			f.Pool.Problem = "x"
			f.Stock = nil
		}, false},
		"how full the pool is":      {func(f *verdict.Finding) { f.Stock.Use.Allocated = 1 }, false},
		"an address at risk":        {func(f *verdict.Finding) { f.Stock.AtRisk[0].Address = f.Address.Next() }, false},
		"its holder":                {func(f *verdict.Finding) { f.Stock.AtRisk[0].Owner = nil }, false},
		"its holder's name":         {func(f *verdict.Finding) { f.Stock.AtRisk[0].Owner.Namespace.Who = "" }, false},
		"the range in common":       {func(f *verdict.Finding) { f.Overlap.Range = prefix("10.0.0.0/25") }, false},
		"the first side":            {func(f *verdict.Finding) { f.Overlap.Sides[0].Source = verdict.SideAddress }, false},
		"the second side":           {func(f *verdict.Finding) { f.Overlap.Sides[1].Config = "x" }, false},
		"one node more":             {func(f *verdict.Finding) { f.Overlap.Nodes = []string{"n1", "n2"} }, false},
		"no overlap":                {func(f *verdict.Finding) { f.Overlap = nil }, false},
		"a machine's version":       {func(f *verdict.Finding) { f.Namesakes.Machines[0].Version = "2" }, false},
		"the name":                  {func(f *verdict.Finding) { f.Namesakes.Name = "n2" }, false},
		"no name":                   {func(f *verdict.Finding) { f.Namesakes = nil }, false},
		"records of the same owner": {func(f *verdict.Finding) { *f = base() }, true},
	} {
		a, b := base(), base()
		test.change(&b)
		if got := audit.Same(&a, &b); got != test.same || audit.Same(&b, &a) != test.same {
			t.Errorf("%s: got same %t, want %t", what, got, test.same)
		}
	}
	a, b := base(), base()
	a.Stock, b.Stock, b.Pool.Problem = nil, nil, "x"
	if !audit.Same(&a, &b) {
		t.Error("got a change of a finding about an address, want none: its pool has findings of its own")
	}
}
