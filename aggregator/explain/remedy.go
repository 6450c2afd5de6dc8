package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// remedyBuilder builds the remedy of a conflict. The steps leave the address with one owner, the rightful
// one.
type remedyBuilder struct {
	wording
	c       *verdict.Conflict
	parties []*verdict.Owner
}

func (a *remedyBuilder) steps(key string, values ...any) []advice.Action {
	return append(scope(values), "id", a.c.ID, a.alike, source(a.word)).steps(key)
}

// remedy returns the steps to resolve the conflict, given its cause.
func (a *remedyBuilder) remedy() []advice.Action {
	c := a.c
	orphaned := func(o *verdict.Owner) bool { return o.Orphaned }
	gone, left := those(a.parties, orphaned), except(a.parties, orphaned)
	// All owners count, and not only the first ones.
	abandoned := slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.Orphaned })
	if c.Expected() && (!c.Moves || !abandoned) {
		if o := disconnected(c); o != nil {
			return append(a.steps("wait/disconnected", o), a.steps("closing")...)
		}
		request := "arping -c 3 " + c.Address.String()
		if !c.Address.Is4() {
			request = "ndisc6 -m " + c.Address.String() + " INTERFACE"
		}
		key := variant("wait/", c)
		if c.LinkProof == verdict.OneWay && !c.Unplaced() {
			key = "wait/one-way"
		}
		return a.steps(key, "request", request, "wait", a.policy.Wait(c))
	}
	var steps []advice.Action
	for _, o := range gone {
		steps = append(steps, removal(o)...)
	}
	if len(left) > 1 || len(a.parties) == 1 {
		settled := a.settled(left)
		if group := c.GroupMAC(); group != "" {
			settled = a.steps("group-answers", "mac", group, "address", c.Address, "shared", a.shared(), "rest", settled)
		}
		steps = append(steps, settled...)
	}
	return append(steps, a.steps("closing")...)
}

// settled returns the steps after which one of the owners keeps the address, as the cause
// requires.
func (a *remedyBuilder) settled(owners []*verdict.Owner) []advice.Action {
	switch c := a.c; {
	case anycast(c):
		var release []advice.Action
		for _, o := range owners {
			release = append(release, a.giveUp(o)...)
		}
		return a.steps("anycast", "owners", a.ownerNames(owners), "prefix", c.Headline.Text, "release", release)
	case c.SamePod() && !c.OfPod():
		return a.oneNamespace(owners)
	case c.SamePod():
		return a.oneSandbox(owners)
	case c.SameVM():
		return a.oneMachine(owners)
	case c.Rule == verdict.RuleDADFailed && len(owners) == 1:
		return a.steps("somebody-else", owners[0], "release", a.giveUp(owners[0]), "retake", a.retake(owners[0]))
	}
	if h := a.c.Headline; a.c.Cause == verdict.CauseUnknown && h != nil {
		switch h.Kind {
		case verdict.HeadOneGateway:
			return a.oneGateway()
		case verdict.HeadLeaseEnded, verdict.HeadLeaseGone, verdict.HeadLeaseReplaced, verdict.HeadOneReservation:
			p := a.c.From[0]
			return a.steps(string(h.Kind), "file", h.Text, "check", ipamOf(p).Text("check/config", ipam.Case{Pool: &p.Pool}), "node", h.Pool.Node, "owners", each(h.Owners, func(id *string) string { return a.name(*id) }), "decide", a.decide(owners))
		}
	}
	if a.c.HeldAsOwn() && (a.c.Cause == verdict.CauseUnknown || a.c.Cause == verdict.CauseStaticAddress) {
		return a.rangeOfVirtual(owners)
	}
	switch a.c.Cause {
	case verdict.CauseIPAMStateLost:
		p := a.c.From[0]
		if ipamOf(p).Leases {
			return a.decide(owners)
		}
		return a.steps("records-first", "pool", poolTitle(p.Label()), "node", nodeOf(p), "decide", a.decide(owners))
	case verdict.CauseIPAMAllocatedTwice:
		return a.steps("allocated-twice", "decide", a.decide(owners))
	case verdict.CauseIPAMBookedElsewhere:
		return a.rightNode(owners)
	case verdict.CausePodCIDROverlap:
		return a.rangesApart(owners)
	case verdict.CauseOverlappingNetworks:
		return a.renumber(owners)
	case verdict.CauseStaticAddress:
		return a.setByHand(owners)
	case verdict.CauseTunnelAddress:
		return a.leaveDevice(owners)
	case verdict.CauseExternalDevice:
		return a.goOutside(owners)
	case verdict.CauseLeftoverNamespace:
		return a.endLeftovers(owners)
	case verdict.CauseDHCPClientIdentity, verdict.CauseClonedMachine:
		return a.separate(owners)
	case verdict.CauseTwoDHCPServers:
		return a.oneServer(owners)
	case verdict.CauseTakenAlong:
		return append(a.steps("taken-along"), a.decide(owners)...)
	}
	if a.c.Moves {
		return a.oneActive(owners)
	}
	if a.c.JoinsEngines() {
		return a.joined(owners)
	}
	pooled := slices.ContainsFunc(a.c.Owners, func(o verdict.Owner) bool {
		w := o.Workload()
		return w.Kind == verdict.Pod || w.Kind == verdict.Container && !w.OnlyNetns()
	})
	switch network := a.oneNetwork(); {
	case pooled && len(a.c.Pools) > 0:
		return append(a.steps("check-records"), a.decide(owners)...)
	case network != "" && len(a.c.Pools) == 0:
		return a.steps("which-ipam", "network", network, "decide", a.decide(owners))
	}
	return a.decide(owners)
}

