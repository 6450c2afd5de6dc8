// Package dhcp reads the leases and reservations of the DHCP servers dnsmasq, Kea and udhcpd, and the leases of
// DHCP clients, from their files.
package dhcp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// traits are the traits of all kinds of servers.
var traits = ipam.Traits{
	Leases: true,
	// A client that releases its lease, or whose lease ends, removes the address a moment later.
	EndDelay: 10 * time.Second,
}

func repair(texts string) ipam.Repair {
	return ipam.Repair{Texts: ipam.ReadTexts("dhcp/remedies.txt", texts), Words: words}
}

// words returns the values that the texts of remedies name. Of libvirt, bridge, shared and own, one is set: the network of
// libvirt, the bridge of LXD or Incus, the interface that NetworkManager shares, or that an administrator configured the
// server. server is the program that reads a configuration of Kea, and pid
// the file with its process ID.
func words(c *ipam.Case) map[string]any {
	path, dashed, bracketed := leasePath(c.Pool), strings.NewReplacer(".", "-", ":", "-").Replace(c.Address.String()), c.Address.String()
	server := strings.TrimSuffix(filepath.Base(c.Pool.Config), ".conf")
	if c.Address.Is6() {
		bracketed = "[" + bracketed + "]"
	}
	w := map[string]any{
		"leases": path, "libvirt": "", "bridge": "", "shared": "", "own": "", "leased": "", "dashed": dashed, "bracketed": bracketed,
		"server": server, "pid": "/run/kea/" + server + "." + server + ".pid", "clients": "",
	}
	if macs := c.Allocation.ReservedFor; macs != "" {
		w["clients"] = " for " + strings.ReplaceAll(macs, " ", " and ")
	}
	switch dir, file := filepath.Split(path); {
	case strings.HasSuffix(file, ".status"):
		w["libvirt"] = strings.TrimSuffix(filepath.Base(c.Pool.Config), ".conf")
	case strings.Contains(dir, "/networks/"):
		w["bridge"] = filepath.Base(dir)
	case strings.HasSuffix(filepath.Clean(dir), sharedDir):
		w["shared"] = strings.TrimSuffix(strings.TrimPrefix(file, "dnsmasq-"), ".leases")
	default:
		w["own"] = "yes"
	}
	if c.Allocation.MAC != "" {
		w["leased"] = "yes"
	}
	return w
}

// A record is a lease of a server, or a reservation in its configuration.
type record struct {
	Address netip.Addr
	// MAC is the hardware address of the client; empty if it is not known or there are several.
	MAC, Hostname string
	// file is the configuration that has a reservation, and clients are the hardware addresses that it is for, with a
	// space between; empty for a lease without one.
	file, clients string
	// Client is the client identifier that the client sent; empty if it sent none. FormerMAC is the
	// hardware address of the client that had the lease before, if it sent the same identifier.
	Client, FormerMAC string
	// Server is the server that the client names; invalid if it names none, or the record is the server's own. The Client
	// of a client's record is in hexadecimal digits.
	Server netip.Addr
	// Expires is when the lease ends; zero for never.
	Expires time.Time
	// Declined is set if the lease is nobody's: the server keeps the address back, because it was found in use.
	Declined bool

	missing time.Time // since when the file lacks it; zero if it has it
}

// content is what the files of a server say.
type content struct {
	Leases, Reservations []record
	// Ranges are the addresses that the server leases to clients without a reservation.
	Ranges []ipam.Range
	// Problem says which records cannot be parsed. It is text for people.
	Problem string
}

// faults are the parts of files, such as lines, that cannot be parsed.
type faults struct {
	first, why string
	more       int
}

// add adds a part, and what it is instead.
func (f *faults) add(part, why string) {
	if f.first != "" {
		f.more++
		return
	}
	f.first, f.why = part, why
}

// String names the first one, and says how many more there are; it is empty if there is none.
func (f *faults) String() string {
	text := f.first + " has another format"
	switch {
	case f.first == "":
		return ""
	case f.more > 0:
		text = fmt.Sprintf("%s and %d more have another format", f.first, f.more)
	}
	if f.why != "" {
		text += ": " + f.why
	}
	return text
}

// A server has the records of one DHCP server.
type server struct {
	ipam   string
	at     location
	pools  map[string]*ipam.FilePool // by name
	leases map[netip.Addr]record     // as last read, with those that are missing for a moment
	absent time.Time                 // since when its lease file is missing; zero if it exists
	lost   bool                      // whether the server ran at the last read, without the file
}

// maxClient is the maximum length of a client identifier in bytes (RFC 2132, section 2).
const maxClient = 255

// separator precedes the interface in the name of a pool, and second follows it in the name of the
// pool with the addresses that are reserved a second time.
const (
	separator = "#"
	second    = "#2"
)

// leasePath returns the path of the lease file that a pool is read from.
func leasePath(p *ipam.Pool) string {
	path, _, _ := strings.Cut(p.Name, separator)
	return path
}

