// This file describes the DHCP server of dnsmasq: one that an administrator configured, and
// those of libvirt, LXD, Incus and NetworkManager.
//
// The formats are those of dnsmasq 2.90 (src/lease.c, lease_update_file; src/option.c, read_opts), of
// libvirt's leaseshelper (src/network/leaseshelper.c) and of Incus
// (internal/server/dnsmasq/dnsmasq.go, shared/subprocess/proc.go), which LXD shares. NetworkManager names the files in
// src/core/dnsmasq/nm-dnsmasq-manager.c (1.42), and gives the range on the command line.

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

// DnsmasqName is the name of dnsmasq in the API.
const DnsmasqName = "dnsmasq"

// Dnsmasq describes dnsmasq.
var Dnsmasq = ipam.IPAM{
	Name: DnsmasqName, Title: "dnsmasq",
	Traits: traits,
	Files:  newDnsmasq,
	Repair: repair("dhcp/dnsmasq.txt"),
}

// The places of files, as ipam.CleanPath returns them.
const (
	etcDir     = "/etc"
	libvirtDir = "/var/lib/libvirt/dnsmasq"
	sharedDir  = "/var/lib/NetworkManager"
	sharedConf = "/etc/NetworkManager/dnsmasq-shared.d"
	leaseName  = "dnsmasq.leases"
	configName = "dnsmasq.conf"
	// Where a server writes its process ID: on Debian, and unless pid-file says something else.
	debianPID, usualPID = "/run/dnsmasq/dnsmasq.pid", "/run/dnsmasq.pid"
)

// leaseDirs are where the server of a distribution keeps its leases: Debian, and Fedora and RHEL.
var leaseDirs = []string{"/var/lib/misc", "/var/lib/dnsmasq"}

// bridgesDirs have a directory for each bridge of LXD and Incus.
var bridgesDirs = []string{"/var/lib/lxd/networks", "/var/snap/lxd/common/lxd/networks", "/var/lib/incus/networks"}

type dnsmasqFiles struct{ nodeFiles }

func newDnsmasq(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := dnsmasqFiles{newNodeFiles(host, cfg)}
	return newSource(host, DnsmasqName, "dnsmasq", f.list, f.versions)
}

// list returns the directories with files of dnsmasq, and the servers.
func (f dnsmasqFiles) list() (places []string, at []location) {
	etc, libvirt := f.root+etcDir, f.root+libvirtDir
	places = []string{etc, etc + "/dnsmasq.d", libvirt}
	path := ""
	for _, dir := range leaseDirs {
		places = append(places, f.root+dir)
		candidate := f.root + dir + "/" + leaseName
		f.note(candidate)
		if had, info := f.versions[path], f.versions[candidate]; path == "" || info != nil && (had == nil || info.ModTime().After(had.ModTime())) {
			path = candidate
		}
	}
	if o := f.configured(); o.leaseFile != "" {
		path = f.root + fromRoot(o.leaseFile)
		places = append(places, filepath.Dir(path))
	}
	at = append(at, location{Path: path, Config: etc + "/" + configName, Read: func() (content, error) { return f.read(path, f.configured()) }})
	names := func(dir string) []string {
		names, err := f.names(dir)
		if err != nil {
			at = append(at, location{Path: dir, Read: func() (content, error) { return content{}, err }})
		}
		return names
	}
	for _, name := range names(libvirt) {
		if bridge, ok := strings.CutSuffix(name, ".status"); ok {
			at = append(at, f.ofLibvirt(libvirt, bridge))
		}
	}
	places = append(places, f.root+sharedDir, f.root+sharedConf)
	for _, name := range names(f.root + sharedDir) {
		if path := f.root + sharedDir + "/" + name; strings.HasPrefix(name, "dnsmasq-") && strings.HasSuffix(name, ".leases") {
			at = append(at, location{Path: path, Read: func() (content, error) { return f.read(path, f.shared()) }})
		}
	}
	for _, dir := range bridgesDirs {
		dir = f.root + dir
		places = append(places, dir)
		for _, bridge := range names(dir) {
			own := filepath.Join(dir, bridge)
			places = append(places, own, own+"/dnsmasq.hosts")
			path, pid := own+"/"+leaseName, own+"/dnsmasq.pid"
			at = append(at, location{Path: path, Config: pid, Read: func() (content, error) { return f.read(path, f.started(pid)) }})
		}
	}
	return places, at
}

// configured returns the options of the main configuration. Debian starts dnsmasq with this --conf-dir.
func (f dnsmasqFiles) configured() (o options) {
	for _, config := range []string{etcDir + "/" + configName, etcDir + "/dnsmasq.d"} {
		if f.note(f.root + config); f.versions[f.root+config] == nil {
			continue
		}
		if f.versions[f.root+config].IsDir() {
			o.dirs = append(o.dirs, config+",.dpkg-dist,.dpkg-old,.dpkg-new")
		} else {
			o.files = append(o.files, config)
		}
	}
	f.follow(&o)
	return o
}

// shared returns the options of the servers that NetworkManager starts for shared connections (with --no-hosts).
func (f dnsmasqFiles) shared() (o options) {
	o.noHosts = true
	if f.exists(f.root + sharedConf) {
		o.dirs = []string{sharedConf}
	}
	f.follow(&o)
	return o
}

