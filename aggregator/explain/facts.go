package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

var factWords = map[string]func(*wording, *verdict.Fact) any{
	"owner":     func(w *wording, f *verdict.Fact) any { return w.name(f.Owners[0]) },
	"other":     func(w *wording, f *verdict.Fact) any { return w.name(f.Owners[1]) },
	"owners":    func(w *wording, f *verdict.Fact) any { return w.names(f.Owners) },
	"others":    func(w *wording, f *verdict.Fact) any { return list(w.names(f.Owners[1:])) },
	"are":       func(_ *wording, f *verdict.Fact) any { return isAre(len(f.Owners)) },
	"othersare": func(_ *wording, f *verdict.Fact) any { return isAre(len(f.Owners) - 1) },
	"each": func(w *wording, f *verdict.Fact) any {
		return list(each(f.Owners, func(id *string) string { return w.placed(*id) }))
	},
	"placed":     func(w *wording, f *verdict.Fact) any { return w.placed(f.Owners[0]) },
	"exactly":    func(w *wording, f *verdict.Fact) any { return exactly(w.owner(f.Owners[0])) },
	"node":       func(w *wording, f *verdict.Fact) any { return w.node(f.Owners[0]) },
	"netns":      func(w *wording, f *verdict.Fact) any { return w.netns(f.Owners[0]) },
	"othernetns": func(w *wording, f *verdict.Fact) any { return w.netns(f.Owners[1]) },
	"where": func(w *wording, f *verdict.Fact) any { // the program runs that moves virtual addresses
		o := w.owner(f.Owners[0])
		switch {
		case o == nil:
			return unknownOwner
		case o.Kind() == verdict.Host:
			return "node " + o.Node.Name
		}
		return "node " + o.Node.Name + ", in " + OwnerName(o)
	},
	"mac": func(w *wording, f *verdict.Fact) any {
		return w.ofOwner(f.Owners[0], func(o *verdict.Owner) string { return o.MAC.String() }, "of "+unknownOwner)
	},
	"guest": func(w *wording, f *verdict.Fact) any { // the device that claims the address from behind a port of a node
		o := w.owner(f.Owners[0])
		switch {
		case o == nil:
		case o.Guest() == verdict.TapGuest:
			kind := "tap"
			if o.Interface.Macvtap {
				kind = "macvtap"
			}
			return fmt.Sprintf("the device with MAC %s is behind %s device %s of node %s: it is a virtual machine on that node", o.MAC, kind, o.Interface.Name, o.Node.Name)
		case o.Guest() == verdict.PortGuest:
			return fmt.Sprintf("the device with MAC %s is behind %s, the port of %s", o.MAC, witness(o.Claims[0]), OwnerName(o))
		}
		return unknownOwner
	},
	"given": func(w *wording, f *verdict.Fact) any { return w.given(f.Owners[0]) },
	"holds": func(w *wording, f *verdict.Fact) any { // the address, and how that is known
		o := w.owner(f.Owners[0])
		switch {
		case o == nil:
			return "had the address"
		case o.Assigned:
			return "has the address, according to its kernel"
		case o.Yielded():
			return "gave the address up, according to its kernel"
		case o.DADFailed():
			return "tried to configure the address, according to its kernel"
		}
		return "has the address, as its frames show"
	},
	"first":     func(_ *wording, f *verdict.Fact) any { return f.Nodes[0] },
	"second":    func(_ *wording, f *verdict.Fact) any { return f.Nodes[1] },
	"nodenames": func(_ *wording, f *verdict.Fact) any { return f.Nodes },
	"nodes": func(_ *wording, f *verdict.Fact) any {
		if len(f.Nodes) == 1 {
			return "node " + f.Nodes[0]
		}
		return "nodes " + list(f.Nodes)
	},
	"othernodes": func(_ *wording, f *verdict.Fact) any { return f.Others },
	"devices":    func(_ *wording, f *verdict.Fact) any { return f.Devices },
	"device":     func(_ *wording, f *verdict.Fact) any { return f.Device },
	"network":    func(_ *wording, f *verdict.Fact) any { return f.Network },
	"side":       func(_ *wording, f *verdict.Fact) any { return networkName(f.Network, f.Device) },
	"tunnel": func(_ *wording, f *verdict.Fact) any {
		if m := registry.WithPodDevice(f.Text); m != nil {
			return "the device through which " + m.Title + " reaches pods"
		}
		return "a tunnel device (" + f.Text + ")"
	},
	"text":      func(_ *wording, f *verdict.Fact) any { return f.Text },
	"problem":   func(_ *wording, f *verdict.Fact) any { return after(": ", f.Text) },
	"at":        func(_ *wording, f *verdict.Fact) any { return stampExact(f.At) },
	"addresses": func(_ *wording, f *verdict.Fact) any { return f.Addresses },
	"ranges":    func(_ *wording, f *verdict.Fact) any { return rangesText(f.Ranges) },
	"somerange": func(_ *wording, f *verdict.Fact) any { return cmp.Or(rangesText(f.Ranges), "a range that contains it") },
	"thatrange": func(_ *wording, f *verdict.Fact) any { return after(", ", rangesText(f.Ranges)) },
	"pool":      func(_ *wording, f *verdict.Fact) any { return poolTitle(f.Pool) },
	"poolshort": func(_ *wording, f *verdict.Fact) any {
		return cmp.Or(registry.Of(f.Pool.IPAM).Title, f.Pool.IPAM) + after(" on node ", f.Pool.Node)
	},
	"ipam":     func(_ *wording, f *verdict.Fact) any { return f.Pool.IPAM },
	"holder":   func(_ *wording, f *verdict.Fact) any { return holderName(f.Records[0].Holder) },
	"ipamname": func(_ *wording, f *verdict.Fact) any { return f.NodeName.Name },
	"named":    func(*wording, *verdict.Fact) any { return registry.NodeNamed().Title },
	"wrongname": func(w *wording, f *verdict.Fact) any {
		if len(f.Owners) > 0 && f.Kind == verdict.FactWrongNodeName {
			return f.NodeName.On(w.node(f.Owners[0]))
		}
		return f.NodeName.On(f.Nodes[0])
	},
	"engine":        func(_ *wording, f *verdict.Fact) any { engine, _, _ := ipam.CutEngine(f.Network); return engine },
	"enginenetwork": func(_ *wording, f *verdict.Fact) any { _, network, _ := ipam.CutEngine(f.Network); return network },
	"count": func(_ *wording, f *verdict.Fact) any {
		switch f.Count {
		case 0:
			return ""
		case 1:
			return " (there was one)"
		}
		return fmt.Sprintf(" (there were %d)", f.Count)
	},
	"only": func(w *wording, f *verdict.Fact) any {
		if len(f.Records) == 1 && len(w.owners) > 1 {
			return "only "
		}
		return ""
	},
	"stale": func(_ *wording, f *verdict.Fact) any {
		if f.State == ipam.Stale {
			return ", as of its last update"
		}
		return ""
	},
	"records": func(w *wording, f *verdict.Fact) any {
		return each(f.Records, func(r *verdict.Record) string {
			whom := holderName(r.Holder)
			if r.Owner != "" {
				whom = w.name(r.Owner)
			}
			if at := stampExact(r.At); at != "" {
				return fmt.Sprintf("%s (since %s)", whom, at)
			}
			return whom
		})
	},
}

