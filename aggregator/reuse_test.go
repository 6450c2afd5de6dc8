package aggregator

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// ended returns the report that a pod has ended.
func ended(record uint32) *pb.ReportRequest {
	return &pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: record, Gone: true}}}
}

// former returns the former owners that are remembered of an address.
func (l *lab) former(addr string) []verdict.Former {
	_, _, former := l.core.shards.Conflicts.Remembered(index.AddressOf(netip.MustParseAddr(addr)))
	return former
}

// reuse is a scene in which pod a of node n1 has an address, and pod b gets it.
type reuse struct {
	*lab
	n1, n2 *agent
}

const (
	reused = "10.244.0.2"
	within = 30 * time.Second
)

// newReuse returns a scene in which pod a has had the address for an hour, among other pods.
func newReuse(t *testing.T, cfg Config) *reuse {
	r := &reuse{lab: newLab(t, cfg)}
	r.n1 = r.dial().send(snapshot(hello("n1", 1), kindPod(9, "other", "10.244.0.9"))).sync()
	r.n2 = r.dial().send(snapshot(hello("n2", 1), kindPod(9, "other", "10.244.1.9"))).sync()
	r.n1.send(kindPod(2, "a", reused)).sync()
	time.Sleep(time.Hour)
	return r
}

// want checks whether the reuse of the address is reported, and returns the finding.
func (r *reuse) want(why string, reported bool) *pb.Finding {
	r.Helper()
	if !reported {
		r.wantFindings(why)
		return nil
	}
	return r.wantFindings(why, "reused-too-soon "+reused)[0]
}

func TestAnAddressThatIsReusedTooSoonIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReuse(t, Config{ReusedWithin: within})
		r.n1.send(ended(2)).sync()
		until := time.Now()
		time.Sleep(4 * time.Second)
		r.want("nobody has it", false)
		r.n2.send(kindPod(3, "b", reused)).sync()
		r.want("at once", false)
		time.Sleep(time.Second)
		f := r.want("after the settle time", true)
		was := f.GetPrevious()
		if was.GetWorkload().GetName() != "a" || was.GetNode() != "n1" || was.GetInterface() != "eth0" || was.GetMac() != "02:00:00:00:00:02" ||
			!was.GetUntil().AsTime().Equal(until) || was.GetGap().AsDuration() != 4*time.Second {
			t.Errorf("got the former owner %v, want pod a of n1 until 4 s before", was)
		}
		if f.GetSeverity() != pb.Finding_WARNING || !slices.Equal(f.GetNodes(), []string{"n2", "n1"}) || f.GetOwners()[0].GetWorkload().GetName() != "b" {
			t.Errorf("got %v, want a warning about pod b of n2", f)
		}
		time.Sleep(10*time.Minute - 2*time.Second)
		if again := r.want("for 10 minutes", true); again.GetId() != f.GetId() || !again.GetDetectedAt().AsTime().Equal(f.GetDetectedAt().AsTime()) {
			t.Errorf("got %v, want the same finding as %v", again, f)
		}
		time.Sleep(time.Second)
		r.want("it ends by itself", false)
		if left := r.former(reused); len(left) != 0 {
			t.Errorf("got %v remembered, want nothing", left)
		}
	})
}

