package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Kind is a kind of custom resource.
type Kind struct{ Group, Version, Resource, Name string }

// String returns the name of the resource as kubectl and RBAC use it.
func (k Kind) String() string { return k.Resource + "." + k.Group }

// In returns the kind in another version.
func (k Kind) In(version string) Kind {
	k.Version = version
	return k
}

// Kinds returns all kinds of custom resources that the IPAM is read from, with alternatives and older versions.
func (m *IPAM) Kinds() (kinds []Kind) {
	if m.Objects == nil {
		return nil
	}
	for _, r := range m.Objects(nil).Resources {
		if kinds = append(kinds, r.Kind); r.Alternative != (Kind{}) {
			kinds = append(kinds, r.Alternative)
		}
		if r.Older != "" {
			kinds = append(kinds, r.Kind.In(r.Older))
		}
	}
	return kinds
}

// Objects are the custom resources that an IPAM is read from.
type Objects struct {
	Resources []*Resource
	// Settle is called after the state of a resource changed; nil if nothing has to be done.
	Settle func()
	// ServiceChanged is called after the addresses of a Service changed; nil if nothing has to be done.
	ServiceChanged func(at Key)
	// ServerFlags is called with the values of the flag --service-cluster-ip-range of API servers that run as pods, when
	// they change; nil if nothing has to be done.
	ServerFlags func(values []string)
	// Machine returns the state of a virtual machine; nil if it is not known. It is nil for IPAMs that
	// know no virtual machines.
	Machine func(at Key) *Machine
	// Devices returns the addresses of the devices of a pod, given by its UID. It is nil for IPAMs that know no devices.
	Devices func(uid string) []DeviceAddress
	// Endpoints returns the endpoints with an address that get packets, and in order those among them for pods that do not
	// have the address according to the API, unless another endpoint of their Service may rightly have it; and whether all
	// are known. It is nil for IPAMs that know no endpoints.
	Endpoints func(a netip.Addr) (all, former []Endpoint, known bool)
	// PodsChanged is called after pods with these addresses have changed, and with none once all pods are known; nil if
	// nothing has to be done.
	PodsChanged func(addresses []netip.Addr)
	// Definition returns a NetworkAttachmentDefinition; nil if it is not known. It is nil for IPAMs that
	// read no definitions.
	Definition func(at Key) *Definition
	// Check looks at intervals for inconsistencies that count only if they last; nil if there are
	// none to look for.
	Check func()
}

// A Machine is a virtual machine that pods run.
type Machine struct {
	// Node is the name of the node that it runs on.
	Node string
	// Pods are the UIDs of the pods that run it: two while it is migrated.
	Pods []string
	// Migrating is set while it is migrated. Node is then the node that it leaves.
	Migrating bool
	// Since is when the aggregator learned of this state, in nanoseconds since the Unix epoch.
	Since int64
}

// A DeviceAddress is an address of a network device that was allocated to a pod, and its interface in the pod.
type DeviceAddress struct {
	Address   netip.Addr
	Interface string
}

// A Definition is a NetworkAttachmentDefinition, which configures the network of further interfaces
// of pods.
type Definition struct {
	// Name is the name of the CNI network, and Plugin is the type of its first plugin.
	Name, Plugin string
	// IPAM is the type of the IPAM that the configuration names; empty if it names none.
	IPAM string
}

// A Resource is a custom resource that an IPAM is read from.
type Resource struct {
	Kind Kind
	// Alternative is the same kind in another group, which is read if the group of Kind is not
	// served at all; zero if there is none.
	Alternative Kind
	// Older is a version of Kind that is read if that of Kind is not served; empty if there is none. An API server that serves
	// both may lose fields of objects in the older one.
	Older string
	Role  Role
	// Lost says what is unknown without the resource.
	Lost string
	// Store holds what is read.
	Store Store
	// Decided is set while the contents of the resource are known, or cannot be known. Followed is
	// set while they are known and changes arrive. The driver sets both.
	Decided, Followed bool
}

// A Role is what the records of an IPAM need a resource for.
type Role uint8

// The roles of resources.
const (
	Used   Role = iota // it has a part of the records, if it is installed
	Needed             // nothing is known of the IPAM without it
	Extra              // the records are known without it
)