// rangeOfVirtual returns the steps after which nodes keep an address as their own, or others as a virtual one.
func (a *remedyBuilder) rangeOfVirtual(owners []*verdict.Owner) []advice.Action {
	own := those(owners, func(o *verdict.Owner) bool { return a.c.Title(o).Own })
	others := except(owners, func(o *verdict.Owner) bool { return a.c.Title(o).Own })
	title, purpose, program := "", "", ""
	for _, al := range a.c.Allocations {
		if al.Pool.Assigns {
			title, purpose = ipamOf(al.Pool).Title, al.Purpose
		}
	}
	for _, o := range others {
		runs, _ := o.VIPProgram()
		program = cmp.Or(program, runs)
	}
	var another []advice.Action
	pool := ""
	if leased := slices.IndexFunc(a.c.Pools, func(p *verdict.Pool) bool { return p.Leases && !p.Client }); leased >= 0 {
		pool = poolName(a.c.Pools[leased])
	}
	for _, o := range own {
		another = append(another, a.giveUp(o)...)
	}
	return a.steps("own-or-virtual", "own", a.ownerNames(own), "others", a.ownerNames(others), "seems", when(title == "" && program == "", " apparently"), "title", title, "purpose", purpose,
		"program", cmp.Or(program, "the software that moves it"), "pool", pool, "another", another)
}

// joined returns the steps for bridges of container engines that are one link.
func (a *remedyBuilder) joined(owners []*verdict.Owner) []advice.Action {
	var ports []string
	var apart []advice.Action
	for _, o := range owners {
		for _, c := range o.Claims {
			if i := c.Interface; c.Wire() && i.Uplink && !slices.Contains(ports, witness(c)) {
				ports = append(ports, witness(c))
				apart = append(apart, a.steps("unplug", "node", c.Node().Name, "port", i.Name)...)
			}
		}
	}
	return a.steps("joined", "owners", a.ownerNames(owners), "ports", when(len(ports) > 0, list(ports)), "apart", apart, "decide", a.decide(owners))
}

// oneServer returns the steps after which one DHCP server serves the network.
func (a *remedyBuilder) oneServer(owners []*verdict.Owner) []advice.Action {
	servers := each(a.c.From, func(p **verdict.Pool) string { return serverTitle(*p) })
	return a.steps("two-servers", "pools", servers, "choice", choices(owners, func(o *verdict.Owner) (string, []advice.Action) {
		i := slices.IndexFunc(a.c.Facts, func(f verdict.Fact) bool { return f.Owners[0] == o.ID })
		return servers[i] + " serves this network", a.releaseAllBut(o, owners)
	}))
}

// serverTitle returns the name of the DHCP server that has leased the addresses of a pool.
func serverTitle(p *verdict.Pool) string {
	if p.Client {
		return "DHCP server " + p.Server.String()
	}
	return poolTitle(p.Label())
}

// oneNetwork returns the CNI network that assigned the address to all owners; empty if there is none.
func (a *remedyBuilder) oneNetwork() string {
	for _, network := range a.c.Owners[0].Networks() {
		if !slices.ContainsFunc(a.c.Owners, func(o verdict.Owner) bool { return !slices.Contains(o.Networks(), network) }) {
			return network
		}
	}
	return ""
}

// decide returns the steps by which the rightful owner keeps the address and the other owners
// give it up. If the rightful owner is not known, it returns a choice.
func (a *remedyBuilder) decide(owners []*verdict.Owner) []advice.Action {
	if keep, right := a.c.Rightful(owners); keep != nil {
		return a.unlessShared(right, owners, a.keep(keep, right, owners))
	}
	more := ""
	if len(owners) > mostKept {
		more = fmt.Sprintf(" (Each of the other %d can keep it in the same way.)", len(owners)-mostKept)
	}
	choice := choices(owners, func(o *verdict.Owner) (string, []advice.Action) {
		return a.placed(o.ID) + " keeps the address", a.releaseAllBut(o, owners)
	})
	if a.c.AllExternal() && a.c.Phase == verdict.Suspected && a.address.Is4() { // one machine would answer with both MACs, too
		choice = append(choice, advice.Either("they are cards of one machine, which answers for its addresses on each of them", a.steps("one-machine-answers")...))
	}
	if a.c.AllExternal() { // agents see no programs there
		choice = append(choice, advice.Either("software on them moves the address, such as keepalived or Pacemaker", a.steps("moves-outside")...))
	}
	service, of := verdict.OneService(owners), "--router"
	if strings.HasPrefix(service, "qdhcp-") {
		of = "--network"
	}
	return a.steps("decide", "more", more, "shared", a.shared(), "choice", choice, "service", service, "of", of)
}

// unlessShared returns steps by which the owner that had the address first keeps it alone, as one of two alternatives: of real
// servers behind a load balancer, all have the address, and only one answers. Age does not tell them from duplicates, but owners
// to which the address was given share nothing, and neither do owners that answered a detection of duplicates.
func (a *remedyBuilder) unlessShared(right verdict.Right, owners []*verdict.Owner, steps []advice.Action) []advice.Action {
	given := func(o *verdict.Owner) bool { return a.c.Title(o).Given }
	if right != verdict.RightOlderAssignment || a.c.Rule == verdict.RuleDADFailed || len(except(owners, given)) == 0 {
		return steps
	}
	return a.steps("meant", "shared", a.shared(), "steps", steps)
}

// shared returns the option that declares the address to be one that several owners are meant to have.
func (a *remedyBuilder) shared() string {
	return fmt.Sprintf("`--shared %s=REASON`", netip.PrefixFrom(a.c.Address, a.c.Address.BitLen()))
}

// mostKept limits the alternatives of a choice between owners.
const mostKept = 4

func choices(owners []*verdict.Owner, of func(*verdict.Owner) (string, []advice.Action)) (all []advice.Alternative) {
	for _, o := range owners[:min(len(owners), mostKept)] {
		when, actions := of(o)
		all = append(all, advice.Either(when, actions...))
	}
	return all
}

// leave returns the steps by which an owner keeps the address, after which others follow.
func (a *remedyBuilder) leave(keep *verdict.Owner, right verdict.Right, others []advice.Action) []advice.Action {
	return a.steps("leave", keep, "because", a.because(keep, right), "others", others)
}

// keep returns the steps by which one owner keeps the address and the others give it up.
func (a *remedyBuilder) keep(keep *verdict.Owner, right verdict.Right, owners []*verdict.Owner) []advice.Action {
	return a.leave(keep, right, a.releaseAllBut(keep, owners))
}

