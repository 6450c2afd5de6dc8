package aggregator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// scoped is an item of a list, with its scope as filters name it.
type scoped struct{ item, scope string }

func scopedOf(item string, s *pb.Scope) scoped {
	return scoped{item, strings.ToLower(s.GetKind().String()) + "/" + s.GetName()}
}

// in returns the items in a kind of scope, or in one scope; all items if the scope is empty.
func in(all []scoped, scope string) (some []scoped) {
	for _, one := range all {
		if scope == "" || one.scope == scope || strings.HasPrefix(one.scope, scope+"/") {
			some = append(some, one)
		}
	}
	return some
}

func TestListsAndWatchesAreFilteredByScope(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", "10.244.0.5"), podVeth(3, "b", "10.244.0.5"), podVeth(4, "c", "10.244.0.6"))).sync()
	l.dial().send(snapshot(hello("n2", 1), podVeth(2, "d", "fd00::5"), podVeth(3, "e", "fd00::5"))).sync()
	list := func(scope string, at *timestamppb.Timestamp) (owners, conflicts []scoped) {
		ownerPage, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{Scope: scope, At: at})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range ownerPage.GetOwners() {
			owners = append(owners, scopedOf(o.GetAddress()+" "+o.GetWorkload().GetName(), o.GetScope()))
		}
		conflictPage, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{Scope: scope, At: at})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conflictPage.GetConflicts() {
			conflicts = append(conflicts, scopedOf(c.GetAddress(), c.GetScope()))
		}
		slices.SortFunc(owners, func(a, b scoped) int { return strings.Compare(a.item, b.item) })
		return owners, conflicts
	}
	watch := func(scope string) (owners, conflicts []scoped) {
		ownerStream, err := l.client.WatchOwners(l.ctx, &pb.WatchOwnersRequest{Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		for m := must(ownerStream.Recv()); m.GetType() != pb.Watch_BOOKMARK; m = must(ownerStream.Recv()) {
			if o := m.GetOwner(); o != nil {
				owners = append(owners, scopedOf(o.GetAddress()+" "+o.GetWorkload().GetName(), o.GetScope()))
			}
		}
		conflictStream, err := l.client.WatchConflicts(l.ctx, &pb.WatchConflictsRequest{Scope: scope})
		if err != nil {
			t.Fatal(err)
		}
		for m := must(conflictStream.Recv()); m.GetType() != pb.Watch_BOOKMARK; m = must(conflictStream.Recv()) {
			if c := m.GetConflict(); c != nil {
				conflicts = append(conflicts, scopedOf(c.GetAddress(), c.GetScope()))
			}
		}
		slices.SortFunc(owners, func(a, b scoped) int { return strings.Compare(a.item, b.item) })
		return owners, conflicts
	}
	allOwners, allConflicts := list("", nil)
	var at *timestamppb.Timestamp
	wait.Until(t, "the journal to have all owners and conflicts", func() bool {
		at = timestamppb.New(time.Now())
		if _, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{At: at}); err != nil {
			return false // nothing is recorded yet
		}
		owners, conflicts := list("", at)
		return slices.Equal(owners, allOwners) && len(conflicts) == len(allConflicts)
	})
	scopes := []string{"", "link", "node", "Network"}
	for _, one := range append(allOwners, allConflicts...) {
		if !slices.Contains(scopes, one.scope) && !strings.HasPrefix(one.scope, "unspecified") {
			scopes = append(scopes, one.scope)
		}
	}
	if len(scopes) < 6 || len(allConflicts) != 2 {
		t.Fatalf("got the scopes %q and the conflicts %v, want at least two scopes and two conflicts", scopes, allConflicts)
	}
	for _, scope := range scopes {
		wantOwners, wantConflicts := in(allOwners, strings.ToLower(scope)), in(allConflicts, strings.ToLower(scope))
		if strings.Contains(scope, "/") {
			wantOwners, wantConflicts = in(allOwners, scope), in(allConflicts, scope)
		}
		check := func(how string, owners, conflicts []scoped) {
			if !slices.Equal(owners, wantOwners) || !slices.Equal(conflicts, wantConflicts) {
				t.Errorf("%s of scope %q: got the owners %v and the conflicts %v, want %v and %v", how, scope, owners, conflicts, wantOwners, wantConflicts)
			}
		}
		owners, conflicts := list(scope, nil)
		check("list", owners, conflicts)
		owners, conflicts = list(scope, at)
		check("list of the past", owners, conflicts)
		owners, conflicts = watch(scope)
		check("watch", owners, conflicts)
	}
}

// must returns a message that was received.
func must[T any](m T, err error) T {
	if err != nil {
		panic(err)
	}
	return m
}

func TestUnknownScopesAndCausesAreRefused(t *testing.T) {
	l := newLab(t, Config{})
	for _, scope := range []string{"cluster", "link/", "/pods", "unspecified"} {
		if _, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{Scope: scope}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("owners of scope %q: got %v, want InvalidArgument", scope, err)
		}
		if _, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{Scope: scope}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("conflicts of scope %q: got %v, want InvalidArgument", scope, err)
		}
	}
	if _, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{Cause: "split-brian"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("unknown cause: got %v, want InvalidArgument", err)
	}
}
