package export

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	// EndsAt is the time at which the alert ends if it is not sent again.
	EndsAt time.Time `json:"endsAt"`
	// over is set if the alert has ended.
	over bool
}

func (a *alert) key() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		b.WriteString(name + "\x00" + a.Labels[name] + "\x00")
	}
	return b.String()
}

// The severities of alerts.
const (
	critical = "critical"
	warning  = "warning"
	info     = "info"
)

// A rule is the counterpart of an alert in deploy/helm/ipwitness/files/rules.yaml, so that routes and
// silences are the same for both.
type rule struct {
	alert, severity string
	// after is how long there has to be a reason for the alert.
	after time.Duration
	// only is the severity that a finding must have; 0 for any.
	only pb.Finding_Severity
}

var (
	confirmedRule = rule{alert: "IpwitnessAddressConflict", severity: critical}
	suspectedRule = rule{alert: "IpwitnessAddressConflictSuspected", severity: warning, after: 10 * time.Minute}
	poolFullRule  = rule{alert: "IpwitnessPoolFull", severity: critical, after: time.Minute}
)

// findingRules are the rules by kind of finding. A pool with free addresses is nearly full.
var findingRules = map[string]rule{
	verdict.FindingAddressSpoofed:        {"IpwitnessAddressSpoofed", critical, 0, 0},
	verdict.FindingMACCloned:             {"IpwitnessMACCloned", critical, 0, pb.Finding_CRITICAL},
	verdict.FindingIPAMStateLost:         {"IpwitnessIPAMStateLost", critical, 0, 0},
	verdict.FindingInUseUnallocated:      {"IpwitnessAddressInUseUnallocated", critical, time.Minute, pb.Finding_CRITICAL},
	verdict.FindingBookedElsewhere:       {"IpwitnessAddressBookedElsewhere", critical, time.Minute, pb.Finding_CRITICAL},
	verdict.FindingDoubleAllocated:       {"IpwitnessAddressDoubleAllocated", critical, time.Minute, pb.Finding_CRITICAL},
	verdict.FindingPodCIDROverlap:        {"IpwitnessPodCIDROverlap", critical, time.Minute, pb.Finding_CRITICAL},
	verdict.FindingRangesOverlap:         {"IpwitnessRangesOverlap", warning, 10 * time.Minute, pb.Finding_WARNING},
	verdict.FindingIPAMUnreadable:        {"IpwitnessIPAMUnreadable", warning, 10 * time.Minute, 0},
	verdict.FindingIntendedNotObserved:   {"IpwitnessAddressNotObserved", warning, 10 * time.Minute, 0},
	verdict.FindingSharedAddressAnswered: {"IpwitnessSharedAddressAnswered", warning, 10 * time.Minute, 0},
	verdict.FindingAnsweredByAnother:     {"IpwitnessAddressAnsweredByAnother", critical, 0, pb.Finding_CRITICAL},
	verdict.FindingVIPHeldElsewhere:      {"IpwitnessVIPHeldElsewhere", critical, time.Minute, 0},
	verdict.FindingPoolExhaustion:        {"IpwitnessPoolNearlyFull", warning, 20 * time.Minute, 0},
	verdict.FindingLeaked:                {"IpwitnessAddressesLeaked", info, time.Hour, 0},
	verdict.FindingOrphanedSandbox:       {"IpwitnessOrphanedSandbox", warning, 5 * time.Minute, 0},
	verdict.FindingReusedTooSoon:         {"IpwitnessAddressReusedTooSoon", info, 0, 0},
	verdict.FindingStaleBelief:           {"IpwitnessStaleBelief", critical, time.Minute, pb.Finding_CRITICAL},
	verdict.FindingEndpointOfFormerOwner: {"IpwitnessEndpointOfFormerOwner", critical, time.Minute, 0},
	verdict.FindingIdentityMismatch:      {"IpwitnessIdentityMismatch", critical, time.Minute, 0},
	verdict.FindingDuplicateNodeName:     {"IpwitnessDuplicateNodeName", warning, time.Minute, 0},
}