// A Publisher publishes the pools and allocations of one IPAM.
type Publisher interface {
	// Put publishes a pool, new or changed. The publisher sets its IPAM, State and Problem. problem
	// describes an inconsistency; unreadable is set if the pool cannot be read because of it.
	Put(p Pool, problem string, unreadable bool)
	// Lose publishes a pool whose records are gone although addresses are still allocated from it:
	// the IPAM will consider all of them free. The caller releases the allocations first.
	Lose(p Pool, problem string)
	// Unread publishes the problem of objects of a kind that cannot be read, so that their pools are not
	// known; empty if there are none any more. allocates is set if they may have the only record of an address.
	Unread(k Kind, allocates bool, problem string)
	// Drop withdraws a pool. The caller releases its allocations first.
	Drop(name string)
	// Allocate publishes an allocation of a pool, new or changed. at is when the address was
	// allocated, in nanoseconds since the Unix epoch; 0 if it is not known. Allocations of unknown
	// pools are ignored.
	Allocate(pool string, al Allocation, at int64)
	// Release withdraws an allocation.
	Release(pool string, al Allocation)
	// Use records that the IPAM has allocated something. An IPAM that is merely installed may not be
	// the one that allocates addresses.
	Use()
	// Pool returns a published pool; nil if there is none with that name. Pools returns the names of
	// all published pools, sorted.
	Pool(name string) *Pool
	Pools() []string
	// State returns the state of the pools whose records are readable.
	State() State
	// Service returns a Service; nil if there is none with that key, or if it has no addresses.
	Service(at Key) *Service
	// MachineChanged records that the virtual machine of some pods, given by their UIDs, has another
	// state, and returns the time.
	MachineChanged(pods []string) (at int64)
	// DevicesChanged records that the devices of a pod, given by its UID, have changed.
	DevicesChanged(uid string)
	// DefinitionChanged records that a NetworkAttachmentDefinition has changed.
	DefinitionChanged(at Key)
	// PodHas reports whether a pod, given by its UID, has not ended and has an address, or whether that is not known yet.
	PodHas(uid string, a netip.Addr) bool
	// EndpointsChanged records that other endpoints with an address are for pods that do not have it.
	EndpointsChanged(a netip.Addr)
	// HasNode reports whether the cluster has a node with a name. known is false if the nodes of the
	// cluster are not known.
	HasNode(name string) (has, known bool)
}

// Publish publishes a pool that is read from an object. One that is unreadable keeps what was last
// published of it.
func Publish(p Publisher, next Pool, problem string, unreadable bool) {
	if last := p.Pool(next.Name); unreadable && last != nil {
		next = *last
	}
	p.Put(next, problem, unreadable)
}

// A ListedPool is the record of an object that is a pool and lists its allocations, in the order of a function
// compare. Its Problem describes an inconsistency; Bad is set if the object cannot be read because of it.
type ListedPool[E comparable] struct {
	Pool
	Entries []E
	Bad     bool
}

// PublishListed publishes the change of an object that lists its allocations. One that cannot be read keeps
// them, because that does not prove that they are gone.
func PublishListed[E comparable](p Publisher, before, after *ListedPool[E], compare func(a, b *E) int, allocation func(pool string, e *E) Allocation) {
	var was, is []E
	var name string
	if before != nil {
		name, was = before.Name, before.Entries
	}
	if after != nil {
		if name = after.Name; after.Bad {
			after.Entries = was
		}
		Publish(p, after.Pool, after.Problem, after.Bad)
		is = after.Entries
	}
	if len(is) > 0 {
		p.Use()
	}
	Differences(was, is, compare, func(e *E) { p.Allocate(name, allocation(name, e), 0) }, func(e *E) { p.Release(name, allocation(name, e)) })
	if after == nil {
		p.Drop(name)
	}
}

// A Record is an allocation of a pool, with the time at which the address was allocated, in nanoseconds since the
// Unix epoch; 0 if it is not known.
type Record struct {
	Pool string
	Allocation
	At int64
}

// Move publishes what an object allocates: allocations that are new or changed, and then the end of those before that
// it has no longer. So an address whose allocation only moved was never free.
func Move(p Publisher, before, after []Record) {
	for _, r := range after {
		if !slices.Contains(before, r) {
			p.Allocate(r.Pool, r.Allocation, r.At)
		}
	}
	for _, r := range before {
		if !slices.ContainsFunc(after, func(now Record) bool {
			return now.Pool == r.Pool && now.Address == r.Address && now.Location == r.Location
		}) {
			p.Release(r.Pool, r.Allocation)
		}
	}
}

// An Object is a custom resource. Readers decode the parts that they use, so that one malformed
// object does not break the listing.
type Object struct {
	Namespace, Name string
	Version         string
	Created         time.Time
	Deleted         bool // it is being deleted
	Labels          map[string]string
	Spec, Status    json.RawMessage
	// Endpoints and EndpointsNamespace are the fields of a CiliumEndpointSlice, which has no spec. Endpoints and AddressType
	// are those of an EndpointSlice of Kubernetes.
	Endpoints                       json.RawMessage
	EndpointsNamespace, AddressType string
}

// Key returns the key of the object.
func (o *Object) Key() Key { return Key{o.Namespace, o.Name} }

// Decode decodes the spec, and the status if there is one; nil for a part that is not needed.
func (o *Object) Decode(spec, status any) error {
	if spec != nil {
		if err := Part(o.Spec, "spec", spec); err != nil {
			return err
		}
	}
	if status == nil || len(o.Status) == 0 {
		return nil
	}
	return Part(o.Status, "status", status)
}

// Invalid returns the problem of an object of a kind. what says what is wrong with it.
func (o *Object) Invalid(kind, what string) string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return kind + " " + name + " is invalid: " + Shorten(what)
}

// Part decodes one part of an object. name identifies the part in the error.
func Part(raw json.RawMessage, name string, into any) error {
	if len(raw) == 0 {
		return fmt.Errorf("it has no %s", name)
	}
	err := json.Unmarshal(raw, into)
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		return fmt.Errorf("its %s has an unexpected format: /%s is a JSON %s", name, strings.ReplaceAll(mismatch.Field, ".", "/"), mismatch.Value)
	}
	if err != nil {
		return fmt.Errorf("its %s has an unexpected format: %w", name, err)
	}
	return nil
}
