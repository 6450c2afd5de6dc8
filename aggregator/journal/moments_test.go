package journal

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Owners at many moments are those that At finds at each of them, in any order of the moments and across segments.
func TestOwnersAtMomentsAreThoseOfEachTime(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(map[string]*pb.Owner{"first": pod("10.0.0.1", "first", "n1")})
	random := rand.New(rand.NewPCG(1, 2))
	begin := b.Now()
	held := map[string]*pb.Owner{}
	for n := range 400 {
		b.add(time.Duration(random.IntN(1000)) * time.Second)
		id := fmt.Sprint(random.IntN(8)) // several owners of each of 4 addresses
		switch o := held[id]; {
		case o == nil:
			held[id] = pod(fmt.Sprintf("10.0.0.%d", len(id)+random.IntN(4)), fmt.Sprint("pod-", n), "n1")
			b.changed(pb.Watch_ADDED, id, held[id])
		case random.IntN(3) == 0:
			o.Mac = fmt.Sprintf("02:00:00:00:00:%02x", random.IntN(250))
			b.changed(pb.Watch_UPDATED, id, o)
		default:
			b.changed(pb.Watch_REMOVED, id, o)
			delete(held, id)
		}
		if n%50 == 49 { // so that the next segment can begin
			b.flush()
			b.wholeSegments()
		}
	}
	if n := len(b.store.list()); n < 3 {
		t.Fatalf("got %d segments, want several", n)
	}
	var moments []Moment
	for range 300 {
		at := begin.Add(time.Duration(random.Int64N(int64(b.Now().Sub(begin)))))
		moments = append(moments, Moment{netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(6))}), at})
	}
	moments = append(moments, moments[0], Moment{moments[0].Address, begin.Add(-time.Hour)}, Moment{netip.MustParseAddr("fd00::1"), begin})
	var mu sync.Mutex
	answered := 0
	b.must(b.Owners(b.Context(), moments, func(i int, owners []*pb.Owner) {
		mu.Lock()
		defer mu.Unlock()
		answered++
		var got, want []string
		for _, o := range owners {
			got = append(got, o.GetWorkload().GetName()+" "+o.GetMac())
		}
		b.must(b.At(b.Context(), pb.Event_OWNER, moments[i].At, only(moments[i].Address.String()), Position{}, func(e *pb.Event, _ Position) bool {
			want = append(want, e.GetOwner().GetWorkload().GetName()+" "+e.GetOwner().GetMac())
			return true
		}))
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s at %s: got %q, want %q", moments[i].Address, moments[i].At, got, want)
		}
	}))
	if answered != len(moments) {
		t.Errorf("got %d answers, want %d", answered, len(moments))
	}
}

// What is known of the beginning may be from before it.
func TestNodesAreThoseOfTheBeginningAndTheirChanges(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(nil)
	node := func(typ pb.Watch_Type, name string, state pb.Node_State) {
		b.must(b.Feed(pb.Event_NODE).Changed(&Change{At: b.Now(), Type: typ, Node: &pb.Node{Name: name, State: state}}))
	}
	node(pb.Watch_ADDED, "n1", pb.Node_LIVE)
	node(pb.Watch_ADDED, "n2", pb.Node_LIVE)
	b.add(30 * time.Hour) // in another segment
	node(pb.Watch_UPDATED, "n1", pb.Node_DISCONNECTED)
	since := b.add(time.Hour)
	b.add(30 * time.Hour)
	node(pb.Watch_REMOVED, "n2", 0)
	until := b.add(time.Hour)
	b.add(time.Hour)
	node(pb.Watch_UPDATED, "n1", pb.Node_LIVE)
	b.flush()
	b.wholeSegments()
	got := map[string][]string{}
	b.must(b.Nodes(b.Context(), since, until, func(at time.Time, n *pb.Node, gone bool) {
		if at.Before(since) {
			got[n.GetName()] = nil
		}
		got[n.GetName()] = append(got[n.GetName()], fmt.Sprintf("%s %v", n.GetState(), gone))
	}))
	if want := map[string][]string{"n1": {"DISCONNECTED false"}, "n2": {"LIVE false", "UNSPECIFIED true"}}; !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("got %q, want %q", got, want)
	}
}
