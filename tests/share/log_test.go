package share

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// addressesOf returns some addresses of the partitions that a replica serves.
func (r *replica) addressesOf(n int) (all []netip.Addr) {
	set, _ := r.Recording()
	for i := 1; len(all) < n; i++ {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		if set[index.AddressOf(a).Partition()] {
			all = append(all, a)
		}
	}
	return all
}

func owner(a netip.Addr, node string) *journal.Change {
	return &journal.Change{
		At: time.Now(), Type: pb.Watch_ADDED, ID: "id-" + a.String(),
		Owner: &pb.Owner{Address: a.String(), Node: node, Interface: "eth0", State: pb.Owner_LIVE},
	}
}

// states records that the state of the partitions of a replica is some owners.
func (r *replica) states(t *testing.T, owners ...*journal.Change) facts.PartitionSet {
	t.Helper()
	set, _ := r.Recording()
	f := r.Feed(pb.Event_OWNER, set)
	err := f.Begin()
	for _, o := range owners {
		if err == nil {
			err = f.Present(o)
		}
	}
	if err == nil {
		err = f.Complete()
	}
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func (r *replica) changes(t *testing.T, set facts.PartitionSet, c *journal.Change) {
	t.Helper()
	if err := r.Feed(pb.Event_OWNER, set).Changed(c); err != nil {
		t.Fatal(err)
	}
}

// owners returns the present owners in the journal, and history the types of all events of an address.
func (r *replica) owners(t *testing.T) string {
	var all []string
	now, _, _ := r.journal.Written()
	if err := r.journal.At(t.Context(), pb.Event_OWNER, now, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		all = append(all, e.GetOwner().GetAddress()+" on "+e.GetOwner().GetNode())
		return true
	}); err != nil {
		return err.Error()
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (r *replica) history(t *testing.T, a netip.Addr) string {
	var all []string
	q := journal.Query{Kind: pb.Event_OWNER, Span: ipam.Range{First: a, Last: a}}
	if err := r.journal.Events(t.Context(), &q, func(e *pb.Event) bool {
		all = append(all, fmt.Sprint(e.GetType(), " ", e.GetOwner().GetNode()))
		return true
	}); err != nil {
		return err.Error()
	}
	return strings.Join(all, ", ")
}

func wantOwners(t *testing.T, why, want string, all ...*replica) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s: got %s, want %s", why, got, want)
		}
	}()
	for _, r := range all {
		wait.Until(t, why+" at "+r.name, func() bool { got = r.owners(t); return got == want })
	}
}

func wantHistory(t *testing.T, why string, a netip.Addr, want string, all ...*replica) {
	t.Helper()
	for _, r := range all {
		if got := r.history(t, a); got != want {
			t.Errorf("%s at %s: got history %q of %s, want %q", why, r.name, got, a, want)
		}
	}
}

// Each replica records what it serves, and the journals of all have everything.
func TestEveryJournalHasTheWholeHistory(t *testing.T) {
	l := newLab(t)
	a, b := l.join("a"), l.join("b")
	l.wantShared("two", a, b)
	of := map[*replica][]netip.Addr{a: a.addressesOf(2), b: b.addressesOf(2)}
	setA, setB := a.states(t, owner(of[a][0], "n1"), owner(of[b][0], "wrong")), b.states(t, owner(of[b][0], "n1"))
	a.changes(t, setA, owner(of[a][1], "n2"))
	b.changes(t, setB, owner(of[b][1], "n2"))
	var names []string
	for _, r := range []*replica{a, b} {
		names = append(names, of[r][0].String()+" on n1", of[r][1].String()+" on n2")
	}
	slices.Sort(names)
	wantOwners(t, "all", strings.Join(names, ", "), a, b)
	gone := owner(of[a][1], "n2")
	gone.Type = pb.Watch_REMOVED
	a.changes(t, setA, gone)
	names = slices.DeleteFunc(names, func(s string) bool { return s == of[a][1].String()+" on n2" })
	wantOwners(t, "one is gone", strings.Join(names, ", "), a, b)
	wantHistory(t, "one is gone", of[a][1], "ADDED n2, REMOVED n2", a, b)

	// A replica that joins gets everything from the state of the others.
	c := l.join("c")
	l.wantShared("three", a, b, c)
	left := func(r *replica, of ...netip.Addr) {
		var have []*journal.Change
		for _, one := range of {
			have = append(have, owner(one, "n1"))
		}
		r.states(t, have...)
	}
	// All three have the owners that are left; each says what it serves.
	all := []netip.Addr{of[a][0], of[b][0]}
	left(a, all...)
	left(b, all...)
	left(c, all...)
	names = []string{all[0].String() + " on n1", all[1].String() + " on n1"}
	slices.Sort(names)
	wantOwners(t, "after it joined", strings.Join(names, ", "), a, b, c)
	wantHistory(t, "nothing was added twice", of[a][0], "ADDED n1", a, b)

	// A former holder that is late changes nothing.
	moved := of[a][0]
	late := owner(moved, "stale")
	late.Type = pb.Watch_UPDATED
	taken := false
	if set, _ := c.Recording(); set[index.AddressOf(moved).Partition()] {
		taken = true
	}
	if !taken { // it is still that of a: have c say that it serves it
		var set facts.PartitionSet
		set[index.AddressOf(moved).Partition()] = true
		f := c.Feed(pb.Event_OWNER, set)
		for _, err := range []error{f.Begin(), f.Present(owner(moved, "n1")), f.Complete()} {
			if err != nil {
				t.Fatal(err)
			}
		}
		wait.Until(t, "a knows", func() bool { return true })
	}
	marker := owner(of[b][1], "marker")
	b.changes(t, setB, marker)
	wait.Until(t, "a has read the log", func() bool { return strings.Contains(a.owners(t), "marker") || !setHas(b, of[b][1]) })
	a.changes(t, setA, late)
	wantHistory(t, "a stale change", moved, "ADDED n1", b, c)

	// A replica that restarts continues where it was.
	c.stop()
}

func setHas(r *replica, a netip.Addr) bool {
	set, _ := r.Recording()
	return set[index.AddressOf(a).Partition()]
}
