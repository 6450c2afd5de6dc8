package dhcp

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
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
	for line := range strings.Lines(string(data[:bytes.LastIndexByte(data, '\n')+1])) {
		w := strings.Fields(line)
		if len(w) == 0 || w[0] == "duid" {
			continue
		}
		r, ok := parseLease(w)
		if !ok {
			invalid = "a line of the lease file has another format: " + ipam.Shorten(strings.TrimSpace(line))
			continue
		}
		leases = append(leases, r)
	}
	return leases, invalid
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

// macOf returns a hardware address in its usual notation; empty if the text is none. A number and a
// dash may precede it: the type of the hardware.
func macOf(text string) string {
	if _, address, typed := strings.Cut(text, "-"); typed && strings.Contains(address, ":") {
		text = address
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}

// parseStatus parses a file BRIDGE.status of libvirt's leaseshelper.
func parseStatus(data []byte) (leases []record, err error) {
	var all []struct {
		Address  netip.Addr `json:"ip-address"`
		MAC      string     `json:"mac-address"`
		Hostname string     `json:"hostname"`
		Expiry   int64      `json:"expiry-time"`
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	for _, l := range all {
		if !l.Address.IsValid() {
			continue // the entry of the server's own DUID
		}
		r := record{Address: l.Address, Hostname: l.Hostname}
		if l.Address.Is4() {
			r.MAC = macOf(l.MAC)
		}
		if l.Expiry != 0 {
			r.Expires = time.Unix(l.Expiry, 0)
		}
		leases = append(leases, r)
	}
	return leases, nil
}

// options are the options of a configuration that say what a server leases.
type options struct {
	ranges       []ipam.Range
	reservations []record
	leaseFile    string
	hosts        []string // files and directories with more reservations
}

// parseConfig reads the lines "OPTION=VALUE" of a configuration.
func (o *options) parseConfig(data []byte) {
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			value, _, _ = strings.Cut(value, " #")
			o.set(strings.TrimSpace(name), strings.Trim(strings.TrimSpace(value), `"`))
		}
	}
}

// parseArguments reads the arguments of a command: "--OPTION=VALUE" or "--OPTION", "VALUE".
func (o *options) parseArguments(args []string) {
	for i, arg := range args {
		name, value, joined := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		o.set(name, value)
	}
}

func (o *options) set(name, value string) {
	switch name {
	case "dhcp-range":
		if r, ok := parseRange(value); ok {
			o.ranges = append(o.ranges, r)
		}
	case "dhcp-host":
		o.reservations = append(o.reservations, parseHost(value)...)
	case "dhcp-leasefile":
		o.leaseFile = value
	case "dhcp-hostsfile", "dhcp-hostsdir":
		o.hosts = append(o.hosts, value)
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

// parseHost parses a value of dhcp-host, or a line of a hosts file: a hardware address or other
// identities of the client, addresses, a name and a lease time, in any order.
func parseHost(value string) (reserved []record) {
	var macs []string
	hostname := ""
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		a, err := netip.ParseAddr(strings.Trim(word, "[]"))
		switch mac := macOf(word); {
		case word == "ignore":
			return nil
		case strings.HasPrefix(word, "set:"), strings.HasPrefix(word, "tag:"), strings.HasPrefix(word, "net:"):
		case err == nil:
			reserved = append(reserved, record{Address: a})
		case mac != "":
			macs = append(macs, mac)
		case strings.Contains(word, ":"), strings.Contains(word, "*"), word == "":
			macs = append(macs, "") // an identity of another kind, or a pattern
		case hostname == "" && strings.Trim(word, "0123456789") != "":
			hostname = word
		}
	}
	for i := range reserved {
		if reserved[i].Hostname = hostname; len(macs) == 1 {
			reserved[i].MAC = macs[0]
		}
	}
	return reserved
}
