package hostlocal

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// lab is a source with directories of its own, a clock, and the allocations that were published.
type lab struct {
	*testing.T
	host            ipamtest.Host
	source          *source
	root, conf, dir string // conf has CNI configurations, dir a directory for each network
	now             time.Time
	watches         map[string]ipam.Watch // overrides of the state of watched directories
	allocations     map[string]map[string]ipam.FileAllocation
	again           bool // the source wants to be called again
	changes         int  // in the last reading
}

// start is the time at the start of a test.
var start = time.Unix(1_700_000_000, 0)

// newLab returns a lab whose source has read nothing yet.
func newLab(t *testing.T) *lab {
	root := t.TempDir()
	l := &lab{
		T: t, root: root, conf: filepath.Join(root, "etc/cni/net.d"), dir: filepath.Join(root, "var/lib/cni/networks"), now: start,
		host:    ipamtest.NewHost(),
		watches: map[string]ipam.Watch{}, allocations: map[string]map[string]ipam.FileAllocation{},
	}
	l.source = newSource(l.host, ipam.FilesConfig{Dirs: []string{l.dir}, CNIConfig: []string{l.conf}, CNIResults: filepath.Join(root, "var/lib/cni/results")}).(*source)
	return l
}

// look lets the source check everything, as a driver does every CheckEvery.
func (l *lab) look() {
	l.Helper()
	again := l.source.Find(l.now)
	l.read(ipam.FileRead{All: true})
	l.again = l.again || again
}

// read lets the source read what is due, and takes the changes.
func (l *lab) read(r ipam.FileRead) {
	l.Helper()
	r.Now, r.Watches = l.now, map[string]ipam.Watch{}
	for _, place := range l.source.Places() {
		r.Watches[place] = ipam.Watch{ID: ipamtest.Identify(place)}
	}
	maps.Copy(r.Watches, l.watches)
	l.again = l.source.Read(r)
	l.changes = 0
	live := map[string]bool{}
	for _, p := range l.source.Pools() {
		live[p.Name] = true
		in := l.allocations[p.Name]
		if in == nil {
			in = map[string]ipam.FileAllocation{}
			l.allocations[p.Name] = in
		}
		l.changes += len(p.Changes)
		for addr, a := range p.Changes {
			if delete(in, addr.String()); a != nil {
				in[addr.String()] = *a
			}
		}
		clear(p.Changes)
		if p.IPAM != Name || p.Network != filepath.Base(p.Name) || len(in) != len(l.source.dirs[p.Name].allocated) {
			l.Errorf("pool: got %+v with %d allocations published", p, len(in))
		}
	}
	maps.DeleteFunc(l.allocations, func(pool string, _ map[string]ipam.FileAllocation) bool { return !live[pool] })
	l.now = l.now.Add(time.Millisecond)
}

// event lets the source handle the event of a file of a network, and read it.
func (l *lab) event(network, file string, removed bool) {
	l.Helper()
	if path := filepath.Join(l.path(network), file); !l.source.Event(path, removed) {
		l.Errorf("event of %s: got not handled, want handled", path)
	}
	l.read(ipam.FileRead{})
}

// path returns the path of a network's directory.
func (l *lab) path(network string) string { return filepath.Join(l.dir, network) }

// pool returns the pool of a network; a zero pool if there is none.
func (l *lab) pool(network string) ipam.FilePool {
	if d := l.source.dirs[l.path(network)]; d != nil {
		return d.FilePool
	}
	return ipam.FilePool{}
}

// addresses returns the addresses of a network that were published, sorted as text.
func (l *lab) addresses(network string) []string {
	return slices.Sorted(maps.Keys(l.allocations[l.path(network)]))
}

// must fails the test on an error.
func (l *lab) must(errs ...error) {
	l.Helper()
	for _, err := range errs {
		if err != nil {
			l.Fatal(err)
		}
	}
}

// configure writes a configuration that is not being written any more.
func (l *lab) configure(file, conf string) {
	l.Helper()
	path, old := filepath.Join(l.conf, file), l.now.Add(-time.Hour)
	l.must(os.MkdirAll(l.conf, 0o755), os.WriteFile(path, []byte(conf), 0o644), os.Chtimes(path, old, old))
}

// result writes the result of libcni for a container with the configuration that its caller passed, and returns its path.
func (l *lab) result(network, container, conf string) string {
	l.Helper()
	netns, path := filepath.Join(l.root, container), filepath.Join(l.source.results, network+"-"+container+"-eth0")
	data, err := json.Marshal(map[string]any{"kind": "cniCacheV1", "containerId": container, "config": []byte(conf), "networkName": network, "netns": netns})
	l.must(err, os.WriteFile(netns, nil, 0o600), os.MkdirAll(l.source.results, 0o755), os.WriteFile(path, data, 0o600))
	return path
}

// allocate allocates an address in the same way as host-local.
func (l *lab) allocate(network, addr, container string) {
	l.Helper()
	l.must(os.MkdirAll(l.path(network), 0o755))
	for name, content := range map[string]string{"lock": "", addr: container + "\r\neth0", "last_reserved_ip.0": addr} {
		l.must(os.WriteFile(filepath.Join(l.path(network), name), []byte(content), 0o600))
	}
}

// allocateMany allocates n addresses, starting with 10.1.0.1.
func (l *lab) allocateMany(network string, n int) {
	l.Helper()
	addr := netip.MustParseAddr("10.1.0.1")
	for i := range n {
		l.allocate(network, addr.String(), fmt.Sprint("c", i))
		addr = addr.Next()
	}
}

// release removes the file of an address.
func (l *lab) release(network, addr string) {
	l.Helper()
	l.must(os.Remove(filepath.Join(l.path(network), addr)))
	l.event(network, addr, true)
}
