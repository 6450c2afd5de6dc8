// This file describes the DHCP clients of a node: what DHCP servers have leased to the node itself. Such a
// lease never makes a finding; in a conflict, it shows that the node has its address from a server, and
// the rival has not.
//
// Files stay when a lease ends, or when its client is stopped. A lease therefore counts until it ends, or while the
// kernel has its address with a lifetime, which a client sets. NetworkManager's own client records no lifetime, and an
// address with an infinite lease has none: the state of the device shows that NetworkManager has it by such a lease.
//
// The formats are those of systemd 252 (src/libsystemd-network/sd-dhcp-lease.c, dhcp_lease_save), NetworkManager
// 1.42 (src/core/dhcp/nm-dhcp-nettools.c, lease_save; src/core/nm-config.c, nm_config_device_state_write), ISC dhclient 4.4 (dhclient.leases(5)) and dhcpcd 9.4
// (src/dhcp.c, dhcp_bind). systemd and NetworkManager call theirs private, so that another version may
// have another one.

package dhcp

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// ClientName is the name of DHCP clients in the API.
const ClientName = "dhcp-client"

// Client describes DHCP clients.
var Client = ipam.IPAM{
	Name: ClientName, Title: "DHCP clients",
	Traits: ipam.Traits{Leases: true, Client: true},
	Files:  newClients,
	Pooled: func(p *ipam.Pool, node string) string {
		title := "the DHCP client"
		if i := slices.IndexFunc(clients, func(c client) bool { return strings.HasSuffix(leasePath(p), c.dir) }); i >= 0 {
			title += " " + clients[i].name
		}
		if node != "" {
			title += " of node " + node
		}
		return title
	},
}

// A client keeps its leases in a directory.
type client struct{ dir, name string }

// linksDir has the state of each interface that systemd-networkd manages.
const linksDir = "/run/systemd/netif/links"

var clients = []client{
	{"/run/systemd/netif/leases", "systemd-networkd"},
	{linksDir, "systemd-networkd"},                // its DHCPv6 client
	{"/var/lib/NetworkManager", "NetworkManager"}, // its own client, or dhclient
	{"/var/lib/dhcp", "dhclient"},
	{"/var/lib/dhclient", "dhclient"},
	{"/var/lib/dhcpcd", "dhcpcd"},
	{"/var/lib/dhcpcd5", "dhcpcd"}, // Debian 11, Raspberry Pi OS
	{"/var/db/dhcpcd", "dhcpcd"},
}

func newClients(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := newNodeFiles(host, cfg)
	var dirs []string
	var at []location
	for _, c := range clients {
		dir := f.root + c.dir
		dirs = append(dirs, dir)
		at = append(at, location{Path: dir, Read: func() (content, error) { return f.leased(dir) }})
	}
	return newSource(host, ClientName, "DHCP clients", func() ([]string, []location) { return dirs, at }, nil)
}

// leased reads the leases of all interfaces in a directory.
func (f nodeFiles) leased(dir string) (c content, err error) {
	names, err := f.names(dir)
	if len(names) == 0 || err != nil {
		return c, err
	}
	var bad faults
	var unread error // of one of the files
	for _, device := range f.host.Devices() {
		for _, name := range names {
			parse := leaseOf(dir, &device, name)
			if parse == nil {
				continue
			}
			data, written, err := f.dated(filepath.Join(dir, name))
			if err != nil {
				unread = err
				continue
			}
			switch r, ok := parse(data, written); {
			case !ok:
				bad.add(filepath.Join(dir, name), "")
			case r.Address.IsValid():
				if slices.Contains(device.Temporary, r.Address) || strings.HasPrefix(name, managed) && f.endless(&device, r.Address) {
					r.Expires = time.Time{}
				}
				r.MAC = device.MAC
				c.Leases = append(c.Leases, r)
			}
		}
	}
	if unread != nil && len(c.Leases) == 0 {
		return c, unread
	}
	problems := []string{bad.String()}
	if unread != nil {
		problems = append(problems, ipam.Unreadably(unread))
	}
	c.Problem = strings.Join(slices.DeleteFunc(problems, func(p string) bool { return p == "" }), "; ")
	return c, nil
}

