// Package ipamtest has what the tests of IPAMs need: a cluster without an API server, and objects in
// the formats of the IPAMs.
package ipamtest

import (
	"encoding/json"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/ipam"
)

// A Cluster has custom resources of one IPAM, and what the IPAM publishes. It implements
// ipam.Publisher, and checks the order of what is published.
type Cluster struct {
	// Nodes are the nodes of the cluster; nil if they are not known.
	Nodes []string
	// Published is called with each published pool, or with an allocation of it; nil for nothing.
	Published func(p *ipam.Pool, al *ipam.Allocation, at int64, gone bool)
	// Services are the Services with addresses.
	Services map[ipam.Key]*ipam.Service
	// Machines are the UIDs that MachineChanged was called with.
	Machines []string

	// Pods are the UIDs that DevicesChanged was called with.
	Pods []string
	// Misdirected are the addresses that EndpointsChanged was called with.
	Misdirected []netip.Addr

	t         testing.TB
	name      string // of the IPAM
	objects   *ipam.Objects
	listed    map[ipam.Kind]map[ipam.Key]*ipam.Object
	used      bool
	published int
	running   map[string]netip.Addr // the addresses of pods by UID

	pools       map[string]*ipam.Pool
	unread      map[ipam.Kind]*ipam.Pool
	allocations map[string]ipam.Allocation
	times       map[string]int64
}

// New returns a cluster in which kinds are installed, with no objects.
func New(t testing.TB, m *ipam.IPAM, kinds ...ipam.Kind) *Cluster {
	c := &Cluster{
		t: t, name: m.Name, listed: make(map[ipam.Kind]map[ipam.Key]*ipam.Object),
		pools: make(map[string]*ipam.Pool), unread: make(map[ipam.Kind]*ipam.Pool), allocations: make(map[string]ipam.Allocation), times: make(map[string]int64), running: make(map[string]netip.Addr),
	}
	c.objects = m.Objects(c)
	for _, r := range c.objects.Resources {
		r.Decided, r.Followed = true, slices.Contains(kinds, r.Kind)
		c.listed[r.Kind] = make(map[ipam.Key]*ipam.Object)
		c.Settle()
	}
	return c
}

// Settle does what follows a change of the state of a resource.
func (c *Cluster) Settle() {
	if c.objects.Settle != nil {
		c.objects.Settle()
	}
}

// ServerFlags sets the flags of API servers with the range of cluster IPs.
func (c *Cluster) ServerFlags(values ...string) { c.objects.ServerFlags(values) }

// Endpoints returns the endpoints with an address, those among them for pods that do not have it, and whether they are known.
func (c *Cluster) Endpoints(a netip.Addr) (all, former []ipam.Endpoint, known bool) {
	return c.objects.Endpoints(a)
}

// SetPod sets the address of a pod, given by its UID; an invalid one if it does not run.
func (c *Cluster) SetPod(uid string, a netip.Addr) {
	was := c.running[uid]
	c.running[uid] = a
	c.objects.PodsChanged(slices.DeleteFunc([]netip.Addr{was, a}, func(a netip.Addr) bool { return !a.IsValid() }))
}

// PodHas implements ipam.Publisher.
func (c *Cluster) PodHas(uid string, a netip.Addr) bool { return c.running[uid] == a }

// EndpointsChanged implements ipam.Publisher.
func (c *Cluster) EndpointsChanged(a netip.Addr) { c.Misdirected = append(c.Misdirected, a) }

// Check looks for inconsistencies that count only if they last.
func (c *Cluster) Check() {
	if c.objects.Check != nil {
		c.objects.Check()
	}
}

// Resource returns the resource of a kind.
func (c *Cluster) Resource(k ipam.Kind) *ipam.Resource {
	c.t.Helper()
	i := slices.IndexFunc(c.objects.Resources, func(r *ipam.Resource) bool { return r.Kind == k })
	if i < 0 {
		c.t.Fatalf("%s does not read %s", c.name, k)
	}
	return c.objects.Resources[i]
}

// Apply creates or changes an object, given as YAML.
func (c *Cluster) Apply(k ipam.Kind, text string) {
	c.t.Helper()
	var o struct {
		Metadata struct {
			Namespace, Name string
			Created         string `yaml:"creationTimestamp"`
			Deleted         string `yaml:"deletionTimestamp"`
			Labels          map[string]string
		}
		Spec, Status, Endpoints any
		Namespace               string
	}
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		c.t.Fatal(err)
	}
	object := &ipam.Object{
		Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Labels: o.Metadata.Labels, Spec: c.encode(o.Spec), Status: c.encode(o.Status),
		Endpoints: c.encode(o.Endpoints), EndpointsNamespace: o.Namespace, Deleted: o.Metadata.Deleted != "",
	}
	if o.Metadata.Created != "" {
		at, err := time.Parse(time.RFC3339, o.Metadata.Created)
		if err != nil {
			c.t.Fatal(err)
		}
		object.Created = at
	}
	store := c.Resource(k).Store
	c.listed[k][object.Key()] = object
	store.Put(store.Reduce(object))
}

