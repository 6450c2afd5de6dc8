package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// tellPool puts a finding about a whole pool into words.
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

// poolTelling is one finding about a pool that is being put into words.
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

// mostNamed is how many addresses a sentence names; the evidence names them all, so
// far as they fit into groups of that many.
const mostNamed = 50

// stateLost: all records of a pool are gone, and addresses of it are in use.
func (t *poolTelling) stateLost() {
	p := t.pool
	lost := "has no records"
	if p.Lost > 0 {
		lost = fmt.Sprintf("has lost all of its records (%d)", p.Lost)
	}
	t.told.Summary = fmt.Sprintf("%s %s, and %s of it %s in use: %s. It takes them for free, and gives them to %s.",
		poolBegin(p), lost, plural(len(t.atRisk), "address", "addresses"), isAre(len(t.atRisk)), list(each(t.atRisk, func(h *verdict.Held) string { return h.Address.String() })), strings.Replace(poolNext(p), "one of the next", "the next", 1))
	if p.LostAt != 0 {
		t.evidence("Its records were lost at %s, by the clock of its node.", stampText(p.LostAt))
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
			name := "somebody"
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
		t.advise("Start no pods of that network until this is put right: scale what makes them to what is there now, or cordon the nodes that run them.")
	}
	if object := ipPool(p); p.IPAM == verdict.Whereabouts && p.State == verdict.PoolMissing && object != "" {
		namespace, name, _ := strings.Cut(p.Name, "/")
		t.told.Fixes = append(t.told.Fixes, Fix{
			What: fmt.Sprintf("Make IPPool %s anew, with nothing in it: the allocations of those who live are written into it next.", p.Name),
			Command: script(
				"if pool=$(kubectl get "+ippools+" "+quote(name)+" -n "+quote(namespace)+" --ignore-not-found -o name) && [ -z \"$pool\" ]; then",
				"  printf '%s\\n' "+quote(object)+" | kubectl create -f -",
				"fi"),
		})
	}
	switch p.IPAM {
	case verdict.HostLocal, verdict.Whereabouts:
		t.advise("The records are to be written anew from who really holds the addresses. Do not copy back an old backup over them: it names containers that are gone, and misses those that came since.")
		t.act(plan(node)...)
	case verdict.Calico:
		t.act(say("See whether there is a backup of Calico's IPAM objects (ipamblocks, ipamhandles, blockaffinities) of just before.").or(
			either("there is one", say("Restore these objects from the backup.")),
			either("there is none", t.restartAll()),
		))
	default:
		t.act(t.restartAll())
	}
	if node != "" {
		t.act(uncordoning(node))
	}
	t.act(say("See that nothing is left.").by("", "ipwitness audit"),
		say("See whether pods that were started meanwhile got an address that was in use: the page of each such conflict says which of the two to restart.").by("", "ipwitness conflicts"))
	if p.IPAM == verdict.HostLocal {
		t.advise("Find out what deleted %s: a restore, a clean-up script, a reboot (if it is on a tmpfs) that pods outlived. It must live as long as the pods of the node do.", p.Name)
	}
}

// restartAll returns the action that restarts the holders of the addresses at risk.
func (t *poolTelling) restartAll() Action {
	return say("Restart the pods that hold the addresses, one after the other, as the plan says: ipwitness audit --fix-plan")
}

// ipPool returns the IPPool that whereabouts would make, which names it after its range;
// empty where the range is not known.
func ipPool(p *verdict.Pool) string {
	namespace, name, _ := strings.Cut(p.Name, "/")
	bits, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil || !p.Base.IsValid() || bits < 0 || bits > p.Base.BitLen() {
		return ""
	}
	return `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":` + jsonText(name) + `,"namespace":` + jsonText(namespace) +
		`},"spec":{"range":` + jsonText(p.Base.String()+"/"+strconv.Itoa(bits)) + `,"allocations":{}}}`
}

