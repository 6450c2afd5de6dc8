package azure

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

// lab is a source with directories of its own, a clock, and the allocations that were published.
type lab struct {
	*testing.T
	host             ipamtest.Host
	source           *source
	run, conf, state string
	now              time.Time
	age              time.Duration // of files when they are read
	watches          map[string]ipam.Watch
	allocations      map[string]map[string]ipam.FileAllocation // by name of the file and address
	again            bool                                      // the source wants to be called again
	changes          int                                       // in the last reading
	// the names of the pools
	ipam, vnet, cns, extra, database string
}

// start is the time at the start of a test.
var start = time.Unix(1_700_000_000, 0)

// newLab returns a lab whose source has read nothing yet.
func newLab(t *testing.T) *lab {
	root := t.TempDir()
	l := &lab{
		T: t, run: filepath.Join(root, "run"), conf: filepath.Join(root, "etc/cni/net.d"), state: filepath.Join(root, "var/lib/azure-network"),
		now: start, age: time.Hour, host: ipamtest.NewHost(), watches: map[string]ipam.Watch{},
		allocations: map[string]map[string]ipam.FileAllocation{},
		ipam:        "azure-vnet-ipam.json", vnet: "azure-vnet.json", cns: "azure-cns/azure-endpoints.json", extra: "azure-cns/azure-endpoints.json#2",
		database: "../var/lib/azure-network/azure-cns.db",
	}
	l.must(os.Mkdir(l.run, 0o755), os.MkdirAll(l.conf, 0o755), os.MkdirAll(l.state, 0o755))
	l.source = newSource(l.host, ipam.FilesConfig{Dirs: []string{l.run, l.state}, CNIConfig: []string{l.conf}}).(*source)
	return l
}

func (l *lab) must(errs ...error) {
	l.Helper()
	for _, err := range errs {
		if err != nil {
			l.Fatal(err)
		}
	}
}

// look lets the source look at everything, as every CheckEvery.
func (l *lab) look() {
	l.Helper()
	again := l.source.Find(l.now)
	l.read(ipam.FileRead{All: true})
	l.again = l.again || again
}

// read lets the source read what is due, and takes the changes.
func (l *lab) read(r ipam.FileRead) {
	l.Helper()
	r.Now, r.Watches = l.now, l.watches
	l.again = l.source.Read(r)
	l.changes = 0
	live := map[string]bool{}
	for _, p := range l.source.Pools() {
		name, _ := filepath.Rel(l.run, p.Name)
		live[name] = true
		in := l.allocations[name]
		if in == nil {
			in = map[string]ipam.FileAllocation{}
			l.allocations[name] = in
		}
		l.changes += len(p.Changes)
		for addr, a := range p.Changes {
			if delete(in, addr.String()); a != nil {
				in[addr.String()] = *a
			}
		}
		clear(p.Changes)
		if p.IPAM != Name || !p.Routed || p.Config != "" {
			l.Errorf("pool: got %+v", p)
		}
	}
	maps.DeleteFunc(l.allocations, func(pool string, _ map[string]ipam.FileAllocation) bool { return !live[pool] })
	l.now = l.now.Add(2 * time.Second)
}

// write replaces a file as its program does, and lets the source handle the event.
func (l *lab) write(name string, data []byte) {
	l.Helper()
	path := filepath.Join(l.run, name)
	at := l.now.Add(-l.age)
	l.must(ipamtest.WriteAzure(path, data), os.Chtimes(path, at, at))
	if !l.source.Event(path, false) {
		l.Errorf("event of %s: got not handled, want handled", name)
	}
	l.read(ipam.FileRead{})
}

// remove removes a file, and lets the source handle the event.
func (l *lab) remove(name string) {
	l.Helper()
	path := filepath.Join(l.run, name)
	l.must(os.Remove(path))
	l.source.Event(path, true)
	l.read(ipam.FileRead{})
}

// configure writes a CNI configuration of a network with an IPAM plugin.
func (l *lab) configure(file, network, plugin string) {
	l.Helper()
	conf := fmt.Sprintf(`{"cniVersion":"0.3.0","name":%q,"plugins":[{"type":"azure-vnet","ipam":{"type":%q}}]}`, network, plugin)
	l.must(os.WriteFile(filepath.Join(l.conf, file), []byte(conf), 0o644))
}

