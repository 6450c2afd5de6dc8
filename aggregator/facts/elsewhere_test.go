package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// replicas are two replicas that share the addresses, and one that has all.
type replicas struct {
	*testing.T
	whole  *Facts
	shares [2]*Facts
	peers  map[string]*replicaPeers
}

// replicaPeers are the streams of one node.
type replicaPeers struct {
	streams []*quiet
	nodes   []*Node
}

func newReplicas(t *testing.T) *replicas {
	r := &replicas{T: t, peers: make(map[string]*replicaPeers)}
	r.whole, _ = newFacts(t)
	for i := range r.shares {
		r.shares[i] = newShared(t)
		var set PartitionSet
		for p := range set {
			set[p] = p%2 == i
		}
		r.shares[i].Serve(set)
	}
	return r
}

func (r *replicas) all() []*Facts { return []*Facts{r.whole, r.shares[0], r.shares[1]} }

// of returns the replica that serves an address.
func (r *replicas) of(addr string) *Facts { return r.shares[addressOf(addr).Partition()%2] }

// joins has a node report a snapshot, and report has it report a change. Each replica gets what an agent
// sends to it.
func (r *replicas) joins(name string, messages ...*pb.ReportRequest) {
	r.Helper()
	messages = append([]*pb.ReportRequest{{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}}, messages...)
	to := &replicaPeers{}
	r.peers[name] = to
	for _, f := range r.all() {
		p, n := connectNode(r.T, f, name)
		to.streams, to.nodes = append(to.streams, p), append(to.nodes, n)
		var its []*pb.ReportRequest
		for _, m := range messages {
			its = append(its, byRevision(2, proto.CloneOf(m)))
		}
		snapshotOf(r.T, f, p, n, its...)
	}
}

func (r *replicas) report(name string, m *pb.ReportRequest) {
	r.Helper()
	to := r.peers[name]
	for i, f := range r.all() {
		deltaOf(r.T, f, to.streams[i], to.nodes[i], byRevision(2, proto.CloneOf(m)))
	}
}

// tell passes on what the replicas tell each other.
func (r *replicas) tell() {
	for i, f := range r.shares {
		other := r.shares[1-i]
		l := f.Listener.(*ignoring)
		other.Sighted(l.sighted)
		l.sighted = nil
		other.Answered(fmt.Sprint(i), f.TakeAnswers(), false)
	}
}

// describe returns what a case says of links, and of hosts that answer.
func (f *Facts) describe(addr string) string {
	f.RLock()
	defer f.RUnlock()
	c := f.Builder().Case(addressOf(addr), true)
	var all []string
	for _, one := range c.Claims {
		text := one.Node().Name + " " + one.Interface.Name
		if l := one.Link; l != nil && l.Domain != nil {
			text += " domain " + l.Domain.Node.Name + "/" + l.Domain.Name
			if l.Proven != nil {
				text += " proven"
			}
		}
		all = append(all, text)
	}
	slices.Sort(all)
	for _, a := range c.Answers {
		if a.Owners >= verdict.SeveralOwned { // then the number of addresses does not matter
			all = append(all, fmt.Sprintf("%s answers for addresses of several owners", a.MAC))
			continue
		}
		all = append(all, fmt.Sprintf("%s answers for %d of %d owners", a.MAC, min(a.Addresses, verdict.ManyAnswers), a.Owners))
	}
	return fmt.Sprint(all)
}

// wantLikeWhole checks that each replica knows the same of its addresses as one that has all.
func (r *replicas) wantLikeWhole(why string, addresses ...string) {
	r.Helper()
	for _, addr := range addresses {
		if got, want := r.of(addr).describe(addr), r.whole.describe(addr); got != want {
			r.Errorf("%s: %s: got\n\t%s, want\n\t%s", why, addr, got, want)
		}
	}
}

