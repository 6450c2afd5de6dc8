package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// story returns pages of events that begin today, if within a few minutes, or yesterday.
func story() [][]*pb.Event {
	web, cart := pod("default", "web-1", "1"), pod("shop", "cart", "2")
	web.Evidence, cart.Evidence = nil, nil
	late := proto.CloneOf(cart)
	late.State = pb.Owner_DISCONNECTED
	loopback := pod("kube-system", "dns", "4")
	loopback.Address, loopback.Excluded = "169.254.20.10", "it is on a loopback or dummy device"
	event := func(before time.Duration, kind pb.Watch_Type) *pb.Event {
		return &pb.Event{Time: at(before), Type: kind}
	}
	owner := func(before time.Duration, kind pb.Watch_Type, o *pb.Owner) *pb.Event {
		e := event(before, kind)
		e.Kind, e.Owner = pb.Event_OWNER, o
		return e
	}
	conflicted := func(before time.Duration, kind pb.Watch_Type, state pb.Conflict_State) *pb.Event {
		e := event(before, kind)
		e.Kind, e.Conflict = pb.Event_CONFLICT, conflict(state)
		return e
	}
	suspected := conflicted(3*time.Minute, pb.Watch_ADDED, pb.Conflict_SUSPECTED)
	suspected.Conflict.Cause = "unknown"
	found := event(4*time.Minute+30*time.Second, pb.Watch_ADDED)
	found.Kind, found.Finding = pb.Event_FINDING, finding(7, "in-use-unallocated", pb.Finding_CRITICAL)
	silent := event(2*time.Minute, pb.Watch_UPDATED)
	silent.Kind, silent.Node = pb.Event_NODE, &pb.Node{Name: "worker-1", State: pb.Node_DISCONNECTED, Problems: []string{"frames are not seen:\ngive the process CAP_BPF"}}
	old := owner(7*time.Minute, pb.Watch_ADDED, cart)
	old.Present = true
	unseen := owner(time.Minute, pb.Watch_UPDATED, late)
	unseen.NotBefore = at(100 * time.Second)
	return [][]*pb.Event{
		{old, owner(6*time.Minute, pb.Watch_ADDED, web), owner(5*time.Minute, pb.Watch_ADDED, loopback)},
		{
			found, suspected, conflicted(3*time.Minute-time.Second, pb.Watch_UPDATED, pb.Conflict_CONFIRMED),
			silent,
		},
		{unseen, conflicted(30*time.Second, pb.Watch_UPDATED, pb.Conflict_RESOLVED), owner(20*time.Second, pb.Watch_REMOVED, web)},
	}
}

func TestHistory(t *testing.T) {
	for name, test := range map[string]struct {
		format Format
		gaps   []*pb.Gap
		pages  [][]*pb.Event
	}{
		"history":         {FormatTable, gaps()[:3], story()}, // all of today
		"history-wide":    {FormatWide, gaps(), story()},      // from yesterday on
		"history-gaps":    {FormatTable, gaps()[3:], nil},
		"history-nothing": {FormatTable, nil, nil},
		"history-json":    {FormatJSON, gaps()[2:3], story()[2:]},
		"history-yaml":    {FormatYAML, gaps()[2:3], story()[2:]},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			h := NewHistory(&b, test.format, piped, now)
			h.Gaps(test.gaps)
			for i, page := range test.pages {
				before := b.Len()
				if err := h.Events(page); err != nil {
					t.Fatal(err)
				}
				if b.Len() == before {
					t.Errorf("page %d was not written at once", i)
				}
			}
			if err := h.End(); err != nil {
				t.Fatal(err)
			}
			if test.format.ForPrograms() {
				if err := h.Bookmark(at(48*time.Hour), &pb.Coverage{Expected: 2, Heard: 2}); err != nil {
					t.Fatal(err)
				}
			}
			wantShown(t, name, b.String())
		})
	}
}

// The zone of the machine makes no difference.
func TestHistoryIsInUTC(t *testing.T) {
	var here, there bytes.Buffer
	elsewhere := now.In(time.FixedZone("elsewhere", -(9*60+30)*60))
	for b, now := range map[*bytes.Buffer]time.Time{&here: now, &there: elsewhere} {
		h := NewHistory(b, FormatTable, piped, now)
		h.Gaps(gaps()[:3])
		for _, page := range story() {
			if err := h.Events(page); err != nil {
				t.Fatal(err)
			}
		}
	}
	if here.String() != there.String() || bytes.Count(here.Bytes(), []byte("UTC")) != 1 {
		t.Errorf("got\n%s\nin another time zone, want\n%s\nwith the zone once", &there, &here)
	}
}

// The column of the cluster is there even if the first row is a gap.
func TestHistoryOfAFleetBeginsWithAGap(t *testing.T) {
	var b bytes.Buffer
	h := NewHistory(&b, FormatTable, piped, now)
	page := story()[0]
	for _, e := range page {
		e.Cluster = "east"
	}
	h.Gaps([]*pb.Gap{{From: timestamppb.New(page[0].GetTime().AsTime().Add(-time.Minute)), Until: page[0].GetTime()}})
	if err := h.Events(page); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "no records until") || !strings.Contains(b.String(), "CLUSTER") || !strings.Contains(b.String(), "east") {
		t.Errorf("got\n%s\nwant the gap, and the cluster of each event", &b)
	}
}

// The accident of the README, as TestTheSeedScenarioIsToldAfterwards of ./tests recorded it.
func TestTheSeedScenarioToldAfterwards(t *testing.T) {
	f, err := os.Open("testdata/history-seed.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b bytes.Buffer
	h := NewHistory(&b, FormatTable, piped, time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC))
	var events []*pb.Event
	for lines := json.NewDecoder(f); ; {
		var raw json.RawMessage
		if err := lines.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var line struct {
			Type string
			Gap  json.RawMessage
		}
		if err := json.Unmarshal(raw, &line); err != nil {
			t.Fatal(err)
		}
		var m proto.Message
		switch line.Type {
		case "BOOKMARK":
			continue
		case "GAP":
			g := &pb.Gap{}
			h.Gaps([]*pb.Gap{g})
			raw, m = line.Gap, g
		default:
			e := &pb.Event{}
			events = append(events, e)
			m = e
		}
		if err := protojson.Unmarshal(raw, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Events(events); err != nil {
		t.Fatal(err)
	}
	if err := h.End(); err != nil {
		t.Fatal(err)
	}
	wantShown(t, "history-seed", b.String())
}
