package azure

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/bolt"
)

// The state files are key-value stores in JSON (store/json.go of Azure/azure-container-networking
// at d0ea07a): an object with one key for each part of the state. They are written to a temporary
// file in the same directory and renamed. The structs have the fields in use, under the names that
// encoding/json gives them there. An address is the text of a net.IP, which netip.Addr accepts.

// content is what a state file says.
type content struct {
	// ranges are the addresses that the file offers for allocation; nil if it only has those in use.
	ranges []ipam.Range
	// allocations are in the order of their addresses. An address may have several.
	allocations []ipam.Allocation
	// delegated are the addresses of delegated network cards, which are in networks of their own.
	delegated map[netip.Addr]bool
	// invalid describes a record that has no valid address; empty if there is none.
	invalid string
	// unknown is why a record cannot be read.
	unknown error
}

// maxRanges limits the ranges of a pool: an aggregator accepts no more.
const maxRanges = 1024

// errEmpty is returned for a store without any key. azure-cns's DaemonSet creates azure-vnet.json
// as an empty file (hostPath FileOrCreate), and the programs treat it as a missing one.
var errEmpty = errors.New("the file is empty")

func decode[T any](data []byte, key string) (value T, err error) {
	var keys map[string]json.RawMessage
	if len(bytes.TrimSpace(data)) == 0 {
		return value, errEmpty
	}
	if err := json.Unmarshal(data, &keys); err != nil {
		return value, fmt.Errorf("parse JSON: %w", err)
	}
	raw, has := keys[key]
	switch {
	case len(keys) == 0:
		return value, errEmpty
	case !has:
		return value, fmt.Errorf("it has no key %q: its version of Azure CNI is not known to ipwitness", key)
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, fmt.Errorf("parse %s: %w: its version of Azure CNI may not be known to ipwitness", key, err)
	}
	return value, nil
}

// prefix is a net.IPNet in JSON.
type prefix struct{ IP netip.Addr }

// addressManager is the state of azure-vnet-ipam (addressManager in ipam/manager.go at 2247a9d,
// addressPool and addressRecord in ipam/pool.go at 459c40e).
type addressManager struct {
	AddressSpaces map[string]struct {
		Pools map[string]struct {
			Addresses map[string]ipam.Item[*addressRecord]
		}
	}
}

// addressRecord is an address that Azure has assigned to the node for its pods.
type addressRecord struct {
	ID    string // the container; empty in old versions
	Addr  netip.Addr
	InUse bool
}

// parseIPAM parses azure-vnet-ipam.json. It has all addresses that the node may give to pods. An
// address that is not in use but has an ID is not given out either (requestAddress in ipam/pool.go).
func parseIPAM(data []byte) (content, error) {
	state, err := decode[addressManager](data, "IPAM")
	if err != nil {
		return content{}, err
	}
	var c content
	for _, space := range state.AddressSpaces {
		for _, pool := range space.Pools {
			for key, item := range pool.Addresses {
				r := item.Value
				if c.unreadable(item.Err, "record", key) || r == nil || !c.valid(r.Addr, "record "+key) {
					continue
				}
				c.ranges = append(c.ranges, ipam.Range{First: r.Addr, Last: r.Addr})
				if r.InUse || r.ID != "" {
					c.add(ipam.Allocation{Address: r.Addr, ContainerID: r.ID}, infraNIC)
				}
			}
		}
	}
	if c.ranges = ipam.Union(c.ranges); len(c.ranges) > maxRanges {
		return content{}, fmt.Errorf("its addresses exceed the limit of %d ranges", maxRanges)
	}
	return c.sorted()
}

// networkManager is the state of azure-vnet (networkManager in network/manager.go at 0314348,
// externalInterface and network in network/network.go at 065edcf, endpoint in network/endpoint.go
// at 0b19084).
type networkManager struct {
	ExternalInterfaces map[string]struct {
		Networks map[string]struct {
			Endpoints map[string]ipam.Item[*endpoint]
		}
	}
}

type endpoint struct {
	IfName       string
	IPAddresses  []prefix
	ContainerID  string
	PODName      string
	PODNameSpace string
	NICType      string // in newer versions
	// SecondaryInterfaces are delegated network cards, in the versions without NICType.
	SecondaryInterfaces map[string]*struct {
		Name      string
		IPConfigs []*struct{ Address prefix }
	}
}