// unreadable: the records of a pool cannot be read.
func (t *poolTelling) unreadable() {
	p := t.pool
	if p.State == verdict.PoolKnown {
		t.odd()
		return
	}
	t.told.Summary = fmt.Sprintf("What %s has given cannot be read: %s. Until it can, an address of it that is in use and not booked goes unnoticed.",
		poolName(p), cmp.Or(p.Problem, "its records look otherwise than we know them"))
	if p.Config != "" {
		t.evidence("It is configured in %s.", p.Config)
	}
	if p.State == verdict.PoolStale {
		t.evidence("Its source is not heard from: what was known of it is kept.")
	}
	switch p.IPAM {
	case verdict.HostLocal:
		t.advise("See whether the agent may read it: it needs %s as the node has it. In a container, mount its parent read-only, with HostToContainer propagation; a directory that is mounted itself is lost when it is made anew.", p.Name)
	case verdict.Whereabouts:
		t.advise("See whether the aggregator may read it: kubectl auth can-i list %s -A --as=system:serviceaccount:NAMESPACE:NAME; the same for %s.", ippools, reservations)
	case verdict.Calico:
		t.advise("See whether the aggregator may read it: kubectl auth can-i list ipamblocks.crd.projectcalico.org --as=system:serviceaccount:NAMESPACE:NAME; the same for ippools.crd.projectcalico.org.")
	case verdict.Cilium:
		t.advise("See whether the aggregator may read it: kubectl auth can-i list ciliumendpoints.cilium.io -A --as=system:serviceaccount:NAMESPACE:NAME; the same for ciliumnodes.cilium.io.")
	}
	t.advise("If it may, the IPAM may be of a version that ipwitness does not know: please report it with that version.")
	t.advise("The finding is over as soon as it can be read.")
}

// odd: the records of a pool are all known, and something in them is not as it should be.
func (t *poolTelling) odd() {
	p := t.pool
	t.told.Summary = fmt.Sprintf("Something in the records of %s is not as it should be: %s. All else of it is audited.", poolName(p), strings.TrimSuffix(p.Problem, "."))
	if p.Config != "" {
		t.evidence("It is configured in %s.", p.Config)
	}
	if p.IPAM == verdict.Calico {
		t.act(say("Have Calico check its own records.").by("", "calicoctl ipam check --show-problem-ips"))
	}
	t.advise("Look at the object that is named, and at what wrote it last; if ipwitness misreads it, please report it with the version of that IPAM.")
	t.advise("The finding is over as soon as it is as it should be.")
}

// exhaustion: a pool has few addresses left.
func (t *poolTelling) exhaustion() {
	p, u := t.pool, t.use
	t.told.Summary = fullness(u, p)
	if u.Size > 0 && u.Allocated >= u.Size {
		t.told.Summary += " It has none left: pods that need one stay in ContainerCreating."
	} else {
		t.told.Summary += " When it has none left, pods that need one stay in ContainerCreating."
	}
	if len(p.Ranges) > 0 {
		t.evidence("It gives %s.", list(each(p.Ranges, func(r *verdict.Range) string { return r.String() })))
	}
	if u.Size >= u.Allocated {
		t.evidence("%s %s left.", addressCount(u, u.Size-u.Allocated), isAre(u.Size-u.Allocated))
	}
	if u.Leaked > 0 {
		t.act(say("See the %s that nobody holds, and free them as each of these findings says.", plural(u.Leaked, "address", "addresses")).by("", "ipwitness audit --kind "+verdict.FindingLeaked))
	}
	switch p.IPAM {
	case verdict.HostLocal:
		t.advise("Give the network a larger range in %s: a longer one that has the present one in it, so that pods keep theirs. Where it comes from Node.spec.podCIDR, that cannot be changed for a node: add nodes, or make new ones with --node-cidr-mask-size smaller.", cmp.Or(p.Config, "its CNI configuration"))
	case verdict.Whereabouts:
		t.advise("Give the network a larger range in its NetworkAttachmentDefinition, or an additional one (ipRanges). Another range makes another IPPool: exclude there what the old one has given.")
	case verdict.Calico:
		t.advise("Add another IPPool (kubectl apply, or calicoctl create): pods get addresses of all of them. See with calicoctl ipam show --show-blocks whether nodes have blocks that they hardly use.")
	case verdict.Cilium:
		t.advise("Add another range to clusterPoolIPv4PodCIDRList (ipam.mode cluster-pool): those that are there must stay as they are.")
	}
}
