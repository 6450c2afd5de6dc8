package azure

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// web and db are pods with an interface of the pod network.
var (
	web = pod("web", strings.Repeat("a", 64), "10.241.0.65", "fd00:10::65")
	db  = pod("db", strings.Repeat("b", 64), "10.241.0.66")
)

func pod(name, container string, addresses ...string) ipamtest.AzurePod {
	p := ipamtest.AzurePod{Namespace: "default", Name: name, Container: container, NICType: "InfraNIC"}
	for _, a := range addresses {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	return p
}

// texts returns allocations as text.
func texts(c content) (all []string) {
	for _, al := range c.allocations {
		all = append(all, fmt.Sprintf("%s %.4s %s %s/%s", al.Address, al.ContainerID, al.Interface, al.Namespace, al.Pod))
	}
	return all
}

func TestEndpointsAreParsed(t *testing.T) {
	old := db
	old.NICType = ""
	want := []string{"10.241.0.65 aaaa eth0 default/web", "10.241.0.66 bbbb eth0 default/db", "fd00:10::65 aaaa eth0 default/web"}
	for name, parse := range map[string]func() (content, error){
		"azure-vnet.json":                 func() (content, error) { return parseVnet(ipamtest.AzureVnet(web, old)) },
		"azure-endpoints.json":            func() (content, error) { return parseEndpoints(ipamtest.AzureEndpoints(old, web)) },
		"azure-vnet.json, compact":        func() (content, error) { return parseVnet(compact(ipamtest.AzureVnet(old, web))) },
		"azure-endpoints.json, lowercase": func() (content, error) { return parseEndpoints(lowercase(ipamtest.AzureEndpoints(web, old))) },
	} {
		c, err := parse()
		if got := texts(c); err != nil || !slices.Equal(got, want) || c.ranges != nil || c.invalid != "" {
			t.Errorf("%s: got %q, ranges %v, invalid %q, error %v, want %q", name, got, c.ranges, c.invalid, err, want)
		}
	}
}

func TestDelegatedNetworkCardsAreInNetworksOfTheirOwn(t *testing.T) {
	card := func(container string) ipamtest.AzurePod {
		p := pod("web-"+container, container, "172.25.0.7")
		p.NICType = "DelegatedVMNIC"
		return p
	}
	second := func(container string) ipamtest.AzurePod {
		p := pod("web-"+container, container)
		p.Second = netip.MustParseAddr("172.25.0.7")
		return p
	}
	a := netip.MustParseAddr("172.25.0.7")
	for name, state := range map[string]func(containers ...string) (content, error){
		"azure-vnet.json":           func(c ...string) (content, error) { return parseVnet(ipamtest.AzureVnet(each(c, card)...)) },
		"azure-vnet.json, older":    func(c ...string) (content, error) { return parseVnet(ipamtest.AzureVnet(each(c, second)...)) },
		"azure-cns/azure-endpoints": func(c ...string) (content, error) { return parseEndpoints(ipamtest.AzureEndpoints(each(c, card)...)) },
	} {
		c, err := state("c1")
		if first, rest := c.split(); err != nil || first[a].ContainerID != "c1" || first[a].Pod != "web-c1" || len(rest) != 0 {
			t.Errorf("%s: got %v and %v, error %v, want c1", name, first, rest, err)
		}
		c, err = state("c1", "c2", "c3")
		if first, rest := c.split(); err != nil || len(c.allocations) != 3 || len(first) != 1 || first[a] != (ipam.Allocation{Address: a}) || len(rest) != 0 {
			t.Errorf("%s with several: got %v and %v, error %v, want no container", name, first, rest, err)
		}
	}
	c, err := parseVnet(ipamtest.AzureVnet(second("c1")))
	if want := []string{"172.25.0.7 c1 eth1 default/web-c1"}; err != nil || !slices.Equal(texts(c), want) {
		t.Errorf("interface: got %q, error %v, want %q", texts(c), err, want)
	}
	const null = `{"Network":{"ExternalInterfaces":{"a":{"Networks":{"b":{"Endpoints":{"c":{"SecondaryInterfaces":{"d":null,"e":{"IPConfigs":[null]}}}}}}}}}}`
	if c, err := parseVnet([]byte(null)); err != nil || len(c.allocations) != 0 || c.invalid != "" {
		t.Errorf("interfaces null: got %q, error %v", texts(c), err)
	}
}

func each(containers []string, of func(string) ipamtest.AzurePod) (pods []ipamtest.AzurePod) {
	for _, c := range containers {
		pods = append(pods, of(c))
	}
	return pods
}

// compact returns JSON without white space, and lowercase returns the fields in the form of newer
// versions.
func compact(data []byte) []byte {
	return []byte(strings.NewReplacer("\n", "", "\t", "").Replace(string(data)))
}

func lowercase(data []byte) []byte {
	return []byte(strings.NewReplacer(`"PodName"`, `"podName"`, `"PodNamespace"`, `"podNamespace"`, `"IfnameToIPMap"`, `"ifnameToIPMap"`, `"IPv4"`, `"ipv4"`, `"IPv6"`, `"ipv6"`).Replace(string(data)))
}

func TestAddressesOfAzureVnetIPAMAreParsed(t *testing.T) {
	data := ipamtest.AzureIPAM(map[string]string{"10.240.0.5": "c1", "10.240.0.6": "", "10.240.0.9": "c2", "fd00::5": "c3"})
	// Old versions record no container, and a release by address leaves the container.
	data = []byte(strings.NewReplacer(`"ID": "c1"`, `"ID": ""`).Replace(string(data)))
	c, err := parseIPAM(data)
	want := []string{"10.240.0.5   /", "10.240.0.9 c2  /", "fd00::5 c3  /"}
	ranges := []string{"10.240.0.5-10.240.0.6", "10.240.0.9/32", "fd00::5/128"}
	if got := texts(c); err != nil || !slices.Equal(got, want) || !slices.Equal(rangeTexts(c.ranges), ranges) {
		t.Errorf("got %q, ranges %v, error %v, want %q, ranges %v", got, c.ranges, err, want, ranges)
	}
	data = []byte(strings.ReplaceAll(string(data), `"InUse": true`, `"InUse": false`))
	if c, err := parseIPAM(data); err != nil || !slices.Equal(texts(c), want[1:]) {
		t.Errorf("addresses that are not in use: got %q, error %v, want those with a container", texts(c), err)
	}
}

func rangeTexts(ranges []ipam.Range) (all []string) {
	for _, r := range ranges {
		all = append(all, r.String())
	}
	return all
}

func TestInvalidStateIsAnError(t *testing.T) {
	many := map[string]string{}
	for i := range maxRanges + 1 {
		many[fmt.Sprintf("10.%d.%d.1", i/256, i%256)] = ""
	}
	if _, err := parseIPAM(ipamtest.AzureIPAM(many)); err == nil {
		t.Error("too many ranges: got no error")
	}
	delete(many, "10.0.0.1")
	if c, err := parseIPAM(ipamtest.AzureIPAM(many)); err != nil || len(c.ranges) != maxRanges {
		t.Errorf("%d ranges: got %d, error %v", maxRanges, len(c.ranges), err)
	}
	for _, parse := range []func([]byte) (content, error){parseIPAM, parseVnet, parseEndpoints} {
		for _, data := range []string{
			"{", "[]", "null ,", `{"Unknown":{}}`, `{"IPAM":7,"Network":7,"Endpoints":7}`, `{"IPAM":{"AddressSpaces":[]},"Network":{"ExternalInterfaces":[]},"Endpoints":[]}`,
			`{"IPAM":{"AddressSpaces":{"a":{"Pools":{"b":{"Addresses":{"c":{"Addr":"x"}}}}}}},"Network":{"ExternalInterfaces":{"a":{"Networks":{"b":{"Endpoints":{"c":{"IPAddresses":[{"IP":"x"}]}}}}}}},"Endpoints":{"a":{"IfnameToIPMap":{"b":{"IPv4":[{"IP":"x"}]}}}}}`,
		} {
			if c, err := parse([]byte(data)); err == nil || errors.Is(err, errEmpty) || c.allocations != nil || ipam.OneLine(err) == "" {
				t.Errorf("%s: got %q, error %v, want an error", data, texts(c), err)
			}
		}
		for _, data := range []string{"", "\n", "{}", "null"} {
			if _, err := parse([]byte(data)); !errors.Is(err, errEmpty) {
				t.Errorf("%q: got error %v, want that it is empty", data, err)
			}
		}
	}
}

func TestRecordsWithoutAValidAddressAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		parse func([]byte) (content, error)
		data  []byte
		want  string
	}{
		"azure-vnet-ipam.json": {parseIPAM, ipamtest.AzureIPAM(map[string]string{"10.240.0.5": "c1", "10.240.0.6": "c2", "10.240.0.7": "c3"}), "record 10.240.0.5"},
		"azure-vnet.json":      {parseVnet, ipamtest.AzureVnet(pod("x", "c1c1c1c1", "10.240.0.5"), pod("y", "c2c2c2c2", "10.240.0.6"), pod("z", "c3c3c3c3", "10.240.0.7")), "endpoint c1c1c1c1-eth0"},
		"azure-endpoints.json": {parseEndpoints, ipamtest.AzureEndpoints(pod("x", "c1", "10.240.0.5"), pod("y", "c2", "10.240.0.6"), pod("z", "c3", "10.240.0.7")), "endpoint c1"},
	} {
		for _, bad := range []string{"", "fe80::1%eth0", "::ffff:10.0.0.1", "none"} {
			data := strings.NewReplacer(`: "10.240.0.5"`, `: "`+bad+`"`, `: "10.240.0.6"`, `: "`+bad+`"`).Replace(string(test.data))
			c, err := test.parse([]byte(data))
			if err != nil || len(c.allocations) != 1 || c.allocations[0].Address.String() != "10.240.0.7" || c.invalid != test.want {
				t.Errorf("%s with address %q: got %q, invalid %q, error %v, want 10.240.0.7 and invalid %s", name, bad, texts(c), c.invalid, err, test.want)
			}
		}
	}
	for _, data := range []string{
		`{"IPAM":{"AddressSpaces":{"a":{"Pools":{"b":{"Addresses":{"c":null}}}}}}}`,
		`{"IPAM":{"AddressSpaces":null}}`,
	} {
		if c, err := parseIPAM([]byte(data)); err != nil || len(c.allocations) != 0 || c.invalid != "" {
			t.Errorf("%s: got %q, invalid %q, error %v, want nothing", data, texts(c), c.invalid, err)
		}
	}
	if c, err := parseVnet([]byte(`{"Network":{"ExternalInterfaces":{"a":{"Networks":{"b":{"Endpoints":{"c":null}}}}}}}`)); err != nil || len(c.allocations) != 0 {
		t.Errorf("endpoint null: got %q, error %v", texts(c), err)
	}
	for _, data := range []string{`{"Endpoints":{"a":null}}`, `{"Endpoints":{"a":{"IfnameToIPMap":{"b":null}}}}`, `{"Endpoints":null}`} {
		if c, err := parseEndpoints([]byte(data)); err != nil || len(c.allocations) != 0 {
			t.Errorf("%s: got %q, error %v, want nothing", data, texts(c), err)
		}
	}
}

