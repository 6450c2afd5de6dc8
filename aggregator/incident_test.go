package aggregator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func (l *lab) incidents(q *pb.ListIncidentsRequest) []*pb.Incident {
	l.Helper()
	out, err := l.client.ListIncidents(l.ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return out.GetIncidents()
}

// members returns the numbers of conflicts and findings that the lists have of an incident.
func (l *lab) members(id string) (conflicts, findings int) {
	l.Helper()
	cs, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{Incident: id})
	if err != nil {
		l.Fatal(err)
	}
	fs, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Incident: id})
	if err != nil {
		l.Fatal(err)
	}
	return len(cs.GetConflicts()), len(fs.GetFindings())
}

// accident is a node with pods of host-local, whose directory is wiped.
type accident struct {
	subnet, node string
	pods         int
	assigned     []*pb.ReportRequest // with the times of the first report
}

func (a *accident) address(i int) string { return fmt.Sprintf("10.244.%s.%d", a.subnet, 2+i) }

// before returns the state of the node with its records.
func (a *accident) before() *pb.ReportRequest {
	m := snapshot(hello(a.node, uint64(time.Now().UnixNano())), poolOf(hostLocal("10.244."+a.subnet+".0/24", pb.Pool_KNOWN)))
	for i := range a.pods {
		name := fmt.Sprintf("%s-%d", a.node, i)
		if len(a.assigned) <= i {
			a.assigned = append(a.assigned, kindPod(uint32(2+i), name, a.address(i)))
		}
		records.Merge(m, a.assigned[i], given(allocated(a.address(i), "sandbox-"+name)))
	}
	return m
}

// wiped returns the loss of all records.
func (a *accident) wiped() *pb.ReportRequest {
	p := hostLocal("10.244."+a.subnet+".0/24", pb.Pool_MISSING)
	p.LostAt, p.Lost = timestamppb.Now(), uint32(a.pods)
	m := records.Merge(&pb.ReportRequest{}, poolOf(p))
	for i := range a.pods {
		records.Merge(m, freed(allocated(a.address(i), fmt.Sprintf("sandbox-%s-%d", a.node, i))))
	}
	return m
}

// again returns new pods that get the first addresses.
func (a *accident) again(pods int) *pb.ReportRequest {
	m := poolOf(hostLocal("10.244."+a.subnet+".0/24", pb.Pool_KNOWN))
	for i := range pods {
		name := fmt.Sprintf("late-%s-%d", a.node, i)
		records.Merge(m, kindPod(uint32(1000+i), name, a.address(i)), given(allocated(a.address(i), "sandbox-"+name)))
	}
	return m
}

