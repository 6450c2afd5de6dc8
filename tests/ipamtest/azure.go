package ipamtest

// The state files of Azure CNI, as its programs write them. The structs have the fields of the
// originals in Azure/azure-container-networking that are written to the files, in their order and with
// their types.

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// written is the time in the files.
var written = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// An AzurePod is a pod with an interface eth0.
type AzurePod struct {
	Namespace, Name, Container string
	Addresses                  []netip.Addr
	// NICType is the type of the interface; InfraNIC for that of the pod network.
	NICType string
	// Second is the address of a delegated network card in azure-vnet.json; invalid if there is none.
	Second netip.Addr
}

// addressManager is that of ipam/manager.go at 2247a9d, with addressSpace, addressPool and
// addressRecord of ipam/pool.go at 459c40e.
type addressManager struct {
	Version    string
	TimeStamp  time.Time
	AddrSpaces map[string]*addressSpace `json:"AddressSpaces"`
}

type addressSpace struct {
	Id    string //nolint:revive,staticcheck // named as in the original
	Scope int
	Pools map[string]*addressPool
}

type addressPool struct {
	Id        string //nolint:revive,staticcheck // named as in the original
	IfName    string
	Subnet    net.IPNet
	Gateway   net.IP
	Addresses map[string]*addressRecord
	IsIPv6    bool
	Priority  int
	RefCount  int
}

type addressRecord struct {
	ID    string
	Addr  net.IP
	InUse bool
}

// AzureIPAM returns azure-vnet-ipam.json with the addresses of a node. Those with a container are in use.
func AzureIPAM(addresses map[string]string) []byte {
	space := &addressSpace{Id: "local", Pools: map[string]*addressPool{}}
	for text, container := range addresses {
		a := netip.MustParseAddr(text)
		subnet, _ := a.Prefix(min(16, a.BitLen()))
		pool := space.Pools[subnet.String()]
		if pool == nil {
			pool = &addressPool{
				Id: subnet.String(), IfName: "eth0", Subnet: ipNet(subnet), Gateway: net.IP(subnet.Addr().Next().AsSlice()),
				Addresses: map[string]*addressRecord{}, IsIPv6: a.Is6(), RefCount: 1,
			}
			space.Pools[subnet.String()] = pool
		}
		pool.Addresses[text] = &addressRecord{ID: container, Addr: a.AsSlice(), InUse: container != ""}
	}
	return store("IPAM", &addressManager{Version: "v1.4.39", TimeStamp: written, AddrSpaces: map[string]*addressSpace{"local": space}})
}

// networkManager is that of network/manager.go at 0314348, with externalInterface, network,
// SubnetInfo and DNSInfo of network/network.go at 065edcf, and endpoint and RouteInfo of
// network/endpoint.go at 0b19084. NICType was added to endpoint later.
type networkManager struct {
	Version            string
	TimeStamp          time.Time
	ExternalInterfaces map[string]*externalInterface
}

type externalInterface struct {
	Name        string
	Networks    map[string]*network
	Subnets     []string
	BridgeName  string
	DNSInfo     dnsInfo
	MacAddress  net.HardwareAddr
	IPAddresses []*net.IPNet
	Routes      []*struct{}
	IPv4Gateway net.IP
	IPv6Gateway net.IP
}

type network struct {
	Id               string //nolint:revive,staticcheck // named as in the original
	HnsId            string `json:",omitempty"` //nolint:revive,staticcheck // named as in the original
	Mode             string
	VlanId           int //nolint:revive,staticcheck // named as in the original
	Subnets          []subnetInfo
	Endpoints        map[string]*endpoint
	DNS              dnsInfo
	EnableSnatOnHost bool
	NetNs            string
	SnatBridgeIP     string
}

type subnetInfo struct {
	Family    int
	Prefix    net.IPNet
	Gateway   net.IP
	PrimaryIP net.IP
}

type dnsInfo struct {
	Suffix  string
	Servers []string
	Options []string
}

type routeInfo struct {
	Dst      net.IPNet
	Src      net.IP
	Gw       net.IP
	Protocol int
	DevName  string
	Scope    int
	Priority int
	Table    int
}