// releaseAllBut returns the steps by which all owners but one give the address up. If that owner
// has no allocation, the first step writes it, because restarted workloads ask IPAM for an
// address. Without another step, the successor of a pod may get the same address, if an IPAM keeps it.
func (a *remedyBuilder) releaseAllBut(keep *verdict.Owner, owners []*verdict.Owner) (steps []advice.Action) {
	for _, p := range a.c.Title(keep).Missing {
		text := Finding(&verdict.Finding{
			Kind: verdict.FindingInUseUnallocated, Severity: verdict.Critical, Address: a.c.Address, Owners: []verdict.Owner{*keep}, Pool: p,
		}, verdict.PoolUse{})
		for _, f := range text.Fixes {
			if !f.Manual {
				steps = append(steps, advice.Action{Text: f.What, Node: f.Node, Command: f.Command})
			}
		}
	}
	if a.c.Title(keep).OfNode() {
		steps = append(steps, a.excluded()...)
	}
	others := except(owners, func(o *verdict.Owner) bool { return o == keep })
	for _, o := range others {
		w := o.Workload()
		if p := a.c.Title(o).Kept; p != nil && w.Kind == verdict.Pod && w.Name != "" && !o.Orphaned && ipamOf(p).Has("forget") {
			steps = append(steps, ipamOf(p).Steps("forget", ipam.Case{Allocation: ipam.Allocation{Namespace: w.Namespace, Pod: cmp.Or(w.VirtualMachine, w.Name)}})...)
		}
		steps = append(steps, a.giveUp(o)...)
	}
	steps = append(steps, a.retake(keep)...)
	// Plugins set the route of a pod when the pod starts, and fail to do so while another pod has one for the
	// same address.
	elsewhere := slices.ContainsFunc(others, func(o *verdict.Owner) bool { return o.Node.Is(keep.Node) && o.Routed() })
	if i := keep.Interface; elsewhere && keep.Kind() != verdict.Host && !keep.Routed() && i != nil && i.HostInterface != "" {
		steps = append(steps, a.steps("reroute", keep, "prefix", netip.PrefixFrom(a.c.Address, a.c.Address.BitLen()))...)
	}
	return steps
}

// retake returns the steps by which an owner uses an address again for which detection of duplicates
// failed.
func (a *remedyBuilder) retake(o *verdict.Owner) []advice.Action {
	switch {
	case o.Yielded():
		return a.steps("retake/yielded", o)
	case o.DADFailed():
		return a.steps(variantOf("retake", o), o)
	}
	return nil
}

// giveUp returns the steps by which an owner gives the address up. A DHCP client must request another
// one, because it would otherwise use the lease that it has, unless it has another one already.
func (a *remedyBuilder) giveUp(o *verdict.Owner) []advice.Action {
	switch {
	case o.Yielded():
		return a.steps("release/yielded", o)
	case o.Deleted():
		return a.steps("release/deleted", o)
	case o.Kind() == verdict.Pod && a.mayBeFixed(o):
		return append(a.steps("fixed-address", o, "network", list(o.Networks())), release(o, a.address)...)
	case o.Kind() == verdict.Pod || a.c.LeasedAnother(o) || !a.leased(o) && (!o.Temporary() || !a.address.Is4()):
		return release(o, a.address)
	}
	var again []advice.Action
	if clients := a.clients(); o.Temporary() && slices.Contains(clients, o) {
		again = a.steps("lease/again", "owners", a.ownerNames(clients))
	}
	return a.steps("release/lease", o, "again", again)
}

// mayBeFixed reports whether the successor of a pod may get the same address: a network assigned it on a LAN, and no IPAM is
// known that does so. The IPAM static has no records.
func (a *remedyBuilder) mayBeFixed(o *verdict.Owner) bool {
	return len(o.Networks()) > 0 && !shown(o) && leadsOut(o.Interface) && !static(o) && !o.Orphaned && a.oneNetwork() == "" &&
		!slices.ContainsFunc(a.c.Pools, func(p *verdict.Pool) bool {
			return p.Contains(a.address) || slices.ContainsFunc(o.Networks(), func(n string) bool { serves, _ := p.Serves(n); return serves })
		})
}

// clients returns the nodes that may all have the address from DHCP although no record of a server is known: all of them
// have it for a limited time, or none of them has, because some clients set no lifetime.
func (a *remedyBuilder) clients() []*verdict.Owner {
	first := a.parties[0]
	if !a.address.Is4() || slices.ContainsFunc(a.parties, func(o *verdict.Owner) bool {
		return a.c.Title(o).Pool != nil || !o.MainAddress(a.address) || o.Temporary() != first.Temporary() || o != first && o.MAC == first.MAC
	}) {
		return nil
	}
	return a.parties
}

// leased reports whether an owner has the address from DHCP.
func (a *remedyBuilder) leased(o *verdict.Owner) bool {
	p := a.c.Title(o).Pool
	h := a.c.Headline
	ended := a.c.Cause == verdict.CauseUnknown && h != nil && len(a.c.From) > 0 && slices.Contains(h.Owners, o.ID)
	if p == nil && (a.c.Cause == verdict.CauseIPAMStateLost || ended) {
		p = a.c.From[0] // it had a lease
	}
	return p != nil && ipamOf(p).Leases
}

