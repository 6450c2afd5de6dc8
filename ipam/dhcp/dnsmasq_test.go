package dhcp

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

// start is the time at the start of a test, and later is after it.
var start = time.Unix(1_700_000_000, 0)

const later = "1700003600"

// lab is a source of a directory of its own, and the allocations that it has published.
type lab struct {
	*testing.T
	root        string
	host        ipamtest.Host
	source      ipam.FileSource
	now         time.Time
	allocations map[string]map[netip.Addr]string // "MAC HOSTNAME", by pool
}

func newLab(t *testing.T) *lab {
	l := &lab{T: t, root: t.TempDir(), host: ipamtest.NewHost(), now: start, allocations: map[string]map[netip.Addr]string{}}
	l.host.Interfaces = []ipam.Device{
		{Index: 1, Name: "lo"},
		{Index: 2, Name: "br0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd00:9::1/64")}},
		{Index: 3, Name: "virbr0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.168.122.1/24")}},
	}
	l.source = newDnsmasq(l.host, ipam.FilesConfig{Dirs: []string{l.root}})
	return l
}

func (l *lab) write(path, content string) {
	l.Helper()
	path = l.root + path
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		l.Fatal(err)
	}
}

// look lets the source look at everything, after some time.
func (l *lab) look(after time.Duration) (again bool) {
	l.Helper()
	l.now = l.now.Add(after)
	l.source.Find(l.now)
	again = l.source.Read(ipam.FileRead{Now: l.now, All: true})
	live := map[string]bool{}
	for _, p := range l.source.Pools() {
		name := strings.TrimPrefix(p.Name, l.root)
		live[name] = true
		if l.allocations[name] == nil {
			l.allocations[name] = map[netip.Addr]string{}
		}
		for a, al := range p.Changes {
			if al == nil {
				delete(l.allocations[name], a)
			} else {
				l.allocations[name][a] = strings.TrimSpace(al.MAC + " " + al.Hostname)
			}
		}
		clear(p.Changes)
	}
	maps.DeleteFunc(l.allocations, func(name string, _ map[netip.Addr]string) bool { return !live[name] })
	return again
}

// pool returns a pool by its name.
func (l *lab) pool(name string) *ipam.FilePool {
	l.Helper()
	all := l.source.Pools()
	i := slices.IndexFunc(all, func(p *ipam.FilePool) bool { return p.Name == l.root+name })
	if i < 0 {
		l.Fatalf("there is no pool %s", name)
	}
	return all[i]
}

// want compares the allocations of a pool, each given as "ADDRESS MAC HOSTNAME".
func (l *lab) want(pool string, want ...string) {
	l.Helper()
	var got []string
	for a, text := range l.allocations[pool] {
		got = append(got, strings.TrimSpace(a.String()+" "+text))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		l.Errorf("got %q in %s, want %q", got, pool, want)
	}
}

const (
	misc = "/var/lib/misc/dnsmasq.leases"
	one  = later + " 02:00:00:00:00:01 10.9.0.11 web 01:02:00:00:00:00:01\n"
	two  = later + " 02:00:00:00:00:02 10.9.0.12 * *\n"
)

