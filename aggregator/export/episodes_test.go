package export

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A told is a step of a history of one conflict, by the clock of a replica.
type told struct {
	state pb.Conflict_State
	// began is when the second owner got the address, and at when the replica recorded the step; in
	// milliseconds since the former leader told something last. number is the replica's own number of the
	// episode.
	began, at int
	number    uint32
	// want are the names of the transitions that a new leader tells because of this step.
	want []string
}

// A new leader compares its own records with what the former leader has told by the times at which agents saw
// episodes begin, however often a conflict comes and goes, and whenever replicas detect that.
func TestANewLeaderFindsItsPlace(t *testing.T) {
	const suspect, confirm, end = pb.Conflict_SUSPECTED, pb.Conflict_CONFIRMED, pb.Conflict_RESOLVED
	for _, c := range []struct {
		what string
		// known is what the former leader told last; the zero entry for nothing. began is as in told.
		known rank
		began int
		steps []told
	}{
		{"short episodes that were told", confirmed, -1000, []told{
			{confirm, -5000, -4000, 1, nil},
			{end, -5000, -2000, 1, nil},
			{confirm, -1000, -500, 2, nil},
			{end, -1000, 100, 2, []string{"resolved"}},
			{confirm, 600, 900, 3, []string{"confirmed"}},
			{end, 600, 1900, 3, []string{"resolved"}},
		}},
		{"an episode that the former leader did not tell to the end, and its next one", confirmed, -5000, []told{
			{confirm, -5000, -4000, 1, nil}, {end, -5000, -3000, 1, []string{"resolved"}}, {confirm, -2000, -1500, 2, []string{"confirmed"}},
		}},
		{"an episode that was recorded late, after what was told", confirmed, -20_000, []told{{confirm, -20_000, 40_000, 7, nil}, {end, -20_000, 50_000, 7, []string{"resolved"}}}},
		{"an end that was told, and was recorded late", over, -20_000, []told{{confirm, -20_000, 3000, 1, nil}, {end, -20_000, 4000, 1, nil}, {confirm, 4500, 5000, 2, []string{"confirmed"}}}},
		{"the end of an episode of which nothing was told, and nothing is known", over, -20_000, []told{{end, -1000, 500, 1, nil}, {confirm, 900, 1000, 2, []string{"confirmed"}}}},
		{"the end of a conflict of which nothing was told", unranked, 0, []told{{end, -1000, 500, 1, nil}}},
		{"a conflict of which nothing was told", unranked, 0, []told{{confirm, -1000, -500, 1, []string{"confirmed"}}, {end, -1000, 500, 1, []string{"resolved"}}}},
		{"an end that this replica did not see, before it saw the next episode", confirmed, -9000, []told{{confirm, -1000, -500, 2, []string{"resolved", "confirmed"}}}},
		{"another owner in an episode that lasts, and its end", confirmed, -9000, []told{
			{confirm, -9000, -8500, 1, nil}, {confirm, -1000, 500, 1, []string{"updated"}}, {end, -1000, 800, 1, []string{"resolved"}},
		}},
		{"updates before and after what was told", confirmed, -9000, []told{{confirm, -9000, -8500, 1, nil}, {confirm, -9000, -7000, 1, nil}, {confirm, -9000, 500, 1, []string{"updated"}}}},
		{"a conflict that is not confirmed any longer", confirmed, -9000, []told{{confirm, -9000, -8500, 1, nil}, {suspect, -9000, 500, 1, []string{"suspected"}}, {confirm, -9000, 900, 1, []string{"confirmed"}}}},
		{"a time that an agent computed again", confirmed, -9000, []told{{confirm, -8700, 500, 1, nil}, {end, -8700, 900, 1, []string{"resolved"}}}},
		{"an older episode", confirmed, -1000, []told{{confirm, -9000, -8000, 1, nil}, {end, -9000, 300, 1, nil}}},
		{"an episode that this replica takes for the one before, whose end was told", over, -9000, []told{
			{confirm, -9000, -8500, 1, nil}, {confirm, -1000, 500, 1, []string{"confirmed"}}, {confirm, -1000, 700, 1, []string{"updated"}}, {end, -1000, 800, 1, []string{"resolved"}},
		}},
		{"an episode that this replica takes for one that was not told", confirmed, -5000, []told{
			{confirm, -9000, -8500, 1, nil}, {confirm, -1000, 500, 1, []string{"resolved", "confirmed"}}, {end, -1000, 800, 1, []string{"resolved"}},
		}},
	} {
		last := time.Now().Truncate(time.Second)
		when := func(ms int) time.Time { return last.Add(time.Duration(ms) * time.Millisecond) }
		h := &handover{from: last, seen: make(map[string]entry)}
		x := &exporter{handover: h, to: &webhook{}, phases: make(phases)}
		if c.known != unranked {
			h.seen["conflict-a"] = entry{Rank: c.known, At: last, Began: when(c.began)}
		}
		for _, step := range c.steps {
			tr := x.phases.transition(&pb.Event{Time: timestamppb.New(when(step.at)), Conflict: &pb.Conflict{
				Id: "a", State: step.state, Episode: step.number, DetectedAt: timestamppb.New(when(step.at)),
				Owners: []*pb.Owner{{AssignedAt: timestamppb.New(when(step.began))}, {FirstSeen: timestamppb.New(when(-60_000))}},
			}}, false)
			var got []string
			for _, one := range x.addNews(nil, &tr) {
				got = append(got, strings.TrimPrefix(one.name, "conflict."))
			}
			if !slices.Equal(got, step.want) {
				t.Errorf("%s: at %d ms, %s: got %v told, want %v", c.what, step.at, step.state, got, step.want)
			}
		}
	}
}

