package containers

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// configName is the file with the configuration and the state of a container.
const configName = "config.v2.json"

// dockerContainer is the part of config.v2.json that is used (container.Container in
// container/container.go of moby v20.10, network.Settings in daemon/network/settings.go).
type dockerContainer struct {
	ID, Name        string
	State           struct{ Running bool }
	NetworkSettings struct {
		SandboxKey string
		Networks   map[string]*struct {
			IPAddress, GlobalIPv6Address string
			IPAMConfig                   struct{ IPv4Address, IPv6Address string } // what the user has requested
		}
	}
}

// parseContainer parses config.v2.json. It returns nil for a container that does not run.
func parseContainer(data []byte) (*ipam.Container, error) {
	var c dockerContainer
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	if !c.State.Running || c.ID == "" || len(c.ID) > ipam.MaxText || len(c.Name) > ipam.MaxText {
		return nil, nil
	}
	found := &ipam.Container{Engine: DockerName, ID: c.ID, Name: strings.TrimPrefix(c.Name, "/"), Given: map[netip.Addr]string{}, Fixed: map[netip.Addr]bool{}}
	if c.NetworkSettings.SandboxKey != "" {
		found.Netns = ipam.CleanPath(c.NetworkSettings.SandboxKey)
	}
	for name, e := range c.NetworkSettings.Networks {
		if e == nil || len(name) > maxName {
			continue
		}
		for _, text := range []string{e.IPAddress, e.GlobalIPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil {
				found.Given[a] = ipam.EngineNetwork(DockerName, name)
			}
		}
		for _, text := range []string{e.IPAMConfig.IPv4Address, e.IPAMConfig.IPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil && found.Given[a] != "" {
				found.Fixed[a] = true
			}
		}
	}
	return found, nil
}

type dockerContainers struct {
	host   ipam.Host
	dir    string
	known  map[string]dockerVersion // by directory
	faults int                      // files that cannot be read
	fault  error                    // of one of them
}

// dockerVersion is a version of a file with the container that it describes; nil if it does not run.
type dockerVersion struct {
	info  os.FileInfo
	fault error // why it cannot be parsed
	*ipam.Container
}

// read reads the configurations that have changed. They are not watched, because their directories
// have the logs of the containers, too, so that each line of a log would be an event.
func (c *dockerContainers) read() {
	c.faults, c.fault = 0, nil
	entries, err := ipam.Entries(c.host, c.dir, maxContainers)
	incomplete := err != nil
	if incomplete {
		c.faults, c.fault = 1, err
	}
	next := make(map[string]dockerVersion, len(entries))
	for _, e := range entries {
		name := e.Name()
		path := filepath.Join(c.dir, name, configName)
		info, err := os.Lstat(path)
		if err != nil {
			continue // it is being created or removed
		}
		had, ok := c.known[name]
		if ok && ipam.SameVersion(info, had.info) {
			if next[name] = had; had.fault != nil {
				c.faults, c.fault = c.faults+1, had.fault
			}
			continue
		}
		data, _, err := c.host.ReadFile(path, false, maxConfig)
		var found *ipam.Container
		if err == nil {
			if found, err = parseContainer(data); err != nil {
				err = fmt.Errorf("parse %s: %w", path, err)
				had.info = info // of no use to read it again
			}
			if found != nil {
				found.FixedIn = path
			}
		} else {
			had.info = nil // read it again
		}
		switch {
		case err == nil:
			next[name] = dockerVersion{info, nil, keep(had.Container, found)}
		case !os.IsNotExist(err):
			c.faults, c.fault = c.faults+1, err
			next[name] = dockerVersion{had.info, err, had.Container} // keep what is known until then
		}
	}
	if incomplete { // keep what is known until then
		for name, had := range c.known {
			if _, listed := next[name]; !listed {
				next[name] = had
			}
		}
	}
	c.known = next
}
