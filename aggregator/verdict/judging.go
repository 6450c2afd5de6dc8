package verdict

import (
	"slices"
)

// judging is one judgement under way.
type judging struct {
	policy  *Policy
	in      *Case
	memory  *memory
	explain bool
	steps   []Step
	out     Judgement
}

// again asks for another judgement at a time, or sooner.
func (j *judging) again(at Stamp) {
	if j.out.Again == 0 || at < j.out.Again {
		j.out.Again = at
	}
}

// note keeps a step.
func (j *judging) note(s Step) {
	if j.explain {
		j.steps = append(j.steps, s)
	}
}

// behind returns the namespace whose port a frame entered by; nil for an uplink, a port of the
// node itself, or a kernel claim.
func (j *judging) behind(c *Claim) *Namespace {
	if port := c.Interface; c.Wire() && port.Peer != 0 && !port.Uplink {
		return j.in.behind(port)
	}
	return nil
}

// ownerOf returns the owner that has a namespace; nil if there is none.
func (j *judging) ownerOf(ns *Namespace) *Owner {
	if i := slices.IndexFunc(j.out.Owners, func(o Owner) bool { return o.ID == ns.ID }); i >= 0 {
		return &j.out.Owners[i]
	}
	return nil
}

// owner returns the owner with an id; nil if there is none.
func (j *judging) owner(id string) *Owner {
	if i := slices.IndexFunc(j.out.Owners, func(o Owner) bool { return o.ID == id }); i >= 0 {
		return &j.out.Owners[i]
	}
	return nil
}
