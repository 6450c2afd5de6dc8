// Package allocations reads the IPAM state on this node: CNI configurations, the files in
// which host-local keeps its allocations, and Calico's name for the node.
//
// It does not judge allocations and does not read Kubernetes objects.
package allocations

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"unicode/utf8"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/agent/files"
	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/wake"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Config says where to read. See agent.Config.
type Config struct {
	Dirs           []string // the parents of host-local's directories
	CNIConfig      []string
	CalicoNodename string
}

// Reader reads CNI configurations, the directories in which host-local keeps its allocations,
// and Calico's name for the node. Inotify reports their changes. Nothing waits for a Reader.
type Reader struct {
	log           *slog.Logger
	table         *table.Table
	cfg           Config
	root          files.Root
	StatusChanged func()        // called when problems or the name have changed; set before run
	mounted       chan struct{} // holds one token while a mount may have been added or removed
	ready         chan struct{} // closed once everything has been read once
	lost          atomic.Uint32 // number of times that events were lost
	status        status

	// Only the goroutine of Run uses these.
	watching
	due
	confs     cniConfs
	hostLocal map[string]*hostLocal // by path
	says      []string              // problems of configurations and of the parent directories
	calico    string                // Calico's name for the node
}

// status is the state that other goroutines may read.
type status struct {
	mu       sync.Mutex
	problems []string
	nodename string
}

// watching has the directories that inotify watches.
type watching struct {
	watcher   *fsnotify.Watcher
	noWatcher error             // why there is no watcher
	unwatched error             // why not everything is watched
	places    map[string]fileID // all directories to look at; zero for those that do not exist
}

// due has the pending reads.
type due struct {
	all     bool // read everything that may have changed
	allAnew bool // read everything, because events were lost
	soon    bool // read everything, after a short wait
}

const (
	// checkEvery is how often everything is checked: a mount or a link may have changed
	// the directory at a path without an event.
	checkEvery = 15 * time.Second
	// waitingEvents limits the queued events. A thousand pods that end cause about as many.
	waitingEvents = 1024
	// maxProblems limits the reported problems.
	maxProblems = 16
)

// New returns a Reader that puts the allocations into t. root says whether this process sees
// the node's files.
func New(log *slog.Logger, t *table.Table, cfg Config, root files.Root) *Reader {
	return &Reader{
		log:           log,
		table:         t,
		cfg:           cfg,
		root:          root,
		StatusChanged: func() {},
		mounted:       make(chan struct{}, 1),
		ready:         make(chan struct{}),
		confs:         cniConfs{dirs: cfg.CNIConfig, root: root},
		hostLocal:     map[string]*hostLocal{},
	}
}

// CheckMounts makes the Reader check whether a mount has changed the directories at its paths.
func (i *Reader) CheckMounts() { wake.Poke(i.mounted) }

// Await waits until everything has been read once, but for at most a second, because a file
// system may not answer.
func (i *Reader) Await(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-i.ready:
	case <-time.After(time.Second):
	}
}

// Run reads whatever changes, until ctx ends.
func (i *Reader) Run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w, err := fsnotify.NewBufferedWatcher(waitingEvents); err != nil {
		i.noWatcher = err
	} else {
		defer func() { _ = w.Close() }()
		i.watcher, events, errs = w, w.Events, w.Errors
	}
	i.all = true
	i.look(time.Now())
	close(i.ready)
	timer := time.NewTimer(checkEvery)
	defer timer.Stop()
	for {
		wait := checkEvery
		if i.soon {
			wait = settled
		}
		timer.Reset(wait)
		var now time.Time
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			now, i.all, i.soon = time.Now(), true, false
		case <-i.mounted:
			now = time.Now()
			i.all = i.all || i.moved()
		case e := <-events:
			now = time.Now()
			i.event(e)
		case err := <-errs:
			now = time.Now()
			i.lostEvents(err)
		}
		// Events that have arrived in the meantime are handled together.
		for waiting := true; waiting; {
			select {
			case e := <-events:
				i.event(e)
			case err := <-errs:
				i.lostEvents(err)
			default:
				waiting = false
			}
		}
		i.look(now)
	}
}

// event records what an event requires to be read.
func (i *Reader) event(e fsnotify.Event) {
	gone := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	dir, name := filepath.Split(e.Name)
	dir = filepath.Clean(dir)
	if h := i.hostLocal[dir]; h != nil {
		h.event(name, gone)
		return
	}
	if h := i.hostLocal[e.Name]; h != nil {
		i.all, h.stale = true, true
		return
	}
	for place := range i.places {
		// The directory itself, something in it, or one of its parents.
		if dir == place || files.Within(place, e.Name) {
			i.all = true
			return
		}
	}
}

// LostEvents returns the number of times that events were lost.
func (i *Reader) LostEvents() uint32 { return i.lost.Load() }

