package dnsmasq

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/lease"
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

// files are the files of dnsmasq on a node.
type files struct {
	host ipam.Host
	root string // precedes all paths; empty except in tests
}

func newSource(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := files{host: host}
	if len(cfg.Dirs) > 0 {
		f.root = cfg.Dirs[0]
	}
	return lease.NewSource(host, Name, "dnsmasq", f.list)
}

// list returns the directories with files of dnsmasq, and the servers.
func (f files) list() (places []string, at []lease.Location) {
	etc, misc, libvirt := f.root+etcDir, f.root+miscDir, f.root+libvirtDir
	places = []string{etc, etc + "/dnsmasq.d", misc, libvirt}
	config := etc + "/" + configName
	o := f.options(config)
	path := misc + "/" + leaseName
	if o.leaseFile != "" {
		path = f.root + ipam.CleanPath(o.leaseFile)
		places = append(places, filepath.Dir(path))
	}
	at = append(at, lease.Location{Path: path, Config: config, Read: func() (lease.Content, error) { return f.read(path, f.options(config)) }})
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
			at = append(at, lease.Location{Path: path, Config: pid, Read: func() (lease.Content, error) { return f.read(path, f.started(pid)) }})
		}
	}
	return places, at
}

// names returns the names of the entries of a directory of the node, sorted.
func (f files) names(dir string) []string {
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
func (f files) file(path string) ([]byte, error) {
	if err := f.host.Visible(filepath.Dir(path)); err != nil {
		return nil, os.ErrNotExist // the file there is the container's own
	}
	data, _, err := f.host.ReadFile(path, true, lease.MaxFile)
	return data, err
}

// options returns the options of the main configuration.
func (f files) options(config string) (o options) {
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
func (f files) started(path string) (o options) {
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
func (f files) read(path string, o options) (c lease.Content, err error) {
	data, err := f.file(path)
	if err != nil {
		return c, err
	}
	c.Leases, c.Problem = parseLeases(data)
	f.add(&c, o)
	return c, nil
}

// add adds what the options of a server say.
func (f files) add(c *lease.Content, o options) {
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
func (f files) ofLibvirt(dir, bridge string) lease.Location {
	path, config := filepath.Join(dir, bridge+".status"), ""
	for _, name := range f.names(dir) {
		if data, _ := f.file(filepath.Join(dir, name)); strings.HasSuffix(name, ".conf") && slices.Contains(strings.Fields(string(data)), "interface="+bridge) {
			config = filepath.Join(dir, name)
		}
	}
	return lease.Location{Path: path, Config: config, Read: func() (c lease.Content, err error) {
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
