package containers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// dockerd keeps its networks in network/files/local-kv.db: keys such as
// docker/network/v1.0/endpoint/NETWORK/ENDPOINT/ with JSON (libnetwork/datastore of moby v20.10), in one
// bucket. Of the parts of the state, these are read: network (network.go), endpoint (endpoint.go),
// sandbox (sandbox_store.go) and bridge (drivers/bridge/bridge_store.go).

const (
	// bucket is the bucket of libnetwork, and prefix begins each of its keys.
	bucket, prefix = "libnetwork", "docker/network/v1.0/"
	// defaultIPAM is the driver that allocates addresses from the ranges of a network (libnetwork/ipamapi/contract.go). Others
	// are "null", which gives none, and plugins.
	defaultIPAM = "default"
	// counter is the size of the change counter before each value (libkv's store/boltdb).
	counter = 8
)

// dockerNetwork is a network in the database.
type dockerNetwork struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Driver   string `json:"networkType"`
	Internal bool   `json:"internal"`
	// IPAM is the driver that allocates the addresses; "default" for docker itself.
	IPAM string `json:"ipamType"`
	// V4Config and V6Config are JSON lists of ipamConfig, and V4Info and V6Info of ipamInfo.
	V4Config string          `json:"ipamV4Config"`
	V6Config string          `json:"ipamV6Config"`
	V4Info   string          `json:"ipamV4Info"`
	V6Info   string          `json:"ipamV6Info"`
	Generic  json.RawMessage `json:"generic"`
}

// ipamConfig is what the user has requested, and ipamInfo what the network got.
type (
	ipamConfig struct{ SubPool string }
	ipamInfo   struct{ IPAMData string }
	ipamData   struct {
		Pool, Gateway string
		AuxAddresses  map[string]string
	}
)

// endpoint is the interface of a container in a network.
type endpoint struct {
	Sandbox   string `json:"sandbox"`
	Interface struct {
		Addr   string `json:"addr"`
		AddrV6 string `json:"addrv6"`
	} `json:"ep_iface"`
}

// content is what the database says.
type content struct {
	networks  map[string]dockerNetwork // by ID
	bridges   map[string]string        // names of bridges by ID of the network
	endpoints map[string][]endpoint
	sandboxes map[string]string // IDs of containers by ID of the sandbox
	unread    map[string]error  // why a record cannot be read, by ID of the network
}

func parseDocker(db *bolt.DB) ([]ipam.PoolRecords, error) {
	c := content{map[string]dockerNetwork{}, map[string]string{}, map[string][]endpoint{}, map[string]string{}, map[string]error{}}
	b, err := db.Root().Sub(bucket)
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		return nil, nil // dockerd has not written anything yet
	}
	if err := b.Each(func(key, value []byte, sub *bolt.Bucket) error {
		rest, ok := strings.CutPrefix(string(key), prefix)
		if sub != nil || !ok || len(value) <= counter {
			return nil
		}
		c.add(strings.Split(strings.TrimSuffix(rest, "/"), "/"), value[counter:])
		return nil
	}); err != nil {
		return nil, err
	}
	return c.list(), nil
}

// add adds the record with a key. One that cannot be read concerns its network only; a sandbox only has the container.
func (c *content) add(key []string, value []byte) {
	var err error
	switch {
	case key[0] == "network" && len(key) == 2:
		var n dockerNetwork
		err = json.Unmarshal(value, &n)
		c.networks[key[1]] = n
	case key[0] == "bridge" && len(key) == 2:
		var bridge struct{ BridgeName string }
		err = json.Unmarshal(value, &bridge)
		c.bridges[key[1]] = bridge.BridgeName
	case key[0] == "endpoint" && len(key) == 3:
		var e endpoint
		err = json.Unmarshal(value, &e)
		c.endpoints[key[1]] = append(c.endpoints[key[1]], e)
	case key[0] == "sandbox" && len(key) == 2:
		var s struct{ Cid string }
		_ = json.Unmarshal(value, &s)
		c.sandboxes[key[1]] = s.Cid
	}
	if err != nil {
		c.unread[key[1]] = fmt.Errorf("parse %s: %w: the version of docker may not be known to ipwitness", key[0], err)
	}
}

