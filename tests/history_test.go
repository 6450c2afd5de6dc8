package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// history is what `ipwitness history` prints.
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

// The accident of the README, told when it is over and ipwitness was killed.
func TestTheSeedScenarioIsToldAfterwards(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	l := newLab(t, "--data-dir", dir)
	cni := l.cni(netlab.PTP)
	add := func(pods ...string) {
		for _, pod := range pods {
			if err := cni.Add(pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("web-1", "web-2", "web-3")
	l.awaitPod(podAddress(1), "web-1")
	if err := cni.Forget(); err != nil {
		t.Fatal(err)
	}
	add("api-1", "api-2", "api-3")
	l.watch.await("the duplicate to be confirmed", between(podAddress(1), ipwitnessv1.Conflict_CONFIRMED, "default/api-1 | default/web-1"))
	for _, pod := range []string{"web-1", "web-2", "web-3"} {
		if err := cni.Delete(pod); err != nil {
			t.Fatal(err)
		}
	}
	l.watch.await("the duplicate to be resolved", inState(podAddress(1), ipwitnessv1.Conflict_RESOLVED))
	wait.Until(t, "the end of web-1 in the history", func() bool {
		return slices.ContainsFunc(l.history(podAddress(1)).events, func(e map[string]any) bool { return e["type"] == "REMOVED" })
	})
	l.program.Kill()
	l.start("--node", "node1", "--data-dir", dir)
	wait.Until(t, "the end of the gap", func() bool {
		told := l.history(podAddress(1))
		return told.gaps == 1 && told.open == 0
	})
	// The history in order: the owners that came and left, and what became of the conflict. Nothing
	// happened in the gap.
	var owners, states []string
	for _, e := range l.history(podAddress(1)).events {
		if e["notBefore"] != nil {
			t.Errorf("got %v, want nothing in the gap", e)
		}
		if o, ok := e["owner"].(map[string]any); ok {
			workload, _ := o["workload"].(map[string]any)
			owners = append(owners, fmt.Sprint(e["type"], " ", workload["kind"], " ", workload["name"]))
		}
		if c, ok := e["conflict"].(map[string]any); ok && (len(states) == 0 || states[len(states)-1] != c["state"]) {
			states = append(states, fmt.Sprint(c["state"]))
		}
	}
	if want := []string{"SUSPECTED", "CONFIRMED", "RESOLVED"}; !slices.Equal(states, want) {
		t.Errorf("got states %v of the conflict, want %v", states, want)
	}
	for _, want := range []string{"REMOVED POD web-1", " POD api-1"} { // named at once or by an update
		if !slices.ContainsFunc(owners, func(o string) bool { return strings.HasSuffix(o, want) }) {
			t.Errorf("got owners %v, want %s", owners, want)
		}
	}
	// The command shows no row twice.
	rows := make(map[string]bool)
	for row := range strings.SplitSeq(strings.TrimSpace(l.says("history", podAddress(1))), "\n") {
		_, row, _ = strings.Cut(row, " ") // without the time
		if row = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(row), "UPDATED")); rows[row] {
			t.Errorf("got %q twice", row)
		}
		rows[row] = true
	}
	if t.Failed() {
		t.Log("\n" + l.says("history", podAddress(1)))
	}
}
