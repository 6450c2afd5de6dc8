// Package explain turns judgements and findings into text: names, summaries, reasons, evidence,
// diagnoses, advice and repair commands. The texts are in folder text, by the kind of the fact, rule,
// exclusion, ending or finding. The functions here choose a text and give it its values; testdata contains all
// results.
//
// The package makes no decisions, runs nothing, reads no clock and accesses no store. Its input is
// typed values, and every sentence is derived from them alone.
package explain

import (
	"embed"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// wording is the context for sentences about one address: the operator's policy, and the owners
// that typed reasons refer to by id.
type wording struct {
	policy  *verdict.Policy
	address netip.Addr
	owners  []verdict.Owner
	// named are other owners that reasons refer to.
	named []verdict.Owner
	// alike are the owners among which names have to tell one from another; nil if the texts do that.
	alike namesakes
}

// word returns a value that does not depend on what a text is about.
func (w *wording) word(name string) any {
	switch name {
	case "address":
		return w.address
	case "all":
		return each(w.owners, namesakes(w.owners).naming(OwnerName))
	case "handover":
		return w.policy.HandoverGrace
	case "migration":
		return w.policy.MigrationGrace
	case "stale":
		return w.policy.StaleAfter
	case "timeout":
		return w.policy.NodeTimeout
	}
	return nil
}

func (w *wording) text(key string, values ...any) string {
	return append(scope(values), w.alike, source(w.word)).text(key)
}

// owner returns the owner with an id; nil if there is none.
func (w *wording) owner(id string) *verdict.Owner {
	for _, owners := range [][]verdict.Owner{w.owners, w.named} {
		if i := slices.IndexFunc(owners, func(o verdict.Owner) bool { return o.ID == id }); i >= 0 {
			return &owners[i]
		}
	}
	return nil
}

// unknownOwner stands for an owner that a reason refers to and that no longer exists.
const unknownOwner = "an owner that is gone"

// ofOwner returns a word of the owner with an id; gone if there is none.
func (w *wording) ofOwner(id string, word func(*verdict.Owner) string, gone string) string {
	if o := w.owner(id); o != nil {
		return word(o)
	}
	return gone
}

func (w *wording) name(id string) string {
	return w.ofOwner(id, w.alike.naming(OwnerName), unknownOwner)
}

func (w *wording) placed(id string) string {
	return w.ofOwner(id, w.alike.naming(placed), unknownOwner)
}
func (w *wording) netns(id string) string { return w.ofOwner(id, netnsName, unknownOwner) }

func (w *wording) node(id string) string {
	return w.ofOwner(id, func(o *verdict.Owner) string { return o.Node.Name }, "(gone)")
}

func (w *wording) names(ids []string) []string {
	return each(ids, func(id *string) string { return w.name(*id) })
}

// ownerWords are the values that texts name of an owner.
var ownerWords = map[string]func(*verdict.Owner) string{
	"owner":        OwnerName,
	"placed":       placed,
	"node":         func(o *verdict.Owner) string { return o.Node.Name },
	"knode":        kubernetesName,
	"plainnode":    func(o *verdict.Owner) string { return plainName(o.Node.Name) },
	"mac":          func(o *verdict.Owner) string { return o.MAC.String() },
	"witness":      func(o *verdict.Owner) string { return witness(o.Claims[0]) },
	"tap":          func(o *verdict.Owner) string { return o.Interface.Name },
	"iface":        func(o *verdict.Owner) string { return o.Interface.Name },
	"hostiface":    func(o *verdict.Owner) string { return o.Interface.HostInterface },
	"enter":        func(o *verdict.Owner) string { enter, _ := entering(o); return enter },
	"known":        func(o *verdict.Owner) string { _, known := entering(o); return when(known, "yes") },
	"inode":        func(o *verdict.Owner) string { return o.Namespace.Netns },
	"netns":        netnsName,
	"netnslink":    func(o *verdict.Owner) string { return "net:[" + o.Namespace.Netns + "]" },
	"netnspattern": func(o *verdict.Owner) string { return `net:\[` + o.Namespace.Netns + `\]` },
	"placednetns":  placedNetns,
	"namespace":    func(o *verdict.Owner) string { return o.Workload().Namespace },
	"name":         func(o *verdict.Owner) string { return o.Workload().Name },
	"uid":          func(o *verdict.Owner) string { return o.Workload().UID },
	"sandbox":      func(o *verdict.Owner) string { return advice.ShortID(o.Workload().ContainerID) },
	"machine":      (*verdict.Owner).VirtualMachine,
	"vm":           func(o *verdict.Owner) string { return o.Workload().VirtualMachine },
	"program":      func(o *verdict.Owner) string { program, _ := o.VIPProgram(); return program },
	"assigned":     func(o *verdict.Owner) string { return stampExact(o.AssignedAt()) },
	"held":         func(o *verdict.Owner) string { return stampExact(o.TenureSince()) },
	"successor": func(o *verdict.Owner) string { // what replaces a pod that is deleted
		const recreates = "creates a new one, which requests a new address"
		switch p := o.Pod; {
		case p == nil || p.Absent:
			return "its controller, if it has one, " + recreates
		case p.Controller == "":
			return "it has no controller: create it again from its manifest"
		case p.ControllerKind == "VirtualMachineInstance":
			return "this stops virtual machine " + p.Controller + "; its VirtualMachine, if it has one, starts it again"
		default:
			return p.ControllerKind + " " + p.Controller + " " + recreates
		}
	},
	"manifest": func(o *verdict.Owner) string { return o.Workload().Name + ".yaml" },
	"bare": func(o *verdict.Owner) string { // a pod that no controller would create again
		if p := o.Pod; p != nil && !p.Absent && p.Controller == "" {
			return o.Workload().Name
		}
		return ""
	},
}

// NamespaceName returns a readable name of a network namespace.
func NamespaceName(ns *verdict.Namespace) string { return workloadName(ns, ns.Who.Workload()) }

// OwnerName returns a readable name of an owner, without its place.
func OwnerName(o *verdict.Owner) string {
	if o.Namespace == nil {
		name := "the device with MAC " + o.Claims[0].MAC.String()
		if c := o.Outside(); c != nil {
			name += " outside of node " + c.Node().Name
		}
		return name
	}
	return workloadName(o.Namespace, o.Workload())
}

func workloadName(ns *verdict.Namespace, w verdict.Workload) string {
	switch {
	case w.OnlyNetns():
		return "network namespace " + w.Name
	case w.Kind == verdict.Pod && w.Name == "":
		return "pod with uid " + w.UID
	case w.Kind == verdict.Pod:
		return "pod " + w.Namespace + "/" + w.Name
	case w.Kind == verdict.Container && w.Name != "":
		return "container " + w.Name
	case w.Kind == verdict.VM:
		return "virtual machine " + w.Name
	case w.Kind == verdict.Host:
		return "node " + ns.Node.Name + " itself"
	case w.Kind != verdict.Container && w.Name != "":
		return "network namespace " + w.Name
	case w.Kind == verdict.Container || w.ContainerID != "":
		return "container " + advice.ShortID(w.ContainerID)
	case w.Process != "":
		return "process " + w.Process
	case ns.Netns != "":
		return "network namespace " + ns.Netns
	}
	return fmt.Sprintf("network namespace #%d of node %s", ns.Record, ns.Node.Name)
}

// exactly returns the name of a pod and its uid, if known, because another pod may have the same
// name.
func exactly(o *verdict.Owner) string {
	if w := o.Workload(); w.UID != "" && w.Name != "" {
		return OwnerName(o) + " with uid " + w.UID
	}
	return OwnerName(o)
}

// placed returns the name of an owner and its location.
func placed(o *verdict.Owner) string {
	name := OwnerName(o)
	switch {
	case o.Namespace == nil && (o.Interface == nil || !o.Interface.Macvtap):
		return fmt.Sprintf("%s (seen on %s)", name, witness(o.Claims[0]))
	case o.Interface.Namespace.ID != o.ID:
		return fmt.Sprintf("%s (behind %s of node %s)", name, o.Interface.Name, o.Node.Name)
	case o.Kind() == verdict.Host:
		return fmt.Sprintf("%s (%s)", name, o.Interface.Name)
	}
	return name + " on " + o.Node.Name
}

func onNode(o *verdict.Owner) string {
	if o.Namespace != nil && o.Interface.Namespace.ID == o.ID && o.Kind() != verdict.Host {
		return OwnerName(o)
	}
	return placed(o)
}

// namesakes are owners of which several may have one name: sandboxes of one pod, or pods of one name after
// each other.
type namesakes []verdict.Owner

// distinctions are what tells owners of one name apart, in the order in which they are tried.
var distinctions = []func(*verdict.Owner) string{
	func(o *verdict.Owner) string { return " on " + o.Node.Name },
	func(o *verdict.Owner) string { return after(" with uid ", o.Workload().UID) },
	func(o *verdict.Owner) string {
		what := "container"
		if o.Kind() == verdict.Pod {
			what = "sandbox"
		}
		if id := o.Workload().ContainerID; id != "" {
			return " (" + what + " " + advice.ShortID(id) + ")"
		}
		return ""
	},
	func(o *verdict.Owner) string {
		if o.Namespace == nil {
			return ""
		}
		return " (" + netnsName(o) + ")"
	},
}

// naming returns a function that adds to the name of an owner what tells it from others of that name.
func (all namesakes) naming(name func(*verdict.Owner) string) func(*verdict.Owner) string {
	return func(o *verdict.Owner) string {
		text := name(o)
		same := slices.DeleteFunc(slices.Clone(all), func(other verdict.Owner) bool { return other.ID == o.ID || name(&other) != text })
		if len(same) == 0 {
			return text
		}
		for _, of := range distinctions {
			if own := of(o); own != "" && !slices.ContainsFunc(same, func(other verdict.Owner) bool { return of(&other) == own }) {
				return text + own
			}
		}
		return text
	}
}

// netnsName returns the name of an owner's network namespace, which distinguishes several namespaces of
// one container.
func netnsName(o *verdict.Owner) string {
	if o.Namespace.Netns == "" {
		return fmt.Sprintf("network namespace #%d", o.Namespace.Record)
	}
	return "network namespace " + o.Namespace.Netns
}

// placedNetns returns the name of an owner's network namespace and its location.
func placedNetns(o *verdict.Owner) string {
	return netnsName(o) + " on " + o.Node.Name
}

func witness(c *verdict.Claim) string { return c.Node().Name + "/" + c.Interface.Name }

// kubernetesName returns the name of an owner's node in Kubernetes, as far as it is known.
func kubernetesName(o *verdict.Owner) string {
	if o.Pod != nil && o.Pod.Node != "" {
		return o.Pod.Node
	}
	return plainName(o.Node.Name)
}

// plainName returns the name of a node without the suffix that distinguishes it from other nodes
// of the same name.
func plainName(node string) string {
	name, _, _ := strings.Cut(node, "@")
	return name
}

// scopesText lists the scopes in which an owner is compared.
func scopesText(scopes []verdict.Scope) string {
	if len(scopes) == 0 {
		return "on a link that is not yet known"
	}
	return list(each(scopes, scopeText))
}

func scopeText(s *verdict.Scope) string { return phrase(s.Kind, s.Text()) }

// phrase describes a scope for use in a sentence.
func phrase(kind verdict.ScopeKind, name string) string {
	switch kind {
	case verdict.LinkScope:
		return "on link " + name
	case verdict.NodeScope:
		return "on " + name
	case verdict.NetworkScope:
		return "in network " + name
	}
	return "anywhere"
}

func poolTitle(p verdict.PoolName) string {
	return "IPAM " + p.IPAM + " (" + p.Name + after(", network ", p.Network) + after(", node ", p.Node) + ")"
}

// holderName returns the name of the workload or purpose that an allocation is for.
func holderName(h verdict.Holder) string {
	var who string
	switch {
	case h.Purpose != "":
		who = "the " + h.Purpose
	case h.Pod != "":
		who = "pod " + h.Namespace + "/" + h.Pod
	case h.ContainerID != "":
		who = "container " + advice.ShortID(h.ContainerID)
	case h.MAC != "":
		who = clientName(h.MAC, h.Hostname)
	default:
		who = "an unknown owner"
	}
	return who + after(" on node ", h.Node)
}

// rangesText lists ranges; it is empty if no range is known.
func rangesText(r verdict.Ranges) string {
	switch {
	case len(r.List) == 0:
		return ""
	case r.Bridge:
		return r.List[0].String()
	}
	return list(each(r.List, func(r *ipam.Range) string { return r.First.String() + " to " + r.Last.String() }))
}

// sideName names the network or bridge that an owner has the address from.
func sideName(s verdict.Origin) string { return networkName(s.Network, s.Device) }

// networkName returns the name of a CNI network, or of the bridge if there is no network.
func networkName(network, device string) string {
	if network != "" {
		return "network " + network
	}
	return "bridge " + device
}

// mostListed is the number of names that a list contains at most; it counts the others.
const mostListed = 6

// list joins names for use in a sentence.
func list(names []string) string {
	switch n := len(names); {
	case n == 0:
		return "none"
	case n > mostListed:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed-1], ", "), n-mostListed+1)
	}
	return all(names)
}

