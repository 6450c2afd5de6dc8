package aggregator

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A snapshot that never ends, of what counts as no record, must not take all memory.
func TestASnapshotHasSoManyBytesAndNoMore(t *testing.T) {
	r := newSession(newTestStore(t))
	if err := r.store.connect(r, hello("n1", 1)); err != nil {
		t.Fatal(err)
	}
	r.inside = true
	m := &pb.ReportRequest{}
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 3<<20)))
	var err error
	taken := 0
	for ; err == nil && taken < 200; taken++ {
		err = r.bring(m, 0)
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v after %d messages of 3 MiB, want ResourceExhausted", err, taken)
	}
}

// An agent among thousands is asked less often whether it is there, and noticed as soon as it does
// not answer.
func TestPingsOfManyAgentsAreBounded(t *testing.T) {
	for _, c := range []struct{ agents, pings int }{{1, 20}, {750, 20}, {5000, 3}} {
		t.Run(fmt.Sprint(c.agents), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, Config{})
				l.store.work.sessions.Add(int64(c.agents) - 1)
				defer l.store.work.sessions.Add(1 - int64(c.agents))
				a := l.dial().send(snapshot(hello("n1", 1))).sync()
				r := l.theNode("n1").Peer.(*session)
				pinged := func() int {
					r.mu.Lock()
					defer r.mu.Unlock()
					return int(r.last)
				}
				time.Sleep(59 * time.Second)
				if got := pinged(); got != c.pings {
					t.Errorf("got %d pings in a minute, want %d", got, c.pings)
				}
				a.mute.Store(true)
				for before := pinged(); pinged() == before; {
					time.Sleep(100 * time.Millisecond)
				}
				asked := time.Now()
				if err := a.ended(); !strings.Contains(err.Error(), "nothing was heard") {
					t.Errorf("got %v, want that the agent is silent", err)
				}
				if took := time.Since(asked); took > silentAfter+pingEvery {
					t.Errorf("it took %s to notice that the agent is silent", took)
				}
			})
		})
	}
}