// parseVnet parses azure-vnet.json. It has the addresses in use.
func parseVnet(data []byte) (content, error) {
	state, err := decode[networkManager](data, "Network")
	if err != nil {
		return content{}, err
	}
	var c content
	for _, device := range state.ExternalInterfaces {
		for _, network := range device.Networks {
			for id, item := range network.Endpoints {
				e := item.Value
				if c.unreadable(item.Err, "endpoint", id) || e == nil {
					continue
				}
				al := ipam.Allocation{ContainerID: e.ContainerID, Interface: e.IfName, Namespace: e.PODNameSpace, Pod: e.PODName}
				for _, a := range e.IPAddresses {
					c.addTo(al, a, "endpoint "+id, e.NICType)
				}
				for _, card := range e.SecondaryInterfaces {
					if card == nil {
						continue
					}
					al.Interface = card.Name
					for _, conf := range card.IPConfigs {
						if conf != nil {
							c.addTo(al, conf.Address, "endpoint "+id, delegatedNIC)
						}
					}
				}
			}
		}
	}
	return c.sorted()
}

// endpointInfo is the state of azure-cns about a container, by its ID (EndpointInfo and IPInfo in
// cns/restserver, as endpoint_state.go at 6077b92 copies them).
type endpointInfo struct {
	PodName, PodNamespace string
	IfnameToIPMap         map[string]*struct {
		IPv4, IPv6 []prefix
		NICType    string
	}
}

// parseEndpoints parses azure-endpoints.json. It has the addresses in use.
func parseEndpoints(data []byte) (content, error) {
	state, err := decode[map[string]ipam.Item[*endpointInfo]](data, "Endpoints")
	if err != nil {
		return content{}, err
	}
	var c content
	for id, e := range state {
		if !c.unreadable(e.Err, "endpoint", id) {
			c.endpoint(id, e.Value)
		}
	}
	return c.sorted()
}

// endpoint adds the addresses of a container; e may be nil.
func (c *content) endpoint(id string, e *endpointInfo) {
	if e == nil {
		return
	}
	for device, info := range e.IfnameToIPMap {
		if info == nil {
			continue
		}
		al := ipam.Allocation{ContainerID: id, Interface: device, Namespace: e.PodNamespace, Pod: e.PodName}
		for _, a := range slices.Concat(info.IPv4, info.IPv6) {
			c.addTo(al, a, "endpoint "+id, info.NICType)
		}
	}
}

// The types of interfaces (NICType in cns). An interface of the pod network gets its address from
// azure-cns's own pool; old versions record no type. All other types are delegated network cards.
const (
	infraNIC     = "InfraNIC"
	delegatedNIC = "DelegatedVMNIC"
)

// valid reports whether a record has a valid address. It remembers a record that has none.
func (c *content) valid(a netip.Addr, record string) bool {
	if a.IsValid() && a.Zone() == "" && !a.Is4In6() {
		return true
	}
	// Records are read in no particular order.
	if c.invalid == "" || record < c.invalid {
		c.invalid = record
	}
	return false
}

// unreadable reports whether a record cannot be read. It remembers the record.
func (c *content) unreadable(err error, kind, key string) bool {
	if err != nil {
		c.valid(netip.Addr{}, kind+" "+key)
		c.unknown = fmt.Errorf("parse %s %q: %w: its version of Azure CNI may not be known to ipwitness", kind, key, err)
	}
	return err != nil
}

func (c *content) addTo(al ipam.Allocation, a prefix, record, nicType string) {
	if al.Address = a.IP; c.valid(a.IP, record) {
		c.add(al, nicType)
	}
}

func (c *content) add(al ipam.Allocation, nicType string) {
	c.allocations = append(c.allocations, al)
	if nicType != "" && nicType != infraNIC {
		if c.delegated == nil {
			c.delegated = map[netip.Addr]bool{}
		}
		c.delegated[al.Address] = true
	}
}

// sorted returns the content in an order that does not depend on the order of map keys. If no record can be read,
// which is no loss, it returns why.
func (c *content) sorted() (content, error) {
	if c.unknown != nil && len(c.allocations) == 0 && len(c.ranges) == 0 {
		return content{}, c.unknown
	}
	slices.SortFunc(c.allocations, func(a, b ipam.Allocation) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Interface, b.Interface))
	})
	return *c, nil
}

