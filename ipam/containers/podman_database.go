package containers

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// podman keeps the addresses that it has given in ipam.db (libnetwork/netavark/ipam.go of
// containers/common at 4650944): a bucket for each network, with a bucket for each subnet, which has
// the ID of the container for each address.

// defaultNetwork is the network that needs no configuration, and defaultBridge is its bridge.
const defaultNetwork, defaultBridge = "podman", "podman0"

// podmanNetwork is the configuration of a network (Network in libnetwork/types/network.go).
type podmanNetwork struct {
	Name      string `json:"name"`
	Driver    string `json:"driver"`
	Interface string `json:"network_interface"`
	Subnets   []struct {
		Subnet     netip.Prefix `json:"subnet"`
		Gateway    netip.Addr   `json:"gateway"`
		LeaseRange *struct {
			Start netip.Addr `json:"start_ip"`
			End   netip.Addr `json:"end_ip"`
		} `json:"lease_range"`
	} `json:"subnets"`
	Internal bool              `json:"internal"`
	Options  map[string]string `json:"options"`
	fault    error             // why the configuration cannot be read
}

// configs returns the configurations of networks in a directory, by name. That of one that cannot be read is the name of
// its file. If it returns an error, there may be more.
func configs(host ipam.Host, dir string) (found map[string]*podmanNetwork, err error) {
	found = map[string]*podmanNetwork{}
	entries, err := ipam.Entries(host, dir, maxNetworks)
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		data, _, err := host.ReadFile(filepath.Join(dir, name), true, maxConfig)
		var n podmanNetwork
		if err == nil {
			err = json.Unmarshal(data, &n)
		}
		if err != nil {
			n = podmanNetwork{Name: strings.TrimSuffix(name, ".json"), fault: fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)}
		}
		if n.Name != "" {
			found[n.Name] = &n
		}
	}
	return found, err
}

// parsePodman parses the database. known are the configurations of networks, and fault says why there may be others.
func parsePodman(db *bolt.DB, known map[string]*podmanNetwork, fault error) (all []ipam.PoolRecords, err error) {
	err = db.Root().Each(func(key, _ []byte, b *bolt.Bucket) error {
		name := string(key)
		if b == nil || name == "" || len(name) > maxName {
			return nil
		}
		n := ipam.PoolRecords{Pool: ipam.Pool{Name: name}, Allocations: map[netip.Addr]ipam.Allocation{}}
		var subnets []netip.Prefix
		if err := b.Each(func(key, _ []byte, addrs *bolt.Bucket) error {
			prefix, err := netip.ParsePrefix(string(key))
			if addrs == nil || err != nil {
				return nil // the bucket of the containers
			}
			subnets = append(subnets, prefix)
			return addrs.Each(func(key, id []byte, _ *bolt.Bucket) error {
				a, ok := netip.AddrFromSlice(key)
				if !ok {
					return nil // the last address
				}
				a = a.Unmap()
				n.Allocations[a] = ipam.Allocation{Address: a, ContainerID: string(id[:min(len(id), ipam.MaxText)])}
				return nil
			})
		}); err != nil {
			return err
		}
		if describe(&n, known[name], subnets); known[name] == nil && name != defaultNetwork {
			n.Fault = fault
		}
		all = append(all, n)
		return nil
	})
	return all, err
}

// describe adds the ranges of a network, and how its interfaces are connected. c is its configuration,
// and subnets those in the database.
func describe(n *ipam.PoolRecords, c *podmanNetwork, subnets []netip.Prefix) {
	switch {
	case c == nil && n.Name == defaultNetwork:
		n.Wiring = ipam.Wiring{Plugin: "bridge", Device: defaultBridge, Routed: true}
		for _, s := range subnets {
			n.Ranges = append(n.Ranges, subnet(s, s))
			n.Gateways = append(n.Gateways, s.Masked().Addr().Next())
		}
	case c != nil && c.fault != nil:
		n.Fault = c.fault
	case c != nil:
		n.Wiring = ipam.Wiring{Plugin: c.Driver, Device: c.Interface, Routed: c.Driver == "bridge" && !c.Internal || ipam.RoutesIPVLAN(c.Driver, c.Options["mode"])}
		for _, s := range c.Subnets {
			if !s.Subnet.IsValid() {
				continue
			}
			r := subnet(s.Subnet, s.Subnet)
			if l := s.LeaseRange; l != nil && l.Start.IsValid() {
				r.First = l.Start
			}
			if l := s.LeaseRange; l != nil && l.End.IsValid() {
				r.Last = l.End
			}
			n.Ranges = append(n.Ranges, r)
			if s.Gateway.IsValid() {
				n.Gateways = append(n.Gateways, s.Gateway)
			}
		}
	}
	slices.SortFunc(n.Ranges, func(a, b ipam.Range) int { return a.First.Compare(b.First) })
}
