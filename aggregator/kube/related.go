package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// MostRelated is the maximum number of results of Related. With that many, there may be
	// more.
	MostRelated = 12
	// maxRelatedNodes is the maximum number of nodes that Related covers.
	maxRelatedNodes = 16
)

// rank is the relevance of a result. Lower ranks are more relevant.
type rank int

const (
	ofAddress    rank = iota // the purpose of the address
	ofOwner                  // an event about one of the owners
	ofNode                   // a problem of a node or its CNI plugin
	ofNeighbours             // an event about a node, or about another pod on it
	newNode                  // a node was added
	nothing                  // a healthy component, which is not the cause
)

type ranked struct {
	rank rank
	*pb.Related
}

// subject is the address, pods and nodes of a conflict.
type subject struct {
	address netip.Addr
	pods    map[ipam.Key]bool
	nodes   []string
}

// Related returns what Kubernetes knows that may explain a conflict, the most relevant first.
func (c *Cluster) Related(conflict *pb.Conflict) []*pb.Related {
	if c == nil {
		return nil
	}
	now := stampNow()
	c.mu.RLock()
	defer c.mu.RUnlock()
	about := subject{pods: make(map[ipam.Key]bool)}
	about.address, _ = netip.ParseAddr(conflict.GetAddress())
	about.address = about.address.Unmap()
	node := func(name string) {
		if name != "" && len(about.nodes) < maxRelatedNodes && !slices.Contains(about.nodes, name) {
			about.nodes = append(about.nodes, name)
		}
	}
	for _, o := range conflict.GetOwners() {
		w := o.GetWorkload()
		if w.GetKind() != pb.Workload_EXTERNAL {
			node(o.GetNode())
		}
		if w.GetNamespace() != "" {
			about.pods[ipam.Key{Namespace: w.GetNamespace(), Name: w.GetName()}] = true
		}
		if p := c.pods.find(w.GetNamespace(), w.GetName(), w.GetUid(), o.GetNode()); p != nil {
			about.pods[ipam.Key{Namespace: p.Namespace, Name: p.Name}] = true
			node(p.Node) // the agent may use another name for the node
		}
	}
	all := slices.Concat(c.addressResults(about), c.eventResults(about, now), c.nodeResults(about, now), c.pluginResults(about, now))
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	var related []*pb.Related
	for _, s := range all[:min(len(all), MostRelated)] {
		correctRelated(s.Related)
		related = append(related, s.Related)
	}
	return related
}

// addressResults returns the services and leases that explain the purpose of the address.
func (c *Cluster) addressResults(about subject) []ranked {
	var all []ranked
	services := slices.SortedFunc(maps.Keys(c.services.byAddress[about.address]), func(a, b *serviceRecord) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range services {
		of := s.Addresses[slices.IndexFunc(s.Addresses, func(a ipam.ServiceAddress) bool { return a.Addr == about.address })]
		text := fmt.Sprintf("%s is %s of Service %s/%s", about.address, addressRoles[of.Field], s.Namespace, s.Name)
		if s.class != "" {
			text += " (class " + s.class + ")"
		}
		if s.host != "" {
			text += "; kube-vip has it on " + s.host
		}
		all = append(all, ranked{ofAddress, &pb.Related{
			Kind: "Service", Namespace: s.Namespace, Name: s.Name, Node: s.host, Reason: "Address", Message: ipam.Cut(text, ipam.MaxMessage), Healthy: true,
		}})
		if s.host != "" {
			all = append(all, c.leaseResults(servicesLease, "of services")...)
		}
	}
	if c.pods.vips[about.address] != nil {
		all = append(all, c.leaseResults(controlPlaneLease, "of the control plane")...)
	}
	return all
}

func (c *Cluster) leaseResults(name, of string) []ranked {
	l := c.leases.of(name)
	if l == nil {
		return nil
	}
	holder := cmp.Or(l.holder, "nobody")
	text := fmt.Sprintf("kube-vip's lease on the addresses %s is held by %s", of, holder)
	if l.acquired != 0 {
		text += " since " + l.acquired.Time().Format(time.RFC3339)
	}
	if l.renewed != 0 {
		text += ", renewed " + l.renewed.Time().Format(time.RFC3339)
	}
	return []ranked{{ofAddress, &pb.Related{
		Kind: "Lease", Namespace: l.namespace, Name: l.name, Node: l.holder, Reason: "Holder", Message: ipam.Cut(text, ipam.MaxMessage),
		FirstSeen: timestamp(l.acquired), LastSeen: timestamp(l.renewed), Healthy: true,
	}}}
}

func (c *Cluster) eventResults(about subject, now verdict.Stamp) []ranked {
	type group struct {
		node, reason string
		own          bool // about an owner
	}
	type total struct {
		count uint32
		first verdict.Stamp
		last  *eventRecord
	}
	groups := make(map[group]*total)
	note := func(r *eventRecord) {
		if now.Sub(r.last) > lately {
			return
		}
		g := group{r.node, r.reason, r.kind == "Pod" && about.pods[ipam.Key{Namespace: r.namespace, Name: r.name}]}
		t := groups[g]
		if t == nil {
			t = &total{first: r.first, last: r}
			groups[g] = t
		}
		t.count += r.count
		if r.first > 0 {
			t.first = min(t.first, r.first)
		}
		if r.last > t.last.last {
			t.last = r
		}
	}
	for _, node := range about.nodes {
		for _, l := range []*eventLog{c.events.warnings, c.events.normal} {
			for r := range l.byNode[node] {
				note(r)
			}
		}
	}
	for r := range c.events.warnings.byNode[""] { // events whose node is unknown
		if about.pods[ipam.Key{Namespace: r.namespace, Name: r.name}] {
			note(r)
		}
	}
	var all []ranked
	for g, t := range groups {
		r := ofNeighbours
		if g.own {
			r = ofOwner
		}
		all = append(all, ranked{r, &pb.Related{
			Kind: "Event", Namespace: t.last.namespace, Name: t.last.name, Node: g.node, Reason: g.reason, Message: t.last.message,
			Count: t.count, FirstSeen: timestamp(t.first), LastSeen: timestamp(t.last.last),
		}})
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(b.GetLastSeen().AsTime().Compare(a.GetLastSeen().AsTime()), cmp.Compare(a.GetNode(), b.GetNode()), cmp.Compare(a.GetReason(), b.GetReason()))
	})
	return all
}