func TestLeasesAreRead(t *testing.T) {
	l := newLab(t)
	l.write("/etc/dnsmasq.conf", "# dhcp-range=10.9.0.2,10.9.0.3\ndhcp-range=set:lan,10.9.0.10,10.9.0.99,255.255.255.0,12h\ndhcp-range=::100,::1ff,constructor:br0\n")
	l.write("/etc/dnsmasq.d/more", "dhcp-host=02:00:00:00:00:0A,set:x,10.9.0.200,printer,12h\ndhcp-host=id:01:02,10.9.0.201\ndhcp-host=02:00:00:00:00:0b,02:00:00:00:00:0c,10.9.0.202\ndhcp-host=02:00:00:00:00:0d,ignore\n")
	l.write(misc, "0 06-02:00:00:00:00:03 10.9.0.13 forever *\n1699999999 02:00:00:00:00:04 10.9.0.14 late *\n"+one+two+
		later+" 02:00:00:00:00:05 172.16.0.9 relayed *\nduid 00:01:00:01\n"+later+" 1234 fd00:9::17 six 00:02\n"+later+" 02:00:00:00:00:06 10.9.0.15 half")
	l.look(0)
	l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web", "10.9.0.12 02:00:00:00:00:02", "10.9.0.13 02:00:00:00:00:03 forever",
		"10.9.0.200 02:00:00:00:00:0a printer", "10.9.0.201", "10.9.0.202", "fd00:9::17 six")
	l.want(misc, "172.16.0.9 02:00:00:00:00:05 relayed")
	p := l.pool(misc + "#br0")
	if got := fmt.Sprint(p.Ranges); got != "[10.9.0.10-10.9.0.99 10.9.0.200-10.9.0.202]" || p.Device != "br0" || p.State != ipam.Known || p.Problem != "" {
		t.Errorf("got ranges %s of device %q in state %d (%s)", got, p.Device, p.State, p.Problem)
	}
	if got := leasePath(&p.Pool); got != l.root+misc {
		t.Errorf("got lease file %s", got)
	}
	// They end by the clock, as they do for dnsmasq.
	l.look(2 * time.Hour)
	l.want(misc+"#br0", "10.9.0.13 02:00:00:00:00:03 forever", "10.9.0.200 02:00:00:00:00:0a printer", "10.9.0.201", "10.9.0.202")
}

func TestAllFilesOfAConfigurationAreRead(t *testing.T) {
	l := newLab(t)
	l.write("/etc/dnsmasq.conf", "conf-file=opt/a.conf\nconf-file=/opt/a.conf\nconf-dir = /opt/d/,*.conf\nread-ethers\t# and names\ndhcp-hostsdir=opt/hosts\n")
	l.write("/opt/a.conf", "conf-file=/etc/dnsmasq.conf\ndhcp-leasefile=/opt/leases\ndhcp-range=10.9.0.10,10.9.0.99\n")
	l.write("/opt/d/b.conf", "dhcp-host=2:0:0:0:0:b,10.9.0.201\n")
	l.write("/opt/d/b.conf.off", "dhcp-host=02:00:00:00:00:ff,10.9.0.250\n")
	l.write("/etc/dnsmasq.d/x.dpkg-old", "dhcp-host=02:00:00:00:00:ff,10.9.0.251\n")
	l.write("/etc/dnsmasq.d/x", "conf-dir=/opt/e,.bak\n")
	l.write("/opt/e/c", "dhcp-host=0200:00:00:0:0c,10.9.0.202,cc\n")
	l.write("/opt/e/c.bak", "dhcp-host=02:00:00:00:00:ff,10.9.0.252\n")
	l.write("/opt/e/sub/c", "dhcp-host=02:00:00:00:00:ff,10.9.0.253\n")
	l.write("/opt/hosts/d", "# a comment\n02:00:00:00:00:0d,10.9.0.203 # the scanner\n")
	l.write("/etc/ethers", "# a comment\n2:0:0:0:0:e 10.9.0.204\n02:00:00:00:00:0f name\n")
	l.write("/opt/leases", one)
	l.look(0)
	l.want("/opt/leases#br0", "10.9.0.11 02:00:00:00:00:01 web", "10.9.0.201 02:00:00:00:00:0b", "10.9.0.202 02:00:00:00:00:0c cc",
		"10.9.0.203 02:00:00:00:00:0d", "10.9.0.204 02:00:00:00:00:0e")
	p := l.pool("/opt/leases#br0")
	if got := fmt.Sprint(p.Ranges); got != "[10.9.0.10-10.9.0.99 10.9.0.201-10.9.0.204]" || p.Problem != "" {
		t.Errorf("got ranges %s and problem %q", got, p.Problem)
	}
	for conf, want := range map[string]string{
		"conf-file=/opt/lost\n":             "cannot read /opt/lost",
		"conf-dir=/opt/lost\n":              "cannot read /opt/lost",
		"conf-script=/opt/make hosts\n":     "the output of a program: /opt/make hosts",
		"read-ethers\n":                     "",
		"conf-dir=\ndhcp-hostsfile=\n":      "",
		"dhcp-hostsfile=/opt/not-yet\n":     "",
		"conf-dir=/opt/e,.bak,*\n":          "",
		"conf-file=\"/opt/d/b.conf\" # x\n": "",
	} {
		l.write("/opt/a.conf", "dhcp-leasefile=/opt/leases\n"+conf)
		l.look(time.Second)
		if got := l.pool("/opt/leases#br0").Problem; got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%q: got problem %q, want %q", conf, got, want)
		}
	}
	l.write("/opt/a.conf", "dhcp-leasefile=/opt/leases\n")
	l.host.Broken[l.root+"/opt/hosts"] = os.ErrPermission
	l.look(time.Second)
	if got := l.pool("/opt/leases#br0").Problem; !strings.Contains(got, "cannot read /opt/hosts: permission denied") {
		t.Errorf("directory that cannot be listed: got problem %q", got)
	}
	clear(l.host.Broken)
	// If the configuration cannot be read, where the leases are is not known.
	l.write("/etc/dnsmasq.conf", "conf-file=/opt/lost\n")
	l.look(time.Second)
	if p := l.pool(misc); p.State != ipam.Unreadable || !strings.Contains(p.Problem, "/opt/lost") {
		t.Errorf("got state %d (%s), want it unreadable", p.State, p.Problem)
	}
}

