package casefile

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// pseudonyms replaces names in two passes: the first one collects the names of each class, and
// settle then assigns the pseudonyms. They are numbered in the order of the names, so that most
// comparisons of names keep their results. If only some names are replaced, they are numbered in
// the order in which they occur.
type pseudonyms struct {
	// from is the policy of the case; about is its address.
	from  *verdict.Policy
	about netip.Addr
	// replace selects the names to replace; if it is nil, all names except inodes are replaced.
	replace func(class, name string) bool
	// asked has the names by class; given has their pseudonyms once they are settled.
	asked map[string][]string
	given map[string]map[string]string
	// workloads are the names of all workloads, as NAMESPACE/NAME or NAME.
	workloads []string
}

// formats are the formats of pseudonyms by class. The format of other classes is CLASS-NUMBER.
var formats = map[string]string{
	"uuid":      "00000000-0000-4000-8000-%012x",
	"boot":      "b0070000-0000-4000-8000-%012x",
	"container": "c0ffee%06x",
	"docker":    "br-%012x", // like names of docker bridges
	"veth":      "veth%08x", // like names that plugins choose
	"netns":     "4026532%03d",
}

// numbered returns the pseudonym of a name in a class.
func (p *pseudonyms) numbered(class, name string) string {
	if name == "" || p.keeps(class, name) {
		return name
	}
	if p.given == nil {
		if p.asked == nil {
			p.asked = map[string][]string{}
		}
		p.asked[class] = append(p.asked[class], name)
		return name
	}
	return p.given[class][name]
}

// distinct returns a list without duplicates.
func distinct(list []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range list {
		if !seen[s] {
			out = append(out, s)
		}
		seen[s] = true
	}
	return out
}

// keeps reports whether a name is not replaced.
func (p *pseudonyms) keeps(class, name string) bool {
	return p.replace != nil && !p.replace(class, name)
}

// settle assigns pseudonyms to all collected names.
func (p *pseudonyms) settle() {
	p.given = map[string]map[string]string{}
	for class, names := range p.asked {
		if p.replace == nil {
			slices.Sort(names)
		}
		names = distinct(names)
		format := formats[class]
		if format == "" {
			format = class + "-%0" + fmt.Sprint(max(3, len(fmt.Sprint(len(names))))) + "d"
		}
		p.given[class] = make(map[string]string, len(names))
		for i, name := range names {
			p.given[class][name] = fmt.Sprintf(format, i+1)
		}
	}
	slices.Sort(p.workloads)
	p.workloads = slices.Compact(p.workloads)
}

func (p *pseudonyms) boot(s string) string      { return p.numbered("boot", s) }
func (p *pseudonyms) agent(s string) string     { return p.numbered("agent", s) }
func (p *pseudonyms) name(s string) string      { return p.numbered("name", s) }
func (p *pseudonyms) namespace(s string) string { return p.numbered("namespace", s) }

var (
	uuids      = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	hexIDs     = regexp.MustCompile(`^[0-9a-f]{12,}$`)
	digits     = regexp.MustCompile(`^[0-9]*$`)
	processes  = regexp.MustCompile(`^(.*)( \([0-9]+(?:, ended)?\))$`)
	placeParts = regexp.MustCompile(`[^/;, ]+`)
	addresses  = regexp.MustCompile(`^[0-9.:-]+$`)
)

func (p *pseudonyms) uid(s string) string {
	if uuids.MatchString(s) {
		return p.numbered("uuid", s)
	}
	return p.numbered("uid", s)
}

func (p *pseudonyms) container(s string) string {
	if hexIDs.MatchString(s) {
		return p.numbered("container", s)
	}
	return p.numbered("sandbox", s)
}

// inode replaces the inode of a network namespace only if replace selects it.
func (p *pseudonyms) inode(s string) string {
	if p.replace == nil && digits.MatchString(s) {
		return s
	}
	return p.numbered("netns", s)
}

// cluster removes the name of the cluster; with replace, only if it is selected.
func (p *pseudonyms) cluster(s string) string {
	if p.keeps("cluster", s) {
		return s
	}
	return ""
}

func (p *pseudonyms) process(s string) string {
	if m := processes.FindStringSubmatch(s); m != nil {
		return p.numbered("process", m[1]) + m[2]
	}
	return p.numbered("process", s)
}

