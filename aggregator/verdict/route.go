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

// LeadsTo returns the owners of address a, as indexes, on the links at which packets of the node arrive. Routes of other nodes say
// where these pass packets on. sure is set if it is known where all paths lead.
func (r *Route) LeadsTo(owners []*Owner, a netip.Addr, others []*Route) (got []int, sure bool) {
	sure = true
	add := func(i int) {
		if !slices.Contains(got, i) {
			got = append(got, i)
		}
	}
	// Each route is followed once: paths may meet again, and in a loop packets reach nobody else.
	followed := []*Route{r}
	for next := 0; next < len(followed); next++ {
		at := followed[next]
		if at.Kind == RouteLocal {
			for i, o := range owners {
				if o.Assigned && o.Namespace != nil && o.Namespace.Record == OwnRecord && o.Node.Is(at.Node) {
					add(i)
				}
			}
		}
		for _, hop := range at.Hops {
			via := slices.IndexFunc(others, func(other *Route) bool { return hop.Via != nil && other.Node.Is(hop.Via) })
			switch {
			case hop.Gateway.IsValid() && via < 0:
				sure = false
			case hop.Gateway.IsValid():
				if !slices.ContainsFunc(followed, func(r *Route) bool { return r.Node.Is(hop.Via) }) {
					followed = append(followed, others[via])
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
	}
	slices.Sort(got)
	return got, sure
}
