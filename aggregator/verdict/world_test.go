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

// input returns the case as an aggregator would make it.
func (w *world) input() *verdict.Case {
	c := &verdict.Case{
		Address: w.addr, Now: w.now, Claims: w.claims, Conflicts: w.conflicts,
		Stations: w.interfaces, Pools: w.pools, Past: w.past,
		InPodCIDR: w.podCIDR.IsValid() && w.podCIDR.Contains(w.addr), Covered: len(w.uncovered) == 0, PodsKnownUntil: cmp.Or(w.known, w.now),
	}
	for _, ns := range w.namespaces {
		nested := slices.ContainsFunc(w.namespaces, func(own *verdict.Namespace) bool {
			return own.Record == verdict.OwnRecord && own.Node != ns.Node && own.Node.Boot == ns.Node.Boot && own.Node.Netns == ns.Netns
		})
		c.Namespaces = append(c.Namespaces, verdict.NamespaceFacts{Namespace: ns, Nested: nested, Pod: w.pods[ns.Who.Workload().UID]})
	}
	for _, n := range w.nodes {
		f := verdict.NodeFacts{Node: n.Key(), InPodCIDR: c.InPodCIDR && (w.podCIDROf == "" || w.podCIDROf == n.Name), Covered: w.covered(n.Name)}
		for _, p := range w.pools {
			if p.Node == n {
				f.Pools = append(f.Pools, p)
			}
		}
		for _, s := range w.subnets {
			if s.Interface.Namespace.Node == n {
				f.Subnets = append(f.Subnets, s)
			}
		}
		c.Nodes = append(c.Nodes, f)
	}
	for mac, count := range w.answers {
		for _, claim := range w.claims {
			c.Answers = append(c.Answers, verdict.Answer{Link: claim.Link.Key(), MAC: mac, Addresses: count[0], Owners: count[1]})
		}
	}
	for _, al := range w.allocations {
		c.Allocations = append(c.Allocations, verdict.AllocationFacts{
			Allocation: al, Object: w.podNamed(al.Namespace, al.Pod), Covered: al.Node != "" && w.covered(al.Node),
			Sandbox: al.ContainerID != "" && slices.ContainsFunc(w.namespaces, func(ns *verdict.Namespace) bool { return ns.Who.Workload().ContainerID == al.ContainerID }),
		})
	}
	return c
}

// podNamed is what was entered by hand, and Absent where pods are listed.
func (w *world) podNamed(namespace, name string) *verdict.PodObject {
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

func (w *world) covered(node string) bool {
	return len(w.uncovered) == 0 || !slices.Contains(w.uncovered, node)
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
	for _, ns := range w.namespaces {
		if ns.Node == n && ns.Record == verdict.OwnRecord {
			return ns
		}
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

// judge judges and keeps the conflicts for the next time, as an aggregator does.
func (w *world) judge() verdict.Judgement { return w.keep(w.policy.Judge(w.input())) }

// checked is judge. It also checks that a file with the case is judged the same.
func (w *world) checked(t *testing.T) verdict.Judgement {
	t.Helper()
	in := w.input()
	out := w.policy.Judge(in)
	if len(in.Claims) < manyClaims {
		sameAgain(t, &w.policy, in, out)
	}
	return w.keep(out)
}

// manyClaims is the number of claims from which on a file takes long, and shows nothing else.
const manyClaims = 100

// keep keeps the conflicts for the next time.
func (w *world) keep(out verdict.Judgement) verdict.Judgement {
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
	out := w.checked(t)
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
	out := w.checked(t)
	if len(out.Conflicts) != 0 {
		t.Fatalf("got conflict %q, want none", out.Conflicts[0].Summary)
	}
	return out
}

// wantRule checks that the explanation names a rule.
func (w *world) wantRule(t *testing.T, rule string) {
	t.Helper()
	e := w.policy.Explain(w.input())
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
