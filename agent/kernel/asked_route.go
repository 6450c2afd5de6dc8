package kernel

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// mostHops limits the paths of a route in an answer.
const mostHops = 16

// askedRoute returns where the node sends packets of its own for an address; nil if that is not known.
func (k *Mirror) askedRoute(addr netip.Addr) *ipwitnessv1.RouteRecord {
	k.mu.Lock()
	defer k.mu.Unlock()
	hops, err := k.req.Route(addr)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL): // prohibit, blackhole
	case err != nil:
		k.log.Warn("cannot look up the route", "address", addr, "error", err)
		return nil
	}
	out := &ipwitnessv1.RouteRecord{Kind: ipwitnessv1.Senders_Route_PATHS}
	for _, hop := range hops {
		l := k.own.links[hop.Index]
		switch {
		case hop.Local:
			return &ipwitnessv1.RouteRecord{Kind: ipwitnessv1.Senders_Route_LOCAL}
		case l == nil || len(out.Hops) == mostHops:
			return nil
		}
		out.Hops = append(out.Hops, &ipwitnessv1.RouteRecord_Hop{Interface: l.Name, Link: l.published.GetLink(), Gateway: hop.Gateway.AsSlice()})
	}
	if len(out.GetHops()) == 0 {
		out.Kind = ipwitnessv1.Senders_Route_NONE
	}
	return out
}