func TestAddressWithTwoContainersIsSplit(t *testing.T) {
	c, err := parseEndpoints(ipamtest.AzureEndpoints(web, db, pod("old", "c3", "10.241.0.65"), pod("older", "c4", "10.241.0.65")))
	if err != nil {
		t.Fatal(err)
	}
	first, rest := c.split()
	a := netip.MustParseAddr("10.241.0.65")
	if len(first) != 3 || first[a].Pod != "web" || len(rest) != 1 || rest[a].Pod != "old" {
		t.Errorf("got %v and %v, want web and old", first, rest)
	}
	same := content{allocations: []ipam.Allocation{{Address: a, ContainerID: "c1", Interface: "eth0"}, {Address: a, ContainerID: "c1", Interface: "eth1"}}}
	if first, rest := same.split(); len(first) != 1 || len(rest) != 0 {
		t.Errorf("one container twice: got %v and %v", first, rest)
	}
	base := ipam.Allocation{ContainerID: "c", Namespace: "n", Pod: "p"}
	for _, other := range []ipam.Allocation{{ContainerID: "d", Namespace: "n", Pod: "p"}, {ContainerID: "c", Namespace: "m", Pod: "p"}, {ContainerID: "c", Namespace: "n", Pod: "q"}} {
		if base.SameHolder(&other) {
			t.Errorf("%v and %v: got the same holder", base, other)
		}
	}
}

