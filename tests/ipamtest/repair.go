package ipamtest

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Holder returns a pod that holds an address, of which everything is known, with changes.
func Holder(changes ...func(*ipam.Holder)) *ipam.Holder {
	h := &ipam.Holder{
		Name: "pod shop/web", IsPod: true, Namespace: "shop", Pod: "web", UID: "4203561e-1821", Sandbox: "199dc89a88c2f1d3", Interface: "eth0", Netns: "4026532397",
		Place: ipam.Place{Node: "a.example", KubernetesNode: "node-a"},
	}
	for _, change := range changes {
		change(h)
	}
	return h
}

// Remedies are the remedies of an IPAM for several cases, as text for a golden file.
type Remedies struct {
	IPAM *ipam.IPAM
	text []byte
}

// Reserve adds the remedy for an address in use that the IPAM considers free. what describes the case.
func (r *Remedies) Reserve(what string, c ipam.Case) { r.add("reserve", what, c) }

// Reassign adds the remedy for an address in use that the IPAM has allocated to another owner.
func (r *Remedies) Reassign(what string, c ipam.Case) { r.add("reassign", what, c) }

// Release adds the remedy for an address that the IPAM has allocated to an owner that is gone.
func (r *Remedies) Release(what string, c ipam.Case) { r.add("release", what, c) }

// String returns the text.
func (r *Remedies) String() string { return string(r.text) }

func (r *Remedies) add(key, what string, c ipam.Case) {
	a := Advise(r.IPAM, key, c)
	b := heading(r.text, what)
	for _, fact := range a.Evidence {
		b = fmt.Appendf(b, "Evidence: %s\n", fact)
	}
	b = appendActions(b, "", a.Remedy)
	for _, f := range a.Fixes {
		b = fmt.Appendf(b, "Fix (node %q, by hand %t): %s\n", f.Node, f.Manual, f.What)
		b = appendCommand(b, "    ", f.Command)
	}
	r.text = b
}

// DescribePools returns what an IPAM says about pools and about an address of them, for a golden
// file. node is the node of the pools; empty for pools of the cluster.
func DescribePools(m *ipam.IPAM, node string, a netip.Addr, pools ...*ipam.Pool) string {
	var b []byte
	for _, p := range pools {
		b = heading(b, fmt.Sprintf("Pool %q on node %q", p.Name, node))
		b = fmt.Appendf(b, "Title: %s\n", m.PoolTitle(p, node))
		f := m.Filler(ipam.Case{Pool: p, Node: node, Address: a})
		if how := f.Text("how/exclude"); how != "" {
			b = fmt.Appendf(b, "Exclude %s: %s\n", a, how)
			b = appendActions(b, "", f.Steps("exclude"))
		}
		for _, key := range []string{"enlarge", "access", "search", "location"} {
			if m.Has(key) {
				b = fmt.Appendf(b, "%s: %s\n", advice.Capital(key), f.Text(key))
			}
		}
		if m.Has("recreate") {
			var recreate advice.Advice
			f.Write(&recreate, "recreate")
			known := len(recreate.Fixes) > 0
			b = fmt.Appendf(b, "Recreate (known %t): %q\n", known, append(recreate.Fixes, advice.Fix{})[0].What)
			b = appendCommand(b, "    ", append(recreate.Fixes, advice.Fix{})[0].Command)
		}
	}
	return string(b)
}

func heading(b []byte, text string) []byte {
	if len(b) > 0 {
		b = append(b, '\n')
	}
	return fmt.Appendf(b, "## %s\n", text)
}

func appendActions(b []byte, indent string, actions []advice.Action) []byte {
	for _, a := range actions {
		b = fmt.Appendf(b, "%s- %s\n", indent, a.Text)
		if a.Command != "" {
			b = fmt.Appendf(b, "%s  on node %q:\n", indent, a.Node)
			b = appendCommand(b, indent+"    ", a.Command)
		}
		for _, choice := range a.Choice {
			b = fmt.Appendf(b, "%s  if %s:\n", indent, choice.When)
			b = appendActions(b, indent+"    ", choice.Actions)
		}
	}
	return b
}

func appendCommand(b []byte, indent, text string) []byte {
	for line := range strings.Lines(text) {
		b = append(append(b, indent...), line...)
	}
	if text != "" {
		b = append(b, '\n')
	}
	return b
}

// Advise returns the advice of an IPAM for a case. Any holder can be restarted, with a command "restart".
func Advise(m *ipam.IPAM, key string, c ipam.Case) (a advice.Advice) {
	if h := c.Holder; h != nil {
		c.Restart = func(then string, now bool) advice.Advice {
			restart := advice.Action{Text: fmt.Sprintf("Restart %s: %s.", h.Name, then)}
			return advice.Advice{Remedy: []advice.Action{restart}, Fixes: []advice.Fix{{What: restart.Text, Command: "restart", Manual: !now}}}
		}
	}
	m.Filler(c).Write(&a, key)
	return a
}
