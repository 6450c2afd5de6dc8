package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// seeing has agents see a frame again and answer what they are asked, for longer than a conflict waits for its confirmation.
func seeing(frame *pb.ClaimRecord, seen *agent, others ...*agent) {
	for range 10 {
		time.Sleep(100 * time.Millisecond)
		for _, a := range append(others, seen.send(seenAgain(frame))) {
			a.sync()
			for len(a.responses) > 0 {
				a.take()
			}
			for len(a.checks) > 0 {
				a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
			}
		}
	}
}

// texts returns what is said about all conflicts besides how certain they are.
func (l *lab) texts() (texts []string) {
	for _, c := range l.conflicts() {
		text := fmt.Sprint(c.GetId(), c.GetState(), c.GetRule(), c.GetCause(), c.GetScope(), c.GetDetectedAt().AsTime())
		for _, o := range c.GetOwners() {
			text += " " + o.GetNode() + "/" + o.GetWorkload().GetName()
		}
		texts = append(texts, text)
	}
	return texts
}

// While a node that was connected before the start has not reported since, its frames are not those of a device outside.
func TestFramesOfAnAwaitedNodeAreNotFromOutside(t *testing.T) {
	t.Parallel()
	const vip = "192.0.2.77"
	for _, kind := range []pb.Evidence_Kind{pb.Evidence_USED, pb.Evidence_ANSWERED} {
		cfg := Config{DataDir: t.TempDir(), StaleAfter: time.Minute, Settle: 100 * time.Millisecond}
		frame := entered(kind, vip, nodeMAC(2))
		one := func() *pb.ReportRequest {
			return snapshot(hello("n1", 1), uplink(nodeMAC(1)), ownAddress(vip), records.Claims(frame, entered(pb.Evidence_USED, "192.0.2.2", nodeMAC(2))))
		}
		onLo := assigned(1, vip)
		onLo.Index, onLo.PrefixLength = 1, 32
		lo := &pb.ReportRequest{Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 1, Name: "lo", Attachment: pb.InterfaceRecord_LOCAL}}}
		two := func() *pb.ReportRequest {
			return snapshot(hello("n2", 1), uplink(nodeMAC(2)), lo, records.Claims(onLo))
		}
		l := newLab(t, cfg)
		n2, n1 := l.dial().send(two()).sync(), l.dial().send(one()).sync()
		if seeing(frame, n1, n2); len(l.conflicts()) != 0 {
			t.Fatalf("%s: got %v, want no conflict", kind, l.conflicts())
		}
		l.settled()
		l.stop()
		l = newLab(t, cfg)
		n1 = l.dial().send(one()).sync()
		if seeing(frame, n1); len(l.conflicts()) != 0 {
			t.Errorf("%s: got %v while the node is awaited, want no conflict", kind, l.conflicts())
		}
		n2 = l.dial().send(two()).sync()
		if seeing(frame, n1, n2); len(l.conflicts()) != 0 {
			t.Errorf("%s: got %v, want no conflict", kind, l.conflicts())
		}
		stranger := entered(kind, vip, nodeMAC(9))
		if seeing(stranger, n1.send(records.Claims(stranger)), n2); len(l.conflicts()) != 1 {
			t.Errorf("%s: got %v, want the conflict with a device outside", kind, l.conflicts())
		}
		l.stop()
	}
}

// A device outside is in conflict with a node after a start, although a node from before the start does not come back.
func TestADeviceOutsideIsReportedWhileANodeIsAwaited(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for ten seconds")
	}
	const vip = "192.0.2.77"
	cfg := Config{DataDir: t.TempDir(), StaleAfter: time.Minute, Settle: 100 * time.Millisecond}
	l := newLab(t, cfg)
	l.dial().send(snapshot(hello("n2", 1), uplink(nodeMAC(2)))).sync()
	l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), ownAddress(vip))).sync()
	l.settled()
	l.stop()
	l = newLab(t, cfg)
	stranger := entered(pb.Evidence_ANSWERED, vip, nodeMAC(9))
	n1 := l.dial().send(snapshot(hello("n1", 1), uplink(nodeMAC(1)), ownAddress(vip), records.Claims(stranger))).sync()
	wait.Until(t, "the conflict", func() bool {
		seeing(stranger, n1)
		return len(l.conflicts()) == 1
	})
}

