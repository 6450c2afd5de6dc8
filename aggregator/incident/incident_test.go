package incident

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var (
	n1, n2, n3 = &verdict.Node{Name: "n1"}, &verdict.Node{Name: "n2"}, &verdict.Node{Name: "n3"}
	one, two   = &verdict.Pool{Pool: ipam.Pool{IPAM: "host-local", Name: "/pods"}, Node: n1}, &verdict.Pool{Pool: ipam.Pool{IPAM: "host-local", Name: "/pods"}, Node: n2}
	wide       = &verdict.Pool{Pool: ipam.Pool{IPAM: "calico", Name: "default"}}
)

func owner(n *verdict.Node, id string) verdict.Owner {
	return verdict.Owner{ID: id, Node: n, Namespace: &verdict.Namespace{ID: id, Node: n}, Claims: []*verdict.Claim{{}}}
}

func conflict(cause string, change func(*verdict.Conflict)) *verdict.Conflict {
	c := &verdict.Conflict{Address: netip.MustParseAddr("10.0.0.7"), Owners: []verdict.Owner{owner(n1, "a"), owner(n2, "b")}}
	c.ID, c.Cause = "id", cause
	if change != nil {
		change(c)
	}
	return c
}

func finding(kind string, change func(*verdict.Finding)) *verdict.Finding {
	f := &verdict.Finding{ID: "f", Kind: kind, Owners: []verdict.Owner{owner(n1, "a")}}
	if change != nil {
		change(f)
	}
	return f
}

