package situations

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// failing is a test that may fail.
type failing struct {
	testing.TB
	errors []string
}

func (f *failing) Helper()      {}
func (f *failing) Failed() bool { return len(f.errors) > 0 }
func (f *failing) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}
func (f *failing) Fatalf(format string, args ...any) { f.Errorf(format, args...) }

func TestIncidentRecordsOnlyWhatIsShown(t *testing.T) {
	const addr = "10.244.0.7"
	conflict := func(state ipwitnessv1.Conflict_State, cause string) *ipwitnessv1.Conflict {
		return &ipwitnessv1.Conflict{
			Address: addr, State: state, Cause: cause, Rule: "assigned-twice", Scope: &ipwitnessv1.Scope{Kind: ipwitnessv1.Scope_NODE, Name: "node1"},
		}
	}
	confirmed := conflict(ipwitnessv1.Conflict_CONFIRMED, "ipam-state-lost")
	finding := func(kind, about string, severity ipwitnessv1.Finding_Severity) *ipwitnessv1.Finding {
		return &ipwitnessv1.Finding{Kind: kind, Address: about, Severity: severity}
	}
	unallocated := finding("in-use-unallocated", addr, ipwitnessv1.Finding_CRITICAL)
	remedy := []*ipwitnessv1.Action{
		{Text: "Check.", Command: "ipwitness audit"},
		{Choice: []*ipwitnessv1.Alternative{{Actions: []*ipwitnessv1.Action{{Command: "kubectl delete pod web"}}}, {Actions: []*ipwitnessv1.Action{{Command: "kubectl delete pod db"}}}}},
	}
	const head = "test: TestIncidentRecordsOnlyWhatIsShown\ndetected: CONFIRMED assigned-twice, NODE node1\n"
	for name, c := range map[string]struct {
		args []string
		play func(i *Incident)
		want string // what its file has; empty if the test fails
	}{
		"all ratings": {nil, func(i *Incident) {
			i.Foretold(unallocated, []*ipwitnessv1.Conflict{{Address: "10.244.0.8"}})
			i.Conflict(confirmed, "ipam-state-lost", nil)
			i.Remedied(remedy, "ipwitness audit", "kubectl delete pod db")
		}, head + "cause: ipam-state-lost\nremedy: ipwitness audit, kubectl delete\nforetold: CRITICAL in-use-unallocated\n"},
		"a conflict without a cause": {nil, func(i *Incident) { i.Conflict(conflict(ipwitnessv1.Conflict_CONFIRMED, "unknown"), "unknown", nil) }, head},
		"a finding that is its cause": {
			nil, func(i *Incident) { i.Found(unallocated, "in-use-unallocated", nil) },
			"test: TestIncidentRecordsOnlyWhatIsShown\ndetected: CRITICAL in-use-unallocated\ncause: in-use-unallocated\n",
		},
		"a finding that is a symptom": {
			nil, func(i *Incident) { i.Found(unallocated, "", nil) },
			"test: TestIncidentRecordsOnlyWhatIsShown\ndetected: CRITICAL in-use-unallocated\n",
		},
		"nothing":       {nil, func(*Incident) {}, ""},
		"another cause": {nil, func(i *Incident) { i.Conflict(confirmed, "static-address", nil) }, ""},
		"another kind":  {nil, func(i *Incident) { i.Found(unallocated, "leaked", nil) }, ""},
		"a suspected conflict": {nil, func(i *Incident) {
			i.Conflict(conflict(ipwitnessv1.Conflict_SUSPECTED, "ipam-state-lost"), "ipam-state-lost", nil)
		}, ""},
		"a network is declared": {[]string{"run", "--network=pods=10.244.0.0/16"}, func(i *Incident) { i.Conflict(confirmed, "ipam-state-lost", nil) }, ""},
		"a step of no remedy":   {nil, func(i *Incident) { i.Conflict(confirmed, "ipam-state-lost", nil); i.Remedied(remedy, "reboot now") }, ""},
		"steps in another order": {nil, func(i *Incident) {
			i.Conflict(confirmed, "ipam-state-lost", nil)
			i.Remedied(remedy, "kubectl delete pod db", "ipwitness audit")
		}, ""},
		"no remedy": {nil, func(i *Incident) { i.Conflict(confirmed, "ipam-state-lost", nil); i.Remedied(nil) }, ""},
		"a finding after the conflict": {nil, func(i *Incident) {
			i.Conflict(confirmed, "ipam-state-lost", nil)
			i.Foretold(unallocated, []*ipwitnessv1.Conflict{confirmed})
		}, ""},
		"a range after the conflict": {nil, func(i *Incident) {
			i.Conflict(confirmed, "ipam-state-lost", nil)
			i.Foretold(finding("pod-cidr-overlap", "10.244.0.2-10.244.0.254", ipwitnessv1.Finding_CRITICAL), []*ipwitnessv1.Conflict{confirmed})
		}, ""},
		"a prefix after the conflict": {nil, func(i *Incident) {
			i.Conflict(confirmed, "ipam-state-lost", nil)
			i.Foretold(finding("pod-cidr-overlap", "10.244.0.0/24", ipwitnessv1.Finding_CRITICAL), []*ipwitnessv1.Conflict{confirmed})
		}, ""},
		"a finding for information": {nil, func(i *Incident) {
			i.Conflict(confirmed, "ipam-state-lost", nil)
			i.Foretold(finding("leaked", addr, ipwitnessv1.Finding_INFO), nil)
		}, ""},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "07-TestIncidentRecordsOnlyWhatIsShown.txt")
		if err := os.WriteFile(file, []byte(c.want+"\ntext\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f := &failing{TB: t}
		i := Play(f, dir, 7, c.args)
		if c.play(i); c.want != "" || !f.Failed() {
			i.Check()
		}
		if f.Failed() != (c.want == "") {
			t.Errorf("%s: got errors %q, want some: %t", name, f.errors, c.want == "")
		}
		if c.want == "" {
			continue
		}
		// The test fails if its file has another value, or is missing.
		for _, text := range []string{strings.Replace(c.want, "detected: C", "detected: D", 1), c.want + "remedy: x\n"} {
			if err := os.WriteFile(file, []byte(text+"\ntext\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			i.t = &failing{TB: t}
			if i.Check(); !i.t.Failed() {
				t.Errorf("%s: got no error although the file has %q", name, text)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		i.t = &failing{TB: t}
		if i.Check(); !i.t.Failed() {
			t.Errorf("%s: got no error although there is no file", name)
		}
	}
}