// What the former leader was telling when it ended has the same id when it is told again. Another episode never
// gets that id, whatever happens within seconds.
func TestAClaimBelongsToOneEpisode(t *testing.T) {
	last := time.Now().Truncate(time.Second)
	at := func(seconds int) *timestamppb.Timestamp {
		return timestamppb.New(last.Add(time.Duration(seconds) * time.Second))
	}
	of := func(p phases, state pb.Conflict_State, began, seen int) *transition {
		tr := p.transition(&pb.Event{Time: at(seen), Conflict: &pb.Conflict{
			Id: "a", State: state, Episode: uint32(20 + seen), DetectedAt: at(began), Owners: []*pb.Owner{{AssignedAt: at(-60)}, {AssignedAt: at(began)}}, //nolint:gosec // small
		}}, false)
		return &tr
	}
	h := &handover{
		from: last, seen: map[string]entry{"conflict-a": {Rank: over, At: at(-6).AsTime(), Began: at(-8).AsTime()}},
		claimed: map[string][]entry{"conflict-a": {
			{Subject: "conflict-a", ID: "first", Rank: confirmed, At: at(-4).AsTime(), Began: at(-5).AsTime()},
			{Subject: "conflict-a", ID: "second", Rank: over, At: at(-3).AsTime(), Began: at(-5).AsTime()},
			{Subject: "conflict-a", ID: "third", Rank: confirmed, At: at(-1).AsTime(), Began: at(-2).AsTime()},
		}},
	}
	p := make(phases)
	for _, state := range []pb.Conflict_State{pb.Conflict_CONFIRMED, pb.Conflict_RESOLVED} {
		if h.news(of(p, state, -7, -6)) {
			t.Errorf("%s of an episode before the one that the former leader was telling is told", state)
		}
	}
	if h.news(of(p, pb.Conflict_SUSPECTED, -5, -5)) {
		t.Error("the beginning of what the former leader was telling to be confirmed is told")
	}
	for _, c := range []struct {
		t    *transition
		want string
	}{
		{of(p, pb.Conflict_CONFIRMED, -5, -4), "first"},
		{of(p, pb.Conflict_RESOLVED, -5, -3), "second"},
		{of(p, pb.Conflict_CONFIRMED, -2, 1), "third"},
		{of(p, pb.Conflict_RESOLVED, -2, 2), ""},
		{of(p, pb.Conflict_CONFIRMED, 3, 4), ""},
	} {
		own := c.t.id
		if c.want == "" {
			c.want = own
		}
		if !h.news(c.t) || c.t.id != c.want {
			t.Errorf("%s at %s: got id %s, want %s", c.t.name, c.t.at, c.t.id, c.want)
		}
	}
}

// What the former leader was telling when it ended may have been told. If this replica has not seen it, it tells its
// end before it tells the next episode.
func TestAClaimThatWasNotSeenIsEnded(t *testing.T) {
	last := time.Now().Truncate(time.Second)
	at := func(seconds int) *timestamppb.Timestamp {
		return timestamppb.New(last.Add(time.Duration(seconds) * time.Second))
	}
	for _, c := range []struct {
		what   string
		claims []entry
		want   []string
	}{
		{"a beginning", []entry{{Rank: confirmed, Began: at(-5).AsTime()}}, []string{"conflict.resolved", "conflict.confirmed"}},
		{"a beginning and its end", []entry{{Rank: confirmed, Began: at(-5).AsTime()}, {Rank: over, Began: at(-5).AsTime()}}, []string{"conflict.confirmed"}},
		{"the same episode", []entry{{Rank: confirmed, Began: at(-1).AsTime()}}, []string{"conflict.confirmed"}},
		{"nothing", nil, []string{"conflict.confirmed"}},
	} {
		h := &handover{from: last, seen: make(map[string]entry), claimed: map[string][]entry{"conflict-a": c.claims}}
		x := &exporter{handover: h, to: &webhook{}, phases: make(phases)}
		tr := x.phases.transition(&pb.Event{Time: at(1), Conflict: &pb.Conflict{
			Id: "a", State: pb.Conflict_CONFIRMED, Episode: 1, DetectedAt: at(1), Owners: []*pb.Owner{{AssignedAt: at(-60)}, {AssignedAt: at(-1)}},
		}}, false)
		var got []string
		for _, one := range x.addNews(nil, &tr) {
			got = append(got, one.name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
	}
}
