package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// poolFinding returns the text of a finding about a whole pool.
func poolFinding(f *verdict.Finding) FindingText {
	t := &poolFindingBuilder{pool: f.Pool, use: f.Stock.Use, atRisk: f.Stock.AtRisk}
	switch f.Kind {
	case verdict.FindingIPAMStateLost:
		t.stateLost()
	case verdict.FindingIPAMUnreadable:
		t.unreadable()
	case verdict.FindingPoolExhaustion:
		t.exhaustion()
	}
	return t.FindingText
}

// poolFindingBuilder builds the text of one finding about a pool.
type poolFindingBuilder struct {
	pool   *verdict.Pool
	use    verdict.PoolUse
	atRisk []verdict.Held
	FindingText
}

// mostNamed is the number of addresses that one sentence of the evidence names at most.
const mostNamed = 50

// stateLost describes a pool that has lost all of its records while its addresses are in use.
func (t *poolFindingBuilder) stateLost() {
	p := t.pool
	lost := "has no records"
	if p.Lost > 0 {
		lost = fmt.Sprintf("has lost all of its records (%d)", p.Lost)
	}
	t.Summary = fmt.Sprintf("%s %s, but %s of the pool %s in use: %s. It considers them free and will allocate them to %s.",
		poolBegin(p), lost, plural(len(t.atRisk), "address", "addresses"), isAre(len(t.atRisk)), list(each(t.atRisk, func(h *verdict.Held) string { return h.Address.String() })), strings.Replace(poolNext(p), "one of the next", "the next", 1))
	if p.LostAt != 0 {
		t.State("Its records were lost at %s by the clock of its node.", stampText(p.LostAt))
	}
	if p.Problem != "" {
		t.State("%s.", capital(strings.TrimSuffix(p.Problem, ".")))
	}
	if p.Config != "" {
		t.State("It is configured in %s.", p.Config)
	}
	for at := 0; at < len(t.atRisk); at += mostNamed {
		var held []string
		for _, h := range t.atRisk[at:min(at+mostNamed, len(t.atRisk))] {
			name := "an unknown owner"
			if h.Owner != nil {
				name = OwnerName(h.Owner)
			}
			held = append(held, h.Address.String()+" by "+name)
		}
		t.State("In use: %s.", strings.Join(held, ", "))
	}
	node, kubernetes := nodeOf(p), t.kubernetesNode()
	if node != "" {
		t.Act(advice.Cordon(kubernetes))
		t.ByHand("", "kubectl cordon "+advice.Quote(kubernetes), "Start no pods on node %s until its part of this plan has run (afterwards: kubectl uncordon %s).", kubernetes, advice.Quote(kubernetes))
	} else {
		t.Advise("Start no pods of that network until this is repaired: scale their controllers to the number of pods that exist now, or cordon the nodes that run them.")
	}
	loss := ipamOf(p).Loss
	if loss.Recreate != nil && p.State == ipam.Missing {
		if fix, ok := loss.Recreate(&p.Pool); ok {
			t.Fix(fix)
		}
	}
	switch {
	case loss.Rebuild:
		t.Advise("Rebuild the records from the owners that really hold the addresses. Do not restore an old backup over them: it contains containers that are gone and lacks the ones that started since.")
		t.Act(advice.Plan(node)...)
	case loss.Empty != nil && node != "":
		t.Act(loss.Empty(node, kubernetes)...)
	case loss.Backup != "":
		t.Act(advice.Say("Check whether there is a recent backup of %s from just before the loss.", loss.Backup).Or(
			advice.Either("there is one", advice.Say("Restore these objects from the backup.")),
			advice.Either("there is none", t.restartAll()),
		))
	default:
		t.Act(t.restartAll())
	}
	if node != "" {
		t.Act(advice.Uncordon(kubernetes))
	}
	t.Act(advice.Say("Check that no finding is left.").By("", "ipwitness audit"),
		advice.Say("Check whether pods that started in the meantime got an address that was in use: the details of each such conflict say which of the two owners to restart.").By("", "ipwitness conflicts"))
	if loss.Search != nil {
		t.Advise("%s", loss.Search(&p.Pool))
	}
}

// kubernetesNode returns the name in Kubernetes of the node that the pool belongs to, as far as it is
// known.
func (t *poolFindingBuilder) kubernetesNode() string {
	for _, h := range t.atRisk {
		if h.Owner != nil && h.Owner.Pod != nil && h.Owner.Pod.Node != "" {
			return h.Owner.Pod.Node
		}
	}
	return plainName(nodeOf(t.pool))
}

// restartAll returns the action that restarts the holders of the addresses at risk.
func (t *poolFindingBuilder) restartAll() advice.Action {
	return advice.Say("Restart the pods that hold the addresses, one after the other, as the plan says: ipwitness audit --fix-plan")
}

// unreadable describes a pool whose records cannot be read.
func (t *poolFindingBuilder) unreadable() {
	p := t.pool
	if p.State == ipam.Known {
		t.invalid()
		return
	}
	t.Summary = fmt.Sprintf("The records of %s cannot be read: %s. Until they can be read, addresses that are in use but not allocated go undetected.",
		poolName(p), cmp.Or(p.Problem, "their format is unknown"))
	if p.Config != "" {
		t.State("It is configured in %s.", p.Config)
	}
	if p.State == ipam.Stale {
		t.State("The source of its records is disconnected; the last known records are kept.")
	}
	if access := ipamOf(p).Access; access != nil {
		t.Advise("%s", access(&p.Pool))
	}
	t.Advise("If it may, this version of the IPAM may be unknown to ipwitness: please report the problem with that version.")
	t.Advise("The finding ends as soon as the records can be read.")
}

// invalid describes a pool whose records can be read but contain something invalid.
func (t *poolFindingBuilder) invalid() {
	p := t.pool
	t.Summary = fmt.Sprintf("The records of %s contain an invalid entry: %s. The other records are audited.", poolName(p), strings.TrimSuffix(p.Problem, "."))
	if p.Config != "" {
		t.State("It is configured in %s.", p.Config)
	}
	if p.Partial {
		t.State("It may be the only record of an address. Until it can be read, further addresses that are in use but not allocated by %s go undetected.", ipamOf(p).Title)
	}
	if check := ipamOf(p).Check; check.Text != "" {
		t.Act(check)
	}
	t.Advise("Check that object, and find out what wrote it last. If ipwitness misreads it, please report the problem with the version of that IPAM.")
	t.Advise("The finding ends as soon as the records are valid.")
}

// exhaustion describes a pool with few addresses left.
func (t *poolFindingBuilder) exhaustion() {
	p, u := t.pool, t.use
	t.Summary = fullness(u, p)
	if u.Size > 0 && u.Allocated >= u.Size {
		t.Summary += " The pool has no addresses left: pods that need one stay in ContainerCreating."
	} else {
		t.Summary += " When the pool has no addresses left, pods that need one stay in ContainerCreating."
	}
	if len(p.Ranges) > 0 {
		t.State("It allocates %s.", list(each(p.Ranges, func(r *ipam.Range) string { return r.String() })))
	}
	if u.Size >= u.Allocated {
		t.State("%s %s left.", addressCount(u, u.Size-u.Allocated), isAre(u.Size-u.Allocated))
	}
	if u.Leaked > 0 {
		t.Act(advice.Say("List the %s without a holder, and free them as each of these findings says.", plural(u.Leaked, "address", "addresses")).By("", "ipwitness audit --kind "+verdict.FindingLeaked))
	}
	if enlarge := ipamOf(p).Enlarge; enlarge != nil {
		t.Advise("%s", enlarge(&p.Pool))
	}
}
