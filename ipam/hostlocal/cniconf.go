package hostlocal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/ipam"
)

// A cniNetwork is a configured network that uses host-local as its IPAM.
type cniNetwork struct {
	name     string
	wiring   ipam.Wiring
	dir      string // where host-local keeps its allocations
	ranges   []ipam.Range
	gateways []netip.Addr
	refused  string // why its configuration has no effect, or only in part
	env      string // flannel only: the file that has its ranges
	uplink   bool   // its devices are on the interface of the default route
	file     string
}

// DefaultDir is host-local's default directory for allocations
// (plugins/ipam/host-local/backend/disk of containernetworking/plugins).
const DefaultDir = "/var/lib/cni/networks"

// flannel is a plugin that calls another one, and passes it the ranges of the node.
const flannel = "flannel"

// cniPlugin has the fields in use of the configuration of a plugin, or of a list of plugins.
// They are specified in https://www.cni.dev/docs/spec and by each plugin.
type cniPlugin struct {
	Name    string            `json:"name"`
	Type    string            `json:"type"`
	Plugins []json.RawMessage `json:"plugins"` // if this is a list

	Bridge           string `json:"bridge"`          // bridge, tap
	Master           string `json:"master"`          // macvlan, ipvlan, vlan
	Device           string `json:"device"`          // host-device
	Mode             any    `json:"mode"`            // ipvlan; other plugins may have other types
	LinkInContainer  bool   `json:"linkInContainer"` // macvlan, ipvlan, vlan: the master is an interface of the pod
	IsGateway        *bool  `json:"isGateway"`
	IsDefaultGateway bool   `json:"isDefaultGateway"`
	IPMasq           bool   `json:"ipMasq"`
	VLAN             int    `json:"vlan"`   // bridge, ovs, sriov
	VLANID           int    `json:"vlanId"` // vlan

	IPAM json.RawMessage `json:"ipam"`

	Delegate   json.RawMessage   `json:"delegate"`   // flannel
	SubnetFile string            `json:"subnetFile"` // flannel
	Delegates  []json.RawMessage `json:"delegates"`  // multus
}

// maxConfDepth limits how deep plugins may be nested. A list, a delegate, a list in it and a delegate
// in that list need less.
const maxConfDepth = 5

// parseConf parses the configuration of a plugin or of a list of plugins. It returns the
// networks that it can parse, and an error for the others.
func parseConf(file string, data []byte) (networks []cniNetwork, err error) {
	var errs []error
	var read func(data []byte, name string, depth int, chained bool)
	read = func(data []byte, name string, depth int, chained bool) {
		var p cniPlugin
		err := json.Unmarshal(data, &p)
		_, wrong := errors.AsType[*json.UnmarshalTypeError](err)
		switch {
		case wrong && p.Type != "" && !p.hostLocal():
			return // another plugin may use the field for something else
		case err != nil:
			errs = append(errs, plainJSON(err))
			return
		case depth == maxConfDepth:
			errs = append(errs, errors.New("plugins are nested too deep"))
			return
		case p.Name == "" && p.Type == "" && p.Plugins == nil:
			errs = append(errs, errors.New("it has neither a name nor a plugin"))
			return
		}
		// The name of a list overrides the names of its plugins.
		name = cmp.Or(name, p.Name)
		for i, plugin := range p.Plugins {
			read(plugin, name, depth+1, i > 0)
		}
		for _, delegate := range p.Delegates { // each delegate is a network of its own
			read(delegate, "", depth+1, false)
		}
		if p.Plugins != nil {
			return
		}
		n, err := p.network(file, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", name, err))
		}
		if n != nil {
			n.uplink = n.uplink && (n.wiring.Plugin == "macvlan" || !chained) // ipvlan then uses an interface of the plugin before it
			networks = append(networks, *n)
		}
	}
	read(data, "", 0, false)
	return networks, errors.Join(errs...)
}

// plainJSON makes an error of package json more helpful for correcting the file.
func plainJSON(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%q is a %s, which CNI does not accept there", wrong.Field, wrong.Value)
	}
	return fmt.Errorf("parse JSON: %w", err)
}

// hostLocal reports whether host-local allocates the addresses of the plugin.
func (p *cniPlugin) hostLocal() bool {
	var conf struct {
		Type string `json:"type"`
	}
	if p.Type == flannel {
		conf.Type = Name
	}
	_ = json.Unmarshal(p.IPAM, &conf) // the IPAM section of other plugins may have any form
	return conf.Type == Name
}