// follow reads all files to which options lead.
func (f dnsmasqFiles) follow(o *options) {
	read := func(path string, parse func(data []byte)) {
		data, err := f.file(f.root + path)
		if err != nil {
			o.problem = "cannot read " + path + ": " + ipam.OneLine(err)
		}
		o.reading = path
		parse(data)
	}
	for done := 0; done < len(o.files) || len(o.dirs) > 0; {
		for ; done < len(o.files); done++ {
			if path := o.files[done]; !slices.Contains(o.files[:done], path) {
				read(path, o.parseConfig)
			}
		}
		for _, dir := range o.dirs {
			o.files = append(o.files, f.confFiles(o, dir)...)
		}
		o.dirs = nil
	}
	readAll := func(paths []string, parse func(data []byte)) {
		for _, path := range paths {
			f.note(f.root + path)
			switch info := f.versions[f.root+path]; {
			case info == nil: // dnsmasq starts without it
				if err := f.host.Visible(f.root + filepath.Dir(path)); err != nil {
					o.problem = "cannot read " + path + ": " + ipam.OneLine(err)
				}
			case info.IsDir():
				for _, file := range f.confFiles(o, path) {
					read(file, parse)
				}
			default:
				read(path, parse)
			}
		}
	}
	readAll(o.hosts, o.parseHosts)
	if o.ethers {
		read(etcDir+"/ethers", o.parseEthers)
	}
	if len(o.named) == 0 || o.noNames {
		return
	}
	if !o.noHosts && f.host.Visible(f.root+etcDir) == nil { // in Kubernetes, that file is the container's own
		readAll([]string{etcDir + "/hosts"}, o.parseNames)
	}
	readAll(o.names, o.parseNames)
	o.resolve(f.host.Devices())
}

// confFiles returns the files that a value of conf-dir names: those of a directory, without those whose
// names have one of the endings that follow, or, after a "*", only with those.
func (f dnsmasqFiles) confFiles(o *options, value string) (files []string) {
	words := strings.Split(value, ",")
	dir := words[0]
	all, err := f.names(f.root + dir)
	if err != nil {
		o.problem = "cannot read " + dir + ": " + ipam.OneLine(err)
	} else if f.versions[f.root+dir] == nil {
		o.problem = "cannot read " + dir + ": it does not exist, or is not visible to the agent"
	}
	wants := slices.ContainsFunc(words, func(word string) bool { return len(word) > 1 && word[0] == '*' })
	for _, name := range all {
		ends := func(wanted bool) bool {
			return slices.ContainsFunc(words[1:], func(word string) bool {
				ending, starred := strings.CutPrefix(word, "*")
				return starred == wanted && ending != "" && len(name) > len(ending) && strings.HasSuffix(name, ending)
			})
		}
		if ends(false) || wants && !ends(true) || strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") {
			continue
		}
		path := filepath.Join(dir, name)
		f.note(f.root + path)
		if info := f.versions[f.root+path]; info != nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
	}
	return files
}

// started returns the options with which LXD or Incus started a server, according to the file that
// describes the process.
func (f dnsmasqFiles) started(path string) (o options) {
	var process struct {
		Args []string `yaml:"args"`
	}
	data, err := f.file(path)
	if err == nil {
		err = yaml.Unmarshal(data, &process)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		o.problem = "cannot read " + strings.TrimPrefix(path, f.root) + ": " + ipam.OneLine(err)
	}
	for i, arg := range process.Args { // "--OPTION=VALUE" or "--OPTION", "VALUE"
		name, value, joined := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !joined && i+1 < len(process.Args) {
			value = process.Args[i+1]
		}
		o.set(name, value)
	}
	o.hosts = []string{strings.TrimPrefix(filepath.Dir(path), f.root) + "/dnsmasq.hosts"}
	o.pidFile = strings.TrimPrefix(path, f.root)
	f.follow(&o)
	return o
}

// read returns what a lease file and the options of a server say.
func (f dnsmasqFiles) read(path string, o options) (c content, err error) {
	if o.scripted && o.serves {
		return c, errors.New("a script has its leases, or only its memory (leasefile-ro): ipwitness does not read them")
	}
	data, err := f.file(path)
	if errors.Is(err, os.ErrNotExist) && o.problem != "" {
		err = errors.New(o.problem) // which may name another lease file
	} else if errors.Is(err, os.ErrNotExist) && o.serves {
		pids := []string{f.root + o.pidFile}
		if o.pidFile == "" {
			pids = []string{f.root + debianPID, f.root + usualPID}
		}
		err = f.missing(path, o.leaseFile != "", pids...)
	}
	if err != nil {
		return c, err
	}
	if c.Leases, c.Problem = parseLeases(data); len(c.Leases) == 0 && !o.serves && o.problem == "" {
		c.Problem = "" // the file was left behind: dnsmasq no longer serves DHCP
	}
	o.addTo(&c)
	return c, nil
}

// ofLibvirt returns the server of one of libvirt's bridges. Its configuration is named after the
// network, and names the bridge.
func (f dnsmasqFiles) ofLibvirt(dir, bridge string) location {
	path, config := filepath.Join(dir, bridge+".status"), ""
	names, _ := f.names(dir) // list names an error
	for _, name := range names {
		if data, _ := f.file(filepath.Join(dir, name)); strings.HasSuffix(name, ".conf") && slices.Contains(strings.Fields(string(data)), "interface="+bridge) {
			config = filepath.Join(dir, name)
		}
	}
	return location{Path: path, Config: config, Read: func() (c content, err error) {
		data, err := f.file(path)
		if err != nil {
			return c, err
		}
		if c.Leases, c.Problem, err = parseStatus(data); err != nil {
			return c, errors.New("the file has another format: " + err.Error())
		}
		var o options
		if config != "" {
			o.files = []string{strings.TrimPrefix(config, f.root)}
		}
		f.follow(&o)
		o.addTo(&c)
		return c, nil
	}}
}