func TestNetworksOfCNIConfigurations(t *testing.T) {
	for conf, want := range map[string]map[string]string{
		// cns/cniconflist and cni/azure-linux.conflist
		`{"cniVersion":"0.3.0","name":"azure","plugins":[{"type":"azure-vnet","mode":"transparent","ipsToRouteViaHost":["169.254.20.10"],"ipam":{"type":"azure-cns"}},{"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}`: {cns: "azure"},
		`{"cniVersion":"0.3.0","name":"azure","plugins":[{"type":"azure-vnet","mode":"bridge","bridge":"azure0","ipam":{"type":"azure-vnet-ipam"}}]}`:                                                                                        {vnetIPAM: "azure"},
		`{"cniVersion":"0.3.1","name":"cilium","plugins":[{"type":"cilium-cni","ipam":{"type":"azure-ipam"},"enable-debug":true,"log-file":"/var/log/cilium-cni.log"}]}`:                                                                     {delegated: "cilium"},
		`{"name":"single","type":"azure-vnet","ipam":{"type":"azure-vnet-ipamv6"}}`:                                                                                                                                                          {vnetIPAMv6: "single"},
		`{"name":"other","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`:                                                                                                                                                        {},
		`{"name":"odd","plugins":[{"type":"x","ipam":["azure-cns"]},{"type":"y","ipam":{}}]}`:                                                                                                                                                {},
		`{"plugins":[{"type":"azure-vnet","ipam":{"type":"azure-cns"}}]}`:                                                                                                                                                                    {},
		`{`: nil,
	} {
		if got := networks([]byte(conf)); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", conf, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ipamtest.AzureIPAM(map[string]string{"10.240.0.5": "c1"}))
	f.Add(ipamtest.AzureVnet(web))
	f.Add(ipamtest.AzureEndpoints(web, db))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func([]byte) (content, error){parseIPAM, parseVnet, parseEndpoints} {
			c, err := parse(data)
			for _, al := range c.allocations {
				if err != nil || !al.Address.IsValid() || al.Address.Zone() != "" {
					t.Errorf("got %v, error %v", al, err)
				}
			}
		}
		networks(data)
	})
}
