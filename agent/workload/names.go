// Package workload finds the network namespaces of the machine and names the workloads in
// them. Its sources are the container runtime (CRI), CNI results, names of namespaces, cgroups
// and processes.
//
// Links and claims belong in package kernel instead.
package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"

	"github.com/ipwitness/ipwitness/ipam"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Names finds the network namespaces of the machine by their files and processes, makes sure
// that each has an nsid so that netlink reports it, and names the workload that uses it. It
// keeps no namespace open, because that would keep dead namespaces alive.
type Names struct {
	log       *slog.Logger
	kernel    *kernel.Mirror
	netnsDirs []string
	procDir   ProcDir
	ticks     func() uint64            // clock ticks since boot
	sandboxes func() []*Sandbox        // of the container runtime
	engines   func() []*ipam.Container // running containers of docker and podman
	unnamed   func([]uint64)           // passes the namespaces without a sandbox to the container runtime's client
	changed   chan struct{}            // holds one token while a search is needed
	Mounted   func()                   // called when a mount was added or removed; set before run
	SeesAll   bool                     // procDir has all processes of the machine; set before run

	// VIPs is the program of this node that moves virtual addresses.
	VIPs VIPProgram

	mu    sync.Mutex // held while it searches
	lacks *Lacks
	lack  error // why the last search did not see everything, although it may exist

	files   map[netnsFile]namedNetns // the namespaces that were found by their files
	cni     *cniCache
	walked  time.Time          // when all processes were last read
	later   bool               // a timer will wake the search to read the processes again
	waking  atomic.Bool        // a timer of wakeAfter is running
	tenants map[uint64]*tenant // of the namespaces of this node, by inode
}

// netnsFile identifies a file in a directory of named namespaces. A file that is removed and
// created again is a different one.
type netnsFile struct {
	path string
	file uint64 // inode of the file, not of the namespace that is mounted over it
}

// namedNetns is the namespace that a netnsFile names.
type namedNetns struct {
	inode uint64 // of the namespace
	name  *ipwitnessv1.Workload
}

// New returns a search for the workloads of the namespaces of k. netnsDirs are directories
// with files of named namespaces, and cniResults is libcni's result cache. engines returns the running
// containers of engines.
func New(log *slog.Logger, k *kernel.Mirror, netnsDirs []string, cniResults string, procDir ProcDir, runtime *Runtime, engines func() []*ipam.Container) *Names {
	n := &Names{
		log: log, kernel: k, netnsDirs: netnsDirs, procDir: procDir, ticks: BootTicks,
		sandboxes: runtime.Sandboxes, engines: engines, unnamed: runtime.Unnamed, changed: make(chan struct{}, 1), Mounted: func() {},
		lacks: &runtime.Lacks, files: map[netnsFile]namedNetns{}, tenants: map[uint64]*tenant{},
	}
	n.cni = newCNICache(log, cniResults, n.Wake)
	k.Unnamed, runtime.Changed = n.Wake, n.Wake
	k.CompareAgain = n.wakeAfter
	return n
}

// Wake wakes the search, because a source has changed.
func (n *Names) Wake() { table.Poke(n.changed) }

// wakeAfter wakes the search after a while, unless its timer is already running.
func (n *Names) wakeAfter(wait time.Duration) {
	if n.waking.CompareAndSwap(false, true) {
		time.AfterFunc(wait, func() {
			n.waking.Store(false)
			n.Wake()
		})
	}
}

// everythingEvery is how often everything is read again: processes, because they may be in
// namespaces without a file or a veth, and everything else, because events may have been lost.
const everythingEvery = 15 * time.Second

// The cost of a search depends on everything that exists, not on what is new, and a pod that
// starts wakes the search a dozen times. So each search is followed by a pause of restShare
// times its duration.
const (
	restShare   = 4
	longestRest = 100 * time.Millisecond
)

// Run searches whenever there may be something new, until ctx ends.
func (n *Names) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.watchMounts(ctx) })
	g.Go(func() error { return n.cni.watch(ctx, n.lacks) })
	g.Go(func() error { n.search(ctx); return nil })
	return g.Wait()
}

// search searches whenever it is woken, until ctx ends.
func (n *Names) search(ctx context.Context) {
	tick := time.NewTicker(everythingEvery)
	defer tick.Stop()
	everything := false
	for {
		begin := time.Now()
		n.Look(everything)
		rest := time.NewTimer(min(longestRest, restShare*time.Since(begin)))
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		everything = false
		select {
		case <-ctx.Done():
			return
		case <-n.changed:
		case <-tick.C:
			everything = true
		}
	}
}

