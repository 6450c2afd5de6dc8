// Package verdict decides who holds an address, in which scope an address must be unique, and when
// two owners are a conflict.
//
// It is pure. Its input is a Case, which contains all that is known about one address. Its output
// is a Judgement: owners, conflicts, reasons and the time to judge again. The package does no I/O,
// keeps no state and starts no goroutine. The order of claims never matters. The cost of a
// judgement depends on the number of claims to the address and not on the number of other
// addresses.
//
// Reasons are typed: a rule or the kind of a fact, and values. This package makes no text for
// people; package explain does.
package verdict

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"
	"time"
)

// The rules by which owners are in conflict.
const (
	RuleAssignedTwice      = "assigned-twice"
	RuleAssignedAndWire    = "assigned-and-wire"
	RuleExternalsAlternate = "externals-alternate"
	RuleDADFailed          = "dad-failed"
	RuleSamePod            = "same-pod"
	RuleSameVM             = "same-vm"
	RuleSplitBrain         = "split-brain"
)

// The rules by which owners or claims are not in conflict.
const (
	RuleLoopbackOrDummy  = "loopback-or-dummy"
	RulePrivateLink      = "private-link"
	RuleLinkLocal        = "link-local"
	RuleOneNamespace     = "one-namespace"
	RuleDifferentLinks   = "different-links"
	RuleWeakSource       = "weak-source"
	RuleBelieved         = "believed"
	RuleDeclaredShared   = "declared-shared"
	RuleNodeMAC          = "node-mac"
	RuleGuest            = "guest"
	RuleReachableVia     = "reachable-via"
	RuleStale            = "stale"
	RuleMACChanged       = "mac-changed"
	RuleNodeDisconnected = "node-disconnected"
	RuleOneOwner         = "one-owner"
	RuleWiderScope       = "wider-scope"
	RuleAnycastGateway   = "anycast-gateway"
	RulePassthru         = "passthru"
	RuleNoCarrier        = "no-carrier"
	RuleLoadShared       = "load-shared"
	RuleAddressSpoofed   = "address-spoofed"
	RuleMACCloned        = "mac-cloned"
	RuleService          = "service"
)

// The rules that determine where an address is compared.
const (
	RuleInNetwork = "in-network"
	RuleOnNode    = "on-node"
	RuleOnLink    = "on-link"
)

// The causes of conflicts.
const (
	// CauseUnknown: no known cause fits.
	CauseUnknown = "unknown"
	// CauseSplitBrain: several nodes on one link have an address that moves between them for longer
	// than a hand-over takes.
	CauseSplitBrain = "split-brain"
	// CauseLeftoverNamespace: a network namespace without processes has the address of a workload that
	// runs.
	CauseLeftoverNamespace = "leftover-namespace"
	// CauseTakenAlong: a pod took the address along with a device of its node.
	CauseTakenAlong = "address-taken-along"
	// CauseDHCPClientIdentity: a DHCP server takes several owners for one client.
	CauseDHCPClientIdentity = "dhcp-client-identity"
	// CauseTwoDHCPServers: DHCP servers have leased the address, each to another owner.
	CauseTwoDHCPServers = "two-dhcp-servers"
	// CauseClonedMachine: a copy of a machine or container has its address and its hardware address.
	CauseClonedMachine = "cloned-machine"
	// CauseOrphanedSandbox: a sandbox has the address although its pod no longer exists.
	CauseOrphanedSandbox = "orphaned-sandbox"
	// CauseReplacedNamespace: a container got a new network namespace, and its previous one still has
	// the address.
	CauseReplacedNamespace = "replaced-namespace"
	// CauseIPAMStateLost: IPAM lost the record of an allocation and allocated the address again.
	CauseIPAMStateLost = "ipam-state-lost"
	// CauseIPAMAllocatedTwice: IPAM has a record of the address for several owners.
	CauseIPAMAllocatedTwice = "ipam-allocated-twice"
	// CauseIPAMBookedElsewhere: IPAM had recorded the address for a node or pod other than the
	// owner, and freed it together with that node or pod.
	CauseIPAMBookedElsewhere = "ipam-booked-elsewhere"
	// CausePodCIDROverlap: two nodes give their pods addresses from overlapping ranges.
	CausePodCIDROverlap = "pod-cidr-overlap"
	// CauseOverlappingNetworks: two networks that meet have overlapping ranges.
	CauseOverlappingNetworks = "overlapping-networks"
	// CauseStaticAddress: the address was configured by hand, although it belongs to a network
	// whose IPAM allocated it to another owner.
	CauseStaticAddress = "static-address"
	// CauseTunnelAddress: a pod has the address of a tunnel or bridge device of a node.
	CauseTunnelAddress = "tunnel-address"
	// CauseExternalDevice: a device outside of the cluster uses the address.
	CauseExternalDevice = "external-device"
)

const (
	// AlternateWithin is the longest time between two frames of one owner for which a frame of
	// another owner between them counts as alternation.
	AlternateWithin = 10 * time.Second
	// checkInterval is the interval at which a node is asked again to read an address.
	checkInterval = time.Second
	// awaitInterval is the interval at which an address is judged that waits for nodes to report after a start.
	awaitInterval = 100 * time.Millisecond
)

// ID returns the ID of a conflict. Equal arguments always give the same ID.
func ID(cluster string, kind ScopeKind, scope string, address netip.Addr) string {
	return hashID(cluster, kind.String(), scope, address.Unmap().String())
}

// hashID returns an ID: a hash of its parts.
func hashID(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil))[:16])
}