// because says why an owner keeps the address.
func (a *remedyBuilder) because(keep *verdict.Owner, right verdict.Right) string {
	pool, controller := a.c.Title(keep).Pool.Label(), ""
	key := ""
	switch right {
	case verdict.RightAllocation:
		if key = "keeps/allocation"; a.c.Title(keep).Pool == nil {
			key = "keeps/gateway"
		}
	case verdict.RightKept:
		key = "keeps/kept"
	case verdict.RightAssignment:
		key, controller = "keeps/assignment", ipamOf(a.c.Title(keep).Controller).Title
	case verdict.RightCurrent:
		key = "keeps/current"
	case verdict.RightNode:
		if key = "keeps/node"; !a.c.Title(keep).Internal {
			key = "keeps/node/first"
		}
	case verdict.RightMachine:
		key = "keeps/machine"
	case verdict.RightAlive:
		key = "keeps/alive"
	case verdict.RightProgram:
		key = variantOf("keeps/program", keep)
	case verdict.RightOlderAssignment:
		key = "keeps/older"
	case verdict.RightIntent:
		if key = "keeps/intended"; slices.ContainsFunc(a.parties, func(o *verdict.Owner) bool { return o.Orphaned }) {
			key = "keeps/others-gone"
		}
	default:
		return ""
	}
	return a.text(key, keep, "pool", poolTitle(pool), "controller", controller)
}

// oneSandbox returns the steps that leave one of several sandboxes of a pod.
func (a *remedyBuilder) oneSandbox(owners []*verdict.Owner) []advice.Action {
	id := func(o *verdict.Owner) string {
		if id := o.Workload().ContainerID; id != "" {
			return advice.ShortID(id)
		}
		return "with network namespace " + o.Namespace.Netns
	}
	left := func(keep *verdict.Owner) []advice.Action {
		return append(ofAllBut(keep, owners, removal), a.retake(keep)...)
	}
	if keep, right := a.c.Rightful(owners); keep != nil {
		return a.steps("one-sandbox", keep, "sandboxid", id(keep), "because", a.because(keep, right), "others", left(keep))
	}
	return a.steps("which-sandbox", owners[0], "choice", choices(owners, func(o *verdict.Owner) (string, []advice.Action) {
		return "the kubelet uses sandbox " + id(o) + " of " + placed(o), left(o)
	}))
}

// oneMachine returns the steps that leave one of several pods of a virtual machine.
func (a *remedyBuilder) oneMachine(owners []*verdict.Owner) []advice.Action {
	if keep, right := a.c.Rightful(owners); right == verdict.RightMachine {
		return a.steps("one-machine", keep, "keep", a.keep(keep, right, owners))
	}
	return a.steps("which-machine", owners[0], "choice", choices(owners, func(o *verdict.Owner) (string, []advice.Action) {
		return "it runs on node " + kubernetesName(o) + ", in " + a.name(o.ID), ofAllBut(o, owners, func(o *verdict.Owner) []advice.Action { return release(o, a.address) })
	}))
}

// oneNamespace returns the steps that leave one of several network namespaces of a container that is no
// pod.
func (a *remedyBuilder) oneNamespace(owners []*verdict.Owner) []advice.Action {
	left := func(keep *verdict.Owner, because string) []advice.Action {
		return a.steps("one-namespace", keep, "because", because, "others", ofAllBut(keep, owners, a.endNamespace))
	}
	if keep, right := a.c.Rightful(owners); keep != nil {
		return left(keep, ": "+a.because(keep, right))
	}
	return a.steps("which-namespace", owners[0], "choice", choices(owners, func(o *verdict.Owner) (string, []advice.Action) {
		return "it uses " + placedNetns(o), left(o, "")
	}))
}

// endLeftovers returns the steps that end the namespaces without processes.
func (a *remedyBuilder) endLeftovers(owners []*verdict.Owner) []advice.Action {
	wrong := a.wrong()
	given := except(owners, func(o *verdict.Owner) bool { return slices.Contains(wrong, o) })
	var gone []advice.Action
	for _, o := range wrong {
		gone = append(gone, a.endNamespace(o)...)
	}
	if len(given) > 1 {
		gone = append(gone, a.decide(given)...)
	}
	idle := slices.ContainsFunc(given, func(o *verdict.Owner) bool { return o.Workload().Idle })
	return a.steps("leftover", "given", when(!idle, list(a.ownerNames(given))), "gone", gone)
}

// endNamespace returns the steps that end a namespace without processes: by the runtime that knows its
// sandbox, or by removing what keeps it.
func (a *remedyBuilder) endNamespace(o *verdict.Owner) []advice.Action {
	w := o.Workload()
	if w.Kind == verdict.Pod && w.Source == "cri" {
		return removal(o)
	}
	key := "end-namespace"
	if o.Namespace.Netns == "" {
		key += "/unnumbered"
	}
	container := w.ContainerID
	if a.c.Cause != verdict.CauseLeftoverNamespace {
		container = "" // it has another namespace, and lives
	}
	return a.steps(key, o, "restart", a.steps("restart-processes"), "container", container)
}

// separate returns the steps that give a copy an identity of its own. A person knows which one is the
// copy.
func (a *remedyBuilder) separate(owners []*verdict.Owner) []advice.Action {
	if a.c.Facts[0].Kind == verdict.FactOneContainer {
		return a.oneCopy(owners)
	}
	key, copied := "one-client", func(o *verdict.Owner) string {
		switch {
		case a.c.Facts[0].Kind == verdict.FactLeasedToOneMAC:
			return "copy/mac"
		case o.Kind() == verdict.Host:
			return "copy/client-id"
		}
		return "copy/client-id-there"
	}
	if a.c.Cause == verdict.CauseClonedMachine {
		key, copied = "one-clone", func(*verdict.Owner) string { return "copy/machine" }
	}
	wrong := a.wrong()
	steps := a.steps(key, "owners", a.ownerNames(wrong), "choice", choices(wrong, func(o *verdict.Owner) (string, []advice.Action) {
		return a.placed(o.ID) + " is the copy", a.steps(copied(o), o)
	}))
	for _, o := range except(owners, func(o *verdict.Owner) bool { return slices.Contains(wrong, o) }) {
		steps = append(steps, release(o, a.address)...)
	}
	return steps
}

// oneCopy returns the steps that leave one of several copies of a container. A person knows which one is to go on.
func (a *remedyBuilder) oneCopy(owners []*verdict.Owner) []advice.Action {
	wrong := a.wrong()
	steps := a.steps("one-copy", "owners", each(wrong, func(o **verdict.Owner) string { return placed(*o) }), "pools", when(len(a.c.Pools) > 0, "yes"),
		"choice", choices(wrong, func(keep *verdict.Owner) (string, []advice.Action) {
			return placed(keep) + " goes on", append(ofAllBut(keep, wrong, func(o *verdict.Owner) []advice.Action {
				return a.steps("copy/container", o)
			}), a.retake(keep)...)
		}))
	for _, o := range except(owners, func(o *verdict.Owner) bool { return slices.Contains(wrong, o) }) {
		steps = append(steps, release(o, a.address)...)
	}
	return steps
}

