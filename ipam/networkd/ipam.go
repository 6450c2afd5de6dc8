// Package networkd describes the DHCP client of systemd-networkd: what a DHCP server has leased to the
// node itself. Such a lease never makes a finding; in a conflict, it shows that the node has its address
// from a server, and the rival has not.
//
// The format is that of systemd 252 (src/libsystemd-network/sd-dhcp-lease.c, dhcp_lease_save). systemd
// calls it private, so that another version may have another one.
package networkd

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/lease"
)

// Name is the name of systemd-networkd in the API.
const Name = "systemd-networkd"

// IPAM describes systemd-networkd.
var IPAM = ipam.IPAM{
	Name: Name, Title: "systemd-networkd",
	Traits: ipam.Traits{Leases: true},
	Files:  newSource,
	PoolTitle: func(_ *ipam.Pool, node string) string {
		if node == "" {
			return "the DHCP client systemd-networkd"
		}
		return "the DHCP client systemd-networkd of node " + node
	},
}

// leaseDir has a file for each interface with a lease. Its name is the index of the interface.
const leaseDir = "/run/systemd/netif/leases"

func newSource(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	dir := leaseDir
	if len(cfg.Dirs) > 0 {
		dir = cfg.Dirs[0]
	}
	at := lease.Location{Path: dir, Read: func() (lease.Content, error) { return read(host, dir) }}
	return lease.NewSource(host, Name, "systemd-networkd", func() ([]string, []lease.Location) {
		return []string{dir}, []lease.Location{at}
	})
}

// read reads the leases of all interfaces. networkd removes the file of a lease that has ended.
func read(host ipam.Host, dir string) (c lease.Content, err error) {
	if host.Visible(dir) != nil {
		return c, nil // the directory there is the container's own
	}
	d, _, err := host.OpenDir(dir)
	if err != nil {
		return c, nil // networkd does not run here, or does not use DHCP
	}
	_ = d.Close()
	for _, device := range host.Devices() {
		path := filepath.Join(dir, strconv.Itoa(device.Index))
		data, _, err := host.ReadFile(path, false, lease.MaxFile)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return c, err
		}
		a, ok := address(data)
		if !ok {
			c.Problem = path + " has another format than that of systemd 252"
			continue
		}
		c.Leases = append(c.Leases, lease.Record{Address: a, MAC: device.MAC})
	}
	return c, nil
}

// address returns the leased address of a file with lines "NAME=VALUE".
func address(data []byte) (a netip.Addr, ok bool) {
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), "ADDRESS="); found {
			a, err := netip.ParseAddr(value)
			return a, err == nil
		}
	}
	return a, false
}