// lostEvents counts lost events and schedules everything to be read again.
func (i *Reader) lostEvents(err error) {
	i.lost.Add(1)
	i.log.Debug("events about IPAM were lost", "error", err)
	i.all, i.allAnew = true, true
}

// look reads everything that is due, and puts it into the table.
func (i *Reader) look(now time.Time) {
	if i.all {
		i.lookForPlaces(now)
	}
	room := maxGivenAll
	for _, h := range i.hostLocal {
		room -= len(h.given)
	}
	for dir, h := range i.hostLocal {
		had, was := len(h.given), h.state
		if h.stale || i.allAnew || i.all && (h.state != ipwitnessv1.Pool_KNOWN || h.unheard != nil || !h.same()) {
			h.read(room, now)
		} else if len(h.touched) > 0 {
			h.readTouched(room, now)
		}
		h.judgeLoss(now)
		room -= len(h.given) - had
		i.soon = i.soon || h.state != was && h.state == ipwitnessv1.Pool_MISSING // more may be about to disappear
		if h.conf == nil && (!h.found || h.state == ipwitnessv1.Pool_MISSING && h.lostAt.IsZero()) {
			delete(i.hostLocal, dir)
			i.end(h, now)
		}
	}
	i.all, i.allAnew = false, false
	i.tell(now)
	i.tellStatus()
}

// lookForPlaces reads the configurations, finds the directories and watches them.
func (i *Reader) lookForPlaces(now time.Time) {
	i.watch() // before anything is read, so that later changes have events
	networks, problems, later := i.confs.read(now)
	i.soon = i.soon || later
	dirs := slices.Collect(maps.Keys(networks))
	if err := i.root.ReachAny(i.cfg.Dirs); errors.Is(err, files.ErrNotMounted) {
		problems = append(problems, fmt.Sprintf("what host-local has given in %s is not known: %s", strings.Join(i.cfg.Dirs, " and "), err))
	}
	for _, dir := range i.cfg.Dirs {
		names, err := networkDirs(dir)
		if err != nil {
			problems = append(problems, fmt.Sprintf("what host-local has given is not known (%s): let the agent's user read that directory, or mount it",
				form.Short(err)))
		}
		for _, name := range names {
			dirs = append(dirs, filepath.Join(dir, name))
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if i.hostLocal[dir] != nil {
			continue
		}
		if len(i.hostLocal) >= maxHostLocal && !i.forgetLost(networks, now) {
			problems = append(problems, fmt.Sprintf("host-local has more than the %d directories that are looked at: remove those that are not used, such as %s, perhaps", maxHostLocal, dir))
			break
		}
		h := newHostLocal(dir, i.root)
		h.stale, h.found = true, slices.Contains(i.cfg.Dirs, filepath.Dir(dir))
		i.hostLocal[dir] = h
	}
	var problem string
	if i.calico, problem = i.readNodename(); problem != "" {
		problems = append(problems, problem)
	}
	i.says = problems
	for dir, h := range i.hostLocal {
		h.conf = nil
		if n, ok := networks[dir]; ok {
			h.conf = &n
		}
	}
	i.watch()
}

// forgetLost forgets a missing directory that no configuration names: the one that was lost
// first. It reports whether there was one.
func (i *Reader) forgetLost(networks map[string]cniNetwork, now time.Time) bool {
	var first *hostLocal
	for dir, h := range i.hostLocal {
		if _, named := networks[dir]; !named && h.state == ipwitnessv1.Pool_MISSING && (first == nil || h.lostAt.Before(first.lostAt)) {
			first = h
		}
	}
	if first == nil {
		return false
	}
	delete(i.hostLocal, first.path)
	i.end(first, now)
	return true
}

// watch watches all places and their parents, so that the creation of a missing place has an
// event. It stops watching everything else.
func (i *Reader) watch() {
	places := append(slices.Concat(i.confs.dirs, i.cfg.Dirs), filepath.Dir(i.cfg.CalicoNodename))
	places = slices.AppendSeq(places, maps.Keys(i.hostLocal))
	for _, env := range i.confs.envs {
		places = append(places, filepath.Dir(env))
	}
	i.unwatched = i.noWatcher
	watched := map[string]bool{}
	for _, place := range places {
		var way []string
		for dir := place; !watched[dir]; dir = filepath.Dir(dir) {
			watched[dir] = true
			way = append(way, dir)
		}
		for _, dir := range slices.Backward(way) { // parents first, so that the creation of children has events
			h := i.hostLocal[dir]
			if h != nil {
				h.heard, _ = identify(unix.AT_FDCWD, dir)
			}
			err := i.noWatcher
			if i.watcher != nil {
				err = i.watcher.Add(dir)
			}
			if missing := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR); missing {
				err = nil
				watched[dir] = false
			}
			if h != nil {
				h.unheard = err
			}
			if err != nil && !errors.Is(err, os.ErrPermission) {
				i.unwatched = err
			}
		}
	}
	i.places = make(map[string]fileID, len(places))
	for _, place := range places {
		i.places[place], _ = identify(unix.AT_FDCWD, place)
	}
	if i.watcher == nil {
		return
	}
	for _, dir := range i.watcher.WatchList() {
		if !watched[dir] {
			_ = i.watcher.Remove(dir)
		}
	}
}

