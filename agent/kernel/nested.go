package kernel

import (
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A bridge in another namespace is a link like any other if its ports lead to further namespaces: the
// overlay networks of Docker Swarm, the networks of rootless podman, and those of containers that run
// containers of their own. The machine may also have switches and pods of other nodes, so it is one of
// this node only if it is reached from our own namespace, or is known to be a container's.

// contained reports whether a namespace is that of a pod or container.
func (t *topology) contained(ns *namespace) bool {
	kind := t.names[ns.inode].GetKind()
	return ns.unprivileged || kind == ipwitnessv1.Workload_POD || kind == ipwitnessv1.Workload_CONTAINER
}

// A nestedBridge is a bridge in another namespace with the ends that its ports lead to.
type nestedBridge struct {
	ns   *namespace
	host *link                // our end of a port that leads to our own namespace
	ends map[*link]*namespace // in further namespaces
}

// nest determines the nested bridges of this node after a change, and publishes what depends on them.
func (k *Mirror) nest(now time.Time) {
	if !k.rewired {
		return
	}
	k.rewired = false
	if len(k.bridges) == 0 && len(k.nested) == 0 {
		return // as on most nodes, whose pods change often
	}
	bridges := map[*link]*nestedBridge{}
	reached := map[*namespace]bool{}
	for _, ns := range k.byNSID {
		for _, l := range ns.links {
			if l.Kind == "bridge" && !l.Filtering { // the VLANs of its ports are not known
				bridges[l] = &nestedBridge{ns: ns, ends: map[*link]*namespace{}}
			}
			// Another namespace may be a switch, whose ports lead to other nodes.
			reached[ns] = reached[ns] || l.LowerNSID == k.ownNSID && k.contained(ns)
		}
		reached[ns] = reached[ns] || ns.unprivileged || k.overlays[ns.inode] != ""
	}
	enter := func(port, l *link, other, ns *namespace) {
		switch b := bridges[other.links[port.Master]]; {
		case b == nil:
		case ns == k.own:
			b.host = l
		default:
			b.ends[l] = ns
		}
	}
	for _, ns := range k.all() {
		for _, l := range ns.links {
			other := k.byNSID[l.LowerNSID]
			if !isPair(l.Kind) || other == nil {
				continue
			}
			port := other.links[l.Lower]
			if port == nil || port.Lower != l.Index {
				continue
			}
			enter(port, l, other, ns)
			if port.LowerNSID == rtnetlink.Unresolved && ns != k.own {
				enter(l, port, ns, other)
			}
		}
	}
	nested, inside := map[*link]domain{}, map[*namespace]bool{}
	for found := true; found; {
		found = false
		for l, b := range bridges {
			is := len(b.ends) > 0 && reached[b.ns]
			for _, ns := range b.ends {
				is = is || b.host == nil && reached[ns]
			}
			if !is {
				continue
			}
			delete(bridges, l)
			found = true
			d := domain{kind: ipwitnessv1.LinkRecord_BRIDGE, base: l}
			switch network := k.overlays[b.ns.inode]; {
			case b.host != nil:
				d = k.domainOf(b.host)
			case network != "":
				d.name, d.kind = "overlay@"+network, ipwitnessv1.LinkRecord_OVERLAY
			case b.ns.inode == 0:
				d.name = fmt.Sprintf("%s@nsid%d", l.Name, b.ns.nsid)
			default:
				d.name = fmt.Sprintf("%s@%d", l.Name, b.ns.inode)
			}
			reached[b.ns], inside[b.ns], nested[l] = true, true, d
			for end, ns := range b.ends {
				reached[ns], inside[ns], nested[end] = true, true, d
			}
		}
	}
	was := k.nested
	k.nested = nested
	for _, ns := range k.byNSID {
		changed := ns.nested != inside[ns]
		ns.nested = inside[ns]
		for _, l := range ns.links {
			old, had := was[l]
			d, has := nested[l]
			changed = changed || had != has || old.name != d.name
		}
		if changed {
			k.publishNamespace(ns, now)
		}
	}
}
