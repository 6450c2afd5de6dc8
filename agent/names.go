package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/cri"
	"github.com/ipwitness/ipwitness/agent/files"
	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/proc"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/wake"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// names finds the network namespaces of the machine by their files and by
// processes, gives each an nsid so that netlink hears it, and says who lives
// in it. It holds no namespace open: that would keep dead ones alive.
type names struct {
	log        *slog.Logger
	kernel     *kernel.Mirror
	netnsDirs  []string
	cniResults string
	procDir    proc.Dir
	ticks      func() uint64         // clock ticks since boot
	sandboxes  func() []*cri.Sandbox // of the container runtime
	unnamed    func([]uint64)        // gives the container runtime the namespaces that it has no sandbox for
	changed    chan struct{}         // holds one token while there may be something new
	mounted    func()                // a mount has come or gone

	files   map[netnsFile]namedNetns // the namespaces that were found, by their files
	results map[string]cniFile       // parsed results, by file name: see ofMultus
	walked  time.Time                // when processes were last looked through
	later   bool                     // they are to be looked through once the time has come
	waking  atomic.Bool              // wakeAfter is on its way
	tenants map[uint64]*tenant       // of the namespaces of ours, by inode

	mu    sync.Mutex
	stale map[string]bool // names of results to read again
	all   bool            // read them all again
}

// netnsFile is one file of a directory of named namespaces. A file that is made
// again is another one.
type netnsFile struct {
	path string
	file uint64 // inode of the file below the namespace that is mounted over it
}

// namedNetns is what a file of such a directory says.
type namedNetns struct {
	inode uint64 // of the namespace
	name  *ipwitnessv1.Workload
}

func newNames(log *slog.Logger, k *kernel.Mirror, netnsDirs []string, cniResults string, procDir proc.Dir, runtime *cri.Client) *names {
	n := &names{
		log:        log,
		kernel:     k,
		netnsDirs:  netnsDirs,
		cniResults: cniResults,
		procDir:    procDir,
		ticks:      proc.BootTicks,
		sandboxes:  runtime.Sandboxes,
		unnamed:    runtime.Unnamed,
		changed:    make(chan struct{}, 1),
		mounted:    func() {},
		files:      map[netnsFile]namedNetns{},
		results:    map[string]cniFile{},
		tenants:    map[uint64]*tenant{},
		stale:      map[string]bool{},
		all:        true,
	}
	k.Unnamed, runtime.Changed = n.wake, n.wake
	k.CompareAgain = n.wakeAfter
	return n
}

func (n *names) wake() {
	wake.Poke(n.changed)
}

// wakeAfter wakes the search after a while. One that is on its way counts for all.
func (n *names) wakeAfter(wait time.Duration) {
	if n.waking.CompareAndSwap(false, true) {
		time.AfterFunc(wait, func() {
			n.waking.Store(false)
			n.wake()
		})
	}
}

// everythingEvery is how often everything is read anew: processes, for
// namespaces that have no file and no veth to this one and for who lives in
// those that we know, and all that a lost event would have told.
const everythingEvery = 15 * time.Second

// A look costs what there is, not what is new, and a pod that starts is a dozen
// reasons for one: after each the search rests for so many times as long.
const (
	restShare   = 4
	longestRest = 100 * time.Millisecond
)

// run keeps looking until ctx ends.
func (n *names) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.watchMounts(ctx) })
	g.Go(func() error { return n.watchResults(ctx) })
	g.Go(func() error {
		tick := time.NewTicker(everythingEvery)
		defer tick.Stop()
		everything := false
		for {
			begin := time.Now()
			n.look(everything)
			rest := time.NewTimer(min(longestRest, restShare*time.Since(begin)))
			select {
			case <-ctx.Done():
				return nil
			case <-rest.C:
			}
			everything = false
			select {
			case <-ctx.Done():
				return nil
			case <-n.changed:
			case <-tick.C:
				everything = true
			}
		}
	})
	return g.Wait()
}

