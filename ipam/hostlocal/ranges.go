package hostlocal

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/ipwitness/ipwitness/ipam"
)

// ipamConf has the fields in use of host-local's own configuration, before host-local checks it.
type ipamConf struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
	subnetConf
	Ranges [][]subnetConf `json:"ranges"`
}

// subnetConf is one range of the configuration.
type subnetConf struct {
	Subnet string `json:"subnet"`
}

// maxRanges limits the ranges of one configuration.
const maxRanges = 128

// ranges returns the ranges that host-local allocates addresses from, and the gateways, which it
// never allocates. There are none if they are not in the configuration. Host-local's own code
// decides whether it accepts the configuration; otherwise it allocates nothing.
func (c *ipamConf) ranges(raw json.RawMessage) (ranges []ipam.Range, gateways []netip.Addr, err error) {
	all := slices.Concat(c.Ranges...)
	if c.Subnet != "" {
		all = append(all, c.subnetConf)
	}
	// Calico replaces usePodCidr and usePodCidrIPv6 with the pod CIDRs of the node.
	usesPodCIDR := func(s subnetConf) bool { return strings.HasPrefix(strings.ToLower(s.Subnet), "usepodcidr") }
	switch {
	case c.Subnet == "" && len(c.Ranges) == 0, slices.ContainsFunc(all, usesPodCIDR):
		return nil, nil, nil
	case len(all) > maxRanges:
		return nil, nil, fmt.Errorf("it has more ranges than the limit of %d: they are ignored", maxRanges)
	}
	// The runtime sets the version. raw can be encoded, because it has been decoded.
	network, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "ipam": raw})
	conf, _, err := allocator.LoadIPAMConfig(network, "")
	if err != nil {
		return nil, nil, err
	}
	for _, set := range conf.Ranges {
		for _, r := range set {
			first, _ := netip.AddrFromSlice(r.RangeStart)
			last, _ := netip.AddrFromSlice(r.RangeEnd)
			gateway, _ := netip.AddrFromSlice(r.Gateway)
			ranges = append(ranges, ipam.Without([]ipam.Range{{First: first, Last: last}}, ipam.Range{First: gateway, Last: gateway})...)
			if !slices.Contains(gateways, gateway) {
				gateways = append(gateways, gateway)
			}
		}
	}
	return ranges, gateways, nil
}
