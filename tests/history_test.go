package tests

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The seed scenario is told after it is over and the aggregator was killed.
func TestTheHistoryOutlivesSIGKILL(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.2"
	dir := filepath.Join(t.TempDir(), "data")
	c := newAggregator(t, "--data-dir", dir)
	n := c.addNode("node1")
	n.pod("a", addr+"/32")
	n.pod("b", addr+"/32")
	c.watch.await("the duplicate to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	before := c.only(addr)
	n.sh("ip -n b addr del " + addr + "/32 dev eth0")
	c.watch.await("the duplicate to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
	var told history
	wait.Until(t, "the end of the conflict in the history", func() bool {
		told = c.history(addr)
		return told.conflict(before.GetId(), "RESOLVED")
	})
	if !told.conflict(before.GetId(), "CONFIRMED") || told.gaps > 0 {
		t.Errorf("got %+v before the restart", told)
	}

	c.program.Kill()
	c.serve()
	var after history
	wait.Until(t, "the end of the gap", func() bool {
		after = c.history(addr)
		return after.gaps == 1 && after.open == 0
	})
	if len(after.events) < len(told.events) || !reflect.DeepEqual(after.events[:len(told.events)], told.events) {
		t.Errorf("got %+v after SIGKILL, want %+v first", after.events, told.events)
	}
	wantWords(t, c.says("history", addr), "CONFIRMED", "RESOLVED")
}

// history is what `+"`ipwitness history`"+` prints.
type history struct {
	events []map[string]any
	// gaps is the number of gaps, and open is the number of those that have not ended.
	gaps, open int
}

func (l *lab) history(args ...string) (h history) {
	l.t.Helper()
	lines := json.NewDecoder(strings.NewReader(l.says(append([]string{"history", "-o", "json"}, args...)...)))
	for {
		var line map[string]any
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return h
		} else if err != nil {
			l.t.Fatal(err)
		}
		switch line["type"] {
		case "GAP":
			h.gaps++
			if gap, ok := line["gap"].(map[string]any); !ok || gap["until"] == nil {
				h.open++
			}
		case "BOOKMARK":
		default:
			h.events = append(h.events, line)
		}
	}
}

// conflict reports whether a conflict had a state.
func (h history) conflict(id, state string) bool {
	return slices.ContainsFunc(h.events, func(e map[string]any) bool {
		c, ok := e["conflict"].(map[string]any)
		return ok && c["id"] == id && c["state"] == state
	})
}
