package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// tellPool returns the text of a finding about a whole pool.
func tellPool(f *verdict.Finding) Told {
	t := &poolTelling{pool: f.Pool, use: f.Stock.Use, atRisk: f.Stock.AtRisk}
	switch f.Kind {
	case verdict.FindingIPAMStateLost:
		t.stateLost()
	case verdict.FindingIPAMUnreadable:
		t.unreadable()
	case verdict.FindingPoolExhaustion:
		t.exhaustion()
	}
	return t.told
}

// poolTelling builds the text of one finding about a pool.
type poolTelling struct {
	pool   *verdict.Pool
	use    verdict.PoolUse
	atRisk []verdict.Held
	told   Told
}

func (t *poolTelling) evidence(format string, args ...any) {
	t.told.Evidence = append(t.told.Evidence, fmt.Sprintf(format, args...))
}

func (t *poolTelling) advise(format string, args ...any) { t.act(say(format, args...)) }

func (t *poolTelling) act(actions ...Action) { t.told.Remedy = append(t.told.Remedy, actions...) }

// mostNamed is the number of addresses that one sentence of the evidence names at most.
const mostNamed = 50

// stateLost describes a pool that has lost all of its records while its addresses are in use.
func (t *poolTelling) stateLost() {
	p := t.pool
	lost := "has no records"
	if p.Lost > 0 {
		lost = fmt.Sprintf("has lost all of its records (%d)", p.Lost)
	}
	t.told.Summary = fmt.Sprintf("%s %s, but %s of it %s in use: %s. It considers them free and will allocate them to %s.",
		poolBegin(p), lost, plural(len(t.atRisk), "address", "addresses"), isAre(len(t.atRisk)), list(each(t.atRisk, func(h *verdict.Held) string { return h.Address.String() })), strings.Replace(poolNext(p), "one of the next", "the next", 1))
	if p.LostAt != 0 {
		t.evidence("Its records were lost at %s by the clock of its node.", stampText(p.LostAt))
	}
	if p.Problem != "" {
		t.evidence("%s.", capital(strings.TrimSuffix(p.Problem, ".")))
	}
	if p.Config != "" {
		t.evidence("It is configured in %s.", p.Config)
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
		t.evidence("In use: %s.", strings.Join(held, ", "))
	}
	node := ""
	if p.Node != nil {
		node = p.Node.Name
		t.act(cordoning(node))
		t.told.Fixes = append(t.told.Fixes, Fix{
			Manual: true, Command: "kubectl cordon " + quote(node),
			What: fmt.Sprintf("Start no pods on node %s until its part of this plan has run (afterwards: kubectl uncordon %s).", node, quote(node)),
		})
	} else {
		t.advise("Start no pods of that network until this is repaired: scale their controllers to the number of pods that exist now, or cordon the nodes that run them.")
	}
	if object := ipPool(p); p.IPAM == whereabouts.Name && p.State == ipam.Missing && object != "" {
		namespace, name, _ := strings.Cut(p.Name, "/")
		t.told.Fixes = append(t.told.Fixes, Fix{
			What: fmt.Sprintf("Recreate IPPool %s without allocations: the next steps write the allocations of the current holders.", p.Name),
			Command: script(
				"if pool=$(kubectl get "+ippools+" "+quote(name)+" -n "+quote(namespace)+" --ignore-not-found -o name) && [ -z \"$pool\" ]; then",
				"  printf '%s\\n' "+quote(object)+" | kubectl create -f -",
				"fi"),
		})
	}
	switch p.IPAM {
	case hostlocal.Name, whereabouts.Name:
		t.advise("Rebuild the records from the owners that really hold the addresses. Do not restore an old backup over them: it contains containers that are gone and lacks the ones that started since.")
		t.act(plan(node)...)
	case calico.Name:
		t.act(say("Check whether there is a recent backup of Calico's IPAM objects (ipamblocks, ipamhandles, blockaffinities) from just before the loss.").or(
			either("there is one", say("Restore these objects from the backup.")),
			either("there is none", t.restartAll()),
		))
	default:
		t.act(t.restartAll())
	}
	if node != "" {
		t.act(uncordoning(node))
	}
	t.act(say("Check that no finding is left.").by("", "ipwitness audit"),
		say("Check whether pods that started in the meantime got an address that was in use: the details of each such conflict say which of the two owners to restart.").by("", "ipwitness conflicts"))
	if p.IPAM == hostlocal.Name {
		t.advise("Find out what deleted %s: a restore, a clean-up script, or a reboot that pods survived (if it is on a tmpfs). It must exist as long as the pods of the node do.", p.Name)
	}
}

// restartAll returns the action that restarts the holders of the addresses at risk.
func (t *poolTelling) restartAll() Action {
	return say("Restart the pods that hold the addresses, one after the other, as the plan says: ipwitness audit --fix-plan")
}

