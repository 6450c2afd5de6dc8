package aggregator

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

const addr = "10.244.0.5"

func TestADuplicateIsSuspectedCheckedConfirmedAndResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		if got := l.conflicts(); len(got) != 0 {
			t.Fatalf("got %v, want no conflict", got)
		}
		a.send(podVeth(3, "b", addr)).sync()
		c := l.conflict(pb.Conflict_SUSPECTED)
		if c.GetScope().GetName() != "n1" || len(c.GetOwners()) != 2 || c.GetCause() != "unknown" || len(c.GetRemedy()) == 0 {
			t.Errorf("got %v, want both pods on node n1, and a remedy", c)
		}

		began := time.Now()
		check := a.check()
		if waited := time.Since(began); waited != time.Second || len(check.GetAddresses()) != 1 {
			t.Fatalf("got a check of %d addresses after %s, want 1 after 1s", len(check.GetAddresses()), waited)
		}
		if !a.contests[addr] {
			t.Error("got no contest of the address")
		}
		again := a.check()
		if waited := time.Since(began); waited != 2*time.Second {
			t.Errorf("got the next check after %s, want 2s", waited)
		}
		a.send(&pb.ReportRequest{Checked: []uint64{again.GetId()}}).sync()
		if c := l.conflict(pb.Conflict_CONFIRMED); c.GetConfirmedAt().AsTime().Sub(c.GetDetectedAt().AsTime()) != 2*time.Second {
			t.Errorf("got confirmed at %s, want with the answer", c.GetConfirmedAt().AsTime())
		}

		a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}}).sync()
		c = l.conflict(pb.Conflict_RESOLVED)
		if c.GetOwners()[0].GetState() != pb.Owner_GONE || c.GetOwners()[1].GetState() != pb.Owner_LIVE {
			t.Errorf("got %v, want the older one GONE and the other one LIVE", c.GetOwners())
		}
		for a.contests[addr] {
			a.take()
		}
		if n := l.metric("ipwitness_detection_seconds", ""); n != 1 {
			t.Errorf("got %v detections measured, want 1", n)
		}
	})
}

func TestAnotherEpisodeHasTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		first := l.conflict(pb.Conflict_SUSPECTED)
		a.send(gone(assigned(3, addr))).sync()
		l.conflict(pb.Conflict_RESOLVED)
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(3, addr)}}).sync()
		second := l.conflict(pb.Conflict_SUSPECTED)
		if first.GetId() != second.GetId() || second.GetEpisode() != 2 {
			t.Errorf("got %s episode %d, want %s episode 2", second.GetId(), second.GetEpisode(), first.GetId())
		}
		got, err := l.client.GetConflict(l.ctx, &pb.GetConflictRequest{Id: first.GetId()})
		if err != nil || got.GetConflict().GetEpisode() != 2 {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestNothingChangesWhenAnAgentReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		table := func(epoch uint64) *pb.ReportRequest {
			return snapshot(hello("n1", epoch), podVeth(2, "a", addr), podVeth(3, "b", addr), podVeth(4, "c", "10.244.0.6"))
		}
		old := l.dial().send(table(1)).sync()
		w := l.watchOwners(&pb.WatchOwnersRequest{})
		w.until(pb.Watch_BOOKMARK)
		before := l.conflict(pb.Conflict_SUSPECTED)

		// The stream is half open and is replaced, first by the same agent and then by a newer one.
		for _, epoch := range []uint64{1, 2} {
			next := l.dial().send(table(epoch)).sync()
			if err := old.ended(); status.Code(err) != codes.Aborted {
				t.Fatalf("got %v, want ABORTED", err)
			}
			old = next
		}
		// The agent disconnects, and returns with the same table.
		old.cancel()
		synctest.Wait()
		if o := l.owners(&pb.ListOwnersRequest{Address: addr}); o[0].GetState() != pb.Owner_DISCONNECTED {
			t.Errorf("got state %s, want DISCONNECTED", o[0].GetState())
		}
		a := l.dial().send(table(2)).sync()
		if !slices.ContainsFunc([]bool{a.contests[addr]}, func(b bool) bool { return b }) {
			t.Error("got no contest of the address after reconnecting")
		}
		after := l.conflict(pb.Conflict_SUSPECTED)
		if before.GetId() != after.GetId() || after.GetEpisode() != 1 || !before.GetDetectedAt().AsTime().Equal(after.GetDetectedAt().AsTime()) {
			t.Errorf("got %v, want the same as before: %v", after, before)
		}
		a.send(podVeth(5, "last", "10.244.0.7")).sync()
		for _, m := range w.until(pb.Watch_ADDED) {
			switch m.GetType() {
			case pb.Watch_REMOVED:
				t.Errorf("got %v, want nothing removed", m)
			case pb.Watch_ADDED:
				if m.GetOwner().GetWorkload().GetName() != "last" {
					t.Errorf("got %v, want nothing added", m)
				}
			}
		}
	})
}

func TestASnapshotReplacesWhatWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", "10.244.0.6"))).sync()
		// The address moves from one pod to the other, and is never held by both.
		m := snapshot(nil, podVeth(3, "b", addr))
		rest := &pb.ReportRequest{SnapshotEnd: true, Claims: m.Claims}
		m.SnapshotEnd, m.Claims = false, nil
		a.send(m).send(rest).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetWorkload().GetName() != "b" {
			t.Errorf("got %v, want b alone", got)
		}
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want no conflict", got)
		}
		a.send(podVeth(2, "a", addr)).sync() // now both have it
		l.conflict(pb.Conflict_SUSPECTED)
	})
}

func TestGapTriggersAResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		a.sequence++ // one message is lost
		a.send(podVeth(3, "b", addr)).send(podVeth(4, "c", addr))
		for a.resyncs == 0 {
			a.take()
		}
		synctest.Wait()
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want nothing taken before the snapshot", got)
		}
		a.send(snapshot(nil, podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		l.conflict(pb.Conflict_SUSPECTED)
		if a.resyncs != 1 {
			t.Errorf("got %d resyncs, want 1", a.resyncs)
		}
	})
}

func TestDuplicatedAndReorderedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		a.send(podVeth(3, "b", "10.244.0.6")).send(gone(assigned(3, "10.244.0.6"))).sync()
		a.sequence -= 2
		a.send(podVeth(3, "b", "10.244.0.6")) // sent again: it was processed before
		a.sequence++
		a.send(podVeth(4, "c", "10.244.0.7")).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 2 {
			t.Errorf("got %v, want a and c", got)
		}
	})
}

func TestWorkloadIsGivenAsItWasReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		m := podVeth(2, "a", "10.244.0.7")
		m.Namespaces[0].Workload = &pb.Workload{
			Kind: pb.Workload_POD, Namespace: "shop", Name: "web-0", Uid: "u-1", ContainerId: "c-1", Source: "cni-result", Process: "pause (12)",
		}
		a := l.dial().send(snapshot(hello("n1", 1), m)).sync()
		want := m.GetNamespaces()[0].GetWorkload()
		if got := l.owners(&pb.ListOwnersRequest{})[0].GetWorkload(); !proto.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		want.Process = "pause (13)"
		a.send(&pb.ReportRequest{Namespaces: m.GetNamespaces()}).sync()
		if got := l.owners(&pb.ListOwnersRequest{})[0].GetWorkload(); !proto.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestInvalidMessagesEndTheStream(t *testing.T) {
	for name, test := range map[string]struct {
		messages []*pb.ReportRequest
		code     codes.Code
		text     string
	}{
		"no hello":      {[]*pb.ReportRequest{{SnapshotBegin: true}}, codes.InvalidArgument, "first message"},
		"no snapshot":   {[]*pb.ReportRequest{{Hello: hello("n1", 1)}}, codes.InvalidArgument, "begin a snapshot"},
		"empty hello":   {[]*pb.ReportRequest{{Hello: &pb.Hello{}, SnapshotBegin: true}}, codes.InvalidArgument, "boot_id"},
		"two hellos":    {[]*pb.ReportRequest{snapshot(hello("n1", 1)), {Hello: hello("n1", 1)}}, codes.InvalidArgument, "only the first"},
		"short address": {[]*pb.ReportRequest{snapshot(hello("n1", 1)), {Claims: []*pb.ClaimRecord{{Address: []byte{1}}}}}, codes.InvalidArgument, "ClaimRecord.address has 1 bytes"},
		"a node's name": {[]*pb.ReportRequest{snapshot(&pb.Hello{Node: "$(reboot)", BootId: "b", Netns: "4026531840", Epoch: 1})}, codes.InvalidArgument, "Hello.node"},
		"a netns":       {[]*pb.ReportRequest{snapshot(&pb.Hello{Node: "n1", BootId: "b", Netns: "x", Epoch: 1})}, codes.InvalidArgument, "Hello.netns"},
		"no link":       {[]*pb.ReportRequest{snapshot(hello("n1", 1)), {Links: []*pb.LinkRecord{{}}}}, codes.InvalidArgument, "the name of a link is empty"},
		"too many floods": {
			[]*pb.ReportRequest{snapshot(hello("n1", 1)), {Status: &pb.StatusRecord{Flooding: make([]*pb.FloodingRecord, 257)}}},
			codes.InvalidArgument, "too many flooding ports",
		},
		"a VLAN of 5000": {
			[]*pb.ReportRequest{snapshot(hello("n1", 1)), {Claims: []*pb.ClaimRecord{{Address: make([]byte, 4), Vlan: 5000}}}},
			codes.InvalidArgument, "VLAN",
		},
		"never a snapshot's end": {[]*pb.ReportRequest{{Hello: hello("n1", 1), SnapshotBegin: true}}, codes.DeadlineExceeded, "no complete snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				a := l.dial()
				for _, m := range test.messages {
					a.send(m)
				}
				if err := a.ended(); status.Code(err) != test.code || !strings.Contains(err.Error(), test.text) {
					t.Errorf("got %v, want %s with %q", err, test.code, test.text)
				}
			})
		})
	}
}

func TestRecordsThatDoNotFitAreDroppedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
		newer := assigned(2, addr)
		newer.Kind = 99
		a.send(&pb.ReportRequest{
			Claims:     []*pb.ClaimRecord{assigned(77, addr), newer, announced(2, "0.0.0.0", records.MAC(2)), announced(2, "224.0.0.1", records.MAC(2))},
			Interfaces: []*pb.InterfaceRecord{{Namespace: 77, Index: 1}, {Namespace: 2, Index: 9, Attachment: 99}},
		}).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || len(got[0].GetEvidence()) != 1 {
			t.Errorf("got %v, want a with only its assignment", got)
		}
		for record, want := range map[string]float64{"claim": 4, "interface": 2} {
			if got := l.metric("ipwitness_aggregator_dropped_records_total", record); got != want {
				t.Errorf("got %v dropped of %s, want %v", got, record, want)
			}
		}
	})
}

func TestAnOlderAgentIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		newer := l.dial().send(snapshot(hello("n1", 2), podVeth(2, "a", addr))).sync()
		older := l.dial().send(snapshot(hello("n1", 1)))
		if err := older.ended(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("got %v, want FAILED_PRECONDITION", err)
		}
		newer.send(podVeth(3, "b", "10.244.0.6")).sync()
	})
}

func TestTooManyClaimsEndOnlyTheirStream(t *testing.T) {
	l := newLab(t, Config{})
	good := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	bad := l.dial()
	m := snapshot(hello("n2", 1), podVeth(2, "a", addr))
	m.SnapshotEnd = false
	bad.send(m)
	some := &pb.ReportRequest{}
	for range 10_000 {
		some.Claims = append(some.Claims, &pb.ClaimRecord{Address: []byte{10, 0, 0, 1}, Kind: pb.Evidence_ASSIGNED})
	}
	for i := range 30 {
		some.SnapshotEnd = i == 29
		bad.send(some)
	}
	if err := bad.ended(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED", err)
	}
	good.send(podVeth(3, "b", "10.244.0.6")).sync()
}

func TestInvalidTimesAreIgnored(t *testing.T) {
	l := newLab(t, Config{})
	p := podVeth(2, "a", addr)
	c := p.GetClaims()[0]
	c.FirstSeen = &timestamppb.Timestamp{Seconds: -1, Nanos: 5}
	c.LastSeen = &timestamppb.Timestamp{Seconds: 1 << 40}
	c.AssignedAt = &timestamppb.Timestamp{Seconds: 5, Nanos: -7}
	l.dial().send(snapshot(hello("n1", 1), p, podVeth(3, "b", "10.244.0.6"))).sync()
	if o := l.owners(&pb.ListOwnersRequest{Address: "10.244.0.6"})[0]; o.GetFirstSeen() == nil || o.GetLastSeen() == nil || o.GetAssignedAt() == nil {
		t.Errorf("got %v, want valid times", o)
	}
	if o := l.owners(&pb.ListOwnersRequest{Address: addr})[0]; o.GetFirstSeen() != nil || o.GetLastSeen() != nil || o.GetAssignedAt() != nil {
		t.Errorf("got %v, want no times", o)
	}
	if code, _, body := get(t, l.serve()+"/v1/owners"); code != 200 {
		t.Errorf("got %d %s, want 200", code, body)
	}
}

