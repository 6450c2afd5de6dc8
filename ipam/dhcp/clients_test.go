package dhcp

import (
	"fmt"
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

// What the clients write: systemd-networkd 252, NetworkManager 1.42.4, dhclient 4.4.3-P1 and dhcpcd 9.4.1.
const (
	ofNetworkd = `# This is private data. Do not parse.
ADDRESS=10.9.0.20
NETMASK=255.255.255.0
ROUTER=10.9.0.1
SERVER_ADDRESS=10.9.0.1
T1=1800
T2=3150
LIFETIME=3600
CLIENTID=ff
`
	ofNetworkManager = "# This is private data. Do not parse.\nADDRESS=10.9.0.21\n"
	uuid             = "5aa51665-d0eb-4cc6-ad6d-d9950d8185b3"
	ofDhclient       = `default-duid "\000\001";
lease {
  interface "eth1";
  fixed-address 10.9.0.29;
  option dhcp-lease-time 3600;
  expire 4 2023/11/16 20:27:05;
}
lease {
  interface "eth0";
  fixed-address 10.9.0.22;
  option subnet-mask 255.255.255.0;
  option dhcp-server-identifier 10.9.0.2;
  option dhcp-client-identifier 1:2:0:0:0:0:2;
  expire 4 2023/11/16 20:27:05;
}
`
)

// ofDhcpcd is the DHCPACK that dhcpcd keeps.
var ofDhcpcd = "\x02\x01\x06\x00\xac\x56\x79\x4a" + strings.Repeat("\x00", 8) + "\x0a\x09\x00\x17\x0a\x09\x00\x01" + strings.Repeat("\x00", 4) +
	"\x12\x2d\x10\x27\xb1\xb3" + strings.Repeat("\x00", 202) + "\x63\x82\x53\x63\x35\x01\x05\x00\x33\x04\x00\x00\x0e\x10\x36\x04\x0a\x09\x00\x03\x3d\x02\xff\x0c\xff"

func TestLeasesOfTheNodeAreRead(t *testing.T) {
	root := t.TempDir()
	host := ipamtest.NewHost()
	host.Interfaces = []ipam.Device{{Index: 2, Name: "eth0", MAC: "02:00:00:00:00:02"}, {Index: 3, Name: "eth1", MAC: "02:00:00:00:00:03", Temporary: []netip.Addr{netip.MustParseAddr("10.9.0.21")}}}
	source := newClients(host, ipam.FilesConfig{Dirs: []string{root}})
	now := time.Unix(1_700_000_000, 0)
	look := func() (found []string) {
		now = now.Add(time.Minute)
		source.Find(now)
		source.Read(ipam.FileRead{Now: now, All: true})
		for _, p := range source.Pools() {
			for a, al := range p.Changes {
				if al != nil {
					found = append(found, fmt.Sprint(a, " ", al.MAC, " by ", Client.PoolTitle(&p.Pool, "n"), " from ", p.Server, " as ", p.ClientID))
				}
			}
			clear(p.Changes)
			if p.Problem != "" {
				found = append(found, strings.TrimPrefix(p.Problem, root))
			}
		}
		slices.Sort(found)
		return found
	}
	want := func(want ...string) {
		t.Helper()
		if got := look(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want()
	for path, content := range map[string]string{
		"/run/systemd/netif/leases/2":                                 ofNetworkd,
		"/run/systemd/netif/leases/9":                                 ofNetworkd,
		"/var/lib/NetworkManager/internal-" + uuid + "-eth1.lease":    ofNetworkManager,
		"/var/lib/NetworkManager/internal-" + uuid + "-eth9.lease":    ofNetworkManager,
		"/var/lib/NetworkManager/internal-" + uuid + "-br-eth0.lease": "ADDRESS=10.9.0.24\nLIFETIME=3600\n", // of br-eth0
		"/var/lib/NetworkManager/secret_key":                          "x",
		"/var/lib/dhcp/dhclient.eth0.leases":                          ofDhclient,
		"/var/lib/dhclient/dhclient-4a1f-eth0.lease":                  "",
		"/var/lib/dhcpcd/eth1-wlan.lease":                             ofDhcpcd,
		"/var/lib/dhcpcd/duid":                                        "x",
	} {
		write(t, root+path, content)
		if err := os.Chtimes(root+path, now, now); err != nil {
			t.Fatal(err)
		}
	}
	const zero, one = "02:00:00:00:00:02", "02:00:00:00:00:03"
	want("10.9.0.20 "+zero+" by the DHCP client systemd-networkd of node n from 10.9.0.1 as ff", "10.9.0.21 "+one+" by the DHCP client NetworkManager of node n from invalid IP as ",
		"10.9.0.22 "+zero+" by the DHCP client dhclient of node n from 10.9.0.2 as 01020000000002", "10.9.0.23 "+one+" by the DHCP client dhcpcd of node n from 10.9.0.3 as ff0c",
		"10.9.0.29 "+one+" by the DHCP client dhclient of node n from 10.9.0.2 as 01020000000002")

	write(t, root+"/run/systemd/netif/leases/3", `{"Address":[10,9,0,21]}`)
	write(t, root+"/var/lib/dhcpcd/eth0.lease", ofDhcpcd[:100])
	want("/run/systemd/netif/leases/3 has another format", "/var/lib/dhcpcd/eth0.lease has another format")

	// networkd's state of an interface says with which identity it asks for DHCPv6 leases.
	host.Interfaces[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8::aaaa/64"), netip.MustParsePrefix("2001:db8::7/128"), netip.MustParsePrefix("2001:db8::8/128")}
	host.Interfaces[0].Temporary = []netip.Addr{netip.MustParseAddr("2001:db8::aaaa"), netip.MustParseAddr("2001:db8::8")} // by a router, and by DHCP
	write(t, root+"/run/systemd/netif/links/2", "# This is private data. Do not parse.\nADMIN_STATE=configured\nDHCP6_CLIENT_IAID=0xdd0cf5e\nDHCP6_CLIENT_DUID=DUID-EN/Vendor:0000ab11f9\n")
	write(t, root+"/run/systemd/netif/links/3", "ADMIN_STATE=configured\n")
	const six = "2001:db8::8 " + zero + " by the DHCP client systemd-networkd of node n from invalid IP as 0000ab11f90dd0cf5e"
	want("/run/systemd/netif/leases/3 has another format", "/var/lib/dhcpcd/eth0.lease has another format", six)
	host.Interfaces[0].Temporary = nil // the lease has ended
	want("/run/systemd/netif/leases/3 has another format", "/var/lib/dhcpcd/eth0.lease has another format")

	// A file that cannot be read hides no other.
	unread := root + "/run/systemd/netif/leases/3"
	host.Broken[unread] = os.ErrPermission
	write(t, root+"/run/systemd/netif/leases/2", strings.ReplaceAll(ofNetworkd, "10.9.0.20", "10.9.0.19"))
	if got := look(); len(got) != 3 || !strings.HasPrefix(got[1], "10.9.0.19 ") || !strings.Contains(got[2], "read access") {
		t.Errorf("got %q, want the other lease and a problem", got)
	}
	delete(host.Broken, unread)
	host.Broken[root+"/var/lib/dhcpcd"] = os.ErrPermission
	look()
	if got := source.Problems(); len(got) != 1 || !strings.Contains(got[0], "/var/lib/dhcpcd: permission denied") {
		t.Errorf("got problems %q, want the directory that cannot be listed", got)
	}
	clear(host.Broken)

	// A lease that has ended, one that never ends, and files that are gone.
	write(t, root+"/var/lib/dhcp/dhclient.eth0.leases", strings.Replace(strings.ReplaceAll(ofDhclient, "4 2023/11/16 20:27:05", "epoch 1700000000; # Tue"), "10.9.0.29", "10.9.0.28", 1))
	write(t, root+"/var/lib/dhclient/dhclient-4a1f-eth0.lease", strings.ReplaceAll(ofDhclient, "4 2023/11/16 20:27:05", "never"))
	for _, dir := range []string{"/run", "/var/lib/dhcpcd"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	look()
	look() // until it is certain that they are gone
	if got := source.Pools(); len(got) != 2 || got[0].Allocated()+got[1].Allocated() != 3 {
		t.Errorf("got %v, want the lease of NetworkManager and those that never end", got)
	}
}

// A file that cannot be read is a problem even if there is no lease that can.
func TestTheOnlyLeaseOfAClientHasAnotherFormat(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/run/systemd/netif/leases/3", `{"Address":[10,9,0,21]}`)
	host := ipamtest.NewHost()
	host.Interfaces = []ipam.Device{{Index: 3, Name: "eth1"}}
	source := newClients(host, ipam.FilesConfig{Dirs: []string{root}})
	for i := range 3 { // it may be just being written
		now := time.Unix(1_700_000_000, 0).Add(time.Duration(i) * time.Minute)
		source.Find(now)
		source.Read(ipam.FileRead{Now: now, All: true})
	}
	pools := source.Pools()
	if len(pools) != 1 || !strings.Contains(pools[0].Problem, "/run/systemd/netif/leases/3 has another format") {
		t.Errorf("got %v, want one pool with the problem", pools)
	}
}

func TestLeaseOfAClientCountsUntilItEnds(t *testing.T) {
	const written, never = 1_700_000_000, 0
	begin := time.Unix(written, 0)
	dhcpcd := func(lifetime string) string {
		return strings.Replace(ofDhcpcd, "\x33\x04\x00\x00\x0e\x10", lifetime, 1)
	}
	networkd := func(lifetime string) string { return strings.Replace(ofNetworkd, "LIFETIME=3600\n", lifetime, 1) }
	for _, c := range []struct {
		parse   func([]byte, time.Time) (record, bool)
		content string
		want    int64 // seconds after the file was written
	}{
		{parsePacket, ofDhcpcd, 3600},
		{parsePacket, dhcpcd("\x33\x04\xff\xff\xff\xff"), never - written},
		{parsePacket, dhcpcd(""), 0},
		{parsePrivate, ofNetworkd, 3600},
		{parsePrivate, networkd("LIFETIME=4294967295\n"), never - written},
		{parsePrivate, networkd("LIFETIME=infinity\n"), never - written},
		{parsePrivate, networkd("LIFETIME=1h 30min\n"), 5400},
		{parsePrivate, networkd("LIFETIME=1w 2d 5s\n"), 9*86400 + 5},
		{parsePrivate, networkd("LIFETIME=1 fortnight\n"), 0},
		{parsePrivate, networkd(""), 0},
		{parsePrivate, ofNetworkManager, 0},
	} {
		r, ok := c.parse([]byte(c.content), begin)
		end := int64(never)
		if !r.Expires.IsZero() {
			end = r.Expires.Unix()
		}
		if got := end - written; !ok || got != c.want {
			t.Errorf("%q: got an end after %d s, want %d", c.content, got, c.want)
		}
	}
}

func TestLeaseFileOfAClientThatIsGoneShowsNoLease(t *testing.T) {
	root, now := t.TempDir(), time.Unix(1_700_000_000, 0)
	host := ipamtest.NewHost()
	address := netip.MustParseAddr("10.9.0.21")
	host.Interfaces = []ipam.Device{{Index: 2, Name: "eth0", MAC: "02:00:00:00:00:02", Prefixes: []netip.Prefix{netip.PrefixFrom(address, 24)}}}
	source := newClients(host, ipam.FilesConfig{Dirs: []string{root}})
	// leased reports whether there is a lease at a time, after what the agent does every few seconds.
	leased := func(at time.Time) bool {
		for again := true; again; at = at.Add(ipam.Settled) {
			source.Find(at)
			again = source.Read(ipam.FileRead{Now: at})
		}
		n := 0
		for _, p := range source.Pools() {
			n += p.Allocated()
		}
		return n > 0
	}
	managed, dhcpcd := root+"/var/lib/NetworkManager/internal-"+uuid+"-eth0.lease", root+"/var/lib/dhcpcd/eth0.lease"
	put := func(path, content string, written time.Time) func() {
		return func() {
			write(t, path, content)
			if err := os.Chtimes(path, written, written); err != nil {
				t.Fatal(err)
			}
		}
	}
	const state = "[device]\nmanaged=true\nconnection-uuid=" + uuid + "\n"
	stateOf := func(dhcp string) func() { return put(root+"/run/NetworkManager/devices/2", state+dhcp, now) }
	temporary := func(all ...netip.Addr) func() { return func() { host.Interfaces[0].Temporary = all } }
	for i, step := range []struct {
		change func()
		at     time.Duration
		want   bool
	}{
		{put(managed, ofNetworkManager, now), 0, false},
		{temporary(address), time.Minute, true}, // NetworkManager has set the address
		{nil, 24 * time.Hour, true},
		{temporary(), 25 * time.Hour, false}, // an administrator has set it
		{stateOf(""), 26 * time.Hour, false},
		{stateOf("\n[dhcp4]\ndhcp4.dhcp_lease_time=3600\ndhcp4.expiry=1700003600\ndhcp4.ip_address=10.9.0.21\n"), 26*time.Hour + time.Minute, false},
		{stateOf("\n[dhcp4]\ndhcp4.dhcp_lease_time=4294967295\ndhcp4.ip_address=10.9.0.211\n"), 26*time.Hour + 2*time.Minute, false},
		{stateOf("\n[dhcp4]\ndhcp4.dhcp_lease_time=4294967295\ndhcp4.ip_address=10.9.0.21\n"), 27 * time.Hour, true},
		{nil, 28 * time.Hour, true},
		{func() { host.Interfaces[0].Prefixes = nil }, 28*time.Hour + time.Minute, false},
		{func() { host.Interfaces[0].Prefixes = []netip.Prefix{netip.PrefixFrom(address, 24)} }, 28*time.Hour + 2*time.Minute, true},
		{stateOf(""), 29 * time.Hour, false}, // the connection has ended
		{put(dhcpcd, ofDhcpcd, now.Add(30*time.Hour)), 30 * time.Hour, true},
		{nil, 31*time.Hour - time.Second, true},
		{put(dhcpcd, ofDhcpcd, now.Add(31*time.Hour-time.Second)), 31 * time.Hour, true}, // it has renewed the lease
		{nil, 32 * time.Hour, false},
	} {
		if step.change != nil {
			step.change()
		}
		if got := leased(now.Add(step.at)); got != step.want {
			t.Errorf("step %d: got a lease %t, want %t", i, got, step.want)
		}
	}
}

func TestLeaseOfDhclientWithoutAnEndThatCanBeRead(t *testing.T) {
	for end, never := range map[string]bool{"4 2023/11/16 20:27:05": false, "never": true, "4 2023/99/16 20:27:05": false, "soon": false} {
		r, _ := parseDhclient([]byte(strings.ReplaceAll(ofDhclient, "4 2023/11/16 20:27:05", end)), "eth0")
		if r.Address.String() != "10.9.0.22" || r.Expires.IsZero() != never {
			t.Errorf("%s: got %v until %v", end, r.Address, r.Expires)
		}
	}
}
