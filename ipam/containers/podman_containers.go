package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// suffix ends the directory of the containers in the storage: overlay-containers.
	suffix = "-containers"
	// maxListSize limits the size of a list. A container has less than a kilobyte in it.
	maxListSize = 16 << 20
)

// lists are the lists of the containers in that directory. Since containers/storage 1.44, those that a
// reboot may lose (podman run --rm) have a list of their own.
var lists = []string{"containers.json", "volatile-containers.json"}

// entry is a container in a list (Container in containers.go of containers/storage v1.57).
type entry struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
}

// spec is the part of a container's userdata/config.json that is used (runtime-spec v1.0). CRI-O has
// containers in the same storage.
type spec struct {
	Annotations map[string]string `json:"annotations"`
	Linux       struct {
		Namespaces []struct {
			Type string `json:"type"`
			Path string `json:"path"`
		} `json:"namespaces"`
	} `json:"linux"`
}

// netns returns the path of the network namespace that podman has created for a container; empty if
// there is none.
func (s *spec) netns() string {
	if s.Annotations["io.container.manager"] != "libpod" {
		return ""
	}
	for _, n := range s.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path
		}
	}
	return ""
}

type podmanContainers struct {
	host    ipam.Host
	storage string
	dirs    []string                   // directories of the containers
	hidden  error                      // why there may be others
	known   map[string]podmanContainer // by ID
	found   []*ipam.Container
}

// podmanContainer is a container with the version of the file that has its namespace.
type podmanContainer struct {
	name, netns string
	info        os.FileInfo
}

// find looks for the directories of the containers.
func (c *podmanContainers) find() {
	entries, err := ipam.Entries(c.host, c.storage, maxContainers)
	if c.hidden = err; err == nil {
		c.dirs = nil
	}
	for _, e := range entries {
		if dir := filepath.Join(c.storage, e.Name()); strings.HasSuffix(dir, suffix) && !slices.Contains(c.dirs, dir) {
			c.dirs = append(c.dirs, dir)
		}
	}
}

// read reads what has changed.
func (c *podmanContainers) read() error {
	next := map[string]podmanContainer{}
	bad := c.hidden
	for _, dir := range c.dirs {
		for _, name := range lists {
			path := filepath.Join(dir, name)
			data, _, err := c.host.ReadFile(path, false, maxListSize)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			var list []ipam.Item[entry]
			if err == nil {
				err = json.Unmarshal(data, &list)
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
			for i, item := range list[:min(len(list), maxContainers)] {
				e := item.Value
				if item.Err != nil && bad == nil {
					bad = fmt.Errorf("read container %d (%s) in %s: %w", i, ipam.Cut(ipam.Plain(e.ID), 64), path, item.Err)
				}
				if e.ID == "" || len(e.ID) > ipam.MaxText || len(e.Names) == 0 || len(e.Names[0]) > ipam.MaxText {
					continue
				}
				n := c.known[e.ID]
				n.name = e.Names[0]
				n.read(c.host, filepath.Join(dir, e.ID, "userdata", "config.json"))
				next[e.ID] = n
			}
		}
	}
	for id, n := range c.known {
		if _, found := next[id]; bad != nil && !found {
			next[id] = n
		}
	}
	c.known = next
	return bad
}

// read reads the path of the container's network namespace if the file has changed. Before the first
// start of a container, there is no file.
func (n *podmanContainer) read(host ipam.Host, path string) {
	info, err := os.Lstat(path)
	if err != nil || ipam.SameVersion(info, n.info) {
		return
	}
	data, _, err := host.ReadFile(path, false, maxConfig)
	if err != nil {
		return
	}
	n.info = info
	var s spec
	if json.Unmarshal(data, &s) == nil {
		n.netns = ""
		if p := s.netns(); p != "" {
			n.netns = ipam.CleanPath(p)
		}
	}
}

// give records the addresses of containers. Of the containers of a pod, which share a namespace, the one
// with addresses names it.
func (c *podmanContainers) give(given map[string]map[netip.Addr]string) {
	byNetns := map[string]*ipam.Container{}
	for _, id := range slices.Sorted(maps.Keys(c.known)) {
		n := c.known[id]
		if had := byNetns[n.netns]; n.netns != "" && (had == nil || len(had.Given) == 0) {
			byNetns[n.netns] = &ipam.Container{Engine: PodmanName, ID: id, Name: n.name, Netns: n.netns, Given: given[id]}
		}
	}
	for _, had := range c.found {
		if now := byNetns[had.Netns]; now != nil {
			byNetns[had.Netns] = keep(had, now)
		}
	}
	c.found = nil
	for _, netns := range slices.Sorted(maps.Keys(byNetns)) {
		c.found = append(c.found, byNetns[netns])
	}
}
