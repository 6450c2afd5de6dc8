package export

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func (b *bench) awaitFiring(h *hook, want ...string) map[string]alert {
	b.Helper()
	var got map[string]alert
	wait.Until(b, fmt.Sprintf("the alerts %q", want), func() bool {
		got = b.firing(h)
		for _, name := range want {
			if _, fires := got[name]; !fires {
				return false
			}
		}
		return len(got) == len(want)
	})
	return got
}

// An alert fires while its conflict is confirmed and not acknowledged, and ends with it, also if that
// happens during a restart.
func TestAlertsOfConflicts(t *testing.T) {
	h := newHook(t)
	b := newBench(t, Settings{Alertmanagers: []string{h.URL}})
	one := b.conflict(1)
	b.state(one)
	const name = "IpwitnessAddressConflict 10.0.0.1"
	got := b.awaitFiring(h, name)[name]
	for label, want := range map[string]string{
		"severity": "critical", "cluster": "prod", "cause": "static-address", "id": "id1", "incident": "id1", "scope": "pods", "state": "confirmed",
	} {
		if got.Labels[label] != want {
			t.Errorf("label %s: got %q, want %q", label, got.Labels[label], want)
		}
	}
	if !got.StartsAt.Equal(one.GetConfirmedAt().AsTime()) || got.Annotations["runbook_url"] == "" || got.Annotations["summary"] == "" {
		t.Errorf("got %+v", got)
	}

	// Other labels are another alert: the first one ends.
	one.Cause = "split-brain"
	b.changed(one)
	wait.Until(t, "the new cause", func() bool {
		firing := b.firing(h)
		return len(firing) == 1 && firing[name].Labels["cause"] == "split-brain"
	})

	acknowledged := proto.CloneOf(one)
	acknowledged.Acknowledgement = &pb.Acknowledgement{ExpiresAt: timestamppb.New(b.clock().Add(time.Hour))}
	b.changed(acknowledged)
	b.awaitFiring(h)
	b.changed(one)
	b.awaitFiring(h, name)

	b.restart() // the conflict is gone meanwhile
	b.awaitFiring(h)
	b.changed(b.conflict(2))
	b.awaitFiring(h, "IpwitnessAddressConflict 10.0.0.2")
}

// Alerts are evaluated again as time passes, and are sent again before they end.
func TestAlertsAreRepeated(t *testing.T) {
	h := newHook(t)
	cfg := Config{Cluster: "prod"}
	var now time.Time
	cfg.Clock = func() time.Time { return now }
	to, err := newAlertmanager(&cfg, secure.Files{}, h.URL)
	if err != nil {
		t.Fatal(err)
	}
	a := to.alerts
	b := &bench{TB: t, now: time.Now()}
	now = b.now
	suspected := b.conflict(1)
	suspected.State, suspected.ConfirmedAt = pb.Conflict_SUSPECTED, nil
	deliver := func(some ...*pb.Event) (sent int) {
		t.Helper()
		before := len(h.all())
		var all []transition
		for _, e := range some {
			e.Time = timestamppb.New(now)
			all = append(all, make(phases).transition(e, false))
		}
		b.now = now
		b.must(a.deliver(t.Context(), all))
		return len(h.all()) - before
	}
	if n := deliver(&pb.Event{Conflict: suspected}); n != 0 || a.due().Before(now) {
		t.Errorf("got %d requests about a conflict that is suspected", n)
	}
	now = now.Add(suspectedRule.after)
	if n := deliver(); n != 1 {
		t.Errorf("got %d requests about a conflict that is suspected for long, want 1", n)
	}
	b.awaitFiring(h, "IpwitnessAddressConflictSuspected 10.0.0.1")
	now = now.Add(evaluateEvery)
	if n := deliver(); n != 0 {
		t.Errorf("got %d requests, want none as nothing has changed", n)
	}
	now = now.Add(resendEvery)
	if n := deliver(); n != 1 {
		t.Errorf("got %d requests after %s, want 1", n, resendEvery)
	}
	b.awaitFiring(h, "IpwitnessAddressConflictSuspected 10.0.0.1")

	// An attempt that fails is repeated.
	h.answers(func(http.ResponseWriter, int) int { return http.StatusInternalServerError })
	over := &pb.Event{Conflict: resolved(suspected, now)}
	t1 := make(phases).transition(over, false)
	if err := a.deliver(t.Context(), []transition{t1}); err == nil {
		t.Error("got no error")
	}
	h.answers(nil)
	if n := deliver(over); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
	now = now.Add(time.Second)
	b.now = now
	b.awaitFiring(h)
	for range resolvedKept/resendEvery + 1 {
		now = now.Add(resendEvery)
		deliver()
	}
	if len(a.known) != 0 || !a.due().IsZero() {
		t.Errorf("got %v, want nothing to repeat", a.known)
	}
}