// look takes up what is new among the namespaces and their names; everything
// has it forget what it knows.
func (n *names) look(everything bool) {
	if everything {
		n.forgetResults()
	}
	n.kernel.BeginNames()
	byPath, said := n.lookFiles(everything)
	n.readResults()
	for name, f := range n.results {
		for _, path := range f.netns {
			// Results outlive their sandboxes.
			if inode, ok := byPath[path]; ok && !strings.HasPrefix(name, ofMultus) {
				said[inode] = said[inode].with(facts{result: f.workload})
			}
		}
	}
	for _, s := range n.sandboxes() {
		if inode := n.sandboxInode(s, byPath); inode != 0 {
			said[inode] = said[inode].with(facts{sandbox: s})
		}
	}
	if everything || n.kernel.Anonymous(func(inode uint64) bool { _, ok := said[inode]; return ok }) {
		n.walk(everything)
	}
	names, unnamed := n.moveTenants(said)
	gave, meant := n.given(byPath, said)
	n.kernel.SetNames(names, gave, meant)
	n.unnamed(unnamed)
}

// lookFiles finds the named namespaces, and gives their inodes by path, and what
// their files say of them, by inode. It looks again at those that are known where
// that is asked for.
func (n *names) lookFiles(again bool) (byPath map[string]uint64, said map[uint64]facts) {
	byPath, said = map[string]uint64{}, map[uint64]facts{}
	found := make(map[netnsFile]namedNetns, len(n.files))
	for _, dir := range n.netnsDirs {
		source := "netns"
		if filepath.Base(filepath.Dir(dir)) == "docker" {
			source = "docker-netns"
		}
		entries, err := files.ReadDir(dir)
		if err != nil {
			continue // no such source here
		}
		for _, name := range slices.Sorted(maps.Keys(entries)) { // one namespace may have two names
			f := netnsFile{filepath.Join(dir, name), entries[name]}
			ns, ok := n.files[f]
			if !ok || again {
				if ns.inode, err = namespaceInode(f.path); err != nil {
					continue // being made, or gone
				}
			}
			if !ok {
				ns.name = &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: form.Printable(name), Source: source}
				if source == "netns" && !isMadeUp(ns.name) {
					ns.name.Kind = ipwitnessv1.Workload_UNKNOWN // a file named the namespace, but does not say what uses it
				}
			}
			found[f] = ns
			byPath[f.path] = ns.inode
			if said[ns.inode].file == nil {
				said[ns.inode] = facts{file: ns.name}
			}
			n.adopt(f.path, ns.inode)
		}
	}
	n.files = found
	return byPath, said
}

// sandboxInode finds the network namespace of a sandbox; 0 where it is not known.
func (n *names) sandboxInode(s *cri.Sandbox, byPath map[string]uint64) uint64 {
	if inode, ok := byPath[s.Path]; ok {
		return inode
	}
	switch {
	case strings.HasPrefix(s.Path, "/run/"): // elsewhere than others have it; whatever else is there may never answer
		if inode, err := namespaceInode(s.Path); err == nil {
			n.adopt(s.Path, inode)
			return inode
		}
	case s.Process.PID != 0:
		// A PID may be another process's by now.
		if p, err := n.procDir.Process(s.Process.PID); err == nil && p.Start == s.Process.Start {
			if inode, err := n.procDir.Netns(p.PID); err == nil && inode != n.kernel.OwnInode() {
				return inode
			}
		}
	}
	return 0
}

// moveTenants takes what is said of each namespace now to what is known of it,
// and gives their names; and those of this node that the runtime has no name for.
func (n *names) moveTenants(said map[uint64]facts) (names map[uint64]*ipwitnessv1.Workload, unnamed []uint64) {
	ours := n.kernel.OurInodes()
	for inode := range n.kernel.Reused() { // after ourInodes: a namespace may have ended since
		delete(said, inode)
	}
	for inode, t := range n.tenants {
		if ours[inode] != t.namespace {
			delete(n.tenants, inode)
		}
	}
	byID := map[string]*cri.Sandbox{}
	for _, s := range n.sandboxes() {
		byID[s.Id] = s
	}
	names = make(map[uint64]*ipwitnessv1.Workload, len(said))
	for inode, ns := range ours {
		t := n.tenantOf(inode, ns)
		t.facts = t.with(said[inode])
		if s := byID[t.container.ID]; s != nil && t.sandbox == nil {
			t.sandbox = s // the runtime tells no path, but the cgroup whose it is
		}
		if t.sandbox == nil {
			unnamed = append(unnamed, ns)
		}
		if said[inode] = t.facts; t.name() != nil {
			names[inode] = t.name()
		}
	}
	for inode, f := range said {
		if _, ok := ours[inode]; !ok {
			names[inode] = f.workload() // it may become ours
		}
	}
	return names, unnamed
}