// pools returns the names of the pools with their state and number of allocations.
func (l *lab) pools() (all []string) {
	for _, p := range l.source.Pools() {
		name, _ := filepath.Rel(l.run, p.Name)
		all = append(all, fmt.Sprint(name, " ", p.State, " ", len(l.allocations[name])))
	}
	slices.Sort(all)
	return all
}

// want compares the pools with what they should be.
func (l *lab) want(what string, want ...string) {
	l.Helper()
	if got := l.pools(); !slices.Equal(got, want) {
		l.Errorf("%s: got pools %q, want %q", what, got, want)
	}
}

// pool returns a pool; a zero pool if there is none.
func (l *lab) pool(name string) ipam.FilePool {
	for _, p := range l.source.Pools() {
		if p.Name == filepath.Join(l.run, name) {
			return *p
		}
	}
	return ipam.FilePool{}
}

// The states of pools as text.
const (
	known, missing, unreadable, stale = " 1 ", " 3 ", " 4 ", " 5 "
)

func TestNodeWithoutAzureCNIHasNoPools(t *testing.T) {
	l := newLab(t)
	l.look()
	l.want("nothing")
	for name, content := range map[string]string{l.vnet: "", l.cns: "{}", l.ipam: "null"} {
		l.write(name, []byte(content))
		l.want("an empty " + name)
	}
	l.must(os.RemoveAll(l.run))
	l.look()
	l.want("no directory")
	if got := l.source.Problems(); len(got) != 0 || l.again {
		t.Errorf("got problems %q, again %v, want none", got, l.again)
	}
	if got, want := l.source.Places(), []string{l.run, filepath.Join(l.run, "azure-cns"), l.state, l.conf}; !slices.Equal(got, want) {
		t.Errorf("places: got %v, want %v", got, want)
	}
}

func TestDefaultDirectories(t *testing.T) {
	s := newSource(ipamtest.Host{}, ipam.FilesConfig{CNIConfig: []string{"/etc/cni/net.d"}}).(*source)
	var got []string
	for _, f := range s.files() {
		got = append(got, f.Path)
	}
	want := []string{"/run/azure-vnet-ipam.json", "/run/azure-vnet-ipamv6.json", "/run/azure-vnet.json", "/run/azure-cns/azure-endpoints.json", "/var/lib/azure-network/azure-cns.db"}
	if !slices.Equal(got, want) || s.database.Path != want[4] {
		t.Errorf("got %v and %s, want %v", got, s.database.Path, want)
	}
}

func TestEachFileIsAPool(t *testing.T) {
	l := newLab(t)
	l.configure("10-azure.conflist", "azure", vnetIPAM)
	l.look()
	l.write(l.ipam, ipamtest.AzureIPAM(map[string]string{"10.240.0.5": "c1", "10.240.0.6": ""}))
	l.write("azure-vnet-ipamv6.json", ipamtest.AzureIPAM(map[string]string{"fd00::5": "c1"}))
	l.write(l.vnet, ipamtest.AzureVnet(pod("web", "c1", "10.240.0.5", "fd00::5")))
	l.want("three files", "azure-vnet-ipam.json"+known+"1", "azure-vnet-ipamv6.json"+known+"1", "azure-vnet.json"+known+"2")
	if p := l.pool(l.ipam); p.Network != "azure" || len(p.Ranges) != 1 || p.Size() != 2 || !p.Contains(netip.MustParseAddr("10.240.0.6")) {
		t.Errorf("pool of azure-vnet-ipam: got %+v, want the network and two addresses", p)
	}
	if p := l.pool(l.vnet); p.Network != "" || len(p.Ranges) != 0 {
		t.Errorf("pool of azure-vnet: got %+v, want no network, because azure-vnet-ipam allocates there", p)
	}
	if got := l.allocations[l.vnet]["10.240.0.5"]; got.ContainerID != "c1" || got.Pod != "web" || got.Namespace != "default" || got.Interface != "eth0" {
		t.Errorf("allocation: got %+v", got)
	}
}