// node replaces each label of a node name separately: another name of the same node may lack the
// domain or be in upper case.
func (p *pseudonyms) node(s string) string {
	if p.keeps("node", s) {
		return s
	}
	s, suffix, hasSuffix := strings.Cut(s, "@")
	short, domain, hasDomain := strings.Cut(s, ".")
	out := p.numbered("node", strings.ToLower(short))
	if short != strings.ToLower(short) {
		out = strings.ToUpper(out)
	}
	if hasDomain {
		for label := range strings.SplitSeq(domain, ".") {
			out += "." + p.numbered("domain", strings.ToLower(label))
		}
	}
	if hasSuffix {
		out += "@" + p.numbered("suffix", suffix)
	}
	return out
}

// The network names that have a meaning for the verdict.
var knownNetworks = []string{"pods", "cri"}

func (p *pseudonyms) network(s string) string {
	if slices.Contains(knownNetworks, s) {
		return s
	}
	return p.numbered("network", s)
}

var (
	// usualDevices match common device names, which reveal nothing.
	usualDevices = regexp.MustCompile(`^(lo|eth\d+|en[ops]\d+(s\d+)?(f\d+)?(np\d+)?|bond\d+|br\d+|cni\d+|cbr0|kube-bridge|docker0|podman\d+|cni-podman\d+|virbr\d+|` +
		`cilium_(host|net|vxlan)|vxlan\.calico|wireguard\.cali|flannel(-v6)?\.\d+|tunl0|ip6tnl0|sit0|kube-ipvs0|nodelocaldns|dummy\d+|` +
		`br-(ex|int|tun)|ovn-k8s-mp\d+|ovs-system|k6t-eth\d+|net\d+|wg\d+)$`)
	// deviceStems match the prefixes of generated names. Some of them matter to the verdict.
	deviceStems = regexp.MustCompile(`^(veth|cali|lxc|tap|vnet|tun|podman|cni-podman|virbr)`)
	dockerNames = regexp.MustCompile(`^br-[0-9a-f]{12}$`)
	kubeOVN     = regexp.MustCompile(`^[0-9a-f]+(_.+)?_h$`) // see ipam.SeparatesTenants
	vlanTags    = regexp.MustCompile(`^(.+?)((?:\.\d+)+)$`)
)

// device replaces the name of an interface, a link or a VRF.
func (p *pseudonyms) device(s string) string {
	switch stem := deviceStems.FindString(s); {
	case usualDevices.MatchString(s):
		return s
	case vlanTags.MatchString(s):
		m := vlanTags.FindStringSubmatch(s)
		return p.device(m[1]) + m[2]
	case dockerNames.MatchString(s):
		return p.numbered("docker", s)
	case stem != "":
		return p.numbered(stem, s)
	case kubeOVN.MatchString(s):
		if n, replaced := strings.CutPrefix(p.numbered("port", s), "port-"); replaced {
			return n + "_h"
		}
		return s
	}
	return p.numbered("if", s)
}

// words are values that software, and not a person, chooses.
var words = func() map[string]bool {
	known := map[string]bool{}
	for w := range strings.FieldsSeq(`
		cri cni-result docker podman netns docker-netns cgroup process kubernetes
		namespace name uid containerId process virtualMachine phase controller deletionTimestamp orphaned
		Pending Running Succeeded Failed Unknown
		ReplicaSet Deployment StatefulSet DaemonSet Job CronJob ReplicationController Node VirtualMachineInstance
		host-local whereabouts calico cilium
		bridge macvlan ipvlan ptp vlan host-device sriov ovs loopback flannel calico cilium-cni kindnet
		veth bridge vxlan geneve ipip sit ip6tnl gre gretap ip6gre ip6gretap erspan ip6erspan wireguard bareudp vti vti6 xfrm
		bond team vlan macvlan macvtap ipvlan ipvtap dummy tun vrf ifb nlmon openvswitch ipoib netkit can
		var lib cni networks etc net.d run multus results nodename 10-calico.conflist
		ippools ipamblocks ciliumnodes pods services overlappingrangeipreservations spec status allocations podIPs podCIDRs
		IPPool IPAMBlock CiliumNode Pod Service OverlappingRangeIPReservation`) {
		known[w] = true
	}
	for _, phrase := range []string{"IP-in-IP tunnel", "VXLAN tunnel", "WireGuard tunnel", "Cilium's own", "Cilium's router", "Cilium's health"} {
		known[phrase] = true
	}
	return known
}()

// word returns a class that keeps words and replaces other values.
func word(class string) class {
	return func(p *pseudonyms, s string) string {
		if words[s] {
			return s
		}
		return p.numbered(class, s)
	}
}