// moved reports whether a place is another directory than when it was last looked at.
func (i *Reader) moved() bool {
	for place, was := range i.places {
		if is, _ := identify(unix.AT_FDCWD, place); is != was {
			return true
		}
	}
	return false
}

// networkDirs returns the subdirectories whose names are valid network names. A missing
// directory has none.
func networkDirs(path string) (names []string, err error) {
	const most = 4096
	d, err := os.Open(path)
	if err == nil {
		defer func() { _ = d.Close() }()
	}
	switch {
	case files.Orphaned(path):
		return nil, &os.PathError{Op: "read", Path: path, Err: files.ErrOrphaned}
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	entries, err := d.ReadDir(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	for _, e := range entries {
		if e.IsDir() && form.IsNetworkName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// tell puts everything that has changed into the table.
func (i *Reader) tell(now time.Time) {
	var changed []*hostLocal
	for _, h := range i.hostLocal {
		if r := h.record(); len(h.changes) > 0 || !proto.Equal(r, h.told) {
			h.told = r
			changed = append(changed, h)
		}
	}
	if len(changed) == 0 {
		return
	}
	i.table.Update(func() {
		for _, h := range changed {
			pool := table.PoolKey{IPAM: hostLocalName, Name: h.path}
			i.table.Pools.Put(pool, h.told, now)
			for a, r := range h.changes {
				if k := (table.AllocationKey{Pool: pool, Address: a}); r == nil {
					i.table.Allocations.Remove(k, now)
				} else {
					i.table.Allocations.Put(k, r, now)
				}
			}
			h.changes = map[netip.Addr]*ipwitnessv1.AllocationRecord{}
		}
	})
}

// end removes a directory from the table.
func (i *Reader) end(h *hostLocal, now time.Time) {
	if h.told == nil {
		return
	}
	for a := range h.given {
		h.drop(a)
	}
	i.table.Update(func() {
		pool := table.PoolKey{IPAM: hostLocalName, Name: h.path}
		for a := range h.changes {
			i.table.Allocations.Remove(table.AllocationKey{Pool: pool, Address: a}, now)
		}
		i.table.Pools.Remove(pool, now)
	})
}

// tellStatus calls StatusChanged if the problems or Calico's name for the node have changed.
func (i *Reader) tellStatus() {
	problems := slices.Clone(i.says)
	if i.unwatched != nil {
		problems = append(problems, fmt.Sprintf("changes of IPAM are not heard (%s), it is read every %s: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
			form.Short(i.unwatched), checkEvery))
	}
	for _, dir := range slices.Sorted(maps.Keys(i.hostLocal)) {
		h := i.hostLocal[dir]
		if h.state == ipwitnessv1.Pool_UNREADABLE {
			problems = append(problems, fmt.Sprintf("what host-local has given in %s is not known: %s", dir, h.problem))
		}
		if h.unread > 0 {
			problems = append(problems, fmt.Sprintf("whom host-local has given %d addresses in %s is not known, for their files cannot be read, or are none: run the agent as root", h.unread, dir))
		}
	}
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems], fmt.Sprintf("and %d more problems with IPAM", more))
	}
	i.status.mu.Lock()
	same := slices.Equal(problems, i.status.problems) && i.calico == i.status.nodename
	i.status.problems, i.status.nodename = problems, i.calico
	i.status.mu.Unlock()
	if !same {
		i.StatusChanged()
	}
}

// readNodename reads Calico's name for the node.
func (i *Reader) readNodename() (name, problem string) {
	const most = 253
	data, _, err := files.ReadRegular(i.cfg.CalicoNodename, 0, files.MaxSmall)
	switch name = strings.TrimSpace(string(data)); {
	case errors.Is(err, os.ErrNotExist):
		return "", ""
	case err != nil:
		return "", fmt.Sprintf("the name that Calico has for this node is not known (%s): let the agent's user read it", form.Short(err))
	case len(name) > most || !utf8.ValidString(name):
		return "", fmt.Sprintf("%s has no node name, and Calico allocates addresses to the node that this file names: write the name of the node into it", i.cfg.CalicoNodename)
	}
	return name, ""
}

// Health returns the problems, and Calico's name for the node.
func (i *Reader) Health() (problems []string, nodename string) {
	i.status.mu.Lock()
	defer i.status.mu.Unlock()
	return slices.Clone(i.status.problems), i.status.nodename
}