// delegate returns the plugin that this one calls. Flannel completes its configuration, with
// ranges from another file (flannel_linux.go of flannel-io/cni-plugin).
func (p *cniPlugin) delegate() (*cniPlugin, error) {
	var d cniPlugin
	if len(p.Delegate) > 0 {
		if err := json.Unmarshal(p.Delegate, &d); err != nil {
			return nil, plainJSON(err)
		}
	}
	if p.Type == flannel {
		d.IPAM = p.IPAM
		if d.Type = cmp.Or(d.Type, "bridge"); d.Type == "bridge" && d.IsGateway == nil {
			gateway := true
			d.IsGateway = &gateway
		}
	}
	return &d, nil
}

// network returns the network of a plugin, or nil if its IPAM is not host-local.
func (p *cniPlugin) network(file, name string) (*cniNetwork, error) {
	d := p
	if p.Type == flannel || len(p.Delegate) > 0 && !p.hostLocal() {
		var err error
		if d, err = p.delegate(); err != nil {
			return nil, err
		}
	}
	if !p.hostLocal() && !d.hostLocal() {
		return nil, nil
	}
	var conf ipamConf
	if len(d.IPAM) > 0 {
		if err := json.Unmarshal(d.IPAM, &conf); err != nil {
			return nil, plainJSON(err)
		}
	}
	dir := cmp.Or(conf.DataDir, DefaultDir)
	switch {
	case !isNetworkName(name):
		return nil, errors.New("the network name is invalid: its allocations cannot be found")
	case !filepath.IsAbs(dir) || len(dir) > ipam.MaxText:
		return nil, errors.New("its dataDir is not an absolute path: its allocations cannot be found")
	case len(d.Type) > ipam.MaxText || len(d.Bridge+d.Master+d.Device) >= 3*unix.IFNAMSIZ:
		return nil, errors.New("the name of its plugin or device is invalid")
	}
	// A plugin without a master uses the interface of the default route (loadConf in plugins/main/macvlan and ipvlan of
	// containernetworking/plugins, since pull requests 298 and 534; older versions refuse such a configuration).
	uplink := (d.Type == "macvlan" || d.Type == "ipvlan") && d.Master == "" && !d.LinkInContainer
	n := &cniNetwork{name: name, wiring: d.wiring(), dir: filepath.Join(dir, name), file: file, uplink: uplink}
	if p.Type == flannel {
		if n.env = cmp.Or(p.SubnetFile, "/run/flannel/subnet.env"); !filepath.IsAbs(n.env) || len(n.env) > ipam.MaxText {
			return n, errors.New("its subnetFile is not an absolute path: its ranges are unknown")
		}
		return n, nil
	}
	var err error
	if n.ranges, n.gateways, err = conf.ranges(d.IPAM); err != nil {
		n.refused = ipam.OneLine(err)
	}
	return n, nil
}

// isNetworkName reports whether s is a valid name of a CNI network and not too long.
func isNetworkName(s string) bool {
	const most = 253
	return len(s) <= most && utils.ValidateNetworkName(s) == nil
}

// wiring returns how the plugin connects pods to the node.
func (p *cniPlugin) wiring() ipam.Wiring {
	w := ipam.Wiring{Plugin: p.Type}
	switch p.Type {
	case "ptp":
		w.Routed = true
	case "bridge":
		w.Device = cmp.Or(p.Bridge, "cni0")
		w.Routed = p.IsGateway != nil && *p.IsGateway || p.IsDefaultGateway || p.IPMasq
	default:
		mode, _ := p.Mode.(string)
		w.Device, w.Routed = cmp.Or(p.Master, p.Device, p.Bridge), ipam.RoutesIPVLAN(p.Type, mode)
	}
	if !w.Routed && (p.VLAN != 0 || p.VLANID != 0) || p.LinkInContainer {
		w.Device = "" // its addresses are in a VLAN, and not on the link of the device, or the device is in the pod
	}
	return w
}