func (c *content) list() (all []ipam.PoolRecords) {
	for id, n := range c.networks {
		if n.Name == "" && c.unread[id] != nil {
			n.Name = id // the record does not say the name
		}
		if n.Name == "" || len(n.Name) > maxName || n.Driver == "host" || n.Driver == "null" {
			continue
		}
		net := ipam.PoolRecords{Pool: ipam.Pool{Name: n.Name, Wiring: c.wiring(id, &n)}, Allocations: map[netip.Addr]ipam.Allocation{}, Fault: c.unread[id]}
		for _, family := range [][2]string{{n.V4Info, n.V4Config}, {n.V6Info, n.V6Config}} {
			ranges, reserved := subnets(family[0], family[1])
			net.Ranges, net.Gateways = append(net.Ranges, ranges...), append(net.Gateways, reserved...)
		}
		if n.IPAM != defaultIPAM {
			net.Ranges = nil // the driver decides, and may serve other nodes, too
		}
		for _, e := range c.endpoints[id] {
			for _, text := range []string{e.Interface.Addr, e.Interface.AddrV6} {
				if p, err := netip.ParsePrefix(text); err == nil {
					net.Allocations[p.Addr().Unmap()] = ipam.Allocation{Address: p.Addr().Unmap(), ContainerID: c.sandboxes[e.Sandbox]}
				}
			}
		}
		all = append(all, net)
	}
	slices.SortFunc(all, func(a, b ipam.PoolRecords) int { return cmp.Compare(a.Name, b.Name) })
	// Older versions of docker allow several networks of one name. The first of them counts.
	return slices.CompactFunc(all, func(a, b ipam.PoolRecords) bool { return a.Name == b.Name })
}

// wiring returns how the interfaces of a network are connected. dockerd is the router of networks with
// a bridge, unless they are internal.
func (c *content) wiring(id string, n *dockerNetwork) ipam.Wiring {
	if bridge := c.bridges[id]; n.Driver == "bridge" {
		return ipam.Wiring{Plugin: "bridge", Device: bridge, Routed: !n.Internal && bridge != ""}
	}
	var generic struct {
		Options struct {
			Parent string
			Mode   string `json:"ipvlan_mode"`
		} `json:"com.docker.network.generic"`
	}
	_ = json.Unmarshal(n.Generic, &generic) // other drivers have other options
	return ipam.Wiring{Plugin: n.Driver, Device: generic.Options.Parent, Routed: ipam.RoutesIPVLAN(n.Driver, generic.Options.Mode)}
}

// subnets returns the ranges from which a network allocates, and the addresses in them that it never
// allocates.
func subnets(info, config string) (ranges []ipam.Range, reserved []netip.Addr) {
	var infos []ipamInfo
	var configs []ipamConfig
	_, _ = json.Unmarshal([]byte(info), &infos), json.Unmarshal([]byte(config), &configs) // empty if there are none
	for i, n := range infos {
		var d ipamData
		_ = json.Unmarshal([]byte(n.IPAMData), &d)
		whole, err := netip.ParsePrefix(d.Pool)
		if err != nil {
			continue
		}
		part := whole
		if i < len(configs) && configs[i].SubPool != "" {
			if p, err := netip.ParsePrefix(configs[i].SubPool); err == nil {
				part = p
			}
		}
		ranges = append(ranges, subnet(whole, part))
		for _, text := range append([]string{d.Gateway}, slices.Sorted(maps.Values(d.AuxAddresses))...) {
			if p, err := netip.ParsePrefix(text); err == nil {
				reserved = append(reserved, p.Addr())
			}
		}
	}
	return ranges, reserved
}