func TestReservationsHaveTheAddressesOfTheirNames(t *testing.T) {
	l := newLab(t)
	const hosts = "127.0.0.1 localhost\n127.0.1.1 router\n10.9.0.201 Printer printer.lan # the old one\nfd00:9::201 printer\n10.9.0.202 scanner\n" +
		"10.9.0.203 camera\n10.9.0.210 camera\n10.9.0.204 other\n10.9.0.205 twice\n10.9.0.206 fixed\n" +
		"192.168.122.50 cable\n192.168.7.50 relayed\nnonsense x\n"
	const config = "dhcp-range=10.9.0.10,10.9.0.99\ndhcp-range=fd00:9::50,fd00:9::5f,64\n" +
		"dhcp-host=02:00:00:00:00:01,printer,12h\ndhcp-host=02:00:00:00:00:02,scanner.lan,infinite\ndhcp-host=02:00:00:00:00:03,camera\n" +
		"dhcp-host=02:00:00:00:00:04,laptop,24h\ndhcp-host=02:00:00:00:00:05,router\ndhcp-host=02:00:00:00:00:06,10.9.0.207,fixed\n" +
		"dhcp-host=02:00:00:00:00:07,twice\ndhcp-host=02:00:00:00:00:08,twice\ndhcp-host=02:00:00:00:00:09,10.9.0.202,taken\n" +
		"dhcp-host=02:00:00:00:00:0a,record\nhost-record=record,10.9.0.208\ndhcp-host=02:00:00:00:00:0b,more\ndhcp-host=02:00:00:00:00:0d,12h\nread-ethers\n" +
		"dhcp-host=02:00:00:00:00:0f,cable\ndhcp-host=02:00:00:00:00:10,relayed\n"
	l.write("/etc/hosts", hosts)
	l.write("/etc/ethers", "2:0:0:0:0:c other\n")
	l.write(misc, one)
	l.write("/opt/more", "10.9.0.209 more\n")
	named := []string{"10.9.0.201 02:00:00:00:00:01 printer", "10.9.0.203 02:00:00:00:00:03 camera", "10.9.0.204 02:00:00:00:00:0c other", "10.9.0.205 02:00:00:00:00:08 twice"}
	static := []string{"10.9.0.202 02:00:00:00:00:09 taken", "10.9.0.207 02:00:00:00:00:06 fixed"}
	const lease, record, more, six = "10.9.0.11 02:00:00:00:00:01 web", "10.9.0.208 02:00:00:00:00:0a record", "10.9.0.209 02:00:00:00:00:0b more", "fd00:9::201 02:00:00:00:00:01 printer"
	all := slices.Sorted(slices.Values(slices.Concat(named, static, []string{lease, record, six})))
	for _, c := range []struct {
		more string
		want []string
	}{
		{"", all},
		{"addn-hosts=/opt/more\n", slices.Insert(slices.Clone(all), 8, more)},
		{"dhcp-range=192.168.7.10,static,255.255.255.0\n", all},
		{"no-hosts\n", slices.Concat([]string{lease}, static, []string{record})},
		{"no-hosts\nhostsdir=/opt\n", slices.Concat([]string{lease}, static, []string{record, more})},
		{"port=0\naddn-hosts=/opt/more\n", slices.Concat([]string{lease}, static)},
	} {
		l.write("/etc/dnsmasq.conf", config+c.more)
		l.look(0)
		l.look(ipam.Settled)
		l.want(misc+"#br0", c.want...)
		if p := l.pool(misc + "#br0"); p.Problem != "" {
			t.Errorf("%q: got problem %q", c.more, p.Problem)
		}
		if strings.Contains(c.more, "static") { // the network of a relay; that of another server, on virbr0, is not served
			l.want(misc, "192.168.7.50 02:00:00:00:00:10 relayed")
		} else if len(l.allocations) != 1 {
			t.Errorf("%q: got %v, want the addresses in networks of the server", c.more, l.allocations)
		}
	}
	// In Kubernetes, the agent does not see /etc, and the servers of LXD and Incus have a line for each instance.
	incus := "/var/lib/incus/networks/br0/"
	l.write(incus+"dnsmasq.pid", "args: ['--dhcp-range', '10.9.0.2,10.9.0.254,1h']\n")
	l.write(incus+"dnsmasq.hosts/c1.eth0", "02:00:00:00:00:11,c1\n")
	l.write(incus+"dnsmasq.leases", two)
	l.host.Hidden[l.root+"/etc"] = errors.New("mount /etc")
	l.look(ipam.Settled)
	if p := l.pool(incus + "dnsmasq.leases#br0"); p.State != ipam.Known || p.Problem != "" {
		t.Errorf("got state %d and problem %q of a bridge of Incus", p.State, p.Problem)
	}
	delete(l.host.Hidden, l.root+"/etc")
	// A file in the agent's container is not that of the node.
	l.write("/etc/dnsmasq.d/a", "dhcp-host=02:00:00:00:00:0e,hidden\naddn-hosts=/other/hosts\n")
	l.write("/etc/dnsmasq.conf", "dhcp-range=10.9.0.10,10.9.0.99\nno-hosts\n")
	l.host.Hidden[l.root+"/other"] = errors.New("mount /other")
	l.look(ipam.Settled)
	if p := l.pool(misc + "#br0"); !strings.Contains(p.Problem, "/other/hosts") || !strings.Contains(p.Problem, "mount /other") {
		t.Errorf("got problem %q, want the file and what to mount", p.Problem)
	}
}