func TestNetworkIsThatOfTheCNIConfiguration(t *testing.T) {
	for _, test := range []struct {
		plugin, file, want string
		data               []byte
	}{
		{cns, "azure-vnet.json", "net", ipamtest.AzureVnet(web)},
		{cns, "azure-cns/azure-endpoints.json", "net", ipamtest.AzureEndpoints(web)},
		{delegated, "azure-cns/azure-endpoints.json", "net", ipamtest.AzureEndpoints(web)},
		{delegated, "azure-vnet.json", "", ipamtest.AzureVnet(web)},
		{vnetIPAM, "azure-cns/azure-endpoints.json", "", ipamtest.AzureEndpoints(web)},
		{vnetIPAMv6, "azure-vnet-ipamv6.json", "net", ipamtest.AzureIPAM(map[string]string{"fd00::1": "c"})},
		{vnetIPAMv6, "azure-vnet-ipam.json", "", ipamtest.AzureIPAM(map[string]string{"10.0.0.1": "c"})},
		{"host-local", "azure-vnet-ipam.json", "", ipamtest.AzureIPAM(map[string]string{"10.0.0.1": "c"})},
	} {
		l := newLab(t)
		l.configure("20-last.conflist", "last", test.plugin)
		l.configure("10-first.conflist", "net", test.plugin)
		l.must(os.WriteFile(filepath.Join(l.conf, "05-junk.conf"), []byte("{"), 0o600), os.Symlink("missing", filepath.Join(l.conf, "06-link.json")))
		l.configure("05-backup.conflist.bak", "backup", test.plugin)
		l.look()
		l.write(test.file, test.data)
		if got := l.pool(test.file).Network; got != test.want {
			t.Errorf("%s with %s: got network %q, want %q", test.file, test.plugin, got, test.want)
		}
		for _, path := range []string{l.conf, filepath.Join(l.conf, "10-first.conflist")} {
			l.host.Broken[path] = os.ErrPermission
			l.must(os.RemoveAll(filepath.Join(l.conf, "20-last.conflist")))
			if l.look(); l.pool(test.file).Network != test.want {
				t.Errorf("%s when %s cannot be read: got network %q, want %q as before", test.file, path, l.pool(test.file).Network, test.want)
			}
			clear(l.host.Broken)
		}
		l.must(os.RemoveAll(l.conf))
		l.look()
		if got := l.pool(test.file); got.Network != "" || got.State != ipam.Known {
			t.Errorf("%s without configuration: got %+v, want no network", test.file, got)
		}
	}
}

func TestRecordsOfAzureVnetDoNotCountBesideThoseOfCNS(t *testing.T) {
	l := newLab(t)
	l.configure("10-azure.conflist", "azure", cns)
	l.look()
	l.write(l.vnet, ipamtest.AzureVnet(web, db))
	l.want("azure-vnet only", "azure-vnet.json"+known+"3")
	l.write(l.cns, ipamtest.AzureEndpoints(web))
	l.want("both", "azure-cns/azure-endpoints.json"+known+"2")
	l.write(l.vnet, ipamtest.AzureVnet(db))
	l.want("both", "azure-cns/azure-endpoints.json"+known+"2")
	l.write(l.cns, ipamtest.AzureEndpoints())
	if l.want("both", "azure-cns/azure-endpoints.json"+known+"0"); l.pool(l.cns).Lost != 2 {
		t.Errorf("pool: got %+v, want 2 records lost", l.pool(l.cns))
	}
}

