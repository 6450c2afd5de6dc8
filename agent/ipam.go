package agent

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

// ipam reads what IPAM says on this node: CNI's configurations, the directories in
// which host-local keeps what it has given, and the name that Calico has for the
// node. It hears of changes by inotify. Nothing waits for it.
type ipam struct {
	log           *slog.Logger
	table         *table.Table
	dirs          []string // the directories in them are host-local's
	nodenameFile  string
	root          files.Root
	statusChanged func()        // there is another problem or name
	mounted       chan struct{} // holds one token while a mount may have come or gone
	ready         chan struct{} // closed once the table has the first account

	// Of run alone.
	watcher   *fsnotify.Watcher
	noWatcher error // why there is none
	unwatched error // why not everything is watched
	confs     cniConfs
	hostLocal map[string]*hostLocal // by path
	places    map[string]fileID     // all directories that are looked at; zero: there was none
	lost      atomic.Uint32         // times that events were lost
	says      []string              // problems of configurations, and of the directories around
	calico    string                // the name that it has for the node
	all       bool                  // look at everything again
	allAnew   bool                  // and read it, for events were lost
	soon      bool                  // and do so again soon

	mu       sync.Mutex
	problems []string
	nodename string
}

const (
	// ipamEvery is how often it is looked whether everything is as it was: a mount
	// elsewhere, or a link, may have changed what is at a path without an event.
	ipamEvery = 15 * time.Second
	// ipamEvents is how many events may wait: a thousand pods that end.
	ipamEvents = 1024
	// maxIPAMProblems are told.
	maxIPAMProblems = 16
)

func newIPAM(log *slog.Logger, t *table.Table, cfg Config, root files.Root) *ipam {
	return &ipam{
		log:           log,
		table:         t,
		dirs:          cfg.IPAMDirs,
		nodenameFile:  cfg.CalicoNodename,
		root:          root,
		statusChanged: func() {},
		mounted:       make(chan struct{}, 1),
		ready:         make(chan struct{}),
		confs:         cniConfs{dirs: cfg.CNIConfig, root: root},
		hostLocal:     map[string]*hostLocal{},
	}
}

// lookAtMounts has it looked whether anything else is mounted somewhere.
func (i *ipam) lookAtMounts() { wake.Poke(i.mounted) }

// await waits until the table has the first account, but not for long: what is
// read may be on a file system that does not answer.
func (i *ipam) await(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-i.ready:
	case <-time.After(time.Second):
	}
}

// run keeps reading until ctx ends.
func (i *ipam) run(ctx context.Context) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w, err := fsnotify.NewBufferedWatcher(ipamEvents); err != nil {
		i.noWatcher = err
	} else {
		defer func() { _ = w.Close() }()
		i.watcher, events, errs = w, w.Events, w.Errors
	}
	i.all = true
	i.look(time.Now())
	close(i.ready)
	timer := time.NewTimer(ipamEvery)
	defer timer.Stop()
	for {
		wait := ipamEvery
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
		// What has come meanwhile is one account with it.
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

// event notes where to look.
func (i *ipam) event(e fsnotify.Event) {
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
		// One of them, or something in it, or on the way to it.
		if dir == place || files.Within(place, e.Name) {
			i.all = true
			return
		}
	}
}

// lostEvents has everything read again.
func (i *ipam) lostEvents(err error) {
	i.lost.Add(1)
	i.log.Debug("events about IPAM were lost", "error", err)
	i.all, i.allAnew = true, true
}

// look takes up what is there, and tells it.
func (i *ipam) look(now time.Time) {
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
		i.soon = i.soon || h.state != was && h.state == ipwitnessv1.Pool_MISSING // it may be more that goes
		if h.conf == nil && (!h.found || h.state == ipwitnessv1.Pool_MISSING && h.lostAt.IsZero()) {
			delete(i.hostLocal, dir)
			i.end(h, now)
		}
	}
	i.all, i.allAnew = false, false
	i.tell(now)
	i.tellStatus()
}

// lookForPlaces reads the configurations and finds the directories, and has all of
// them watched.
func (i *ipam) lookForPlaces(now time.Time) {
	i.watch() // before anything is read, so that what is missed is heard
	networks, problems, later := i.confs.read(now)
	i.soon = i.soon || later
	dirs := slices.Collect(maps.Keys(networks))
	if err := i.root.ReachAny(i.dirs); errors.Is(err, files.ErrNotMounted) {
		problems = append(problems, fmt.Sprintf("what host-local has given in %s is not known: %s", strings.Join(i.dirs, " and "), err))
	}
	for _, dir := range i.dirs {
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
		h.stale, h.found = true, slices.Contains(i.dirs, filepath.Dir(dir))
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

// forgetLost forgets the directory that was lost first and is not back, of those that
// no configuration names. It says whether there was one.
func (i *ipam) forgetLost(networks map[string]cniNetwork, now time.Time) bool {
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

// watch watches all places, and the way to each of them, so that one that is
// missing is heard when it comes; and nothing else any more.
func (i *ipam) watch() {
	places := append(slices.Concat(i.confs.dirs, i.dirs), filepath.Dir(i.nodenameFile))
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
		for _, dir := range slices.Backward(way) { // from above: what is made meanwhile is heard
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

// moved tells whether a place is another directory than when it was looked at.
func (i *ipam) moved() bool {
	for place, was := range i.places {
		if is, _ := identify(unix.AT_FDCWD, place); is != was {
			return true
		}
	}
	return false
}

// networkDirs gives the directories in one whose name may be that of a network. A
// missing one has none.
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

// tell puts all that has changed into the table.
func (i *ipam) tell(now time.Time) {
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

// end takes a directory out of the table.
func (i *ipam) end(h *hostLocal, now time.Time) {
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

// tellStatus has it told where there are other problems, or Calico has another
// name for the node.
func (i *ipam) tellStatus() {
	problems := slices.Clone(i.says)
	if i.unwatched != nil {
		problems = append(problems, fmt.Sprintf("changes of IPAM are not heard (%s), it is read every %s: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
			form.Short(i.unwatched), ipamEvery))
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
	if more := len(problems) - maxIPAMProblems; more > 0 {
		problems = append(problems[:maxIPAMProblems], fmt.Sprintf("and %d more problems with IPAM", more))
	}
	i.mu.Lock()
	same := slices.Equal(problems, i.problems) && i.calico == i.nodename
	i.problems, i.nodename = problems, i.calico
	i.mu.Unlock()
	if !same {
		i.statusChanged()
	}
}

// readNodename reads the name that Calico has for the node.
func (i *ipam) readNodename() (name, problem string) {
	const most = 253
	data, _, err := files.ReadRegular(i.nodenameFile, 0, files.MaxSmall)
	switch name = strings.TrimSpace(string(data)); {
	case errors.Is(err, os.ErrNotExist):
		return "", ""
	case err != nil:
		return "", fmt.Sprintf("the name that Calico has for this node is not known (%s): let the agent's user read it", form.Short(err))
	case len(name) > most || !utf8.ValidString(name):
		return "", fmt.Sprintf("%s has no name of a node: Calico books addresses for whatever it says: write the node's name there", i.nodenameFile)
	}
	return name, ""
}

// health gives what does not work, and Calico's name for the node.
func (i *ipam) health() (problems []string, nodename string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.problems), i.nodename
}