func TestLeaseFileWithoutAConfigurationIsTheOneThatExists(t *testing.T) {
	const fedora = "/var/lib/dnsmasq/dnsmasq.leases"
	l := newLab(t)
	l.write("/etc/dnsmasq.conf", "dhcp-range=10.9.0.10,10.9.0.99\n")
	l.write(fedora, one)
	l.look(0)
	l.want(fedora+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
	// The one that is written is that of the server.
	l.write(misc, two)
	if err := os.Chtimes(l.root+misc, start, start); err != nil {
		t.Fatal(err)
	}
	l.look(time.Second)
	l.want(fedora+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
	if len(l.allocations) != 1 {
		t.Errorf("got %v, want one lease file", l.allocations)
	}
	// The configuration decides.
	l.write("/etc/dnsmasq.conf", "dhcp-leasefile="+misc+"\n")
	l.look(time.Second)
	l.want(misc+"#br0", "10.9.0.12 02:00:00:00:00:02")
}

func TestLeasesOfASharedConnectionAreRead(t *testing.T) {
	l := newLab(t)
	const leases = "/var/lib/NetworkManager/dnsmasq-br0.leases"
	l.write("/var/lib/NetworkManager/internal-4a1f-br0.lease", "ADDRESS=10.9.0.99\n")
	l.write(leases, one)
	l.look(0)
	l.want(leases+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
	l.write("/etc/NetworkManager/dnsmasq-shared.d/mine", "dhcp-host=02:00:00:00:00:0a,10.9.0.200\n")
	l.look(time.Second)
	l.want(leases+"#br0", "10.9.0.11 02:00:00:00:00:01 web", "10.9.0.200 02:00:00:00:00:0a")
	if p := l.pool(leases + "#br0"); p.Device != "br0" || p.State != ipam.Known || p.Problem != "" {
		t.Errorf("got device %q, state %d and problem %q", p.Device, p.State, p.Problem)
	}
}

func TestReservationsOfIPv6(t *testing.T) {
	l := newLab(t)
	l.write("/etc/dnsmasq.conf", "dhcp-range=fd00:9::50,fd00:9::5f,64\ndhcp-host=02:00:00:00:00:0a,[fd00:9::51],a\n"+
		"dhcp-host=02:00:00:00:00:0b,[::55],half\ndhcp-host=02:00:00:00:00:0c,[fd00:9::58/126],prefix\n")
	l.write(misc, one)
	l.look(0)
	l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web", "fd00:9::51 02:00:00:00:00:0a a")
	if got := fmt.Sprint(l.pool(misc + "#br0").Ranges); got != "[fd00:9::50/125 fd00:9::5c/126]" {
		t.Errorf("got ranges %s, want them without the prefix of one client", got)
	}
}

func TestFileThatIsBeingWrittenLosesNothing(t *testing.T) {
	l := newLab(t)
	l.write(misc, one+two)
	l.look(0)
	for _, half := range []string{"", one, one + two[:20]} {
		l.write(misc, half)
		if !l.look(0) {
			t.Errorf("got that all is read after %q, want to be called again", half)
		}
		l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web", "10.9.0.12 02:00:00:00:00:02")
		l.write(misc, one+two)
		if l.look(0) {
			t.Error("got that something is missing, want nothing")
		}
	}
	l.write(misc, one)
	l.look(0)
	if l.look(ipam.Settled) {
		t.Error("got that something is missing after a second, want it gone")
	}
	l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
}

func TestBadFilesAreProblemsOfTheirPools(t *testing.T) {
	l := newLab(t)
	l.write(misc, "nonsense\n"+one+"more\n")
	l.write("/var/lib/libvirt/dnsmasq/virbr0.status", `{"newer": true}`)
	l.look(0)
	l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
	if p := l.pool(misc + "#br0"); p.State != ipam.Known || p.Problem != "line 1 of the lease file and 1 more have another format: nonsense" {
		t.Errorf("got state %d (%s), want a problem with the line", p.State, p.Problem)
	}
	if p := l.pool("/var/lib/libvirt/dnsmasq/virbr0.status"); p.State != ipam.Unreadable || len(l.source.Problems()) != 1 {
		t.Errorf("got state %d, problems %q, want it unreadable", p.State, l.source.Problems())
	}
	l.write("/var/lib/libvirt/dnsmasq/virbr0.status", "[]")
	l.write(misc, one)
	l.look(0)
	if got := l.source.Problems(); len(got) != 0 {
		t.Errorf("got problems %q, want none", got)
	}

	// dnsmasq has the leases of a file that is removed in its memory.
	if err := os.Remove(l.root + misc); err != nil {
		t.Fatal(err)
	}
	if !l.look(0) {
		t.Error("got that all is read, want to be called again")
	}
	l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
	l.look(ipam.Settled)
	if p := l.pool(misc + "#br0"); p.State != ipam.Unreadable || !strings.Contains(p.Problem, "removed") {
		t.Errorf("got state %d (%s), want it unreadable", p.State, p.Problem)
	}
	l.host.Broken[l.root+misc] = os.ErrPermission
	l.look(time.Second)
	if p := l.pool(misc + "#br0"); p.State != ipam.Unreadable || !strings.Contains(p.Problem, "read access") {
		t.Errorf("got state %d (%s), want it unreadable", p.State, p.Problem)
	}
	l.write(misc, one)
	delete(l.host.Broken, l.root+misc)
	l.look(time.Second)
	l.want(misc+"#br0", "10.9.0.11 02:00:00:00:00:01 web")
}

func TestMissingLeaseFileOfAServerThatRunsIsAProblem(t *testing.T) {
	const conf, pid, incus = "/etc/dnsmasq.conf", "/run/dnsmasq/dnsmasq.pid", "/var/lib/incus/networks/br0/"
	const serves = "dhcp-range=10.9.0.10,10.9.0.99\n"
	for name, c := range map[string]struct {
		files      map[string]string
		hidden     string
		pool, want string // nothing for silence
	}{
		"a server that runs":             {map[string]string{conf: serves, pid: "7\n"}, "", misc, "does not exist, but the server runs"},
		"its own file with the process":  {map[string]string{conf: serves + "pid-file=/var/run/mine.pid\n", "/run/mine.pid": "7\n"}, "", misc, "does not exist, but the server runs"},
		"a bridge of Incus":              {map[string]string{incus + "dnsmasq.pid": "args: ['--dhcp-range', '10.9.0.2,10.9.0.254,1h']\n"}, "", incus + "dnsmasq.leases", "but the server runs"},
		"leases in a script":             {map[string]string{conf: serves + "leasefile-ro\n"}, "", misc, "leasefile-ro"},
		"a directory that is not seen":   {map[string]string{conf: serves + "dhcp-leasefile=/opt/leases\n", "/opt/leases": one}, "/opt", "/opt/leases", "mount /opt"},
		"a server that never ran":        {map[string]string{conf: serves}, "", "", ""},
		"a file that is named":           {map[string]string{conf: serves + "dhcp-leasefile=/opt/leases\n"}, "", "", ""},
		"the process of another server":  {map[string]string{conf: serves + "pid-file=/run/mine.pid\n", pid: "7\n"}, "", "", ""},
		"a server without such a file":   {map[string]string{conf: serves + "pid-file\n"}, "", "", ""},
		"a DNS server":                   {map[string]string{conf: "leasefile-ro\ndhcp-leasefile=/opt/leases\ndhcp-range=::,constructor:br0,ra-only\n", pid: "7\n"}, "/opt", "", ""},
		"a fresh server without a lease": {map[string]string{conf: serves, pid: "7\n", misc: ""}, "", "", ""},
		"a bridge without DHCP":          {map[string]string{incus + "dnsmasq.pid": "args: ['--listen-address=10.9.0.1']\n"}, "", "", ""},
	} {
		l := newLab(t)
		for path, content := range c.files {
			l.write(path, content)
		}
		if c.hidden != "" {
			l.host.Hidden[l.root+c.hidden] = errors.New("mount " + c.hidden)
		}
		if l.look(0); c.hidden == "" && !strings.Contains(c.want, "leasefile-ro") && len(l.source.Problems()) > 0 {
			t.Errorf("%s: got problem %q at once, want time for a start", name, l.source.Problems())
		}
		l.look(ipam.Settled)
		switch got := l.source.Problems(); {
		case c.want == "" && len(got) > 0:
			t.Errorf("%s: got problem %q", name, got)
		case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want) || l.pool(c.pool).State != ipam.Unreadable):
			t.Errorf("%s: got problems %q, want %q", name, got, c.want)
		}
	}

	// It ends with the server.
	l := newLab(t)
	l.write(conf, serves)
	l.write(pid, "7\n")
	l.look(0)
	l.look(ipam.Settled)
	if err := os.Remove(l.root + pid); err != nil {
		t.Fatal(err)
	}
	if l.look(time.Second); len(l.source.Pools()) != 0 {
		t.Errorf("got %q after the end of the server", l.source.Problems())
	}
}

func TestServersOfLibvirtAndIncusAreFound(t *testing.T) {
	l := newLab(t)
	l.look(0)
	if got := l.source.Pools(); len(got) != 0 {
		t.Fatalf("got pools %v of a node without dnsmasq", got)
	}
	l.write("/var/lib/libvirt/dnsmasq/default.conf", "strict-order\ninterface=virbr0\ndhcp-range=192.168.122.2,192.168.122.254,255.255.255.0\ndhcp-hostsfile=/var/lib/libvirt/dnsmasq/default.hostsfile\n")
	l.write("/var/lib/libvirt/dnsmasq/default.hostsfile", "02:00:00:00:00:0a,192.168.122.7,vm7\n")
	l.write("/var/lib/libvirt/dnsmasq/virbr0.status", `[ { "ip-address": "192.168.122.9", "mac-address": "52:54:00:00:00:01", "hostname": "vm9", "client-id": "x", "expiry-time": `+later+` },
		{ "iaid": "1", "ip-address": "fd00:9::7", "mac-address": "52:54:00:00:00:02", "client-id": "00:04", "server-duid": "00:01", "expiry-time": `+later+` },
		{ "ip-address": "192.168.122.10", "mac-address": "52:54:00:00:00:03", "expiry-time": 1699999999 } ]`)
	incus := "/var/lib/incus/networks/br0/"
	l.write(incus+"dnsmasq.pid", "name: dnsmasq\nargs: [--keep-in-foreground, --interface=br0, --dhcp-range, '10.9.0.2,10.9.0.254,1h', --listen-address=10.9.0.1]\npid: 7\n")
	l.write(incus+"dnsmasq.hosts/c1.eth0", "02:00:00:00:00:01,10.9.0.11,c1\n")
	l.write(incus+"dnsmasq.leases", two)
	l.look(0)
	l.want("/var/lib/libvirt/dnsmasq/virbr0.status#virbr0", "192.168.122.7 02:00:00:00:00:0a vm7", "192.168.122.9 52:54:00:00:00:01 vm9")
	l.want("/var/lib/libvirt/dnsmasq/virbr0.status#br0", "fd00:9::7 52:54:00:00:00:02")
	l.want(incus+"dnsmasq.leases#br0", "10.9.0.11 02:00:00:00:00:01 c1", "10.9.0.12 02:00:00:00:00:02")
	if p := l.pool("/var/lib/libvirt/dnsmasq/virbr0.status#virbr0"); fmt.Sprint(p.Ranges) != "[192.168.122.2-192.168.122.254]" || p.Config != l.root+"/var/lib/libvirt/dnsmasq/default.conf" {
		t.Errorf("got ranges %v, configuration %s", p.Ranges, p.Config)
	}
	if p := l.pool(incus + "dnsmasq.leases#br0"); fmt.Sprint(p.Ranges) != "[10.9.0.2-10.9.0.254]" {
		t.Errorf("got ranges %v", p.Ranges)
	}

	// An entry of libvirt that cannot be parsed is named, and hides no other.
	l.write("/var/lib/libvirt/dnsmasq/virbr0.status", `[ { "ip-address": "none", "mac-address": "52:54:00:00:00:04", "expiry-time": `+later+` },
		{ "ip-address": "192.168.122.9", "mac-address": "52:54:00:00:00:01", "hostname": "vm9", "expiry-time": `+later+` } ]`)
	l.look(0)
	l.want("/var/lib/libvirt/dnsmasq/virbr0.status#virbr0", "192.168.122.7 02:00:00:00:00:0a vm7", "192.168.122.9 52:54:00:00:00:01 vm9")
	if p := l.pool("/var/lib/libvirt/dnsmasq/virbr0.status#virbr0"); p.State != ipam.Known || !strings.Contains(p.Problem, "entry 1 has another format") {
		t.Errorf("got state %v and problem %q, want that the entry is named", p.State, p.Problem)
	}

	// A lease of an address that is reserved for another one is left out; a second reservation is not.
	l.write(incus+"dnsmasq.leases", two+later+" 02:00:00:00:00:09 10.9.0.11 thief *\n")
	l.write(incus+"dnsmasq.hosts/c2.eth0", "02:00:00:00:00:02,10.9.0.11,c2\n")
	l.look(0)
	l.want(incus+"dnsmasq.leases#br0", "10.9.0.11 02:00:00:00:00:01 c1", "10.9.0.12 02:00:00:00:00:02")
	l.want(incus+"dnsmasq.leases#br0#2", "10.9.0.11 02:00:00:00:00:02 c2")

	// A directory that cannot be listed may have other servers; one that does not exist has none.
	l.host.Broken[l.root+libvirtDir] = os.ErrPermission
	l.look(time.Second)
	if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], libvirtDir+": permission denied") {
		t.Errorf("got problems %q, want the directory that cannot be listed", got)
	}
	l.want(incus+"dnsmasq.leases#br0#2", "10.9.0.11 02:00:00:00:00:02 c2")
	clear(l.host.Broken)
	l.look(time.Second)
	l.want("/var/lib/libvirt/dnsmasq/virbr0.status#virbr0", "192.168.122.7 02:00:00:00:00:0a vm7", "192.168.122.9 52:54:00:00:00:01 vm9")
	if got := l.source.Problems(); len(got) != 0 || len(l.allocations) != 3 {
		t.Errorf("got problems %q and pools %v when it can be listed again", got, l.allocations)
	}
}

