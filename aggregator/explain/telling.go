package explain

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// telling is one finding about an address that is being put into words.
type telling struct {
	f    *verdict.Finding
	pool *verdict.Pool
	use  verdict.PoolUse
	// owner is who holds the address, nil for nobody; booked is what IPAM says of it,
	// empty for nothing.
	owner  *verdict.Owner
	booked *verdict.Allocation
	told   Told
}

// newTelling returns a finding about one address without words.
func newTelling(f *verdict.Finding, use verdict.PoolUse) *telling {
	t := &telling{f: f, pool: f.Pool, use: use, booked: &verdict.Allocation{}}
	if t.pool == nil {
		t.pool = &verdict.Pool{}
	}
	if len(f.Owners) > 0 {
		t.owner = &f.Owners[0]
	}
	if len(f.Allocations) > 0 {
		t.booked = f.Allocations[0]
	}
	return t
}

// evidence adds a fact.
func (t *telling) evidence(format string, args ...any) {
	t.told.Evidence = append(t.told.Evidence, fmt.Sprintf(format, args...))
}

// advise adds an action without a command.
func (t *telling) advise(format string, args ...any) { t.act(say(format, args...)) }

// act adds actions.
func (t *telling) act(actions ...Action) { t.told.Remedy = append(t.told.Remedy, actions...) }

// fix adds a command.
func (t *telling) fix(f Fix) { t.told.Fixes = append(t.told.Fixes, f) }

// byHand adds what must be done by a person, with the command for it, if there is one.
func (t *telling) byHand(node, command, format string, args ...any) {
	t.fix(Fix{Node: node, What: fmt.Sprintf(format, args...), Command: command, Manual: true})
}

// closing says how the finding ends.
func (t *telling) closing() {
	t.act(say("The finding is over by itself as soon as IPAM and the kernels agree. See that it is.").by("", "ipwitness audit "+t.f.Address.String()))
}

// holder names who has the address.
func (t *telling) holder() string {
	if t.owner == nil {
		return "somebody who is not known"
	}
	return placed(t.owner)
}

// ownerName is the owner as NAMESPACE/POD, empty where it is no pod.
func (t *telling) ownerName() string {
	if t.owner == nil || t.owner.Kind() != verdict.Pod {
		return ""
	}
	namespace, name := t.owner.Named()
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// node is the one that a node's own pool is of; empty for a pool of the whole cluster.
func (t *telling) node() string {
	if t.pool.Node == nil {
		return ""
	}
	return t.pool.Node.Name
}

// ofNode reports whether the holder is a node itself, and an IPAM knows the address.
func (t *telling) ofNode() bool {
	return t.owner != nil && t.owner.Kind() == verdict.Host && t.pool.IPAM != ""
}

// since says for how long it has been so.
func (t *telling) since() string {
	if t.f.Since == 0 {
		return ""
	}
	return ", since " + stampText(t.f.Since)
}

// holding tells who has the address, by whom that is witnessed.
func (t *telling) holding() {
	for i := range t.f.Owners {
		o := &t.f.Owners[i]
		fact := fmt.Sprintf("The kernel of node %s has %s on %s", o.Node.Name, t.f.Address, placed(o))
		if o.Namespace != nil && o.Namespace.Netns != "" {
			fact += ", network namespace " + o.Namespace.Netns
		}
		if at := o.AssignedAt(); at != 0 {
			fact += ", since " + stampText(at) + " by its clock"
		}
		var read verdict.Stamp
		for _, c := range o.Claims {
			if c.Kind == verdict.Assigned {
				read = max(read, c.Last)
			}
		}
		if read != 0 {
			fact += ", last read " + stampText(read)
		}
		t.evidence("%s.", fact)
	}
}

// bookings tell what IPAM says of the address.
func (t *telling) bookings() {
	for _, al := range t.f.Allocations {
		fact := fmt.Sprintf("%s books it for %s", capital(allocationPlace(al)), allocationName(al))
		if al.AllocatedAt != 0 {
			fact += ", since " + stampText(al.AllocatedAt)
		}
		t.evidence("%s.", fact)
	}
}

// history tells what IPAM said before.
func (t *telling) history() {
	for _, past := range t.f.Past {
		if t.owner == nil || past.Owner != t.owner.ID || past.Allocation == nil || slices.ContainsFunc(t.f.Allocations, past.Allocation.Is) {
			continue
		}
		t.evidence("Until %s %s booked it for %s.", stampText(past.Since), allocationPlace(past.Allocation), allocationName(past.Allocation))
	}
}

// fullness tells how full the pool is.
func (t *telling) fullness() {
	if t.use.Size > 0 {
		t.evidence("%s", fullness(t.use, t.pool))
	}
}
