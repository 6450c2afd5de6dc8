package journal

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func even(partition int) bool { return partition%2 == 0 }
func odd(partition int) bool  { return partition%2 == 1 }

// inParts returns the owners of addresses in even partitions and in odd ones, by names like even0.
func inParts() map[string]*pb.Owner {
	all := make(map[string]*pb.Owner)
	count := map[string]int{}
	for i := range 64 {
		addr := fmt.Sprintf("10.0.0.%d", i)
		kind := "even"
		if odd(pb.Partition(netip.MustParseAddr(addr))) {
			kind = "odd"
		}
		name := fmt.Sprintf("%s%d", kind, count[kind])
		count[kind]++
		all[name] = pod(addr, name, "n1")
	}
	return all
}

// partBench is a journal that replicas fill.
type partBench struct {
	*bench
	owners map[string]*pb.Owner
}

func newPartBench(t *testing.T, names ...string) *partBench {
	b := &partBench{newBench(t, t.TempDir()), inParts()}
	b.must(b.Resume(b.resumption()))
	for _, name := range names {
		b.says(pb.Watch_ADDED, name)
	}
	b.flush()
	return b
}

func (b *partBench) change(typ pb.Watch_Type, name string) *Change {
	o := b.owners[name]
	return &Change{At: b.Now(), Type: typ, Item: ItemOf(name), Owner: o}
}

func (b *partBench) says(typ pb.Watch_Type, name string) {
	b.Helper()
	b.must(b.Feed(pb.Event_OWNER).Changed(b.change(typ, name)))
}

func (b *partBench) from(replica string) PartFeed { return b.Feed(pb.Event_OWNER).From(replica) }

func (b *partBench) present(replica, name string) {
	b.Helper()
	b.must(b.from(replica).Present(b.change(pb.Watch_ADDED, name)))
}

// want checks which owners there are now.
func (b *partBench) want(why string, names ...string) {
	b.Helper()
	b.flush()
	got := slices.Sorted(maps.Values(b.at(b.add(time.Second))))
	if slices.Sort(names); !slices.Equal(got, names) {
		b.Errorf("%s: got %q, want %q", why, got, names)
	}
}

// The state of some partitions ends only their items, and not those that have changed while it arrived.
func TestAPartEndsTheItemsOfItsPartitions(t *testing.T) {
	b := newPartBench(t, "even0", "even1", "odd0", "odd1")
	b.must(b.from("a").Begin(even))
	b.present("a", "even0")
	b.says(pb.Watch_ADDED, "even2")
	b.says(pb.Watch_ADDED, "odd2")
	b.must(b.from("b").Begin(odd)) // another replica sends its state at the same time
	b.present("b", "odd0")
	b.want("while the states arrive", "even0", "even1", "even2", "odd0", "odd1", "odd2")
	b.must(b.from("a").Complete(even))
	b.want("after the state of a", "even0", "even2", "odd0", "odd1", "odd2")
	b.says(pb.Watch_REMOVED, "even0")
	b.must(b.from("b").Complete(odd))
	b.want("after the state of b", "even2", "odd0")
	var got []string
	for _, e := range b.events(Query{}) {
		got = append(got, e.GetType().String()+" "+e.GetOwner().GetWorkload().GetName())
	}
	for _, gone := range []string{"even1", "odd1", "odd2", "even0"} {
		if n := strings.Count(strings.Join(got, "\n")+"\n", "REMOVED "+gone+"\n"); n != 1 {
			t.Errorf("%s is removed %d times, want once, in %q", gone, n, got)
		}
	}
	if len(got) != 10 { // six that came, and four that are gone
		t.Errorf("got %q, want nothing that repeats", got)
	}
}

// A partition that another replica has begun since is not ended by the state of the former one.
func TestAPartEndsNothingOfAPartitionThatWasTakenMeanwhile(t *testing.T) {
	b := newPartBench(t, "even0", "even1", "odd0")
	all := func(int) bool { return true }
	b.must(b.from("a").Begin(all))
	b.present("a", "even0")
	b.must(b.from("b").Begin(odd))
	b.present("b", "odd0")
	b.must(b.from("a").Complete(even)) // what is left to a
	b.want("after the state of a", "even0", "odd0")
	b.must(b.from("b").Complete(odd))
	b.want("after the state of b", "even0", "odd0")
}

// A state that a restart has interrupted ends nothing, and the next one does.
func TestAPartIsInterruptedByARestart(t *testing.T) {
	b := newPartBench(t, "even0", "even1", "odd0")
	b.must(b.from("a").Begin(even))
	b.present("a", "even0")
	b.flush()
	b.restart()
	b.must(b.Resume(b.resumption()))
	b.must(b.from("a").Complete(even))
	b.want("after the end of a state whose beginning was before the restart", "even0", "even1", "odd0")
	b.must(b.from("a").Begin(even))
	b.present("a", "even0")
	b.must(b.from("a").Complete(even))
	b.want("after the next state", "even0", "odd0")
	if n := len(b.events(Query{})); n != 4 { // three that came, and one that is gone
		t.Errorf("got %d events, want 4: what is known is not recorded again", n)
	}
}