// readEnv reads the ranges that flannel has for this node. Before flannel runs, there are
// none.
func (n *cniNetwork) readEnv(host ipam.Host) error {
	data, _, err := host.ReadFile(n.env, true, ipam.MaxConfSize)
	if errors.Is(err, os.ErrNotExist) {
		return host.Visible(filepath.Dir(n.env))
	}
	if err == nil {
		n.ranges, n.gateways, err = flannelRanges(data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: restart flannel, which rewrites the file", n.env, err)
	}
	return nil
}

// flannelRanges returns the ranges that flannel's plugin passes to host-local, from the file
// that flanneld writes for it.
func flannelRanges(env []byte) ([]ipam.Range, []netip.Addr, error) {
	var c ipamConf
	for line := range strings.Lines(string(env)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key != "FLANNEL_SUBNET" && key != "FLANNEL_IPV6_SUBNET" || value == "" {
			continue
		}
		subnet, err := netip.ParsePrefix(value)
		if err != nil {
			return nil, nil, fmt.Errorf("%s is not a subnet", key)
		}
		c.Ranges = append(c.Ranges, []subnetConf{{Subnet: subnet.Masked().String()}})
	}
	raw, _ := json.Marshal(map[string]any{"ranges": c.Ranges}) // strings can always be encoded
	return c.ranges(raw)
}

type cniConfs struct {
	dirs  []string
	host  ipam.Host
	files map[string][]cniNetwork // by file; the last version that could be parsed
	envs  []string                // files that have the ranges of flannel networks
}

// read reads all configurations. Files are sorted by name, and the first one that names a
// directory of allocations counts, as for container runtimes. If a file cannot be parsed, its
// previous content counts. If such a file may still be being written, read returns no problem
// yet, but sets later.
func (c *cniConfs) read(now time.Time) (networks map[string]cniNetwork, problems []string, later bool) {
	networks = map[string]cniNetwork{}
	parsed := map[string][]cniNetwork{}
	if err := c.host.Visible(c.dirs...); err != nil {
		problems = append(problems, fmt.Sprintf("cannot read the CNI configurations in %s: %s", strings.Join(c.dirs, " and "), err))
	}
	for _, f := range ipam.ConfFiles(c.host, c.dirs) {
		if slices.Contains(c.dirs, f.Path) { // it cannot be listed
			problems = append(problems, fmt.Sprintf("cannot read the CNI configurations (%s): the ranges of host-local, and its directories other than %s, are unknown; give the agent's user read access to that directory",
				ipam.OneLine(f.Err), DefaultDir))
			for file, before := range c.files {
				if _, listed := parsed[file]; !listed && filepath.Dir(file) == f.Path {
					parsed[file] = before
				}
			}
			continue
		}
		var found []cniNetwork
		err := f.Err
		if err == nil {
			found, err = parseConf(f.Path, f.Data)
		}
		for i := range found {
			n := &found[i]
			if n.dir = ipam.CleanPath(n.dir); n.env != "" {
				n.env = ipam.CleanPath(n.env)
			}
		}
		if err != nil {
			if found == nil {
				found = c.files[f.Path]
			}
			if ipam.BeingWritten(f.Written, now) {
				later = true
			} else {
				problem := fmt.Sprintf("cannot parse CNI configuration %s (%s): the allocations of host-local under it are unknown; correct or remove it", f.Path, ipam.OneLine(err))
				problems = append(problems, problem)
				for i := range found {
					found[i].refused = problem
				}
			}
		}
		parsed[f.Path] = found
	}
	c.files, c.envs = parsed, nil
	for _, dir := range c.dirs {
		for _, file := range slices.Sorted(maps.Keys(parsed)) {
			if filepath.Dir(file) != dir {
				continue
			}
			for _, n := range parsed[file] {
				c.complete(&n)
				first, known := networks[n.dir]
				switch {
				case !known:
					networks[n.dir] = n
				case first.file == n.file: // two plugins of the same list
					first.ranges = union(first.ranges, n.ranges)
					first.gateways = union(first.gateways, n.gateways)
					first.refused = cmp.Or(first.refused, n.refused)
					networks[n.dir] = first
				}
			}
		}
	}
	return networks, problems, later
}

// complete adds what the configuration of a network leaves to the node.
func (c *cniConfs) complete(n *cniNetwork) {
	if n.env != "" {
		c.envs = append(c.envs, n.env)
		if err := n.readEnv(c.host); err != nil {
			n.refused = "its ranges are unknown: " + ipam.OneLine(err)
		}
	}
	if n.uplink {
		n.wiring.Device = c.host.Uplink()
	}
}

// maxRead limits the results of one network that are read.
const maxRead = 16

// passed returns the configuration of a network that no file has, but that a caller passes to the plugins: Nomad does so
// for its bridge (client/allocrunner/cni/bridge.go of hashicorp/nomad). It is in the results
// that libcni keeps of the containers with the latest allocations (cacheAdd in libcni/api.go of containernetworking/cni).
// Results of containers whose network namespaces are gone do not count, because they may have been left behind.
func (c *cniConfs) passed(results string, d *directory) (n cniNetwork, ok bool) {
	latest := slices.SortedFunc(maps.Values(d.allocated), func(a, b *allocation) int { return b.AllocatedAt.Compare(a.AllocatedAt) })
	for _, al := range latest[:min(maxRead, len(latest))] {
		var result struct {
			Config []byte `json:"config"`
			NetNS  string `json:"netns"`
		}
		name := d.Network + "-" + al.ContainerID + "-" + al.Interface
		if name != filepath.Base(name) {
			continue
		}
		data, _, err := c.host.ReadFile(filepath.Join(results, name), false, ipam.MaxConfSize)
		if err != nil || json.Unmarshal(data, &result) != nil || !filepath.IsAbs(result.NetNS) {
			continue
		}
		if _, err := os.Lstat(ipam.CleanPath(result.NetNS)); err != nil {
			continue
		}
		networks, _ := parseConf("", result.Config)
		for _, n := range networks {
			if ipam.CleanPath(n.dir) == d.Name {
				c.complete(&n)
				return n, true
			}
		}
	}
	return n, false
}

// union returns the elements that are in at least one of two lists.
func union[T comparable](a, b []T) []T {
	sum := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(sum, x) {
			sum = append(sum, x)
		}
	}
	return sum
}