// Members of one accident have one incident, and those of two have two.
func TestWhatBelongsTogether(t *testing.T) {
	from := func(pools ...*verdict.Pool) func(*verdict.Conflict) {
		return func(c *verdict.Conflict) { c.From = pools }
	}
	of := func(p *verdict.Pool) func(*verdict.Finding) { return func(f *verdict.Finding) { f.Pool = p } }
	wrong := func(n *verdict.Node, id string) func(*verdict.Conflict) {
		return func(c *verdict.Conflict) {
			c.Owners, c.Wrong = []verdict.Owner{owner(n3, "right"), owner(n, id)}, []string{id}
		}
	}
	lost := finding(verdict.FindingInUseUnallocated, func(f *verdict.Finding) {
		f.Pool, f.Past = one, []verdict.Past{{Owner: "a", Kind: f.Kind, Allocation: &verdict.Allocation{Pool: one}}}
	})
	r := ipam.RangeOf(netip.MustParsePrefix("10.0.0.0/24"))
	ranges := func(nodes ...*verdict.Node) func(*verdict.Conflict) {
		return func(c *verdict.Conflict) {
			for _, n := range nodes {
				c.Networks = append(c.Networks, verdict.Origin{Node: n.Key(), Ranges: verdict.Ranges{List: []ipam.Range{r}}})
			}
		}
	}
	overlap := func(a, b string) *verdict.Finding {
		return finding(verdict.FindingPodCIDROverlap, func(f *verdict.Finding) {
			f.Overlap = &verdict.Overlap{Range: r, Sides: [2]verdict.Side{{Node: a}, {Node: b}}}
		})
	}
	for _, test := range []struct {
		what string
		same bool
		a, b any
	}{
		{"a duplicate and the lost records", true, conflict(verdict.CauseIPAMStateLost, from(one)), finding(verdict.FindingIPAMStateLost, of(one))},
		{"an address whose record vanished and the lost records", true, lost, finding(verdict.FindingIPAMStateLost, of(one))},
		{"an address without a record and lost records", false, finding(verdict.FindingInUseUnallocated, of(one)), finding(verdict.FindingIPAMStateLost, of(one))},
		{"lost records of two nodes", false, conflict(verdict.CauseIPAMStateLost, from(one)), conflict(verdict.CauseIPAMStateLost, from(two))},
		{"lost and doubled records of one pool", false, conflict(verdict.CauseIPAMStateLost, from(one)), conflict(verdict.CauseIPAMAllocatedTwice, from(one))},
		{"pools in another order", true, conflict(verdict.CauseIPAMAllocatedTwice, from(one, wide)), conflict(verdict.CauseIPAMAllocatedTwice, from(wide, one))},
		{"records of one node under another name", true, conflict(verdict.CauseIPAMBookedElsewhere, func(c *verdict.Conflict) { c.From, c.Wrong = []*verdict.Pool{wide}, []string{"a"} }), finding(verdict.FindingBookedElsewhere, of(wide))},
		{"records of two nodes under another name", false, conflict(verdict.CauseIPAMBookedElsewhere, func(c *verdict.Conflict) { c.From, c.Wrong = []*verdict.Pool{wide}, []string{"b"} }), finding(verdict.FindingBookedElsewhere, of(wide))},
		{"a duplicate and its overlap", true, conflict(verdict.CausePodCIDROverlap, ranges(n1, n2)), overlap("n1", "n2")},
		{"overlaps of one range within two nodes", false, conflict(verdict.CauseOverlappingNetworks, ranges(n1, n1)), conflict(verdict.CauseOverlappingNetworks, ranges(n2, n2))},
		{"orphans of one node", true, conflict(verdict.CauseOrphanedSandbox, wrong(n1, "x")), finding(verdict.FindingOrphanedSandbox, nil)},
		{"orphans of two nodes", false, conflict(verdict.CauseOrphanedSandbox, wrong(n2, "x")), finding(verdict.FindingOrphanedSandbox, nil)},
		{"two addresses of one static owner", true, conflict(verdict.CauseStaticAddress, wrong(n1, "x")), conflict(verdict.CauseStaticAddress, func(c *verdict.Conflict) { wrong(n1, "x")(c); c.Address = c.Address.Next() })},
		{"two static owners of one node", false, conflict(verdict.CauseStaticAddress, wrong(n1, "x")), conflict(verdict.CauseStaticAddress, wrong(n1, "y"))},
		{"two addresses of two machines", true, conflict(verdict.CauseUnknown, nil), conflict("", func(c *verdict.Conflict) {
			c.Address, c.Owners = c.Address.Next(), []verdict.Owner{c.Owners[1], c.Owners[0]}
		})},
		{"a third owner", true, conflict(verdict.CauseUnknown, nil), conflict(verdict.CauseUnknown, func(c *verdict.Conflict) {
			c.Owners, c.Order = append([]verdict.Owner{owner(n3, "c")}, c.Owners...), []uint32{1, 2, 0}
		})},
		{"unrelated duplicates of one node", false, conflict(verdict.CauseUnknown, nil), conflict(verdict.CauseUnknown, func(c *verdict.Conflict) { c.Owners = []verdict.Owner{owner(n1, "c"), owner(n2, "d")} })},
		{"other findings", false, finding(verdict.FindingStaleBelief, nil), finding(verdict.FindingStaleBelief, func(f *verdict.Finding) { f.ID = "other" })},
	} {
		id := func(member any, cluster string) string {
			if c, is := member.(*verdict.Conflict); is {
				return OfConflict(cluster, c)
			}
			return OfFinding(cluster, member.(*verdict.Finding))
		}
		if same := id(test.a, "x") == id(test.b, "x"); same != test.same {
			t.Errorf("%s: got one incident: %t, want %t", test.what, same, test.same)
		}
		if id(test.a, "x") == id(test.a, "y") {
			t.Errorf("%s: got the same id in two clusters", test.what)
		}
	}
}

// Each cause and each kind has a headline.
func TestEachCauseHasAHeadline(t *testing.T) {
	for _, cause := range append(verdict.Causes(), verdict.FindingKinds()...) {
		if got := explain.Incident(cause, []string{"n1"}, 2, 0, 0); !strings.HasSuffix(got, " on n1: 2 addresses.") || len(got) < 25 {
			t.Errorf("%s: got %q", cause, got)
		}
	}
}

