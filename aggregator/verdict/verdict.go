// Package verdict is the mind of ipwitness: it decides who holds an address, in
// which scope holders must not meet, and when two of them are a conflict.
//
// It is pure. A Case with all that is known of one address comes in; owners, conflicts, reasons
// and the time to judge again come out. It does no I/O, keeps no state and starts nothing.
// The order of claims never matters. A judgement costs as much as the address
// has claims, however many other addresses there are.
//
// Reasons are typed: a rule or the kind of a fact, and values. No text for people is made here;
// package explain has all of it.
package verdict

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strings"
	"time"
)

// The rules that make a conflict.
const (
	RuleAssignedTwice      = "assigned-twice"
	RuleAssignedAndWire    = "assigned-and-wire"
	RuleExternalsAlternate = "externals-alternate"
	RuleDADFailed          = "dad-failed"
	RuleSamePod            = "same-pod"
	RuleSameVM             = "same-vm"
	RuleSplitBrain         = "split-brain"
)

// The rules that keep something from being one.
const (
	RuleLoopbackOrDummy = "loopback-or-dummy"
	RulePrivateLink     = "private-link"
	RuleLinkLocal       = "link-local"
	RuleOneNamespace    = "one-namespace"
	RuleDifferentLinks  = "different-links"
	RuleWeakSource      = "weak-source"
	RuleBelieved        = "believed"
	RuleDeclaredShared  = "declared-shared"
	RuleNodeMAC         = "node-mac"
	RuleGuest           = "guest"
	RuleReachableVia    = "reachable-via"
	RuleStale           = "stale"
	RuleMACChanged      = "mac-changed"
	RuleNodeUnheard     = "node-unheard"
	RuleOneOwner        = "one-owner"
	RuleWiderScope      = "wider-scope"
	RuleHandedOver      = "handed-over"
	RuleAddressSpoofed  = "address-spoofed"
	RuleMACCloned       = "mac-cloned"
)

// The rules that say where an address is compared.
const (
	RuleInNetwork = "in-network"
	RuleOnNode    = "on-node"
	RuleOnLink    = "on-link"
)

// The causes of conflicts.
const (
	// CauseUnknown is the cause of a conflict that no diagnosis names.
	CauseUnknown = "unknown"
	// CauseSplitBrain is that of an address that several nodes of one link hold
	// themselves for longer than it takes to hand it over.
	CauseSplitBrain = "split-brain"
	// CauseOrphanedSandbox is that of an address that a sandbox still has whose pod
	// is no more.
	CauseOrphanedSandbox = "orphaned-sandbox"
	// CauseIPAMStateLost is that of an address that IPAM gave to one and forgot, so
	// that it gave it to another one.
	CauseIPAMStateLost = "ipam-state-lost"
	// CauseIPAMBookedElsewhere is that of an address that IPAM had for another node or
	// pod than the one that held it, and freed with that.
	CauseIPAMBookedElsewhere = "ipam-booked-elsewhere"
	// CausePodCIDROverlap is that of two nodes that give pods addresses of one range.
	CausePodCIDROverlap = "pod-cidr-overlap"
	// CauseOverlappingNetworks is that of two networks of one node with one range.
	CauseOverlappingNetworks = "overlapping-networks"
	// CauseStaticAddress is that of an address that somebody set by hand inside a
	// network whose IPAM gave it to another one.
	CauseStaticAddress = "static-address"
	// CauseTunnelAddress is that of an address of a node's own tunnel or bridge device
	// that a pod has, too.
	CauseTunnelAddress = "tunnel-address"
	// CauseExternalDevice is that of an address that a device outside has taken.
	CauseExternalDevice = "external-device"
)

const (
	// AlternateWithin is how soon A must come back after B to count as A-B-A.
	AlternateWithin = 10 * time.Second
	// askEvery is how often a node is asked again that has not read again.
	askEvery = time.Second
)

// ID is the id of a conflict: the same wherever and whenever it is computed.
func ID(cluster string, kind ScopeKind, scope string, address netip.Addr) string {
	return hashed(cluster, kind.String(), scope, address.Unmap().String())
}

// hashed is an id: a hash of its parts.
func hashed(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil))[:16])
}