func TestWhatIsReusedTooSoon(t *testing.T) {
	for _, test := range []struct {
		why  string
		cfg  Config
		do   func(r *reuse)
		want bool
	}{
		{"the reference", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			time.Sleep(within)
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, true},
		{"later", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			time.Sleep(within + 1)
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, false},
		{"the end is reported a moment late", Config{}, func(r *reuse) {
			r.n2.send(kindPod(3, "b", reused)).sync()
			time.Sleep(500 * time.Millisecond)
			r.n1.send(ended(2)).sync()
		}, true},
		{"both had it", Config{}, func(r *reuse) {
			r.n2.send(kindPod(3, "b", reused)).sync()
			time.Sleep(time.Second)
			r.n1.send(ended(2)).sync()
		}, false},
		{"the pod has another sandbox", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.n1.send(kindPod(3, "a", reused)).sync()
		}, false},
		{"the pod of a StatefulSet moves to another node", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.n2.send(kindPod(3, "a", reused)).sync()
		}, false},
		{"it is in another scope", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.n2.send(podVeth(3, "b", reused)).sync()
		}, false},
		{"the pod gets it back", Config{}, func(r *reuse) {
			r.n1.send(gone(assigned(2, reused))).sync()
			time.Sleep(time.Second)
			r.n1.send(kindPod(2, "a", reused)).sync()
		}, false},
		{"the new owner leaves at once", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.n2.send(kindPod(3, "b", reused)).sync()
			r.n2.send(ended(3)).sync()
		}, false},
		{"nodes hand it over", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			time.Sleep(time.Hour)
			r.n1.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{ofHost(reused)}, Interfaces: hostInterface}).sync()
			time.Sleep(time.Hour)
			r.n1.send(gone(ofHost(reused))).sync()
			r.n2.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{ofHost(reused)}, Interfaces: hostInterface}).sync()
		}, false},
		{"its node was disconnected", Config{NodeTimeout: 10 * time.Second}, func(r *reuse) {
			r.n1.cancel()
			time.Sleep(11 * time.Second)
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, false},
		{"the new owner has the inode of the former one", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.n1.send(sameInode(kindPod(3, "b", reused), 2)).sync()
		}, true},
		{"it has the inode, and its name is known later", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			nameless := sameInode(kindPod(3, "", reused), 2)
			nameless.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN}
			r.n1.send(nameless).sync()
			time.Sleep(3 * time.Second)
			r.want("before", false)
			r.n1.send(sameInode(kindPod(3, "b", reused), 2)).sync()
		}, true},
		{"it has the inode, in one report", Config{}, func(r *reuse) {
			r.n1.send(records.Merge(ended(2), sameInode(kindPod(3, "b", reused), 2))).sync()
		}, true},
		{"it comes back, and then another one takes it", Config{}, func(r *reuse) {
			r.n1.send(gone(assigned(2, reused))).sync()
			time.Sleep(time.Second)
			r.n1.send(kindPod(2, "a", reused)).sync()
			time.Sleep(time.Second)
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, false},
		{"its own next sandbox has the inode", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.n1.send(sameInode(kindPod(3, "a", reused), 2)).sync()
		}, false},
		{"it is missing when its node is connected again", Config{}, func(r *reuse) {
			r.n1.cancel()
			time.Sleep(time.Second)
			r.dial().send(snapshot(hello("n1", 1))).sync()
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, false},
		{"an older connection is replaced", Config{}, func(r *reuse) {
			r.dial().send(snapshot(hello("n1", 1))).sync()
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, false},
		{"the new owner is listed by a node that connects", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			r.dial().send(snapshot(hello("n3", 1), kindPod(3, "b", reused))).sync()
		}, false},
		{"a node that has just connected goes on", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			n3 := r.dial().send(snapshot(hello("n3", 1))).sync()
			time.Sleep(time.Second)
			n3.send(kindPod(3, "b", reused)).sync()
		}, true},
		{"the name is known later", Config{}, func(r *reuse) {
			r.n1.send(ended(2)).sync()
			nameless := kindPod(3, "", reused)
			nameless.Namespaces[0].Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN}
			r.n2.send(nameless).sync()
			time.Sleep(3 * time.Second)
			r.want("before", false)
			r.n2.send(kindPod(3, "b", reused)).sync()
		}, true},
	} {
		t.Run(test.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.cfg.ReusedWithin = within
				r := newReuse(t, test.cfg)
				test.do(r)
				time.Sleep(2 * time.Second)
				r.want("", test.want)
			})
		})
	}
}

// sameInode gives the namespace of a report the inode of that with another record.
func sameInode(m *pb.ReportRequest, record uint32) *pb.ReportRequest {
	m.Namespaces[0].Netns = podNamespace(record, "").Netns
	return m
}

// ofHost returns the claim of a node's own interface.
func ofHost(addr string) *pb.ClaimRecord {
	c := assigned(1, addr)
	c.Index = 3
	return c
}

var hostInterface = []*pb.InterfaceRecord{{Namespace: 1, Index: 3, Name: "vip0", Attachment: pb.InterfaceRecord_OWN, Mac: []byte{2, 0, 0, 1, 0, 1}}}

func TestReuseIsNotReportedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReuse(t, Config{})
		r.n1.send(ended(2)).sync()
		if left := r.former(reused); len(left) != 0 {
			t.Errorf("got %v remembered, want nothing", left)
		}
		r.n2.send(kindPod(3, "b", reused)).sync()
		time.Sleep(2 * time.Second)
		r.want("off", false)
	})
}

func TestTheFindingEndsWithItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReuse(t, Config{ReusedWithin: within})
		r.n1.send(ended(2)).sync()
		r.n2.send(kindPod(3, "b", reused)).sync()
		time.Sleep(2 * time.Second)
		r.want("it is reused", true)
		r.n2.cancel()
		r.n2 = r.dial().send(snapshot(hello("n2", 1), kindPod(3, "b", reused))).sync()
		r.want("its node is connected again", true)
		r.n2.send(ended(3)).sync()
		r.want("its owner has left", false)
		r.n1.send(kindPod(4, "c", reused)).sync()
		time.Sleep(2 * time.Second)
		if f := r.want("it is reused again", true); f.GetPrevious().GetWorkload().GetName() != "b" {
			t.Errorf("got the former owner %v, want b", f.GetPrevious())
		}
	})
}

// Former owners are forgotten, and the address takes no memory then.
func TestFormerOwnersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReuse(t, Config{ReusedWithin: within})
		r.n1.send(ended(2)).sync()
		if left := r.former(reused); len(left) != 1 || left[0].Owner.Claims != nil {
			t.Errorf("got %v remembered, want pod a without its claims", left)
		}
		time.Sleep(within + 6*time.Second)
		synctest.Wait()
		if left := r.former(reused); len(left) != 0 {
			t.Errorf("got %v remembered, want nothing", left)
		}
	})
}

// The finding lasts over a restart of the aggregator, unless its owner leaves meanwhile.
func TestReuseTooSoonIsKnownAfterARestart(t *testing.T) {
	for _, stays := range []bool{true, false} {
		t.Run(strconv.FormatBool(stays), func(t *testing.T) {
			t.Parallel()
			cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond, ReusedWithin: within}
			l := newLab(t, cfg)
			n1 := l.dial().send(snapshot(hello("n1", 1), kindPod(9, "other", "10.244.0.9"))).sync()
			n2 := l.dial().send(snapshot(hello("n2", 1), kindPod(9, "other", "10.244.1.9"))).sync()
			n1.send(kindPod(2, "a", reused)).sync().send(ended(2)).sync()
			n2.send(kindPod(3, "b", reused)).sync()
			var before *pb.Finding
			wait.Until(t, "the finding", func() bool {
				all, _ := l.told()
				if len(all) == 1 {
					before = all[0]
				}
				return before != nil
			})
			l.settled()
			l.stop()

			l = newLab(t, cfg)
			l.dial().send(snapshot(hello("n1", 1), kindPod(9, "other", "10.244.0.9"))).sync()
			more := &pb.ReportRequest{}
			if stays {
				more = kindPod(3, "b", reused)
			}
			l.dial().send(snapshot(hello("n2", 1), kindPod(9, "other", "10.244.1.9"), more)).sync()
			wait.Until(t, "the end of waiting", func() bool { _, awaited := l.told(); return len(awaited) == 0 })
			l.settled()
			after, _ := l.told()
			if !stays {
				if len(after) > 0 {
					t.Errorf("got %v, want no finding without its owner", after)
				}
				return
			}
			if len(after) != 1 || after[0].GetId() != before.GetId() || !after[0].GetDetectedAt().AsTime().Equal(before.GetDetectedAt().AsTime()) ||
				!proto.Equal(after[0].GetPrevious(), before.GetPrevious()) || len(after[0].GetRemedy()) == 0 {
				t.Errorf("got %v, want %v", after, before)
			}
			for _, e := range l.events(&pb.ListEventsRequest{Kind: pb.Event_FINDING, Address: reused}).GetEvents() {
				if e.GetType() == pb.Watch_REMOVED {
					t.Errorf("got the end of the finding recorded at %v", e.GetTime().AsTime())
				}
			}
		})
	}
}
