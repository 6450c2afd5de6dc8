// This file describes the DHCP server of dnsmasq: one that an administrator configured, and
// those of libvirt, LXD and Incus.
//
// The formats are those of dnsmasq 2.90 (src/lease.c, lease_update_file; src/option.c, read_opts), of
// libvirt's leaseshelper (src/network/leaseshelper.c) and of Incus
// (internal/server/dnsmasq/dnsmasq.go, shared/subprocess/proc.go), which LXD shares.

package dhcp

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// DnsmasqName is the name of dnsmasq in the API.
const DnsmasqName = "dnsmasq"

// Dnsmasq describes dnsmasq.
var Dnsmasq = ipam.IPAM{
	Name: DnsmasqName, Title: "dnsmasq",
	Traits:    traits,
	Files:     newDnsmasq,
	PoolTitle: ipam.TitleOnNodes("dnsmasq"),
	Repair:    repair("dnsmasq", "Enlarge its range (dhcp-range), or shorten the lease time", "", excludeFromDnsmasq),
}

// excludeFromDnsmasq returns how to keep dnsmasq from leasing an address. A reservation without a client is for
// nobody, and dnsmasq leases a reserved address to no other client.
func excludeFromDnsmasq(p *ipam.Pool, node string, a netip.Addr) ipam.Exclusion {
	dir, file := filepath.Split(leasePath(p))
	switch {
	case strings.HasSuffix(file, ".status"):
		network := strings.TrimSuffix(filepath.Base(p.Config), ".conf")
		return ipam.Exclusion{
			How: "reserve it in libvirt's network",
			Step: advice.Say("Reserve %s in libvirt's network %s, so that it is leased to no client.", a, network).By(node,
				fmt.Sprintf("virsh net-update %s add ip-dhcp-host %s --live --config", advice.Quote(network), advice.Literal(fmt.Sprintf("<host name='reserved-%s' ip='%s'/>", strings.NewReplacer(".", "-", ":", "-").Replace(a.String()), a)))),
		}
	case strings.Contains(dir, "/networks/"):
		return ipam.Exclusion{
			How:  "set ipv4.address (ipv6.address) of the device of the instance that has it, or leave it out of ipv4.dhcp.ranges (ipv6.dhcp.ranges) of network " + filepath.Base(dir),
			Step: advice.Say("If an instance of LXD or Incus has %s, set ipv4.address (ipv6.address) of its network device to it. Otherwise leave the address out of ipv4.dhcp.ranges (ipv6.dhcp.ranges) of network %s.", a, filepath.Base(dir)),
		}
	}
	value := a.String()
	if a.Is6() {
		value = "[" + value + "]"
	}
	return ipam.Exclusion{
		How: "reserve it (dhcp-host) in its configuration",
		Step: advice.Say("Reserve %s on node %s, so that it is leased to no client, and restart dnsmasq: it keeps its leases.", a, node).By(node,
			fmt.Sprintf("echo 'dhcp-host=%s' > /etc/dnsmasq.d/reserved-%s && systemctl restart dnsmasq", value, a)),
	}
}

// The places of files, as ipam.CleanPath returns them.
const (
	etcDir     = "/etc"
	miscDir    = "/var/lib/misc"
	libvirtDir = "/var/lib/libvirt/dnsmasq"
	leaseName  = "dnsmasq.leases"
	configName = "dnsmasq.conf"
)

// bridgesDirs have a directory for each bridge of LXD and Incus.
var bridgesDirs = []string{"/var/lib/lxd/networks", "/var/snap/lxd/common/lxd/networks", "/var/lib/incus/networks"}

// dnsmasqFiles are the files of dnsmasq on a node.
type dnsmasqFiles struct{ nodeFiles }

func newDnsmasq(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := dnsmasqFiles{newNodeFiles(host, cfg)}
	return newSource(host, DnsmasqName, "dnsmasq", f.list)
}

