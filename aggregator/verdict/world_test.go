package verdict_test

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const start = verdict.Stamp(1_700_000_000_000_000_000)

// flat returns actions as lines of text, including those of alternatives.
func flat(actions []verdict.Action) (lines []string) {
	for _, a := range actions {
		line := a.Text
		if a.Command != "" {
			line += " " + a.Command
		}
		lines = append(lines, line)
		for _, alternative := range a.Choice {
			lines = append(lines, "if "+alternative.When)
			lines = append(lines, flat(alternative.Actions)...)
		}
	}
	return lines
}

// world is a handful of nodes with their tables: what an aggregator would know.
type world struct {
	policy     verdict.Policy
	addr       netip.Addr
	now        verdict.Stamp
	namespaces []*verdict.Namespace
	interfaces []*verdict.Interface
	links      map[string]*verdict.Link
	claims     []*verdict.Claim
	conflicts  []verdict.Conflict
	nodes      map[string]*verdict.Node
	answers    map[verdict.MAC][2]int
	pods       map[string]*verdict.PodObject
	podCIDR    netip.Prefix
	podCIDROf  string        // the one node that has it; empty for all
	known      verdict.Stamp // until when pods are; 0 for now
	listed     bool          // pods that are not there are absent

	allocations []*verdict.Allocation
	pools       []*verdict.Pool
	past        []verdict.Past
	subnets     []verdict.Subnet
	uncovered   []string // nodes that no agent reports for
}

func newWorld(addr string) *world {
	return &world{
		policy: verdict.Policy{
			Cluster: "test", Settle: time.Second, StaleAfter: 5 * time.Minute,
			NodeTimeout: 5 * time.Minute, HandoverGrace: 10 * time.Second, MigrationGrace: time.Minute,
		},
		addr: netip.MustParseAddr(addr), now: start,
		links: map[string]*verdict.Link{}, nodes: map[string]*verdict.Node{},
	}
}

func (w *world) Namespace(n *verdict.Node, record uint32) *verdict.Namespace {
	for _, ns := range w.namespaces {
		if ns.Node == n && ns.Record == record {
			return ns
		}
	}
	return nil
}

func (w *world) Holders(n *verdict.Node, mac verdict.MAC) (found []*verdict.Interface) {
	for _, i := range w.interfaces {
		if i.Namespace.Node == n && i.MAC == mac {
			found = append(found, i)
		}
	}
	return found
}

func (w *world) Neighbours(l *verdict.Link, mac verdict.MAC) (found []*verdict.Interface) {
	if mac.Shared() || l == nil || l.Domain == nil {
		return nil
	}
	for _, i := range w.interfaces {
		if i.Namespace.Node != l.Node && i.MAC == mac && i.Link != nil && i.Link.Domain == l.Domain {
			found = append(found, i)
		}
	}
	return found
}

// Nested implements verdict.Tables: it reports whether a node is the namespace.
func (w *world) Nested(ns *verdict.Namespace) bool {
	return slices.ContainsFunc(w.namespaces, func(own *verdict.Namespace) bool {
		return own.Record == verdict.OwnRecord && own.Node != ns.Node && own.Node.Boot == ns.Node.Boot && own.Node.Netns == ns.Netns
	})
}

func (w *world) OnLink(l *verdict.Link, except *verdict.Namespace) (found []*verdict.Namespace) {
	for _, i := range w.interfaces {
		if i.Link == l && i.Peer == 0 && i.Namespace != except && !slices.Contains(found, i.Namespace) {
			found = append(found, i.Namespace)
		}
	}
	return found
}

// Stitches are none: they are only told of.
func (w *world) Stitches(*verdict.Domain) []verdict.Stitch { return nil }

// PodObject is what was entered by hand, by uid; none where the API is not asked.
func (w *world) PodObject(ns *verdict.Namespace) *verdict.PodObject {
	return w.pods[ns.Who.Workload().UID]
}

