package dhcp

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// parseLeases parses a lease file. A line is "EXPIRY MAC ADDRESS HOSTNAME CLIENT-ID" with the expiry
// in seconds since 1970, 0 for never, and with "*" for a missing name. After a line "duid DUID", the
// lines are those of IPv6, which have an IAID instead of the MAC. dnsmasq writes the file in place, so
// that the last line may be incomplete.
func parseLeases(data []byte) (leases []record, invalid string) {
	var bad faults
	number := 0
	for line := range strings.Lines(string(data[:bytes.LastIndexByte(data, '\n')+1])) {
		number++
		w := strings.Fields(line)
		if len(w) == 0 || w[0] == "duid" {
			continue
		}
		r, ok := parseLease(w)
		if !ok {
			bad.add(fmt.Sprintf("line %d of the lease file", number), ipam.Shorten(strings.TrimSpace(line)))
			continue
		}
		leases = append(leases, r)
	}
	return leases, bad.String()
}

func parseLease(w []string) (r record, ok bool) {
	if len(w) < 4 {
		return r, false
	}
	expiry, err := strconv.ParseInt(w[0], 10, 64)
	a, errAddress := netip.ParseAddr(w[2])
	if err != nil || errAddress != nil || expiry < 0 {
		return r, false
	}
	r.Address, r.Hostname = a, strings.TrimPrefix(w[3], "*")
	if expiry != 0 {
		r.Expires = time.Unix(expiry, 0)
	}
	if a.Is4() {
		r.MAC = macOf(w[1])
		if len(w) > 4 {
			r.Client = strings.TrimPrefix(w[4], "*")
		}
	}
	return r, true
}

// macOf returns a hardware address in its usual notation; empty if the text is not one. Its bytes are separated by
// colons, dashes or spaces, and may have one digit; or nothing separates them. A number and a dash may
// precede it: the type of the hardware.
func macOf(text string) string {
	if _, address, typed := strings.Cut(text, "-"); typed && strings.Contains(address, ":") {
		text = address
	}
	var mac net.HardwareAddr
	for digits := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(":- ", r) }) {
		if len(digits)%2 == 1 {
			digits = "0" + digits
		}
		part, err := hex.DecodeString(digits)
		if err != nil {
			return ""
		}
		mac = append(mac, part...)
	}
	if ethernet, firewire, infiniband := 6, 8, 20; len(mac) != ethernet && len(mac) != firewire && len(mac) != infiniband {
		return ""
	}
	return mac.String()
}

// parseStatus parses a file BRIDGE.status of libvirt's leaseshelper. invalid names the first entry that cannot be parsed.
func parseStatus(data []byte) (leases []record, invalid string, err error) {
	var all []ipam.Item[struct {
		Address  netip.Addr `json:"ip-address"`
		MAC      string     `json:"mac-address"`
		Hostname string     `json:"hostname"`
		Expiry   int64      `json:"expiry-time"`
	}]
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil, "", nil
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, "", err
	}
	var bad faults
	for i, item := range all {
		l := item.Value
		if item.Err != nil {
			bad.add(fmt.Sprintf("entry %d", i+1), ipam.OneLine(item.Err))
			continue
		}
		if !l.Address.IsValid() {
			continue // the entry of the server's own DUID
		}
		r := record{Address: l.Address, MAC: macOf(l.MAC), Hostname: l.Hostname}
		if l.Expiry != 0 {
			r.Expires = time.Unix(l.Expiry, 0)
		}
		leases = append(leases, r)
	}
	return leases, bad.String(), nil
}

// options are the options of a configuration that say what a server leases.
type options struct {
	ranges       []ipam.Range
	starts       []netip.Addr   // the first address of each range
	networks     []netip.Prefix // those that ranges name
	constructed  bool           // there are ranges of IPv6 in the networks of interfaces
	reservations []record
	kept         []ipam.Range            // prefixes that one client is to have
	named        []named                 // reservations of the addresses that names have
	addresses    map[string][]netip.Addr // of names in lower case, the first one first
	serves       bool                    // it is a DHCP server
	leaseFile    string
	scripted     bool     // a script has the leases, and not the file
	pidFile      string   // empty for the usual one
	hosts        []string // files and directories with more reservations
	names        []string // files and directories like /etc/hosts
	noHosts      bool     // /etc/hosts has no names for it
	noNames      bool     // the server has no names, because it is no DNS server
	ethers       bool     // /etc/ethers has more reservations
	files, dirs  []string // more configurations: paths, and values of conf-dir
	reading      string   // the file that is read
	problem      string   // why some are not known
}

// named is a reservation for which the name of the client decides: four and six are set for an address that only the names
// of the server can tell.
type named struct {
	record
	four, six bool
}