// given gives the addresses that somebody meant a namespace to have, by inode:
// the names of their networks, and who said so.
func (n *names) given(byPath map[string]uint64, said map[uint64]facts) (map[uint64]kernel.Networks, map[uint64]kernel.Intended) {
	gave, all := map[uint64]kernel.Networks{}, map[uint64]kernel.Intended{}
	mean := func(inode uint64, g kernel.InterfaceAddress, source string) {
		if all[inode] == nil {
			all[inode] = kernel.Intended{}
		}
		all[inode][g] = source
	}
	runtime := map[uint64]kernel.Networks{}
	for name, f := range n.results {
		for path, addrs := range f.networks {
			inode, ok := byPath[path]
			switch {
			case !ok:
			case strings.HasPrefix(name, ofMultus):
				// It may be a device in user space, which no kernel gives the address: it
				// names the network, and nothing is missed.
				gave[inode] = gave[inode].With(addrs)
			default:
				runtime[inode] = runtime[inode].With(addrs)
				for g := range addrs {
					mean(inode, g, f.workload.GetSource())
				}
			}
		}
	}
	for inode, addrs := range runtime {
		gave[inode] = gave[inode].Keep(addrs) // of what Multus does not name
	}
	there := map[*cri.Sandbox]bool{}
	for _, s := range n.sandboxes() {
		there[s] = true
	}
	for inode, f := range said {
		if !there[f.sandbox] {
			continue // the runtime has ended it, and takes its addresses away
		}
		only := kernel.Networks{}
		for _, ip := range f.sandbox.IPs {
			g := kernel.InterfaceAddress{Interface: cri.PodInterface, Addr: ip}
			if _, ok := gave[inode][g]; !ok {
				only[g] = cri.Source
			}
			mean(inode, g, cri.Source)
		}
		if len(only) > 0 {
			gave[inode] = gave[inode].With(only)
		}
	}
	return gave, all
}

// walk looks through the processes: at most once a second, so that a namespace
// which stays without a name does not have every mount cost that.
func (n *names) walk(now bool) {
	if wait := time.Second - time.Since(n.walked); !now && wait > 0 {
		if !n.later {
			n.later = true
			time.AfterFunc(wait, n.wake)
		}
		return
	}
	n.walked, n.later = time.Now(), false
	n.processes()
}

// errNotNamespace says that a file is not (yet) a namespace: `ip netns add`
// makes the file first and mounts the namespace over it later.
var errNotNamespace = errors.New("not a network namespace")

// namespaceInode gives the inode of the namespace that is mounted at path.
func namespaceInode(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Type != unix.NSFS_MAGIC {
		return 0, errNotNamespace
	}
	return files.Inode(path)
}

// adopt gives the namespace behind path an nsid, where it is not known yet.
func (n *names) adopt(path string, inode uint64) {
	if n.kernel.Known(inode) {
		return
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // gone, or not for us
	}
	// Open until the mirror has it, so that neither inode nor nsid can be reused
	// before; and no longer.
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != inode {
		return // replaced between the two: the next look finds it
	}
	req, err := rtnetlink.Dial()
	if err != nil {
		n.log.Warn("cannot ask for namespace id", "error", err)
		return
	}
	defer req.Close()
	nsid, assigned, err := req.NSIDOf(fd)
	if err != nil {
		n.log.Debug("cannot give namespace an id", "path", path, "error", err)
		return
	}
	n.kernel.Adopt(nsid, inode, assigned)
}

// watchMounts wakes the search whenever a mount comes or goes: a named
// namespace is a mount. The kernel tells by poll(2) on mountinfo.
func (n *names) watchMounts(ctx context.Context) error {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		n.log.Warn("cannot watch mounts: named namespaces without a veth are found late", "error", err)
		return nil
	}
	defer func() { _ = mounts.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer func() { _ = r.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer stop()
	fds := []unix.PollFd{
		{Fd: int32(mounts.Fd()), Events: unix.POLLPRI},
		{Fd: int32(r.Fd()), Events: unix.POLLIN},
	}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("poll mountinfo: %w", err)
		case err == nil && fds[0].Revents != 0:
			n.wake()
			n.mounted()
		}
	}
}
