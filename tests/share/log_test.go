package share

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func owner(a netip.Addr, node string) *journal.Change {
	return &journal.Change{
		At: time.Now(), Type: pb.Watch_ADDED, ID: "id-" + a.String(),
		Owner: &pb.Owner{Address: a.String(), Node: node, Interface: "eth0", State: pb.Owner_LIVE},
	}
}

// say says the state of some partitions.
func (r *replica) say(set facts.PartitionSet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE} {
		f := r.Feed(kind, set)
		err := f.Begin()
		for _, one := range r.knows {
			if err == nil && kind == pb.Event_OWNER {
				err = f.Present(one)
			}
		}
		if err == nil {
			err = f.Complete()
		}
		if err != nil {
			return // the replica stops
		}
	}
}

// learns has replicas learn of a change. Those that serve the address say so.
func learns(c *journal.Change, all ...*replica) {
	for _, r := range all {
		r.mu.Lock()
		if r.knows[c.ID] = c; c.Type == pb.Watch_REMOVED {
			delete(r.knows, c.ID)
		}
		set, _ := r.Recording()
		_ = r.Feed(pb.Event_OWNER, set).Changed(c) // or the replica stops
		r.mu.Unlock()
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

// Each replica records what it serves, and the journals of all have everything, each change once.
func TestEveryJournalHasTheWholeHistory(t *testing.T) {
	l := newLab(t)
	a, b := l.join("a"), l.join("b")
	l.wantShared("two", a, b)
	var all []netip.Addr
	var names []string
	for i := range 40 {
		one := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		all, names = append(all, one), append(names, one.String()+" on n1")
		learns(owner(one, "n1"), a, b)
	}
	slices.Sort(names)
	wantOwners(t, "all", strings.Join(names, ", "), a, b)
	gone := owner(all[0], "n1")
	gone.Type = pb.Watch_REMOVED
	learns(gone, a, b)
	names = slices.DeleteFunc(names, func(s string) bool { return s == all[0].String()+" on n1" })
	wantOwners(t, "one is gone", strings.Join(names, ", "), a, b)

	// A replica that joins, and takes over some, gets everything from the state of the others.
	var present []*journal.Change
	for _, one := range all[1:] {
		present = append(present, owner(one, "n1"))
	}
	c := l.join("c", present...)
	l.wantShared("three", a, b, c)
	c.Restate()
	wantOwners(t, "after it joined", strings.Join(names, ", "), a, b, c)

	// One that stops hands over what it has.
	a.stop()
	l.wantShared("without a", b, c)
	late := owner(all[1], "n2")
	late.ID = "id-late"
	learns(late, b, c)
	names = append(names, all[1].String()+" on n2")
	slices.Sort(names)
	wantOwners(t, "without a", strings.Join(names, ", "), b, c)
	for _, one := range all[2:] {
		for _, r := range []*replica{b, c} {
			if got := r.history(t, one); got != "ADDED n1" {
				t.Errorf("at %s: got history %q of %s, want that it was added once", r.name, got, one)
			}
		}
	}
	if got := b.history(t, all[0]); got != "ADDED n1, REMOVED n1" {
		t.Errorf("got history %q of %s, want that it was added and removed", got, all[0])
	}
}