func TestChangesAreFollowed(t *testing.T) {
	l := newLab(t)
	l.look()
	l.write(l.cns, ipamtest.AzureEndpoints(web, db))
	if a := l.allocations[l.cns]["10.241.0.66"]; l.changes != 3 || a.Pod != "db" || !a.AllocatedAt.IsZero() {
		t.Errorf("first version: got %d changes, %+v, want 3 and no time", l.changes, a)
	}
	l.read(ipam.FileRead{All: true})
	if l.changes != 0 {
		t.Errorf("the same version: got %d changes", l.changes)
	}
	l.write(l.cns, ipamtest.AzureEndpoints(web, pod("next", "c3", "10.241.0.66"), pod("new", "c4", "10.241.0.67")))
	next, web, added := l.allocations[l.cns]["10.241.0.66"], l.allocations[l.cns]["10.241.0.65"], l.allocations[l.cns]["10.241.0.67"]
	if l.changes != 2 || next.Pod != "next" || next.AllocatedAt.IsZero() || added.AllocatedAt.IsZero() || !web.AllocatedAt.IsZero() {
		t.Errorf("next version: got %d changes, %+v, %+v and %+v, want 2 and the times of the new ones", l.changes, next, added, web)
	}
	since := next.AllocatedAt
	renamed := pod("next", "c3", "10.241.0.66")
	data := strings.ReplaceAll(string(ipamtest.AzureEndpoints(renamed)), `"eth0"`, `"net1"`)
	l.write(l.cns, []byte(data))
	if a := l.allocations[l.cns]["10.241.0.66"]; a.Interface != "net1" || a.AllocatedAt != since || l.changes != 4 || l.pool(l.cns).Lost != 0 {
		t.Errorf("another interface: got %d changes, %+v, want the time %v", l.changes, a, since)
	}
	if l.source.Event(filepath.Join(l.run, "azure-cns"), false) || l.source.Event(filepath.Join(l.conf, "x.conflist"), false) || l.source.Event(filepath.Join(l.run, "netns/x"), false) {
		t.Error("events that may change the places: got handled, want not handled")
	}
	for _, other := range []string{"utmp", "azure-vnet.json123", "azure-cns/azure-endpoints.json123"} {
		if !l.source.Event(filepath.Join(l.run, other), false) {
			t.Errorf("event of %s: got not handled, want handled", other)
		}
	}
	if l.read(ipam.FileRead{}); l.changes != 0 {
		t.Errorf("other files: got %d changes", l.changes)
	}
	// Files that changed without an event.
	l.must(ipamtest.WriteAzure(filepath.Join(l.run, l.cns), ipamtest.AzureEndpoints()), ipamtest.WriteAzure(filepath.Join(l.run, l.ipam), ipamtest.AzureIPAM(map[string]string{"10.0.0.1": "c"})))
	l.read(ipam.FileRead{})
	l.want("no event", "azure-cns/azure-endpoints.json"+known+"1")
	l.read(ipam.FileRead{Lost: true})
	l.want("lost events", "azure-cns/azure-endpoints.json"+known+"0", "azure-vnet-ipam.json"+known+"1")
}

func TestLossOfAllRecordsIsNoticedUntilTheyAreRestored(t *testing.T) {
	two := ipamtest.AzureEndpoints(pod("web", "c1", "10.241.0.65"), pod("db", "c2", "10.241.0.66"))
	for name, lose := range map[string]struct {
		do   func(l *lab)
		want string
	}{
		"removed":                {func(l *lab) { l.remove(l.cns) }, missing},
		"its directory":          {func(l *lab) { l.must(os.RemoveAll(filepath.Join(l.run, "azure-cns"))); l.look() }, missing},
		"empty":                  {func(l *lab) { l.write(l.cns, nil) }, missing},
		"without keys":           {func(l *lab) { l.write(l.cns, []byte("{}")) }, missing},
		"without records":        {func(l *lab) { l.write(l.cns, ipamtest.AzureEndpoints()) }, known},
		"restarted with nothing": {func(l *lab) { l.write(l.cns, []byte(`{"Endpoints":null}`)) }, known},
	} {
		l := newLab(t)
		l.look()
		l.write(l.cns, two)
		at := l.now
		lose.do(l)
		l.want(name, l.cns+lose.want+"0")
		if p := l.pool(l.cns); p.Lost != 2 || p.LostAt.Before(at) || lose.want == missing && p.Problem == "" || lose.want == known && p.Problem != "" {
			t.Errorf("%s: got %+v, want two records lost", name, p)
		}
		l.look()
		l.want(name+", again", l.cns+lose.want+"0")
		l.write(l.cns, ipamtest.AzureEndpoints(pod("web", "c1", "10.241.0.65"), pod("other", "c3", "10.241.0.66")))
		if p := l.pool(l.cns); p.State != ipam.Known || p.Problem != "" || p.Lost != 2 {
			t.Errorf("%s, half restored: got %+v, want two records lost", name, p)
		}
		l.write(l.cns, two)
		if p := l.pool(l.cns); p.State != ipam.Known || p.Lost != 0 || !p.LostAt.IsZero() {
			t.Errorf("%s, restored: got %+v, want no loss", name, p)
		}
		if got := l.source.Problems(); len(got) != 0 {
			t.Errorf("%s: got problems %q", name, got)
		}
	}
	l := newLab(t)
	l.look()
	l.write(l.cns, ipamtest.AzureEndpoints(pod("web", "c1", "10.241.0.65")))
	l.write(l.cns, ipamtest.AzureEndpoints())
	if p := l.pool(l.cns); p.Lost != 0 {
		t.Errorf("DEL of the last pod: got %+v, want no loss", p)
	}
	l.remove(l.cns)
	l.want("a file without records")
}

