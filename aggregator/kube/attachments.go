package kube

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// attachment is what is kept of a NetworkAttachmentDefinition whose addresses
// whereabouts gives.
type attachment struct {
	// name is that of the CNI network, plugin and device are its type and what it is on.
	name, plugin, device string
	// network is whereabouts' network_name.
	network  string
	gateways []netip.Addr
	ranges   []attachedRange
}

// attachedRange is one of the ranges that a network has addresses of.
type attachedRange struct {
	prefix netip.Prefix
	// first and last narrow it, where they are set.
	first, last netip.Addr
	exclude     []netip.Prefix
	// slice is how long the prefix is that each node has of it; 0 where it is not divided.
	slice int
}

// attachmentOf is an attachment with one of its ranges.
type attachmentOf struct {
	at key
	*attachment
	part *attachedRange
}

func sameAttachment(a, b *attachment) bool {
	return a.name == b.name && a.plugin == b.plugin && a.device == b.device && a.network == b.network && slices.Equal(a.gateways, b.gateways) &&
		slices.EqualFunc(a.ranges, b.ranges, func(a, b attachedRange) bool {
			return a.prefix == b.prefix && a.first == b.first && a.last == b.last && a.slice == b.slice && slices.Equal(a.exclude, b.exclude)
		})
}

// cniConfig is what is used of a CNI configuration: of one plugin, or of a list.
type cniConfig struct {
	Name    string       `json:"name"`
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

// cniRange is a range of addresses in a configuration of whereabouts.
type cniRange struct {
	Range   string   `json:"range"`
	First   string   `json:"range_start"`
	Last    string   `json:"range_end"`
	Exclude []string `json:"exclude"`
}

// readAttachment keeps of a NetworkAttachmentDefinition what is used; nothing of one
// that whereabouts does not serve, or whose configuration is on the nodes.
func readAttachment(o runtime.Object) (key, *attachment) {
	definition, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{definition.Namespace, definition.Name}
	var spec struct {
		Config string `json:"config"`
	}
	var config cniConfig
	if part(definition.Spec, "spec", &spec) != nil || json.Unmarshal([]byte(spec.Config), &config) != nil {
		return at, nil
	}
	plugin := &config
	if i := slices.IndexFunc(config.Plugins, func(p *cniConfig) bool { return p != nil && p.IPAM.Type == verdict.Whereabouts }); i >= 0 {
		plugin = config.Plugins[i]
	}
	if plugin.IPAM.Type != verdict.Whereabouts {
		return at, nil
	}
	a := &attachment{name: strings.Clone(config.Name), plugin: strings.Clone(plugin.Type), device: strings.Clone(plugin.Master), network: strings.Clone(plugin.IPAM.Network)}
	if a.name == "" {
		a.name = definition.Name // as Multus has it
	}
	if plugin.Bridge != "" {
		a.device = strings.Clone(plugin.Bridge)
	}
	if gateway, err := netip.ParseAddr(plugin.IPAM.Gateway); err == nil {
		a.gateways = []netip.Addr{gateway.Unmap()}
	}
	for _, r := range append([]cniRange{plugin.IPAM.cniRange}, plugin.IPAM.Ranges...) {
		if read, ok := r.read(); ok {
			read.slice = sliceOf(plugin.IPAM.SliceSize)
			a.ranges = append(a.ranges, read)
		}
	}
	if len(a.ranges) == 0 {
		return at, nil
	}
	return at, a
}

// read reads a range: CIDR, or FIRST-LAST/LENGTH.
func (r *cniRange) read() (read attachedRange, ok bool) {
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

// sliceOf is how long the prefix of a node's slice is, as in "/26"; 0 for none.
func sliceOf(text string) (bits int) {
	for _, digit := range strings.TrimPrefix(text, "/") {
		if digit < '0' || digit > '9' || bits > 128 {
			return 0
		}
		bits = 10*bits + int(digit-'0')
	}
	return bits
}

// serves tells whether the addresses of a range are kept in the IPPool of a name and
// prefix: [NETWORK-][NODE-]RANGE.
func (r *attachedRange) serves(a *attachment, pool string, prefix netip.Prefix) bool {
	if r.slice == 0 {
		if prefix != r.prefix {
			return false
		}
		want := normalized(r.prefix.String())
		if a.network != "" {
			want = a.network + "-" + want
		}
		return pool == want
	}
	if prefix.Bits() != r.slice || prefix.Bits() < r.prefix.Bits() || !r.prefix.Contains(prefix.Addr()) {
		return false
	}
	rest, ok := strings.CutSuffix(pool, "-"+normalized(prefix.String()))
	if ok && a.network != "" {
		rest, ok = strings.CutPrefix(rest, a.network+"-")
	}
	return ok && rest != ""
}

// given are the addresses that whereabouts gives of a range: of a node's slice all but
// the first and the last.
func (r *attachedRange) given(prefix netip.Prefix) []verdict.Range {
	all := usable(prefix)
	if r.slice != 0 {
		return []verdict.Range{all}
	}
	// What is out of the range is ignored.
	if all.Contains(r.first) {
		all.First = r.first
	}
	if all.Contains(r.last) {
		all.Last = r.last
	}
	ranges := []verdict.Range{all}
	for _, p := range r.exclude {
		ranges = without(ranges, verdict.RangeOf(p))
	}
	return ranges
}