// Reread reads addresses in dispute from the kernel again, and before that all processes: the program that moves
// a virtual address decides which of its owners is the rightful one. It returns false if some addresses could not
// be read.
func (n *Names) Reread(addrs []netip.Addr) bool {
	n.mu.Lock()
	if time.Since(n.walked) >= walkAfter {
		n.look(false, true)
	}
	n.mu.Unlock()
	return n.kernel.Reread(addrs)
}

// Look searches once. If everything is set, it also reads again what it knows.
func (n *Names) Look(everything bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.look(everything, everything)
}

// look searches once. If processes is set, it reads all processes again.
func (n *Names) look(everything, processes bool) {
	everything = everything || n.lack != nil
	n.lack = nil
	n.kernel.BeginNames()
	byPath, byInode := n.lookFiles(everything)
	if err := n.cni.read(); err != nil {
		n.lack = err
	}
	for name, f := range n.cni.results {
		for _, path := range f.netns {
			// A result may outlive its sandbox.
			if inode, ok := byPath[path]; ok && !strings.HasPrefix(name, ofMultus) {
				byInode[inode] = byInode[inode].with(facts{result: f.workload})
			}
		}
	}
	for _, s := range n.sandboxes() {
		if inode := n.sandboxInode(s, byPath); inode != 0 {
			byInode[inode] = byInode[inode].with(facts{sandbox: s})
		}
	}
	containers := n.engines()
	for _, c := range containers {
		if inode, ok := byPath[c.Netns]; ok && inode != n.kernel.OwnInode() {
			byInode[inode] = byInode[inode].with(facts{engine: c})
		}
	}
	if everything || processes || n.anyEmpty() || n.kernel.Anonymous(func(inode uint64) bool { _, ok := byInode[inode]; return ok }) {
		n.walk(everything || processes)
	}
	names, unnamed := n.moveTenants(byInode, containers)
	assigned, intended := n.assignments(byPath, byInode)
	overlays := map[uint64]string{}
	for _, ns := range n.files {
		if network := overlay.FindStringSubmatch(ns.name.GetName()); network != nil && ns.name.GetSource() == dockerNetns {
			overlays[ns.inode] = network[1]
		}
	}
	n.lacks.note("the names and networks of some pods are not known, because their CNI results cannot be read: duplicates of their "+
		"addresses on other nodes may be missed until those pods are started again", n.cni.damage())
	n.kernel.SetNames(names, assigned, intended, overlays)
	n.unnamed(unnamed)
	if n.lacks.note("new network namespaces and the names of workloads cannot be seen at the moment, so those that were seen earlier still count", n.lack); n.lack != nil {
		n.wakeAfter(lackAgain)
	}
}

// lackAgain is how soon a search that did not see everything is repeated.
const lackAgain = time.Second

// lookFiles finds the named namespaces. It returns their inodes by path, and the facts from
// their files by inode. It reads known files again only if again is set.
func (n *Names) lookFiles(again bool) (byPath map[string]uint64, byInode map[uint64]facts) {
	byPath, byInode = map[string]uint64{}, map[uint64]facts{}
	found := make(map[netnsFile]namedNetns, len(n.files))
	for _, dir := range n.netnsDirs {
		source := "netns"
		if filepath.Base(filepath.Dir(dir)) == "docker" {
			source = dockerNetns
		}
		entries, err := readDir(dir)
		if table.Lack(err) != "" {
			n.lack = err
			entries = map[string]uint64{} // as before
			for f := range n.files {
				if filepath.Dir(f.path) == dir {
					entries[filepath.Base(f.path)] = f.file
				}
			}
		} else if err != nil {
			continue // the node does not have this directory
		}
		for _, name := range slices.Sorted(maps.Keys(entries)) { // one namespace may have two names
			f := netnsFile{filepath.Join(dir, name), entries[name]}
			ns, ok := n.files[f]
			if !ok || again || source == dockerNetns { // docker unmounts a file up to a minute before it removes it
				if ns.inode, err = namespaceInode(f.path); err != nil {
					continue // not mounted yet, or removed
				}
			}
			if !ok {
				ns.name = &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: table.Printable(name), Source: source}
				if source == "netns" && !isGenerated(ns.name) {
					ns.name.Kind = ipwitnessv1.Workload_UNKNOWN // a file names the namespace, but does not say what uses it
				}
			}
			found[f] = ns
			byPath[f.path] = ns.inode
			if byInode[ns.inode].file == nil {
				byInode[ns.inode] = facts{file: ns.name}
			}
			n.adopt(f.path, ns.inode)
		}
	}
	n.files = found
	return byPath, byInode
}