func TestUnreadableFileIsAProblemOfItsPool(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(l *lab, path string)
		want  string
	}{
		"half written":  {func(l *lab, path string) { l.must(os.WriteFile(path, ipamtest.AzureEndpoints(web)[:200], 0o600)) }, "parse JSON"},
		"other version": {func(l *lab, path string) { l.must(os.WriteFile(path, []byte(`{"schema":7}`), 0o600)) }, `no key "Endpoints"`},
		"other type":    {func(l *lab, path string) { l.must(os.WriteFile(path, []byte(`{"Endpoints":[]}`), 0o600)) }, "may not be known"},
		"a link":        {func(l *lab, path string) { l.must(os.Remove(path), os.Symlink("/etc/passwd", path)) }, "not a regular file"},
		"a directory":   {func(l *lab, path string) { l.must(os.Remove(path), os.Mkdir(path, 0o700)) }, "not a regular file"},
		"huge":          {func(l *lab, path string) { l.must(os.Truncate(path, maxFileSize+1)) }, "at most"},
		"not permitted": {func(l *lab, path string) {
			l.host.Broken[path] = &os.PathError{Op: "open", Path: path, Err: os.ErrPermission}
		}, "give the agent's user read access"},
	} {
		l := newLab(t)
		l.look()
		path := filepath.Join(l.run, l.cns)
		l.write(l.ipam, ipamtest.AzureIPAM(map[string]string{"10.0.0.1": "c"}))
		l.write(l.cns, ipamtest.AzureEndpoints(web))
		test.spoil(l, path)
		l.look()
		l.want(name, "azure-cns/azure-endpoints.json"+unreadable+"0", "azure-vnet-ipam.json"+known+"1")
		got := l.source.Problems()
		if p := l.pool(l.cns); len(got) != 1 || !strings.Contains(got[0], path+": ") || !strings.Contains(got[0], test.want) || !strings.HasSuffix(got[0], p.Problem) || p.Lost != 0 {
			t.Errorf("%s: got problems %q, pool %+v, want one with %q, and no loss", name, got, p, test.want)
		}
		clear(l.host.Broken)
		l.must(os.RemoveAll(path))
		l.write(l.cns, ipamtest.AzureEndpoints(web))
		l.want(name+", repaired", "azure-cns/azure-endpoints.json"+known+"2", "azure-vnet-ipam.json"+known+"1")
		if got := l.source.Problems(); len(got) != 0 {
			t.Errorf("%s, repaired: got problems %q", name, got)
		}
	}
}

// store writes the database, and lets the source handle the event.
func (l *lab) store(root ipamtest.Bucket) {
	l.Helper()
	l.must(ipamtest.WriteBolt(l.source.state.Path, root, l.now.Add(-l.age)))
	if !l.source.Event(l.source.state.Path, false) {
		l.Error("event of the database: got not handled, want handled")
	}
	l.read(ipam.FileRead{})
}

func TestDatabaseMattersOnlyWhereCNSIsUsed(t *testing.T) {
	l := newLab(t)
	l.store(ipamtest.AzureDatabase("bolt", web))
	l.look()
	l.want("a left-over database")
	l.write(l.vnet, ipamtest.AzureVnet(web))
	l.want("azure-vnet", "azure-vnet.json"+known+"2")
	l.configure("10-azure.conflist", "azure", cns)
	l.look()
	l.want("azure-cns", l.database+known+"2")
	if got := l.pool(l.database); got.Network != "azure" {
		t.Errorf("azure-cns: got %+v, want the network", got)
	}
}

