package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// dropFrames ends the claims of frames that entered by our interface.
func (k *kernel) dropFrames(index int32, now time.Time) {
	k.claimEnded(k.table.RemovePort(index, now))
}

// retract takes a namespace out of the table. The end of the namespace's record
// is the end of all in it.
func (k *kernel) retract(ns *namespace, now time.Time) {
	if !ns.published {
		return
	}
	ns.published = false
	for _, l := range ns.links {
		k.unpublish(ns, l, now)
	}
	k.table.RemoveNamespace(ns.id, now)
	ns.missing, ns.intended = nil, nil
	ns.id = 0 // the end of that record must be told, even where it is ours again at once
}

// publishNamespace puts or retracts a namespace, as it is ours or not.
func (k *kernel) publishNamespace(ns *namespace, now time.Time) {
	ours := k.ours(ns)
	switch {
	case !ours:
		k.retract(ns, now)
		return
	case !ns.published:
		if ns.published = true; ns.id == 0 {
			k.nextID++
			ns.id = k.nextID
		}
		k.putNamespace(ns, now)
		if k.names[ns.inode] == nil {
			k.unnamed()
		}
	}
	for _, l := range ns.links {
		k.publish(ns, l, now)
	}
	k.compareMeant(ns, now)
}

func (k *kernel) putNamespace(ns *namespace, now time.Time) {
	r := &ipwitnessv1.NamespaceRecord{Id: ns.id, FirstSeen: timestamppb.New(ns.first), Workload: k.names[ns.inode], Intended: ns.intended}
	if ns == k.own {
		r.Workload = k.host
	}
	if ns.inode != 0 {
		r.Netns = fmt.Sprint(ns.inode)
	}
	k.table.Namespaces.Put(ns.id, r, now)
}

// publishAttached publishes again what depends on our interface p: everything
// where p is nil.
func (k *kernel) publishAttached(p *link, now time.Time) {
	for _, l := range k.own.links {
		switch {
		case l == p:
		case p == nil, k.lowerOf(l) == p, l.Master == p.Index:
			k.publish(k.own, l, now)
		default:
			continue
		}
		for child, ns := range k.attached[l.Index] {
			k.publish(ns, child, now)
		}
	}
	k.redirected(p, now)
}

// publish makes the table say of an interface and its addresses what the mirror says.
func (k *kernel) publish(ns *namespace, l *link, now time.Time) {
	if !ns.published {
		return
	}
	k.publishRecord(ns, l, now)
	for a := range l.addrs {
		k.publishAddress(ns, l, a, now)
	}
	for c := range l.claims {
		if l.addrs[c.Address] == nil {
			k.endClaim(ns, l, c, now)
		}
	}
}

// publishRecord makes the table say of an interface what the mirror says.
func (k *kernel) publishRecord(ns *namespace, l *link, now time.Time) {
	if r := k.interfaceRecord(ns, l, now); !proto.Equal(r, l.published) {
		if old := l.published.GetLink(); ns == k.own && old != "" && old != r.GetLink() {
			k.leaveLink(l, old, now)
		}
		if ns == k.own && l.published.GetUplink() != r.GetUplink() {
			k.putTagged(l, now)
		}
		l.published = r
		k.table.Interfaces.Put(table.InterfaceKey{Namespace: ns.id, Index: l.Index}, r, now)
		if ns != k.own && r.Attachment == ipwitnessv1.InterfaceRecord_PEER {
			// Our end of the pair says whose it is.
			if host := k.own.links[l.Lower]; host != nil {
				k.publish(k.own, host, now)
			}
		}
	}
	if ns == k.own {
		k.addressed(l, now)
	}
}

// addressChanged publishes one address of an interface, and what else depends on it.
func (k *kernel) addressChanged(ns *namespace, l *link, addr netip.Addr, now time.Time) {
	if !ns.published {
		return
	}
	if ns == k.own {
		k.wired().routed = nil
		k.publishRecord(ns, l, now)
	}
	k.publishAddress(ns, l, addr, now)
	k.compareMeant(ns, now)
}

// publishAddresses makes the table say of all addresses in a namespace what the
// mirror says.
func (k *kernel) publishAddresses(ns *namespace, now time.Time) {
	for _, l := range ns.links {
		for a := range l.addrs {
			k.publishAddress(ns, l, a, now)
		}
	}
}

// publishAddress makes the table say of one address what the mirror says.
func (k *kernel) publishAddress(ns *namespace, l *link, addr netip.Addr, now time.Time) {
	want := map[table.ClaimKey]rtnetlink.Address{}
	for _, a := range l.addrs[addr] {
		kind := ipwitnessv1.Evidence_ASSIGNED
		switch {
		case l.Flags&unix.IFF_UP == 0: // addresses stay listed on interfaces that are down
			continue
		case a.Addr.IsLoopback() || a.Addr.IsMulticast():
			continue
		case a.Flags&unix.IFA_F_DADFAILED != 0:
			kind = ipwitnessv1.Evidence_DAD_FAILED
		case a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0:
			continue
		}
		c := table.ClaimKey{Address: a.Addr, Kind: kind, At: table.InterfaceKey{Namespace: ns.id, Index: l.Index}}
		if have, ok := want[c]; !ok || a.PrefixLength < have.PrefixLength {
			want[c] = a
		}
	}
	for _, kind := range []ipwitnessv1.Evidence_Kind{ipwitnessv1.Evidence_ASSIGNED, ipwitnessv1.Evidence_DAD_FAILED} {
		c := table.ClaimKey{Address: addr, Kind: kind, At: table.InterfaceKey{Namespace: ns.id, Index: l.Index}}
		a, wanted := want[c]
		have, told := l.claims[c]
		network := ""
		if kind == ipwitnessv1.Evidence_ASSIGNED {
			network = k.networks[ns.inode][given{l.Name, addr}]
		}
		switch {
		case told && !wanted:
			k.endClaim(ns, l, c, now)
		case wanted && told && have == a:
			k.table.SetNetwork(c, network, now)
		case wanted:
			l.claims[c] = a
			k.table.Add(c, table.Claim{
				Network:      network,
				PrefixLength: a.PrefixLength,
				Flags:        a.Flags,
				Assigned:     k.boot.Add(a.Created).Round(10 * time.Millisecond),
				First:        now,
				Last:         now,
				Count:        1,
			}, now)
		}
	}
}

// unpublish takes an interface and its addresses out of the table.
func (k *kernel) unpublish(ns *namespace, l *link, now time.Time) {
	for c := range l.claims {
		k.endClaim(ns, l, c, now)
	}
	if l.published != nil {
		l.published = nil
		k.table.Interfaces.Remove(table.InterfaceKey{Namespace: ns.id, Index: l.Index}, now)
	}
}

// endClaim takes an address from its holder, and with it what the wire showed
// of the same holder: a frame that was sent before must not bring it back.
func (k *kernel) endClaim(ns *namespace, l *link, c table.ClaimKey, now time.Time) {
	delete(l.claims, c)
	k.table.RemoveClaim(c, now)
	if len(k.ended) > keptEnds && now.Sub(k.swept) > time.Second {
		k.swept = now
		maps.DeleteFunc(k.ended, func(_ holding, at time.Time) bool { return now.Sub(at) > latestFrame })
	}
	k.ended[holding{c.Address, l.MAC}] = now
	k.claimEnded(k.table.RemoveWire(c.Address, func(w table.ClaimKey) bool {
		return w.MAC == l.MAC || (ns != k.own && l.LowerNSID == k.ownNSID && isPair(l.Kind) && w.At.Index == l.Lower)
	}, now))
}
