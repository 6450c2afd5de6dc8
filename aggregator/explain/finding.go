package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/proto/form"
)

// FindingText is the text of a finding.
type FindingText struct {
	// Summary is one or two sentences.
	Summary string
	advice.Advice
}

// Superseded returns the text of a finding that ended because it became a conflict.
func (t FindingText) Superseded() FindingText {
	t.Summary = "This finding has become a conflict. Its summary was: " + t.Summary
	return t
}

// Finding returns the text of a finding. For a finding about one address, use is the current usage
// of its pool, or the zero value if it is not known.
func Finding(f *verdict.Finding, use verdict.PoolUse) FindingText {
	t := &findingBuilder{f: f, pool: f.Pool, use: use, allocation: &verdict.Allocation{}, alike: f.Owners}
	if f.Former != nil && f.Former.Owner.Namespace != nil {
		t.alike = append(slices.Clip(t.alike), f.Former.Owner)
	}
	if t.pool == nil {
		t.pool = &verdict.Pool{}
	}
	if len(f.Owners) > 0 {
		t.owner = &f.Owners[0]
	}
	if len(f.Allocations) > 0 {
		t.allocation = f.Allocations[0]
	}
	switch f.Kind {
	case verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion:
		t.use = f.Stock.Use
		t.ofPool()
	case verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap:
		t.overlap()
	case verdict.FindingDuplicateNodeName:
		t.namesakes()
	case verdict.FindingInUseUnallocated, verdict.FindingBookedElsewhere, verdict.FindingLeaked:
		t.mismatch()
	case verdict.FindingDoubleAllocated:
		t.double()
	case verdict.FindingIntendedNotObserved:
		t.intended()
	case verdict.FindingAddressSpoofed, verdict.FindingMACCloned:
		t.spoofed()
	case verdict.FindingSharedAddressAnswered:
		t.shared()
	case verdict.FindingAnsweredByAnother:
		if s := t.allocation.Service; s != nil {
			t.add(t.f.Kind+"/service", redirectWords(s)...)
			break
		}
		t.answered()
	case verdict.FindingOrphanedSandbox:
		phase, risk := "", "orphaned/risk"
		if pod := t.owner.Pod; pod != nil && pod.Ended() {
			phase = pod.Phase
		}
		switch {
		case len(t.f.Allocations) > 0:
			risk += "/booked"
		case t.f.Pool != nil:
			risk += "/free"
		}
		// Each sandbox of the pod is a finding.
		t.add(t.f.Kind, "phase", phase, "free", when(strings.HasSuffix(risk, "/free"), "yes"), "risk", t.scope().text(risk), "which", after(", in sandbox ", advice.ShortID(t.owner.Workload().ContainerID)), "remove", removal(t.owner))
	case verdict.FindingReusedTooSoon:
		t.reused()
	case verdict.FindingStaleBelief:
		t.misled()
	case verdict.FindingEndpointOfFormerOwner:
		t.misdirected()
	case verdict.FindingIdentityMismatch:
		t.misidentified()
	case verdict.FindingNATToFormerOwner:
		t.translated()
	case verdict.FindingVIPHeldElsewhere:
		t.heldElsewhere()
	}
	readable(t.Remedy)
	for i, f := range t.Fixes {
		if advice.Withheld(f.Command) {
			t.Fixes[i] = advice.Fix{Node: f.Node, What: f.What + " " + withheld, Manual: true}
		}
	}
	return t.FindingText
}

// withheld replaces a command that contains invisible characters.
const withheld = "The command is withheld because a name in it has unprintable characters, is too long or looks like an option. Handle this step by hand."

// readable returns actions with withheld in place of each command that contains an unreadable name.
func readable(actions []advice.Action) []advice.Action {
	for i := range actions {
		a := &actions[i]
		switch {
		case advice.Withheld(a.Text):
			a.Text, a.Command = "There is one more step. "+withheld, ""
		case advice.Withheld(a.Command):
			a.Text, a.Command = a.Text+" "+withheld, ""
		}
		a.Node = form.Visible(a.Node)
		for n := range a.Choice {
			a.Choice[n].When = form.Visible(a.Choice[n].When)
			readable(a.Choice[n].Actions)
		}
	}
	return actions
}

type findingBuilder struct {
	f    *verdict.Finding
	pool *verdict.Pool
	use  verdict.PoolUse
	// owner holds the address; it is nil if there is no holder. allocation is IPAM's record of
	// the address; it is empty if there is none.
	owner      *verdict.Owner
	allocation *verdict.Allocation
	alike      namesakes // the owners that the texts name
	FindingText
}