func TestReplicasTellEachOtherWhichLinksAreOne(t *testing.T) {
	r := newReplicas(t)
	inOther := inOne
	for i := 2; r.of(inOther) == r.of(inOne); i++ {
		inOther = fmt.Sprintf("10.0.0.%d", i)
	}
	r.joins("n1", lan(1), onLAN(2, inOne))
	r.joins("n2", lan(2), onLAN(3, inOther))
	r.report("n2", seen(inOne, records.MAC(2), 1))
	if got, want := r.of(inOther).describe(inOther), r.whole.describe(inOther); got != want { // its claim names no link itself
		t.Errorf("got %s, want %s", got, want)
	}
	r.report("n1", seen(inOther, records.MAC(3), 1))
	if r.of(inOther).describe(inOther) == r.whole.describe(inOther) {
		t.Error("a replica knows of a proof that it has not been told")
	}
	r.tell()
	r.wantLikeWhole("both ways", inOne, inOther)
	r.of(inOne).judgeAll()
	r.report("n1", &pb.ReportRequest{Links: []*pb.LinkRecord{{Name: "eth0", Gone: true}}})
	r.tell()
	r.wantLikeWhole("a link is gone", inOne, inOther)
}

func TestReplicasTellEachOtherForHowManyAddressesAHostAnswers(t *testing.T) {
	r := newReplicas(t)
	mac := []byte{2, 0, 0, 0, 0, 99}
	answered := func(addr string, gone bool) *pb.ReportRequest {
		return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
			Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANSWERED, Namespace: 1, Index: 9, Mac: mac, Link: "eth0", Count: 1, Gone: gone,
		}}}
	}
	r.joins("n1", lan(1), pod(2, "10.0.1.1"), pod(3, "10.0.1.2"))
	var some []string
	for i := range verdict.ManyAnswers {
		some = append(some, fmt.Sprintf("10.0.0.%d", i+1))
		r.report("n1", answered(some[i], false))
		r.tell()
		r.wantLikeWhole(fmt.Sprint("it answers for ", i+1), some...)
	}
	for _, f := range r.shares {
		f.judgeAll()
	}
	r.report("n1", answered(some[0], true))
	r.tell()
	if got := r.shares[1-addressOf(some[0]).Partition()%2].judgeAll(); len(got) == 0 {
		t.Error("nothing is judged by the replica that was told of one address less")
	}
	some = some[1:]
	r.wantLikeWhole("one less", some...)
	for _, owned := range []string{"10.0.1.1", "10.0.1.2"} { // of two owners
		r.report("n1", answered(owned, false))
		some = append(some, owned)
		r.tell()
		r.wantLikeWhole("it answers for a pod", some...)
	}
	// A replica that joins is told everything.
	joins := newShared(t)
	for i, f := range r.shares {
		joins.Answered(fmt.Sprint(i), f.AllAnswers(), true)
	}
	if len(joins.told) != 1 {
		t.Errorf("got %d hosts, want the one", len(joins.told))
	}
	for i := range r.shares {
		joins.Answered(fmt.Sprint(i), nil, true)
	}
	if len(joins.told) != 0 {
		t.Errorf("got %d hosts, want none", len(joins.told))
	}
	for _, addr := range some {
		r.report("n1", answered(addr, true))
	}
	r.tell()
	for _, f := range r.shares {
		if len(f.told)+len(f.own) != 0 {
			t.Errorf("got %v and %v, want nothing", f.told, f.own)
		}
	}
	// A host that answers for its own address is of no interest to others.
	r.report("n1", &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
		Address: netip.MustParseAddr("10.0.1.1").AsSlice(), Kind: pb.Evidence_ANSWERED, Namespace: 1, Index: 102, Mac: records.MAC(2), Link: "veth2", Count: 1,
	}}})
	for _, f := range r.shares {
		if got := f.TakeAnswers(); len(got) != 0 {
			t.Errorf("got %v, want nothing", got)
		}
	}
}
