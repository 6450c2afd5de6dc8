package tests

import (
	"fmt"
	"slices"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// incident is an incident of docs/incidents.md that a test plays in a lab.
type incident struct {
	*situations.Incident
	lab *lab
	// conflict or finding is what was recorded last.
	conflict *ipwitnessv1.Conflict
	finding  *ipwitnessv1.Finding
}

// incident begins an incident. What it shows is compared with its file when the test ends.
func (l *lab) incident(number int) *incident {
	l.t.Helper()
	i := l.play(l.t, number)
	l.t.Cleanup(i.Check)
	return i
}

func (l *lab) play(t *testing.T, number int) *incident {
	t.Helper()
	return &incident{Incident: situations.Play(t, "testdata/incidents", number, l.program.Cmd.Args), lab: l}
}

// foretold waits until there is a finding, and records that no conflict precedes it.
func (i *incident) foretold(kind, addr string) {
	i.lab.t.Helper()
	i.Foretold(i.await(kind, addr), i.lab.watch.all())
}

// found waits until there is a finding, and records it as the cause of the incident.
func (i *incident) found(kind, addr string) {
	i.lab.t.Helper()
	i.Found(i.await(kind, addr), kind, i.run)
}

func (i *incident) await(kind, addr string) *ipwitnessv1.Finding {
	i.lab.t.Helper()
	wait.Until(i.lab.t, fmt.Sprintf("finding %s %s", kind, addr), func() bool {
		i.conflict, i.finding = nil, nil
		for _, f := range i.lab.findings("?kind=" + kind) {
			if addr == f.GetAddress() || slices.Contains(f.GetAddresses(), addr) {
				i.finding = f
			}
		}
		return i.finding != nil
	})
	return i.finding
}

// conflicted waits until an address has a confirmed conflict with a cause, and records it.
func (i *incident) conflicted(addr, cause string) {
	i.lab.t.Helper()
	i.lab.watch.await(fmt.Sprintf("%s to be confirmed, of cause %s", addr, cause), func([]*ipwitnessv1.Conflict) bool {
		i.conflict, i.finding = nil, nil
		for _, c := range i.lab.watch.find(addr) {
			if c.GetState() == ipwitnessv1.Conflict_CONFIRMED && c.GetCause() == cause {
				i.conflict = c
			}
		}
		return i.conflict != nil
	})
	i.Conflict(i.conflict, cause, i.run)
}

// remedied waits until the conflict or the finding that was recorded last is over, after the test has
// carried out these commands of its remedy.
func (i *incident) remedied(commands ...string) {
	i.lab.t.Helper()
	if i.conflict != nil {
		i.lab.watch.await("the conflict to be over", inState(i.conflict.GetAddress(), ipwitnessv1.Conflict_RESOLVED))
		i.lab.awaitOwners(i.conflict.GetAddress(), 1)
		i.Remedied(i.conflict.GetRemedy(), commands...)
		return
	}
	wait.Until(i.lab.t, "the finding to be over", func() bool {
		return !slices.ContainsFunc(i.lab.findings(""), func(f *ipwitnessv1.Finding) bool { return f.GetId() == i.finding.GetId() })
	})
	i.Remedied(i.finding.GetRemedy(), commands...)
}

// run runs ipwitness, and returns its output.
func (i *incident) run(args ...string) string {
	i.lab.t.Helper()
	out, err := i.lab.at.Stdout(i.lab.at.Command(binary, args...))
	if err != nil {
		i.lab.t.Fatal(err)
	}
	return out
}