// oneActive returns the steps that leave an address on one of several nodes that have it
// themselves.
func (a *remedyBuilder) oneActive(owners []*verdict.Owner) []advice.Action {
	keep, right := a.c.Rightful(owners)
	if right == verdict.RightNode {
		return a.leave(keep, right, append(a.assignedAway(keep), ofAllBut(keep, owners, func(o *verdict.Owner) []advice.Action { return giveUp(o, a.address, nil) })...))
	}
	if i := slices.IndexFunc(a.c.Facts, func(f verdict.Fact) bool { return f.Kind == verdict.FactAlternates }); i >= 0 {
		return a.steps("two-sides", "program", registry.Of(a.c.Facts[i].Pool.IPAM).Title, "nodes", a.c.Facts[i].Nodes)
	}
	if all := a.c.Controllers(); len(all) > 0 {
		titles := each(all, func(p **verdict.Pool) string { return ipamOf(*p).Title })
		return a.steps("two-controllers", "controllers", titles, "choice", oneController(a.c.Allocations, owners, a.address))
	}
	if keep != nil && a.leased(keep) && !slices.ContainsFunc(owners, func(o *verdict.Owner) bool { return o != keep && !o.Temporary() }) {
		return a.keep(keep, right, owners) // the others have leases that ended
	}
	if right != verdict.RightAssignment && right != verdict.RightProgram {
		program, hint, names := "", "", a.ownerNames(owners)
		active := choices(owners, func(o *verdict.Owner) (string, []advice.Action) {
			return "only " + a.placed(o.ID) + " is", append(ofAllBut(o, owners, func(o *verdict.Owner) []advice.Action {
				if o.Namespace == nil && o.Guest() == verdict.NoGuest {
					return a.steps("remove-outside", o)
				}
				return giveUp(o, a.address, nil)
			}), a.retake(o)...)
		})
		for _, o := range owners {
			runs, _ := o.VIPProgram()
			program = cmp.Or(program, runs)
		}
		var without, ended []*verdict.Owner // the owners of which it is not known that the program runs there, or known that it has ended
		for _, o := range owners {
			switch runs, over := o.VIPProgram(); {
			case over && runs == program:
				ended = append(ended, o)
			case over, runs == "":
				without = append(without, o)
			}
		}
		if !slices.ContainsFunc(owners, func(o *verdict.Owner) bool { return o.Kind() != verdict.Host }) {
			names = []string{"nodes " + list(each(owners, func(o **verdict.Owner) string { return (*o).Node.Name }))}
		}
		if program != "" {
			hint = cmp.Or(Text("election/"+program), Text("election/vrrp"))
		}
		var dhcp []advice.Action
		if clients := a.clients(); len(clients) > 1 {
			dhcp = a.steps("given-to-both", "owners", a.ownerNames(clients))
		}
		return a.steps("one-active", "program", program, "dhcp", dhcp, "clients", when(len(dhcp) > 0, "yes"), "hint", hint, "lease", Text("election/"+program+"/lease"),
			"shared", a.shared(), "owners", names, "without", when(len(without) > 0, list(a.ownerNames(without))), "ended", when(len(ended) > 0, list(a.ownerNames(ended))), "active", active, "decide", a.decide(owners))
	}
	var steps, restart []advice.Action
	for _, o := range except(owners, func(o *verdict.Owner) bool { return o == keep }) {
		if right == verdict.RightProgram {
			// The vrrpd of FRR moves an address by the carrier of the interface on which it has the address.
			if i := slices.IndexFunc(o.Claims, func(c *verdict.Claim) bool {
				return c.Counts() && o.Node.VIPProgram == "vrrpd" && c.Interface.Kind == "macvlan" && c.Interface.MAC.Virtual()
			}); i >= 0 {
				steps = append(steps, a.steps("restart-frr", o, "router", o.Claims[i].Interface.Name)...)
				continue
			}
			restart = append(restart, a.steps(variantOf("restart-program", o), o)...)
		}
		steps = append(steps, giveUp(o, a.address, a.c.Title(keep).Controller)...)
	}
	return a.leave(keep, right, slices.Concat(steps, restart, a.retake(keep)))
}

// oneController returns one alternative for each owner to which a controller assigns the address: other controllers
// assign it no longer. What is no Service, such as the control plane, does not give way to a Service, which can have another
// address.
func oneController(allocations []*verdict.Allocation, owners []*verdict.Owner, a netip.Addr) []advice.Alternative {
	assignment := func(o *verdict.Owner) *verdict.Allocation {
		var found *verdict.Allocation
		for _, al := range allocations {
			if al.Pool.Assigns && o.OnNode(al.Node) && (found == nil || isService(found)) {
				found = al
			}
		}
		return found
	}
	assigned := those(owners, func(o *verdict.Owner) bool { return assignment(o) != nil })
	if first := those(assigned, func(o *verdict.Owner) bool { return !isService(assignment(o)) }); len(first) > 0 {
		assigned = first
	}
	return choices(assigned, func(keep *verdict.Owner) (string, []advice.Action) {
		serves := assignment(keep)
		steps := ofAllBut(keep, owners, func(o *verdict.Owner) (steps []advice.Action) {
			al := assignment(o)
			if al == nil {
				return giveUp(o, a, nil)
			}
			if al.Pool.IPAM != serves.Pool.IPAM {
				steps = scope{
					"title", ipamOf(al.Pool).Title, "keep", ipamOf(serves.Pool).Title, "purpose", al.Purpose, "address", a.String(),
					"service", when(isService(al) && al.Purpose == serves.Purpose, "yes"), "another", when(isService(al) && al.Purpose != serves.Purpose, "yes"), "duty", when(!isService(al), "yes"),
				}.steps("not-served")
			}
			return append(steps, giveUp(o, a, al.Pool)...)
		})
		return ipamOf(serves.Pool).Title + " serves it, on " + placed(keep), steps
	})
}