// A conflict that was confirmed, and is suspected again, may be confirmed again at once: it alerts if it stays suspected.
func TestAConflictIsSuspectedAgain(t *testing.T) {
	now := time.Now().Round(0)
	c := &pb.Conflict{Id: "a", Episode: 1, State: pb.Conflict_SUSPECTED, DetectedAt: timestamppb.New(now.Add(-24 * time.Hour))}
	p := make(phases)
	to := func(state pb.Conflict_State, at time.Time) *alert {
		c = proto.CloneOf(c)
		if c.State = state; state == pb.Conflict_CONFIRMED {
			c.ConfirmedAt = timestamppb.New(at)
		} else {
			c.ConfirmedAt = nil
		}
		of := p.transition(&pb.Event{Time: timestamppb.New(at), Conflict: c}, false)
		return conflictAlert(c, of.since, now)
	}
	if one := to(pb.Conflict_SUSPECTED, now.Add(-time.Hour)); one == nil || !one.StartsAt.Equal(c.GetDetectedAt().AsTime().Add(suspectedRule.after)) {
		t.Errorf("got %+v about a conflict that was never confirmed, want an alert since ten minutes after its detection", one)
	}
	if one := to(pb.Conflict_CONFIRMED, now.Add(-time.Hour)); one == nil || one.Labels["state"] != "confirmed" {
		t.Errorf("got %+v, want that it is confirmed", one)
	}
	if one := to(pb.Conflict_SUSPECTED, now.Add(-time.Minute)); one != nil {
		t.Errorf("got %+v a minute after it was suspected again, want nothing", one)
	}
	to(pb.Conflict_CONFIRMED, now.Add(-time.Hour))
	to(pb.Conflict_SUSPECTED, now.Add(-suspectedRule.after))
	if one := to(pb.Conflict_SUSPECTED, now.Add(-time.Second)); one == nil || !one.StartsAt.Equal(now) {
		t.Errorf("got %+v after ten minutes, want an alert since now", one)
	}
	// A replica that begins now reads what came before from the journal.
	if of := p.transition(&pb.Event{Time: timestamppb.New(now), Conflict: c}, true); !of.since.Equal(now.Add(-suspectedRule.after)) {
		t.Errorf("got suspected since %v, want %v", of.since, now.Add(-suspectedRule.after))
	}
}

// Alerts have the names, severities and waits of the rules for Prometheus.
func TestAlertsFollowTheRules(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/helm/ipwitness/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert  string
				For    time.Duration
				Labels map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	rules := []rule{confirmedRule, suspectedRule, poolFullRule}
	for _, kind := range verdict.FindingKinds() {
		r, known := findingRules[kind]
		if !known {
			t.Errorf("finding %s has no alert", kind)
		}
		rules = append(rules, r)
	}
	for _, want := range rules {
		if !slices.ContainsFunc(file.Groups, func(g struct {
			Rules []struct {
				Alert  string
				For    time.Duration
				Labels map[string]string
			}
		},
		) bool {
			for _, r := range g.Rules {
				if r.Alert == want.alert && r.For == want.after && r.Labels["severity"] == want.severity {
					return true
				}
			}
			return false
		}) {
			t.Errorf("rules.yaml has no %+v", want)
		}
	}
}