// The records of two nodes are lost at the same time, and pods get addresses that are in use. Each node is one incident, from
// the first finding to the last, whose members come and go; a static duplicate on one of the nodes is another one.
func TestLostRecordsOfEachNodeAreOneIncident(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		first, second := &accident{subnet: "0", node: "n1", pods: 120}, &accident{subnet: "1", node: "n2", pods: 20}
		n1, n2 := l.dial().send(first.before()).sync(), l.dial().send(second.before()).sync()
		time.Sleep(time.Minute)
		if all := l.incidents(&pb.ListIncidentsRequest{}); len(all) > 0 {
			t.Fatalf("got %v before the accident", all)
		}
		n1.send(first.wiped()).sync()
		n2.send(second.wiped()).sync()
		time.Sleep(time.Minute)
		all := l.incidents(&pb.ListIncidentsRequest{})
		if len(all) != 2 {
			t.Fatalf("got %v, want one incident for each node", all)
		}
		one := l.incidents(&pb.ListIncidentsRequest{Node: "n1"})[0]
		if one.GetCause() != verdict.FindingIPAMStateLost || one.GetAddressCount() != 120 || one.GetFindings() != 121 || one.GetConfirmed()+one.GetSuspected() != 0 ||
			one.GetSeverity() != pb.Finding_CRITICAL || one.GetPool().GetName() != dir || len(one.GetAddresses()) != 16 || one.GetAddresses()[1] != "10.244.0.3" {
			t.Errorf("got %v, want the lost records of all 120 addresses", one)
		}
		id, since := one.GetId(), one.GetDetectedAt()

		time.Sleep(3 * time.Hour) // a later duplicate belongs to the same accident
		n1.send(first.again(37)).sync()
		time.Sleep(time.Minute)
		one = l.incidents(&pb.ListIncidentsRequest{Node: "n1"})[0]
		if n := one.GetConfirmed() + one.GetSuspected(); one.GetId() != id || n != 37 || one.GetAddressCount() != 120 || !one.GetDetectedAt().AsTime().Equal(since.AsTime()) {
			t.Errorf("got %v, want the same incident with 37 duplicates of 120 addresses", one)
		}
		if conflicts, findings := l.members(id); conflicts != 37 || findings != int(one.GetFindings()) || findings < 83 {
			t.Errorf("got %d conflicts and %d findings in lists, want 37 and %d", conflicts, findings, one.GetFindings())
		}
		plan, err := l.client.GetIncident(l.ctx, &pb.GetIncidentRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		// The pods that lost their address are deleted, and there is one check at the end.
		deleted, checks := 0, 0
		for _, a := range plan.GetIncident().GetRemedy() {
			if strings.HasPrefix(a.GetCommand(), "kubectl delete pod ") {
				deleted++
			}
			if a.GetVerify() {
				checks++
			}
		}
		if last := plan.GetIncident().GetRemedy()[len(plan.GetIncident().GetRemedy())-1]; deleted != 37 || checks != 1 || !last.GetVerify() || last.GetCommand() != "ipwitness incidents "+id {
			t.Errorf("got %d pods to delete and %d checks, want 37 and one at the end: %v", deleted, checks, plan.GetIncident().GetRemedy())
		}

		// A third pod and a fourth one share an address by hand.
		n1.send(records.Merge(podVeth(2000, "x", "192.0.2.7"), podVeth(2001, "y", "192.0.2.7"))).sync()
		n1.send(records.Merge(podVeth(2002, "v", "192.0.2.8"), podVeth(2003, "w", "192.0.2.8"))).sync()
		time.Sleep(time.Minute)
		if all := l.incidents(&pb.ListIncidentsRequest{Node: "n1"}); len(all) != 3 {
			t.Errorf("got %v, want two more: unrelated duplicates are no part of an accident, nor of each other", all)
		}
		for _, one := range l.incidents(&pb.ListIncidentsRequest{Node: "n1"}) {
			if one.GetId() != id && (one.GetConflict() == "" || one.GetAddressCount() != 1 || one.GetSummary() == "") {
				t.Errorf("got %v, want the only member", one)
			}
		}

		// All end.
		m := &pb.ReportRequest{}
		for i := range uint32(120) {
			m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: 2 + i, Gone: true})
		}
		m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: 2001, Gone: true}, &pb.NamespaceRecord{Id: 2003, Gone: true})
		n1.send(m).sync()
		time.Sleep(time.Minute)
		if all := l.incidents(&pb.ListIncidentsRequest{Node: "n1"}); len(all) != 0 {
			t.Errorf("got %v after the end", all)
		}
		if _, err := l.client.GetIncident(l.ctx, &pb.GetIncidentRequest{Id: id}); status.Code(err) != codes.NotFound {
			t.Errorf("got %v of an incident that is over", err)
		}
	})
}

