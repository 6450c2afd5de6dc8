package kernel

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
)

// routesEvery is how often the routes of contested addresses are looked up. Their changes are not
// followed, because a router may change thousands of routes per second.
const routesEvery = 2 * time.Second

// Contest starts or ends the contest of an address. Meanwhile, its claims tell to which of its
// holders the node sends its packets.
func (k *Mirror) Contest(addr netip.Addr, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.contested[addr]
	if on {
		k.contested[addr] = k.hops(addr)
	} else {
		delete(k.contested, addr)
	}
	if !slices.Equal(was, k.contested[addr]) {
		k.publishRoutes(addr)
	}
}

// FollowRoutes looks up the routes of contested addresses at intervals until ctx ends.
func (k *Mirror) FollowRoutes(ctx context.Context) error {
	tick := time.NewTicker(routesEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		k.refreshRoutes()
	}
}

// refreshRoutes looks up the routes of contested addresses, and publishes those that have changed.
func (k *Mirror) refreshRoutes() {
	const most = 256 // there are more only in an attack or if the records of an IPAM are lost
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for addr, was := range k.contested {
		if n++; n > most {
			return
		}
		if is := k.hops(addr); !slices.Equal(is, was) {
			k.contested[addr] = is
			k.publishRoutes(addr)
		}
	}
}

// hops returns the hops of the node's own route to an address; nil if there is none or it is not
// known.
func (k *Mirror) hops(addr netip.Addr) []rtnetlink.Hop {
	hops, err := k.req.Route(addr)
	if err != nil {
		k.log.Debug("cannot look up route", "address", addr, "error", err)
	}
	return hops
}

// publishRoutes publishes the claims to an address again.
func (k *Mirror) publishRoutes(addr netip.Addr) {
	now := time.Now()
	k.table.Update(func() {
		for _, ns := range k.all() {
			for _, l := range ns.links {
				if ns.published && l.addrs[addr] != nil {
					k.publishAddress(ns, l, addr, now)
				}
			}
		}
	})
}

// leadsTo reports whether the node's own route to a contested address leads to an interface: to the
// interface itself if it is our own and has the address, or to our end of its pair. A route to a
// bridge does not tell which of its ports answers.
func (p *publisher) leadsTo(ns *namespace, l *link, addr netip.Addr) bool {
	return slices.ContainsFunc(p.contested[addr], func(h rtnetlink.Hop) bool {
		if ns == p.own {
			return h.Local && h.Index == l.Index
		}
		return !h.Local && !h.Gateway.IsValid() && l.LowerNSID == p.ownNSID && isPair(l.Kind) && h.Index == l.Lower
	})
}
