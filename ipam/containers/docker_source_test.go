package containers

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// dockerNode is the data root of a dockerd.
type dockerNode struct {
	t    *testing.T
	host ipamtest.Host
	root string
	*dockerSource
	keys ipamtest.Bucket
}

// The IDs of a network, and the records that dockerd 20.10.24 has written for it.
const (
	appnet       = "ec4338af2f929f350a4651913949a11f7b5fac68b24da93256fac008bba493e6"
	appnetRecord = `{"addrSpace":"LocalDefault","enableIPv6":true,"generic":{"com.docker.network.enable_ipv6":true,"com.docker.network.generic":{"com.docker.network.bridge.name":"apps"}},"id":"` + appnet + `","internal":false,"ipamType":"default","ipamV4Config":"[{\"PreferredPool\":\"172.30.5.0/24\",\"SubPool\":\"172.30.5.128/25\",\"Gateway\":\"\",\"AuxAddresses\":{\"router\":\"172.30.5.200\"}}]","ipamV4Info":"[{\"IPAMData\":\"{\\\"AddressSpace\\\":\\\"LocalDefault\\\",\\\"AuxAddresses\\\":{\\\"router\\\":\\\"172.30.5.200/24\\\"},\\\"Gateway\\\":\\\"172.30.5.128/24\\\",\\\"Pool\\\":\\\"172.30.5.0/24\\\"}\",\"PoolID\":\"LocalDefault/172.30.5.0/24/172.30.5.128/25\"}]","ipamV6Config":"[{\"PreferredPool\":\"fd00:5::/64\",\"SubPool\":\"\",\"Gateway\":\"\",\"AuxAddresses\":null}]","ipamV6Info":"[{\"IPAMData\":\"{\\\"AddressSpace\\\":\\\"LocalDefault\\\",\\\"Gateway\\\":\\\"fd00:5::1/64\\\",\\\"Pool\\\":\\\"fd00:5::/64\\\"}\",\"PoolID\":\"LocalDefault/fd00:5::/64\"}]","name":"appnet","networkType":"bridge","scope":"local"}`
	lanRecord    = `{"generic":{"com.docker.network.generic":{"parent":"eth9"}},"id":"lan","ipamType":"default","ipamV4Config":"[{\"PreferredPool\":\"192.168.50.0/24\",\"SubPool\":\"\",\"Gateway\":\"\",\"AuxAddresses\":null}]","ipamV4Info":"[{\"IPAMData\":\"{\\\"AddressSpace\\\":\\\"LocalDefault\\\",\\\"Gateway\\\":\\\"192.168.50.1/24\\\",\\\"Pool\\\":\\\"192.168.50.0/24\\\"}\",\"PoolID\":\"LocalDefault/192.168.50.0/24\"}]","name":"lan","networkType":"macvlan"}`
)

func newDockerNode(t *testing.T) *dockerNode {
	t.Helper()
	n := &dockerNode{t: t, host: ipamtest.NewHost(), root: filepath.Join(t.TempDir(), "docker"), keys: ipamtest.Bucket{}}
	n.dockerSource = newDocker(n.host, ipam.FilesConfig{Dirs: []string{n.root, filepath.Join(n.root, "netns")}}).(*dockerSource)
	n.put("network/"+appnet, appnetRecord)
	n.put("bridge/"+appnet, `{"AddressIPv4":"172.30.5.128/24","BridgeName":"apps","ID":"`+appnet+`"}`)
	n.put("network/lan", lanRecord)
	n.put("network/host", `{"id":"host","name":"host","networkType":"host"}`)
	n.put("endpoint_count/"+appnet, `{"Count":1}`)
	return n
}

// put sets a record of the database.
func (n *dockerNode) put(key, record string) {
	n.keys[prefix+key+"/"] = "\x07\x00\x00\x00\x00\x00\x00\x00" + record
}