// An incident keeps its ID over a restart, before and after its members are judged again, and the past has it.
func TestAnIncidentKeepsItsIDOverARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Alone: true}
	l := newLab(t, cfg)
	of := &accident{subnet: "0", node: "n1", pods: 6}
	n1 := l.dial().send(of.before()).sync()
	n1.send(of.wiped()).sync()
	late := of.again(3)
	n1.send(late).sync()
	var before []*pb.Incident
	wait.Until(t, "the incident", func() bool {
		before = l.incidents(&pb.ListIncidentsRequest{})
		return len(before) == 1 && before[0].GetSuspected()+before[0].GetConfirmed() == 3 && before[0].GetAddressCount() == 6
	})
	l.settled()
	wait.Until(t, "the incident in the journal", func() bool {
		out, err := l.client.ListIncidents(l.ctx, &pb.ListIncidentsRequest{At: timestamppb.Now()})
		return err == nil && len(out.GetIncidents()) == 1 && out.GetIncidents()[0].GetAddressCount() == 6 && out.GetIncidents()[0].GetId() == before[0].GetId()
	})
	l.stop()

	l = newLab(t, cfg)
	ids := map[string]bool{}
	check := func() []*pb.Incident {
		all := l.incidents(&pb.ListIncidentsRequest{})
		for _, one := range all {
			ids[one.GetId()] = true
		}
		return all
	}
	wait.Until(t, "the journal to be read", func() bool { return len(check()) > 0 })
	again := records.Merge(snapshot(hello("n1", 9), poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN))), of.assigned...)
	again = records.Merge(again, &pb.ReportRequest{
		Namespaces: late.GetNamespaces(), Interfaces: late.GetInterfaces(), Links: late.GetLinks(), Claims: late.GetClaims(), Allocations: late.GetAllocations(),
	})
	l.dial().send(again).sync()
	wait.Until(t, "the members to be judged again", func() bool {
		all := check()
		_, awaited := l.told()
		return len(awaited) == 0 && len(all) == 1 && all[0].GetSuspected()+all[0].GetConfirmed() == 3
	})
	time.Sleep(2 * time.Second)
	check()
	if len(ids) != 1 || !ids[before[0].GetId()] {
		t.Errorf("got the ids %v, want %s only", ids, before[0].GetId())
	}
	// A finding that has become a conflict may have been the first member.
	if all := check(); len(all) != 1 || all[0].GetDetectedAt().AsTime().Sub(before[0].GetDetectedAt().AsTime()).Abs() > time.Second {
		t.Errorf("got %v, want it since %v", all, before[0].GetDetectedAt())
	}
}

// A watch sends the incidents, then their changes and ends.
func TestIncidentsAreWatched(t *testing.T) {
	l := newLab(t, Config{Alone: true})
	of := &accident{subnet: "0", node: "n1", pods: 3}
	n1 := l.dial().send(of.before()).sync()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	stream, err := l.client.WatchIncidents(ctx, &pb.WatchIncidentsRequest{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, is func(*pb.WatchIncidentsResponse) bool) {
		t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if is(m) {
				return
			}
		}
	}
	await("the present", func(m *pb.WatchIncidentsResponse) bool {
		return m.GetType() == pb.Watch_BOOKMARK && m.GetCoverage() != nil
	})
	n1.send(of.wiped()).sync()
	id := ""
	await("the accident", func(m *pb.WatchIncidentsResponse) bool {
		id = m.GetIncident().GetId()
		return m.GetType() == pb.Watch_ADDED && m.GetIncident().GetCause() == verdict.FindingIPAMStateLost
	})
	n1.send(of.again(1)).sync()
	await("the duplicate", func(m *pb.WatchIncidentsResponse) bool {
		return m.GetType() == pb.Watch_UPDATED && m.GetIncident().GetId() == id && m.GetIncident().GetSuspected() == 1
	})
	n1.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}, {Id: 3, Gone: true}, {Id: 4, Gone: true}}}).sync()
	await("the end", func(m *pb.WatchIncidentsResponse) bool {
		return m.GetType() == pb.Watch_REMOVED && m.GetIncident().GetId() == id
	})
	if other, err := l.client.WatchIncidents(ctx, &pb.WatchIncidentsRequest{Cause: "nonsense"}); err == nil {
		if _, err = other.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v of an unknown cause", err)
		}
	}
}
