package kernel

import (
	"errors"
	"maps"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// discover adds a namespace that was assigned an nsid.
func (k *Mirror) discover(nsid int32, now time.Time) *namespace {
	k.nextID++
	k.nextGen++
	ns := &namespace{id: k.nextID, gen: k.nextGen, nsid: nsid, first: now, links: map[int32]*link{}}
	k.byNSID[nsid] = ns
	if err := k.load(ns, now); err != nil {
		k.fail(ns, err, now)
		return nil
	}
	if ns.inode == 0 {
		k.Unnamed()
	}
	return ns
}

// renew checks which namespace has the nsid of a mirrored one now. The kernel frees an nsid
// before it reports that (unhash_nsid in net/core/net_namespace.c). So the RTM_NEWNSID of the
// next namespace with that nsid may come before the RTM_DELNSID of the previous one, and
// neither message identifies the namespace that has it now.
func (k *Mirror) renew(ns *namespace, now time.Time) {
	links, err := k.req.Links(ns.nsid)
	if err != nil {
		k.fail(ns, err, now)
		return
	}
	for _, l := range links {
		// Indexes of our own interfaces are not reused, so its peer identifies a veth.
		if old, ok := ns.links[l.Index]; ok && l.Flags&unix.IFF_LOOPBACK == 0 &&
			old.MAC == l.MAC && old.Kind == l.Kind && old.Lower == l.Lower && old.LowerNSID == l.LowerNSID {
			if err := k.load(ns, now); err != nil {
				k.fail(ns, err, now)
			}
			return
		}
	}
	k.end(ns, now)
	k.discover(ns.nsid, now)
}

// end records the end of a namespace. Everything in it ends without messages.
func (k *Mirror) end(ns *namespace, now time.Time) {
	delete(k.byNSID, ns.nsid)
	if ns.inode != 0 && k.inodes[ns.inode] == ns {
		delete(k.inodes, ns.inode)
		delete(k.names, ns.inode)
		delete(k.networks, ns.inode)
		delete(k.intended, ns.inode)
		k.reusable[ns.inode] = true
	}
	k.retract(ns, now)
	for _, l := range ns.links {
		l.gone, k.linksEnded = true, true
		k.part(l)
	}
	k.Unnamed() // another namespace may have its inode
}

// fail handles an error of a request about a namespace.
func (k *Mirror) fail(ns *namespace, err error, now time.Time) {
	switch {
	case ns == nil || errors.Is(err, unix.ENODEV):
	case errors.Is(err, rtnetlink.ErrNamespaceGone):
		if k.byNSID[ns.nsid] == ns {
			k.end(ns, now)
		}
	default:
		k.log.Warn("cannot read network namespace", "nsid", ns.nsid, "error", err)
		k.Incomplete()
	}
}

// Adopt records the inode of the namespace with an nsid. assigned means that the nsid is new,
// so that its RTM_NEWNSID is still expected. unprivileged means that the namespace belongs to a user
// namespace other than ours, as those of rootless containers.
func (k *Mirror) Adopt(nsid int32, inode uint64, assigned, unprivileged bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if nsid == k.ownNSID {
		return
	}
	now := time.Now()
	k.table.Update(func() {
		ns, known := k.byNSID[nsid]
		if known && ns.inode == inode {
			return
		}
		if known && ns.inode != 0 {
			k.end(ns, now) // the end of the previous namespace with this nsid has not been reported yet
			known = false
		}
		if !known {
			if ns = k.discover(nsid, now); ns == nil {
				return
			}
			ns.awaitsNewNSID = assigned
		}
		ns.inode, ns.unprivileged, k.rewired = inode, unprivileged, true
		k.inodes[inode] = ns
		if ns.published {
			k.putNamespace(ns, now)
			k.publishAddresses(ns, now) // the inode determines their networks
		}
		k.nest(now)
	})
}

// BeginNames begins a search for names, which ends with SetNames.
func (k *Mirror) BeginNames() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.reusable)
}

// Reused returns the inodes of namespaces that ended since BeginNames. Information about such
// an inode may be about the namespace that ended, and not about the one that has the inode
// now. The end of a namespace wakes the search for names, which looks again.
func (k *Mirror) Reused() map[uint64]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.reusable)
}

// OwnInode returns the inode of our own namespace.
func (k *Mirror) OwnInode() uint64 { return k.own.inode }

// Known reports whether a namespace with the given inode is mirrored. If so, it need not be
// opened.
func (k *Mirror) Known(inode uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.inodes[inode]
	return ok
}

// Anonymous reports whether a namespace of ours has no known inode, or no name, either by
// SetNames or according to named.
func (k *Mirror) Anonymous(named func(inode uint64) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ns := range k.byNSID {
		if ns.published && (ns.inode == 0 || !named(ns.inode) && k.names[ns.inode] == nil) {
			return true
		}
	}
	return false
}

// OurInodes returns the namespaces of this node with a known inode, except for our own. It
// maps each inode to a number that no other namespace ever has, even if inodes are reused.
func (k *Mirror) OurInodes() map[uint64]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	ours := make(map[uint64]uint64, len(k.inodes))
	for inode, ns := range k.inodes {
		if ns.published && ns != k.own {
			ours[inode] = ns.gen
		}
	}
	return ours
}

// Joins reports whether a namespace joins networks, as a router or a firewall does: two or more of its interfaces are
// up, and have addresses or are ports of a bridge. A kernel sets link-local IPv6 addresses by itself, so they do not
// count. Whether it forwards is not asked: a new namespace inherits net.ipv4.ip_forward from the first one (inet_init_net
// in net/ipv4/devinet.c), so it is set in every container of a node that forwards; and a bridge, IPVS or a redirect of
// tc forwards without it.
func (k *Mirror) Joins(inode uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	ns := k.inodes[inode]
	if ns == nil {
		return false
	}
	n := 0
	for _, l := range ns.links {
		chosen := l.Master != 0
		for a := range l.addrs {
			chosen = chosen || a.Is4() || !a.IsLinkLocalUnicast()
		}
		if chosen && l.Up() && !isLocal(l) {
			n++
		}
	}
	return n > 1
}

// SetNames sets the workloads of namespaces, the networks that assigned their addresses, their
// intended addresses, and the networks over several nodes whose bridge they have, by inode. It keeps
// the maps.
func (k *Mirror) SetNames(names map[uint64]*ipwitnessv1.Workload, networks map[uint64]Networks, intended map[uint64]Intended, overlays map[uint64]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for inode := range k.reusable { // see Reused
		delete(names, inode)
		delete(networks, inode)
		delete(intended, inode)
		delete(overlays, inode)
	}
	k.rewired = k.rewired || !maps.Equal(k.overlays, overlays)
	old, before := k.names, k.networks
	k.names, k.networks, k.intended, k.overlays = names, networks, intended, overlays
	k.table.Update(func() {
		for inode, ns := range k.inodes {
			if names[inode] == nil && old[inode] != nil {
				names[inode] = old[inode] // its file is gone but the namespace is not, so the last name is the best one
			}
			if ns.published && old[inode] != names[inode] && !proto.Equal(old[inode], names[inode]) {
				k.putNamespace(ns, now)
				k.publishHostEnds(ns, now) // because a pod is not a switch
				k.rewired = true
			}
			if kept := networks[inode].Keep(before[inode]); kept != nil {
				networks[inode] = kept // an abandoned sandbox keeps its assigned addresses
			}
			if ns.published && !maps.Equal(before[inode], networks[inode]) {
				k.publishAddresses(ns, now)
			}
			k.compareIntended(ns, now)
		}
		k.nest(now)
	})
}
