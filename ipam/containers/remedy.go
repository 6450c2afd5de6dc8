package containers

import (
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Remedies has the remedies that do not differ between engines. No command of an engine records an
// address for a running container.
type Remedies struct {
	ipam.Case
	ipam.Advisor
	// Title is the name of the engine in sentences.
	Title string
	// Empty is Repair.Loss.Empty of the engine.
	Empty func(node, kubernetes string) []advice.Action
}

// Reserve advises to restart the holder, which then has a record. If several addresses have none, it may
// get another one of them.
func (t Remedies) Reserve() {
	t.Advise("Start no containers in network %s on node %s meanwhile: %s may allocate the address to one of them.", NetworkName(t.Pool), t.Node, t.Title)
	restart, fix := t.Restarting(t.Title + " records the address that it gets")
	t.Act(
		advice.Say("Check which addresses of node %s have no record.", t.Node).By("", "ipwitness audit --kind in-use-unallocated "+advice.Argument(t.Node)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it is only "+t.Address.String(), restart...),
			advice.Either("there are others, one of which its successor may get", t.Empty(t.Node, "")...),
		))
	if fix.What != "" {
		t.Fix(fix)
	}
}

// Reassign advises to restart the holder, because the record is that of another container.
func (t Remedies) Reassign() {
	t.Advise("Leave the record as it is: %s frees the address when the container of the record stops.", t.Title)
	t.Restart(t.Title + " gives it a free address")
}
