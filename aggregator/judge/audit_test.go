package judge_test

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// pool returns a report of a host-local pool with allocations.
func pool(given ...string) *pb.ReportRequest {
	m := &pb.ReportRequest{Pools: []*pb.PoolRecord{{
		Ipam: hostlocal.Name, Name: "net0", Network: "net0", State: pb.Pool_KNOWN, Routed: true,
		Ranges: []*pb.AddressRange{{First: netip.MustParseAddr("10.0.0.1").AsSlice(), Last: netip.MustParseAddr("10.0.0.99").AsSlice()}},
	}}}
	for _, addr := range given {
		m.Allocations = append(m.Allocations, &pb.AllocationRecord{Ipam: hostlocal.Name, Pool: "net0", Address: netip.MustParseAddr(addr).AsSlice(), ContainerId: "c2"})
	}
	return m
}

// given returns a report of a pod with a sandbox and addresses from the pool.
func given(record uint32, addrs ...string) *pb.ReportRequest {
	m := pod(record, addrs...)
	w := m.Namespaces[0].Workload
	w.ContainerId, w.Source = "c"+w.Name[1:], "cni-result"
	for _, c := range m.Claims {
		c.Network = "net0"
	}
	return m
}

func TestAddressesAreComparedWithIPAM(t *testing.T) {
	const unallocated = `"in-use-unallocated"`
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		a := index.AddressOf(netip.MustParseAddr("10.0.0.1"))
		wantRemembered := func(why string, past, found int) {
			t.Helper()
			if p, f, _ := w.shards.Conflicts.Remembered(a); len(p) != past || len(f) != found {
				t.Errorf("%s: got %d past and %d findings, want %d and %d", why, len(p), len(f), past, found)
			}
		}
		n.report(given(2, "10.0.0.1"))
		w.wantHeard("a pod without a pool")
		n.report(pool("10.0.0.1"))
		w.wantHeard("a pool that has it: there is nothing to tell")
		wantRemembered("a pool that has it", 0, 0)
		lost := pool("10.0.0.1")
		lost.Pools, lost.Allocations[0].Gone = nil, true
		n.report(lost)
		w.wantHeard("its record is gone", `audited 10.0.0.1 of 1: ["in-use-unallocated?"] was [] contested false`)
		wantRemembered("its record is gone", 1, 1)
		w.after(5*time.Second - 1)
		w.wantHeard("while a pod that ends may still have it")
		w.after(1)
		w.wantHeard("after that", `audited 10.0.0.1 of 1: [`+unallocated+`] was ["in-use-unallocated?"] contested false`)
		n.report(given(3, "10.0.0.1"))
		w.wantHeard("another pod has it", "detected in 5ms", "opened 10.0.0.1 suspected episode 1 was suspected of 2", "n1: contest 10.0.0.1 true",
			`audited 10.0.0.1 of 2: [] was [`+unallocated+`] contested true`)
		wantRemembered("another pod has it", 1, 0)
	})
}

// behind returns a report of a frame that entered through the port of a pod.
func behind(record uint32, addr string, by []byte, kind pb.Evidence_Kind) *pb.ReportRequest {
	m := announced(addr, by, 1)
	c := m.Claims[0]
	c.Index, c.Link, c.Kind = 100+record, "cni0", kind
	return m
}

// bridged returns a report of a pod on a bridge.
func bridged(record uint32, addrs ...string) *pb.ReportRequest {
	m := pod(record, addrs...)
	m.Links[0].Name, m.Links[0].Kind = "cni0", pb.LinkRecord_BRIDGE
	m.Interfaces[0].Link, m.Interfaces[1].Link = "cni0", "cni0"
	return m
}

func TestSpoofsAreAuditedAndClonesPublished(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		n.report(bridged(2, "10.0.0.1"), bridged(3), behind(3, "10.0.0.1", records.MAC(3), pb.Evidence_ANSWERED))
		w.wantHeard("a pod answers for another one", `audited 10.0.0.1 of 2: ["address-spoofed?"] was [] contested false`, "spoke p3 live")
		w.after(time.Second)
		w.wantHeard("after the settle time", `audited 10.0.0.1 of 2: ["address-spoofed"] was ["address-spoofed?"] contested false`, "spoke p3 live")
		n.report(gone(behind(3, "10.0.0.1", records.MAC(3), pb.Evidence_ANSWERED)))
		w.wantHeard("it ends", `audited 10.0.0.1 of 1: [] was ["address-spoofed"] contested false`, "spoke p3 live")

		n.report(bridged(4), behind(4, "10.0.0.4", records.MAC(2), pb.Evidence_ANNOUNCED))
		w.wantHeard("a pod claims an address with the MAC of another one", "spoke p4 live")
		w.after(time.Second)
		w.wantHeard("after the settle time", "cloned 10.0.0.4 1", "spoke p4 live")
		w.facts.Touch([]index.Address{index.AddressOf(netip.MustParseAddr("10.0.0.4"))})
		w.wantHeard("it is judged again", "cloned 10.0.0.4 1", "spoke p4 live")
		n.report(gone(behind(4, "10.0.0.4", records.MAC(2), pb.Evidence_ANNOUNCED)))
		w.wantHeard("it ends", "cloned 10.0.0.4 0")
		n.report(assigned(4, "10.0.0.4"))
		w.wantHeard("the address is plain")
		w.after(time.Hour)
		w.wantKept("nothing is remembered", 0, 0)
	})
}

