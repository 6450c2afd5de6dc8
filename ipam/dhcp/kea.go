// This file describes the DHCP servers of ISC Kea with leases in files (memfile).
//
// The formats are those of Kea 2.2: src/lib/dhcpsrv/csv_lease_file4.cc and csv_lease_file6.cc for the
// columns, memfile_lease_mgr.cc and src/bin/lfc/lfc_controller.cc for the files of the lease file
// cleanup, src/lib/process/daemon.cc for the file with the process ID, and the configuration in the Administrator
// Reference Manual.

package dhcp

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// KeaName is the name of Kea in the API.
const KeaName = "kea"

// Kea describes Kea.
var Kea = ipam.IPAM{
	Name: KeaName, Title: "Kea",
	Traits: traits,
	Files:  newKea,
	Repair: repair("dhcp/kea.txt"),
}

// The places of files, as ipam.CleanPath returns them.
const (
	configDir   = "/etc/kea"
	keaLeaseDir = "/var/lib/kea"
)

// servers are the configurations and the usual lease files of the servers.
var servers = []struct{ config, leases string }{
	{configDir + "/kea-dhcp4.conf", keaLeaseDir + "/kea-leases4.csv"},
	{configDir + "/kea-dhcp6.conf", keaLeaseDir + "/kea-leases6.csv"},
}

// older are the endings of the files with older lines, in the order in which Kea reads them. If the
// first one exists, it replaces the others: the cleanup has merged them into it.
var older = []string{".completed", ".2", ".1"}

type keaFiles struct{ nodeFiles }

func newKea(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := keaFiles{newNodeFiles(host, cfg)}
	return newSource(host, KeaName, "Kea", f.list, f.versions)
}

func (f keaFiles) list() (places []string, at []location) {
	places = []string{f.root + configDir, f.root + keaLeaseDir}
	for _, s := range servers {
		path, configured := f.root+s.config, f.root+s.leases
		if c, err := f.config(path); err == nil && c.leaseFile != "" {
			configured = f.leaseFile(c.leaseFile)
			places = append(places, filepath.Dir(configured))
		}
		at = append(at, location{Path: configured, Config: path, Read: func() (content, error) { return f.read(configured, path) }})
	}
	return places, at
}

// leaseFile returns the path of the lease file that a configuration names. Since 2.4.2, 2.6.3 and 2.7.9, Kea has a file
// without a directory in its data directory (FileManager::validatePath in src/lib/util/filesystem.cc), and before, in the
// directory in which it was started: systemd starts it in /.
func (f keaFiles) leaseFile(name string) string {
	path, kept := f.root+ipam.CleanPath("/"+name), f.root+keaLeaseDir+"/"+name
	if !strings.Contains(name, "/") && (f.exists(kept) || !f.exists(path)) {
		return kept
	}
	return path
}

func (f keaFiles) config(path string) (config, error) {
	data, err := f.file(path)
	if err != nil {
		return config{}, err
	}
	return parseConfig(data, func(path string) ([]byte, error) {
		data, err := f.file(f.root + ipam.CleanPath("/"+path)) // systemd starts Kea in /
		if err != nil {
			err = fmt.Errorf("read %s: %w", path, err)
		}
		return data, err
	})
}

func (f keaFiles) read(path, configPath string) (c content, err error) {
	conf, err := f.config(configPath)
	switch {
	case conf.elsewhere != "":
		return c, fmt.Errorf("its leases are %s, which ipwitness does not read", conf.elsewhere)
	case err != nil && f.versions[configPath] != nil:
		c.Problem = "cannot read the ranges in " + configPath + ": " + ipam.OneLine(err)
	}
	c.Ranges, c.Reservations = conf.ranges, conf.reservations
	newest, err := f.file(path)
	if errors.Is(err, os.ErrNotExist) && c.Problem != "" {
		err = errors.New(c.Problem) // which may name another lease file
	} else if errors.Is(err, os.ErrNotExist) && f.exists(configPath) {
		name := strings.TrimSuffix(filepath.Base(configPath), ".conf")
		err = f.missing(path, conf.leaseFile != "", f.root+"/run/kea/"+name+"."+name+".pid")
	}
	if err != nil {
		return c, err
	}
	leases := journal{}
	var bad faults
	for i, ending := range older {
		data, err := f.file(path + ending)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return c, err
		}
		if err := leases.read(filepath.Base(path)+ending, data, &bad); err != nil {
			return c, err
		}
		if i == 0 {
			break
		}
	}
	if err := leases.read(filepath.Base(path), newest, &bad); err != nil {
		return c, err
	}
	c.Problem = cmp.Or(bad.String(), c.Problem)
	for _, r := range leases {
		c.Leases = append(c.Leases, r)
	}
	return c, nil
}