// ipPool returns the IPPool object that whereabouts would create, which is named after its range. It
// is empty if the range is not known.
func ipPool(p *verdict.Pool) string {
	namespace, name, _ := strings.Cut(p.Name, "/")
	bits, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil || !p.Base.IsValid() || bits < 0 || bits > p.Base.BitLen() {
		return ""
	}
	return `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":` + jsonText(name) + `,"namespace":` + jsonText(namespace) +
		`},"spec":{"range":` + jsonText(p.Base.String()+"/"+strconv.Itoa(bits)) + `,"allocations":{}}}`
}

// unreadable describes a pool whose records cannot be read.
func (t *poolTelling) unreadable() {
	p := t.pool
	if p.State == ipam.Known {
		t.invalid()
		return
	}
	t.told.Summary = fmt.Sprintf("The records of %s cannot be read: %s. Until they can be read, addresses that are in use but not allocated go undetected.",
		poolName(p), cmp.Or(p.Problem, "their format is not known"))
	if p.Config != "" {
		t.evidence("It is configured in %s.", p.Config)
	}
	if p.State == ipam.Stale {
		t.evidence("The source of its records is disconnected; the last known records are kept.")
	}
	switch p.IPAM {
	case hostlocal.Name:
		t.advise("Check whether the agent may read it: the agent needs %s of the node. In a container, mount its parent directory read-only with HostToContainer propagation, because a mount of the directory itself is lost when the directory is recreated.", p.Name)
	case whereabouts.Name:
		t.advise("Check whether the aggregator may read it: kubectl auth can-i list %s -A --as=system:serviceaccount:NAMESPACE:NAME; the same for %s.", ippools, reservations)
	case calico.Name:
		t.advise("Check whether the aggregator may read it: kubectl auth can-i list ipamblocks.crd.projectcalico.org --as=system:serviceaccount:NAMESPACE:NAME; the same for ippools.crd.projectcalico.org.")
	case cilium.Name:
		t.advise("Check whether the aggregator may read it: kubectl auth can-i list ciliumendpoints.cilium.io -A --as=system:serviceaccount:NAMESPACE:NAME; the same for ciliumnodes.cilium.io.")
	}
	t.advise("If it may, this version of the IPAM may be unknown to ipwitness: please report the problem with that version.")
	t.advise("The finding ends as soon as the records can be read.")
}

// invalid describes a pool whose records can be read but contain something invalid.
func (t *poolTelling) invalid() {
	p := t.pool
	t.told.Summary = fmt.Sprintf("The records of %s contain something invalid: %s. All other records of it are audited.", poolName(p), strings.TrimSuffix(p.Problem, "."))
	if p.Config != "" {
		t.evidence("It is configured in %s.", p.Config)
	}
	if p.IPAM == calico.Name {
		t.act(say("Have Calico check its own records.").by("", "calicoctl ipam check --show-problem-ips"))
	}
	t.advise("Check that object, and find out what wrote it last. If ipwitness misreads it, please report the problem with the version of that IPAM.")
	t.advise("The finding ends as soon as the records are valid.")
}

// exhaustion describes a pool with few addresses left.
func (t *poolTelling) exhaustion() {
	p, u := t.pool, t.use
	t.told.Summary = fullness(u, p)
	if u.Size > 0 && u.Allocated >= u.Size {
		t.told.Summary += " The pool has no addresses left: pods that need one stay in ContainerCreating."
	} else {
		t.told.Summary += " When the pool has no addresses left, pods that need one stay in ContainerCreating."
	}
	if len(p.Ranges) > 0 {
		t.evidence("It allocates %s.", list(each(p.Ranges, func(r *ipam.Range) string { return r.String() })))
	}
	if u.Size >= u.Allocated {
		t.evidence("%s %s left.", addressCount(u, u.Size-u.Allocated), isAre(u.Size-u.Allocated))
	}
	if u.Leaked > 0 {
		t.act(say("List the %s without a holder, and free them as each of these findings says.", plural(u.Leaked, "address", "addresses")).by("", "ipwitness audit --kind "+verdict.FindingLeaked))
	}
	switch p.IPAM {
	case hostlocal.Name:
		t.advise("Give the network a larger range in %s. It must contain the present range, so that pods keep their addresses. A range from Node.spec.podCIDR cannot be changed for a node: add nodes, or recreate them with a smaller --node-cidr-mask-size.", cmp.Or(p.Config, "its CNI configuration"))
	case whereabouts.Name:
		t.advise("Give the network a larger range in its NetworkAttachmentDefinition, or an additional range (ipRanges). A changed range creates a new IPPool: exclude from it the addresses that the old one has allocated.")
	case calico.Name:
		t.advise("Add another IPPool (kubectl apply, or calicoctl create): pods get addresses from all pools. Check with calicoctl ipam show --show-blocks whether nodes have blocks that they hardly use.")
	case cilium.Name:
		t.advise("Add another range to clusterPoolIPv4PodCIDRList (ipam.mode cluster-pool). Leave the existing ranges unchanged.")
	}
}