func TestAddressesOfLoopbacksAreAudited(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		for record := uint32(2); record < 4; record++ {
			m := bridged(record, "10.0.0.1")
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: record, Index: 1, Name: "lo", Attachment: pb.InterfaceRecord_LOCAL})
			m.Claims[0].Index = 1
			n.report(m, behind(record, "10.0.0.1", records.MAC(record), pb.Evidence_ANSWERED))
		}
		w.wantHeard("two answer for an address of their loopbacks", `audited 10.0.0.1 of 2: ["shared-address-answered?"] was [] contested false`,
			"spoke p2 live", "spoke p2 live", "spoke p3 live")
		w.after(time.Second)
		w.wantHeard("after the settle time", `audited 10.0.0.1 of 2: ["shared-address-answered"] was ["shared-address-answered?"] contested false`, "spoke p2 live", "spoke p3 live")
	})
}

func TestAllocationsWithoutAnOwnerAreAudited(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		n.report(pool("10.0.0.9"))
		w.wantHeard("an allocation", `audited 10.0.0.9 of 0: ["leaked?"] was [] contested false`)
		w.after(time.Minute)
		w.wantHeard("after a minute", `audited 10.0.0.9 of 0: ["leaked"] was ["leaked?"] contested false`)
		end := pool("10.0.0.9")
		end.Pools, end.Allocations[0].Gone = nil, true
		n.report(end)
		w.wantHeard("it ends", `audited 10.0.0.9 of 0: [] was ["leaked"] contested false`)
		w.wantKept("nothing is remembered", 0, 0)
	})
}

// An address whose claims expire is judged without them, and the outcome is published once.
func TestExpiredOwnersAreAuditedOnce(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		n := w.connect("n1")
		n.report(uplink(), pool("10.0.0.9"), announced("10.0.0.9", records.MAC(7), 1))
		w.after(10*time.Minute - 1)
		w.set(func() { w.heard = nil })
		w.after(1)
		w.wantHeard("the frame expires", "removed 10.0.0.9 02:00:00:00:00:07 gone was stale of 1", `audited 10.0.0.9 of 0: ["leaked"] was ["leaked"] contested false`)
	})
}

// An owner's allocation that vanished with its pool determines the cause of a later conflict.
func TestAllocationsThatVanishAreRemembered(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		known := pool("10.0.0.1")
		n.report(given(2, "10.0.0.1"), known)
		end := pool()
		end.Pools[0].State = pb.Pool_MISSING
		n.report(end)
		gonePool := pool("10.0.0.1")
		gonePool.Allocations[0].Gone = true
		gonePool.Pools = nil
		n.report(gonePool)
		w.set(func() { w.heard = nil })
		past, _, _ := w.shards.Conflicts.Remembered(index.AddressOf(netip.MustParseAddr("10.0.0.1")))
		if len(past) != 1 || past[0].Kind != verdict.FindingInUseUnallocated {
			t.Errorf("got %+v, want the record that vanished", past)
		}
		n.report(given(3, "10.0.0.1"))
		if c := w.of("10.0.0.1"); c.Cause != verdict.CauseIPAMStateLost {
			t.Errorf("got cause %s, want %s", c.Cause, verdict.CauseIPAMStateLost)
		}
		n.report(gone(given(2, "10.0.0.1")), gone(given(3, "10.0.0.1")))
		w.set(func() { w.heard = nil })
		if past, found, _ := w.shards.Conflicts.Remembered(index.AddressOf(netip.MustParseAddr("10.0.0.1"))); len(past)+len(found) != 0 {
			t.Errorf("got %+v and %+v, want nothing about removed owners", past, found)
		}
	})
}

// If the past changes during a conflict, the cause is determined again.
func TestACauseFollowsFromARecordThatVanishes(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		w.set(func() { w.watched = false })
		n := w.connect("n1")
		n.report(given(2, "10.0.0.1"), given(3, "10.0.0.1"), pool("10.0.0.1"))
		vanished := func() bool {
			return slices.ContainsFunc(w.of("10.0.0.1").Facts, func(f verdict.Fact) bool { return f.Kind == verdict.FactRecordVanished })
		}
		if vanished() {
			t.Error("got a vanished record, want none")
		}
		end := pool("10.0.0.1")
		end.Pools, end.Allocations[0].Gone = nil, true
		if n.report(end); !vanished() {
			t.Errorf("got %+v, want the record that vanished", w.of("10.0.0.1").Facts)
		}
	})
}

// An address that was used again too soon before a start still was after it, if the next owner still has it.
func TestAFormerOwnerIsRecollected(t *testing.T) {
	const addr = "10.0.0.1"
	a := index.AddressOf(netip.MustParseAddr(addr))
	var before []verdict.Former
	for _, test := range []struct {
		why    string
		record uint32 // of the pod after the start; 0 before it
		want   string
	}{
		{"before the start", 0, `"reused-too-soon"`},
		{"the next owner still has it", 3, `"reused-too-soon"`},
		{"another pod has it", 4, ""},
	} {
		inWorld(t, 1, func(w *world) {
			w.set(func() { w.watched = false })
			w.policy.ReusedWithin = time.Minute
			n := w.connect("n1")
			if test.record == 0 {
				time.Sleep(time.Second)
				n.report(pod(2, addr))
				n.report(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 2, Gone: true}}})
				n.report(pod(3, addr))
			} else {
				w.shards.Recollect(a, judge.Recollection{Former: before})
				n.report(pod(9, "10.0.0.9"))
				n.report(pod(test.record, addr))
			}
			w.after(2 * time.Second)
			_, found, former := w.shards.Conflicts.Remembered(a)
			if got := kindsOf(found); got != test.want {
				t.Errorf("%s: got %s, want %s", test.why, got, test.want)
			}
			if test.record == 0 {
				before = former
			}
		})
	}
}

func kindsOf(found []verdict.Finding) string {
	var all []string
	for i := range found {
		all = append(all, strconv.Quote(found[i].Kind))
	}
	return strings.Join(all, " ")
}