// Findings have alerts if their severity has one. A pool without addresses is full.
func TestAlertsOfFindings(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		finding *pb.Finding
		age     time.Duration
		want    string
	}{
		{&pb.Finding{Kind: verdict.FindingInUseUnallocated, Severity: pb.Finding_CRITICAL}, time.Minute, "IpwitnessAddressInUseUnallocated"},
		{&pb.Finding{Kind: verdict.FindingInUseUnallocated, Severity: pb.Finding_CRITICAL}, time.Second, ""},
		{&pb.Finding{Kind: verdict.FindingInUseUnallocated, Severity: pb.Finding_WARNING}, time.Hour, ""},
		{&pb.Finding{Kind: verdict.FindingPoolExhaustion, Pool: &pb.Pool{Size: 10, Allocated: 10}}, time.Minute, "IpwitnessPoolFull"},
		{&pb.Finding{Kind: verdict.FindingPoolExhaustion, Pool: &pb.Pool{Size: 10, Allocated: 9}}, time.Minute, ""},
		{&pb.Finding{Kind: verdict.FindingPoolExhaustion, Pool: &pb.Pool{Size: 10, Allocated: 9}}, time.Hour, "IpwitnessPoolNearlyFull"},
		{&pb.Finding{Kind: verdict.FindingOrphanedSandbox, Severity: pb.Finding_CRITICAL}, time.Minute, "IpwitnessAddressInUseUnallocated"},
		{&pb.Finding{Kind: verdict.FindingOrphanedSandbox, Severity: pb.Finding_CRITICAL}, time.Hour, "IpwitnessOrphanedSandbox IpwitnessAddressInUseUnallocated"},
		{&pb.Finding{Kind: verdict.FindingOrphanedSandbox, Severity: pb.Finding_WARNING}, time.Hour, "IpwitnessOrphanedSandbox"},
		{&pb.Finding{Kind: "of a later version"}, time.Hour, ""},
	} {
		test.finding.DetectedAt = timestamppb.New(now.Add(-test.age))
		var names []string
		for _, a := range findingAlerts(test.finding, now) {
			names = append(names, a.Labels["alertname"])
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%v: got alert %q, want %q", test.finding, got, test.want)
		}
	}
}

// A number that changes changes an annotation, and not the alert.
func TestAlertsCountWhoSendsAstray(t *testing.T) {
	now := time.Unix(1800000000, 0)
	of := func(kind string, beliefs []*pb.Belief, endpoints ...*pb.Endpoint) *alert {
		t.Helper()
		all := findingAlerts(&pb.Finding{
			Kind: kind, Id: "id1", Address: "10.0.0.1", Severity: pb.Finding_CRITICAL, DetectedAt: timestamppb.New(now.Add(-time.Hour)), Beliefs: beliefs, Endpoints: endpoints,
		}, now)
		if len(all) != 1 {
			t.Fatalf("got %d alerts, want one", len(all))
		}
		return all[0]
	}
	two := of(verdict.FindingStaleBelief, []*pb.Belief{{Count: 1}, {Count: 1}})
	three := of(verdict.FindingStaleBelief, []*pb.Belief{{Count: 3}})
	if two.Annotations["senders"] != "2" || three.Annotations["senders"] != "3" || two.key() != three.key() {
		t.Errorf("got %v and %v, want one alert with 2 and then 3 senders", two, three)
	}
	one := of(verdict.FindingEndpointOfFormerOwner, nil, &pb.Endpoint{Service: "web"}, &pb.Endpoint{Service: "web"})
	if _, senders := one.Annotations["senders"]; one.Annotations["services"] != "1" || senders {
		t.Errorf("got %v, want one Service, and no number of senders", one)
	}
}