// endless reports whether a device has an address that NetworkManager has got by an infinite lease. NetworkManager writes
// the state of a device when a connection on it begins or ends, with the options of its lease.
func (f nodeFiles) endless(device *ipam.Device, a netip.Addr) bool {
	if !slices.ContainsFunc(device.Prefixes, func(p netip.Prefix) bool { return p.Addr() == a }) {
		return false
	}
	data, _ := f.file(f.root + "/run/NetworkManager/devices/" + strconv.Itoa(device.Index))
	lines := strings.Split(string(data), "\n")
	return slices.Contains(lines, "dhcp4.ip_address="+a.String()) && slices.Contains(lines, "dhcp4.dhcp_lease_time="+forever)
}

// managed begins the names of lease files of NetworkManager's own client.
const managed = "internal-"

// leaseOf returns how to parse a file in a directory with the lease of an interface, given when it was written; nil if the
// file has no such lease.
func leaseOf(dir string, device *ipam.Device, name string) func(data []byte, written time.Time) (r record, ok bool) {
	const ofManager = len(managed + "5aa51665-d0eb-4cc6-ad6d-d9950d8185b3-") // and the interface
	base, ended := strings.CutSuffix(name, ".lease")
	switch {
	case strings.HasSuffix(dir, linksDir):
		if name == strconv.Itoa(device.Index) {
			return func(data []byte, _ time.Time) (record, bool) { return parseLink(data, device), true }
		}
	case name == strconv.Itoa(device.Index), ended && strings.HasPrefix(base, managed) && len(base) > ofManager && base[ofManager:] == device.Name:
		return parsePrivate
	case strings.HasPrefix(name, "dhclient"):
		return func(data []byte, _ time.Time) (record, bool) { return parseDhclient(data, device.Name) }
	case ended && (base == device.Name || strings.HasPrefix(base, device.Name+"-")): // with the SSID
		return parsePacket
	}
	return nil
}

// parsePrivate parses a file with lines "NAME=VALUE" of systemd-networkd or NetworkManager. They write it when they
// get or renew the lease.
func parsePrivate(data []byte, written time.Time) (r record, ok bool) {
	r.Expires = written
	for line := range strings.Lines(string(data)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "ADDRESS":
			r.Address, _ = netip.ParseAddr(value)
		case "SERVER_ADDRESS":
			r.Server, _ = netip.ParseAddr(value)
		case "CLIENTID":
			r.Client = hexadecimal(value)
		case "LIFETIME":
			r.Expires = endOf(written, value)
		}
	}
	return r, r.Address.IsValid()
}

// parseLink returns the DHCPv6 lease of an interface from the state that systemd-networkd keeps of it
// (src/network/networkd-dhcp6.c, link_serialize_dhcp6_client). The state has the identity for which a server leases
// (RFC 8415, section 12): the DUID of the client and the number of the association. The kernel has the address, with a
// lifetime and without a subnet, unlike those that router advertisements set.
func parseLink(data []byte, device *ipam.Device) (r record) {
	var duid, iaid string
	for line := range strings.Lines(string(data)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "DHCP6_CLIENT_DUID": // its type, and its digits
			_, value, _ = strings.Cut(value, ":")
			duid = hexadecimal(value)
		case "DHCP6_CLIENT_IAID":
			if n, err := strconv.ParseUint(value, 0, 32); err == nil {
				iaid = fmt.Sprintf("%08x", n)
			}
		}
	}
	if duid == "" || iaid == "" {
		return r
	}
	for _, p := range device.Prefixes {
		if p.Addr().Is6() && p.IsSingleIP() && slices.Contains(device.Temporary, p.Addr()) {
			return record{Address: p.Addr(), Client: duid + iaid}
		}
	}
	return r
}

// endOf returns when a lifetime ends that begins at a time: zero for never, and the beginning if the lifetime has another
// format. It is a number of seconds, or, since systemd 254, a text such as "1d 12h 5min 30s" or "infinity"
// (format_timespan).
func endOf(begin time.Time, lifetime string) (end time.Time) {
	if lifetime == forever || lifetime == "infinity" {
		return time.Time{}
	}
	if n, err := strconv.ParseUint(lifetime, 10, 32); err == nil {
		return begin.Add(time.Duration(n) * time.Second)
	}
	end = begin
	for part := range strings.FieldsSeq(lifetime) {
		digits := strings.TrimRight(part, "abcdefghijklmnopqrstuvwxyz")
		n, err := strconv.ParseUint(digits, 10, 32)
		unit := units[part[len(digits):]]
		if err != nil || unit == 0 {
			return begin
		}
		end = end.Add(time.Duration(n) * unit)
	}
	return end
}