// word returns a value that the texts of several findings name.
func (t *findingBuilder) word(name string) any {
	switch name {
	case "address":
		if !t.f.Address.IsValid() {
			return ""
		}
		return t.f.Address
	case "holder":
		switch listed := t.listed(); {
		case listed != nil && listed.Pod == "":
			return "node " + listed.Node
		case listed != nil:
			return allocationName(listed)
		case t.owner == nil:
			return "an unknown owner"
		}
		return t.alike.naming(placed)(t.owner)
	case "listed":
		return when(t.listed() != nil, " according to the Kubernetes API")
	case "pool":
		return poolName(t.pool)
	case "poolbegin":
		return poolBegin(t.pool)
	case "poolnode":
		return nodeOf(t.pool)
	case "config":
		return t.pool.Config
	case "title":
		return ipamOf(t.pool).Title
	case "allocation":
		return allocationName(t.allocation)
	case "place":
		return allocationPlace(t.allocation)
	case "pod":
		return t.allocation.Namespace + "/" + t.allocation.Pod
	case "podnamespace":
		return t.allocation.Namespace
	case "podname":
		return t.allocation.Pod
	case "fullness":
		if t.use.Size == 0 {
			return ""
		}
		return fullness(t.use, t.pool)
	case "holding":
		return t.holding
	case "allocations":
		return t.allocations
	case "history":
		return t.history
	case "closing":
		return scope{source(t.word)}.steps("closing-finding")
	}
	return nil
}

// scope returns values for texts of the finding.
func (t *findingBuilder) scope(values ...any) scope {
	if t.owner != nil {
		values = append(values, t.owner)
	}
	return append(scope(values), t.alike, source(t.word))
}

func (t *findingBuilder) add(key string, values ...any) {
	t.scope(values...).write(&t.FindingText, key)
}

// when returns the value if the condition holds, and the empty text otherwise.
func when(holds bool, value string) string {
	if holds {
		return value
	}
	return ""
}

// listed returns the record of the pod or node that has the address of a Service, or one that a Service may get, according to
// the Kubernetes API, if no owner is known; nil if there is none.
func (t *findingBuilder) listed() *verdict.Allocation {
	i := slices.IndexFunc(t.f.Allocations, func(al *verdict.Allocation) bool { return al.Pool != nil && al.Pool.IPAM == podips.IPAM.Name })
	if i < 0 || t.owner != nil || t.f.Kind == verdict.FindingDoubleAllocated {
		return nil
	}
	return t.f.Allocations[i]
}

