package verdict

import (
	"slices"
)

// evaluation is the state of one judgement.
type evaluation struct {
	policy  *Policy
	in      *Case
	memory  *memory
	explain bool
	steps   []Step
	out     Judgement
	// held are the scopes with owners, once they are known; see hold.
	held map[extent]bool
	// unplugged are the claims on links without a carrier, except frames that entered there.
	unplugged []*Claim
}

// again requests another judgement no later than at.
func (j *evaluation) again(at Stamp) {
	if j.out.Again == 0 || at < j.out.Again {
		j.out.Again = at
	}
}

// note records a step if an explanation is wanted.
func (j *evaluation) note(s Step) {
	if j.explain {
		j.steps = append(j.steps, s)
	}
}

// behind returns the namespace behind the port that a frame entered through; nil for an uplink, a
// port of the node itself, or a kernel claim.
func (j *evaluation) behind(c *Claim) *Namespace {
	if port := c.Interface; c.Wire() && port.Peer != 0 && !port.Uplink {
		return j.in.behind(port)
	}
	return nil
}

// ownerOf returns the owner that is a namespace; nil if there is none.
func (j *evaluation) ownerOf(ns *Namespace) *Owner {
	if i := slices.IndexFunc(j.out.Owners, func(o Owner) bool { return o.ID == ns.ID }); i >= 0 {
		return &j.out.Owners[i]
	}
	return nil
}