func (c *Cluster) encode(part any) json.RawMessage {
	c.t.Helper()
	if part == nil {
		return nil
	}
	raw, err := json.Marshal(part)
	if err != nil {
		c.t.Fatal(err)
	}
	return raw
}

// Remove deletes an object.
func (c *Cluster) Remove(k ipam.Kind, at ipam.Key) {
	c.t.Helper()
	if c.listed[k][at] == nil {
		c.t.Fatalf("%s %v does not exist", k, at)
	}
	store := c.Resource(k).Store
	store.Drop(store.Reduce(c.listed[k][at]))
	delete(c.listed[k], at)
}

// List lists all objects of a kind again.
func (c *Cluster) List(k ipam.Kind) {
	c.t.Helper()
	store := c.Resource(k).Store
	var reduced []any
	for _, o := range c.listed[k] {
		reduced = append(reduced, store.Reduce(o))
	}
	store.Replace(reduced, func() {})
}

// Changes returns the number of published changes since the last call.
func (c *Cluster) Changes() int {
	n := c.published
	c.published = 0
	return n
}

// Allocated reports whether an address at a location is allocated from a pool.
func (c *Cluster) Allocated(pool, address, location string) bool {
	_, allocated := c.allocations[pool+" "+address+" "+location]
	return allocated
}

// Allocation returns the allocation of an address at a location from a pool.
func (c *Cluster) Allocation(pool, address, location string) ipam.Allocation {
	return c.allocations[pool+" "+address+" "+location]
}

// AllocatedAt returns when an address at a location was allocated.
func (c *Cluster) AllocatedAt(pool, address, location string) time.Time {
	return time.Unix(0, c.times[pool+" "+address+" "+location])
}