type endpoint struct {
	Id                       string //nolint:revive,staticcheck // named as in the original
	HnsId                    string `json:",omitempty"` //nolint:revive,staticcheck // named as in the original
	SandboxKey               string
	IfName                   string
	HostIfName               string
	MacAddress               net.HardwareAddr
	InfraVnetIP              net.IPNet
	LocalIP                  string
	IPAddresses              []net.IPNet
	Gateways                 []net.IP
	DNS                      dnsInfo
	Routes                   []routeInfo
	VlanID                   int
	EnableSnatOnHost         bool
	EnableInfraVnet          bool
	EnableMultitenancy       bool
	AllowInboundFromHostToNC bool
	AllowInboundFromNCToHost bool
	NetworkContainerID       string
	NetworkNameSpace         string `json:",omitempty"`
	ContainerID              string
	PODName                  string `json:",omitempty"`
	PODNameSpace             string `json:",omitempty"`
	InfraVnetAddressSpace    string `json:",omitempty"`
	NetNs                    string `json:",omitempty"`
	SecondaryInterfaces      map[string]*interfaceInfo
	NICType                  string `json:",omitempty"`
}

// interfaceInfo is InterfaceInfo of network/endpoint.go at 0b19084, and ipConfig its IPConfig.
type interfaceInfo struct {
	Name              string
	MacAddress        net.HardwareAddr
	IPConfigs         []*ipConfig
	Routes            []routeInfo
	DNS               dnsInfo
	NICType           string
	SkipDefaultRoutes bool
}

type ipConfig struct {
	Address net.IPNet
	Gateway net.IP
}

// AzureVnet returns azure-vnet.json with the endpoints of pods.
func AzureVnet(pods ...AzurePod) []byte {
	n := &network{Id: "azure", Mode: "transparent", Endpoints: map[string]*endpoint{}}
	for _, p := range pods {
		id := p.Container[:min(len(p.Container), 8)] + "-eth0"
		e := &endpoint{
			Id: id, IfName: "eth0", HostIfName: "azv0123456789", MacAddress: net.HardwareAddr{2, 0, 0, 0, 0, 1},
			Gateways: []net.IP{{169, 254, 1, 1}}, Routes: []routeInfo{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, Gw: net.IP{169, 254, 1, 1}}},
			NetworkNameSpace: "/run/netns/" + p.Name, ContainerID: p.Container, PODName: p.Name, PODNameSpace: p.Namespace, NICType: p.NICType,
		}
		for _, a := range p.Addresses {
			e.IPAddresses = append(e.IPAddresses, ipNet(netip.PrefixFrom(a, a.BitLen()/2)))
		}
		if p.Second.IsValid() {
			e.SecondaryInterfaces = map[string]*interfaceInfo{"eth1": {
				Name: "eth1", MacAddress: net.HardwareAddr{2, 0, 0, 0, 0, 2}, NICType: "FrontendNIC",
				IPConfigs: []*ipConfig{{Address: ipNet(netip.PrefixFrom(p.Second, p.Second.BitLen()))}},
			}}
		}
		n.Endpoints[id] = e
	}
	device := &externalInterface{
		Name: "eth0", Networks: map[string]*network{n.Id: n}, Subnets: []string{"10.240.0.0/16"}, MacAddress: net.HardwareAddr{0, 0x0d, 0x3a, 0, 0, 1},
		IPv4Gateway: net.IPv4zero, IPv6Gateway: net.IPv6unspecified,
	}
	return store("Network", &networkManager{Version: "v1.4.39", TimeStamp: written, ExternalInterfaces: map[string]*externalInterface{"eth0": device}})
}

// endpointInfo is EndpointInfo in cns/restserver, and ipInfo its IPInfo (copied field by field in
// cns/restserver/endpoint_state.go at 6077b92).
type endpointInfo struct {
	PodName       string
	PodNamespace  string
	IfnameToIPMap map[string]*ipInfo
}

type ipInfo struct {
	IPv4               []net.IPNet
	IPv6               []net.IPNet `json:",omitempty"`
	HnsEndpointID      string      `json:",omitempty"`
	HnsNetworkID       string      `json:",omitempty"`
	HostVethName       string      `json:",omitempty"`
	MacAddress         string      `json:",omitempty"`
	NetworkContainerID string      `json:",omitempty"`
	NICType            string
}

