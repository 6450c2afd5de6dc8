package awsvpc

import (
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
	host      ipamtest.Host
	source    *source
	conf      string // the directory of CNI configurations
	now       time.Time
	watch     ipam.Watch // of the directory of checkpoints
	lost      bool       // events were lost
	published map[string]map[netip.Addr]ipam.FileAllocation
	again     bool // the source wants to be called again
	changes   int  // in the last reading
}

// newLab returns a lab whose source has read nothing yet.
func newLab(t *testing.T) *lab {
	root := t.TempDir()
	l := &lab{
		T: t, host: ipamtest.NewHost(), conf: filepath.Join(root, "etc/cni/net.d"), now: written,
		published: map[string]map[netip.Addr]ipam.FileAllocation{},
	}
	l.source = newSource(l.host, ipam.FilesConfig{Dirs: []string{filepath.Join(root, "run/aws-node")}, CNIConfig: []string{l.conf + "-none", l.conf}}).(*source)
	if l.source.dir != filepath.Join(root, "run/aws-node") {
		t.Fatalf("got directory %s, want the configured one: a test must not write into another", l.source.dir)
	}
	l.source.branches.dir = filepath.Join(root, "var/lib/cni/results")
	return l
}

// look lets the source look at everything, as every CheckEvery.
func (l *lab) look() {
	l.Helper()
	if l.source.Find(l.now) {
		l.Error("got that checkpoints are to be looked for again soon")
	}
	l.take(ipam.FileRead{All: true, Lost: l.lost})
	l.lost = false
}

// read lets the source read what is due.
func (l *lab) read() { l.Helper(); l.take(ipam.FileRead{}) }

func (l *lab) take(r ipam.FileRead) {
	l.Helper()
	r.Now, r.Watches = l.now, map[string]ipam.Watch{l.source.dir: l.watch}
	l.again = l.source.Read(r)
	l.changes = 0
	live := map[string]bool{}
	for _, p := range l.source.Pools() {
		live[p.Name] = true
		in := l.published[p.Name]
		if in == nil {
			in = map[netip.Addr]ipam.FileAllocation{}
			l.published[p.Name] = in
		}
		l.changes += len(p.Changes)
		for addr, a := range p.Changes {
			if delete(in, addr); a != nil {
				in[addr] = *a
			}
		}
		clear(p.Changes)
		if p.IPAM != Name || p.Plugin != "aws-cni" || !p.Routed || p.Device != "" || len(p.Ranges) != 0 {
			l.Errorf("pool: got %+v", p)
		}
	}
	maps.DeleteFunc(l.published, func(pool string, _ map[netip.Addr]ipam.FileAllocation) bool { return !live[pool] })
}

// event lets the source handle the event of a file of ipamd, and read it.
func (l *lab) event(name string, removed bool) {
	l.Helper()
	if !l.source.Event(l.path(name), removed) {
		l.Errorf("event of %s: got not handled, want handled", name)
	}
	l.read()
}

// path returns the path of a file of ipamd.
func (l *lab) path(name string) string { return filepath.Join(l.source.dir, name) }

// write writes a file as ipamd does, which was not written just now.
func (l *lab) write(name, content string) { l.Helper(); l.writeAt(name, content, time.Hour) }

func (l *lab) writeAt(name, content string, age time.Duration) {
	l.Helper()
	path, at := l.path(name), l.now.Add(-age)
	l.must(os.MkdirAll(l.source.dir, 0o755), os.WriteFile(path+".tmp1", []byte(content), 0o600), os.Chtimes(path+".tmp1", at, at), os.Rename(path+".tmp1", path))
}

// pool returns the pool of a file; a zero pool if there is none.
func (l *lab) pool(name string) ipam.FilePool {
	if f := l.source.files[l.path(name)]; f != nil {
		return f.FilePool
	}
	return ipam.FilePool{}
}

// want compares the published allocations of a pool that is known or missing.
func (l *lab) want(name string, allocations ...string) {
	l.Helper()
	if got := shown(l.published[l.path(name)]); !slices.Equal(got, allocations) {
		l.Errorf("%s: got %q, want %q", name, got, allocations)
	}
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
