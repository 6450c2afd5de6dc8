package hostlocal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// networkText returns a short description of a network.
func networkText(n cniNetwork) string {
	ranges := make([]string, 0, len(n.ranges))
	for _, r := range n.ranges {
		ranges = append(ranges, fmt.Sprintf("%s-%s", r.First, r.Last))
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %q routed=%v %s %s %v", n.name, n.wiring.Plugin, n.wiring.Device, n.wiring.Routed, n.dir, strings.Join(ranges, ","), n.gateways))
}

func TestRangesOfHostLocalConfigurations(t *testing.T) {
	const dir = "/var/lib/cni/networks/"
	for name, c := range map[string]struct {
		conf string
		want []string // networks
		err  string   // a part of the error
	}{
		"kindnet": {
			`{"cniVersion":"0.3.1","name":"kindnet","plugins":[{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state",
			  "routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.244.1.0/24"}]]},"mtu":1500},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
			[]string{`kindnet ptp "" routed=true /run/cni-ipam-state/kindnet 10.244.1.2-10.244.1.254 [10.244.1.1]`},
			"",
		},
		"one plugin, as podman once had it": {
			`{"cniVersion":"0.2.0","name":"podman","type":"bridge","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/16"}}`,
			[]string{`podman bridge "cni0" routed=true ` + dir + `podman 10.88.0.2-10.88.255.254 [10.88.0.1]`},
			"",
		},
		"a VLAN on a device": {
			`{"name":"l2","type":"vlan","master":"eth0","vlanId":100,"ipam":{"type":"host-local","subnet":"192.168.7.0/24","gateway":"192.168.7.1"}}`,
			[]string{`l2 vlan "" routed=false ` + dir + `l2 192.168.7.2-192.168.7.254 [192.168.7.1]`},
			"",
		},
		"bridge without a gateway": {
			`{"name":"l2","type":"bridge","bridge":"br7","ipam":{"type":"host-local","subnet":"192.168.7.0/24","rangeStart":"192.168.7.100","rangeEnd":"192.168.7.200","gateway":"192.168.7.254"}}`,
			[]string{`l2 bridge "br7" routed=false ` + dir + `l2 192.168.7.100-192.168.7.200 [192.168.7.254]`},
			"",
		},
		"default gateway": {
			`{"name":"x","type":"bridge","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/30"}]]}}`,
			[]string{`x bridge "cni0" routed=true ` + dir + `x 10.1.0.2-10.1.0.2 [10.1.0.1]`},
			"",
		},
		"macvlan of two families, with a gateway in a range": {
			`{"name":"lan","plugins":[{"type":"macvlan","master":"eth1","ipam":{"type":"host-local","dataDir":"/data/","ranges":[
			  [{"subnet":"192.0.2.0/24","gateway":"192.0.2.10"},{"subnet":"198.51.100.0/24","rangeStart":"198.51.100.0","rangeEnd":"198.51.100.255"}],
			  [{"subnet":"2001:db8::/64"}]]}}]}`,
			[]string{`lan macvlan "eth1" routed=false /data/lan 192.0.2.1-192.0.2.9,192.0.2.11-192.0.2.254,198.51.100.0-198.51.100.0,198.51.100.2-198.51.100.255,2001:db8::2-2001:db8::ffff:ffff:ffff:ffff [192.0.2.10 198.51.100.1 2001:db8::1]`},
			"",
		},
		"ipvlan in mode l2": {
			`{"name":"x","type":"ipvlan","master":"eth0","mode":"l2","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`,
			[]string{`x ipvlan "eth0" routed=false ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"",
		},
		"ipvlan in mode l3": {
			`{"name":"x","type":"ipvlan","master":"eth0","mode":"l3","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`,
			[]string{`x ipvlan "eth0" routed=true ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"",
		},
		"ipvlan in mode l3s": {
			`{"name":"x","type":"ipvlan","master":"eth0","mode":"l3s","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`,
			[]string{`x ipvlan "eth0" routed=true ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"",
		},
		"a plugin with other modes": {
			`{"name":"x","type":"ib-net","master":"eth0","mode":3,"ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`,
			[]string{`x ib-net "eth0" routed=false ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"",
		},
		"old and new form together": {
			`{"name":"x","type":"ipvlan","master":"eth0","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/29","ranges":[[{"subnet":"10.2.0.0/29","gateway":"10.9.9.9"}]]}}`,
			[]string{`x ipvlan "eth0" routed=false ` + dir + `x 10.1.0.2-10.1.0.6,10.2.0.1-10.2.0.6 [10.1.0.1 10.9.9.9]`},
			"gateway 10.9.9.9 not in network 10.2.0.0/29; versions before 1.10 accept it",
		},
		"a gateway of the link": {
			`{"name":"x","type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/126","gateway":"fe80::1"}]]}}`,
			[]string{`x bridge "cni0" routed=false ` + dir + `x 10.1.0.2-10.1.0.6,fd00::1-fd00::3 [10.1.0.1 fe80::1]`},
			"gateway fe80::1 not in network fd00::/126; versions before 1.10 accept it",
		},
		"a gateway and a start outside of the subnet": {
			`{"name":"x","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/29","gateway":"10.9.9.9","rangeStart":"10.9.9.8"}}`,
			[]string{`x bridge "cni0" routed=false ` + dir + `x  []`},
			"gateway 10.9.9.9 not in network 10.1.0.0/29",
		},
		"host-device": {
			`{"name":"x","type":"host-device","device":"eth3","ipam":{"type":"host-local","dataDir":"/var/run/x","subnet":"10.1.0.0/29"}}`,
			[]string{`x host-device "eth3" routed=false /var/run/x/x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"",
		},
		"ranges by the runtime": {
			`{"name":"kubenet","type":"bridge","bridge":"cbr0","isGateway":true,"capabilities":{"ipRanges":true},"ipam":{"type":"host-local"}}`,
			[]string{`kubenet bridge "cbr0" routed=true ` + dir + `kubenet  []`},
			"",
		},
		"Calico with host-local": {
			`{"name":"k8s-pod-network","plugins":[{"type":"calico","ipam":{"type":"host-local","ranges":[[{"subnet":"usePodCidr"}],[{"subnet":"usePodCidrIPv6"}]]}}]}`,
			[]string{`k8s-pod-network calico "" routed=false ` + dir + `k8s-pod-network  []`},
			"",
		},
		"flannel": {
			`{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap"}]}`,
			[]string{`cbr0 bridge "cni0" routed=true ` + dir + `cbr0  []`},
			"",
		},
		"flannel with another plugin and directory": {
			`{"name":"cbr0","type":"flannel","ipam":{"dataDir":"/data"},"delegate":{"type":"macvlan","master":"eth0"}}`,
			[]string{`cbr0 macvlan "eth0" routed=false /data/cbr0  []`},
			"",
		},
		"flannel with no delegate": {
			`{"name":"cbr0","type":"flannel"}`,
			[]string{`cbr0 bridge "cni0" routed=true ` + dir + `cbr0  []`},
			"",
		},
		"flannel with another IPAM": {`{"name":"cbr0","type":"flannel","ipam":{"type":"dhcp"}}`, nil, ""},
		"a plugin that calls another one": {
			`{"name":"x","type":"meta","delegate":{"type":"macvlan","master":"eth2","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}}`,
			[]string{`x macvlan "eth2" routed=false ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"",
		},
		"a plugin with host-local that calls another one": {
			`{"name":"x","type":"ptp","ipam":{"type":"host-local","subnet":"10.2.0.0/29"},"delegate":{"type":"macvlan","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}}`,
			[]string{`x ptp "" routed=true ` + dir + `x 10.2.0.2-10.2.0.6 [10.2.0.1]`},
			"",
		},
		"a delegate that is no object": {`{"name":"x","type":"meta","delegate":"me"}`, nil, "string"},
		"the longest directory": {
			`{"name":"x","type":"ptp","ipam":{"type":"host-local","dataDir":"/` + strings.Repeat("d", ipam.MaxText-1) + `"}}`,
			[]string{`x ptp "" routed=true /` + strings.Repeat("d", ipam.MaxText-1) + `/x  []`},
			"",
		},
		"a directory that is too long": {
			`{"name":"x","type":"ptp","ipam":{"type":"host-local","dataDir":"/` + strings.Repeat("d", ipam.MaxText) + `"}}`, nil, "not an absolute path",
		},
		"the longest name of a device": {
			`{"name":"x","type":"macvlan","master":"` + strings.Repeat("e", 47) + `","ipam":{"type":"host-local"}}`,
			[]string{`x macvlan "` + strings.Repeat("e", 47) + `" routed=false ` + dir + `x  []`},
			"",
		},
		"a name of devices that is too long": {
			`{"name":"x","type":"macvlan","master":"` + strings.Repeat("e", 48) + `","ipam":{"type":"host-local"}}`, nil, "plugin or device is invalid",
		},
		"the longest name": {
			`{"name":"` + strings.Repeat("n", 253) + `","type":"ptp","ipam":{"type":"host-local"}}`,
			[]string{strings.Repeat("n", 253) + ` ptp "" routed=true ` + dir + strings.Repeat("n", 253) + `  []`},
			"",
		},
		"a name that is too long": {
			`{"name":"` + strings.Repeat("n", 254) + `","type":"ptp","ipam":{"type":"host-local"}}`, nil, "the network name is invalid",
		},
		"plugins as deep as they may be": {
			strings.Repeat(`{"name":"x","plugins":[`, maxConfDepth-1) + `{"type":"ptp","ipam":{"type":"host-local"}}` + strings.Repeat(`]}`, maxConfDepth-1),
			[]string{`x ptp "" routed=true ` + dir + `x  []`},
			"",
		},
		"delegates as deep as they may not be": {
			strings.Repeat(`{"name":"x","type":"multus","delegates":[`, maxConfDepth) + `{"name":"y","type":"ptp","ipam":{"type":"host-local"}}` + strings.Repeat(`]}`, maxConfDepth), nil, "too deep",
		},
		"ranges of flannel's own configuration": {
			`{"name":"cbr0","type":"flannel","ipam":{"subnet":"10.9.0.0/24"}}`,
			[]string{`cbr0 bridge "cni0" routed=true ` + dir + `cbr0  []`},
			"",
		},
		"flannel with the longest name of a file": {
			`{"name":"cbr0","type":"flannel","subnetFile":"/` + strings.Repeat("f", ipam.MaxText-1) + `"}`,
			[]string{`cbr0 bridge "cni0" routed=true ` + dir + `cbr0  []`},
			"",
		},
		"flannel with a name of a file that is too long": {
			`{"name":"cbr0","type":"flannel","subnetFile":"/` + strings.Repeat("f", ipam.MaxText) + `"}`,
			[]string{`cbr0 bridge "cni0" routed=true ` + dir + `cbr0  []`},
			"its subnetFile is not an absolute path",
		},
		"one range of Calico": {
			`{"name":"x","type":"calico","ipam":{"type":"host-local","subnet":"usePodCidr"}}`,
			[]string{`x calico "" routed=false ` + dir + `x  []`},
			"",
		},
		"flannel with a file elsewhere": {
			`{"name":"cbr0","type":"flannel","subnetFile":"subnet.env"}`,
			[]string{`cbr0 bridge "cni0" routed=true ` + dir + `cbr0  []`},
			"its subnetFile is not an absolute path",
		},
		"flannel whose bridge has no gateway": {
			`{"name":"cbr0","type":"flannel","delegate":{"isGateway":false}}`,
			[]string{`cbr0 bridge "cni0" routed=false ` + dir + `cbr0  []`},
			"",
		},
		"a wrong field of another plugin": {`{"name":"x","type":"own","bridge":7}`, nil, ""},
		"an IPAM with a wrong field":      {`{"name":"x","type":"ptp","ipam":{"type":"host-local","dataDir":7}}`, nil, `"dataDir" is a number`},
		"multus": {
			`{"name":"multus-cni-network","type":"multus","delegates":[
			  {"name":"cbr0","plugins":[{"type":"bridge","isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/29"}},{"type":"portmap"}]},
			  {"name":"lan","type":"macvlan","master":"eth1","ipam":{"type":"host-local","subnet":"10.2.0.0/29"}},
			  {"name":"calico","type":"calico","ipam":{"type":"calico-ipam"}}]}`,
			[]string{
				`cbr0 bridge "cni0" routed=true ` + dir + `cbr0 10.1.0.2-10.1.0.6 [10.1.0.1]`,
				`lan macvlan "eth1" routed=false ` + dir + `lan 10.2.0.2-10.2.0.6 [10.2.0.1]`,
			},
			"",
		},
		"another IPAM":                   {`{"name":"x","type":"bridge","ipam":{"type":"whereabouts","range":"10.1.0.0/24","ranges":"as it likes","gateway":7}}`, nil, ""},
		"no IPAM":                        {`{"name":"x","plugins":[{"type":"cilium-cni","master":{"is":"not"}},{"type":"loopback"}]}`, nil, ""},
		"an IPAM that is no object":      {`{"name":"x","type":"own","ipam":"mine"}`, nil, ""},
		"a list of nothing":              {`{"name":"x","plugins":[]}`, nil, ""},
		"no JSON":                        {`{"name":"x",`, nil, "parse JSON: "},
		"nothing":                        {``, nil, "parse JSON: "},
		"not of CNI":                     {`{"a":1}`, nil, "neither a name nor a plugin"},
		"null":                           {`null`, nil, "neither a name nor a plugin"},
		"a list":                         {`[]`, nil, "array"},
		"a gateway that is no bool":      {`{"name":"x","type":"bridge","isGateway":"yes","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, nil, `"isGateway" is a string`},
		"no name":                        {`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, nil, "the network name is invalid"},
		"a name that leads elsewhere":    {`{"name":"../x","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, nil, "the network name is invalid"},
		"a directory that leads nowhere": {`{"name":"x","type":"bridge","ipam":{"type":"host-local","dataDir":"data","subnet":"10.1.0.0/29"}}`, nil, "not an absolute path"},
		"a device without end":           {`{"name":"x","type":"macvlan","master":"` + strings.Repeat("e", 100) + `","ipam":{"type":"host-local"}}`, nil, "plugin or device is invalid"},
		"one plugin of two is wrong": {
			`{"name":"x","plugins":[7,{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}]}`,
			[]string{`x ptp "" routed=true ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"number",
		},
		"a range is wrong": {
			`{"name":"x","type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/33"}}`,
			[]string{`x ptp "" routed=true ` + dir + `x  []`},
			"invalid CIDR address: 10.1.0.0/33",
		},
		"plugins in plugins": {
			strings.Repeat(`{"name":"x","plugins":[`, 9) + `{"type":"ptp"}` + strings.Repeat(`]}`, 9), nil, "too deep",
		},
	} {
		t.Run(name, func(t *testing.T) {
			networks, err := parseConf("file", []byte(c.conf))
			var got []string
			for _, n := range networks {
				got = append(got, networkText(n))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("networks:\ngot  %q\nwant %q", got, c.want)
			}
			for _, n := range networks {
				if err == nil && n.refused != "" {
					err = errors.New(n.refused)
				}
			}
			if err == nil && c.err != "" || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error: got %v, want one with %q", err, c.err)
			}
		})
	}
}

// The plugins macvlan and ipvlan use the interface of the default route unless they have a master.
func TestAMasterThatIsNotConfigured(t *testing.T) {
	const ipamConf = `"ipam":{"type":"host-local","subnet":"10.1.0.0/29"}`
	for conf, want := range map[string]string{
		`{"name":"x","type":"macvlan",` + ipamConf + `}`:                                            "eth0",
		`{"name":"x","plugins":[{"type":"ipvlan",` + ipamConf + `},{"type":"tuning"}]}`:             "eth0",
		`{"name":"x","plugins":[{"type":"vrf"},{"type":"macvlan",` + ipamConf + `}]}`:               "eth0",
		`{"name":"x","plugins":[{"type":"ptp"},{"type":"ipvlan",` + ipamConf + `}]}`:                "",
		`{"name":"x","type":"macvlan","linkInContainer":true,` + ipamConf + `}`:                     "",
		`{"name":"x","type":"macvlan","linkInContainer":true,"master":"net1",` + ipamConf + `}`:     "",
		`{"name":"x","type":"macvlan","master":"eth1",` + ipamConf + `}`:                            "eth1",
		`{"name":"x","type":"vlan","vlanId":7,` + ipamConf + `}`:                                    "",
		`{"name":"x","type":"own",` + ipamConf + `}`:                                                "",
		`{"name":"x","type":"multus","delegates":[{"name":"y","type":"macvlan",` + ipamConf + `}]}`: "eth0",
		`{"name":"x","type":"flannel","delegate":{"type":"macvlan"}}`:                               "eth0",
		`{"name":"x","type":"ipvlan","mode":"l3",` + ipamConf + `}`:                                 "eth0",
	} {
		host := ipamtest.NewHost()
		host.Default = "eth0"
		confs := cniConfs{dirs: []string{t.TempDir()}, host: host}
		if err := os.WriteFile(filepath.Join(confs.dirs[0], "10-x.conflist"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		networks, problems, _ := confs.read(time.Time{})
		if len(networks) != 1 || len(problems) > 0 {
			t.Fatalf("%s: got %v and problems %q, want one network", conf, networks, problems)
		}
		for _, n := range networks {
			if n.wiring.Device != want {
				t.Errorf("%s: got device %q, want %q", conf, n.wiring.Device, want)
			}
		}
	}
}

func TestMostRangesAreAccepted(t *testing.T) {
	sets := make([]string, 0, maxRanges)
	for i := range maxRanges - 1 {
		sets = append(sets, fmt.Sprintf(`[{"subnet":"10.1.%d.0/24"}]`, i))
	}
	conf := `{"name":"x","type":"ptp","ipam":{"type":"host-local","subnet":"10.2.0.0/24","ranges":[` + strings.Join(sets, ",") + `]}}`
	networks, err := parseConf("file", []byte(conf))
	if err != nil || len(networks) != 1 || len(networks[0].ranges) != maxRanges || len(networks[0].gateways) != maxRanges || networks[0].file != "file" {
		t.Errorf("got %+v and error %v, want %d ranges", networks, err, maxRanges)
	}
	conf = strings.Replace(conf, `"ranges":[`, `"ranges":[[{"subnet":"10.3.0.0/24"}],`, 1)
	if networks, err := parseConf("file", []byte(conf)); len(networks) != 1 || networks[0].refused == "" || len(networks[0].ranges) != 0 {
		t.Errorf("one range more: got %+v and error %v", networks, err)
	}
}

func TestRangesThatHostLocalRejectsAreRejected(t *testing.T) {
	for name, c := range map[string]struct{ ranges, err string }{
		"empty set":            {`[[]]`, "empty range set"},
		"no subnet":            {`[[{"rangeStart":"10.1.0.2"}]]`, "not v4 nor v6"},
		"host bits":            {`[[{"subnet":"10.1.0.1/24"}]]`, "the network address is 10.1.0.0"},
		"two addresses":        {`[[{"subnet":"10.1.0.0/31"}]]`, "too small"},
		"two of IPv6":          {`[[{"subnet":"fd00::/127"}]]`, "too small"},
		"start elsewhere":      {`[[{"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}]]`, "RangeStart 10.2.0.1 not in network"},
		"end elsewhere":        {`[[{"subnet":"10.1.0.0/24","rangeEnd":"10.2.0.1"}]]`, "RangeEnd 10.2.0.1 not in network"},
		"end before its start": {`[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.8"}]]`, "RangeStart 10.1.0.9 not in network"},
		"junk":                 {`[[{"subnet":"10.1.0.0/24","gateway":"me"}]]`, "invalid IP address: me"},
		"overlap in a set":     {`[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.0.0/25"}]]`, "overlap"},
		"overlap of sets":      {`[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.0/16"}]]`, "overlaps"},
		"too many ranges":      {`[` + strings.Repeat(`[{"subnet":"10.1.0.0/24"}],`, 128) + `[{"subnet":"10.2.0.0/24"}]]`, "more ranges than the limit of 128"},
		"two families":         {`[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]`, "mixed address families"},
		"IPv4 as IPv6":         {`[[{"subnet":"::ffff:10.1.0.0/120"}]]`, "version mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			networks, err := parseConf("file", []byte(`{"name":"x","type":"ptp","ipam":{"type":"host-local","ranges":`+c.ranges+`}}`))
			if err != nil || len(networks) != 1 || !strings.Contains(networks[0].refused, c.err) {
				t.Fatalf("got %v and error %v, want a network that host-local refuses with %q", networks, err, c.err)
			}
			if len(networks[0].ranges)+len(networks[0].gateways) != 0 {
				t.Errorf("networks: got %v, want one without ranges", networks)
			}
		})
	}
}

func FuzzConf(f *testing.F) {
	f.Add(`{"name":"x","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","gateway":"10.1.0.77"}],[{"subnet":"fd00::/64"}]]}}]}`)
	f.Add(`{"name":"x","type":"multus","delegates":[{"name":"y","type":"flannel","delegate":{"bridge":"b"}}]}`)
	f.Add(`{"name":"x","type":"ptp","ipam":{"type":"host-local","dataDir":"/a/../b","subnet":"0.0.0.0/0","rangeEnd":"::1"}}`)
	f.Fuzz(func(t *testing.T, conf string) {
		networks, err := parseConf("file", []byte(conf))
		if err != nil && err.Error() == "" {
			t.Error("an error has no text")
		}
		for _, n := range networks {
			if !isNetworkName(n.name) || !filepath.IsAbs(n.dir) || filepath.Base(n.dir) != n.name || len(n.dir) > 2*ipam.MaxText {
				t.Errorf("network %q in %q was accepted", n.name, n.dir)
			}
			for _, r := range n.ranges {
				if r.First.BitLen() != r.Last.BitLen() || r.Last.Less(r.First) || r.First.Zone() != "" || r.First.Is4In6() {
					t.Errorf("range %v was accepted", r)
				}
			}
			if len(n.ranges) > 2*maxRanges {
				t.Errorf("got %d ranges", len(n.ranges))
			}
		}
	})
}