// all joins all words: "a, b and c". Unlike list, it does not shorten the list.
func all(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

func each[T any](items []T, word func(*T) string) []string {
	words := make([]string, 0, len(items))
	for i := range items {
		words = append(words, word(&items[i]))
	}
	return words
}

// after prepends words to a text that is not empty.
func after(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}

func addrText(a *netip.Addr) string { return a.String() }

// stampText formats a time for use in a sentence.
func stampText(s verdict.Stamp) string { return s.Time().Format("2006-01-02 15:04:05 MST") }

// stampExact formats a time with milliseconds; it is empty for an unknown time.
func stampExact(s verdict.Stamp) string {
	if s == 0 {
		return ""
	}
	return s.Time().Format("2006-01-02 15:04:05.000")
}

// secondsText formats a number of seconds for use in a sentence.
func secondsText(seconds float64) string {
	const most = float64(1<<63-1) / float64(time.Second)
	d := time.Duration(min(seconds, most) * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// plural returns a number followed by its noun.
func plural[N ~uint32 | ~uint64 | ~int](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// isAre returns "is" for one thing and "are" for several.
func isAre[N ~uint64 | ~int](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// runbooks is the URL prefix of the runbook pages.
const runbooks = "https://github.com/ipwitness/ipwitness/blob/main/docs/runbooks/"

// Runbook returns the URL of the page about a cause or a kind of finding.
func Runbook(name string) string { return runbooks + name + ".md" }

//go:embed text/*.txt
var files embed.FS

// texts are the texts of all files in folder text. {name} is also a word of the owner (ownerWords).
var texts = advice.ReadTexts(files, "text/*.txt")

func has(key string) bool { return texts[key] != nil }

// A source gives the values of names; nil for names that it does not have.
type source func(name string) any

// A scope has the values that a text may name: sources, owners, and names that are each followed by
// their values.
type scope []any

// value returns the value of a name. {was.node} is the node of the owner that the scope has as was.
func (s scope) value(name string) any {
	for i := 0; i < len(s); i++ {
		switch from := s[i].(type) {
		case source:
			if v := from(name); v != nil {
				return printed(v)
			}
		case *verdict.Owner:
			if word := ownerWords[name]; word != nil {
				return s.alike(name).naming(word)(from)
			}
		case string:
			i++
			if from == name {
				return printed(s[i])
			}
			if o, ok := s[i].(*verdict.Owner); ok && strings.HasPrefix(name, from+".") {
				word := name[len(from)+1:]
				return s.alike(word).naming(ownerWords[word])(o)
			}
		}
	}
	return nil
}

// alike returns the owners from which a word has to tell an owner.
func (s scope) alike(word string) namesakes {
	if word != "owner" && word != "placed" {
		return nil
	}
	for _, v := range s {
		if alike, ok := v.(namesakes); ok {
			return alike
		}
	}
	return nil
}

// printed returns a value in the form of texts.
func printed(v any) any {
	switch v := v.(type) {
	case verdict.Stamp:
		return stampText(v)
	case []string:
		return list(v)
	case []netip.Addr:
		return list(each(v, addrText))
	}
	return v
}

func (s scope) filler() advice.Filler { return advice.Filler{Texts: texts, Value: s.value} }

func (s scope) text(key string) string { return s.filler().Text(key) }

// Text returns the text of a key. Names are followed by their values.
func Text(key string, values ...any) string { return scope(values).text(key) }

func (s scope) steps(key string) []advice.Action { return s.filler().Steps(key) }

func (s scope) write(t *FindingText, key string) {
	t.Summary = strings.TrimPrefix(t.Summary+" "+s.filler().Write(&t.Advice, key), " ")
}