// give gives a container addresses.
func (n *dockerNode) give(network, id, addr, v6 string) {
	n.put("sandbox/s"+id, fmt.Sprintf(`{"ID":"s%s","Cid":"%[1]s","Eps":[]}`, id))
	n.put("endpoint/"+network+"/e"+id, fmt.Sprintf(`{"ep_iface":{"addr":"%s","addrv6":"%s","dstPrefix":"eth"},"id":"e%s","sandbox":"s%[3]s"}`, addr, v6, id))
}

// save writes the database.
func (n *dockerNode) save() {
	n.t.Helper()
	if err := ipamtest.WriteBolt(n.Path, ipamtest.Bucket{bucket: n.keys}, dockerWritten); err != nil {
		n.t.Fatal(err)
	}
}

// container writes the configuration of a container.
func (n *dockerNode) container(id, name string, running bool, key, addr string) {
	n.t.Helper()
	n.write("containers/"+id+"/config.v2.json", fmt.Sprintf(`{"State":{"Running":%t},"ID":"%s","Name":"/%s","NetworkSettings":{"SandboxKey":"%s","Networks":{"appnet":{"IPAddress":"%s"},"none":null}}}`, running, id, name, key, addr))
}

func (n *dockerNode) write(file, content string) {
	n.t.Helper()
	path := filepath.Join(n.root, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Chtimes(path+".new", dockerWritten, dockerWritten); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		n.t.Fatal(err)
	}
}

// dockerWritten is when all files were written.
var dockerWritten = time.Unix(1_795_425_845, 0)

// look reads everything that may have changed, an hour after it was written.
func (n *dockerNode) look() (again bool) {
	n.t.Helper()
	n.Find(dockerWritten)
	return n.Read(ipam.FileRead{Now: dockerWritten.Add(time.Hour), All: true})
}

// pools returns the allocations of each pool, without the unchanged ones of before.
func (n *dockerNode) pools() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, p := range n.Pools() {
		all[strings.TrimPrefix(p.Name, n.Path)] = map[string]string{}
		for a, al := range p.Changes {
			id := "-"
			if al != nil {
				id = al.ContainerID
			}
			all[strings.TrimPrefix(p.Name, n.Path)][a.String()] = id
		}
		clear(p.Changes)
	}
	return all
}

func (n *dockerNode) pool(network string) *ipam.FilePool {
	n.t.Helper()
	for _, p := range n.Pools() {
		if p.Name == n.Path+"#"+network {
			return p
		}
	}
	n.t.Fatalf("no pool of network %s", network)
	return nil
}