func TestEventsAreHandled(t *testing.T) {
	l := newLab(t)
	l.write(misc, one)
	l.look(0)
	l.write(misc, one+two)
	if l.source.Event("/elsewhere/file", false) || !l.source.Event(l.root+misc, false) {
		t.Error("got that it handles the wrong event")
	}
	l.source.Read(ipam.FileRead{Now: l.now})
	if p := l.pool(misc + "#br0"); len(p.Changes) != 1 {
		t.Errorf("got changes %v, want the new lease", p.Changes)
	}
	l.host.Hidden[l.root+filepath.Dir(misc)] = os.ErrPermission
	l.write(misc, one) // the file there is another one
	l.look(0)
	l.look(ipam.Settled)
	if p := l.pool(misc + "#br0"); p.State != ipam.Unreadable {
		t.Errorf("got state %d of a file that is not visible", p.State)
	}
}

// counting counts the files that are read.
type counting struct {
	ipamtest.Host
	reads int
}

func (c *counting) ReadFile(path string, follow bool, most int64) ([]byte, time.Time, error) {
	c.reads++
	return c.Host.ReadFile(path, follow, most)
}

func TestFilesThatHaveNotChangedAreNotReadAgain(t *testing.T) {
	l := newLab(t)
	host := &counting{Host: l.host}
	l.source = newDnsmasq(host, ipam.FilesConfig{Dirs: []string{l.root}})
	lease := func(a string, expires time.Duration) string {
		return fmt.Sprintf("%d 02:00:00:00:00:01 %s * *\n", start.Add(expires).Unix(), a)
	}
	l.write("/var/lib/misc/dnsmasq.leases", lease("10.9.0.2", time.Hour)+lease("10.9.0.3", 2*time.Hour))
	read := func(after time.Duration) bool {
		host.reads = 0
		l.look(after)
		return host.reads > 0
	}
	for i, step := range []struct {
		change func()
		after  time.Duration
		want   bool
	}{
		{nil, 0, true},
		{nil, 15 * time.Second, false},
		{nil, time.Hour, true}, // a lease has ended
		{nil, 15 * time.Second, false},
		{func() { l.write("/etc/dnsmasq.d/more", "dhcp-range=10.9.0.10,10.9.0.20\n") }, 15 * time.Second, true},
		{nil, 15 * time.Second, false},
		{func() { host.Interfaces = host.Interfaces[:2] }, 15 * time.Second, true},
		{nil, 15 * time.Second, false},
		{func() { _ = os.Remove(l.root + "/var/lib/misc/dnsmasq.leases") }, 15 * time.Second, true},
		{nil, 15 * time.Second, true}, // the file may be about to be replaced
	} {
		if step.change != nil {
			step.change()
		}
		if got := read(step.after); got != step.want {
			t.Errorf("step %d: got read %t, want %t", i, got, step.want)
		}
	}
}

// The allocation of a reserved address names its reservation, because a server does not start with a second one.
func TestReservationsHaveTheirFiles(t *testing.T) {
	l := newLab(t)
	l.write("/etc/dnsmasq.conf", "dhcp-range=10.9.0.10,10.9.0.20\ndhcp-host=02:00:00:00:00:02,10.9.0.12\n")
	l.write("/etc/dnsmasq.d/dock", "dhcp-host=02:00:00:00:00:01,02:00:00:00:00:03,10.9.0.11\n")
	l.write(misc, one+two+later+" 02:00:00:00:00:04 10.9.0.14 * *\n")
	got := map[string][2]string{}
	l.source.Find(l.now)
	l.source.Read(ipam.FileRead{Now: l.now, All: true})
	for a, al := range l.pool(misc + "#br0").Changes {
		got[a.String()] = [2]string{al.FixedIn, al.ReservedFor}
	}
	want := map[string][2]string{
		"10.9.0.11": {"/etc/dnsmasq.d/dock", "02:00:00:00:00:01 02:00:00:00:00:03"},
		"10.9.0.12": {"/etc/dnsmasq.conf", "02:00:00:00:00:02"},
		"10.9.0.14": {}, // a lease
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