// Want checks what is published, one line each: pools as IPAM NAME STATE RANGES, first those
// that stand for objects, and allocations as ADDRESS OWNER at LOCATION.
func (c *Cluster) Want(what, want string) {
	c.t.Helper()
	var lines []string
	for _, p := range c.unread {
		lines = append(lines, DescribePool(p))
	}
	slices.Sort(lines)
	for _, name := range c.Pools() {
		lines = append(lines, DescribePool(c.pools[name]))
	}
	for _, at := range slices.Sorted(maps.Keys(c.allocations)) {
		al := c.allocations[at]
		lines = append(lines, DescribeAllocation(&al))
	}
	if got, want := strings.Join(lines, "\n"), strings.TrimSpace(want); got != want {
		c.t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}

// DescribePool returns a pool in one line.
func DescribePool(p *ipam.Pool) string {
	words := []string{p.IPAM, p.Name, [...]string{"", "known", "reading", "missing", "unreadable", "stale"}[p.State]}
	if p.Partial {
		words = append(words, "partial")
	}
	for _, r := range slices.Concat(p.Ranges, p.Divided) {
		words = append(words, r.First.String()+"-"+r.Last.String())
	}
	text := strings.Join(words, " ")
	if p.Problem != "" {
		text += ": " + p.Problem
	}
	return text
}

// DescribeAllocation returns an allocation in one line.
func DescribeAllocation(al *ipam.Allocation) string {
	words := []string{al.Address.String(), al.Purpose, al.Namespace + "/" + al.Pod, al.ContainerID, al.Interface, al.Node, "at", al.Location}
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" || word == "/" }), " ")
}

// Put implements ipam.Publisher.
func (c *Cluster) Put(p ipam.Pool, problem string, unreadable bool) {
	p.State = c.State()
	if unreadable {
		p.State = ipam.Unreadable
	}
	c.put(p, problem)
}

// Lose implements ipam.Publisher.
func (c *Cluster) Lose(p ipam.Pool, problem string) {
	p.State = ipam.Missing
	c.put(p, problem)
}

func (c *Cluster) put(p ipam.Pool, problem string) {
	p.IPAM, p.Problem, p.Partial = c.name, problem, ipam.Partial(maps.Values(c.unread))
	if was := c.pools[p.Name]; was == nil || !reflect.DeepEqual(*was, p) {
		c.pools[p.Name] = &p
		c.publish(&p, nil, 0, false)
	}
}

// publish counts a change and passes it on.
func (c *Cluster) publish(p *ipam.Pool, al *ipam.Allocation, at int64, gone bool) {
	if c.published++; c.Published != nil {
		c.Published(p, al, at, gone)
	}
}

// Unread implements ipam.Publisher.
func (c *Cluster) Unread(k ipam.Kind, allocates bool, problem string) {
	if was := c.unread[k]; problem == "" {
		if was == nil {
			return
		}
		delete(c.unread, k)
		c.publish(was, nil, 0, true)
	} else {
		c.unread[k] = ipam.UnreadPool(c.name, k, allocates, problem)
		c.publish(c.unread[k], nil, 0, false)
	}
	for _, p := range c.pools {
		c.put(*p, p.Problem)
	}
}

// Problems returns what is wrong with objects, sorted.
func (c *Cluster) Problems() (all []string) {
	for _, pools := range []iter.Seq[*ipam.Pool]{maps.Values(c.pools), maps.Values(c.unread)} {
		for p := range pools {
			if p.Problem != "" {
				all = append(all, p.Problem)
			}
		}
	}
	slices.Sort(all)
	return all
}

// Drop implements ipam.Publisher.
func (c *Cluster) Drop(name string) {
	if c.pools[name] == nil {
		return
	}
	for at := range c.allocations {
		if strings.HasPrefix(at, name+" ") {
			c.t.Errorf("pool %s was withdrawn before its allocation %s", name, at)
		}
	}
	c.publish(c.pools[name], nil, 0, true)
	delete(c.pools, name)
}

// Allocate implements ipam.Publisher.
func (c *Cluster) Allocate(pool string, al ipam.Allocation, at int64) {
	if c.pools[pool] == nil {
		return
	}
	key := pool + " " + al.Address.String() + " " + al.Location
	c.allocations[key], c.times[key] = al, at
	c.publish(c.pools[pool], &al, at, false)
}

// Release implements ipam.Publisher.
func (c *Cluster) Release(pool string, al ipam.Allocation) {
	if c.pools[pool] == nil {
		return
	}
	key := pool + " " + al.Address.String() + " " + al.Location
	if _, known := c.allocations[key]; !known {
		c.t.Errorf("%s was withdrawn but never published", key)
	}
	delete(c.allocations, key)
	c.publish(c.pools[pool], &al, 0, true)
}

// Use implements ipam.Publisher.
func (c *Cluster) Use() {
	if c.used {
		return
	}
	c.used = true
	for _, p := range c.pools {
		if p.State == ipam.Reading {
			p.State = ipam.Known
			c.publish(p, nil, 0, false)
		}
	}
}

// Pool implements ipam.Publisher.
func (c *Cluster) Pool(name string) *ipam.Pool { return c.pools[name] }

// Pools implements ipam.Publisher.
func (c *Cluster) Pools() []string { return slices.Sorted(maps.Keys(c.pools)) }

// State implements ipam.Publisher.
func (c *Cluster) State() ipam.State {
	if c.used {
		return ipam.Known
	}
	return ipam.Reading
}

// Service implements ipam.Publisher.
func (c *Cluster) Service(at ipam.Key) *ipam.Service { return c.Services[at] }

// DevicesChanged implements ipam.Publisher.
func (c *Cluster) DevicesChanged(uid string) { c.Pods = append(c.Pods, uid) }

// Devices returns the addresses of the devices of a pod.
func (c *Cluster) Devices(uid string) []ipam.DeviceAddress { return c.objects.Devices(uid) }

// MachineChanged implements ipam.Publisher.
func (c *Cluster) MachineChanged(pods []string) int64 {
	c.Machines = append(c.Machines, pods...)
	return 0
}

// DefinitionChanged implements ipam.Publisher.
func (c *Cluster) DefinitionChanged(ipam.Key) {}

// Machine returns the state of a virtual machine.
func (c *Cluster) Machine(at ipam.Key) *ipam.Machine { return c.objects.Machine(at) }

// SetService sets the addresses of the load balancer of a Service.
func (c *Cluster) SetService(at ipam.Key, addresses ...netip.Addr) {
	s := &ipam.Service{Namespace: at.Namespace, Name: at.Name}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, ipam.ServiceAddress{Addr: a, Field: ipam.Ingress})
	}
	c.PutService(s)
}

// PutService creates or replaces a Service.
func (c *Cluster) PutService(s *ipam.Service) {
	if c.Services == nil {
		c.Services = make(map[ipam.Key]*ipam.Service)
	}
	at := ipam.Key{Namespace: s.Namespace, Name: s.Name}
	c.Services[at] = s
	c.objects.ServiceChanged(at)
}

// HasNode implements ipam.Publisher.
func (c *Cluster) HasNode(name string) (has, known bool) {
	return slices.Contains(c.Nodes, name), c.Nodes != nil
}