func TestNumbersOfANewerAgentAreNotTakenForOlderOnes(t *testing.T) {
	l := newLab(t, Config{})
	p := podVeth(2, "a", addr)
	p.Claims[0].Kind += 256
	p.Namespaces[0].Workload.Kind += 256
	p.Claims = append(p.Claims, assigned(2, "10.244.0.6"))
	p.Links[0].Kind += 256
	more := podVeth(3, "b", "10.244.0.7")
	more.Interfaces[0].Attachment += 256
	l.dial().send(snapshot(hello("n1", 1), p, more)).sync()
	got := l.owners(&pb.ListOwnersRequest{})
	if len(got) != 1 || got[0].GetAddress() != "10.244.0.6" || got[0].GetWorkload().GetKind() != pb.Workload_UNKNOWN ||
		got[0].GetScope().GetKind() != pb.Scope_LINK {
		t.Errorf("got %v, want only 10.244.0.6, on a link of unknown kind and of an unknown workload", got)
	}
	if _, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{State: 257}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want INVALID_ARGUMENT", err)
	}
}

func TestAChangedRecordHasItsAddressesJudgedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		one, two := podVeth(2, "a", addr), podVeth(3, "b", addr)
		for i, p := range []*pb.ReportRequest{one, two} {
			p.Interfaces[0].Link, p.Interfaces[1].Link = "br"+string(rune('0'+i)), "br"+string(rune('0'+i))
		}
		bridges := func(routed bool) *pb.ReportRequest {
			return &pb.ReportRequest{Links: []*pb.LinkRecord{
				{Name: "br0", Kind: pb.LinkRecord_BRIDGE, Routed: routed}, {Name: "br1", Kind: pb.LinkRecord_BRIDGE, Routed: routed},
			}}
		}
		a := l.dial().send(snapshot(hello("n1", 1), bridges(false), one, two)).sync()
		if got := l.conflicts(); len(got) != 0 {
			t.Fatalf("got %v, want none between isolated bridges", got)
		}
		a.send(bridges(true)).sync()
		l.conflict(pb.Conflict_SUSPECTED)
		a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(3, "renamed")}}).sync()
		if c := l.conflict(pb.Conflict_SUSPECTED); !strings.Contains(c.GetSummary(), "default/renamed") {
			t.Errorf("got %q, want the new name", c.GetSummary())
		}
		a.send(bridges(false)).sync()
		l.conflict(pb.Conflict_RESOLVED)
	})
}

func TestLateMACTurnsAnExternalDeviceIntoAWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		p := podVeth(2, "a", addr)
		inside := p.Interfaces[0]
		p.Interfaces, p.Claims = p.Interfaces[1:], nil
		p.Interfaces[0].PeerNamespace = 0
		a := l.dial().send(snapshot(hello("n1", 1), p)).sync()
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{announced(2, addr, records.MAC(2))}}).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); got[0].GetWorkload().GetKind() != pb.Workload_EXTERNAL {
			t.Fatalf("got %v, want an external device", got)
		}
		a.send(&pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{inside}}).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetWorkload().GetName() != "a" {
			t.Errorf("got %v, want the pod", got)
		}
	})
}

func TestTheLoopbackAddressOfEveryNamespaceCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", "127.0.0.1"), podVeth(3, "b", "127.0.0.1"), podVeth(4, "c", addr))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 1 || got[0].GetAddress() != addr {
			t.Errorf("got %v, want only the owner of %s", got, addr)
		}
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want none", got)
		}
	})
}

// The values in package verdict equal those of the API, so that a conversion is a cast.
func TestEnumerationsEqualTheContracts(t *testing.T) {
	for name, pair := range map[string]struct {
		last protoreflect.EnumNumber
		enum protoreflect.Enum
	}{
		"Evidence":   {protoreflect.EnumNumber(verdict.WouldAnswer), pb.Evidence_WOULD_ANSWER},
		"Attachment": {protoreflect.EnumNumber(verdict.Inner), pb.InterfaceRecord_INNER},
		"LinkKind":   {protoreflect.EnumNumber(verdict.Overlay), pb.LinkRecord_OVERLAY},
		"Workload":   {protoreflect.EnumNumber(verdict.Unknown), pb.Workload_UNKNOWN},
		"Scope":      {protoreflect.EnumNumber(verdict.NetworkScope), pb.Scope_NETWORK},
		"State":      {protoreflect.EnumNumber(verdict.Gone), pb.Owner_GONE},
		"Answer":     {protoreflect.EnumNumber(verdict.ByRule), pb.ClaimRecord_RULE},
		"Filter":     {protoreflect.EnumNumber(verdict.FilterUnreadable), pb.ClaimRecord_UNREADABLE},
		"Phase":      {protoreflect.EnumNumber(verdict.Resolved), pb.Conflict_RESOLVED},
	} {
		if pair.last != pair.enum.Number() {
			t.Errorf("%s: got %d, want %d", name, pair.last, pair.enum.Number())
		}
		if n := pair.enum.Descriptor().Values().Len(); n != int(pair.last)+1 {
			t.Errorf("%s: the contract has %d values, the verdict %d", name, n, pair.last+1)
		}
	}
}