// addTo adds what the options say to the content of the files of a server.
func (o *options) addTo(c *content) {
	for c.Ranges = o.ranges; len(o.kept) > 0; o.kept = o.kept[1:] {
		c.Ranges = ipam.Without(c.Ranges, o.kept[0])
	}
	c.Reservations, c.Problem = o.reservations, cmp.Or(c.Problem, o.problem)
}

// parseConfig reads the lines "OPTION=VALUE" or "OPTION" of a configuration.
func (o *options) parseConfig(data []byte) {
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(uncommented(line), "=")
		o.set(strings.TrimSpace(name), strings.Trim(strings.TrimSpace(value), `"`))
	}
}

// uncommented returns a line without the comment that follows a space.
func uncommented(line string) string {
	line, _, _ = strings.Cut(" "+strings.ReplaceAll(line, "\t", " "), " #")
	return strings.TrimSpace(line)
}

// fromRoot returns a path of the configuration: systemd starts dnsmasq in /.
func fromRoot(path string) string { return ipam.CleanPath("/" + path) }

// addPath adds a path of the configuration, unless it is empty.
func addPath(paths []string, path string) []string {
	if path == "" {
		return paths
	}
	return append(paths, fromRoot(path))
}

func (o *options) set(name, value string) {
	switch name {
	case "dhcp-range":
		o.network(value)
		if r, ok := parseRange(value); ok {
			o.ranges, o.serves = append(o.ranges, r), true
		}
	case "dhcp-host":
		o.reserve(value)
	case "dhcp-leasefile":
		o.leaseFile = value
	case "leasefile-ro":
		o.scripted = true
	case "pid-file":
		if value != "" {
			o.pidFile = fromRoot(value)
		}
	case "dhcp-hostsfile", "dhcp-hostsdir":
		o.hosts = addPath(o.hosts, value)
	case "host-record":
		var names []string
		for word := range strings.SplitSeq(value, ",") { // names, and an address of each family
			if a, err := netip.ParseAddr(strings.TrimSpace(word)); err == nil {
				o.name(a, names)
			} else {
				names = append(names, strings.TrimSpace(word))
			}
		}
	case "addn-hosts", "hostsdir":
		o.names = addPath(o.names, value)
	case "no-hosts":
		o.noHosts = true
	case "port":
		o.noNames = value == "0"
	case "read-ethers":
		o.ethers = true
	case "conf-file":
		o.files = addPath(o.files, value)
	case "conf-dir":
		o.dirs = addPath(o.dirs, value)
	case "conf-script":
		o.problem = "a part of its configuration is the output of a program: " + ipam.Shorten(value)
	}
}

// network notes the network of a value of dhcp-range: the one that its netmask or prefix length names, and otherwise
// that of the interface with the first address.
func (o *options) network(value string) {
	o.constructed = o.constructed || strings.Contains(value, "constructor:")
	words := strings.Split(value, ",")
	i := slices.IndexFunc(words, func(word string) bool { _, err := netip.ParseAddr(strings.TrimSpace(word)); return err == nil })
	if i < 0 {
		return
	}
	start := netip.MustParseAddr(strings.TrimSpace(words[i]))
	o.starts = append(o.starts, start)
	o.serves = o.serves || start.Is4() // other values of IPv6 may only be about router advertisements
	for _, word := range words[i+1:] {
		word = strings.TrimSpace(word)
		bits, err := strconv.Atoi(word)
		if mask := net.ParseIP(word).To4(); start.Is4() && mask != nil && mask[0] == 255 {
			bits, _ = net.IPMask(mask).Size()
			err = nil
		} else if start.Is4() {
			continue
		}
		if p, invalid := start.Prefix(bits); err == nil && invalid == nil {
			o.networks = append(o.networks, p.Masked())
		}
	}
}

// parseHosts reads the lines of a hosts file.
func (o *options) parseHosts(data []byte) {
	for line := range strings.Lines(string(data)) {
		o.reserve(uncommented(line))
	}
}

// parseEthers reads the lines "MAC ADDRESS" or "MAC NAME" of /etc/ethers, which count as dhcp-host.
func (o *options) parseEthers(data []byte) {
	for line := range strings.Lines(string(data)) {
		if w := strings.Fields(line); len(w) > 1 && macOf(w[0]) != "" {
			o.reserve(w[0] + "," + w[1])
		}
	}
}

// parseNames reads the lines "ADDRESS NAME..." of a file like /etc/hosts.
func (o *options) parseNames(data []byte) {
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if w := strings.Fields(line); len(w) > 0 {
			if a, err := netip.ParseAddr(w[0]); err == nil {
				o.name(a, w[1:])
			}
		}
	}
}