// holding adds the owners of the address that kernels report.
func (t *findingBuilder) holding() {
	if listed := t.listed(); listed != nil {
		t.State("According to %s, %s has the address. No kernel is known to have it: there may be no agent on that node.", allocationPlace(listed), t.word("holder"))
	}
	for i := range t.f.Owners {
		o := &t.f.Owners[i]
		if shown(o) || o.Served != nil {
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
		t.State("The kernel of node %s reports that %s has %s on %s%s.", o.Node.Name, t.alike.naming(OwnerName)(o), t.f.Address, o.Interface.Name, after("; ", strings.Join(details, ", ")))
	}
}

// allocations adds the records that IPAM has of the address.
func (t *findingBuilder) allocations() {
	for _, al := range t.f.Allocations {
		since := ""
		if al.AllocatedAt != 0 {
			since = ", since " + stampText(al.AllocatedAt)
		}
		t.State("According to %s, the address is allocated to %s%s.", allocationPlace(al), allocationName(al), since)
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

// ownerName returns the owner as NAMESPACE/POD; it is empty if the owner is not a pod.
func (t *findingBuilder) ownerName() string {
	if t.owner == nil || t.owner.Kind() != verdict.Pod {
		return ""
	}
	namespace, name := t.owner.Named()
	return when(namespace != "" && name != "", namespace+"/"+name)
}

// ofNode reports whether the holder is a node itself and the address belongs to an IPAM.
func (t *findingBuilder) ofNode() bool {
	return t.owner != nil && t.owner.Kind() == verdict.Host && t.pool.IPAM != ""
}

// mismatch describes an address about which an IPAM and the kernels disagree.
func (t *findingBuilder) mismatch() {
	p, texts := t.pool, textOf(t.pool)
	if p.Services != "" && t.f.Kind == verdict.FindingInUseUnallocated {
		c := ipam.Case{Pool: &p.Pool, Address: t.f.Address, Holder: &ipam.Holder{Name: fmt.Sprint(t.word("holder"))}}
		t.add(t.f.Kind+"/services", "cluster", when(p.Services == ipam.ClusterIP, "yes"), "exclude", ipamOf(p).Steps("services", c),
			"ranges", list(each(p.Ranges, rangeText)))
		return
	}
	kept := ""
	if t.allocation.KeptUntil != 0 {
		kept = stampText(t.allocation.KeptUntil)
	}
	lost, lostAt := "", ""
	if p.LostAt != 0 {
		lost, lostAt = plural(p.Lost, "record", "records"), stampText(p.LostAt)
	}
	missing := p.State == ipam.Missing
	exhausted := ""
	switch {
	case t.use.Size > 0 && t.use.Allocated >= t.use.Size:
		exhausted = " " + Text("exhaustion/full")
	case t.use.ExhaustedIn > 0:
		exhausted = " " + Text("exhaustion/soon", "soon", secondsText(t.use.ExhaustedIn))
	}
	own := t.owner != nil && t.allocation.Pod != "" && t.allocation.Namespace+"/"+t.allocation.Pod == t.ownerName()
	effect := cmp.Or(when(own, texts.Text("effect/wrongnode")), texts.Text("effect/elsewhere"), "When that owner ends, the address is freed and allocated to another pod while it is in use.")
	switch {
	case t.f.Kind == verdict.FindingBookedElsewhere && len(t.f.Owners) > 1:
		effect = Text("effect/both", "rightful", t.alike.naming(placed)(&t.f.Owners[1]))
	case t.ofNode():
		effect = "As soon as that owner configures the address, it is a duplicate."
	}
	noHolder := "no live owner holds it"
	if t.f.Since != 0 {
		noHolder = "no live owner has been seen with it since at least " + stampText(t.f.Since)
	}
	t.add(t.f.Kind,
		"free", cmp.Or(texts.Text("effect/free"), fmt.Sprintf("%s considers it free and will allocate it to %s.", poolName(p), poolNext(p, "one of the next pods"))),
		"missing", when(missing, "yes"), "since", after(" since ", lostAt),
		"lost", when(!missing, lost), "lostat", after(" at ", lostAt), "norecord", when(!missing && lost == "", "yes"), "kept", kept,
		"effect", effect, "noholder", noHolder, "exhaustion", exhausted,
		"reserve", func() { t.remedy("reserve") }, "reassign", func() { t.remedy("reassign") }, "release", func() { t.remedy("release") })
}

// intended describes an owner that lacks an address intended for it.
func (t *findingBuilder) intended() {
	from := t.f.Source
	if key := t.f.Kind + "/" + from; has(key) {
		rival, until := "", verdict.Stamp(0)
		if f := t.f.Former; f != nil {
			rival, until = OwnerName(&f.Owner)+" (node "+f.Owner.Node.Name+")", f.Until
		}
		addresses := t.f.Addresses
		if len(addresses) == 0 {
			addresses = []netip.Addr{t.f.Address}
		}
		t.add(key, "rival", rival, "until", until, "addresses", addresses)
		return
	}
	if has("source/" + from) {
		from = Text("source/" + from)
	}
	t.add(t.f.Kind, "source", from, "whom", cmp.Or(t.ownerName(), t.f.Address.String()),
		"restart", t.restart("its sandbox is set up again with all of its addresses", false))
}

// reused describes an owner that has an address that another owner had a moment before.
func (t *findingBuilder) reused() {
	f := t.f.Former
	gap := "just before"
	switch d := f.Gap(); {
	case d >= time.Second:
		gap = secondsText(d.Seconds()) + " after"
	case d > 0:
		gap = "less than a second after"
	}
	cooldown := textOf(t.pool).Steps("cooldown")
	if len(cooldown) == 0 {
		cooldown = scope{}.steps("cooldown")
	}
	t.add(t.f.Kind, "was", &f.Owner, "gap", gap, "until", f.Until, "stalemac", when(f.Owner.MAC != t.owner.MAC, "yes"),
		"cooldown", cooldown, "minutes", int(verdict.ReusedFor/time.Minute))
}

// misled describes namespaces that send packets for the address to a hardware address that no owner has.
func (t *findingBuilder) misled() {
	b, used, tunnel, others := t.f.Beliefs[0], false, false, 0
	var holders []verdict.Owner
	var steps []advice.Action
	var relays []string
	for _, one := range t.f.Beliefs {
		used = used || one.State == verdict.EntryInUse
		others += int(one.Count) - len(one.Holders)
		for _, m := range one.RelayedBy {
			if !slices.Contains(relays, m.String()) {
				relays = append(relays, m.String())
			}
		}
		step := "stale-belief/entry"
		if one.Far.Is(t.owner.Node) && one.State == verdict.EntryPermanent {
			step, tunnel = "stale-belief/tunnel", true
		}
		for _, i := range one.Holders {
			holders = append(holders, verdict.Owner{ID: i.Namespace.ID, Node: i.Namespace.Node, Namespace: i.Namespace, Interface: i, MAC: i.MAC})
			steps = append(steps, t.scope(&holders[len(holders)-1], "tunnel", one.Tunnel, "right", t.owner.MAC.String()).steps(step)...)
		}
		if b.Former == nil {
			b.Left, b.Former = one.Left, one.Former
		}
	}
	names := each(holders, namesakes(holders).naming(placed))
	if others > 0 {
		names = append(names, fmt.Sprintf("%d more", others))
	}
	fate := ""
	switch {
	case b.ToNode():
		fate = Text("stale-belief/node", "node", b.Receivers[0].Namespace.Node.Name)
	case len(b.Receivers) > 0:
		fate = Text("stale-belief/receiver", "receiver", NamespaceName(b.Receivers[0].Namespace))
	case len(b.Cards) > 0:
		fate = Text("stale-belief/card", "card", b.Cards[0].Name, "node", NamespaceName(b.Cards[0].Namespace))
	case b.Former != nil:
		fate = Text("stale-belief/former", "former", NamespaceName(b.Former), "node", b.Former.Node.Name, "address", t.f.Address, "until", b.Left)
	}
	kind, card := t.f.Kind, ""
	if b.HadMAC != nil {
		kind, card = "stale-belief/former-mac", b.HadMAC.Name
	}
	_, known := entering(t.owner)
	t.add(kind, "card", card, "until", b.Left, "relays", when(len(relays) > 0, list(relays)), "holders", list(names), "send", when(len(holders)+others == 1, "sends"), "used", when(used, "yes"), "tunnel", when(tunnel, "yes"), "mac", b.MAC.String(),
		"owners", each(t.f.Owners, t.alike.naming(placed)), "right", each(t.f.Owners, func(o *verdict.Owner) string { return o.MAC.String() }),
		"fate", after(" ", fate), "steps", steps, "known", when(known && t.owner.Namespace != nil, "yes"), "four", when(t.f.Address.Is4(), "yes"),
		"entries", func() {
			for _, one := range t.f.Beliefs {
				if one.Count == 0 {
					continue
				}
				t.State("%s", scope{
					"n", plural(one.Count, "neighbour table", "neighbour tables"), "on", one.Link.Node.Name + "/" + one.Link.Name, "mac", one.MAC.String(),
					"since", one.Since, "permanent", when(one.State == verdict.EntryPermanent, "yes"), "address", t.f.Address,
				}.text("stale-belief/entries"))
				if one.Far != nil {
					t.State("%s", scope{"far", one.Far.Name, "tunnel", one.Tunnel, "mac", one.MAC.String(), "on", one.Link.Node.Name + "/" + one.Link.Name}.text("stale-belief/through"))
				}
			}
		})
}

// misdirected describes Services that send packets for a former pod to the pod that has its address now.
func (t *findingBuilder) misdirected() {
	var services []string
	var slicesOf []advice.Action
	controlled := false
	for i := range t.f.Endpoints {
		e := &t.f.Endpoints[i]
		if name := e.Service.Namespace + "/" + e.Service.Name; !slices.Contains(services, name) {
			services = append(services, name)
		}
		if i > 0 && t.f.Endpoints[i-1].Service == e.Service && t.f.Endpoints[i-1].Slice == e.Slice {
			continue
		}
		step := "endpoint/other"
		if e.Manager == ipam.EndpointController {
			if step = "endpoint/made"; !controlled {
				controlled, slicesOf = true, append(scope{}.steps("endpoint/controller"), slicesOf...)
			}
		}
		slicesOf = append(slicesOf, t.scope("slicenamespace", e.Service.Namespace, "slice", e.Slice, "manager", e.Manager).steps(step)...)
	}
	e := &t.f.Endpoints[0]
	t.add(t.f.Kind, "several", when(len(services) > 1, "yes"), "services", list(services), "formernamespace", e.Pod.Namespace, "formername", e.Pod.Name, "formeruid", e.UID,
		"slices", slicesOf, "endpoints", func() {
			for _, e := range t.f.Endpoints {
				t.State("%s", scope{
					"slice", e.Service.Namespace + "/" + e.Slice, "service", e.Service.Namespace + "/" + e.Service.Name, "address", t.f.Address,
					"former", e.Pod.Namespace + "/" + e.Pod.Name, "uid", e.UID, "manager", e.Manager,
				}.text("endpoint/listed"))
			}
		})
}

// translated describes connections that nodes send to the address, and that were made for a former owner.
func (t *findingBuilder) translated() {
	var nodes []string
	commands := make(map[string][]string)
	for _, one := range t.f.Translations {
		if !slices.Contains(nodes, one.Node.Name) {
			nodes = append(nodes, one.Node.Name)
		}
		commands[one.Node.Name] = append(commands[one.Node.Name], scope{
			"protocol", advice.Quote(one.Protocol), "from", one.From.Addr(), "fromport", one.From.Port(), "to", one.To.Addr(), "toport", one.To.Port(), "address", t.f.Address,
			"zone", when(one.Zone != 0, fmt.Sprint(one.Zone)),
		}.text("nat-to-former-owner/delete"))
	}
	var steps []advice.Action
	for _, node := range nodes {
		steps = append(steps, scope{
			"where", node, "entries", plural(len(commands[node]), "entry", "entries"), "delete", strings.Join(commands[node], "\n"),
		}.steps("nat-to-former-owner/entries")...)
	}
	values := []any{
		"nodes", all(nodes), "count", plural(len(t.f.Translations), "connection", "connections"), "contested", when(len(t.f.Owners) > 1, "yes"),
		"recorded", when(t.f.Former != nil, "yes"), "steps", steps, "entries", func() {
			for _, one := range t.f.Translations {
				sender := ""
				if one.Sender != nil {
					sender = placed(one.Sender)
				}
				t.State("%s", scope{
					"where", one.Node.Name, "protocol", one.Protocol, "from", one.From, "sender", sender, "to", one.To, "port", one.Port, "address", t.f.Address, "existed", one.Existed,
				}.text("nat-to-former-owner/entry"))
			}
		},
	}
	if f := t.f.Former; f != nil {
		values = append(values, "was", &f.Owner, "until", f.Until)
	}
	t.add(t.f.Kind, values...)
}

// misidentified describes an address for which the network enforces the policies of other pods.
func (t *findingBuilder) misidentified() {
	var pods []string
	for _, al := range t.f.Allocations {
		if name := al.Namespace + "/" + al.Pod; !slices.Contains(pods, name) {
			pods = append(pods, name)
		}
	}
	t.add(t.f.Kind, "pods", cmp.Or(when(len(pods) > 1, "pods "), "pod ")+list(pods), "identities", func() {
		for _, al := range t.f.Allocations {
			t.State("%s", scope{"place", allocationPlace(al), "address", t.f.Address, "identity", al.Identity, "pod", al.Namespace + "/" + al.Pod}.text("identity/listed"))
		}
	}, "correct", func() {
		c := t.remedyCase()
		for _, al := range t.f.Allocations {
			c.Allocation = al.Allocation
			ipamOf(al.Pool).Filler(c).Write(&t.Advice, "identity")
		}
		ipamOf(t.pool).Filler(c).Write(&t.Advice, "identity/check")
	})
}

// shared describes several owners that answer for the address on a link on which none of them has it.
func (t *findingBuilder) shared() {
	owners, kind := t.f.Owners, t.f.Kind
	var silent, look []advice.Action
	for i := range owners {
		o := &owners[i]
		if k := slices.IndexFunc(o.Claims, (*verdict.Claim).Proxies); o.ExcludedBy(verdict.RuleReachableVia) && k >= 0 {
			silent = append(silent, scope{o, "address", t.f.Address, "on", o.Claims[k].Interface.Name}.steps("shared/silent/proxy")...)
			look = append(look, scope{o, "address", t.f.Address}.steps("shared/look")...)
			continue
		}
		silent = append(silent, scope{o}.steps(variantOf("shared/silent", o))...)
	}
	if len(look) == len(owners) {
		kind += "/proxies"
	}
	var choice []advice.Alternative
	for i := range owners[:min(len(owners), mostKept)] {
		only := "node " + owners[i].Node.Name
		if owners[i].Kind() != verdict.Host {
			only = placed(&owners[i])
		}
		choice = append(choice, advice.Either("only "+only+" should answer for it", slices.Delete(slices.Clone(silent), i, i+1)...))
	}
	t.add(kind, "owners", each(owners, t.alike.naming(placed)), "silent", silent, "look", look, "choice", choice, "seen", func() {
		for i := range owners {
			key, k := "shared/seen", slices.IndexFunc(owners[i].Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
			if k < 0 {
				key, k = "shared/would", slices.IndexFunc(owners[i].Claims, func(c *verdict.Claim) bool { return c.Kind == verdict.WouldAnswer })
			}
			if k >= 0 {
				c := owners[i].Claims[k]
				t.State("%s", scope{&owners[i], "on", witness(c), "last", c.Last}.text(key))
			}
		}
	})
}

// redirectWords returns the values that texts name of a Service and of what nodes do with packets for its address.
func redirectWords(s *ipam.Redirect) []any {
	return []any{
		"service", s.Namespace + "/" + s.Name, "servicenamespace", s.Namespace, "servicename", s.Name, "field", Text("field" + string(s.Field)),
		"ports", s.Ports, "cluster", when(s.Field == ipam.ClusterIP, "yes"), "external", when(s.Field == ipam.ExternalIP, "yes"),
		"ingress", when(s.Field == ipam.Ingress, "yes"), "none", when(s.Endpoints == ipam.NoEndpoints, "yes"),
	}
}

// answered describes a node that answers for an address on a link on which another owner has it.
func (t *findingBuilder) answered() {
	o, others := &t.f.Owners[0], t.f.Owners[1:]
	c := cmp.Or(o.AnswersFor(&others[0], 0), o.RespondsFor(&others[0], 0, true), &verdict.Claim{Interface: o.Interface, Network: o.Interface.Name})
	device, why, prefix := c.Network, "address", ""
	switch c.Answer.By {
	case verdict.ByRoute, verdict.ByRule:
		prefix = netip.PrefixFrom(t.f.Address, int(c.PrefixLength)).Masked().String()
		if why = "route"; c.Answer.By == verdict.ByRule {
			why = "rule"
		}
	case verdict.ByProxyARP:
		why = "proxy_arp"
	case verdict.ByProxyEntry:
		why = "neigh"
	case verdict.ByNeighbour:
		why = "vxlan"
	default:
		if i := slices.IndexFunc(o.Claims, (*verdict.Claim).Proxies); i >= 0 && o.AnswersFor(&others[0], 0) == nil {
			c, why = o.Claims[i], "behind"
			device = c.Network
		}
	}
	bridge := c.Interface.Kind == "bridge" || c.Interface.Kind == "vlan"
	single := c.Proxies() && device != "" && int(c.PrefixLength) == t.f.Address.BitLen()
	switch leaks := o.ExcludedBy(verdict.RuleLoopbackOrDummy); {
	case c.Kind == verdict.Answered && o.Namespace == nil:
		why = "outside"
	case c.Kind == verdict.Answered && !leaks && o.Interface.PVLAN && o.Interface.MAC == c.MAC && t.f.Address.Is4():
		why, device = "pvlan", o.Interface.Name
	case c.Kind == verdict.Answered && !leaks:
		why = "program"
	case c.Wire():
		why = "frames"
		for _, has := range o.Claims {
			if has.Kind == verdict.Assigned {
				device = has.Interface.Name
				break
			}
		}
	}
	by, have := "device", "has"
	if len(others) > 1 {
		have = "have"
	}
	switch {
	case device == "kube-ipvs0":
		by = "service"
	case engineOf(device) != "":
		by = engineOf(device)
	case slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool {
		return c.Kind == verdict.Assigned && c.Interface.Attachment == verdict.Local
	}):
		by = "local"
	}
	t.add(t.f.Kind+"/"+why, "others", each(others, t.alike.naming(placed)), "have", have, "on", c.Interface.Name, "device", device, "prefix", prefix, "default", when(why == "route" && c.PrefixLength == 0, "yes"), "requests", when(c.Kind == verdict.Used, "yes"), "bridge", when(bridge, "yes"), "family", cmp.Or(when(t.f.Address.Is6(), "-6"), "-4"), "address", t.f.Address, "answering", when(t.f.Address.Is4(), "yes"),
		"route", when(single, "yes"), "entry", when(c.Answer.By == verdict.ByProxyEntry, "yes"), "arp", when(c.Answer.By == verdict.ByProxyARP, "yes"),
		"seen", witness(c), "last", c.Last, "sender", c.MAC,
		"filtered", func() {
			switch c.Answer.Filter {
			case verdict.FilterRules:
				t.State("%s", scope{o}.text("answered/filtered"))
			case verdict.FilterUnreadable:
				t.State("%s", scope{o}.text("answered/unreadable"))
			default:
			}
		}, "fix", func() {
			t.scope("address", t.f.Address, "node", o.Node.Name, "device", device).write(&t.FindingText, "answered/"+by)
		},
		"holds", func() {
			for i := range others {
				key, seen, last := "answered/holds", "", verdict.Stamp(0)
				if !c.Wire() && o.AnswersFor(&others[i], 0) == nil {
					key = "answered/behind"
				}
				if claims := others[i].Claims; len(claims) > 0 && claims[0].Wire() {
					key, seen, last = "answered/holds/wire", witness(claims[0]), claims[0].Last
				}
				t.State("%s", scope{&others[i], "address", t.f.Address, "seen", seen, "last", last}.text(key))
			}
		})
}

// heldElsewhere describes a node that holds a virtual address that its controller assigns to another node, although another
// controller may assign it to this one.
func (t *findingBuilder) heldElsewhere() {
	al := t.allocation
	if len(t.f.Allocations) > 1 { // of another controller
		other, owners := t.f.Allocations[1], make([]*verdict.Owner, len(t.f.Owners))
		for i := range owners {
			owners[i] = &t.f.Owners[i]
		}
		t.add(t.f.Kind+"/controllers", "purpose", al.Purpose, "to", al.Node, "other", ipamOf(other.Pool).Title, "otherpurpose", other.Purpose, "otherto", other.Node,
			"otherplace", allocationPlace(other), "choice", oneController(t.f.Allocations, owners, t.f.Address), "holds", t.held)
		return
	}
	var wrong []*verdict.Owner
	var steps []advice.Action
	right, hold := "", "hold"
	peers := slices.ContainsFunc(t.f.Owners, func(o verdict.Owner) bool { return o.OnNode(al.Node) && o.MainAddress(t.f.Address) })
	for i := range t.f.Owners {
		if o := &t.f.Owners[i]; o.OnNode(al.Node) {
			right = placed(o)
		} else {
			wrong = append(wrong, o)
			if !peers && o.MainAddress(t.f.Address) {
				steps = append(steps, t.scope("own", placed(o), "purpose", al.Purpose, "release", release(o, t.f.Address)).steps("held-as-own")...)
				continue
			}
			steps = append(steps, giveUp(o, t.f.Address, t.pool)...)
		}
	}
	if len(wrong) == 1 {
		hold = "holds"
	}
	t.add(t.f.Kind, "purpose", al.Purpose, "to", al.Node, "names", each(wrong, func(o **verdict.Owner) string { return placed(*o) }), "hold", hold,
		"right", right, "steps", steps, "holds", t.held)
}

// held says what shows that the owners hold a virtual address.
func (t *findingBuilder) held() {
	for i := range t.f.Owners {
		o := &t.f.Owners[i]
		key, last := "holds/kernel", &verdict.Claim{}
		for _, c := range o.Claims {
			if !o.Assigned && c.Wire() && !c.Weak() && (last.Interface == nil || c.Seen > last.Seen) {
				key, last = "holds/wire", c
			}
		}
		s := scope{o, "address", t.f.Address, "last", last.Last}
		if last.Interface != nil {
			s = append(s, "on", witness(last))
		}
		t.State("%s", s.text(key))
	}
}

// spoofed describes frames from the port of one namespace with the address or the hardware address of
// another one.
func (t *findingBuilder) spoofed() {
	s := t.f.Spoof
	if t.owner = &s.Owner; s.Count == 0 { // no frame shows it, but kernels do
		owners, virtual, key := each(t.f.Owners, t.alike.naming(placed)), when(s.MACs[0].Virtual(), "yes"), "mac-cloned/twice"
		switch {
		case s.Port.Kind == "vxlan":
			key = "mac-cloned/vxlan"
		case s.Owner.Namespace == nil:
			t.add("mac-cloned/two-nodes", "mac", s.MACs[0].String(), "nodes", each(t.f.Owners, func(o *verdict.Owner) string { return o.Node.Name }), "says", func() {
				for i := range t.f.Owners {
					o := &t.f.Owners[i]
					t.State("Frames of it entered node %s through %s, at last %s.", o.Node.Name, o.Interface.Name, stampText(o.Claims[0].Last))
				}
			})
			return
		}
		t.add(key, "device", s.Port.Name, "owners", owners, "mac", s.MACs[0].String(), "addresses", s.Addresses, "virtual", virtual, "says", func() {
			for i := range t.f.Owners {
				t.State("The kernel of node %s reports that %s has MAC %s.", t.f.Owners[i].Node.Name, owners[i], s.MACs[0])
			}
		})
		return
	}
	node, port := s.Port.Namespace.Node.Name, advice.Quote(s.Port.Name)
	down := fmt.Sprintf(`[ "$(cat /sys/class/net/%s/ifindex)" = %d ] && ip link set dev %s down`, port, s.Port.Index, port)
	why := "it claims an address of another workload"
	if t.f.Kind == verdict.FindingMACCloned {
		why = "it sends frames with the MAC of another workload"
	}
	var cut FindingText
	t.scope("portnode", node, "down", down, "why", why).write(&cut, "cut-off")
	// The --router value that names the sender.
	namespace, name := s.Owner.Named()
	declaration := cmp.Or(name, s.MACs[0].String())
	if namespace != "" {
		declaration = namespace + "/" + name
	}
	link := ""
	if s.Link != nil {
		link = s.Link.Name
	}
	exposed := each(s.Exposed, func(ns **verdict.Namespace) string { return NamespaceName(*ns) })
	key := t.f.Kind
	if s.Sender == nil {
		key += "/outside"
	}
	t.add(key, "port", s.Port.Name, "portnode", node, "victims", each(s.Victims, t.alike.naming(placed)), "victim", &s.Victims[0],
		"macs", each(s.MACs, func(m *verdict.MAC) string { return m.String() }), "addresses", s.Addresses,
		"times", fmt.Sprintf("%s, first %s, last %s", plural(s.Count, "frame", "frames"), stampText(s.First), stampText(s.Last)),
		"link", link, "exposed", when(len(exposed) > 0, list(exposed)), "declaration", declaration+"=REASON",
		"cutoff", cut.Remedy, "byhand", func() { t.Fixes = append(t.Fixes, cut.Fixes...) },
		"victimsays", func() {
			for i := range s.Victims {
				v := &s.Victims[i]
				t.State("The kernel of node %s reports that %s has %s on %s.", v.Node.Name, t.alike.naming(OwnerName)(v), t.f.Address, v.Interface.Name)
			}
		})
}

// namesakes describes several nodes with one name.
func (t *findingBuilder) namesakes() {
	n := t.f.Namesakes
	machines := each(n.Machines, func(m *verdict.Machine) string {
		return fmt.Sprintf("%s: boot id %s, network namespace %s, Linux %s, agent %s, reporting since %s",
			m.Name, m.Boot, m.Netns, m.Kernel, m.Version, m.Since.Time().Format("2006-01-02 15:04:05"))
	})
	boots := each(n.Machines, func(m *verdict.Machine) string { return fmt.Sprintf("%s (boot id %s)", m.Name, m.Boot) })
	several := n.Machines[0].Boot != n.Machines[len(n.Machines)-1].Boot
	t.add(t.f.Kind, "n", len(n.Machines), "name", n.Name, "boots", all(boots), "machines", strings.Join(machines, "; "), "several", when(several, "yes"))
}

// double describes an address that an IPAM has allocated twice.
func (t *findingBuilder) double() {
	m := ipamOf(t.pool)
	names := each(t.f.Allocations, func(al **verdict.Allocation) string { return allocationName(*al) })
	node := func(al *verdict.Allocation) bool { return m.Status && al.Pod == "" }
	switch i := slices.IndexFunc(t.f.Allocations, func(al *verdict.Allocation) bool { return !node(al) }); {
	case t.allocation.Service != nil:
		ports := each(t.f.Allocations, func(al **verdict.Allocation) string { return (*al).Service.Ports })
		t.add(t.f.Kind+"/services", "names", names, "ports", ports)
		return
	case i < 0:
		t.add(t.f.Kind+"/nodes", "names", each(t.f.Allocations, func(al **verdict.Allocation) string { return (*al).Node }))
		return
	case slices.ContainsFunc(t.f.Allocations, node):
		t.add(t.f.Kind+"/node", "names", names, "namespace", t.f.Allocations[i].Namespace, "pod", t.f.Allocations[i].Pod)
		return
	}
	t.add(t.f.Kind, "names", names, "usual", when(!m.Mirrored && !m.Status, "yes"), "mirrored", when(m.Mirrored, "yes"), "status", when(m.Status && !m.Mirrored, "yes"),
		"keepone", func() { t.keepOne(names) })
}

// keepOne adds the steps that keep one of several allocations and release the others. It keeps
// the allocation that a restart does not change, otherwise that of the holder that a kernel reports,
// otherwise the oldest one.
func (t *findingBuilder) keepOne(names []string) {
	all := t.f.Allocations
	only := func(match func(*verdict.Allocation) bool) int {
		first := slices.IndexFunc(all, match)
		if first >= 0 && slices.ContainsFunc(all[first+1:], match) {
			return -1
		}
		return first
	}
	kept, why := only(func(al *verdict.Allocation) bool { return al.Kept }), "gets the same address after a restart, and the other does not"
	if kept < 0 {
		kept, why = only(func(al *verdict.Allocation) bool { return t.owner != nil && al.For(t.owner) }), "has the address, according to its kernel"
	}
	if kept < 0 && t.owner == nil {
		oldest := slices.MinFunc(all, func(a, b *verdict.Allocation) int { return cmp.Compare(a.AllocatedAt, b.AllocatedAt) }).AllocatedAt
		if oldest != 0 {
			kept, why = only(func(al *verdict.Allocation) bool { return al.AllocatedAt == oldest }), "was the first to get the address"
		}
	}
	if kept < 0 {
		var choice []advice.Alternative
		for i := range all {
			var undo []advice.Action
			for k, al := range all {
				if k != i {
					undo = append(undo, t.undo(al)...)
				}
			}
			choice = append(choice, advice.Either(names[i]+" keeps the address", undo...))
		}
		t.add("double/choose", "choice", choice, "either", strings.Join(names, " or "))
		return
	}
	t.add("double/leave", "kept", names[kept], "why", why)
	for i, al := range all {
		if i != kept {
			t.Act(t.undo(al)...)
			end := t.end(al)
			t.Fix(advice.Fix{Node: when(al.Pod == "" && !al.Kept, nodeOf(t.pool)), What: end.Text, Command: end.Command, Manual: true})
		}
	}
}

// end returns the action that ends an allocation together with its workload.
func (t *findingBuilder) end(al *verdict.Allocation) advice.Action {
	key := "double/end/other"
	switch {
	case al.Kept:
		key = "double/end/kept"
	case al.Pod != "":
		key = "double/end/pod"
	case al.MAC != "":
		key = "double/end/mac"
	}
	return t.ofAllocation(al, key)[0]
}

// undo returns the steps that end an allocation, together with its workload if that exists.
func (t *findingBuilder) undo(al *verdict.Allocation) []advice.Action {
	if al.Kept || al.Pod == "" || ipamOf(t.pool).Status { // a status is that of a pod that exists
		return []advice.Action{t.end(al)}
	}
	left := t.ofAllocation(al, "double/left")
	if m := ipamOf(t.pool); m.Has("leftover") {
		left = m.Steps("leftover", t.remedyCase())
	}
	return t.ofAllocation(al, "double/undo", "end", t.end(al), "left", left)
}

func (t *findingBuilder) ofAllocation(al *verdict.Allocation, key string, values ...any) []advice.Action {
	values = append(values, "allocation", allocationName(al), "place", allocationPlace(al), "namespace", al.Namespace, "pod", al.Pod)
	return t.scope(values...).steps(key)
}

// remedy adds a remedy for the address: reserve, reassign or release. An address that a node itself or a guest of
// a virtual machine has is never released.
func (t *findingBuilder) remedy(key string) {
	m := ipamOf(t.pool)
	switch {
	case t.ofNode() && key == "release":
	case t.ofNode() && m.Daemon.Name != "" && t.owner.Interface != nil && t.owner.Interface.Tunnel() != "":
		t.add("own/tunnel", "restart", m.Daemon.Restart(kubernetesName(t.owner)), "daemon", m.Daemon.Name)
	case t.ofNode(), t.owner != nil && t.owner.Kind() == verdict.External && !m.Leases:
		how, _ := exclusion(t.pool, t.f.Address, t.f.Allocations)
		network := t.pool.Network
		if _, name, ok := ipam.CutEngine(network); ok {
			network = name
		}
		t.add("own/exclude", "how", how, "machine", when(!t.ofNode(), "yes"), "network", network)
	case t.owner != nil && t.owner.InGuest() && !m.Leases:
		if key == "release" {
			return
		}
		_, exclude := exclusion(t.pool, t.f.Address, t.f.Allocations)
		restart := t.scope("delete", scope{t.owner}.steps("delete-pod")).steps("guest/restart")
		steps := t.scope("restart", restart, "exclude", exclude).steps("guest/choice")
		if key == "reassign" && t.allocation.Pod != "" {
			steps = t.scope("restart", restart, "choice", steps).steps("guest/other")
		}
		t.add("guest", "steps", steps)
	case m.Has("reserve"):
		m.Filler(t.remedyCase()).Write(&t.Advice, key)
	case key != "release":
		t.Add(t.restart("it requests a free address", false))
	}
}

func (t *findingBuilder) remedyCase() ipam.Case {
	c := ipam.Case{Address: t.f.Address, Pool: &t.pool.Pool, Node: nodeOf(t.pool), Allocation: t.allocation.Allocation}
	o := t.owner
	if o == nil {
		return c
	}
	w := o.Workload()
	c.Restart = t.restart
	c.Holder = &ipam.Holder{
		Name: OwnerName(o), IsPod: o.Kind() == verdict.Pod, UID: w.UID, Sandbox: w.Sandbox(),
		Place: ipam.Place{Node: o.Node.Name, OfAllocation: o.OnNode(t.allocation.Node)},
	}
	if namespace, name := o.Named(); c.Holder.IsPod && namespace != "" && name != "" {
		c.Holder.Namespace, c.Holder.Pod = namespace, name
	}
	if i := o.Interface; i != nil && i.Namespace.ID == o.ID {
		c.Holder.Interface = i.Name
	}
	if o.Namespace != nil {
		c.Holder.Netns = o.Namespace.Netns
	}
	if o.Pod != nil {
		c.Holder.KubernetesNode = o.Pod.Node
	}
	if !t.pool.MayServe(o) {
		c.Holder.Network = o.Networks()[0]
	}
	if name := o.Node.IPAMName; !o.OnNode(name.Name) {
		c.Holder.WrongName = name
	}
	return c
}
