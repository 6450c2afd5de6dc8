// This file describes the DHCP server of dnsmasq: one that an administrator configured, and
// those of libvirt, LXD and Incus.
//
// The formats are those of dnsmasq 2.90 (src/lease.c, lease_update_file; src/option.c, read_opts), of
// libvirt's leaseshelper (src/network/leaseshelper.c) and of Incus
// (internal/server/dnsmasq/dnsmasq.go, shared/subprocess/proc.go), which LXD shares.

package dhcp

import (
	_ "embed" // for the texts of remedies
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/ipam"
)

// DnsmasqName is the name of dnsmasq in the API.
const DnsmasqName = "dnsmasq"

// Dnsmasq describes dnsmasq.
var Dnsmasq = ipam.IPAM{
	Name: DnsmasqName, Title: "dnsmasq",
	Traits:    traits,
	Files:     newDnsmasq,
	PoolTitle: ipam.TitleOnNodes("dnsmasq"),
	Repair:    repair(dnsmasqTexts),
}

//go:embed dnsmasq.txt
var dnsmasqTexts string

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
	return newSource(host, DnsmasqName, "dnsmasq", f.list, f.versions)
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