// variant returns which of the texts of its kind a fact has; empty for the usual one.
func (w *wording) variant(f *verdict.Fact) string {
	_, _, engine := ipam.CutEngine(f.Network)
	switch kind := f.Kind; {
	case kind == verdict.FactSandboxLeft && w.owner(f.Owners[0]) == nil:
		return "/gone"
	case kind == verdict.FactSandboxLeft && f.Text == "", kind == verdict.SeenPod:
		return "/absent"
	case kind == verdict.FactGivenByNetwork && engine:
		return "/engine"
	case kind == verdict.FactBusy && f.Text == "":
		return "/unnamed"
	case kind == verdict.NotPodsThere && len(f.Owners) == 1:
		return "/one"
	case kind == verdict.NotInPodCIDRs && len(f.Nodes) == 0:
		return "/other"
	case kind == verdict.NotElsewhere && len(f.Nodes) > 0:
		return "/nodes"
	case kind == verdict.NotRecorded && f.Network != "":
		return "/network"
	case kind == verdict.HeadNodeFirst && f.Pool.IPAM == "":
		return "/unknown"
	case kind == verdict.HeadRecordLost && len(f.Owners) > 0:
		return "/owners"
	case kind == verdict.FactLeased && len(f.Addresses) > 0:
		return "/client"
	case kind == verdict.HeadOneClient && f.Pool.IPAM == "":
		return "/unknown"
	case kind == verdict.SeenPodCIDRs && len(f.Nodes) == 0:
		return "/none"
	case kind == verdict.SeenPodCIDRs && len(f.Nodes) > 1:
		return "/several"
	case kind == verdict.SeenPodCIDRs && len(f.Others) == 0:
		return "/one"
	case kind != verdict.FactRecord:
		return ""
	case f.State == ipam.Unreadable:
		return "/unreadable"
	case f.State == ipam.Reading:
		return "/reading"
	case f.State == ipam.Missing:
		return "/missing"
	case len(f.Records) == 0:
		return "/none"
	}
	return ""
}

