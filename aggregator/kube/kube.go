// Package kube is the aggregator's eyes on the Kubernetes API: it keeps a small
// mirror of what names owners and explains conflicts (pods, nodes, load balancers'
// addresses, events, the health of the CNI plugin), and writes Events about them.
//
// It is the only package that knows client-go. It judges nothing: it says what the
// API says, and how far that can be relied on. Of each object only what is used is
// kept, in records that never change; a feed for each resource lists and follows it
// (feed.go), a mirror holds its records (mirror.go), and the rest of the files say
// what is read of one kind of object each.
package kube

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Values of Config.Kubeconfig that are no files.
const (
	Auto = "auto" // the cluster that we run in, if we are a pod with a service account
	Off  = "off"  // ask no cluster
)

// Config is what Open needs.
type Config struct {
	// Kubeconfig is Auto, Off, or a file as kubectl uses it.
	Kubeconfig string
	Log        *slog.Logger
	// Metrics is where the metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
	// Version is what the API server's audit log says of us.
	Version string
	// AgentAccounts are the service accounts of agents, as NAMESPACE/NAME: where their
	// pods are, or are to be, a node is meant to have an agent.
	AgentAccounts []string
}

// Changes are what a mirror has heard since it last told.
type Changes struct {
	// Pods are new, changed or gone, as they are or last were: both where a pod
	// was known by another content before. Static pods come twice, the second time by
	// the uid that the runtime knows, and with no more than that.
	Pods []*verdict.PodObject
	// Networks are ranges of pods that came or went: what InPodCIDR says.
	Networks []netip.Prefix
	// State tells that Status().State changed: what Pod says of unknown pods did.
	State bool
	// Nodes came or went: what Pod says of unknown pods of theirs changed.
	Nodes []string
	// Related are the nodes of which Related may say something new.
	Related []string
	// IPAM is what the cluster's IPAMs say anew, in order.
	IPAM []IPAMChange
}

// IPAMChange is one thing that an IPAM says anew. Either Pool or Allocation is set.
type IPAMChange struct {
	// Pool is as it is now, or last was. It is known by IPAM and Name, never changes,
	// and comes before its allocations; with it go all that it has.
	Pool *verdict.Pool
	// Allocation is known by IPAM and Name of its pool, and its address.
	Allocation *verdict.Allocation
	// Gone tells that it is no more.
	Gone bool
}

// maxEntries is how many entries wait for a log that is slow.
const maxEntries = 64

// Cluster is the mirror of one Kubernetes cluster. Its methods can be called at
// any time from anywhere, and on nil, which is where there is no cluster.
type Cluster struct {
	log     *slog.Logger
	clients clients
	notify  func(Changes)
	// entries are to be written into the log, which may be slow.
	entries chan func(context.Context)

	// cidrs are the ranges of all nodes.
	cidrs atomic.Pointer[ranges]
	// heard is when the API server last said something, in nanoseconds since the
	// Unix epoch.
	heard atomic.Int64
	// begun is from when clock counts; following since when the pods are followed
	// without a break, 0 where they are not; complete is KnownUntil.
	begun               time.Time
	following, complete atomic.Int64

	mu       sync.RWMutex
	pods     pods
	nodes    nodes
	services services
	leases   leases
	events   events
	health   health
	pending  pending
	ipams    []*ipam
	shared   *podAddresses // one of them

	announcer announcer
	discovery discovery
	feeds     []*feed
}

// Open makes a mirror, which asks nothing before Run. It is nil, without an error,
// where there is no cluster to ask.
func Open(cfg Config) (*Cluster, error) { return open(cfg, func(*rest.Config) {}) }

// open is Open for a test, which has another way to the API server.
func open(cfg Config, by func(*rest.Config)) (*Cluster, error) {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	where, err := configure(cfg, log)
	if err != nil || where == nil {
		return nil, err
	}
	by(where)
	return openAt(where, log, cfg)
}