// sandboxInode returns the network namespace of a sandbox, or 0 if it is not known.
func (n *Names) sandboxInode(s *Sandbox, byPath map[string]uint64) uint64 {
	if inode, ok := byPath[s.Path]; ok {
		return inode
	}
	switch {
	case strings.HasPrefix(s.Path, "/run/"): // in a directory that is not watched; paths outside /run may block
		if inode, err := namespaceInode(s.Path); err == nil {
			n.adopt(s.Path, inode)
			return inode
		}
	case s.Process.PID != 0:
		// The PID may belong to another process by now.
		if p, err := n.procDir.Process(s.Process.PID); err == nil && p.Start == s.Process.Start {
			if inode, err := n.procDir.Netns(p.PID); err == nil && inode != n.kernel.OwnInode() {
				return inode
			}
		}
	}
	return 0
}

// moveTenants adds the current facts about each namespace to the known ones. It returns the
// names of all namespaces, and the namespaces of this node without a sandbox.
func (n *Names) moveTenants(byInode map[uint64]facts, containers []*ipam.Container) (names map[uint64]*ipwitnessv1.Workload, unnamed []uint64) {
	ours := n.kernel.OurInodes()
	for inode := range n.kernel.Reused() { // after OurInodes: a namespace may have ended since
		delete(byInode, inode)
	}
	for inode, t := range n.tenants {
		if ours[inode] != t.namespace {
			delete(n.tenants, inode)
		}
	}
	byID := map[string]*Sandbox{}
	for _, s := range n.sandboxes() {
		byID[s.ID] = s
	}
	engines := map[string]*ipam.Container{}
	for _, c := range containers {
		engines[c.ID] = c
	}
	names = make(map[uint64]*ipwitnessv1.Workload, len(byInode))
	for inode, ns := range ours {
		t := n.tenantOf(inode, ns)
		t.facts = t.with(byInode[inode])
		switch {
		case byInode[inode].engine != nil || t.engine == nil:
		case engines[t.engine.ID] != nil && engines[t.engine.ID].Netns != t.engine.Netns:
			t.engine = nil // the container was restarted, and its previous namespace was left behind
		case byInode[inode].file != nil && byInode[inode].file.GetName() != filepath.Base(t.engine.Netns):
			t.engine = nil // the inode was reused
		}
		if s := byID[t.container.ID]; s != nil && t.sandbox == nil {
			t.sandbox = s // the runtime returned no path, but the cgroup identifies the sandbox
		}
		if t.sandbox == nil {
			unnamed = append(unnamed, ns)
		}
		if byInode[inode] = t.facts; t.name() != nil {
			names[inode] = t.name()
		}
	}
	for inode, f := range byInode {
		if _, ok := ours[inode]; !ok {
			names[inode] = f.workload() // the namespace may become one of this node
		}
	}
	return names, unnamed
}

// assignments returns the networks that assigned the addresses of namespaces, and their intended
// addresses with the sources that report them, by inode.
func (n *Names) assignments(byPath map[string]uint64, byInode map[uint64]facts) (map[uint64]kernel.Networks, map[uint64]kernel.Intended) {
	assigned, all := map[uint64]kernel.Networks{}, map[uint64]kernel.Intended{}
	mean := func(inode uint64, g kernel.InterfaceAddress, source string) {
		if all[inode] == nil {
			all[inode] = kernel.Intended{}
		}
		all[inode][g] = source
	}
	runtime := map[uint64]kernel.Networks{}
	for name, f := range n.cni.results {
		for path, addrs := range f.networks {
			inode, ok := byPath[path]
			switch {
			case !ok:
			case strings.HasPrefix(name, ofMultus):
				// The interface may be a user-space device, whose address no kernel has. So
				// the result names the network, but the address is not expected.
				assigned[inode] = assigned[inode].With(addrs)
			default:
				runtime[inode] = runtime[inode].With(addrs)
				for g := range addrs {
					mean(inode, g, f.workload.GetSource())
				}
			}
		}
	}
	for inode, addrs := range runtime {
		assigned[inode] = assigned[inode].Keep(addrs) // only for addresses that Multus does not name
	}
	there := map[*Sandbox]bool{}
	for _, s := range n.sandboxes() {
		there[s] = true
	}
	for inode, f := range byInode {
		if f.engine != nil {
			given := kernel.Networks{}
			for a, network := range f.engine.Given {
				given[kernel.InterfaceAddress{Addr: a}] = table.Network{Name: network}
			}
			assigned[inode] = assigned[inode].Keep(given)
		}
		if !there[f.sandbox] {
			continue // the runtime has stopped the sandbox and removes its addresses
		}
		addrs := kernel.Networks{}
		for _, ip := range f.sandbox.IPs {
			g := kernel.InterfaceAddress{Interface: PodInterface, Addr: ip}
			addrs[g] = table.Network{Name: Source}
			mean(inode, g, Source)
		}
		assigned[inode] = assigned[inode].Keep(addrs) // only for addresses that no CNI result names
	}
	return assigned, all
}

