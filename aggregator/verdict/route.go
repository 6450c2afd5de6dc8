package verdict

import (
	"net/netip"
	"slices"
)

// RouteKind is the kind of a route. The numbers are those of the API.
type RouteKind uint8

// The kinds of routes.
const (
	RoutePaths RouteKind = iota + 1
	RouteLocal           // the node keeps the packets
	RouteNone            // none, or one that drops packets
)

// A Route is where a node sends packets of its own for the address.
type Route struct {
	Node *Node
	Kind RouteKind
	Hops []Hop
}

// A Hop is one path of a route.
type Hop struct {
	Interface string
	// Link is the link of the interface; nil if it has none that is known. Inside is set if agents see all interfaces on it.
	Link   *Link
	Inside bool
	// Gateway is the zero Addr if the route has none. Via is the only node that has its address; nil if there is none.
	Gateway netip.Addr
	Via     *Node
}

// mostNodes limits the nodes through which a route is followed.
const mostNodes = 8

// LeadsTo returns the owners of address a, as indexes, on the links at which packets of the node arrive. Routes of other nodes say
// where these pass packets on. sure is set if it is known where all paths lead.
func (r *Route) LeadsTo(owners []*Owner, a netip.Addr, others []*Route) (got []int, sure bool) {
	return r.leadsTo(owners, a, others, mostNodes)
}

func (r *Route) leadsTo(owners []*Owner, a netip.Addr, others []*Route, most int) (got []int, sure bool) {
	sure = true
	add := func(i int) {
		if !slices.Contains(got, i) {
			got = append(got, i)
		}
	}
	if r.Kind == RouteLocal {
		for i, o := range owners {
			if o.Assigned && o.Namespace != nil && o.Namespace.Record == OwnRecord && o.Node.Is(r.Node) {
				add(i)
			}
		}
	}
	for _, hop := range r.Hops {
		next := slices.IndexFunc(others, func(other *Route) bool { return hop.Via != nil && other.Node.Is(hop.Via) })
		switch {
		case hop.Gateway.IsValid() && (next < 0 || most == 0):
			sure = false
		case hop.Gateway.IsValid():
			more, known := others[next].leadsTo(owners, a, others, most-1)
			sure = sure && known
			for _, i := range more {
				add(i)
			}
		case hop.Link == nil:
			sure = false
		default:
			sure = sure && hop.Inside
			on := Belief{Link: hop.Link}
			for i, o := range owners {
				if on.Meets(o, a) {
					add(i)
				}
			}
		}
	}
	slices.Sort(got)
	return got, sure
}