func isService(al *verdict.Allocation) bool { return strings.HasPrefix(al.Purpose, "Service ") }

// assignedAway returns the steps after which controllers no longer assign the own address of a node to other nodes.
func (a *remedyBuilder) assignedAway(keep *verdict.Owner) (steps []advice.Action) {
	for _, al := range a.c.Allocations {
		if al.Pool.Assigns && !keep.OnNode(al.Node) {
			steps = append(steps, a.steps("assigned-away", "title", ipamOf(al.Pool).Title, "assignee", al.Node, "purpose", al.Purpose,
				"service", when(isService(al), "yes"))...)
		}
	}
	return steps
}

// giveUp returns the steps by which a node or a namespace gives a virtual address up. p is the pool of the
// controller that assigns the address to another node; nil if there is none.
func giveUp(o *verdict.Owner, a netip.Addr, p *verdict.Pool) (steps []advice.Action) {
	if p != nil && o.Kind() == verdict.Host {
		steps = ipamOf(p).Steps("giveup", ipam.Case{Node: kubernetesName(o)})
	}
	if shown(o) && len(steps) > 0 {
		return steps
	}
	_, known := entering(o)
	for _, c := range contested(o, a) {
		if c.Counts() && known {
			steps = append(steps, scope{o, "device", c.Interface.Name, "del", deletionOf(c, a), "first", when(isFirst(c, a), "yes"), "kept", keptOn(o, c, a)}.steps(variantOf("remove-vip", o))...)
		}
	}
	if len(steps) == 0 {
		return release(o, a)
	}
	return steps
}

// variantOf returns the key of a text about an owner: a node itself, or a namespace.
func variantOf(key string, o *verdict.Owner) string {
	if o.Kind() != verdict.Host {
		key += "/namespace"
	}
	return key
}

// rightNode returns the steps by which an IPAM with its own name for each node allocates addresses
// for the node that pods run on.
func (a *remedyBuilder) rightNode(owners []*verdict.Owner) []advice.Action {
	m := registry.NodeNamed()
	var rename []advice.Action
	var done []string
	for _, o := range a.wrong() {
		node := kubernetesName(o)
		if slices.Contains(done, node) {
			continue
		}
		done = append(done, node)
		at := ipam.Place{Node: o.Node.Name, KubernetesNode: node}
		if name := o.Node.IPAMName; !o.OnNode(name.Name) {
			at.WrongName = name
		}
		if at.WrongName.Name != "" || len(a.c.From) > 0 && a.c.From[0].IPAM == m.Name {
			rename = append(rename, m.Steps("rightname", ipam.Case{Holder: &ipam.Holder{Place: at}})...)
		}
	}
	keep := a.decide(owners)
	rivals := except(owners, func(o *verdict.Owner) bool { return slices.Contains(a.c.Wrong, o.ID) })
	if rightful, _ := a.c.Rightful(owners); rightful == nil && len(rivals) == 1 {
		keep = a.keep(rivals[0], verdict.RightIntent, owners) // according to the cause, the address was assigned to it
	}
	return a.steps("right-node", "rename", rename, "keep", keep)
}

// rangesApart returns the steps that give one of two nodes a different range.
func (a *remedyBuilder) rangesApart(owners []*verdict.Owner) []advice.Action {
	if namespace, name := a.c.Definition(); name != "" {
		return a.steps("another-ipam", "definition", namespace+"/"+name, "namespace", namespace, "network", name, "decide", a.decide(owners))
	}
	if x, y := objectSide(a.c.Networks[0]), objectSide(a.c.Networks[1]); x != nil && y != nil && len(x.ranges("reassign")) > 0 {
		return x.reassigned(*y)
	}
	one, other, what := a.c.Networks[0].Node, a.c.Networks[1].Node, "range"
	if a.c.Kubernetes {
		what = "pod CIDR"
	}
	if keep, right := a.c.Rightful(owners); keep != nil && (keep.Node.Key() == one || keep.Node.Key() == other) {
		if keep.Node.Key() == other {
			one, other = other, one
		}
		return a.steps("leave-node", keep, "one", one.Name, "two", other.Name, "what", what, "because", a.because(keep, right), "range", a.anotherRange(other))
	}
	return a.steps("which-node", "one", one.Name, "two", other.Name, "what", what, "rangeone", a.anotherRange(one), "rangetwo", a.anotherRange(other))
}

// anotherRange returns the steps that give a node a different range. They drain the node first if it must register
// again or make its bridge again.
func (a *remedyBuilder) anotherRange(node verdict.NodeKey) []advice.Action {
	config, bridge, kubernetes, side := "", "", "", "this network"
	var first []advice.Action
	for _, s := range a.c.Networks {
		if s.Node == node {
			if object := objectSide(s); object != nil {
				return append(object.ranges("check"), object.reregistered(object.rangesText("renewed"))...)
			}
			if s.Pool != nil && s.Pool.Engine {
				engine, network, _ := ipam.CutEngine(s.Pool.Network)
				return a.steps("another-range/engine", "node", node.Name, "engine", engine, "network", network, "default", when(network == "bridge" && engine == "docker", "yes"))
			}
			if bridge, first = s.Bridge, release(a.c.Owner(s.Owner), a.address); s.Pool != nil {
				config, side = s.Pool.Config, cmp.Or(after("network ", s.Pool.Network), side)
			}
		}
	}
	if a.c.Kubernetes {
		kubernetes = "yes"
	}
	key := "another-range"
	if kubernetes == "" && bridge == "" {
		key = "another-range/in-place"
	}
	name := plainName(node.Name)
	return a.steps(key, "node", node.Name, "knode", name, "manifest", name+".yaml", "kubernetes", kubernetes, "bridge", bridge, "first", first, "side", side,
		"gets", "The controller manager assigns it a free range.", "config", cmp.Or(config, "its configuration in /etc/cni/net.d"))
}