// ipamConf has the fields in use of host-local's own configuration, before host-local checks it.
type ipamConf struct {
	DataDir string `json:"dataDir"`
	subnetConf
	Ranges [][]subnetConf `json:"ranges"`
}

// subnetConf is one range of the configuration.
type subnetConf struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

// maxRanges limits the ranges of one configuration.
const maxRanges = 128

// ranges returns the ranges that host-local allocates addresses from, and the gateways, which it
// never allocates. There are none if they are not in the configuration. Host-local's own code
// decides whether it accepts the configuration; err says why it does not. If that is a gateway outside of
// its subnet, the ranges are returned nevertheless: versions before 1.10 accept it.
func (c *ipamConf) ranges(raw json.RawMessage) (ranges []ipam.Range, gateways []netip.Addr, err error) {
	sets := c.Ranges
	if c.Subnet != "" {
		sets = append([][]subnetConf{{c.subnetConf}}, sets...)
	}
	all := slices.Concat(sets...)
	// Calico replaces usePodCidr and usePodCidrIPv6 with the pod CIDRs of the node.
	usesPodCIDR := func(s subnetConf) bool { return strings.HasPrefix(strings.ToLower(s.Subnet), "usepodcidr") }
	switch {
	case len(sets) == 0, slices.ContainsFunc(all, usesPodCIDR):
		return nil, nil, nil
	case len(all) > maxRanges:
		return nil, nil, fmt.Errorf("it has more ranges than the limit of %d: they are ignored", maxRanges)
	}
	_, err = load(raw)
	for i := range all {
		gateway, wrong := netip.ParseAddr(cmp.Or(all[i].Gateway, "::"))
		if wrong != nil || gateway.Zone() != "" {
			return nil, nil, refused(err, "")
		}
		gateways = append(gateways, gateway.Unmap())
	}
	for _, set := range sets {
		for i := range set {
			set[i].Gateway = ""
		}
	}
	conf, other := load(map[string]any{"ranges": sets})
	if other != nil {
		return nil, nil, refused(err, "")
	}
	n := 0
	for _, set := range conf.Ranges {
		for _, r := range set {
			first, _ := netip.AddrFromSlice(r.RangeStart)
			last, _ := netip.AddrFromSlice(r.RangeEnd)
			if gateways[n].IsUnspecified() {
				gateways[n], _ = netip.AddrFromSlice(r.Gateway)
			}
			ranges = append(ranges, ipam.Without([]ipam.Range{{First: first, Last: last}}, ipam.Range{First: gateways[n], Last: gateways[n]})...)
			n++
		}
	}
	return ranges, union(nil, gateways), refused(err, "; versions before 1.10 accept it")
}

// load lets host-local check a configuration. The runtime sets the version.
func load(conf any) (*allocator.IPAMConfig, error) {
	network, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "ipam": conf}) // it has been decoded
	checked, _, err := allocator.LoadIPAMConfig(network, "")
	return checked, err
}

func refused(err error, unless string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("host-local of CNI plugins 1.10 refuses its configuration, and neither allocates addresses nor frees them (%w%s)", err, unless)
}
