package ipam

import (
	"strings"
	"time"
)

// An IPAM is everything that ipwitness knows about one IPAM. Fields that are nil do not apply.
type IPAM struct {
	// Name identifies the IPAM in the API and in metrics, such as "host-local". Title is its name
	// in sentences, such as "Calico".
	Name, Title string
	Traits
	// PoolKind is the kind of the objects that pools are named after; empty if there are none.
	PoolKind string
	// Pooled returns the name of a pool in a sentence, for an IPAM that needs more than PoolKind says; nil for others. node
	// is the node that the pool belongs to; empty for a pool of the cluster.
	Pooled func(p *Pool, node string) string
	// Objects returns the custom resources that the IPAM is read from, with new, empty stores. It
	// uses the publisher only once something is read.
	Objects func(Publisher) *Objects
	// Files returns a source that reads the IPAM's files on a node. It reads nothing yet.
	Files func(host Host, cfg FilesConfig) FileSource
	// NodeName returns a reader of the name that the IPAM has for a node, for an IPAM with names of
	// its own.
	NodeName func(host Host, cfg FilesConfig) NameReader
	// PodDevice is the name of the device on each node through which the node reaches the pods, for an
	// IPAM with a device that only its name tells apart; empty for others.
	PodDevice string
	Repair
}

// PoolTitle returns the name of a pool in a sentence, such as "Calico (IPPool default)". node is the node that the pool
// belongs to; empty for a pool of the cluster.
func (m *IPAM) PoolTitle(p *Pool, node string) string {
	title, name := m.Title, p.Name
	switch {
	case m.Pooled != nil:
		return m.Pooled(p, node)
	case m.PoolKind != "" && node != "":
		return title + " on node " + node // the object is that of the node
	case m.PoolKind != "" && !strings.Contains(name, " "): // others begin with their kind
		name = m.PoolKind + " " + name
	case m.Files == nil && m.PoolKind == "" && p.Services == "":
		return title // it has only one
	case node != "":
		title += " on node " + node
	}
	return title + " (" + name + ")"
}

// Traits are what distinguishes the records of one IPAM from those of others.
type Traits struct {
	// Mirrored is set if the records are copies that the IPAM writes for others and does not read.
	// A wrong record then does not lead to a duplicate.
	Mirrored bool
	// StartDelay is how long an owner may have an address before its missing record is reported, for
	// an IPAM that writes records late. EndDelay is the same for records that are written or removed
	// at the end of an owner. Both count from when the difference is first seen; 0 means the usual
	// time.
	StartDelay, EndDelay time.Duration
	// Secondary is set if the addresses are for additional interfaces of pods, so that they only
	// have to be unique on their link.
	Secondary bool
	// Status is set if the records are not an IPAM's, but what pods have according to the API.
	Status bool
	// Assigns is set if the records are not allocations, but say which node a controller wants to hold
	// a virtual address. Assignments publishes them.
	Assigns bool
	// Leases is set if the records are those of a DHCP server. They name hardware addresses, which
	// may be those of machines without an agent, and stay when their holders are switched off.
	Leases bool
	// Client is set if the records are not those of a DHCP server, but leases that a node itself has got.
	Client bool
	// OwnNamespaces is set if the IPAM allocates addresses to network namespaces of its own, which
	// belong to no pod.
	OwnNamespaces bool
	// Engine is set if the IPAM is that of a container engine, whose containers belong to no pod.
	Engine bool
	// NamesNodes is set if the IPAM has names of its own for nodes. NodePools is set if its pools of the
	// cluster are those from which one node each allocates. Package registry sets both by what the IPAM has.
	NamesNodes, NodePools bool
}
