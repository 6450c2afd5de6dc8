package tests

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// post posts a body to the API, which must accept it.
func (l *lab) post(path, body string) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodPost, netlab.Server+path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	client := l.at.Client()
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if said, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		l.t.Fatalf("POST %s: got %s %s, %v", path, resp.Status, said, err)
	}
}

// says runs ipwitness, which must succeed, and returns its output.
func (l *lab) says(args ...string) string {
	l.t.Helper()
	said, err := l.at.Output(l.at.Command(binary, args...))
	if err != nil {
		l.t.Fatal(err)
	}
	return said
}

func TestAcknowledgedConflictIsSilentUntilItChanges(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	l := newLab(t)
	await := func(what string, is func(c *ipwitnessv1.Conflict) bool) *ipwitnessv1.Conflict {
		t.Helper()
		l.watch.await(what, func(all []*ipwitnessv1.Conflict) bool {
			return slices.ContainsFunc(all, func(c *ipwitnessv1.Conflict) bool { return c.GetAddress() == addr && is(c) })
		})
		return l.only(addr)
	}
	confirmed := func(owners int, acknowledged bool) func(c *ipwitnessv1.Conflict) bool {
		return func(c *ipwitnessv1.Conflict) bool {
			return c.GetState() == ipwitnessv1.Conflict_CONFIRMED && len(c.GetOwners()) == owners && (c.GetAcknowledgement() != nil) == acknowledged
		}
	}
	info := func() bool {
		t.Helper()
		metrics, err := l.program.Text(t.Context(), "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(metrics, fmt.Sprintf("ipwitness_conflict_info{address=%q", addr))
	}

	l.pod("a", addr+"/32")
	l.pod("b", addr+"/32")
	c := await("the duplicate to be confirmed", confirmed(2, false))
	wantWords(t, refused(t, l.Host, 2, "conflicts", "--exit-code"), addr, "CONFIRMED  ")
	if !info() {
		t.Error("ipwitness_conflict_info: got none, want one before it is acknowledged")
	}

	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	l.post("/v1/conflicts/"+c.GetId()+":acknowledge", fmt.Sprintf(`{"reason":"NET-42: moves on Friday","expiresAt":%q}`, expires))
	await("the acknowledgement to be reported", confirmed(2, true))
	silent := func() {
		t.Helper()
		// Soon after the start, whether ranges overlap is not known yet.
		wait.Until(t, "nothing to be reported", func() bool { return l.exits("conflicts", "--exit-code") == 0 })
	}
	silent()
	wantWords(t, l.says("conflicts"), addr, "CONFIRMED (ack)")
	wantWords(t, l.says("conflicts", addr), "Acknowledged until ", "NET-42: moves on Friday")
	wantWords(t, l.says("explain", addr), "is acknowledged until ")
	if info() {
		t.Error("ipwitness_conflict_info: got one, want none while it is acknowledged")
	}

	l.pod("c", addr+"/32") // another owner
	await("the third owner to end it", confirmed(3, false))
	refused(t, l.Host, 2, "conflicts", "--exit-code")

	wantWords(t, l.says("acknowledge", addr, "--reason", "NET-43", "--for", "1d"), "is acknowledged until ", "NET-43")
	await("it to be acknowledged again", confirmed(3, true))
	silent()
	l.says("acknowledge", addr, "--withdraw")
	await("it to be taken back", confirmed(3, false))
	l.says("acknowledge", addr, "--reason", "NET-43", "--for", "1d")
	await("it to be acknowledged once more", confirmed(3, true))

	for _, pod := range []string{"b", "c"} {
		l.sh(fmt.Sprintf("ip -n %s addr del %s/32 dev eth0", pod, addr))
	}
	l.watch.await(addr+" to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
	if ack := l.only(addr).GetAcknowledgement(); ack != nil {
		t.Errorf("acknowledgement of a resolved conflict: got %v, want none", ack)
	}
	l.assign("b", addr+"/32") // part of an earlier episode
	if c := await("the recurrence to be confirmed", confirmed(2, false)); c.GetEpisode() != 2 {
		t.Errorf("episode: got %d, want 2", c.GetEpisode())
	}
	refused(t, l.Host, 2, "conflicts", "--exit-code")
}
