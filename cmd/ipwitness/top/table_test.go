package top

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

var noon = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// conflictOf returns a conflict between two pods.
func conflictOf(id, address string, state pb.Conflict_State, age time.Duration, pods ...string) *pb.Conflict {
	c := &pb.Conflict{
		Id: id, Address: address, State: state, Cause: "ipam-state-lost", Summary: address + " is held by two.",
		Scope:      &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"},
		DetectedAt: timestamppb.New(noon.Add(-age)),
	}
	for i, pod := range pods {
		c.Owners = append(c.Owners, &pb.Owner{
			Address: address, Node: fmt.Sprintf("node-%d", i+1), Netns: fmt.Sprint(4026531840 + i),
			Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: pod},
		})
	}
	return c
}

func filled(rows ...*pb.Conflict) table[*pb.Conflict] {
	t := conflictTable()
	var items []*pb.Conflict
	for _, c := range rows {
		items = append(items, listedConflict(c))
	}
	t.set(items)
	return t
}

func ids(t *table[*pb.Conflict]) (out []string) {
	for _, r := range t.shown {
		out = append(out, r.GetId())
	}
	return out
}

func three() table[*pb.Conflict] {
	return filled(
		conflictOf("old", "10.0.0.9", pb.Conflict_CONFIRMED, time.Hour, "web-1", "web-2"),
		conflictOf("new", "10.0.0.10", pb.Conflict_CONFIRMED, time.Minute, "api-1", "db-1"),
		conflictOf("doubt", "10.0.0.8", pb.Conflict_SUSPECTED, time.Second, "api-2", "web-3"),
	)
}

func TestConflictsAreSortedAndFiltered(t *testing.T) {
	tests := map[string]struct {
		do   func(*table[*pb.Conflict])
		want []string
	}{
		"urgent ones first, then the newest": {func(*table[*pb.Conflict]) {}, []string{"new", "old", "doubt"}},
		"by state":                           {func(t *table[*pb.Conflict]) { t.sortNext() }, []string{"new", "old", "doubt"}},
		"by address, as numbers":             {func(t *table[*pb.Conflict]) { t.sortNext(); t.sortNext() }, []string{"doubt", "old", "new"}},
		"by address, reversed":               {func(t *table[*pb.Conflict]) { t.sortNext(); t.sortNext(); t.reverse() }, []string{"new", "old", "doubt"}},
		"by owners":                          {func(t *table[*pb.Conflict]) { t.sortNext(); t.sortNext(); t.sortNext() }, []string{"new", "doubt", "old"}},
		"in the usual order after the last column": {func(t *table[*pb.Conflict]) {
			for range 8 {
				t.sortNext()
			}
		}, []string{"new", "old", "doubt"}},
		"with a word":              {func(t *table[*pb.Conflict]) { t.filter("WEB") }, []string{"old", "doubt"}},
		"with all words":           {func(t *table[*pb.Conflict]) { t.filter("web suspected") }, []string{"doubt"}},
		"with a word of no column": {func(t *table[*pb.Conflict]) { t.filter("nothing") }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table := three()
			test.do(&table)
			if got := ids(&table); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestTheCursorStaysOnItsItem(t *testing.T) {
	table := three()
	table.move(1) // old
	table.set(append(table.all, listedConflict(conflictOf("newest", "10.0.0.11", pb.Conflict_CONFIRMED, 0, "a", "b"))))
	if item, _ := table.selected(); item.GetId() != "old" {
		t.Errorf("got the cursor on %s, want old", item.GetId())
	}
	table.set(nil)
	if _, ok := table.selected(); ok {
		t.Error("an empty table has an item under the cursor")
	}
	table.move(1)
	table = three()
	table.set(append(table.all, listedConflict(conflictOf("newest", "10.0.0.11", pb.Conflict_CONFIRMED, 0, "a", "b"))))
	if item, _ := table.selected(); item.GetId() != "newest" {
		t.Errorf("got the cursor on %s, want newest: at the top, it stays there", item.GetId())
	}
}

func TestColumnsAreLeftOutWhenTheyDoNotFit(t *testing.T) {
	headers := func(columns int) []string {
		table := filled(conflictOf("zixcww5uezxycq22", "10.244.13.107", pb.Conflict_CONFIRMED, time.Minute,
			"payment-service-7d9f8b6c5d-abcde", "payment-service-7d9f8b6c5d-fghij"))
		lines := table.view(false, columns, 20, noon)
		for _, line := range lines {
			if width(line) > columns {
				t.Errorf("at %d columns: got %q with %d columns", columns, line, width(line))
			}
		}
		if !strings.Contains(lines[2], "fghij") {
			t.Errorf("at %d columns: the end of the second pod's name is not in %q", columns, lines[2])
		}
		return strings.Fields(strings.ReplaceAll(lines[0], "\x1b[2m", ""))
	}
	tests := map[int][]string{
		40:  {"STATE", "ADDRESS", "OWNERS"},
		80:  {"STATE", "ADDRESS", "OWNERS", "SINCE"},
		100: {"STATE", "ADDRESS", "OWNERS", "SINCE", "CAUSE"},
		120: {"STATE", "ADDRESS", "OWNERS", "SINCE", "CAUSE", "ID"},
		200: {"STATE", "ADDRESS", "OWNERS", "SINCE", "CAUSE", "SCOPE", "ID"},
	}
	for columns, want := range tests {
		got := headers(columns)
		for i := range got {
			got[i] = strings.TrimSuffix(got[i], "\x1b[m")
		}
		if !slices.Equal(got, want) {
			t.Errorf("at %d columns: got %v, want %v", columns, got, want)
		}
	}
}

func TestTheWholeItemUnderTheCursorIsOnTheScreen(t *testing.T) {
	var all []*pb.Conflict
	for i := range 100 {
		all = append(all, conflictOf(fmt.Sprintf("id%02d", i), fmt.Sprintf("10.0.0.%d", i), pb.Conflict_CONFIRMED, time.Duration(i)*time.Minute, fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i)))
	}
	table := filled(all...)
	check := func() {
		t.Helper()
		lines := table.view(false, 120, 12, noon)
		item, _ := table.selected()
		screen := strings.Join(lines, "\n")
		for _, owner := range show.OwnerNames(item.GetOwners()) {
			if !strings.Contains(screen, owner) {
				t.Errorf("with the cursor on %s: its owner %s is not on the screen\n%s", item.GetId(), owner, screen)
			}
		}
		if len(lines) > 12 {
			t.Errorf("got %d lines, want at most 12", len(lines))
		}
	}
	check()
	for range 99 {
		table.move(1)
		check()
	}
	if item, _ := table.selected(); item.GetId() != "id99" {
		t.Errorf("got the cursor on %s, want id99", item.GetId())
	}
	for range 99 {
		table.move(-1)
		check()
	}
}

func BenchmarkArrange50000(b *testing.B) {
	var items []*pb.Conflict
	for i := range mostRows {
		items = append(items, listedConflict(conflictOf(fmt.Sprint("id", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), pb.Conflict_CONFIRMED, time.Duration(i)*time.Second, "web-1", "web-2")))
	}
	table := conflictTable()
	for b.Loop() {
		table.set(items)
		table.view(true, 120, 40, noon)
	}
}
