package kea

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/lease"
)

// The places of files, as Clean returns them.
const (
	configDir = "/etc/kea"
	leaseDir  = "/var/lib/kea"
)

// servers are the configurations and the usual lease files of the servers.
var servers = []struct{ config, leases string }{
	{configDir + "/kea-dhcp4.conf", leaseDir + "/kea-leases4.csv"},
	{configDir + "/kea-dhcp6.conf", leaseDir + "/kea-leases6.csv"},
}

// older are the endings of the files with older lines, in the order in which Kea reads them. If the
// first one exists, it replaces the others: the cleanup has merged them into it.
var older = []string{".completed", ".2", ".1"}

// files are the files of Kea on a node.
type files struct {
	host ipam.Host
	root string // precedes all paths; empty except in tests
}

func newSource(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	f := files{host: host}
	if len(cfg.Dirs) > 0 {
		f.root = cfg.Dirs[0]
	}
	return lease.NewSource(host, Name, "Kea", f.list)
}

// list returns the directories with files of Kea, and the servers.
func (f files) list() (places []string, at []lease.Location) {
	places = []string{f.root + configDir, f.root + leaseDir}
	for _, s := range servers {
		path, configured := f.root+s.config, f.root+s.leases
		if c, err := f.config(path); err == nil && c.leaseFile != "" {
			configured = f.root + ipam.CleanPath(c.leaseFile)
			places = append(places, filepath.Dir(configured))
		}
		at = append(at, lease.Location{Path: configured, Config: path, Read: func() (lease.Content, error) { return f.read(configured, path) }})
	}
	return places, at
}

// file returns the content of a file of the node.
func (f files) file(path string) ([]byte, error) {
	if err := f.host.Visible(filepath.Dir(path)); err != nil {
		return nil, os.ErrNotExist // the file there is the container's own
	}
	data, _, err := f.host.ReadFile(path, true, lease.MaxFile)
	return data, err
}

func (f files) config(path string) (config, error) {
	data, err := f.file(path)
	if err != nil {
		return config{}, err
	}
	return parseConfig(data)
}

// read reads the lease files and the configuration of a server.
func (f files) read(path, configPath string) (c lease.Content, err error) {
	conf, err := f.config(configPath)
	switch {
	case conf.database != "":
		return c, fmt.Errorf("its leases are in a database (%s), which ipwitness does not read", conf.database)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		c.Problem = "cannot read the ranges in " + configPath + ": " + ipam.OneLine(err)
	}
	c.Ranges, c.Reservations = conf.ranges, conf.reservations
	newest, err := f.file(path)
	if err != nil {
		return c, err
	}
	leases := journal{}
	add := func(data []byte) error {
		invalid, err := leases.read(data)
		if invalid != "" {
			c.Problem = invalid
		}
		return err
	}
	for i, ending := range older {
		data, err := f.file(path + ending)
		if err != nil {
			continue
		}
		if err := add(data); err != nil {
			return c, err
		}
		if i == 0 {
			break
		}
	}
	if err := add(newest); err != nil {
		return c, err
	}
	for _, r := range leases {
		c.Leases = append(c.Leases, r)
	}
	return c, nil
}