// oneGateway returns the steps after which the pods of several nodes have a gateway that one machine has.
func (a *remedyBuilder) oneGateway() []advice.Action {
	var own, router []advice.Action
	cni := ""
	for i, s := range a.c.Networks {
		engine, network := "", ""
		if s.Pool.Engine {
			engine, network, _ = ipam.CutEngine(s.Pool.Network)
		}
		with := scope{
			"node", s.Node.Name, "config", cmp.Or(s.Pool.Config, "its configuration in /etc/cni/net.d"), "side", cmp.Or(after("network ", s.Pool.Network), "this network"),
			"engine", engine, "network", network, "first", release(a.c.Owner(s.Owner), a.address),
		}
		if i > 0 {
			own = append(own, a.steps("own-gateway", with...)...)
		}
		if !s.Pool.Engine {
			cni, router = "yes", append(router, a.steps("router-gateway", with...)...)
		}
	}
	return a.steps("one-gateway", "own", own, "cni", cni, "router", router, "shared", a.shared())
}

// objectSide returns the range of a node if an IPAM assigns it in an object of the cluster; nil
// otherwise.
func objectSide(s verdict.Origin) *side {
	if p := s.Pool; p != nil && p.OfNode() {
		return &side{Node: s.Node.Name, Ranges: p.Ranges, Source: verdict.SideNodeObject, IPAM: p.IPAM, Grows: p.Grows}
	}
	return nil
}

// renumber returns the steps that give one of two networks a different range.
func (a *remedyBuilder) renumber(owners []*verdict.Owner) []advice.Action {
	x, y := a.c.Networks[0], a.c.Networks[1]
	one, other := a.c.Owner(x.Owner), a.c.Owner(y.Owner)
	switch {
	case replaced(x, y):
		return a.renamed(x, y)
	case replaced(y, x):
		return a.renamed(y, x)
	}
	switch keep, right := a.c.Rightful(owners); {
	case keep == one && keep != nil:
		return a.leave(one, right, a.another(y, x, other))
	case keep == other && keep != nil:
		return a.leave(other, right, a.another(x, y, one))
	}
	return a.steps("which-network", "one", sideName(x), "two", sideName(y), "rangeone", a.another(x, y, one), "rangetwo", a.another(y, x, other))
}

// replaced reports whether one network may have replaced another one under a new name: both are on one bridge of a node, if they
// have one, and only the other one has a configuration.
func replaced(former, current verdict.Origin) bool {
	p, q := former.Pool, current.Pool
	return former.Node == current.Node && former.Device == current.Device && p != nil && q != nil && p.IPAM == q.IPAM && p.Config == "" && q.Config != ""
}

// renamed returns the steps after which pods have addresses of one network only, although it has had two names.
func (a *remedyBuilder) renamed(former, current verdict.Origin) []advice.Action {
	older, newer := a.c.Owner(former.Owner), a.c.Owner(current.Owner)
	return a.steps("renamed", "former", sideName(former), "current", sideName(current), "name", former.Network, "node", current.Node.Name, "config", current.Pool.Config,
		"older", release(older, a.address), "newer", release(newer, a.address), "apart", a.another(current, former, newer))
}

// another returns the steps that give a network a different range than a second network. Its
// workloads then get new addresses, beginning with an owner of the conflict.
func (a *remedyBuilder) another(change, keep verdict.Origin, first *verdict.Owner) []advice.Action {
	key, config := "configured/device", ""
	_, _, engine := ipam.CutEngine(change.Network)
	switch {
	case change.Pool != nil && change.Pool.Config != "":
		key, config = "configured/pool", change.Pool.Config
	case engine, change.Network == "" && verdict.MadeByEngine(change.Device):
		key = "configured/engine"
	case change.Network != "":
		key = "configured/network"
	}
	named := func(s verdict.Origin) string {
		if ranges := rangesText(s.Ranges); ranges != "" {
			return sideName(s) + " (" + ranges + ")"
		}
		return sideName(s)
	}
	node, shared := change.Node.Name, ""
	if change.Node == keep.Node && change.Device == keep.Device {
		shared = change.Device
	}
	return a.steps("renumber", "change", named(change), "keep", named(keep), "side", sideName(change), "node", node, "shared", shared, "bridge", when(shared == "", change.Bridge), "first", release(first, a.address),
		"configuration", Text(key, "config", config, "node", node, "network", change.Network, "device", change.Device))
}

func oneName(owners []*verdict.Owner) bool {
	first := owners[0].Workload().Name
	return first != "" && !slices.ContainsFunc(owners, func(o *verdict.Owner) bool { return o.Workload().Name != first })
}

// setByHand returns the steps for an address that was set by hand: remove it or, if it must stay,
// exclude it from the range of IPAM.
func (a *remedyBuilder) setByHand(owners []*verdict.Owner) []advice.Action {
	if a.c.Fixed() {
		return a.steps("fixed-for-each", "service", when(oneName(owners), Text("fixed/one-service")), "choice", choices(owners, func(keep *verdict.Owner) (string, []advice.Action) {
			return a.placed(keep.ID) + " keeps the address", ofAllBut(keep, owners, func(o *verdict.Owner) []advice.Action { return ofEngine(o, "end-fixed") })
		}))
	}
	wrong := a.wrong()
	byHand := func(o *verdict.Owner) bool { return slices.Contains(wrong, o) }
	given := except(owners, byHand)
	var gone []advice.Action
	for _, o := range wrong {
		if o.Kind() == verdict.Pod && !shown(o) {
			gone = append(gone, a.steps("find-script", o)...)
		}
		gone = append(gone, release(o, a.address)...)
	}
	if len(given) > 1 {
		gone = append(gone, a.decide(given)...)
	}
	if a.c.Gateway {
		return a.steps("leave-gateway", "given", a.ownerNames(given), "gone", gone)
	}
	keep, right := a.c.Rightful(owners)
	if right == verdict.RightNode {
		return a.leave(keep, right, a.insteadOf(except(owners, func(o *verdict.Owner) bool { return o == keep })))
	}
	// External clients may use the address of a node or a machine, which ipwitness cannot see.
	firm := slices.ContainsFunc(wrong, func(o *verdict.Owner) bool {
		return o.Kind() == verdict.Host || o.Namespace == nil || o.Guest() != verdict.NoGuest
	})
	because := "IPAM allocates it to pods"
	if slices.ContainsFunc(given, a.leased) {
		because, firm = "DHCP has leased it", true
	}
	if keep != nil && !byHand(keep) && !firm {
		return a.unlessShared(right, owners, a.leave(keep, right, gone))
	}
	return a.steps("by-hand", "wrong", a.ownerNames(wrong), "given", a.ownerNames(given), "because", because, "gone", gone, "instead", a.insteadOf(given))
}