// A conflict lasts as it was while the node of one of its owners is awaited.
func TestAConflictWithAnAwaitedNodeStaysAsItWas(t *testing.T) {
	t.Parallel()
	cfg := Config{DataDir: t.TempDir(), StaleAfter: time.Minute, Settle: time.Millisecond}
	mac := func(n int) []byte { return []byte{2, 3, 0, 0, 0, byte(n)} }
	frame := func(n int) *pb.ClaimRecord { return entered(pb.Evidence_USED, addr, mac(n)) }
	report := func(n int) *pb.ReportRequest {
		return snapshot(hello(fmt.Sprint("n", n), 1), uplink(nodeMAC(n)), macvlan(2, fmt.Sprint("pod", n), addr, mac(n)), records.Claims(frame(3-n)))
	}
	l := newLab(t, cfg)
	n1, n2 := l.dial().send(report(1)).sync(), l.dial().send(report(2)).sync()
	seeing(frame(2), n1, n2)
	l.recorded(pb.Conflict_CONFIRMED)
	before := l.texts()
	l.settled()
	l.stop()
	l = newLab(t, cfg)
	n1 = l.dial().send(report(1)).sync()
	seeing(frame(2), n1)
	if got := l.texts(); strings.Join(got, "\n") != strings.Join(before, "\n") {
		t.Errorf("the other node is awaited: got\n%q\nwant\n%q", got, before)
	}
	n2 = l.dial().send(report(2)).sync()
	seeing(frame(2), n1, n2)
	if got := l.texts(); strings.Join(got, "\n") != strings.Join(before, "\n") {
		t.Errorf("both have reported: got\n%q\nwant\n%q", got, before)
	}
}

// If another owner has come in the place of one that has left while the aggregator was down, the conflict from before is over, and
// the next episode begins: every replica tells the same episodes. The former owner may still be on a node that has not reported.
func TestAnotherOwnerDuringARestartIsTheNextEpisode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		// node, record and pod are the second owner after the restart, at once or when the former owner's node has reported.
		node    string
		record  uint32
		pod     string
		at      bool
		episode uint32
	}{
		{"the same one", "n2", 2, "b", true, 1},
		{"another one on its node", "n2", 3, "c", true, 2},
		{"another one on another node", "n3", 3, "c", false, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond, Networks: []verdict.Network{{Name: "pods", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}}
			l := newLab(t, cfg)
			l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
			l.dial().send(snapshot(hello("n3", 1))).sync()
			l.dial().send(snapshot(hello("n2", 1), podVeth(2, "b", addr))).sync()
			before := l.recorded(pb.Conflict_SUSPECTED)
			l.settled()
			l.stop()

			l = newLab(t, cfg)
			l.known(pb.Conflict_SUSPECTED)
			l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
			holder := l.dial().send(snapshot(hello(test.node, 1), podVeth(test.record, test.pod, addr))).sync()
			if !test.at {
				if all := l.list(&pb.ListConflictsRequest{}); len(all) != 1 || identity(all[0]) != identity(before) || all[0].GetState() == pb.Conflict_RESOLVED || all[0].GetEpisode() != 1 {
					t.Errorf("got %v while the node of the former owner is awaited, want %v", all, before)
				}
				l.dial().send(snapshot(hello("n2", 1))).sync()
			} else {
				l.dial().send(snapshot(hello("n3", 1))).sync()
			}
			holder.sync()
			l.settled()
			var now *pb.Conflict
			wait.Until(t, "the present owners", func() bool {
				all := l.conflicts()
				if len(all) == 1 {
					now = all[0]
				}
				return len(all) == 1 && slices.ContainsFunc(now.GetOwners(), func(o *pb.Owner) bool { return o.GetWorkload().GetName() == test.pod && o.GetState() == pb.Owner_LIVE })
			})
			if now.GetId() != before.GetId() || now.GetEpisode() != test.episode || (identity(now) == identity(before)) != (test.episode == 1) {
				t.Errorf("got %v, want episode %d of %v", now, test.episode, before)
			}
			ended := 0
			for _, e := range l.conflictsRecorded() {
				c := e.GetConflict()
				switch has := slices.ContainsFunc(c.GetOwners(), func(o *pb.Owner) bool { return o.GetWorkload().GetName() == "c" }); {
				case has != (c.GetEpisode() == 2):
					t.Errorf("got the owners %v in episode %d", c.GetOwners(), c.GetEpisode())
				case c.GetState() == pb.Conflict_RESOLVED:
					ended++
				}
			}
			if want := int(test.episode) - 1; ended != want {
				t.Errorf("got %d ends, want %d", ended, want)
			}
		})
	}
}
