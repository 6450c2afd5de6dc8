// This file describes the DHCP client of systemd-networkd: what a DHCP server has leased to the
// node itself. Such a lease never makes a finding; in a conflict, it shows that the node has its address
// from a server, and the rival has not.
//
// The format is that of systemd 252 (src/libsystemd-network/sd-dhcp-lease.c, dhcp_lease_save). systemd
// calls it private, so that another version may have another one.

package dhcp

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// NetworkdName is the name of systemd-networkd in the API.
const NetworkdName = "systemd-networkd"

// Networkd describes systemd-networkd.
var Networkd = ipam.IPAM{
	Name: NetworkdName, Title: "systemd-networkd",
	Traits: ipam.Traits{Leases: true},
	Files:  newNetworkd,
	PoolTitle: func(_ *ipam.Pool, node string) string {
		if node == "" {
			return "the DHCP client systemd-networkd"
		}
		return "the DHCP client systemd-networkd of node " + node
	},
}

// networkdLeaseDir has a file for each interface with a lease. Its name is the index of the interface.
const networkdLeaseDir = "/run/systemd/netif/leases"

func newNetworkd(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	dir := networkdLeaseDir
	if len(cfg.Dirs) > 0 {
		dir = cfg.Dirs[0]
	}
	at := location{Path: dir, Read: func() (content, error) { return read(host, dir) }}
	return newSource(host, NetworkdName, "systemd-networkd", func() ([]string, []location) {
		return []string{dir}, []location{at}
	}, nil)
}

// read reads the leases of all interfaces. networkd removes the file of a lease that has ended.
func read(host ipam.Host, dir string) (c content, err error) {
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
		data, _, err := host.ReadFile(path, false, maxFile)
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
		c.Leases = append(c.Leases, record{Address: a, MAC: device.MAC})
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