// walkAfter is the shortest time between two readings of all processes that something else than time demands.
const walkAfter = time.Second

// walk reads all processes; unless now is set, at most once in walkAfter. Otherwise a namespace that stays without a
// name would make each mount expensive.
func (n *Names) walk(now bool) {
	if wait := walkAfter - time.Since(n.walked); !now && wait > 0 {
		if !n.later {
			n.later = true
			time.AfterFunc(wait, n.Wake)
		}
		return
	}
	n.walked, n.later = time.Now(), false
	n.processes()
}

// anyEmpty reports whether a namespace had no process when all were last read, and may be found idle now.
func (n *Names) anyEmpty() bool {
	for _, t := range n.tenants {
		if !t.emptySince.IsZero() && !t.idle && time.Since(t.emptySince) >= t.idleAfter() {
			return true
		}
	}
	return false
}

// errNotNamespace is returned for a file that is not (yet) a namespace: `ip netns add`
// creates the file first and mounts the namespace over it later.
var errNotNamespace = errors.New("not a network namespace")

func namespaceInode(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Type != unix.NSFS_MAGIC {
		return 0, errNotNamespace
	}
	return inodeOf(path)
}

// adopt makes sure that the namespace at path has an nsid, unless the namespace is known.
func (n *Names) adopt(path string, inode uint64) {
	if n.kernel.Known(inode) {
		return
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		if table.Lack(err) != "" {
			n.lack = err
		}
		return // otherwise, it was removed or is not readable
	}
	// The namespace stays open until the mirror has it, and no longer. Until then, neither its
	// inode nor its nsid can be reused.
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != inode {
		return // replaced in between; the next search finds it
	}
	req, err := rtnetlink.Dial()
	if err != nil {
		n.lack = err
		return
	}
	defer req.Close()
	nsid, assigned, err := req.NSIDOf(fd)
	if err != nil {
		n.log.Debug("cannot assign a namespace id", "path", path, "error", err)
		return
	}
	n.kernel.Adopt(nsid, inode, assigned, n.unprivileged(fd))
}

// unprivileged reports whether an open network namespace belongs to a user namespace other than ours.
func (n *Names) unprivileged(fd int) bool {
	owner, err := unix.IoctlRetInt(fd, unix.NS_GET_USERNS)
	if err != nil {
		return false // that of a parent, which we may not open
	}
	defer func() { _ = unix.Close(owner) }()
	var of, own unix.Stat_t
	return unix.Fstat(owner, &of) == nil && unix.Stat("/proc/self/ns/user", &own) == nil && of.Ino != own.Ino
}

const notWatchedMounts = "named namespaces without a veth are found late, because mounts are not watched"

// watchMounts wakes the search whenever a mount is added or removed, because a named namespace
// is a mount. The kernel reports mounts by poll(2) on mountinfo.
func (n *Names) watchMounts(ctx context.Context) error {
	var mounts, r, w *os.File
	err := n.lacks.Until(ctx, notWatchedMounts, func() (err error) {
		if mounts == nil {
			if mounts, err = os.Open("/proc/self/mountinfo"); err != nil {
				return err
			}
		}
		r, w, err = os.Pipe()
		return err
	})
	defer func() { _ = mounts.Close() }()
	if err != nil {
		n.log.Warn(notWatchedMounts, "error", err)
		return nil
	}
	defer func() { _ = r.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer stop()
	fds := []unix.PollFd{
		{Fd: int32(mounts.Fd()), Events: unix.POLLPRI},
		{Fd: int32(r.Fd()), Events: unix.POLLIN},
	}
	n.Wake() // for mounts since the last search
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("poll mountinfo: %w", err)
		case err == nil:
			n.Wake()
			n.Mounted()
		}
	}
}