// openAt makes the mirror of a cluster that was found.
func openAt(where *rest.Config, log *slog.Logger, cfg Config) (c *Cluster, err error) {
	c = &Cluster{log: log, begun: time.Now(), entries: make(chan func(context.Context), maxEntries)}
	if c.clients, err = newClients(where, log, cfg.Version); err != nil {
		return nil, err
	}
	c.cidrs.Store(&ranges{})
	c.health = newHealth(c)
	c.pending = newPending()
	c.pods = newPods(c)
	c.pods.agentAccounts = cfg.AgentAccounts
	c.nodes = newNodes(c)
	c.services = newServices(c)
	c.leases = newLeases(c)
	c.events = newEvents(c)
	c.announcer = newAnnouncer(c)
	c.discovery = newDiscovery(c)
	for _, make := range ipams {
		c.ipams = append(c.ipams, make(c))
	}
	c.feeds = c.newFeeds()
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(collector{c}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// newFeeds are what is followed.
func (c *Cluster) newFeeds() []*feed {
	feeds := []*feed{
		{
			name: "pods", lost: "owners have no phase and no controller, and Events are not written",
			client: c.clients.core, resource: "pods", into: &c.pods.mirror, list: func() list { return &corev1.PodList{} },
		},
		{
			name: "nodes", lost: "their ranges of pods are not known as networks, and pods that were left behind are not known as such",
			client: c.clients.core, resource: "nodes", into: &c.nodes.mirror, list: func() list { return &corev1.NodeList{} },
		},
		{
			name: "services", lost: "addresses of load balancers are not explained",
			client: c.clients.core, resource: "services", into: &c.services.mirror, list: func() list { return &corev1.ServiceList{} },
		},
	}
	feeds = append(feeds, c.leaseFeeds()...)
	feeds = append(feeds, c.eventFeeds()...)
	for _, f := range feeds {
		f.cluster = c
	}
	for _, m := range c.ipams {
		for _, s := range m.sources {
			feeds = append(feeds, s.feed)
		}
	}
	return feeds
}

// Notify has f called after changes, from one goroutine and never under a lock. It
// is called before Run, once.
func (c *Cluster) Notify(f func(Changes)) {
	if c != nil {
		c.notify = f
	}
}

// Run mirrors the cluster until ctx ends. That the API server is not there, or
// refuses, does not end it: Status says so.
func (c *Cluster) Run(ctx context.Context) error {
	if c == nil {
		<-ctx.Done()
		return nil
	}
	var group errgroup.Group
	for _, f := range c.feeds {
		group.Go(func() error { f.run(ctx); return nil })
	}
	group.Go(func() error { c.discovery.run(ctx); return nil })
	group.Go(func() error { c.beat(ctx); return nil })
	group.Go(func() error { c.tell(ctx); return nil })
	group.Go(func() error { c.announcer.run(ctx); return nil })
	group.Go(func() error { c.writeLog(ctx); return nil })
	return group.Wait()
}

// absent is what is said of a pod that the API does not have.
var absent = &verdict.PodObject{Absent: true}

// Pod is what the API says of a pod: by its uid if that is given (for a static pod
// the one that the runtime knows will do), otherwise by namespace and name, and
// then only if it is bound to the node or to none. It is Absent where the API has
// no such pod but has the node, and nil where it cannot be told: what runs on
// another machine is none of this cluster's.
func (c *Cluster) Pod(namespace, name, uid, node string) *verdict.PodObject {
	if c == nil || uid == "" && (namespace == "" || name == "") {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pods.find(namespace, name, uid, node); p != nil {
		return &p.PodObject
	}
	if c.health.state == pb.Kubernetes_LIVE && c.nodes.of(node) != nil {
		return absent
	}
	return nil
}

// PodNamed is what the API says of the pod of a name, wherever it is: Absent where it has
// none, and nil where it is not heard from.
func (c *Cluster) PodNamed(namespace, name string) *verdict.PodObject {
	if c == nil || namespace == "" || name == "" {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pods.records[key{namespace, name}]; p != nil {
		return &p.PodObject
	}
	if c.health.state == pb.Kubernetes_LIVE {
		return absent
	}
	return nil
}

// KnownUntil is until when what Pod says is complete: a pod that was there by then, and
// is not known, is no more. What is heard again after a break may lack the newest.
func (c *Cluster) KnownUntil() verdict.Stamp {
	if c == nil {
		return 0
	}
	return verdict.Stamp(c.complete.Load())
}

// InPodCIDROf tells whether an address is in the range of pods of a node.
func (c *Cluster) InPodCIDROf(node string, a netip.Addr) bool {
	if !c.InPodCIDR(a) {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes.of(node)
	return n != nil && slices.ContainsFunc(n.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// InPodCIDR tells whether an address is in the range of pods of some node.
func (c *Cluster) InPodCIDR(a netip.Addr) bool {
	return c != nil && c.cidrs.Load().contain(a)
}

// Status is what is known of the API, and how far it can be relied on.
func (c *Cluster) Status() *pb.Kubernetes {
	if c == nil {
		return &pb.Kubernetes{State: pb.Kubernetes_OFF}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	status := &pb.Kubernetes{
		State: c.health.state, Server: c.clients.server, Since: timestamppb.New(c.health.since),
		Pods: uint32(len(c.pods.records)), Nodes: uint32(len(c.nodes.records)), Problems: c.health.told(),
	}
	if heard := c.heard.Load(); heard != 0 {
		status.LastHeard = timestamppb.New(time.Unix(0, heard))
	}
	return status
}
