package whereabouts

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// The custom resources of whereabouts and of the networks that use it.
var (
	Pools        = ipam.Kind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Resource: "ippools", Name: "IPPool"}
	Reservations = ipam.Kind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Resource: "overlappingrangeipreservations", Name: "OverlappingRangeIPReservation"}
	Networks     = ipam.Kind{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions", Name: "NetworkAttachmentDefinition"}
)

// pool is the record of an IPPool.
type pool struct {
	// base is the origin of the offsets: the address of the range as written.
	base        netip.Addr
	prefix      netip.Prefix
	allocations []allocation // by address
	// problem describes an inconsistency; bad means that the pool cannot be read because of it.
	problem string
	bad     bool
}

type allocation struct {
	addr                  netip.Addr
	pod, container, iface string // pod is NAMESPACE/NAME
}

func readPool(o *ipam.Object) *pool {
	r := &pool{}
	var spec struct {
		Range       string `json:"range"`
		Allocations map[string]struct {
			ID     string `json:"id"`
			PodRef string `json:"podref"`
			IfName string `json:"ifname"`
			Claim  string `json:"ipamclaimref"`
		} `json:"allocations"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		r.problem, r.bad = problemOf(o, err.Error()), true
		return r
	}
	base, err := netip.ParsePrefix(spec.Range)
	if err != nil {
		r.problem, r.bad = problemOf(o, fmt.Sprintf("its range %q is not a CIDR", ipam.Shorten(spec.Range))), true
		return r
	}
	r.base, r.prefix = base.Addr(), base.Masked()
	for offset, a := range spec.Allocations {
		// whereabouts writes offsets as uint64, reads them as int64, and ignores what does not fit (toAllocationMap and
		// toIPReservationList in pkg/storage/kubernetes/ipam.go). So it takes such an address for free.
		addr, fits := ipam.OffsetFrom(r.base, offset)
		if !fits || !r.prefix.Contains(addr) {
			what := fmt.Sprintf("/spec/allocations/%s is not an offset in %s: remove it", ipam.Shorten(offset), r.prefix)
			if n, err := strconv.ParseUint(offset, 10, 64); err == nil && n > math.MaxInt64 {
				what = fmt.Sprintf("whereabouts writes /spec/allocations/%d and does not read it back, so that it allocates the address again: give the network a range of at most 2^63 addresses, such as a /65", n)
			}
			problem := problemOf(o, what)
			if r.problem == "" || problem < r.problem {
				r.problem = problem
			}
			continue
		}
		al := allocation{addr: addr, pod: a.PodRef, container: a.ID, iface: ipam.Interned(a.IfName)}
		if a.Claim != "" {
			// An IPAMClaim keeps the address after its pod ends, for the next pod.
			al = allocation{addr: addr}
		}
		r.allocations = append(r.allocations, al)
	}
	slices.SortFunc(r.allocations, func(a, b allocation) int { return a.addr.Compare(b.addr) })
	return r
}

// problemOf returns the description of an inconsistent pool.
func problemOf(o *ipam.Object, what string) string {
	return fmt.Sprintf("IPPool %s/%s of whereabouts is invalid: %s", o.Namespace, o.Name, ipam.Shorten(what))
}

// reservation is the record of an OverlappingRangeIPReservation.
type reservation struct {
	pod, container, iface string
}

// readReservation returns the record of an OverlappingRangeIPReservation. One that cannot be read reserves its
// address nevertheless.
func readReservation(o *ipam.Object) (at ipam.Key, r *reservation, problem string) {
	var spec struct {
		ContainerID string `json:"containerid"`
		PodRef      string `json:"podref"`
		IfName      string `json:"ifname"`
	}
	invalid := ""
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		spec.PodRef, spec.ContainerID, spec.IfName, invalid = "", "", "", err.Error()
	} else {
		// The name of a reservation is NETWORK-ADDRESS. Both parts may contain dashes.
		found := false
		for rest, more := o.Name, true; more && !found; _, rest, more = strings.Cut(rest, "-") {
			_, found = reservedAddress(rest)
		}
		if !found {
			invalid = "its name does not end with an address"
		}
	}
	if invalid != "" {
		problem = fmt.Sprintf("OverlappingRangeIPReservation %s/%s of whereabouts is invalid: %s", o.Namespace, o.Name, ipam.Shorten(invalid))
	}
	return o.Key(), &reservation{pod: spec.PodRef, container: spec.ContainerID, iface: spec.IfName}, problem
}