// AzureEndpoints returns azure-endpoints.json with the endpoints of pods.
func AzureEndpoints(pods ...AzurePod) []byte {
	state := map[string]*endpointInfo{}
	for _, p := range pods {
		info := &ipInfo{HostVethName: "azv0123456789", MacAddress: "02:00:00:00:00:01", NICType: p.NICType}
		info.IPv4, info.IPv6 = ipNets(p.Addresses)
		state[p.Container] = &endpointInfo{PodName: p.Name, PodNamespace: p.Namespace, IfnameToIPMap: map[string]*ipInfo{"eth0": info}}
	}
	return store("Endpoints", state)
}

// endpointRecord is EndpointRecord in cns/state/types.go at 0eff793, and ipInfoRecord its IPInfoRecord.
type endpointRecord struct {
	PodName       string                   `json:"podName,omitempty"`
	PodNamespace  string                   `json:"podNamespace,omitempty"`
	IfnameToIPMap map[string]*ipInfoRecord `json:"ifnameToIPMap,omitempty"`
}

type ipInfoRecord struct {
	IPv4               []net.IPNet `json:"ipv4,omitempty"`
	IPv6               []net.IPNet `json:"ipv6,omitempty"`
	HNSEndpointID      string      `json:"hnsEndpointID,omitempty"`
	HNSNetworkID       string      `json:"hnsNetworkID,omitempty"`
	HostVethName       string      `json:"hostVethName,omitempty"`
	MACAddress         string      `json:"macAddress,omitempty"`
	NetworkContainerID string      `json:"networkContainerID,omitempty"`
	NICType            string      `json:"nicType,omitempty"`
}

// AzureDatabase returns the buckets of azure-cns.db with the endpoints of pods (cns/state/db.go at
// 12532d3). authority is bolt while azure-cns uses it.
func AzureDatabase(authority string, pods ...AzurePod) Bucket {
	root := Bucket{}
	for _, name := range []string{
		"network_containers", "ips", "networks", "orchestrator_contexts", "pnp_id_by_mac", "assignments", "ip_owners", "delete_intents",
	} {
		root[name] = Bucket{}
	}
	root["metadata"] = Bucket{
		"schema_version": binary.LittleEndian.AppendUint32(nil, 1), "authority": authority, "generation": binary.LittleEndian.AppendUint64(nil, 7), "boot_id": "boot",
	}
	endpoints := Bucket{}
	for _, p := range pods {
		info := &ipInfoRecord{HostVethName: "azv0123456789", MACAddress: "02:00:00:00:00:01", NICType: p.NICType}
		info.IPv4, info.IPv6 = ipNets(p.Addresses)
		raw, err := json.Marshal(endpointRecord{PodName: p.Name, PodNamespace: p.Namespace, IfnameToIPMap: map[string]*ipInfoRecord{"eth0": info}})
		if err != nil {
			panic(err) // the types above can be encoded
		}
		endpoints[p.Container] = raw
	}
	root["endpoints"] = endpoints
	return root
}

// ipNets returns the addresses of a pod by family, with the prefixes of its subnets.
func ipNets(addresses []netip.Addr) (v4, v6 []net.IPNet) {
	for _, a := range addresses {
		if a.Is4() {
			v4 = append(v4, ipNet(netip.PrefixFrom(a, 16)))
		} else {
			v6 = append(v6, ipNet(netip.PrefixFrom(a, 64)))
		}
	}
	return v4, v6
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// store returns the content of a store with one key (flush in store/json.go at d0ea07a).
func store(key string, value any) []byte {
	raw, err := json.Marshal(value)
	if err == nil {
		raw, err = json.MarshalIndent(map[string]json.RawMessage{key: raw}, "", "\t")
	}
	if err != nil {
		panic(err) // the types above can be encoded
	}
	return raw
}

// WriteAzure replaces a state file as its program does: it writes a temporary file beside it, and renames
// that.
func WriteAzure(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Split(path))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
