package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// findingBuilder builds the text of one finding about an address.
type findingBuilder struct {
	f    *verdict.Finding
	pool *verdict.Pool
	use  verdict.PoolUse
	// owner holds the address; it is nil if there is no holder. allocation is IPAM's record of
	// the address; it is empty if there is none.
	owner      *verdict.Owner
	allocation *verdict.Allocation
	FindingText
}

// newFindingBuilder returns a builder for a finding about one address, without any text yet.
func newFindingBuilder(f *verdict.Finding, use verdict.PoolUse) *findingBuilder {
	t := &findingBuilder{f: f, pool: f.Pool, use: use, allocation: &verdict.Allocation{}}
	if t.pool == nil {
		t.pool = &verdict.Pool{}
	}
	if len(f.Owners) > 0 {
		t.owner = &f.Owners[0]
	}
	if len(f.Allocations) > 0 {
		t.allocation = f.Allocations[0]
	}
	return t
}

// closing adds the step that verifies that the finding has ended.
func (t *findingBuilder) closing() {
	t.Act(advice.Say("The finding ends by itself as soon as IPAM and the kernels agree. Check that it has ended.").By("", "ipwitness audit "+t.f.Address.String()))
}

// holder returns the name of the owner that holds the address.
func (t *findingBuilder) holder() string {
	if t.owner == nil {
		return "an unknown owner"
	}
	return placed(t.owner)
}

// ownerName returns the owner as NAMESPACE/POD; it is empty if the owner is not a pod.
func (t *findingBuilder) ownerName() string {
	if t.owner == nil || t.owner.Kind() != verdict.Pod {
		return ""
	}
	namespace, name := t.owner.Named()
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// ofNode reports whether the holder is a node itself and the address belongs to an IPAM.
func (t *findingBuilder) ofNode() bool {
	return t.owner != nil && t.owner.Kind() == verdict.Host && t.pool.IPAM != ""
}

// holding adds the owners of the address that kernels report.
func (t *findingBuilder) holding() {
	for i := range t.f.Owners {
		o := &t.f.Owners[i]
		if shown(o) {
			t.State("Frames with MAC %s claim %s; they are seen on %s.", o.MAC, t.f.Address, witness(o.Claims[0]))
			continue
		}
		var details []string
		if o.Namespace != nil && o.Namespace.Netns != "" {
			details = append(details, "network namespace "+o.Namespace.Netns)
		}
		if at := o.AssignedAt(); at != 0 {
			details = append(details, "since "+stampText(at)+" by the node's clock")
		}
		var read verdict.Stamp
		for _, c := range o.Claims {
			if c.Kind == verdict.Assigned {
				read = max(read, c.Last)
			}
		}
		if read != 0 {
			details = append(details, "last read at "+stampText(read))
		}
		fact := fmt.Sprintf("The kernel of node %s reports that %s has %s", o.Node.Name, placed(o), t.f.Address)
		t.State("%s%s.", fact, after("; ", strings.Join(details, ", ")))
	}
}

// allocations adds the records that IPAM has of the address.
func (t *findingBuilder) allocations() {
	for _, al := range t.f.Allocations {
		fact := fmt.Sprintf("According to %s, the address is allocated to %s", allocationPlace(al), allocationName(al))
		if al.AllocatedAt != 0 {
			fact += ", since " + stampText(al.AllocatedAt)
		}
		t.State("%s.", fact)
	}
}

// history adds the records that IPAM had before.
func (t *findingBuilder) history() {
	for _, past := range t.f.Past {
		if t.owner == nil || past.Owner != t.owner.ID || past.Allocation == nil || slices.ContainsFunc(t.f.Allocations, past.Allocation.Is) {
			continue
		}
		t.State("Until %s, the address was allocated to %s (%s).", stampText(past.Since), allocationName(past.Allocation), allocationPlace(past.Allocation))
	}
}

// fullness adds how full the pool is.
func (t *findingBuilder) fullness() {
	if t.use.Size > 0 {
		t.State("%s", fullness(t.use, t.pool))
	}
}