// units are the units of systemd's format_timespan (src/basic/time-util.c).
var units = map[string]time.Duration{
	"y": 31557600 * time.Second, "month": 2629800 * time.Second, "w": 7 * 24 * time.Hour, "d": 24 * time.Hour,
	"h": time.Hour, "min": time.Minute, "s": time.Second,
}

// hexadecimal returns a client identifier in its hexadecimal digits; it may be in groups that colons separate, of
// which the first digit may be missing. It is empty for any other text.
func hexadecimal(text string) string {
	var all strings.Builder
	for group := range strings.SplitSeq(strings.ToLower(text), ":") {
		if len(group)%2 == 1 {
			group = "0" + group
		}
		if _, err := hex.DecodeString(group); err != nil {
			return ""
		}
		all.WriteString(group)
	}
	return all.String()
}

// parseDhclient returns the last lease of an interface in a file of dhclient, which appends leases:
//
//	lease {
//	  interface "eth0";
//	  fixed-address 192.0.2.108;
//	  option dhcp-server-identifier 192.0.2.1;
//	  option dhcp-client-identifier 1:52:54:0:aa:bb:1;
//	  expire 6 2026/11/28 20:27:05;
//	}
func parseDhclient(data []byte, device string) (last record, ok bool) {
	var r record
	on := ""
	for line := range strings.Lines(string(data)) {
		w := strings.Fields(strings.TrimRight(strings.TrimSpace(line), ";"))
		switch {
		case len(w) == 2 && w[0] == "lease":
			r, on = record{Expires: time.Unix(0, 0)}, ""
		case len(w) == 2 && w[0] == "interface":
			on = strings.Trim(w[1], `"`)
		case len(w) == 2 && w[0] == "fixed-address":
			r.Address, _ = netip.ParseAddr(w[1])
		case len(w) == 3 && w[1] == "dhcp-server-identifier":
			r.Server, _ = netip.ParseAddr(w[2])
		case len(w) == 3 && w[1] == "dhcp-client-identifier": // as the server has returned it
			r.Client = hexadecimal(w[2])
		case len(w) == 2 && w[0] == "expire" && w[1] == "never": // the lifetime is infinite
			r.Expires = time.Time{}
		case len(w) > 2 && w[0] == "expire" && w[1] == "epoch":
			n, _ := strconv.ParseInt(strings.TrimRight(w[2], ";"), 10, 64)
			r.Expires = time.Unix(n, 0)
		case len(w) == 4 && w[0] == "expire":
			if end, err := time.Parse(time.DateTime, strings.ReplaceAll(w[2], "/", "-")+" "+w[3]); err == nil {
				r.Expires = end
			}
		case len(w) == 1 && w[0] == "}" && on == device:
			last = r
		}
	}
	return last, true
}

// parsePacket returns the lease in the DHCP message that dhcpcd keeps (RFC 2131, section 2). For dhcpcd, it begins when
// the file was written, too (src/dhcp.c, read_lease).
func parsePacket(data []byte, written time.Time) (r record, ok bool) {
	const reply, yiaddr, cookie, pad, end, lifetime, server, client = 2, 16, 236, 0, 255, 51, 54, 61
	r.Expires = written
	if len(data) < cookie+4 || data[0] != reply || string(data[cookie:cookie+4]) != "\x63\x82\x53\x63" {
		return r, false
	}
	r.Address, ok = netip.AddrFromSlice(data[yiaddr : yiaddr+4])
	for options := data[cookie+4:]; len(options) > 0 && options[0] != end; {
		if options[0] == pad {
			options = options[1:]
			continue
		}
		if len(options) < 2 || len(options) < 2+int(options[1]) {
			break
		}
		value := options[2 : 2+int(options[1])]
		switch options[0] {
		case lifetime:
			if len(value) == 4 {
				r.Expires = endOf(written, strconv.FormatUint(uint64(binary.BigEndian.Uint32(value)), 10))
			}
		case server:
			r.Server, _ = netip.AddrFromSlice(value)
		case client: // as the server has returned it
			r.Client = hex.EncodeToString(value)
		}
		options = options[2+len(value):]
	}
	return r, ok
}