// insteadOf returns the steps by which some owners give the address up to an owner without an
// allocation. They exclude the address first, so that IPAM does not allocate it again.
func (a *remedyBuilder) insteadOf(owners []*verdict.Owner) []advice.Action {
	steps := outOfRange(a.c.From, a.c.Address, a.c.Allocations)
	for _, o := range owners {
		steps = append(steps, a.giveUp(o)...)
	}
	return steps
}

// leaveDevice returns the steps by which a pod gives the address up to the node's device, or the
// device gives it up if IPAM has allocated it to the pod.
func (a *remedyBuilder) leaveDevice(owners []*verdict.Owner) []advice.Action {
	ofNode := func(o *verdict.Owner) bool { return o.Kind() == verdict.Host }
	devices, pods := those(owners, ofNode), except(owners, ofNode)
	keep, right := a.c.Rightful(owners)
	if keep != nil && ofNode(keep) && (right == verdict.RightNode || a.c.Title(keep).Allocated()) {
		return a.keep(keep, right, owners)
	}
	var m *ipam.IPAM // the IPAM that allocates addresses for devices of nodes, too
	if i := slices.IndexFunc(a.c.Pools, func(p *verdict.Pool) bool { return ipamOf(p).Daemon.Name != "" }); i >= 0 {
		m = ipamOf(a.c.Pools[i])
	}
	var another []advice.Action
	for _, o := range devices {
		if o.Interface.Tunnel() != "" && m != nil {
			another = append(another, a.steps("restart-daemon", o, "title", m.Title, "restart", m.Daemon.Restart(plainName(o.Node.Name)))...)
			continue
		}
		another = append(another, a.steps("readdress-device", o)...)
		another = append(another, release(o, a.address)...)
	}
	if len(pods) > 1 {
		another = append(another, a.decide(pods)...)
	}
	if keep != nil && right == verdict.RightAllocation && m != nil {
		return a.leave(keep, right, another)
	}
	return a.steps("which-device", devices[0], "pods", a.ownerNames(pods), "another", another, "instead", a.insteadOf(pods))
}

// goOutside returns the steps that find a device outside all nodes.
func (a *remedyBuilder) goOutside(owners []*verdict.Owner) []advice.Action {
	wrong := a.wrong()
	ours := except(owners, func(o *verdict.Owner) bool { return slices.Contains(wrong, o) })
	var find, giveUp []advice.Action
	for _, o := range wrong {
		if a.c.Uncovered {
			find = append(find, a.steps("first-nodes", o)...)
		}
		find = append(find, release(o, a.address)...)
		find[len(find)-1].Text += " Restarting your pods or nodes changes nothing as long as the device has the address."
	}
	if len(ours) > 1 {
		find = append(find, a.decide(ours)...)
	} else if len(ours) == 1 {
		find = append(find, a.retake(ours[0])...)
	}
	if keep, right := a.c.Rightful(owners); keep != nil && slices.Contains(ours, keep) {
		return a.leave(keep, right, find)
	}
	giveUp = a.excluded()
	for _, o := range ours {
		giveUp = append(giveUp, a.giveUp(o)...)
	}
	if a.c.OnlyOnEngines() {
		return a.steps("leave-outside", "ours", a.ownerNames(ours), "wrong", a.ownerNames(wrong), "giveup", giveUp)
	}
	shared := ""
	if a.c.LinkProof == verdict.OneWay {
		shared = a.shared()
	}
	return a.steps("which-side", "ours", a.ownerNames(ours), "wrong", a.ownerNames(wrong), "find", find, "giveup", giveUp, "repeater", shared)
}

// excluded returns the steps after which IPAMs no longer allocate the address, which stays with an owner that they do not
// know. Otherwise, one of the next pods would get it again.
func (a *remedyBuilder) excluded() []advice.Action {
	pools := slices.DeleteFunc(slices.Clone(a.c.Pools), func(p *verdict.Pool) bool {
		return p.Leases || p.Engine || !p.Contains(a.c.Address)
	})
	if len(pools) == 0 {
		return nil
	}
	return outOfRange(pools, a.c.Address, a.c.Allocations)
}

// wrong returns the owners that must give the address up according to the cause.
func (a *remedyBuilder) wrong() (found []*verdict.Owner) {
	for _, id := range a.c.Wrong {
		if o := a.c.Owner(id); o != nil {
			found = append(found, o)
		}
	}
	return found
}

func those[T any](all []T, holds func(T) bool) (found []T) {
	for _, one := range all {
		if holds(one) {
			found = append(found, one)
		}
	}
	return found
}

// except returns the owners for which holds returns false.
func except(owners []*verdict.Owner, holds func(*verdict.Owner) bool) []*verdict.Owner {
	return those(owners, func(o *verdict.Owner) bool { return !holds(o) })
}

func ofAllBut(keep *verdict.Owner, owners []*verdict.Owner, of func(*verdict.Owner) []advice.Action) (steps []advice.Action) {
	for _, o := range owners {
		if o != keep {
			steps = append(steps, of(o)...)
		}
	}
	return steps
}

func (w *wording) ownerNames(owners []*verdict.Owner) []string {
	name := w.alike.naming(OwnerName)
	return each(owners, func(o **verdict.Owner) string { return name(*o) })
}
