// This file describes the DHCP server udhcpd of BusyBox.
//
// The formats are those of BusyBox 1.35 (networking/udhcp/dhcpd.c: write_leases, read_config).

package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// UdhcpdName is the name of udhcpd in the API.
const UdhcpdName = "udhcpd"

// Udhcpd describes udhcpd.
var Udhcpd = ipam.IPAM{
	Name: UdhcpdName, Title: "udhcpd",
	Traits: traits,
	Files:  newUdhcpd,
	Repair: repair("dhcp/udhcpd.txt"),
}

// The places of files, as ipam.CleanPath returns them.
const (
	udhcpdConfig = "/etc/udhcpd.conf"
	udhcpdLeases = "/var/lib/misc/udhcpd.leases"
)

type udhcpdFiles struct {
	nodeFiles
	// When the last version of the lease file was written, when its leases end, and its records. Nil if there was none.
	written time.Time
	ends    map[netip.Addr]time.Time
	leases  []record
	// prompt is the number of versions whose new leases had just begun, since the last one with another new lease.
	prompt int
}

func newUdhcpd(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := &udhcpdFiles{nodeFiles: newNodeFiles(host, cfg)}
	return newSource(host, UdhcpdName, "udhcpd", f.list, f.versions)
}

// list returns the directories with files of udhcpd, and the server.
func (f *udhcpdFiles) list() (places []string, at []location) {
	data, _ := f.file(f.root + udhcpdConfig)
	path := f.root + parseUdhcpdConfig(data).leaseFile
	return []string{f.root + filepath.Dir(udhcpdConfig), filepath.Dir(path)},
		[]location{{Path: path, Config: f.root + udhcpdConfig, Read: func() (content, error) { return f.read(path) }}}
}

// read reads the configuration and the lease file. Only if udhcpd is built to write the file at each lease
// (FEATURE_UDHCPD_WRITE_LEASES_EARLY, the default, but not Debian's) does it have all leases. Otherwise, the file is up to two
// hours old (auto_time), and it is not known which addresses are free or leased to another client by now.
func (f *udhcpdFiles) read(path string) (c content, err error) {
	data, err := f.file(f.root + udhcpdConfig)
	configured := err == nil
	conf := parseUdhcpdConfig(data)
	data, err = f.file(path)
	if err != nil && (!os.IsNotExist(err) || !configured) { // the server does not make the file when it starts
		return c, err
	}
	written, leases := parseUdhcpdLeases(data)
	f.compare(written, leases, conf.leaseTime)
	if written.IsZero() && err == nil {
		leases = f.leases // the server has truncated the file, and writes it or cannot write it
	}
	f.leases = leases
	c.Reservations = conf.reservations
	if f.prompt > 1 && err == nil {
		c.Leases = leases
		if configured {
			c.Ranges = conf.ranges
		}
		return c, nil
	}
	for _, r := range leases {
		if r.Declined {
			c.Leases, c.Ranges = append(c.Leases, r), append(c.Ranges, ipam.Range{First: r.Address, Last: r.Address})
		}
	}
	return c, nil
}

// compare compares a version of the lease file with the one before. If the server writes the file at each lease, then the new
// lease of each version has all of its time left. Offers, which last for a minute, do not count.
func (f *udhcpdFiles) compare(written time.Time, leases []record, leaseTime time.Duration) {
	const (
		offer = time.Minute
		exact = 2 * time.Second // times have whole seconds
	)
	if written.IsZero() {
		return
	}
	if f.ends == nil || !written.Equal(f.written) {
		whole, other := false, false
		for _, r := range leases {
			left := r.Expires.Sub(written)
			if r.Declined || left <= offer || r.Expires.Sub(f.ends[r.Address]) <= exact {
				continue
			}
			if left > leaseTime-exact && left <= leaseTime {
				whole = true
			} else {
				other = true
			}
		}
		switch {
		case f.ends == nil: // all leases are new
		case other:
			f.prompt = 0
		case whole:
			f.prompt++
		}
		f.written, f.ends = written, map[netip.Addr]time.Time{}
	}
	for _, r := range leases {
		f.ends[r.Address] = r.Expires
	}
}

// parseUdhcpdLeases parses a lease file. The server writes a lease without a hardware address for an address that a client has
// declined or that answered to ARP, and leases it to nobody until that lease ends.
func parseUdhcpdLeases(data []byte) (written time.Time, leases []record) {
	const (
		header = 8
		size   = 36 // seconds left, address, hardware address, name and padding: 4, 4, 6, 20 and 2 bytes
	)
	if len(data) < header {
		return written, nil
	}
	written = time.Unix(int64(binary.BigEndian.Uint64(data)), 0)
	for data = data[header:]; len(data) >= size; data = data[size:] {
		left := binary.BigEndian.Uint32(data)
		if left == 0 {
			continue // expired or released
		}
		r := record{Address: netip.AddrFrom4([4]byte(data[4:8])), Expires: written.Add(time.Duration(left) * time.Second)}
		if mac := [6]byte(data[8:14]); mac == [6]byte{} {
			r.Declined = true
		} else {
			r.MAC = net.HardwareAddr(mac[:]).String()
			r.Hostname, _, _ = strings.Cut(string(data[14:34]), "\x00")
		}
		leases = append(leases, r)
	}
	return written, leases
}

type udhcpdConf struct {
	leaseFile    string
	leaseTime    time.Duration
	ranges       []ipam.Range
	reservations []record
}

// parseUdhcpdConfig parses a configuration. Like the server, it leaves out lines and values that it cannot parse.
func parseUdhcpdConfig(data []byte) udhcpdConf {
	c := udhcpdConf{leaseFile: udhcpdLeases, leaseTime: 10 * 24 * time.Hour}
	first, last := netip.AddrFrom4([4]byte{192, 168, 0, 20}), netip.AddrFrom4([4]byte{192, 168, 0, 254})
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		w := strings.Fields(line)
		if len(w) < 2 {
			continue
		}
		switch a, err := netip.ParseAddr(w[1]); strings.ToLower(w[0]) {
		case "start":
			if err == nil && a.Is4() {
				first = a
			}
		case "end":
			if err == nil && a.Is4() {
				last = a
			}
		case "lease_file":
			c.leaseFile = ipam.CleanPath("/" + w[1])
		case "opt", "option":
			if seconds, err := strconv.ParseUint(w[len(w)-1], 10, 32); err == nil && w[1] == "lease" {
				c.leaseTime = time.Duration(seconds) * time.Second
			}
		case "static_lease":
			if len(w) > 2 {
				if a, err := netip.ParseAddr(w[2]); err == nil && macOf(w[1]) != "" {
					c.reservations = append(c.reservations, record{Address: a, MAC: macOf(w[1]), clients: macOf(w[1])})
				}
			}
		}
	}
	c.ranges = []ipam.Range{{First: first, Last: last}}
	return c
}