func TestStateOfCNSInADatabase(t *testing.T) {
	l := newLab(t)
	l.configure("10-azure.conflist", "azure", cns)
	l.look()
	l.write(l.cns, ipamtest.AzureEndpoints(db))
	l.want("files", l.cns+known+"1")
	l.store(ipamtest.AzureDatabase("bolt", web))
	l.want("moved to the database, and files left over", l.database+known+"2")
	if a := l.allocations[l.database]["10.241.0.65"]; a.Pod != "web" || a.Namespace != "default" || a.ContainerID != web.Container || a.Interface != "eth0" {
		t.Errorf("allocation: got %+v, want that of web", a)
	}
	l.store(ipamtest.AzureDatabase("bolt", web, db))
	l.want("another pod", l.database+known+"3")
	if a := l.allocations[l.database]["10.241.0.66"]; !a.AllocatedAt.Equal(l.now.Add(-2*time.Second - l.age)) {
		t.Errorf("new allocation: got %s, want the time of the database", a.AllocatedAt)
	}
	l.store(ipamtest.AzureDatabase("bolt"))
	if l.want("all are lost", l.database+known+"0"); l.pool(l.database).Lost != 3 {
		t.Errorf("got %+v, want three lost records", l.pool(l.database))
	}
	l.store(ipamtest.AzureDatabase("bolt", web, db))
	if l.want("restored", l.database+known+"3"); l.pool(l.database).Lost != 0 {
		t.Errorf("got %+v, want no lost record", l.pool(l.database))
	}

	newer := ipamtest.AzureDatabase("bolt", web)
	newer["metadata"].(ipamtest.Bucket)["schema_version"] = []byte{2, 0, 0, 0}
	without := ipamtest.AzureDatabase("bolt", web)
	delete(without, "endpoints")
	other := ipamtest.AzureDatabase("bolt")
	other["endpoints"].(ipamtest.Bucket)["c"] = "[]"
	for name, test := range map[string]struct {
		root ipamtest.Bucket
		want string
	}{
		"a newer version":  {newer, "version 2"},
		"another use":      {ipamtest.AzureDatabase("etcd", web), "etcd"},
		"no endpoints":     {without, `no bucket "endpoints"`},
		"other endpoints":  {other, `endpoint "c"`},
		"another database": {ipamtest.Bucket{"x": ipamtest.Bucket{}}, `no bucket "metadata"`},
	} {
		l.store(test.root)
		l.want(name, l.database+unreadable+"0")
		if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], test.want) || l.pool(l.database).Lost != 0 {
			t.Errorf("%s: got problems %q, want one with %q, and no loss", name, got, test.want)
		}
	}
	l.must(os.WriteFile(l.source.state.Path, []byte("?"), 0o600), os.Chtimes(l.source.state.Path, start, start))
	l.source.Event(l.source.state.Path, false)
	l.read(ipam.FileRead{})
	l.want("damaged", l.database+unreadable+"0")
	l.store(ipamtest.AzureDatabase("bolt", web))
	l.want("repaired", l.database+known+"2")
	one := ipamtest.AzureDatabase("bolt", web)
	one["endpoints"].(ipamtest.Bucket)["c"] = "[]"
	l.store(one)
	l.want("one bad endpoint", l.database+known+"2")
	if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], "endpoint c") {
		t.Errorf("one bad endpoint: got problems %q, want that it is named", got)
	}

	l.store(ipamtest.AzureDatabase("json", web))
	l.write(l.cns, ipamtest.AzureEndpoints(db))
	l.want("gone back to files", l.cns+known+"1")
	l.store(ipamtest.AzureDatabase("bolt", web))
	l.want("in the database again", l.database+known+"2")
	l.must(os.Remove(l.source.state.Path))
	l.source.Event(l.source.state.Path, true)
	l.read(ipam.FileRead{})
	if p := l.pool(l.database); p.State != ipam.Missing || p.Lost != 2 {
		t.Errorf("removed: got %+v, want a missing pool with two lost records", p)
	}
}

// If azure-vnet keeps the endpoints, azure-cns's database has none.
func TestDatabaseWithoutEndpointsLeavesThemToAzureVnet(t *testing.T) {
	l := newLab(t)
	l.configure("10-azure.conflist", "azure", cns)
	l.store(ipamtest.AzureDatabase("bolt"))
	l.look()
	l.want("no pods", l.database+known+"0")
	l.write(l.vnet, ipamtest.AzureVnet(web))
	l.want("azure-vnet", l.vnet+known+"2")
	l.store(ipamtest.AzureDatabase("bolt"))
	l.want("azure-vnet, and a change of the database", l.vnet+known+"2")
}

