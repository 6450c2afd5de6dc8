package dhcp

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// file is what systemd-networkd 252 writes.
const file = `# This is private data. Do not parse.
ADDRESS=10.9.0.20
NETMASK=255.255.255.0
ROUTER=10.9.0.1
SERVER_ADDRESS=10.9.0.1
T1=1800
T2=3150
LIFETIME=3600
CLIENTID=ff
`

func TestLeasesOfTheNodeAreRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "leases")
	host := ipamtest.NewHost()
	host.Interfaces = []ipam.Device{{Index: 2, Name: "eth0", MAC: "02:00:00:00:00:02"}, {Index: 3, Name: "eth1", MAC: "02:00:00:00:00:03"}}
	source := newNetworkd(host, ipam.FilesConfig{Dirs: []string{dir}})
	now := time.Unix(1_700_000_000, 0)
	look := func() []*ipam.FilePool {
		now = now.Add(time.Minute)
		source.Find(now)
		source.Read(ipam.FileRead{Now: now, All: true})
		return source.Pools()
	}
	if got := look(); len(got) != 0 {
		t.Errorf("got %v of a node without networkd", got)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("2", file)
	write("9", file)
	got := look()
	if len(got) != 1 || len(got[0].Changes) != 1 || got[0].State != ipam.Known || got[0].Problem != "" {
		t.Fatalf("got %+v, want one lease", got)
	}
	for a, al := range got[0].Changes {
		if a.String() != "10.9.0.20" || al.MAC != "02:00:00:00:00:02" {
			t.Errorf("got %v", al)
		}
	}
	write("3", `{"Address":[10,9,0,21]}`)
	if got := look(); len(got) != 1 || got[0].State != ipam.Known || got[0].Problem == "" {
		t.Errorf("got %+v, want a problem with the format", got[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	look()
	if got := look(); len(got) != 0 {
		t.Errorf("got %+v of a node whose leases have ended", got)
	}
}