func TestNetworksAndTheirAddressesAreRead(t *testing.T) {
	n := newDockerNode(t)
	n.give(appnet, "web", "172.30.5.129/24", "fd00:5::2/64")
	n.give("lan", "mac", "192.168.50.2/24", "")
	n.give("host", "none", "", "")
	n.save()
	if !n.look() || n.look() {
		t.Error("got no second look after a change, or one without a change")
	}
	want := map[string]map[string]string{"#appnet": {"172.30.5.129": "web", "fd00:5::2": "web"}, "#lan": {"192.168.50.2": "mac"}}
	if got := n.pools(); !maps.EqualFunc(got, want, maps.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
	p := n.pool("appnet")
	wantRanges := []ipam.Range{
		{First: netip.MustParseAddr("172.30.5.128"), Last: netip.MustParseAddr("172.30.5.254")},
		{First: netip.MustParseAddr("fd00:5::1"), Last: netip.MustParseAddr("fd00:5::ffff:ffff:ffff:ffff")},
	}
	if p.State != ipam.Known || p.Network != "docker:appnet" || p.Device != "apps" || !p.Routed || !slices.Equal(p.Ranges, wantRanges) {
		t.Errorf("got %+v, want a known one of bridge apps with ranges %v", p.Pool, wantRanges)
	}
	for a, want := range map[string]bool{"172.30.5.128": false, "172.30.5.200": false, "172.30.5.201": true, "172.30.5.7": false, "fd00:5::1": false, "fd00:5::7": true} {
		if got := p.Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: got %t that docker may allocate it, want %t", a, got, want)
		}
	}
	if p := n.pool("lan"); p.Device != "eth9" || p.Routed || p.Plugin != "macvlan" || p.Contains(netip.MustParseAddr("192.168.50.255")) || p.Contains(netip.MustParseAddr("192.168.50.1")) {
		t.Errorf("got %+v, want one of devices on eth9 without gateway and broadcast address", p.Pool)
	}

	// A container ends, and a network is removed.
	delete(n.keys, prefix+"endpoint/"+appnet+"/eweb/")
	delete(n.keys, prefix+"endpoint/lan/emac/")
	n.save()
	n.Event(n.Path, false)
	n.Read(ipam.FileRead{Now: dockerWritten.Add(time.Hour)})
	want = map[string]map[string]string{"#appnet": {"172.30.5.129": "-", "fd00:5::2": "-"}, "#lan": {"192.168.50.2": "-"}}
	if got := n.pools(); !maps.EqualFunc(got, want, maps.Equal) || n.pool("lan").Lost != 0 {
		t.Errorf("got %v, want %v, and no loss of the only record", got, want)
	}
	delete(n.keys, prefix+"network/lan/")
	n.save()
	n.look()
	if got := len(n.Pools()); got != 1 {
		t.Errorf("got %d pools, want 1", got)
	}
}

func TestNetworksWithDevicesOnALAN(t *testing.T) {
	for why, test := range map[string]struct {
		old, new       string // a change of the record
		routed, ranges bool
	}{
		"macvlan":                       {"", "", false, true},
		"ipvlan":                        {`"macvlan"`, `"ipvlan"`, false, true},
		"ipvlan in mode l2":             {`"parent":"eth9"}},`, `"parent":"eth9","ipvlan_mode":"l2"}},"networkType":"ipvlan",`, false, true},
		"ipvlan in mode l3":             {`"parent":"eth9"}},`, `"parent":"eth9","ipvlan_mode":"l3"}},"networkType":"ipvlan",`, true, true},
		"ipvlan in mode l3s":            {`"parent":"eth9"}},`, `"parent":"eth9","ipvlan_mode":"l3s"}},"networkType":"ipvlan",`, true, true},
		"macvlan with a mode of ipvlan": {`"parent":"eth9"}},`, `"parent":"eth9","ipvlan_mode":"l3"}},`, false, true},
		"a driver for addresses":        {`"ipamType":"default"`, `"ipamType":"devplayer0/net-dhcp"`, false, false},
		"no addresses":                  {`"ipamType":"default"`, `"ipamType":"null"`, false, false},
	} {
		n := newDockerNode(t)
		record := strings.Replace(lanRecord, test.old, test.new, 1)
		if strings.Contains(test.new, "networkType") { // the other one would count
			record = strings.Replace(record, `,"networkType":"macvlan"`, "", 1)
		}
		n.put("network/lan", record)
		n.give("lan", "mac", "192.168.50.2/24", "")
		n.save()
		n.look()
		if p := n.pool("lan"); p.State != ipam.Known || p.Device != "eth9" || p.Routed != test.routed || (len(p.Ranges) > 0) != test.ranges || len(p.Changes) != 1 {
			t.Errorf("%s: got %+v, want one with ranges %t, routed %t", why, p, test.ranges, test.routed)
		}
	}
}