// sources replaces the fields and sources in FIELD=SOURCE pairs.
func (p *pseudonyms) sources(s string) string {
	var out []string
	for one := range strings.SplitSeq(s, ",") {
		field, source, _ := strings.Cut(one, "=")
		out = append(out, word("field")(p, field)+"="+word("source")(p, source))
	}
	return strings.Join(out, ",")
}

// intended replaces lines of the form ADDRESS SOURCE INTERFACE.
func (p *pseudonyms) intended(s string) string {
	var out []string
	for line := range strings.SplitSeq(s, "\n") {
		address, rest, _ := strings.Cut(line, " ")
		source, device, _ := strings.Cut(rest, " ")
		if a, err := netip.ParseAddr(address); err == nil {
			address = p.address(a).String()
		} else {
			address = p.numbered("address", address)
		}
		out = append(out, address+" "+word("source")(p, source)+" "+p.device(device))
	}
	return strings.Join(out, "\n")
}

// place replaces the parts of a path or an object name, except for addresses and words. Names of
// nodes, networks, namespaces and workloads get the same pseudonym as elsewhere.
func (p *pseudonyms) place(s string) string {
	return placeParts.ReplaceAllStringFunc(s, func(part string) string {
		for _, class := range []string{"node", "network", "namespace", "name"} {
			if known, ok := p.given[class][part]; ok {
				return known
			}
		}
		if words[part] || addresses.MatchString(part) {
			return part
		}
		return p.numbered("part", part)
	})
}

// owner replaces the parts of an owner's ID: BOOT/NETNS, BOOT/NETNS/EPOCH/RECORD or
// BOOT/NETNS/LINK/MAC.
func (p *pseudonyms) owner(s string) string {
	parts := strings.Split(s, "/")
	if len(parts) != 2 && len(parts) != 4 {
		return p.numbered("owner", s)
	}
	parts[0], parts[1] = p.boot(parts[0]), p.inode(parts[1])
	if len(parts) == 4 && (!digits.MatchString(parts[2]) || !digits.MatchString(parts[3])) {
		if parts[2] != "" {
			parts[2] = p.device(parts[2])
		}
		mac, err := parseMAC(parts[3])
		if err != nil {
			return p.numbered("owner", s)
		}
		parts[3] = p.mac(mac).String()
	}
	return strings.Join(parts, "/")
}

// workload replaces NAMESPACE/NAME, or a name alone.
func (p *pseudonyms) workload(s string) string {
	if namespace, name, ok := strings.Cut(s, "/"); ok {
		return p.namespace(namespace) + "/" + p.name(name)
	}
	return p.name(s)
}

// mac replaces a hardware address. Addresses that are shared by design, or that no host can have,
// are kept. An address derived from an IP address keeps its prefix.
func (p *pseudonyms) mac(m verdict.MAC) verdict.MAC {
	derived := strings.HasPrefix(string(m), "\x02\x42") || strings.HasPrefix(string(m), "\x0a\x58")
	switch {
	case m == "", len(m) == 6 && m.Shared() && !derived, m == "\xff\xff\xff\xff\xff\xff", m == "\x00\x00\x00\x00\x00\x00":
		return m
	}
	prefix := "\x5e"
	switch {
	case derived:
		prefix = string(m[:2])
	case m.Group():
		prefix = "\x01"
	}
	class := fmt.Sprintf("mac %x %d", prefix, len(m))
	text := p.numbered(class, string(m))
	if p.given == nil || p.keeps(class, string(m)) {
		return m
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(text, class+"-")) // numbered made this text
	out := make([]byte, len(m))
	for i, at := len(out)-1, n; i >= 0; i, at = i-1, at>>8 {
		out[i] = byte(at)
	}
	if len(m) > 4 {
		copy(out, prefix)
	}
	return verdict.MAC(out)
}

// macText replaces a hardware address in its usual notation.
func (p *pseudonyms) macText(s string) string {
	m, err := net.ParseMAC(s)
	if err != nil {
		return removed
	}
	return p.mac(verdict.MAC(m)).String()
}

// address replaces the hardware address in an IPv6 address that is derived from one (RFC 4291,
// appendix A). Other addresses are kept.
func (p *pseudonyms) address(a netip.Addr) netip.Addr {
	b := a.As16()
	if !a.Is6() || a.Is4In6() || b[11] != 0xff || b[12] != 0xfe {
		return a
	}
	m := p.mac(verdict.MAC([]byte{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}))
	b[8], b[9], b[10], b[13], b[14], b[15] = m[0]^2, m[1], m[2], m[3], m[4], m[5]
	return netip.AddrFrom16(b).WithZone(a.Zone())
}

// A class is how the strings of one field are replaced.
type class func(p *pseudonyms, s string) string
