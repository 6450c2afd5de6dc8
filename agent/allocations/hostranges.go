package allocations

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/agent/form"
)

// addrRange is all addresses from first to last.
type addrRange struct{ first, last netip.Addr }

// hostLocalRange is one range of host-local's configuration.
type hostLocalRange struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

// maxRanges limits the reported ranges of one configuration. A range that contains its gateway
// is reported as two.
const maxRanges = 256

// errGiven is returned for a range that is not in the configuration, such as kubelet's pod CIDR.
var errGiven = errors.New("the range is given at run time")

// ranges returns the ranges that host-local allocates addresses from, and the gateways, which
// it never allocates. There are none if they are not in the configuration.
//
// It computes what LoadIPAMConfig and Canonicalize of plugins/ipam/host-local/backend/allocator
// do, and refuses what they refuse, because host-local then allocates nothing.
func (c *hostLocalConf) ranges() (ranges []addrRange, gateways []netip.Addr, err error) {
	sets := c.Ranges
	if c.Subnet != "" {
		sets = append([][]hostLocalRange{{c.hostLocalRange}}, sets...)
	}
	var all []addrRange
	for i, set := range sets {
		if len(set) == 0 {
			return nil, nil, fmt.Errorf("range set %d is empty", i)
		}
		for j, conf := range set {
			r, gateway, err := conf.addresses()
			if errors.Is(err, errGiven) {
				return nil, nil, nil
			}
			if err != nil {
				return nil, nil, fmt.Errorf("range set %d: %w", i, err)
			}
			if j > 0 && r.first.Is4() != all[len(all)-1].first.Is4() {
				return nil, nil, fmt.Errorf("range set %d has IPv4 and IPv6", i)
			}
			for _, other := range all {
				if r.first.Compare(other.last) <= 0 && other.first.Compare(r.last) <= 0 {
					return nil, nil, fmt.Errorf("range %s-%s overlaps with %s-%s", r.first, r.last, other.first, other.last)
				}
			}
			all = append(all, r)
			ranges = append(ranges, r.without(gateway)...)
			if !slices.Contains(gateways, gateway) {
				gateways = append(gateways, gateway)
			}
			if len(all) > maxRanges/2 {
				return nil, nil, fmt.Errorf("there are more than %d ranges: they are not looked at", maxRanges/2)
			}
		}
	}
	return ranges, gateways, nil
}

// addresses returns the range, including its gateway, and the gateway.
func (c hostLocalRange) addresses() (r addrRange, gateway netip.Addr, err error) {
	if strings.HasPrefix(strings.ToLower(c.Subnet), "usepodcidr") { // Calico replaces this with the pod CIDR
		return r, gateway, errGiven
	}
	subnet, err := netip.ParsePrefix(c.Subnet)
	switch {
	case c.Subnet == "":
		return r, gateway, errors.New("a range has no subnet")
	case err != nil:
		return r, gateway, fmt.Errorf("%q is no subnet", form.Short(errors.New(c.Subnet)))
	case subnet.Addr().Is4In6():
		return r, gateway, fmt.Errorf("subnet %s is IPv4 written as IPv6", subnet)
	case subnet.Bits() > subnet.Addr().BitLen()-2:
		return r, gateway, fmt.Errorf("subnet %s is too small to give addresses from", subnet)
	case subnet != subnet.Masked():
		return r, gateway, fmt.Errorf("subnet %s has host bits set: the network address is %s", subnet, subnet.Masked().Addr())
	}
	next := subnet.Addr().Next()
	read := func(what, text string, otherwise netip.Addr, inside bool) (netip.Addr, error) {
		if text == "" {
			return otherwise, nil
		}
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return a, fmt.Errorf("%s %q is no address", what, form.Short(errors.New(text)))
		}
		if a = a.Unmap(); inside && !subnet.Contains(a) {
			return a, fmt.Errorf("%s %s is not in subnet %s", what, a, subnet)
		}
		return a, nil
	}
	if gateway, err = read("gateway", c.Gateway, next, false); err != nil {
		return r, gateway, err
	}
	if r.first, err = read("rangeStart", c.RangeStart, next, true); err != nil {
		return r, gateway, err
	}
	if r.last, err = read("rangeEnd", c.RangeEnd, lastOf(subnet), true); err != nil {
		return r, gateway, err
	}
	if r.last.Less(r.first) {
		return r, gateway, fmt.Errorf("rangeEnd %s is before rangeStart %s", r.last, r.first)
	}
	return r, gateway, nil
}

// lastOf returns the last address of a subnet that host-local allocates, which is not the IPv4
// broadcast address.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := range b {
		b[i] |= byte(0xff >> min(8, max(0, subnet.Bits()-8*i)))
	}
	last, _ := netip.AddrFromSlice(b)
	if last.Is4() {
		return last.Prev()
	}
	return last
}

// without returns the range without one address.
func (r addrRange) without(a netip.Addr) (parts []addrRange) {
	if a.Less(r.first) || r.last.Less(a) || a.Is4() != r.first.Is4() {
		return []addrRange{r}
	}
	if r.first.Less(a) {
		parts = append(parts, addrRange{r.first, a.Prev()})
	}
	if a.Less(r.last) {
		parts = append(parts, addrRange{a.Next(), r.last})
	}
	return parts
}