// nodeResults returns the unusual conditions of the owners' nodes.
func (c *Cluster) nodeResults(about subject, now verdict.Stamp) []ranked {
	var all []ranked
	for _, name := range about.nodes {
		n := c.nodes.of(name)
		if n == nil {
			continue
		}
		add := func(as rank, reason, message string, since verdict.Stamp) {
			all = append(all, ranked{as, &pb.Related{
				Kind: "Node", Name: name, Node: name, Reason: reason, Message: ipam.Cut(message, ipam.MaxMessage), FirstSeen: timestamp(since),
			}})
		}
		if n.ready != corev1.ConditionTrue && n.ready != "" {
			add(ofNode, cmp.Or(n.reason, "NotReady"), "node "+name+" is not ready: "+cmp.Or(n.message, "its condition Ready is "+ipam.Plain(string(n.ready))), n.since)
		}
		if n.added != 0 && now.Sub(n.added) < lately {
			add(newNode, "Added", fmt.Sprintf("node %s was added less than an hour ago: was it created from a template that contained pods?", name), n.added)
		}
		if len(n.cidrs) == 0 && len(*c.cidrs.Load()) > 0 {
			add(ofNode, "NoPodCIDR", fmt.Sprintf("node %s has no pod CIDR (spec.podCIDR), unlike other nodes", name), 0)
		}
	}
	return all
}

// pluginResults returns the state of the CNI plugin on the owners' nodes.
func (c *Cluster) pluginResults(about subject, now verdict.Stamp) []ranked {
	names := make(map[string]bool)
	for _, of := range c.pods.plugins {
		for p := range of {
			names[p.more.plugin.name] = true
		}
	}
	var all []ranked
	for _, name := range about.nodes {
		of := c.pods.plugins[name]
		if len(of) == 0 && len(c.pods.plugins) > 0 && c.nodes.of(name) != nil && c.health.synced {
			all = append(all, ranked{ofNode, &pb.Related{
				Kind: "Node", Name: name, Node: name, Reason: "NoCNIPod",
				Message: ipam.Cut(fmt.Sprintf("node %s has no pod of a CNI plugin, unlike %d nodes (%s)", name, len(c.pods.plugins), strings.Join(slices.Sorted(maps.Keys(names)), ", ")), ipam.MaxMessage),
			}})
		}
		for _, p := range slices.SortedFunc(maps.Keys(of), func(a, b *podRecord) int { return cmp.Compare(a.Name, b.Name) }) {
			s := p.more.plugin
			r := &pb.Related{
				Kind: "Pod", Namespace: p.Namespace, Name: p.Name, Node: p.Node, Reason: s.word, FirstSeen: timestamp(s.begun),
			}
			// It runs, is ready and was not restarted lately.
			r.Healthy = s.ready && s.word == string(corev1.PodRunning) && (s.restarted == 0 || now.Sub(s.restarted) >= lately)
			text := fmt.Sprintf("%s on %s ", s.name, p.Node)
			rank := ofNode
			switch {
			case r.GetHealthy():
				rank = nothing
				text += "runs and is ready"
				if s.restarts > 0 {
					text += fmt.Sprintf(", its last restart was %s", s.restarted.Time().Format(time.RFC3339))
				}
			case s.word == string(corev1.PodRunning):
				r.Reason = "Restarted"
				text += fmt.Sprintf("was restarted %s (%s)", s.restarted.Time().Format(time.RFC3339), s.counted())
			default:
				text += "is not healthy: " + s.word
				if s.restarts > 0 {
					text += " (" + s.counted() + ")"
				}
				if s.message != "" {
					text += ": " + s.message
				}
			}
			r.LastSeen, r.Message = timestamp(s.restarted), ipam.Cut(text, ipam.MaxMessage)
			all = append(all, ranked{rank, r})
		}
	}
	return all
}

func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	return timestamppb.New(s.Time())
}