// put records the content of the server's files. It returns true if it is to be called again soon.
func (s *server) put(c content, devices []ipam.Device, now time.Time) (again bool) {
	s.absent = time.Time{}
	again = s.keep(c.Leases, now)
	all := &assignment{s, devices, map[string]*ipam.FilePool{}, map[*ipam.FilePool]map[netip.Addr]ipam.FileAllocation{}}
	for _, r := range c.Ranges {
		all.pool(r.First, "").Ranges = append(all.pool(r.First, "").Ranges, r)
	}
	reserved := map[netip.Addr][]record{}
	for _, r := range c.Reservations {
		r.file = cmp.Or(r.file, s.at.Config)
		reserved[r.Address] = append(reserved[r.Address], r)
	}
	for a, list := range reserved {
		lease, leased := s.leases[a]
		r := list[0]
		if i := slices.IndexFunc(list, func(r record) bool { return leased && r.MAC == lease.MAC }); i >= 0 {
			r = list[i]
		} else if leased && r.MAC == "" {
			lease.file, lease.clients = r.file, r.clients
			r = lease
		}
		all.pool(a, "").Ranges = append(all.pool(a, "").Ranges, ipam.Range{First: a, Last: a})
		all.add(r, "")
		if i := slices.IndexFunc(list, func(other record) bool { return other.MAC != "" && r.MAC != "" && other.MAC != r.MAC }); i >= 0 {
			all.add(list[i], second)
		}
	}
	for a, r := range s.leases {
		if len(reserved[a]) == 0 {
			all.add(r, "")
		}
	}
	if len(all.next) == 0 && c.Problem != "" {
		all.pool(netip.Addr{}, "") // which says what cannot be read
	}
	for p, next := range all.next {
		p.Set(next)
		p.State, p.Problem = ipam.Known, c.Problem
		p.Ranges = ipam.Union(p.Ranges)
		p.Gateways = slices.DeleteFunc(p.Gateways, func(a netip.Addr) bool { return !ipam.Contain(p.Ranges, a) })
	}
	s.pools = all.pools
	return again
}

// keep replaces the leases. A lease that disappears before it expires is kept for a moment, because
// servers write whole files, which may be read while they are written.
func (s *server) keep(leases []record, now time.Time) (again bool) {
	next := map[netip.Addr]record{}
	for _, r := range leases {
		if r.Expires.IsZero() || now.Before(r.Expires) {
			next[r.Address] = r
			if s.ipam != ClientName {
				next[r.Address] = r.after(s.leases[r.Address])
			}
		}
	}
	for a, r := range s.leases {
		if _, there := next[a]; there || !r.Expires.IsZero() && !now.Before(r.Expires) {
			continue
		}
		if r.missing.IsZero() {
			r.missing = now
		}
		if now.Sub(r.missing) < ipam.Settled {
			next[a], again = r, true
		}
	}
	s.leases = next
	return again
}

// after returns the record with the hardware address that the lease had before, if it is the lease of one
// client: a server renews a lease for whoever sends its client identifier.
func (r record) after(was record) record {
	switch {
	case r.Client == "" || r.Client != was.Client:
	case r.MAC == was.MAC:
		r.FormerMAC = was.FormerMAC
	default:
		r.FormerMAC = was.MAC
	}
	return r
}

// fail records that the server's files cannot be read.
func (s *server) fail(err error, now time.Time) (again bool) {
	if errors.Is(err, os.ErrNotExist) {
		lost := errors.Is(err, errLost)
		if s.absent.IsZero() || lost && !s.lost { // a server that has just started makes its file in a moment
			s.absent = now
		}
		s.lost = lost
		if now.Sub(s.absent) < ipam.Settled {
			return true // it may be about to be replaced
		}
		switch {
		case len(s.leases) > 0:
			err = errors.New("the file was removed: if the server runs, it has its leases in memory only, and leases all addresses again after a restart")
		case lost:
			err = errors.New("the file does not exist, but the server runs: its command line or a file that the agent does not see names another one, or the file was removed")
		default: // the server never ran
			s.pools = nil
			return false
		}
	}
	if len(s.pools) == 0 {
		s.pools = map[string]*ipam.FilePool{s.at.Path: s.newPool(s.at.Path)}
	}
	for _, p := range s.pools {
		p.Fail(err)
	}
	return false
}

func (s *server) newPool(name string) *ipam.FilePool {
	p := ipam.NewFilePool(s.ipam, name)
	p.Config = s.at.Config
	return p
}

// An assignment assigns the content of files to pools.
type assignment struct {
	server  *server
	devices []ipam.Device
	pools   map[string]*ipam.FilePool
	next    map[*ipam.FilePool]map[netip.Addr]ipam.FileAllocation
}

// pool returns the pool for an address: that of the interface on whose link it is.
func (m *assignment) pool(a netip.Addr, suffix string) *ipam.FilePool {
	var device ipam.Device
	if i := slices.IndexFunc(m.devices, func(d ipam.Device) bool {
		return slices.ContainsFunc(d.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}); i >= 0 {
		device = m.devices[i]
	}
	name := m.server.at.Path
	if device.Name != "" {
		name += separator + device.Name
	}
	name += suffix
	p := m.pools[name]
	if p == nil {
		if p = m.server.pools[name]; p == nil {
			p = m.server.newPool(name)
		}
		p.Device, p.Ranges, p.Gateways, p.Server, p.ClientID = device.Name, nil, nil, netip.Addr{}, ""
		for _, own := range device.Prefixes {
			p.Gateways = append(p.Gateways, own.Addr()) // a server does not lease its own address
		}
		m.pools[name], m.next[p] = p, map[netip.Addr]ipam.FileAllocation{}
	}
	return p
}

func (m *assignment) add(r record, suffix string) {
	p := m.pool(r.Address, suffix)
	al := ipam.FileAllocation{Allocation: ipam.Allocation{Address: r.Address, MAC: r.MAC, FormerMAC: r.FormerMAC, Hostname: r.Hostname, FixedIn: r.file, ReservedFor: r.clients}, Expires: r.Expires}
	if r.Declined {
		al.KeptUntil, al.Expires = r.Expires, time.Time{}
	}
	m.next[p][r.Address] = al
	known := r.Server.Is4() || r.Address.Is6() && m.server.ipam == ClientName // networkd does not keep the address of a DHCPv6 server
	if known && len(r.Client) <= 2*maxClient {
		p.Server, p.ClientID = r.Server, r.Client
	}
}
