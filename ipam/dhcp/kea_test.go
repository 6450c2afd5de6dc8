package dhcp

import (
	"cmp"
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

// lookAt is the time of all looks.
var lookAt = time.Unix(1_700_000_000, 0)

const header4 = "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,user_context\n"

// line returns a line of a lease file.
func line(address, mac, lifetime, state, hostname string) string {
	return fmt.Sprintf("%s,%s,,%s,4000000000,1,0,0,%s,%s,\n", address, mac, lifetime, hostname, state)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func texts(records []record) (all []string) {
	for _, r := range records {
		all = append(all, strings.TrimSpace(r.Address.String()+" "+r.MAC+" "+r.Hostname))
	}
	slices.Sort(all)
	return all
}

func TestLastLineOfEachAddressCounts(t *testing.T) {
	const a, b = "02:00:00:00:00:01", "02:00:00:00:00:02"
	root := t.TempDir()
	f := keaFiles{nodeFiles{versions{}, ipamtest.NewHost(), root}}
	leases := root + keaLeaseDir + "/kea-leases4.csv"
	read := func() []string {
		t.Helper()
		c, err := f.read(leases, root+"/none")
		if err != nil || c.Problem != "" {
			t.Fatalf("got %v, %q", err, c.Problem)
		}
		return texts(c.Leases)
	}
	write(t, leases+".1", header4+line("10.0.0.1", a, "3600", "0", "copy"))
	write(t, leases+".2", header4+line("10.0.0.1", b, "3600", "0", "previous")+line("10.0.0.2", b, "3600", "0", "previous"))
	write(t, leases, header4+line("10.0.0.3", a, "3600", "0", "x&#x2cy.")+line("10.0.0.4", a, "3600", "0", "")+line("10.0.0.4", a, "0", "0", "")+
		line("10.0.0.5", a, "3600", "0", "")+line("10.0.0.5", "", "3600", "1", "")+line("10.0.0.6", a, "3600", "0", "")+line("10.0.0.6", a, "3600", "2", "")+
		line("10.0.0.7", a, "4294967295", "0", "")+"10.0.0.8,"+a)
	// The client has declined 10.0.0.5, and the server keeps it back.
	want := []string{"10.0.0.1 " + a + " copy", "10.0.0.2 " + b + " previous", "10.0.0.3 " + a + " x,y", "10.0.0.5", "10.0.0.7 " + a}
	if got := read(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	write(t, leases+".completed", header4+line("10.0.0.9", a, "3600", "0", "merged"))
	want = slices.Concat(want[2:], []string{"10.0.0.9 " + a + " merged"})
	if got := read(); !slices.Equal(got, want) {
		t.Errorf("with a finished cleanup: got %q, want %q", got, want)
	}
	if _, err := f.read(root+"/other.csv", root+"/none"); !os.IsNotExist(err) {
		t.Errorf("got %v of a missing file, want that it does not exist", err)
	}
	write(t, leases, "newer,format\n1,2\n")
	if _, err := f.read(leases, root+"/none"); err == nil {
		t.Error("got no error of a file of another format")
	}
	write(t, leases, header4+"10.0.0.300,x\n")
	if c, err := f.read(leases, root+"/none"); err != nil || c.Problem == "" {
		t.Errorf("got %v, %q, want a problem with the line", err, c.Problem)
	}
}

func TestBadLinesOfKeaHideNoOthers(t *testing.T) {
	const a, b = "02:00:00:00:00:01", "02:00:00:00:00:02"
	root := t.TempDir()
	f := keaFiles{nodeFiles{versions{}, ipamtest.NewHost(), root}}
	leases := root + keaLeaseDir + "/kea-leases4.csv"
	good := line("10.0.0.1", a, "3600", "0", "")
	for _, c := range []struct{ older, newest, want string }{
		{"", good + line("10.0.0.2", b, "3600", "0", ""), ""},
		{"", "\n" + good + "\n" + line("10.0.0.2", b, "3600", "0", ""), ""}, // Kea leaves out empty lines
		{"", "10.0.0.1," + b + "\n" + good + "x\n" + line("10.0.0.2", b, "3600", "0", ""), "line 2 of kea-leases4.csv and 1 more have another format: 10.0.0.1," + b},
		{"", good + "10.0.0.1," + b + ",,3600,4000000000,1\n" + line("10.0.0.2", b, "3600", "0", ""), "line 3 of kea-leases4.csv has another format: 10.0.0.1," + b + ",,3600,4000000000,1"},
		{"", good + line("10.0.0.1", b, "x", "0", "") + line("10.0.0.2", b, "3600", "0", ""), "line 3 of kea-leases4.csv has another format: " + strings.TrimSpace(line("10.0.0.1", b, "x", "0", ""))},
		{"\ny\n" + good, line("10.0.0.2", b, "3600", "0", "") + "z\n", "line 3 of kea-leases4.csv.2 and 1 more have another format: y"},
	} {
		write(t, leases, header4+c.newest)
		write(t, leases+".2", header4+c.older)
		got, err := f.read(leases, root+"/none")
		if want := []string{"10.0.0.1 " + a, "10.0.0.2 " + b}; err != nil || got.Problem != c.want || !slices.Equal(texts(got.Leases), want) {
			t.Errorf("got %q, problem %q and %v, want %q and problem %q", texts(got.Leases), got.Problem, err, want, c.want)
		}
	}
	for ending, want := range map[string]error{".2": os.ErrPermission, ".1": nil} { // .1 does not exist
		f.host = ipamtest.Host{Broken: map[string]error{leases + ending: cmp.Or(want, os.ErrNotExist)}}
		if got, err := f.read(leases, root+"/none"); !errors.Is(err, want) || err == nil && len(got.Leases) != 2 {
			t.Errorf("%s cannot be opened: got %d leases and %v, want %v: it has older leases", ending, len(got.Leases), err, want)
		}
	}
}

func TestLeasesOfIPv6AreRead(t *testing.T) {
	j := journal{}
	var bad faults
	err := j.read("leases", []byte("address,duid,valid_lifetime,expire,subnet_id,pref_lifetime,lease_type,iaid,prefix_len,fqdn_fwd,fqdn_rev,hostname,hwaddr,state\n"+
		"fd00::5,00:01,3600,4000000000,1,3600,0,7,128,0,0,six,02:00:00:00:00:06,0\n"+
		"fd00:1::,00:01,3600,4000000000,1,3600,2,8,64,0,0,,,0\n"), &bad)
	if bad.String() != "" || err != nil || len(j) != 1 {
		t.Fatalf("got %v, %q, %v, want the address and not the prefix", j, bad.String(), err)
	}
	for _, r := range j {
		if got := texts([]record{r}); got[0] != "fd00::5 02:00:00:00:00:06 six" {
			t.Errorf("got %q", got)
		}
	}
}

// nothing is included.
func nothing(string) ([]byte, error) { return nil, os.ErrNotExist }

func TestConfigurationIsParsed(t *testing.T) {
	c, err := parseConfig([]byte(`# a comment
		{ "Dhcp4": { // another
			"lease-database": { "type": "memfile", "name": "/tmp/x.csv" }, /* more
			of it */ "interfaces-config": { "interfaces": [ "eth0//x", "#1", "\"#" ] },
			"reservations": [ { "hw-address": "02:00:00:00:00:0A", "ip-address": "10.0.0.9" } ],
			"shared-networks": [ { "name": "n", "subnet4": [ { "subnet": "10.1.0.0/24", "pools": [ { "pool": "10.1.0.64/26" } ] } ] } ],
			"subnet4": [ { "subnet": "10.0.0.0/24", "pools": [ { "pool": "10.0.0.10-10.0.0.20" }, { "pool": "x" } ],
				"reservations": [ { "client-id": "01", "ip-address": "10.0.0.8", "hostname": "h" } ] } ] } }`), nothing)
	if err != nil || c.leaseFile != "/tmp/x.csv" || c.elsewhere != "" {
		t.Fatalf("got %+v, %v", c, err)
	}
	if got := fmt.Sprint(c.ranges, texts(c.reservations)); got != "[10.1.0.64/26 10.0.0.10-10.0.0.20] [10.0.0.8  h 10.0.0.9 02:00:00:00:00:0a]" {
		t.Errorf("got %s", got)
	}
	c, err = parseConfig([]byte(`{"Dhcp6": {"lease-database": {"type": "mysql", "name": "kea"}, "subnet6": [{"pools": [{"pool": "fd00::/112"}], "reservations": [{"duid": "01", "ip-addresses": ["fd00:1::1"]}]}]}}`), nothing)
	if err != nil || c.elsewhere != "in a database (mysql)" || fmt.Sprint(c.ranges, texts(c.reservations)) != "[fd00::/112] [fd00:1::1]" {
		t.Errorf("got %+v, %v", c, err)
	}
	// One machine with two cards needs two reservations, which Kea accepts only with this option: the server does not
	// lease one address to two clients at once.
	for options, want := range map[string]string{
		``:                                 "[10.0.0.8 02:00:00:00:00:0a 10.0.0.8 02:00:00:00:00:0b 10.0.0.9 02:00:00:00:00:0c]",
		`"ip-reservations-unique": true,`:  "[10.0.0.8 02:00:00:00:00:0a 10.0.0.8 02:00:00:00:00:0b 10.0.0.9 02:00:00:00:00:0c]",
		`"ip-reservations-unique": false,`: "[10.0.0.8 10.0.0.8 10.0.0.9 02:00:00:00:00:0c]",
	} {
		c, err = parseConfig([]byte(`{"Dhcp4": {`+options+` "subnet4": [{"reservations": [{"hw-address": "2:0:0:0:0:a", "ip-address": "10.0.0.8"},
			{"hw-address": "2:0:0:0:0:b", "ip-address": "10.0.0.8"}, {"hw-address": "2:0:0:0:0:c", "ip-address": "10.0.0.9"}]}]}}`), nothing)
		if got := fmt.Sprint(texts(c.reservations)); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", options, got, err, want)
		}
	}
	for _, bad := range []string{"", "{", "{}", `{"Dhcp4": []}`, `{"Dhcp4": {} / }`, `{"Dhcp4": <?include "none"?>}`} {
		if _, err := parseConfig([]byte(bad), nothing); err == nil {
			t.Errorf("got no error of %q", bad)
		}
	}
}

// Kea 2.2 accepts each of these (kea-dhcp4 -t).
func TestConfigurationWithIncludedFilesAndExtraCommasIsParsed(t *testing.T) {
	files := map[string]string{
		"/etc/kea/subnets.json": `{ "subnet": "10.0.0.0/24", "pools": [ { "pool": "10.0.0.10-10.0.0.20", },, ], <?include "more//files"?> }, # a comment`,
		"more//files":           `"reservations": [ { "hw-address": "2:0:0:0:0:b", "ip-address": "10.0.0.5" }, { "hw-address": "02000000000c", "ip-address": "10.0.0.6" }, { "hw-address": "0x2000000000d", "ip-address": "10.0.0.7" }, { "hw-address": "02 00 00 00 00 0e", "ip-address": "10.0.0.8", "hostname": ",}" } ]`,
		"/itself":               `<?include "/itself"?>`,
	}
	read := func(path string) ([]byte, error) {
		if text, ok := files[path]; ok {
			return []byte(text), nil
		}
		return nil, os.ErrNotExist
	}
	c, err := parseConfig([]byte(`{ "Dhcp4": { "subnet4": [ <?include "/etc/kea/subnets.json"?> ], } }`), read)
	if err != nil {
		t.Fatal(err)
	}
	const want = "[10.0.0.10-10.0.0.20] [10.0.0.5 02:00:00:00:00:0b 10.0.0.6 02:00:00:00:00:0c 10.0.0.7 02:00:00:00:00:0d 10.0.0.8 02:00:00:00:00:0e ,}]"
	if got := fmt.Sprint(c.ranges, texts(c.reservations)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := parseConfig([]byte(`{ "Dhcp4": <?include "/itself"?> }`), read); err == nil || !strings.Contains(err.Error(), "too deep") {
		t.Errorf("got %v of a file that includes itself", err)
	}
}

func TestLeaseFileWithoutADirectoryIsInTheDataDirectoryOfKea(t *testing.T) {
	root := t.TempDir()
	source := newKea(ipamtest.NewHost(), ipam.FilesConfig{Dirs: []string{root}})
	look := func() string {
		source.Find(lookAt)
		source.Read(ipam.FileRead{Now: lookAt, All: true})
		if all := source.Pools(); len(all) == 1 {
			return strings.TrimPrefix(all[0].Name, root)
		}
		return ""
	}
	leases := header4 + line("10.0.0.1", "", "3600", "0", "")
	for _, c := range []struct{ name, path string }{
		{"4.csv", keaLeaseDir + "/4.csv"}, // Kea 3.0
		{"old.csv", "/old.csv"},           // Kea 2.2
		{"old.csv", keaLeaseDir + "/old.csv"},
		{"data/4.csv", "/data/4.csv"},
		{keaLeaseDir + "/full.csv", keaLeaseDir + "/full.csv"},
	} {
		write(t, root+"/etc/kea/kea-dhcp4.conf", fmt.Sprintf(`{"Dhcp4": {"lease-database": {"type": "memfile", "name": %q}}}`, c.name))
		write(t, root+c.path, leases)
		if got := look(); got != c.path {
			t.Errorf("%s: got lease file %q, want %s", c.name, got, c.path)
		}
	}
}

func TestMissingLeaseFileOfKeaIsAProblemIfItRuns(t *testing.T) {
	root := t.TempDir()
	source := newKea(ipamtest.NewHost(), ipam.FilesConfig{Dirs: []string{root}})
	now := lookAt
	problems := func() []string {
		for range 2 {
			now = now.Add(ipam.Settled)
			source.Find(now)
			source.Read(ipam.FileRead{Now: now, All: true})
		}
		return source.Problems()
	}
	write(t, root+"/run/kea/kea-dhcp6.kea-dhcp6.pid", "8\n") // it has another configuration
	write(t, root+"/etc/kea/kea-dhcp4.conf", `{"Dhcp4": {"lease-database": {"type": "memfile", "name": "/data/4.csv"}}}`)
	if got := problems(); len(got) != 0 {
		t.Errorf("got %q of a server that never ran", got)
	}
	write(t, root+"/run/kea/kea-dhcp4.kea-dhcp4.pid", "7\n")
	source.Find(now)
	source.Read(ipam.FileRead{Now: now, All: true})
	if got := source.Problems(); len(got) != 0 {
		t.Errorf("got %q of a server that has just started", got)
	}
	if got := problems(); len(got) != 1 || !strings.Contains(got[0], "/data/4.csv: the file does not exist, but the server runs") {
		t.Errorf("got %q of a server that runs", got)
	}
	write(t, root+"/data/4.csv", header4)
	if got := problems(); len(got) != 0 {
		t.Errorf("got %q of a server without a lease", got)
	}
}

func TestSourceOfANodeWithKea(t *testing.T) {
	root := t.TempDir()
	source := newKea(ipamtest.NewHost(), ipam.FilesConfig{Dirs: []string{root}})
	look := func() []*ipam.FilePool {
		source.Find(lookAt)
		source.Read(ipam.FileRead{Now: lookAt, All: true})
		return source.Pools()
	}
	if got := look(); len(got) != 0 {
		t.Errorf("got %v of a node without Kea", got)
	}
	write(t, root+"/etc/kea/kea-dhcp4.conf", `{"Dhcp4": {"lease-database": {"type": "memfile", "name": "/data/4.csv"}}}`)
	write(t, root+"/etc/kea/kea-dhcp6.conf", `{"Dhcp6": {"lease-database": {"type": "postgresql", "name": "kea"}}}`)
	write(t, root+"/data/4.csv", header4+line("10.0.0.1", "", "3600", "0", ""))
	got := look()
	slices.SortFunc(got, func(a, b *ipam.FilePool) int { return strings.Compare(a.Name, b.Name) })
	if len(got) != 2 || got[0].State != ipam.Known || len(got[0].Changes) != 1 || got[1].State != ipam.Unreadable || !strings.Contains(got[1].Problem, "postgresql") {
		t.Errorf("got %+v, want the leases of IPv4, and those of IPv6 unreadable", got)
	}
	write(t, root+"/etc/kea/kea-dhcp4.conf", `{"Dhcp4": {"lease-database": {"name": "/data/4.csv"}`)
	for _, p := range look() {
		if p.Name == root+"/data/4.csv" && (p.State != ipam.Known || p.Problem == "") {
			t.Errorf("got %+v, want a problem with the configuration", p)
		}
	}

	// The configuration names the lease file: if it cannot be read, the server's leases are not known.
	write(t, root+"/etc/kea/kea-dhcp4.conf", `{"Dhcp4": <?include "/etc/kea/lost.json"?>}`)
	for _, p := range look() {
		if p.Name == root+keaLeaseDir+"/kea-leases4.csv" && (p.State != ipam.Unreadable || !strings.Contains(p.Problem, "lost.json")) {
			t.Errorf("got %+v, want the file that is missing", p)
		}
	}
	write(t, root+"/etc/kea/kea-dhcp4.conf", `{"Dhcp4": {"lease-database": {"type": "memfile", "persist": false}}}`)
	for _, p := range look() {
		if strings.Contains(p.Name, "leases4") && (p.State != ipam.Unreadable || !strings.Contains(p.Problem, "persist is false")) {
			t.Errorf("got %+v, want that the leases are in memory", p)
		}
	}
}