// split returns the allocations by address. If an address is allocated to several containers, rest
// has the second of them. Several delegated networks may have one address: its allocation then names
// no container, so that it is for all of them.
func (c *content) split() (first, rest map[netip.Addr]ipam.Allocation) {
	first, rest = map[netip.Addr]ipam.Allocation{}, map[netip.Addr]ipam.Allocation{}
	for _, al := range c.allocations {
		had, there := first[al.Address]
		_, more := rest[al.Address]
		switch {
		case !there:
			first[al.Address] = al
		case had.SameHolder(&al):
		case c.delegated[al.Address]:
			first[al.Address] = ipam.Allocation{Address: al.Address}
		case !more:
			rest[al.Address] = al
		}
	}
	return first, rest
}

// netConf has the fields in use of the configuration of a CNI plugin, or of a list of plugins.
type netConf struct {
	Name    string          `json:"name"`
	IPAM    json.RawMessage `json:"ipam"`
	Plugins []netConf       `json:"plugins"`
}

// networks returns the name of the network of each IPAM plugin that a CNI configuration names, by
// the type of the plugin. A configuration that cannot be parsed has none: host-local's source
// reports it.
func networks(data []byte) map[string]string {
	var list netConf
	if json.Unmarshal(data, &list) != nil {
		return nil
	}
	found := map[string]string{}
	for _, p := range append(list.Plugins, list) {
		var conf struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(p.IPAM, &conf) == nil && list.Name != "" {
			found[conf.Type] = list.Name
		}
	}
	maps.DeleteFunc(found, func(kind, _ string) bool { return !slices.Contains(pluginTypes, kind) })
	return found
}

// The types of the IPAM plugins in CNI configurations. azure-vnet calls azure-cns itself, and
// Cilium's plugin calls azure-ipam, which asks azure-cns.
const (
	vnetIPAM   = "azure-vnet-ipam"
	vnetIPAMv6 = "azure-vnet-ipamv6"
	cns        = "azure-cns"
	delegated  = "azure-ipam"
)

var pluginTypes = []string{vnetIPAM, vnetIPAMv6, cns, delegated}

// The buckets of azure-cns.db that are read, and the keys of the first of them (cns/state/db.go of
// Azure/azure-container-networking at 12532d3). Bucket endpoints has JSON by the ID of the container.
// Its names are those of azure-endpoints.json, but for the case of their letters.
const (
	metadataBucket, endpointsBucket = "metadata", "endpoints"
	schemaKey, authorityKey         = "schema_version", "authority"
	// schemaVersion is the only version of the format so far.
	schemaVersion = 1
	// boltAuthority is the value of authorityKey while azure-cns uses the database; jsonAuthority is that
	// after it has gone back to files.
	boltAuthority, jsonAuthority = "bolt", "json"
)

// errRolledBack is returned for a database that azure-cns does not use any more.
var errRolledBack = errors.New("azure-cns has gone back to files")

// parseDatabase parses azure-cns.db. It has the addresses in use.
func parseDatabase(db *bolt.DB) (content, error) {
	metadata, err := bucket(db, metadataBucket)
	if err != nil {
		return content{}, err
	}
	var version uint32
	var authority string
	err = metadata.Each(func(key, value []byte, _ *bolt.Bucket) error {
		switch {
		case string(key) == schemaKey && len(value) == 4:
			version = binary.LittleEndian.Uint32(value)
		case string(key) == authorityKey:
			authority = string(value)
		}
		return nil
	})
	switch {
	case err != nil:
		return content{}, err
	case version != schemaVersion:
		return content{}, fmt.Errorf("its format has version %d, and ipwitness knows version %d", version, schemaVersion)
	case authority == jsonAuthority:
		return content{}, errRolledBack
	case authority != boltAuthority:
		return content{}, fmt.Errorf("it does not say whether azure-cns uses it (%s is %q)", authorityKey, authority)
	}
	endpoints, err := bucket(db, endpointsBucket)
	if err != nil {
		return content{}, err
	}
	var c content
	err = endpoints.Each(func(key, value []byte, _ *bolt.Bucket) error {
		var e *endpointInfo
		if !c.unreadable(json.Unmarshal(value, &e), "endpoint", string(key)) {
			c.endpoint(string(key), e)
		}
		return nil
	})
	if err != nil {
		return content{}, err
	}
	return c.sorted()
}

func bucket(db *bolt.DB, name string) (*bolt.Bucket, error) {
	b, err := db.Root().Sub(name)
	if err == nil && b == nil {
		err = fmt.Errorf("it has no bucket %q: its version of Azure CNI is not known to ipwitness", name)
	}
	return b, err
}
