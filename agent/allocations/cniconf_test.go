package allocations

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/agent/form"
)

// networkText returns a short description of a network.
func networkText(n cniNetwork) string {
	ranges := make([]string, 0, len(n.ranges))
	for _, r := range n.ranges {
		ranges = append(ranges, fmt.Sprintf("%s-%s", r.first, r.last))
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %q routed=%v %s %s %v", n.name, n.plugin, n.device, n.routed, n.dir, strings.Join(ranges, ","), n.gateways))
}

func TestConfigurationSaysWhatHostLocalGives(t *testing.T) {
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
		"old and new form together": {
			`{"name":"x","type":"ipvlan","master":"eth0","ipMasq":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/29","ranges":[[{"subnet":"10.2.0.0/29","gateway":"10.9.9.9"}]]}}`,
			[]string{`x ipvlan "eth0" routed=false ` + dir + `x 10.1.0.2-10.1.0.6,10.2.0.1-10.2.0.6 [10.1.0.1 10.9.9.9]`},
			"",
		},
		"host-device": {
			`{"name":"x","type":"host-device","device":"eth3","ipam":{"type":"host-local","dataDir":"/var/run/x","subnet":"10.1.0.0/29"}}`,
			[]string{`x host-device "eth3" routed=false /run/x/x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
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
		"no JSON":                        {`{"name":"x",`, nil, "no JSON"},
		"nothing":                        {``, nil, "no JSON"},
		"not of CNI":                     {`{"a":1}`, nil, "neither a name nor a plugin"},
		"null":                           {`null`, nil, "neither a name nor a plugin"},
		"a list":                         {`[]`, nil, "array"},
		"a gateway that is no bool":      {`{"name":"x","type":"bridge","isGateway":"yes","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, nil, `"isGateway" is a string`},
		"no name":                        {`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, nil, "no name of a network"},
		"a name that leads elsewhere":    {`{"name":"../x","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}`, nil, "no name of a network"},
		"a directory that leads nowhere": {`{"name":"x","type":"bridge","ipam":{"type":"host-local","dataDir":"data","subnet":"10.1.0.0/29"}}`, nil, "no absolute path"},
		"a device without end":           {`{"name":"x","type":"macvlan","master":"` + strings.Repeat("e", 100) + `","ipam":{"type":"host-local"}}`, nil, "cannot be"},
		"one plugin of two is wrong": {
			`{"name":"x","plugins":[7,{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}}]}`,
			[]string{`x ptp "" routed=true ` + dir + `x 10.1.0.2-10.1.0.6 [10.1.0.1]`},
			"number",
		},
		"a range is wrong": {
			`{"name":"x","type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/33"}}`,
			[]string{`x ptp "" routed=true ` + dir + `x  []`},
			`"10.1.0.0/33" is no subnet`,
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
			if err == nil && c.err != "" || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error: got %v, want one with %q", err, c.err)
			}
		})
	}
}

func TestRangesThatHostLocalRefusesAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ ranges, err string }{
		"empty set":            {`[[]]`, "range set 0 is empty"},
		"no subnet":            {`[[{"rangeStart":"10.1.0.2"}]]`, "no subnet"},
		"host bits":            {`[[{"subnet":"10.1.0.1/24"}]]`, "the network address is 10.1.0.0"},
		"two addresses":        {`[[{"subnet":"10.1.0.0/31"}]]`, "too small"},
		"two of IPv6":          {`[[{"subnet":"fd00::/127"}]]`, "too small"},
		"start elsewhere":      {`[[{"subnet":"10.1.0.0/24","rangeStart":"10.2.0.1"}]]`, "rangeStart 10.2.0.1 is not in"},
		"end elsewhere":        {`[[{"subnet":"10.1.0.0/24","rangeEnd":"10.2.0.1"}]]`, "rangeEnd 10.2.0.1 is not in"},
		"end before its start": {`[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9","rangeEnd":"10.1.0.8"}]]`, "before"},
		"junk":                 {`[[{"subnet":"10.1.0.0/24","gateway":"me"}]]`, `gateway "me" is no address`},
		"overlap in a set":     {`[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.0.0/25"}]]`, "overlaps"},
		"overlap of sets":      {`[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.1.0.0/16"}]]`, "overlaps"},
		"two families":         {`[[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]]`, "IPv4 and IPv6"},
		"IPv4 as IPv6":         {`[[{"subnet":"::ffff:10.1.0.0/120"}]]`, "written as IPv6"},
	} {
		t.Run(name, func(t *testing.T) {
			networks, err := parseConf("file", []byte(`{"name":"x","type":"ptp","ipam":{"type":"host-local","ranges":`+c.ranges+`}}`))
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("error: got %v, want one with %q", err, c.err)
			}
			if len(networks) != 1 || len(networks[0].ranges)+len(networks[0].gateways) != 0 {
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
			t.Error("an error says nothing")
		}
		for _, n := range networks {
			if !form.IsNetworkName(n.name) || !filepath.IsAbs(n.dir) || filepath.Base(n.dir) != n.name || len(n.dir) > 2*form.MaxLength {
				t.Errorf("network %q in %q was taken", n.name, n.dir)
			}
			for _, r := range n.ranges {
				if r.first.BitLen() != r.last.BitLen() || r.last.Less(r.first) || r.first.Zone() != "" || r.first.Is4In6() {
					t.Errorf("range %v was taken", r)
				}
			}
			h := newHostLocal(n.dir, false)
			h.conf = &n
			if r := h.record(); len(r.GetRanges()) > 2*maxRanges {
				t.Errorf("got %d ranges", len(r.GetRanges()))
			}
		}
	})
}

func TestConfigurationIsFollowed(t *testing.T) {
	ptp := func(subnet string) string {
		return `{"name":"pods","type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"` + subnet + `"}]]}}`
	}
	l := startIPAM(t, func(l *ipamLab) {
		l.configure("10-other.conf", strings.Replace(ptp("10.9.0.0/24"), "pods", "other", 1)) // in defaultDataDir
	})
	other := DefaultDir + "/other"
	if l.take(); l.pools[other].GetState() != missing || l.pools[other].GetConfig() != l.conf+"/10-other.conf" || l.pools[other].GetLostAt() != nil {
		t.Errorf("network that gave no address yet: got %v", l.pools)
	}
	local := func(subnet string) string {
		return strings.Replace(ptp(subnet), `"type":"host-local"`, fmt.Sprintf(`"type":"host-local","dataDir":%q`, l.dir), 1)
	}
	first := func() string {
		r := l.pools[l.path("pods")].GetRanges()
		if len(r) == 0 {
			return ""
		}
		a, _ := netip.AddrFromSlice(r[0].GetFirst())
		return a.String()
	}
	l.give("pods", "10.1.0.2", "c")
	l.configure("20-pods.conf", local("10.1.0.0/24"))
	l.await("the ranges", func() bool { return first() == "10.1.0.2" })
	if p := l.pools[l.path("pods")]; p.GetPlugin() != "ptp" || !p.GetRouted() || p.GetConfig() != l.conf+"/20-pods.conf" || len(p.GetGateways()) != 1 {
		t.Errorf("pool with a configuration: got %v", p)
	}
	l.configure("20-pods.conf", local("10.2.0.0/24"))
	l.await("other ranges", func() bool { return first() == "10.2.0.2" })
	l.configure("15-pods.conflist", local("10.3.0.0/24"))
	l.await("the first file", func() bool { return first() == "10.3.0.2" })
	l.must(os.Remove(filepath.Join(l.conf, "15-pods.conflist")))
	l.await("the second file", func() bool { return first() == "10.2.0.2" })

	// A file that cannot be parsed does not affect what is known.
	l.configure("20-pods.conf", `{"name":`)
	old := time.Now().Add(-time.Hour)
	l.must(os.Chtimes(filepath.Join(l.conf, "20-pods.conf"), old, old))
	l.await("the problem", func() bool {
		problems, _ := l.ipam.Health()
		return len(problems) == 1 && strings.Contains(problems[0], "20-pods.conf") && strings.Contains(problems[0], "no JSON")
	})
	if l.take(); first() != "10.2.0.2" || len(l.pools) != 2 {
		t.Errorf("pools with a broken configuration: got %v", l.pools)
	}
	l.must(os.RemoveAll(filepath.Join(l.root, "etc")))
	l.await("the end of the configurations", func() bool {
		problems, _ := l.ipam.Health()
		return len(problems) == 0 && len(l.pools) == 1 && l.pools[l.path("pods")].GetConfig() == ""
	})
	if p := l.awaitGiven("pods", 1, known); len(p.GetRanges()) != 0 || p.GetRouted() {
		t.Errorf("pool without a configuration: got %v", p)
	}
	l.configure("10-pods.conflist", local("10.4.0.0/24"))
	l.await("the configuration that came back", func() bool { return first() == "10.4.0.2" })
}

func TestConfigurationThatIsBeingWrittenIsNoProblem(t *testing.T) {
	c := cniConfs{dirs: []string{t.TempDir()}}
	file := filepath.Join(c.dirs[0], "x.conf")
	if err := os.WriteFile(file, []byte(`{"name"`), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if _, problems, later := c.read(now); len(problems) != 0 || !later {
		t.Errorf("at once: got problems %q and later %v, want to look later", problems, later)
	}
	if _, problems, later := c.read(now.Add(2 * settled)); len(problems) != 1 || later {
		t.Errorf("later: got problems %q and later %v, want one", problems, later)
	}
}

func TestRangesOfFlannelAreThoseOfTheNode(t *testing.T) {
	l := startIPAM(t)
	env := filepath.Join(l.root, "run/flannel/subnet.env")
	l.configure("10-flannel.conflist", fmt.Sprintf(
		`{"name":"cbr0","plugins":[{"type":"flannel","subnetFile":%q,"ipam":{"dataDir":%q},"delegate":{"isDefaultGateway":true}}]}`, env, l.dir))
	if p := l.awaitGiven("cbr0", 0, missing); p.GetPlugin() != "bridge" || p.GetDevice() != "cni0" || !p.GetRouted() || len(p.GetRanges()) != 0 {
		t.Errorf("pool before flannel runs: got %v", p)
	}
	ranges := func() (text string) {
		for _, r := range l.pools[l.path("cbr0")].GetRanges() {
			first, _ := netip.AddrFromSlice(r.GetFirst())
			last, _ := netip.AddrFromSlice(r.GetLast())
			text += fmt.Sprintf("%s-%s ", first, last)
		}
		return text
	}
	write := func(env, content string) {
		t.Helper()
		l.must(os.MkdirAll(filepath.Dir(env), 0o755), os.WriteFile(env+".new", []byte(content), 0o644), os.Rename(env+".new", env))
	}
	write(env, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")
	l.await("its range", func() bool { return ranges() == "10.244.3.2-10.244.3.254 " })
	write(env, "FLANNEL_SUBNET=10.244.4.1/24\nFLANNEL_IPV6_SUBNET=fd00:4::1/120\n")
	l.await("both ranges", func() bool { return ranges() == "10.244.4.2-10.244.4.254 fd00:4::2-fd00:4::ff " })
	write(env, "FLANNEL_SUBNET=mine\n")
	l.await("a problem", func() bool {
		problems, _ := l.ipam.Health()
		return ranges() == "" && len(problems) == 1 && strings.Contains(problems[0], "subnet.env: FLANNEL_SUBNET is no subnet")
	})
}

func TestTwoPluginsOfOneListGiveFromOneDirectory(t *testing.T) {
	c := cniConfs{dirs: []string{t.TempDir()}}
	conf := `{"name":"x","plugins":[{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/29"}},{"type":"macvlan","ipam":{"type":"host-local","subnet":"10.2.0.0/29"}}]}`
	if err := os.WriteFile(filepath.Join(c.dirs[0], "x.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	networks, _, _ := c.read(time.Now())
	if n := networks[DefaultDir+"/x"]; len(networks) != 1 || len(n.ranges) != 2 || len(n.gateways) != 2 || n.plugin != "bridge" {
		t.Errorf("networks: got %v, want one with both ranges", networks)
	}
}
