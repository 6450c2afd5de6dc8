package dhcp

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/ipam"
)

// The places of files, as Clean returns them.
const (
	etcDir     = "/etc"
	miscDir    = "/var/lib/misc"
	libvirtDir = "/var/lib/libvirt/dnsmasq"
	leaseName  = "dnsmasq.leases"
	configName = "dnsmasq.conf"
)

// bridgesDirs have a directory for each bridge of LXD and Incus.
var bridgesDirs = []string{"/var/lib/lxd/networks", "/var/snap/lxd/common/lxd/networks", "/var/lib/incus/networks"}

// maxEntries limits the number of entries of a directory that are read.
const maxEntries = 1024

// dnsmasqFiles are the files of dnsmasq on a node.
type dnsmasqFiles struct {
	host ipam.Host
	root string // precedes all paths; empty except in tests
}

func newDnsmasq(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := dnsmasqFiles{host: host}
	if len(cfg.Dirs) > 0 {
		f.root = cfg.Dirs[0]
	}
	return NewSource(host, DnsmasqName, "dnsmasq", f.list)
}

// list returns the directories with files of dnsmasq, and the servers.
func (f dnsmasqFiles) list() (places []string, at []Location) {
	etc, misc, libvirt := f.root+etcDir, f.root+miscDir, f.root+libvirtDir
	places = []string{etc, etc + "/dnsmasq.d", misc, libvirt}
	config := etc + "/" + configName
	o := f.options(config)
	path := misc + "/" + leaseName
	if o.leaseFile != "" {
		path = f.root + ipam.CleanPath(o.leaseFile)
		places = append(places, filepath.Dir(path))
	}
	at = append(at, Location{Path: path, Config: config, Read: func() (Content, error) { return f.read(path, f.options(config)) }})
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
			at = append(at, Location{Path: path, Config: pid, Read: func() (Content, error) { return f.read(path, f.started(pid)) }})
		}
	}
	return places, at
}

// names returns the names of the entries of a directory of the node, sorted.
func (f dnsmasqFiles) names(dir string) []string {
	if f.host.Visible(dir) != nil {
		return nil
	}
	d, _, err := f.host.OpenDir(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = d.Close() }()
	names, _ := d.Readdirnames(maxEntries)
	slices.Sort(names)
	return names
}

// file returns the content of a file of the node.
func (f dnsmasqFiles) file(path string) ([]byte, error) {
	if err := f.host.Visible(filepath.Dir(path)); err != nil {
		return nil, os.ErrNotExist // the file there is the container's own
	}
	data, _, err := f.host.ReadFile(path, true, MaxFile)
	return data, err
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
func (f dnsmasqFiles) read(path string, o options) (c Content, err error) {
	data, err := f.file(path)
	if err != nil {
		return c, err
	}
	c.Leases, c.Problem = parseLeases(data)
	f.add(&c, o)
	return c, nil
}

// add adds what the options of a server say.
func (f dnsmasqFiles) add(c *Content, o options) {
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
func (f dnsmasqFiles) ofLibvirt(dir, bridge string) Location {
	path, config := filepath.Join(dir, bridge+".status"), ""
	for _, name := range f.names(dir) {
		if data, _ := f.file(filepath.Join(dir, name)); strings.HasSuffix(name, ".conf") && slices.Contains(strings.Fields(string(data)), "interface="+bridge) {
			config = filepath.Join(dir, name)
		}
	}
	return Location{Path: path, Config: config, Read: func() (c Content, err error) {
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
