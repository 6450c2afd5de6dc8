package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// A virtual machine that sends on two nodes for two minutes runs twice. One that is migrated sends on the former node no
// longer.
func TestAVirtualMachineRunsOnTwoNodes(t *testing.T) {
	const mac = "\x52\x54\x00\x00\x00\x80"
	always := func(time.Duration) bool { return true }
	between := func(from, to time.Duration) func(time.Duration) bool {
		return func(at time.Duration) bool { return from <= at && at < to }
	}
	for _, test := range []struct {
		name   string
		a, b   func(at time.Duration) bool // when it sends on a node
		change func(a, b *verdict.Claim)
		want   time.Duration // when it is found; 0 for never
	}{
		{"both send", always, between(time.Minute, time.Hour), nil, 3 * time.Minute},
		{"one sends seldom, but goes on", func(at time.Duration) bool { return at%(40*time.Second) == 0 }, between(time.Minute, time.Hour), nil, 3 * time.Minute},
		{"it is migrated", between(0, time.Minute), between(time.Minute, time.Hour), nil, 0},
		{"it is migrated, and back", func(at time.Duration) bool { return at < time.Minute || at >= 100*time.Second }, between(time.Minute, 100*time.Second), nil, 0},
		{"the migration takes a minute, and is given up", always, between(time.Minute, 2*time.Minute), nil, 0},
		{"a tap with other machines behind it", always, between(time.Minute, time.Hour), func(a, _ *verdict.Claim) { a.Alone = false }, 0},
		{"its frames cross the LAN", always, between(time.Minute, time.Hour), func(_, b *verdict.Claim) { b.Alone = false }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld("192.0.2.80")
			var claims []*verdict.Claim
			for _, up := range verdicttest.OnLAN(w.World, "n1", "n2") {
				tap := w.Interface(w.Host(up.Namespace.Node.Name), verdict.Interface{Name: "vnet0", Attachment: verdict.Own, Link: up.Link, Tap: true, Kind: "tun"})
				claims = append(claims, w.Wire(tap, mac))
				claims[len(claims)-1].Kind, claims[len(claims)-1].Alone = verdict.Used, true
			}
			if test.change != nil {
				test.change(claims[0], claims[1])
			}
			w.Claims = claims[:1]
			var before []verdict.Finding
			found, ended := time.Duration(0), false
			for at := time.Duration(0); at < 10*time.Minute; at += 10 * time.Second {
				for i, sends := range []func(time.Duration) bool{test.a, test.b} {
					if sends(at) {
						w.Seen(claims[i])
						if !slices.Contains(w.Claims, claims[i]) {
							w.Claims = append(w.Claims, claims[i])
						}
					}
				}
				before = w.auditAll(before...).Findings
				published := slices.ContainsFunc(before, func(f verdict.Finding) bool { return f.Kind == verdict.FindingMACCloned && !f.Waiting })
				switch {
				case published && found == 0:
					found = at
				case !published && found != 0:
					ended = true
				}
				w.after(10 * time.Second)
			}
			if found != test.want || ended {
				t.Errorf("found after %s, ended: %t, want after %s", found, ended, test.want)
			}
		})
	}
}