// PodNamed is what was entered by hand, and Absent where pods are listed.
func (w *world) PodNamed(namespace, name string) *verdict.PodObject {
	for _, p := range w.pods {
		if p.Namespace == namespace && p.Name == name {
			return p
		}
	}
	if w.listed && name != "" {
		return &verdict.PodObject{Absent: true}
	}
	return nil
}

func (w *world) PodsKnownUntil() verdict.Stamp { return cmp.Or(w.known, w.now) }

func (w *world) InPodCIDR(a netip.Addr) bool { return w.podCIDR.IsValid() && w.podCIDR.Contains(a) }

func (w *world) InPodCIDROf(n *verdict.Node, a netip.Addr) bool {
	return w.InPodCIDR(a) && (w.podCIDROf == "" || w.podCIDROf == n.Name)
}

func (w *world) PoolsOf(n *verdict.Node) (found []*verdict.Pool) {
	for _, p := range w.pools {
		if p.Node == n {
			found = append(found, p)
		}
	}
	return found
}

func (w *world) Subnets(n *verdict.Node) (found []verdict.Subnet) {
	for _, s := range w.subnets {
		if s.Interface.Namespace.Node == n {
			found = append(found, s)
		}
	}
	return found
}

func (w *world) Sandbox(id string) bool {
	return slices.ContainsFunc(w.namespaces, func(ns *verdict.Namespace) bool { return ns.Who.Workload().ContainerID == id })
}

func (w *world) Covered(node string) bool {
	return len(w.uncovered) == 0 || node != "" && !slices.Contains(w.uncovered, node)
}

// Answers is what was entered by hand.
func (w *world) Answers(_ *verdict.Link, mac verdict.MAC) (addresses, owners int) {
	return w.answers[mac][0], w.answers[mac][1]
}

func (w *world) node(name string) *verdict.Node {
	if w.nodes[name] == nil {
		w.nodes[name] = &verdict.Node{Name: name, Boot: "boot-" + name, Netns: "1", Epoch: 1}
	}
	return w.nodes[name]
}

// host is the node's own namespace.
func (w *world) host(node string) *verdict.Namespace {
	n := w.node(node)
	if ns := w.Namespace(n, verdict.OwnRecord); ns != nil {
		return ns
	}
	return w.namespace(node, verdict.OwnRecord, "1", verdict.Workload{Kind: verdict.Host, Name: node})
}

func (w *world) namespace(node string, record uint32, netns string, who verdict.Workload) *verdict.Namespace {
	ns := &verdict.Namespace{Node: w.node(node), Record: record, Netns: netns, Who: who.Who()}
	ns.ID = verdict.OwnerID(ns.Node, record, netns)
	w.namespaces = append(w.namespaces, ns)
	return ns
}

func pod(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: name, UID: "uid-" + name, Source: "cni-result"}
}

func (w *world) link(node, name string, kind verdict.LinkKind, routed bool) *verdict.Link {
	key := node + "/" + name
	if w.links[key] == nil {
		w.links[key] = &verdict.Link{Node: w.node(node), Name: name, Kind: kind, Routed: routed}
	}
	return w.links[key]
}

// iface enters an interface with what differs from a pod's veth.
func (w *world) iface(ns *verdict.Namespace, i verdict.Interface) *verdict.Interface {
	i.Namespace = ns
	if i.Name == "" {
		i.Name = "eth0"
	}
	if i.Index == 0 {
		i.Index = uint32(len(w.interfaces) + 2)
	}
	w.interfaces = append(w.interfaces, &i)
	return &i
}

// veth is a pod's interface on a link, and the node's end of it.
func (w *world) veth(ns *verdict.Namespace, mac string, l *verdict.Link) (inside, port *verdict.Interface) {
	host := w.host(ns.Node.Name)
	name := "veth" + ns.Netns
	inside = w.iface(ns, verdict.Interface{MAC: verdict.MAC(mac), Attachment: verdict.Peer, Link: l, HostInterface: name})
	port = w.iface(host, verdict.Interface{
		Name: name, MAC: verdict.MAC("H" + mac), Attachment: verdict.Own, Link: l, Peer: ns.Record,
	})
	return inside, port
}