// An index counts each member once, whatever changes.
func TestMembersComeAndGo(t *testing.T) {
	x := NewIndex()
	at := func(s int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: s} }
	c := &pb.Conflict{Id: "c", Incident: "i", Address: "10.0.0.1", State: pb.Conflict_SUSPECTED, Cause: "unknown", Summary: "one", DetectedAt: at(20), Owners: []*pb.Owner{{Node: "n1"}, {Node: "n2"}}}
	if was := x.PutConflict(c, ""); was != "" {
		t.Errorf("got %q before it was put", was)
	}
	if got := x.Get("i"); got.GetConflict() != "c" || got.GetSummary() != "one" || got.GetSeverity() != pb.Finding_WARNING || got.GetSuspected() != 1 || len(got.GetNodes()) != 2 {
		t.Errorf("got %v, want the conflict", got)
	}
	x.PutFinding(&pb.Finding{
		Id: "f", Incident: "i", Kind: verdict.FindingIPAMStateLost, Severity: pb.Finding_CRITICAL, Addresses: []string{"10.0.0.1", "10.0.0.3"}, DetectedAt: at(10),
		Pool: &pb.Pool{Name: "p"},
	}, "")
	if got := x.Get("i"); got.GetConflict() != "" || got.GetCause() != verdict.FindingIPAMStateLost || got.GetAddressCount() != 2 || got.GetFindings() != 1 ||
		got.GetDetectedAt().GetSeconds() != 10 || got.GetSeverity() != pb.Finding_CRITICAL || got.GetPool().GetName() != "p" {
		t.Errorf("got %v, want both", got)
	}
	if got := x.Count(); len(got) != 1 || got[pb.Finding_CRITICAL] != 1 || x.Of("c") != "i" || x.Of("i") != "" {
		t.Errorf("got %v, want one critical incident", got)
	}
	c.State, c.Acknowledgement = pb.Conflict_CONFIRMED, &pb.Acknowledgement{}
	if was := x.PutConflict(c, ""); was != "i" {
		t.Errorf("got %q, want i", was)
	}
	if was := x.End("f"); was != "i" || x.End("f") != "" {
		t.Errorf("got %q, want i, once", was)
	}
	if got := x.Get("i"); got.GetSeverity() != pb.Finding_INFO || got.GetConfirmed() != 0 || got.GetSuspected() != 0 || got.GetAcknowledged() != 1 || got.GetAddressCount() != 1 || got.GetDetectedAt().GetSeconds() != 10 {
		t.Errorf("got %v, want the acknowledged conflict, since the first member", got)
	}
	c.Incident = "j" // its cause became known
	if was := x.PutConflict(c, ""); was != "i" || x.Get("i") != nil || x.Get("j") == nil {
		t.Errorf("got %q, want that it moves", was)
	}
	c.State = pb.Conflict_RESOLVED
	if was := x.PutConflict(c, ""); was != "j" || len(x.incidents) != 0 || len(x.members) != 0 {
		t.Errorf("got %q and %d incidents, want none", was, len(x.incidents))
	}
	if x.PutConflict(&pb.Conflict{Id: "old", State: pb.Conflict_SUSPECTED}, ""); x.Get("old") == nil {
		t.Error("a member from an earlier version is no incident")
	}
}

// Ten thousand members are one incident.
func TestTenThousandMembers(t *testing.T) {
	x := many()
	if one := x.Get("i"); one.GetAddressCount() != 10_000 || one.GetConfirmed() != 10_000 || len(one.GetAddresses()) != mostAddresses || len(x.Members("i")) != 10_000 {
		t.Errorf("got %v", one)
	}
}

func many() *Index {
	x := NewIndex()
	for i := range 10_000 {
		put(x, i)
	}
	return x
}

func put(x *Index, i int) {
	x.PutConflict(&pb.Conflict{
		Id: strconv.Itoa(i), Incident: "i", Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String(), State: pb.Conflict_CONFIRMED,
		Owners: []*pb.Owner{{Node: "n1"}, {Node: "n2"}},
	}, "")
}

// BenchmarkChange changes one of ten thousand members: 5 µs.
func BenchmarkChange(b *testing.B) {
	x := many()
	for i := 0; b.Loop(); i++ {
		put(x, i%10_000)
	}
}

// BenchmarkList makes the message of an incident with ten thousand members: 10 ms.
func BenchmarkList(b *testing.B) {
	x := many()
	for b.Loop() {
		x.Get("i")
	}
}