// Only the address that the user has requested for a container is a fixed one.
func TestFixedAddressesAreTold(t *testing.T) {
	n := newDockerNode(t)
	n.give(appnet, "web", "172.30.5.129/24", "fd00:5::2/64")
	n.give(appnet, "db", "172.30.5.130/24", "")
	n.save()
	n.container("db", "db", true, "/run/docker/netns/ba9876543210", "172.30.5.130")
	config := `{"State":{"Running":true},"ID":"web","Name":"/web","NetworkSettings":{"Networks":{"appnet":{"IPAMConfig":%s,"IPAddress":"172.30.5.129","GlobalIPv6Address":"fd00:5::2"}}}}`
	for _, one := range []struct{ requested, want string }{{"null", ""}, {`{"IPv4Address":"172.30.5.129"}`, "containers/web/config.v2.json"}, {"{}", ""}} {
		n.write("containers/web/config.v2.json", fmt.Sprintf(config, one.requested))
		n.look()
		for a, al := range n.pool("appnet").Changes {
			want := ""
			if a.String() == "172.30.5.129" && one.want != "" {
				want = filepath.Join(n.root, one.want)
			}
			if al.FixedIn != want {
				t.Errorf("%s of %s with %s: got %q, want %q", a, al.ContainerID, one.requested, al.FixedIn, want)
			}
		}
		if _, changed := n.pool("appnet").Changes[netip.MustParseAddr("172.30.5.129")]; !changed {
			t.Errorf("%s: got no change", one.requested)
		}
		clear(n.pool("appnet").Changes)
	}
}

func TestContainersAreNamed(t *testing.T) {
	n := newDockerNode(t)
	n.save()
	n.container("c1", "web", true, "/run/docker/netns/0123456789ab", "172.30.5.129")
	n.container("c2", "ended", false, "/run/docker/netns/ba9876543210", "")
	n.write("containers/c3/other", "")
	n.look()
	first := n.Containers()
	if len(first) != 1 || first[0].ID != "c1" || first[0].Name != "web" || first[0].Engine != DockerName || first[0].Netns != "/run/docker/netns/0123456789ab" ||
		!maps.Equal(first[0].Given, map[netip.Addr]string{netip.MustParseAddr("172.30.5.129"): "docker:appnet"}) {
		t.Fatalf("got %+v, want web", first)
	}
	n.container("c1", "web", true, "/run/docker/netns/0123456789ab", "172.30.5.129")
	n.look()
	if got := n.Containers(); len(got) != 1 || got[0] != first[0] {
		t.Errorf("got %+v, want the same as before", got)
	}
	n.container("c1", "shop", true, "/run/docker/netns/0123456789ab", "172.30.5.129")
	n.look()
	if got := n.Containers(); len(got) != 1 || got[0].Name != "shop" {
		t.Errorf("got %+v, want its new name", got)
	}

	// What is known of a container stays known while its file cannot be read.
	n.write("containers/c1/config.v2.json", `{"State":`)
	n.look()
	if got := n.Containers(); len(got) != 1 || got[0].Name != "shop" || len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "cannot read 1 of the containers") {
		t.Errorf("got %+v and problems %q, want the container and one problem", got, n.Problems())
	}
	n.host.Broken[n.containers.dir] = os.ErrPermission
	n.look()
	if got := n.Containers(); len(got) != 1 || got[0].Name != "shop" || len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "permission denied") {
		t.Errorf("got %+v and problems %q of a directory that cannot be read, want the container and one problem", got, n.Problems())
	}
	clear(n.host.Broken)
	if err := os.RemoveAll(filepath.Join(n.root, "containers")); err != nil {
		t.Fatal(err)
	}
	n.look()
	if got := n.Containers(); len(got) != 0 || len(n.Problems()) != 0 {
		t.Errorf("got %+v and problems %q, want neither", got, n.Problems())
	}
}