// fires returns the alert of a rule, without labels of its subject; nil if it does not fire yet.
func (r *rule) fires(since, now time.Time, text explain.AlertText) *alert {
	if now.Sub(since) < r.after {
		return nil
	}
	return &alert{
		Labels:      map[string]string{"alertname": r.alert, "severity": r.severity},
		Annotations: map[string]string{"summary": text.Summary, "description": text.Description, "runbook_url": text.Runbook},
		StartsAt:    since.Add(r.after),
	}
}

// conflictAlert returns the alert of an active conflict that reached its state at a time; nil if it has none now.
func conflictAlert(c *pb.Conflict, since, now time.Time) *alert {
	if ack := c.GetAcknowledgement(); ack != nil && ack.GetExpiresAt().AsTime().After(now) {
		return nil
	}
	r, state := &suspectedRule, "suspected"
	if c.GetState() == pb.Conflict_CONFIRMED {
		r, since, state = &confirmedRule, c.GetConfirmedAt().AsTime(), "confirmed"
	}
	one := r.fires(since, now, explain.ConflictAlert(c.GetAddress(), c.GetCause(), c.GetId(), c.GetSummary(), c.GetState() == pb.Conflict_CONFIRMED))
	if one != nil {
		one.label("address", c.GetAddress(), "cause", c.GetCause(), "id", c.GetId(), "incident", incident.OfMember(c), "scope", c.GetScope().GetName(), "state", state)
	}
	return one
}

func findingAlerts(f *pb.Finding, now time.Time) (all []*alert) {
	var rules []rule
	if r, known := findingRules[f.GetKind()]; known {
		rules = append(rules, r)
	}
	switch f.GetKind() {
	case verdict.FindingPoolExhaustion:
		if f.GetPool().GetSize() > 0 && f.GetPool().GetAllocated() >= f.GetPool().GetSize() {
			rules[0] = poolFullRule
		}
	case verdict.FindingOrphanedSandbox: // a critical one has an address that IPAM considers free
		rules = append(rules, findingRules[verdict.FindingInUseUnallocated])
	}
	for _, r := range rules {
		if r.only != 0 && f.GetSeverity() != r.only {
			continue
		}
		one := r.fires(f.GetDetectedAt().AsTime(), now, explain.FindingAlert(f.GetKind(), f.GetId(), f.GetSummary()))
		if one == nil {
			continue
		}
		one.label("kind", f.GetKind(), "id", f.GetId(), "incident", incident.OfMember(f), "address", f.GetAddress(), "pool", f.GetPool().GetName())
		senders, services := 0, make(map[string]bool)
		for _, b := range f.GetBeliefs() {
			senders += int(b.GetCount())
		}
		for _, e := range f.GetEndpoints() {
			services[e.GetNamespace()+"/"+e.GetService()] = true
		}
		one.count("senders", senders)
		one.count("services", len(services))
		if len(f.GetNodes()) == 1 {
			one.label("node", f.GetNodes()[0])
		}
		all = append(all, one)
	}
	return all
}

// label adds labels, given as names and values. Empty values are no labels.
func (a *alert) label(pairs ...string) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			a.Labels[pair[0]] = pair[1]
		}
	}
}

// count adds a number other than zero as an annotation. As a label, each change would end the alert and begin another one.
func (a *alert) count(name string, n int) {
	if n > 0 {
		a.Annotations[name] = strconv.Itoa(n)
	}
}

// most returns at most mostAlerts alerts, the most severe and then the oldest first.
func most(all []*alert) []*alert {
	slices.SortFunc(all, func(x, y *alert) int {
		order := []string{critical, warning, info}
		return cmp.Or(
			cmp.Compare(slices.Index(order, x.Labels["severity"]), slices.Index(order, y.Labels["severity"])),
			x.StartsAt.Compare(y.StartsAt), strings.Compare(x.key(), y.key()))
	})
	return all[:min(len(all), mostAlerts)]
}
