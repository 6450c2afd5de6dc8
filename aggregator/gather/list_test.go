package gather

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// world are conflicts, and replicas that have some of them.
type world struct {
	*testing.T
	replicas
	has [][]*pb.Conflict // by replica, in order
}

// newWorld returns replicas of which each serves every third partition completely, with some conflicts of
// each address.
func newWorld(t *testing.T, addresses int) *world {
	t.Helper()
	w := &world{T: t, has: make([][]*pb.Conflict, 3)}
	for r := range 3 {
		one := replica{name: string(rune('a' + r))}
		for p := range one.set {
			one.set[p] = p%3 == r
			w.anybody[p] = true
		}
		w.all = append(w.all, one)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range addresses {
		a := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(256)), byte(i)})
		for k := range 1 + random.IntN(3) {
			w.put(pb.Partition(a)%3, &pb.Conflict{Id: fmt.Sprintf("id%d", k), Address: a.String()})
		}
	}
	return w
}

func (w *world) put(r int, c *pb.Conflict) {
	at, there := slices.BinarySearchFunc(w.has[r], c, conflictsOrder.compare)
	if !there {
		w.has[r] = slices.Insert(w.has[r], at, c)
	}
}

// page returns a page of one replica after an item; token says which.
func (w *world) page(r, size int, token string) part[*pb.Conflict] {
	at := 0
	if token != "" {
		var last pb.Conflict
		if _, err := fmt.Sscan(token, &last.Address, &last.Id); err != nil {
			w.Fatal(err)
		}
		for at < len(w.has[r]) && conflictsOrder.compare(w.has[r][at], &last) <= 0 {
			at++
		}
	}
	out := part[*pb.Conflict]{of: &w.all[r], items: w.has[r][at:min(len(w.has[r]), at+size)]}
	if n := len(out.items); at+n < len(w.has[r]) {
		out.next = nameOf(out.items[n-1])
	}
	return out
}

func nameOf(c *pb.Conflict) string { return c.GetAddress() + " " + c.GetId() }

// list returns all pages. between is called after each of them.
func (w *world) list(size int, between func(page int)) (all []string) {
	token := ""
	for n := 0; ; n++ {
		of := int(pageOf(uint32(size), len(w.all))) //nolint:gosec // small
		var parts []part[*pb.Conflict]
		for r := range w.all {
			parts = append(parts, w.page(r, of, token))
		}
		items, next := merge(&w.replicas, parts, conflictsOrder)
		if len(items) > max(size, len(w.all)) {
			w.Fatalf("got a page of %d, want %d at most", len(items), size)
		}
		for _, c := range items {
			all = append(all, nameOf(c))
		}
		if token = next; token == "" {
			return all
		}
		between(n)
	}
}

// wanted returns all conflicts, in order.
func (w *world) wanted() (all []string) {
	items := slices.Concat(w.has...)
	slices.SortFunc(items, conflictsOrder.compare)
	for _, c := range items {
		if n := nameOf(c); len(all) == 0 || all[len(all)-1] != n {
			all = append(all, n)
		}
	}
	return all
}

func nothing(int) {}

// Pages of all replicas are merged in order: nothing is lost or comes twice at the end of a page, whatever
// its size.
func TestPagesOfReplicasAreMergedInOrder(t *testing.T) {
	w := newWorld(t, 100)
	want := w.wanted()
	for _, size := range []int{1, 2, 3, 4, 7, 30, 100, 1000} {
		if got := w.list(size, nothing); !slices.Equal(got, want) {
			t.Errorf("pages of %d: got %d conflicts, want %d:\n%q\n%q", size, len(got), len(want), got, want)
		}
	}
	w.has[1], w.has[2] = nil, nil // one replica has everything that there is
	want = w.wanted()
	if got := w.list(7, nothing); !slices.Equal(got, want) {
		t.Errorf("two replicas without conflicts: got %q, want %q", got, want)
	}
}

// While partitions are handed over, two replicas have the same conflicts, and each comes once. What a replica
// has of a partition that another one serves completely is left out.
func TestWhatSeveralReplicasHaveIsListedOnce(t *testing.T) {
	w := newWorld(t, 100)
	want := w.wanted()
	for _, c := range w.has[0] { // replica 1 has them completely, too
		w.put(1, c)
	}
	for p := range w.all[1].set {
		w.all[1].set[p] = w.all[1].set[p] || w.all[0].set[p]
	}
	for _, c := range w.has[2][:10] { // replica 0 is gaining the partitions of replica 2: what it has is not complete
		w.put(0, &pb.Conflict{Id: "invented", Address: c.GetAddress()})
	}
	for _, size := range []int{1, 3, 7, 1000} {
		if got := w.list(size, nothing); !slices.Equal(got, want) {
			t.Errorf("pages of %d: got %d conflicts, want %d:\n%q\n%q", size, len(got), len(want), got, want)
		}
	}
}

// A partition that no replica serves completely is listed from any that has something of it.
func TestAPartitionThatNobodyServesCompletelyIsListedFromAny(t *testing.T) {
	w := newWorld(t, 100)
	want := w.wanted()
	w.all[0].set = facts.PartitionSet{}
	for p := range w.anybody {
		w.anybody[p] = p%3 != 0
	}
	for _, c := range w.has[0][:10] {
		w.put(1, c)
	}
	if got := w.list(7, nothing); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	c := w.covered(new(pb.Coverage), 1)
	if !c.GetIncomplete() || c.GetMissingPartitions() != 86 || c.GetSilentReplicas() != 1 {
		t.Errorf("got the coverage %v, want 86 partitions and a replica that are missing", c)
	}
}

// If a partition moves between two pages, conflicts that exist all the time are listed once.
func TestPagesContinueAfterAHandover(t *testing.T) {
	w := newWorld(t, 100)
	want := w.wanted()
	got := w.list(7, func(page int) {
		if page != 3 {
			return
		}
		for _, c := range w.has[0] {
			w.put(1, c)
		}
		w.has[0] = nil
		for p := range w.all[0].set {
			w.all[1].set[p] = w.all[1].set[p] || w.all[0].set[p]
		}
		w.all[0].set = facts.PartitionSet{}
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %d conflicts, want %d:\n%q\n%q", len(got), len(want), got, want)
	}
}