func TestBadDatabasesAreAProblemOfDockerAlone(t *testing.T) {
	n := newDockerNode(t)
	if n.look(); len(n.Pools()) != 0 || len(n.Problems()) != 0 {
		t.Errorf("got %v and problems %q without docker, want neither", n.Pools(), n.Problems())
	}
	n.give(appnet, "web", "172.30.5.129/24", "")
	n.give(appnet, "db", "172.30.5.130/24", "")
	n.save()
	n.look()
	n.pools()
	for name, content := range map[string]string{"empty": "", "half of it": strings.Repeat("x", 9000), "another version": "\x00"} {
		n.write("network/files/local-kv.db", content)
		n.look()
		if p := n.pool("appnet"); p.State != ipam.Unreadable || p.Lost != 0 || len(n.Problems()) != 1 {
			t.Errorf("%s: got %+v and problems %q, want it unreadable and not lost", name, p.Pool, n.Problems())
		}
	}
	n.put("endpoint/lan/e9", `{"sandbox":7}`)
	n.save()
	n.look()
	if web, lan := n.pool("appnet"), n.pool("lan"); web.State != ipam.Known || lan.State != ipam.Unreadable || len(n.Problems()) != 1 {
		t.Errorf("got %+v, %+v and problems %q of a bad record of the network lan, want only this one unreadable", web.Pool, lan.Pool, n.Problems())
	}
	delete(n.keys, prefix+"endpoint/lan/e9/")
	n.put("network/lan", `{"id":7}`)
	n.save()
	n.look()
	if web, lan := n.pool("appnet"), n.pool("lan"); web.State != ipam.Known || lan.State != ipam.Unreadable || len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "version of docker") {
		t.Errorf("got %+v, %+v and problems %q of a bad record of a network, want only this one unreadable, and the version", web.Pool, lan.Pool, n.Problems())
	}
	n.save()
	n.host.Broken[n.Path] = &os.PathError{Op: "open", Path: n.Path, Err: os.ErrPermission}
	if n.look(); len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "read access") {
		t.Errorf("got problems %q, want what to do", n.Problems())
	}
	delete(n.host.Broken, n.Path)
	n.put("network/lan", lanRecord)
	n.save()
	n.look()
	if p := n.pool("appnet"); p.State != ipam.Known || len(n.Problems()) != 0 {
		t.Errorf("got %+v, want it known again", p.Pool)
	}
	n.pools()

	// A file that was just written may be incomplete.
	n.write("network/files/local-kv.db", "")
	n.Event(n.Path, false)
	if !n.Read(ipam.FileRead{Now: dockerWritten}) || n.pool("appnet").State != ipam.Known {
		t.Error("got no second look at a file that may be incomplete")
	}

	if err := os.Remove(n.Path); err != nil {
		t.Fatal(err)
	}
	n.look()
	if p := n.pool("appnet"); p.State != ipam.Missing || p.Lost != 2 || p.LostAt.IsZero() {
		t.Errorf("got %+v, want both records lost", p)
	}
	n.save()
	n.look()
	if p := n.pool("appnet"); p.State != ipam.Known || p.Lost != 0 {
		t.Errorf("got %+v, want them restored", p)
	}
	n.host.Hidden[n.root] = errors.New("mount it")
	if n.look() {
		t.Error("got a look at files of the container")
	}
	if got := n.Problems(); len(got) != 0 {
		t.Errorf("got problems %q on a node without docker, want none", got)
	}
	n.write("netns/0123456789ab", "")
	if n.look(); len(n.Problems()) != 1 || !strings.Contains(n.Problems()[0], "mount it") {
		t.Errorf("got problems %q, want what to mount", n.Problems())
	}
}

func TestEventsOfOtherFilesNeedNothing(t *testing.T) {
	n := newDockerNode(t)
	if got := n.Places(); !slices.Equal(got, []string{filepath.Dir(n.Path), filepath.Join(n.root, "containers")}) {
		t.Errorf("got places %v", got)
	}
	for path, want := range map[string]bool{n.Path: true, filepath.Join(n.root, "containers", "c1"): true, filepath.Join(n.root, "network"): false} {
		if got := n.Event(path, false); got != want {
			t.Errorf("%s: got handled %t, want %t", path, got, want)
		}
	}
}