// factText returns the text of a fact in a role: fact, not or head. It is empty if facts of its kind do not
// have the role.
func (w *wording) factText(role string, f *verdict.Fact, values ...any) string {
	key := role + "/" + string(f.Kind) + w.variant(f)
	if !has(key) {
		return ""
	}
	words := source(func(name string) any {
		if word := factWords[name]; word != nil {
			return word(w, f)
		}
		return nil
	})
	return append(scope(values), words, source(w.word)).text(key)
}

func (w *wording) facts(all []verdict.Fact) (words []string) {
	for i := range all {
		f := &all[i]
		if o := (*verdict.Owner)(nil); f.Kind == verdict.SeenPod {
			if o = w.owner(f.Owners[0]); o == nil || o.Pod == nil {
				words = append(words, "")
				continue
			} else if !o.Pod.Absent {
				words = append(words, advice.Capital(podText(o)))
				continue
			}
		}
		words = append(words, advice.Capital(w.factText("fact", f)))
	}
	return words
}

// podText describes the pod object of an owner in the Kubernetes API.
func podText(o *verdict.Owner) string {
	p := o.Pod
	s := OwnerName(o) + ": " + cmp.Or(p.Phase, "without a phase")
	if p.DeletionTimestamp != 0 {
		s += ", being deleted"
	}
	s += after(", on node ", p.Node)
	if len(p.IPs) == 0 {
		return s + ", without addresses."
	}
	return s + ", with " + list(each(p.IPs, addrText)) + "."
}

// headline returns the cause of a conflict as one sentence. It is empty if the rule of the
// conflict already says it.
func (w *wording) headline(c *verdict.Conflict) string {
	f := c.Headline
	switch {
	case f == nil:
		return ""
	case f.Kind == verdict.FactSandboxLeft:
		return strings.Join(w.facts(c.Facts), " ")
	case f.Kind == verdict.HeadNetworksOverlap:
		on := ""
		if len(f.Nodes) > 0 {
			on = " on node " + f.Nodes[0]
		}
		return w.factText("head", f, "one", sideName(c.Networks[0]), "two", sideName(c.Networks[1]), "on", on)
	case f.Kind == verdict.HeadNotGiven:
		of := append(scope{"given", w.given(f.Owners[0]), "pool", poolTitle(f.Pool)}, source(w.word))
		if registry.Of(f.Pool.IPAM).Leases {
			return of.text("head/not-given/leases")
		}
		if i := slices.IndexFunc(c.From, func(p *verdict.Pool) bool { return ipamOf(p).Engine }); i >= 0 {
			return append(of, "enginepool", poolBegin(c.From[i])).text("head/not-given/engine")
		}
		return of.text("head/not-given")
	}
	return w.factText("head", f)
}

// given names an owner that the address was not assigned to, or the device behind its port.
func (w *wording) given(id string) string {
	if o := w.owner(id); o != nil && o.Guest() == verdict.PortGuest {
		return "the device behind " + witness(o.Claims[0]) + ", the port of " + OwnerName(o)
	}
	return w.placed(id)
}
