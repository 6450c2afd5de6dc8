// Package kube mirrors the parts of the Kubernetes API that name owners and explain conflicts:
// pods, nodes, load balancer addresses, events and the health of the CNI plugin. It also reads
// the IPAMs that keep their state in the API, and writes Events about conflicts and findings.
//
// It is the only package that knows client-go. It judges nothing: it returns what the API
// says, and whether that is current. For each resource, a feed lists and watches the objects
// (feed.go) and an ipam.Mirror holds their records. Records have only the fields in use
// and never change. The other files each read one kind of object.
package kube

import (
	"cmp"
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
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/podips"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Special values of Config.Kubeconfig.
const (
	Auto = "auto" // the cluster of our own pod, if we run as a pod with a service account
	Off  = "off"  // no cluster
)

// Config is the configuration of a Cluster.
type Config struct {
	// Kubeconfig is Auto, Off, or the path of a kubeconfig file.
	Kubeconfig string
	Log        *slog.Logger
	// Metrics is where the metrics are registered; nil if they are not.
	Metrics prometheus.Registerer
	// Version is the program's version for the user agent, which the API server's audit log
	// shows.
	Version string
	// AgentAccounts are the service accounts of agents, as NAMESPACE/NAME. A node on which
	// such a pod runs or is about to run is expected to have an agent.
	AgentAccounts []string
	// Lease is the Lease by which the replicas elect a leader, as NAMESPACE/NAME; empty if there is one
	// replica.
	Lease string
}

// Changes are the changes of a mirror since the last notification.
type Changes struct {
	// Pods are new, changed or deleted pods. A static pod is listed a second time under the UID that the
	// container runtime knows.
	Pods []PodKey
	// Networks are pod CIDRs that were added or removed, which changes the result of
	// InPodCIDR.
	Networks []netip.Prefix
	// State means that Status().State or OneTenant changed, which changes what Pod returns for
	// unknown pods, or in which networks they are.
	State bool
	// Nodes are nodes that were added or removed, which changes what Pod returns for their
	// unknown pods, and those whose addresses have changed.
	Nodes []string
	// Related are the nodes for which Related may return something new.
	Related []string
	// IPAM are the changes of the cluster's IPAMs, one for each pool and allocation.
	IPAM []IPAMChange
	// Records has the IPAMs whose records in the API are not known, if they have changed: Reading while they are
	// awaited after the start, Unreadable if they cannot be read. podips.IPAM.Name also stands for everything else that
	// is read.
	Records map[string]ipam.State
	// Addresses are those for which the result of FormerEndpoints changed.
	Addresses []netip.Addr
	// Acknowledgements means that the result of Acknowledgements changed.
	Acknowledgements bool
}

// PodKey identifies a pod.
type PodKey struct{ Namespace, Name, UID string }

// IPAMChange is a change of an IPAM. Either Pool or Allocation is set.
type IPAMChange struct {
	// Pool is the pool in its current or last state. IPAM and Name identify it. The value
	// never changes. A pool comes before its allocations, and it is removed after them.
	// What came and went since the last notification is only removed.
	Pool *verdict.Pool
	// Allocation is identified by the IPAM and Name of its pool, its address and its location.
	Allocation *verdict.Allocation
	// Gone means that the pool or allocation was removed.
	Gone bool
}

// maxEntries is the maximum number of entries that wait for a slow log.
const maxEntries = 64

// Cluster is the mirror of one Kubernetes cluster. Its methods are safe for concurrent use. A
// nil Cluster is valid and stands for no cluster.
type Cluster struct {
	log     *slog.Logger
	clients clients
	notify  func(Changes)
	// bell rings when changes are pending.
	bell chan struct{}
	// entries are queued for the log, because writing to it may block.
	entries chan func(context.Context)

	// cidrs has the pod CIDRs of all nodes, for ipam.Contain.
	cidrs atomic.Pointer[[]ipam.Range]
	// lastResponse is when the API server last sent something, in nanoseconds since the Unix epoch.
	lastResponse atomic.Int64
	// begun is the origin of clock. following is since when the pods have been followed
	// without a break, or 0 if they are not. complete is the value of KnownUntil.
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
	// records are the Changes.Records that were told last.
	records   map[string]ipam.State
	ipams     []*publisher
	addresses *podips.Addresses[*podRecord]
	// annotated has the addresses that OVN-Kubernetes has written into the annotations of pods.
	annotated *podips.Addresses[annotatedPod]
	// nodeAddresses has the addresses of nodes.
	nodeAddresses *podips.Addresses[nodeAddresses]
	// servicePools are the published pools of which Services get addresses.
	servicePools map[*verdict.Pool]struct{}
	// kubeVIP has the nodes that kube-vip has elected for virtual addresses.
	kubeVIP *ipam.Assignments

	acknowledgements acknowledgements

	announcer announcer
	election  *election
	discovery discovery
	feeds     []*feed
}

// Open returns a mirror that sends no requests before Run. It returns nil without an error if
// there is no cluster.
func Open(cfg Config) (*Cluster, error) { return open(cfg, func(*rest.Config) {}) }

// open is Open with a hook that lets tests change the client configuration.
func open(cfg Config, by func(*rest.Config)) (*Cluster, error) {
	log := cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	where, err := configure(cfg, log)
	if err != nil || where == nil {
		return nil, err
	}
	by(where)
	return openAt(where, log, cfg)
}

func openAt(where *rest.Config, log *slog.Logger, cfg Config) (c *Cluster, err error) {
	c = &Cluster{
		log: log, begun: time.Now(), bell: make(chan struct{}, 1), records: Unread(), entries: make(chan func(context.Context), maxEntries), pending: newPending(),
		health: health{
			state: pb.Kubernetes_SYNCING, since: time.Now(), problems: make(map[string]string),
			returned: make(chan struct{}), kick: make(chan struct{}, 1), pulse: usualPulse,
		},
		announcer: announcer{
			limiter: flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst), bell: make(chan struct{}, 1), pause: eventPause,
			refused: make(map[string]time.Time), past: make(map[string]*announced),
		},
		discovery: discovery{every: discoverEvery, check: checkEvery, bell: make(chan struct{}, 1)}, leases: make(leases),
		servicePools: make(map[*verdict.Pool]struct{}),
	}
	c.announcer.cluster, c.discovery.cluster = c, c
	c.announcer.stored = ipam.Mirror[*corev1.Event, string]{Read: readOwnEvent, Changed: func(_ ipam.Key, before, after *string) {
		if after == nil {
			c.announcer.deleted(*before)
		}
	}}
	if c.clients, err = newClients(where, log, cfg.Version); err != nil {
		return nil, err
	}
	c.cidrs.Store(&[]ipam.Range{})
	c.pods = newPods(c)
	c.pods.agentAccounts = cfg.AgentAccounts
	c.nodes = newNodes(c)
	c.services = newServices(c)
	for _, name := range []string{controlPlaneLease, servicesLease} {
		c.leases[name] = &ipam.Mirror[*coordinationv1.Lease, leaseRecord]{
			Read: readLease, Changed: func(ipam.Key, *leaseRecord, *leaseRecord) { c.controlPlaneChanged() },
		}
	}
	c.events = events{newEventLog(c), newEventLog(c)}
	if c.election, err = newElection(c, cfg.Lease); err != nil {
		return nil, err
	}
	c.acknowledgements = newAcknowledgements(c)
	c.ipams = c.newPublishers()
	c.feeds = c.newFeeds()
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(collector{c}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) newFeeds() []*feed {
	feeds := []*feed{
		{
			name: "pods", lost: "owners have no phase and no controller, and Events are not written",
			client: c.clients.core, resource: "pods", into: &c.pods, list: func() list { return &corev1.PodList{} },
		},
		{
			name: "nodes", lost: "their pod CIDRs are not compared as networks, and orphaned sandboxes are not detected",
			client: c.clients.core, resource: "nodes", into: &c.nodes, list: func() list { return &corev1.NodeList{} },
		},
		{
			name: "services", lost: "addresses of load balancers are not explained, and the nodes that MetalLB and kube-vip want to hold them are unknown",
			client: c.clients.core, resource: "services", into: &c.services, list: func() list { return &corev1.ServiceList{} },
		},
	}
	for name, mirror := range c.leases {
		feeds = append(feeds, &feed{
			name: "lease " + name, lost: "the node that kube-vip elected to hold an address is unknown",
			client: c.clients.coordination, resource: "leases", namespace: leaseNamespace,
			fields: fields.OneTermEqualSelector("metadata.name", name).String(),
			into:   mirror, list: func() list { return &coordinationv1.LeaseList{} },
		})
	}
	const lost = "Events are missing in the diagnosis of conflicts, and those that the API server forgets early are written again late"
	events := func(name string, into ipam.Store, terms ...fields.Selector) {
		for _, reason := range ignoredReasons {
			terms = append(terms, fields.OneTermNotEqualSelector("reason", reason))
		}
		feeds = append(feeds, &feed{
			name: name, lost: lost,
			client: c.clients.core, resource: "events", into: into, list: func() list { return &corev1.EventList{} },
			fields: fields.AndSelectors(terms...).String(),
		})
	}
	// Events about nodes are followed whatever their type, because even the most serious have type Normal.
	events(warningFeed, c.events.warnings, fields.OneTermEqualSelector("type", corev1.EventTypeWarning))
	events(nodeEventFeed, c.events.normal, fields.OneTermEqualSelector("involvedObject.kind", "Node"),
		fields.OneTermNotEqualSelector("type", corev1.EventTypeWarning))
	feeds = append(feeds, &feed{
		name: ownEventFeed, lost: lost,
		client: c.clients.core, resource: "events", into: &c.announcer.stored, list: func() list { return &corev1.EventList{} },
		fields: "source=" + reporter + ",type=" + corev1.EventTypeWarning,
	})
	if c.election.name != "" { // replicas share acknowledgements
		feeds = append(feeds, &feed{
			name: acknowledgementFeed, lost: "conflicts that were acknowledged are reported as if they were not",
			client: c.acknowledgementClient(), resource: acknowledgementKind.Resource, namespace: c.election.namespace,
			into: &c.acknowledgements, list: func() list { return &objects{} },
		})
	}
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

// Notify registers f to be called after changes. It is called from one goroutine and never
// under a lock. Call Notify at most once, before Run.
func (c *Cluster) Notify(f func(Changes)) {
	if c != nil {
		c.notify = f
	}
}

// Run mirrors the cluster until ctx ends. It goes on if the API server is unreachable or
// refuses requests; Status reports that.
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
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-c.bell:
			}
			if changes, any := c.take(); any && c.notify != nil {
				c.notify(changes)
			}
		}
	})
	group.Go(func() error { c.announcer.run(ctx); return nil })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case write := <-c.entries:
				write(ctx)
			}
		}
	})
	return group.Wait()
}

