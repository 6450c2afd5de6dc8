package model_test

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// outlives reports whether a claim outlasts the agent that reported it, because a new agent cannot know it.
func (c *claim) outlives() bool {
	return c.former && (c.wire() || c.Kind == verdict.DADFailed && c.Flags&verdict.FlagPermanent == 0)
}

// endFormer ends those of some claims that only a former agent has reported.
func (r *reference) endFormer(n *node, of func(*claim) bool) {
	for _, c := range slices.Clone(n.claims) {
		if of(c) && c.outlives() {
			r.endClaim(c, false, 0)
		}
	}
}

// formerLimit returns when a claim ends that only a former agent has reported.
func (r *reference) formerLimit(c *claim) verdict.Stamp {
	witnessed := c.Read
	if c.wire() {
		witnessed = c.Seen
	}
	return witnessed.Add(2 * r.policy.StaleAfter)
}

// expireFormer has the claims end that only a former agent has reported.
func (n *node) expireFormer(r *reference) {
	n.formerUntil = 0
	for _, c := range n.claims {
		if at := r.formerLimit(c); c.outlives() && (n.formerUntil == 0 || at < n.formerUntil) {
			n.formerUntil = at
		}
	}
}

// dropFormer ends the outdated claims that only a former agent has reported, unless the present one is disconnected.
func (r *reference) dropFormer(n *node) {
	if n.rec.Unheard {
		n.formerUntil = r.now.Add(r.policy.StaleAfter)
		return
	}
	r.endFormer(n, func(c *claim) bool { return r.formerLimit(c) <= r.now })
	n.expireFormer(r)
}

// renumber gives the namespaces of a node the numbers that a new agent has given them. Others that are in the way get
// the numbers that become free.
func (n *node) renumber(records []*pb.NamespaceRecord) {
	next := map[uint32]uint32{}
	var wanted []uint32
	done := map[string]bool{}
	for _, rec := range records {
		for was, ns := range n.namespaces {
			if rec.GetNetns() == "" || ns.rec.Netns != rec.GetNetns() || rec.GetId() == verdict.OwnRecord || done[rec.GetNetns()] || slices.Contains(wanted, rec.GetId()) {
				continue
			}
			done[rec.GetNetns()] = true
			if was != rec.GetId() && was != verdict.OwnRecord {
				next[was] = rec.GetId()
				wanted = append(wanted, rec.GetId())
			}
		}
	}
	var free []uint32
	for was := range next {
		if !slices.Contains(wanted, was) {
			free = append(free, was)
		}
	}
	slices.Sort(free)
	slices.Sort(wanted)
	for _, id := range wanted {
		if _, moves := next[id]; !moves && n.namespaces[id] != nil {
			next[id], free = free[0], free[1:]
		}
	}
	namespaces := map[uint32]*namespace{}
	for was, ns := range n.namespaces {
		if now, moves := next[was]; moves {
			rec := *ns.rec
			rec.Record, was, ns.rec = now, now, &rec
		}
		namespaces[was] = ns
	}
	n.namespaces = namespaces
	for _, i := range n.interfaces {
		if now, moves := next[i.rec.Peer]; moves {
			i.rec.Peer = now
		}
	}
}