func (o *options) name(a netip.Addr, names []string) {
	if o.addresses == nil {
		o.addresses = map[string][]netip.Addr{}
	}
	for _, name := range names {
		name = strings.ToLower(name)
		o.addresses[name] = append(o.addresses[name], a)
	}
}

// resolve adds the reservations of the addresses that names have: the first one of each family, unless another
// reservation has it. Of two reservations, the last one gets it (dnsmasq's dhcp_update_configs). An address outside of
// the networks of the server, such as that of another interface of the client, is leased to nobody (is_config_in_context).
func (o *options) resolve(devices []ipam.Device) {
	var networks []netip.Prefix
	for _, d := range devices {
		networks = append(networks, d.Prefixes...)
	}
	networks = append(slices.DeleteFunc(networks, func(p netip.Prefix) bool {
		return !slices.ContainsFunc(o.starts, p.Contains) && (!o.constructed || p.Addr().Is4())
	}), o.networks...)
	reserved := map[netip.Addr]bool{}
	for _, r := range o.reservations {
		reserved[r.Address] = true
	}
	for _, r := range slices.Backward(o.named) {
		for _, family := range []struct{ wanted, four bool }{{r.four, true}, {r.six, false}} {
			all := o.addresses[strings.ToLower(r.Hostname)]
			i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Is4() == family.four })
			if !family.wanted || i < 0 || reserved[all[i]] {
				continue
			}
			if slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(all[i]) }) {
				r.Address = all[i]
				reserved[r.Address] = true
				o.reservations = append(o.reservations, r.record)
			}
		}
	}
}

// parseRange parses a value of dhcp-range: tags, the first address, the last one or a mode, and what
// is of no interest here. It returns false for a mode without dynamic leases.
func parseRange(value string) (r ipam.Range, ok bool) {
	words := strings.Split(value, ",")
	for i := range words[:len(words)-1] {
		first, err := netip.ParseAddr(strings.TrimSpace(words[i]))
		if err != nil {
			continue
		}
		last, err := netip.ParseAddr(strings.TrimSpace(words[i+1]))
		if strings.Contains(value, "constructor:") {
			return r, false // the prefix is that of an interface
		}
		return ipam.Range{First: first, Last: last}, err == nil && first.BitLen() == last.BitLen() && first.Compare(last) <= 0
	}
	return r, false
}

// reserve parses a value of dhcp-host, or a line of a hosts file: a hardware address or other
// identities of the client, addresses, a name and a lease time, in any order. An address of IPv6 is in
// brackets. It may be a prefix; one whose first 64 bits are zero is the second half of an address, which is
// leased to other clients, too (dnsmasq's config_find_by_address6 compares all 128 bits).
func (o *options) reserve(value string) {
	var macs []string
	var reserved []record
	client := named{four: true, six: true}
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		six, bracketed := strings.CutPrefix(word, "[")
		if word == "ignore" {
			return
		}
		if strings.HasPrefix(word, "set:") || strings.HasPrefix(word, "tag:") || strings.HasPrefix(word, "net:") {
			continue
		}
		if bracketed {
			client.six = false
			r, err := ipam.ParseRange(strings.TrimSuffix(six, "]"), "/")
			switch half := netip.MustParsePrefix("::/64"); {
			case err != nil || half.Contains(r.First):
			case r.First == r.Last:
				reserved = append(reserved, record{Address: r.First})
			default:
				o.kept = append(o.kept, r)
			}
			continue
		}
		switch a, err := netip.ParseAddr(word); {
		case err == nil && a.Is4():
			client.four = false
			reserved = append(reserved, record{Address: a})
		case strings.Contains(word, ":") && macOf(word) != "":
			macs = append(macs, macOf(word))
		case strings.Contains(word, ":"), strings.Contains(word, "*"), word == "":
			macs = append(macs, "") // an identity of another kind, or a pattern
		case client.Hostname == "" && !leaseTime.MatchString(word):
			client.Hostname, _, _ = strings.Cut(word, ".") // what follows is the domain
		}
	}
	if len(macs) == 1 {
		client.MAC = macs[0]
	}
	client.file, client.clients = o.reading, strings.Join(slices.DeleteFunc(macs, func(mac string) bool { return mac == "" }), " ")
	for _, r := range reserved {
		r.Hostname, r.MAC, r.file, r.clients = client.Hostname, client.MAC, client.file, client.clients
		o.reservations = append(o.reservations, r)
	}
	if client.Hostname != "" {
		o.named = append(o.named, client)
	}
}

// leaseTime matches how long leases of a client last.
var leaseTime = regexp.MustCompile(`^([0-9]+[wdhmsWDHMS]?|infinite)$`)