func TestFileThatIsBeingWrittenIsReadAgainSoon(t *testing.T) {
	for _, content := range []string{"", `{"Endpoints":{`} {
		l := newLab(t)
		l.look()
		l.write(l.cns, ipamtest.AzureEndpoints(web))
		l.age = 0
		l.write(l.cns, []byte(content))
		if l.want("half a file", l.cns+known+"2"); !l.again || len(l.source.Problems()) != 0 {
			t.Errorf("%q: got again %v, problems %q, want to be called again", content, l.again, l.source.Problems())
		}
		if l.look(); l.again || l.pool(l.cns).State == ipam.Known {
			t.Errorf("%q, later: got again %v, %+v, want another state", content, l.again, l.pool(l.cns))
		}
	}
}

func TestAddressOfTwoContainersIsInASecondPool(t *testing.T) {
	l := newLab(t)
	l.configure("10-azure.conflist", "azure", cns)
	l.look()
	both := ipamtest.AzureEndpoints(web, db, pod("ghost", "c9", "10.241.0.66"))
	l.write(l.cns, both)
	l.want("two containers", l.cns+known+"3", l.extra+known+"1")
	if p := l.pool(l.extra); p.Network != "" || len(p.Ranges) != 0 || l.pool(l.cns).Network != "azure" {
		t.Errorf("second pool: got %+v, want no network", p)
	}
	if a := l.allocations[l.extra]["10.241.0.66"]; a.Pod != "ghost" {
		t.Errorf("second allocation: got %+v, want that of ghost", a)
	}
	l.write(l.cns, ipamtest.AzureEndpoints(web, pod("ghost", "c9", "10.241.0.66")))
	l.want("one container", l.cns+known+"3")
	l.write(l.cns, both)
	l.want("two containers", l.cns+known+"3", l.extra+known+"1")
	l.remove(l.cns)
	l.want("removed", l.cns+missing+"0")
	l.write(l.cns, both)
	l.write(l.cns, []byte("["))
	l.want("spoilt", l.cns+unreadable+"0")
}

func TestRecordWithoutAddressIsAProblemAndTheOthersCount(t *testing.T) {
	l := newLab(t)
	l.look()
	l.write(l.cns, []byte(strings.ReplaceAll(string(ipamtest.AzureEndpoints(web, db)), `"10.241.0.66"`, `""`)))
	l.want("one record without address", l.cns+known+"2")
	if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], "endpoint "+db.Container+" has no valid address") {
		t.Errorf("got problems %q, want the endpoint", got)
	}
	l.write(l.cns, ipamtest.AzureEndpoints(web))
	if got := l.source.Problems(); len(got) != 0 || l.pool(l.cns).Problem != "" {
		t.Errorf("repaired: got problems %q", got)
	}
}

func TestHiddenDirectoryIsAProblemWhereAzureCNIIsConfigured(t *testing.T) {
	l := newLab(t)
	l.host.Hidden[l.run] = errors.New("mount it")
	l.must(ipamtest.WriteAzure(filepath.Join(l.run, l.cns), ipamtest.AzureEndpoints(web)))
	l.look()
	if got := l.source.Problems(); len(got) != 0 {
		t.Errorf("no Azure CNI: got problems %q", got)
	}
	l.configure("10-azure.conflist", "azure", cns)
	l.look()
	l.want("hidden")
	if got := l.source.Problems(); len(got) != 1 || !strings.Contains(got[0], l.run) || !strings.Contains(got[0], "azure: mount it") {
		t.Errorf("got problems %q, want the mount", got)
	}
	delete(l.host.Hidden, l.run)
	l.look()
	if l.want("visible", l.cns+known+"2"); len(l.source.Problems()) != 0 {
		t.Errorf("visible: got problems %q", l.source.Problems())
	}
}

func TestUnwatchedDirectoryIsStale(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.run, "azure-cns")
	l.watches[dir] = ipam.Watch{Err: errors.New("no space left")}
	l.look()
	l.want("no file")
	l.write(l.cns, ipamtest.AzureEndpoints(web))
	l.want("unwatched", l.cns+stale+"2")
	if p := l.pool(l.cns); p.Problem != "" {
		t.Errorf("got %+v, want no problem of the pool: the agent has one", p)
	}
	delete(l.watches, dir)
	l.look()
	if l.want("watched", l.cns+known+"2"); l.pool(l.cns).Problem != "" {
		t.Errorf("watched: got %+v", l.pool(l.cns))
	}
}