func (w *world) claim(c verdict.Claim) *verdict.Claim {
	c.Count, c.First, c.Last = 1, w.now, w.now
	c.Begun, c.Seen, c.Read = w.now, w.now, w.now
	if c.Kind == verdict.Assigned && c.AssignedAt == 0 {
		c.AssignedAt = w.now
	}
	w.claims = append(w.claims, &c)
	return &c
}

func (w *world) assigned(i *verdict.Interface) *verdict.Claim {
	return w.claim(verdict.Claim{Kind: verdict.Assigned, Interface: i, PrefixLength: 24})
}

func (w *world) wire(port *verdict.Interface, mac string) *verdict.Claim {
	return w.claim(verdict.Claim{Kind: verdict.Announced, Interface: port, Link: port.Link, MAC: verdict.MAC(mac)})
}

// seen is the claim's next frame.
func (w *world) seen(c *verdict.Claim) { c.Before, c.Seen = c.Seen, w.now }

// read is the claim read again.
func (w *world) read(claims ...*verdict.Claim) {
	for _, c := range claims {
		c.Read = w.now
	}
}

func (w *world) drop(claims ...*verdict.Claim) {
	w.claims = slices.DeleteFunc(w.claims, func(c *verdict.Claim) bool { return slices.Contains(claims, c) })
}

func (w *world) after(d time.Duration) *world {
	w.now = w.now.Add(d)
	return w
}

func (w *world) input() *verdict.Input {
	return &verdict.Input{
		Address: w.addr, Claims: w.claims, Conflicts: w.conflicts, Now: w.now,
		Allocations: w.allocations, Pools: w.pools, Past: w.past,
	}
}

// judge judges and keeps the conflicts for the next time, as an aggregator does.
func (w *world) judge() verdict.Judgement {
	out := w.policy.Judge(w, w.input())
	for _, c := range out.Conflicts {
		if i := slices.IndexFunc(w.conflicts, func(old verdict.Conflict) bool { return old.ID == c.ID }); i >= 0 {
			w.conflicts[i] = c
		} else {
			w.conflicts = append(w.conflicts, c)
		}
	}
	return out
}

// want judges and checks the only conflict.
func (w *world) want(t *testing.T, phase verdict.Phase, rule string, kind verdict.ScopeKind, scope string) verdict.Conflict {
	t.Helper()
	out := w.judge()
	if len(out.Conflicts) != 1 {
		t.Fatalf("got %d conflicts %+v, want one", len(out.Conflicts), out.Conflicts)
	}
	c := out.Conflicts[0]
	if c.Phase != phase || c.Rule != rule || c.Kind != kind || c.Scope != scope {
		t.Fatalf("got phase %d, rule %s, scope %s %s, want %d, %s, %s %s\n%s",
			c.Phase, c.Rule, c.Kind, c.Scope, phase, rule, kind, scope, c.Summary)
	}
	return c
}

// wantNone judges and checks that all is well.
func (w *world) wantNone(t *testing.T) verdict.Judgement {
	t.Helper()
	out := w.judge()
	if len(out.Conflicts) != 0 {
		t.Fatalf("got conflict %q, want none", out.Conflicts[0].Summary)
	}
	return out
}

// wantRule checks that the explanation names a rule.
func (w *world) wantRule(t *testing.T, rule string) {
	t.Helper()
	e := w.policy.Explain(w, w.input())
	if !slices.ContainsFunc(e.Steps, func(s verdict.Step) bool { return s.Rule == rule }) {
		t.Errorf("got steps %+v, want one of rule %s", e.Steps, rule)
	}
	t.Log(e.Summary)
	for _, s := range e.Steps {
		t.Logf("  %s %v: %s", s.Rule, s.Applied, s.Reason)
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}