// absent is the state of a pod that the API does not have.
var absent = &verdict.PodObject{Absent: true}

// Pod returns what the API says about a pod. If uid is given, Pod looks the pod up by its UID,
// or for a static pod by the UID that the container runtime knows. Otherwise it looks the pod
// up by namespace and name, and the pod must be bound to the node or to none. The result is
// Absent if the API has the node but no such pod. It is nil if that cannot be decided:
// workloads on other machines do not belong to this cluster.
func (c *Cluster) Pod(namespace, name, uid, node string) *verdict.PodObject {
	if c == nil || uid == "" && (namespace == "" || name == "") {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	p, live := c.pods.find(namespace, name, uid, node), c.health.state == pb.Kubernetes_LIVE
	switch {
	case p == nil && live && c.nodes.of(node) != nil:
		return absent
	case p == nil:
		return nil
	case p.VirtualMachine == "" || !live:
		return &p.PodObject
	}
	for _, m := range c.ipams {
		if m.objects.Machine == nil {
			continue
		}
		if vm := m.objects.Machine(ipam.Key{Namespace: p.Namespace, Name: p.VirtualMachine}); vm != nil {
			with := p.PodObject
			with.MachineNode, with.Migrating, with.MachineSince = vm.Node, vm.Migrating, verdict.Stamp(vm.Since)
			correctPod(&with)
			return &with
		}
	}
	return &p.PodObject
}

// PodNamed returns what the API says about the named pod, on any node. The result is Absent if
// there is no such pod, and nil if the mirror is not live.
func (c *Cluster) PodNamed(namespace, name string) *verdict.PodObject {
	if c == nil || namespace == "" || name == "" {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if p := c.pods.Records[ipam.Key{Namespace: namespace, Name: name}]; p != nil {
		return &p.PodObject
	}
	if c.health.state == pb.Kubernetes_LIVE {
		return absent
	}
	return nil
}

// KnownUntil returns the time until which the results of Pod are complete: a pod that existed
// by then and is not known has been deleted. After a break, the mirror may lack the newest
// changes.
func (c *Cluster) KnownUntil() verdict.Stamp {
	if c == nil {
		return 0
	}
	return verdict.Stamp(c.complete.Load())
}

// InPodCIDROf reports whether an address is in a pod CIDR of the node.
func (c *Cluster) InPodCIDROf(node string, a netip.Addr) bool {
	if !c.InPodCIDR(a) {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes.of(node)
	return n != nil && slices.ContainsFunc(n.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Internal reports whether an address is a node's own according to the API: the first InternalIP of its family.
// The kubelet uses that one. A cloud controller may list virtual addresses that the node has for a while after it.
func (c *Cluster) Internal(node string, a netip.Addr) bool {
	if c == nil {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := c.nodes.of(node)
	if a = a.Unmap().WithZone(""); n == nil {
		return false
	}
	return n.own(a)
}

// InPodCIDR reports whether an address is in the pod CIDR of any node.
func (c *Cluster) InPodCIDR(a netip.Addr) bool {
	return c != nil && ipam.Contain(*c.cidrs.Load(), a.Unmap().WithZone(""))
}

// OneTenant reports whether the pods are known, and none of them belongs to a tenant with a network of
// its own.
func (c *Cluster) OneTenant() bool {
	if c == nil {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.health.state != pb.Kubernetes_SYNCING && len(c.pods.tenants) == 0
}

// Status returns the state of the mirror.
func (c *Cluster) Status() *pb.Kubernetes {
	if c == nil {
		return &pb.Kubernetes{State: pb.Kubernetes_OFF}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	status := &pb.Kubernetes{
		State: c.health.state, Server: c.clients.server, Since: timestamppb.New(c.health.since),
		Pods: uint32(len(c.pods.Records)), Nodes: uint32(len(c.nodes.Records)), Problems: c.health.texts(),
	}
	if last := c.lastResponse.Load(); last != 0 {
		status.LastHeard = timestamppb.New(time.Unix(0, last))
	}
	return status
}