// list returns the directories with files of dnsmasq, and the servers.
func (f dnsmasqFiles) list() (places []string, at []location) {
	etc, misc, libvirt := f.root+etcDir, f.root+miscDir, f.root+libvirtDir
	places = []string{etc, etc + "/dnsmasq.d", misc, libvirt}
	config := etc + "/" + configName
	o := f.options(config)
	path := misc + "/" + leaseName
	if o.leaseFile != "" {
		path = f.root + ipam.CleanPath(o.leaseFile)
		places = append(places, filepath.Dir(path))
	}
	at = append(at, location{Path: path, Config: config, Read: func() (content, error) { return f.read(path, f.options(config)) }})
	for _, name := range f.names(libvirt) {
		if bridge, ok := strings.CutSuffix(name, ".status"); ok {
			at = append(at, f.ofLibvirt(libvirt, bridge))
		}
	}
	for _, dir := range bridgesDirs {
		dir = f.root + dir
		places = append(places, dir)
		for _, bridge := range f.names(dir) {
			own := filepath.Join(dir, bridge)
			places = append(places, own, own+"/dnsmasq.hosts")
			path, pid := own+"/"+leaseName, own+"/dnsmasq.pid"
			at = append(at, location{Path: path, Config: pid, Read: func() (content, error) { return f.read(path, f.started(pid)) }})
		}
	}
	return places, at
}

// options returns the options of the main configuration.
func (f dnsmasqFiles) options(config string) (o options) {
	data, _ := f.file(config)
	o.parseConfig(data)
	dir := filepath.Dir(config) + "/dnsmasq.d"
	for _, name := range f.names(dir) {
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.Contains(name, ".dpkg-") {
			continue
		}
		data, _ := f.file(filepath.Join(dir, name))
		o.parseConfig(data)
	}
	return o
}

// started returns the options with which LXD or Incus started a server, according to the file that
// describes the process.
func (f dnsmasqFiles) started(path string) (o options) {
	var process struct {
		Args []string `yaml:"args"`
	}
	if data, err := f.file(path); err == nil && yaml.Unmarshal(data, &process) == nil {
		o.parseArguments(process.Args)
	}
	o.hosts = []string{strings.TrimPrefix(filepath.Dir(path), f.root) + "/dnsmasq.hosts"}
	return o
}

// read returns what a lease file and the options of a server say.
func (f dnsmasqFiles) read(path string, o options) (c content, err error) {
	data, err := f.file(path)
	if err != nil {
		return c, err
	}
	c.Leases, c.Problem = parseLeases(data)
	f.add(&c, o)
	return c, nil
}

// add adds what the options of a server say.
func (f dnsmasqFiles) add(c *content, o options) {
	c.Ranges, c.Reservations = o.ranges, o.reservations
	for _, path := range o.hosts {
		path = f.root + path
		paths := []string{path}
		for _, name := range f.names(path) {
			paths = append(paths, filepath.Join(path, name))
		}
		for _, path := range paths {
			data, _ := f.file(path) // a directory has no data
			for line := range strings.Lines(string(data)) {
				if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
					c.Reservations = append(c.Reservations, parseHost(line)...)
				}
			}
		}
	}
}

// ofLibvirt returns the server of one of libvirt's bridges. Its configuration is named after the
// network, and names the bridge.
func (f dnsmasqFiles) ofLibvirt(dir, bridge string) location {
	path, config := filepath.Join(dir, bridge+".status"), ""
	for _, name := range f.names(dir) {
		if data, _ := f.file(filepath.Join(dir, name)); strings.HasSuffix(name, ".conf") && slices.Contains(strings.Fields(string(data)), "interface="+bridge) {
			config = filepath.Join(dir, name)
		}
	}
	return location{Path: path, Config: config, Read: func() (c content, err error) {
		data, err := f.file(path)
		if err != nil {
			return c, err
		}
		if c.Leases, err = parseStatus(data); err != nil {
			return c, errors.New("the file has another format: " + err.Error())
		}
		var o options
		data, _ = f.file(config)
		o.parseConfig(data)
		f.add(&c, o)
		return c, nil
	}}
}
