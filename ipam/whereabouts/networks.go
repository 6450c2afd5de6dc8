package whereabouts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// network is the record of a NetworkAttachmentDefinition. Unless whereabouts serves the network, it
// has the definition only.
type network struct {
	ipam.Definition
	// plugin is the type of the plugin that uses whereabouts, and device is the master interface or
	// bridge.
	plugin, device string
	// network is whereabouts' network_name.
	network  string
	gateways []netip.Addr
	ranges   []networkRange
}

type networkRange struct {
	prefix netip.Prefix
	// first and last narrow the prefix if they are valid.
	first, last netip.Addr
	exclude     []netip.Prefix
	// slice is the prefix length of each node's slice; 0 if the range is not divided.
	slice int
}

// cniConfig has the fields of whereabouts and its plugin in a CNI configuration, which is either a
// single plugin or a list of plugins.
type cniConfig struct {
	Type    string       `json:"type"`
	Master  string       `json:"master"`
	Bridge  string       `json:"bridge"`
	Plugins []*cniConfig `json:"plugins"`
	IPAM    struct {
		Type      string `json:"type"`
		Network   string `json:"network_name"`
		Gateway   string `json:"gateway"`
		SliceSize string `json:"node_slice_size"`
		cniRange
		Ranges []cniRange `json:"ipRanges"`
	} `json:"ipam"`
}

// cniRange is an address range in a whereabouts configuration.
type cniRange struct {
	Range   string   `json:"range"`
	First   string   `json:"range_start"`
	Last    string   `json:"range_end"`
	Exclude []string `json:"exclude"`
}

// readNetwork returns the record of a NetworkAttachmentDefinition. The record is nil if its
// configuration is on the nodes. If it cannot be read, the record has no name.
func readNetwork(o *ipam.Object) (at ipam.Key, n *network, problem string) {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var spec struct {
		Config string `json:"config"`
	}
	var config struct {
		Name string `json:"name"`
		plugin
		Plugins []plugin `json:"plugins"`
	}
	var err error
	if len(o.Spec) > 0 {
		err = ipam.Part(o.Spec, "spec", &spec)
	}
	if err == nil && spec.Config == "" {
		return o.Key(), nil, ""
	}
	if err == nil {
		err = ipam.Part(json.RawMessage(spec.Config), "spec.config", &config)
	}
	if err != nil {
		return o.Key(), &network{}, o.Invalid(Networks.Name, err.Error())
	}
	n = &network{Definition: ipam.Definition{Name: strings.Clone(cmp.Or(config.Name, o.Name))}} // as in Multus
	for _, p := range append([]plugin{config.plugin}, config.Plugins...) {
		n.Plugin, n.IPAM = cmp.Or(n.Plugin, p.Type), cmp.Or(n.IPAM, p.IPAM.Type)
	}
	n.Plugin, n.IPAM = strings.Clone(n.Plugin), strings.Clone(n.IPAM)
	if invalid := n.readRanges(spec.Config); invalid != "" {
		problem = o.Invalid(Networks.Name, invalid)
	}
	return o.Key(), n, problem
}

// readRanges reads what whereabouts allocates for the network, if it serves it. It returns what cannot be
// read.
func (n *network) readRanges(text string) (invalid string) {
	var config cniConfig
	err := json.Unmarshal([]byte(text), &config)
	plugin := &config
	if i := slices.IndexFunc(config.Plugins, func(p *cniConfig) bool { return p != nil && p.IPAM.Type == Name }); i >= 0 {
		plugin = config.Plugins[i]
	}
	if plugin.IPAM.Type != Name {
		return ""
	}
	if err != nil {
		return "its ipam: " + err.Error()
	}
	n.plugin, n.device, n.network = strings.Clone(plugin.Type), strings.Clone(cmp.Or(plugin.Bridge, plugin.Master)), strings.Clone(plugin.IPAM.Network)
	if gateway, err := netip.ParseAddr(plugin.IPAM.Gateway); err == nil {
		n.gateways = []netip.Addr{gateway.Unmap()}
	}
	for _, r := range append([]cniRange{plugin.IPAM.cniRange}, plugin.IPAM.Ranges...) {
		if read, ok := r.read(); ok {
			read.slice = sliceOf(plugin.IPAM.SliceSize)
			n.ranges = append(n.ranges, read)
		} else if r.Range != "" {
			invalid = fmt.Sprintf("its range %q is not a CIDR", r.Range)
		}
	}
	return invalid
}

func (n *network) served() bool { return n != nil && len(n.ranges) > 0 }

// read parses a range in the form CIDR or FIRST-LAST/LENGTH.
func (r *cniRange) read() (read networkRange, ok bool) {
	text := r.Range
	first, last := r.First, r.Last
	if start, rest, divided := strings.Cut(text, "-"); divided {
		text = rest
		first = start
		last, _, _ = strings.Cut(rest, "/")
	}
	prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return read, false
	}
	read.prefix = prefix.Masked()
	address := func(text string) netip.Addr {
		a, _ := netip.ParseAddr(strings.TrimSpace(text))
		return a.Unmap()
	}
	read.first, read.last = address(first), address(last)
	for _, text := range r.Exclude {
		if p, err := netip.ParsePrefix(text); err == nil {
			read.exclude = append(read.exclude, p.Masked())
		} else if a := address(text); a.IsValid() {
			read.exclude = append(read.exclude, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return read, true
}

// sliceOf parses the prefix length of a node's slice, such as "/26". It returns 0 if there is
// none.
func sliceOf(text string) (bits int) {
	for _, digit := range strings.TrimPrefix(text, "/") {
		if digit < '0' || digit > '9' || bits > 128 {
			return 0
		}
		bits = 10*bits + int(digit-'0')
	}
	return bits
}

// serves reports whether an IPPool with this name and prefix has the addresses of a range. The
// name has the form [NETWORK-][NODE-]RANGE.
func (r *networkRange) serves(n *network, pool string, prefix netip.Prefix) bool {
	if r.slice == 0 {
		if prefix != r.prefix {
			return false
		}
		want := normalized(r.prefix.String())
		if n.network != "" {
			want = n.network + "-" + want
		}
		return pool == want
	}
	if prefix.Bits() != r.slice || prefix.Bits() < r.prefix.Bits() || !r.prefix.Contains(prefix.Addr()) {
		return false
	}
	rest, ok := strings.CutSuffix(pool, "-"+normalized(prefix.String()))
	if ok && n.network != "" {
		rest, ok = strings.CutPrefix(rest, n.network+"-")
	}
	return ok && rest != ""
}

// given returns the addresses of a range that whereabouts allocates. In a node's slice, these
// are all but the first and the last address.
func (r *networkRange) given(prefix netip.Prefix) []ipam.Range {
	all := ipam.Usable(prefix)
	if r.slice != 0 {
		return []ipam.Range{all}
	}
	// Like whereabouts, ignore limits that are outside the range.
	if all.Contains(r.first) {
		all.First = r.first
	}
	if all.Contains(r.last) {
		all.Last = r.last
	}
	ranges := []ipam.Range{all}
	for _, p := range r.exclude {
		ranges = ipam.Without(ranges, ipam.RangeOf(p))
	}
	return ranges
}
