// Package allocations reads the records that IPAMs keep in files on this node, and each IPAM's
// name for the node. It watches the files; package ipam/registry lists the sources that parse them.
//
// It does not judge allocations and does not read Kubernetes objects.
package allocations

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Config says where to read. See agent.Config.
type Config struct {
	// Dirs are the directories of each IPAM, by name of the IPAM.
	Dirs       map[string][]string
	CNIConfig  []string
	CNIResults string
}

// Reader reads the files of all IPAMs. Inotify reports their changes. Nothing waits for a Reader.
type Reader struct {
	log           *slog.Logger
	table         *table.Table
	StatusChanged func()        // called when problems or the node's name have changed; set before run
	Renamed       func()        // called when containers of engines have changed; set before run
	mounted       chan struct{} // holds one token while a mount may have been added or removed
	ready         chan struct{} // closed once everything has been read once
	lost          atomic.Uint32 // number of times that events were lost
	status        status

	// Only the goroutine of Run uses these.
	watching
	due
	host      *host
	sources   []ipam.FileSource
	ipams     map[ipam.FileSource]string // the names of their IPAMs
	lacks     map[ipam.FileSource]error  // why sources could not be read just now, although their files may be fine
	names     []ipam.NameReader
	name      nodeName                                  // as last read
	published map[table.PoolKey]*ipwitnessv1.PoolRecord // the records in the table
}

// status is the state that other goroutines may read.
type status struct {
	mu         sync.Mutex
	health     Health
	containers []*ipam.Container
	looking    bool   // files are being read
	reading    string // the IPAM whose records are being read; empty for directories and the node's name
	late       bool   // that takes long
}

// Health says what a Reader has read.
type Health struct {
	// Unread are the IPAMs whose records have not been read yet, Unreadable those of which some records
	// cannot be read. Problems say why.
	Unread, Unreadable, Problems []string
	// NodeName is the name that an IPAM has for the node.
	NodeName ipam.NodeName
}

type nodeName struct {
	ipam.NodeName
	problems []string
}

// watching has the directories that inotify watches.
type watching struct {
	watcher   *fsnotify.Watcher
	noWatcher error                 // why there is no watcher
	unwatched error                 // why not everything is watched
	places    []string              // all directories with files of sources
	watches   map[string]ipam.Watch // of the places and of their parents
}

// due has the pending reads.
type due struct {
	all        bool // read everything that may have changed
	lostEvents bool // read everything, because events were lost
	soon       bool // read everything, after a short wait
	// rests has the sources that took long. Each is left alone for a while, with what is due of it.
	rests map[ipam.FileSource]*rest
}

// A rest of a source keeps one with large or damaged files from taking a core, and from holding up the others.
type rest struct {
	until time.Time
	due   bool // it would have been read
	all   bool // with everything that may have changed
	lost  bool // even without a sign of a change
}

const (
	// waitingEvents limits the queued events. A thousand pods that end cause about as many.
	waitingEvents = 1024
	// A source that takes longer than quick is left alone for restFor times as long.
	quick   = 100 * time.Millisecond
	restFor = 10
	// maxProblems limits the reported problems.
	maxProblems = 16
)

// New returns a Reader that puts the allocations into t. root says whether this process sees
// the node's files.
func New(log *slog.Logger, t *table.Table, cfg Config, root Root) *Reader {
	r := &Reader{
		log: log, table: t, StatusChanged: func() {}, Renamed: func() {},
		mounted: make(chan struct{}, 1), ready: make(chan struct{}),
		published: map[table.PoolKey]*ipwitnessv1.PoolRecord{}, ipams: map[ipam.FileSource]string{}, host: &host{root: root}, lacks: map[ipam.FileSource]error{},
		due: due{rests: map[ipam.FileSource]*rest{}},
	}
	for _, m := range registry.All {
		files := ipam.FilesConfig{Dirs: cfg.Dirs[m.Name], CNIConfig: cfg.CNIConfig, CNIResults: cfg.CNIResults}
		if m.Files != nil {
			s := m.Files(r.host, files)
			r.sources, r.ipams[s] = append(r.sources, s), m.Name
			r.status.health.Unread = append(r.status.health.Unread, m.Name)
		}
		if m.NodeName != nil {
			r.names = append(r.names, m.NodeName(r.host, files))
		}
	}
	return r
}

// CheckMounts makes the Reader check whether a mount has changed the directories at its paths.
func (r *Reader) CheckMounts() { table.Poke(r.mounted) }

// Await waits until everything has been read once, but for at most a second, because a file
// system may not answer.
func (r *Reader) Await(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-r.ready:
	case <-time.After(time.Second):
	}
}

// Run reads the files that change, until ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	events, errs := r.open()
	r.follow(ctx, events, errs)
	if r.watcher != nil {
		_ = r.watcher.Close()
	}
	return nil
}

// open opens inotify, and returns its events, and errors after events were lost. Without it, the files are only read at intervals.
func (r *Reader) open() (events <-chan fsnotify.Event, lost <-chan error) {
	if r.watcher, lost, r.noWatcher = table.NewWatcher(waitingEvents); r.noWatcher != nil {
		return nil, nil
	}
	return r.watcher.Events, lost
}

// follow reads everything, and then again after events and at intervals, until ctx ends.
func (r *Reader) follow(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	r.all = true
	r.look(time.Now())
	close(r.ready)
	timer := time.NewTimer(ipam.CheckEvery)
	defer timer.Stop()
	rested := time.NewTimer(ipam.CheckEvery)
	defer rested.Stop()
	for {
		wait := ipam.CheckEvery
		if r.soon {
			wait = ipam.Settled
		}
		timer.Reset(wait)
		rested.Stop()
		for _, s := range r.rests {
			if s.due { // one is enough: the others follow
				rested.Reset(time.Until(s.until))
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-rested.C:
		case <-timer.C:
			if r.all, r.soon = true, false; r.noWatcher != nil { // an instance may be free now
				events, errs = r.open()
			}
		case <-r.mounted:
			// A place may be another directory than when it was last watched.
			r.all = r.all || slices.ContainsFunc(r.places, func(place string) bool {
				id, _ := identify(unix.AT_FDCWD, place)
				return id != r.watches[place].ID
			})
		case e := <-events:
			r.event(e)
		case err := <-errs:
			r.loseEvents(err)
		}
		// Events that have arrived in the meantime are handled together.
		for waiting := true; waiting; {
			select {
			case e := <-events:
				r.event(e)
			case err := <-errs:
				r.loseEvents(err)
			default:
				waiting = false
			}
		}
		r.look(time.Now())
	}
}

// event records what an event requires to be read.
func (r *Reader) event(e fsnotify.Event) {
	removed := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	for _, s := range r.sources {
		if !s.Event(e.Name, removed) {
			r.all = r.all || concerns(e.Name, s.Places())
		}
	}
	r.all = r.all || concerns(e.Name, r.namePlaces())
}

// concerns reports whether a path is one of the places, something in one of them, or one of their
// parents.
func concerns(path string, places []string) bool {
	return slices.ContainsFunc(places, func(place string) bool { return filepath.Dir(path) == place || table.Within(place, path) })
}

// LostEvents returns the number of times that events were lost.
func (r *Reader) LostEvents() uint32 { return r.lost.Load() }

// loseEvents counts lost events and schedules everything to be read again.
func (r *Reader) loseEvents(err error) {
	r.lost.Add(1)
	r.log.Debug("events about IPAM were lost", "error", err)
	r.all, r.lostEvents = true, true
}

// look reads everything that is due, and puts it into the table.
func (r *Reader) look(now time.Time) {
	r.begin("")
	late := time.AfterFunc(ipam.CheckEvery, r.late)
	defer late.Stop()
	reads, took, lacks := make([]ipam.FileRead, len(r.sources)), make([]time.Duration, len(r.sources)), make([]error, len(r.sources))
	found := r.all
	for i, s := range r.sources {
		reads[i] = ipam.FileRead{Now: now, All: r.all, Lost: r.lostEvents || r.lacks[s] != nil}
		if had := r.rests[s]; had != nil {
			reads[i].All, reads[i].Lost = r.all || had.all, r.lostEvents || had.lost
			found = found || had.all && !now.Before(had.until)
		}
	}
	if found {
		r.watch() // before anything is read, so that later changes have events
	}
	for i, s := range r.sources {
		if reads[i].All && !r.resting(s, reads[i]) {
			began := r.begin(r.ipams[s])
			r.soon = s.Find(now) || r.soon
			took[i] = time.Since(began)
			lacks[i] = r.host.lacked()
		}
	}
	if found {
		before := r.name.NodeName
		r.name = nodeName{}
		r.begin("")
		for _, n := range r.names { // the first name that an IPAM has for the node is kept
			name, problem, again := n.Read(now)
			if r.soon = r.soon || again; problem != "" {
				r.name.problems = append(r.name.problems, problem)
			}
			if r.name.Name == "" {
				r.name.NodeName = name
			}
		}
		if r.host.lacked() != nil {
			r.name, r.soon = nodeName{NodeName: before}, true
		}
		r.watch()
	}
	for i, s := range r.sources {
		if reads[i].Watches = r.watches; r.resting(s, reads[i]) {
			continue
		}
		began := r.begin(r.ipams[s])
		again := s.Read(reads[i])
		delete(r.rests, s)
		err := cmp.Or(r.host.lacked(), lacks[i])
		if again && err == nil {
			err = r.lacks[s] // it has not decided yet
		}
		if r.soon = again || err != nil || r.soon; err != nil {
			r.lacks[s] = err
		} else {
			delete(r.lacks, s)
		}
		if took := took[i] + time.Since(began); took > quick {
			r.rests[s] = &rest{until: time.Now().Add(restFor * took)}
		}
	}
	r.all, r.lostEvents = false, false
	r.publish(now)
	r.publishStatus()
	var all []*ipam.Container
	for _, s := range r.sources {
		if s, ok := s.(ipam.ContainerSource); ok {
			all = append(all, s.Containers()...)
		}
	}
	r.status.mu.Lock()
	same := slices.Equal(all, r.status.containers)
	r.status.containers = all
	r.status.mu.Unlock()
	if !same {
		r.Renamed()
	}
}

// begin records what is read from now on.
func (r *Reader) begin(name string) time.Time {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	r.status.looking, r.status.reading = true, name
	return time.Now()
}

// late records that reading takes long: a file system may not answer, and then no source is read.
func (r *Reader) late() {
	r.status.mu.Lock()
	r.status.late = r.status.looking
	r.status.mu.Unlock()
	r.StatusChanged()
}

// resting reports whether a source is left alone, and notes what is due of it.
func (r *Reader) resting(s ipam.FileSource, read ipam.FileRead) bool {
	had := r.rests[s]
	if had == nil || !read.Now.Before(had.until) {
		return false
	}
	had.due, had.all, had.lost = true, read.All, read.Lost
	return true
}

// watch watches all places and their parents, so that the creation of a missing place has an
// event. It stops watching everything else.
func (r *Reader) watch() {
	r.places = r.namePlaces()
	for _, s := range r.sources {
		r.places = append(r.places, s.Places()...)
	}
	r.unwatched, r.watches = r.noWatcher, map[string]ipam.Watch{}
	watched := map[string]bool{}
	for _, place := range r.places {
		var way []string
		for dir := place; !watched[dir]; dir = filepath.Dir(dir) {
			watched[dir] = true
			way = append(way, dir)
		}
		for _, dir := range slices.Backward(way) { // parents first, so that the creation of children has events
			var w ipam.Watch
			w.ID, _ = identify(unix.AT_FDCWD, dir)
			w.Err = r.noWatcher
			if r.watcher != nil {
				w.Err = r.watcher.Add(dir)
			}
			if missing := errors.Is(w.Err, os.ErrNotExist) || errors.Is(w.Err, unix.ENOTDIR); missing {
				w.Err = nil
				watched[dir] = false
			}
			if w.Err != nil && !errors.Is(w.Err, os.ErrPermission) {
				r.unwatched = w.Err
			}
			r.watches[dir] = w
		}
	}
	if r.watcher == nil {
		return
	}
	for _, dir := range r.watcher.WatchList() {
		if !watched[dir] {
			_ = r.watcher.Remove(dir)
		}
	}
}

func (r *Reader) publish(now time.Time) {
	pools, kept := map[table.PoolKey]*ipam.FilePool{}, map[string]bool{}
	for _, s := range r.sources {
		if r.lacks[s] != nil { // what was read before still counts
			kept[r.ipams[s]] = true
			continue
		}
		for _, p := range s.Pools() {
			pools[table.PoolKey{IPAM: p.IPAM, Name: p.Name}] = p
		}
	}
	var changed, ended []table.PoolKey
	for k, p := range pools {
		if rec := poolRecord(p); len(p.Changes) > 0 || !proto.Equal(rec, r.published[k]) {
			r.published[k] = rec
			changed = append(changed, k)
		}
	}
	for k := range r.published {
		if pools[k] == nil && !kept[k.IPAM] {
			delete(r.published, k)
			ended = append(ended, k)
		}
	}
	if len(changed)+len(ended) == 0 {
		return
	}
	r.table.Update(func() {
		for _, k := range changed {
			r.table.Pools.Put(k, r.published[k], now)
			for addr, a := range pools[k].Changes {
				if at := (table.AllocationKey{Pool: k, Address: addr}); a == nil {
					r.table.Allocations.Remove(at, now)
				} else {
					r.table.Allocations.Put(at, allocationRecord(k, addr, a), now)
				}
			}
			clear(pools[k].Changes)
		}
		for _, k := range ended {
			for at := range r.table.Allocations.All() {
				if at.Pool == k {
					r.table.Allocations.Remove(at, now)
				}
			}
			r.table.Pools.Remove(k, now)
		}
	})
}

// publishStatus calls StatusChanged if the health has changed. It is called after the records were put
// into the table.
func (r *Reader) publishStatus() {
	problems := slices.Clone(r.name.problems)
	var unread, unreadable []string
	if r.unwatched != nil {
		problems = append(problems, fmt.Sprintf("cannot watch the IPAM directories for changes (%s), reading them every %s instead: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
			table.Short(r.unwatched), ipam.CheckEvery))
	}
	var lacking []string
	var lack error
	for _, s := range r.sources {
		if err := r.lacks[s]; err != nil {
			lacking, lack = append(lacking, r.ipams[s]), err
		} else if some := s.Problems(); len(some) > 0 {
			problems, unreadable = append(problems, some...), append(unreadable, r.ipams[s])
		}
	}
	if lack != nil {
		problems = append(problems, fmt.Sprintf("the records of %s cannot be read at the moment, so those that were read earlier still count (%s): %s", strings.Join(lacking, ", "), table.Short(lack), table.Lack(lack)))
	}
	if more := len(problems) - maxProblems; more > 0 {
		problems = append(problems[:maxProblems], fmt.Sprintf("and %d more problems with IPAM", more))
	}
	r.status.mu.Lock()
	before := &r.status.health
	for _, name := range before.Unread {
		if slices.Contains(lacking, name) {
			unread = append(unread, name)
		}
	}
	same := !r.status.late && slices.Equal(unread, before.Unread) && slices.Equal(problems, before.Problems) && r.name.NodeName == before.NodeName
	r.status.looking, r.status.late = false, false
	*before = Health{Unread: unread, Unreadable: unreadable, Problems: problems, NodeName: r.name.NodeName}
	r.status.mu.Unlock()
	if !same {
		r.StatusChanged()
	}
}

// Containers returns the running containers of engines. The caller must not change them.
func (r *Reader) Containers() []*ipam.Container {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	return r.status.containers
}

// namePlaces returns the directories of the files that have names for the node.
func (r *Reader) namePlaces() (places []string) {
	for _, n := range r.names {
		places = append(places, n.Places()...)
	}
	return places
}

// Health returns what has been read. The caller must not change it.
func (r *Reader) Health() Health {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	h := r.status.health
	if r.status.late {
		what := "the directories of IPAMs"
		if r.status.reading != "" {
			what = "the records of " + r.status.reading
		}
		h.Unread = slices.Sorted(maps.Values(r.ipams))
		h.Problems = append(slices.Clone(h.Problems), fmt.Sprintf("reading %s takes longer than %s, and no other records of IPAM are read meanwhile: check whether their file system answers", what, ipam.CheckEvery))
	}
	return h
}

func poolRecord(p *ipam.FilePool) *ipwitnessv1.PoolRecord {
	r := &ipwitnessv1.PoolRecord{
		Name: p.Name, Ipam: p.IPAM, Network: p.Network,
		State: ipwitnessv1.Pool_State(p.State), Problem: table.Printable(p.Problem), Lost: uint32(p.Lost),
		Plugin: p.Plugin, Device: p.Device, Routed: p.Routed, Config: table.Printable(p.Config), Server: p.Server.AsSlice(),
	}
	r.ClientId, _ = hex.DecodeString(p.ClientID)
	if !p.LostAt.IsZero() {
		r.LostAt = timestamppb.New(p.LostAt)
	}
	for _, g := range p.Gateways {
		r.Gateways = append(r.Gateways, g.AsSlice())
	}
	for _, a := range p.Ranges {
		r.Ranges = append(r.Ranges, &ipwitnessv1.AddressRange{First: a.First.AsSlice(), Last: a.Last.AsSlice()})
	}
	return r
}

// allocationRecord returns the record of an allocation. It omits texts that are too long, because
// an aggregator would reject the whole message.
func allocationRecord(pool table.PoolKey, addr netip.Addr, a *ipam.FileAllocation) *ipwitnessv1.AllocationRecord {
	r := &ipwitnessv1.AllocationRecord{
		Ipam: pool.IPAM, Pool: pool.Name, Address: addr.AsSlice(),
		ContainerId: table.Printable(a.ContainerID), Interface: table.Printable(a.Interface), AllocatedAt: timestamppb.New(a.AllocatedAt),
		Namespace: table.Printable(a.Namespace), Pod: table.Printable(a.Pod), Hostname: table.Printable(a.Hostname),
		FixedIn: table.Printable(a.FixedIn), ReservedFor: table.Printable(a.ReservedFor),
	}
	if !a.KeptUntil.IsZero() {
		r.KeptUntil = timestamppb.New(a.KeptUntil)
	}
	if !a.Expires.IsZero() {
		r.ExpiresAt = timestamppb.New(a.Expires)
	}
	if mac, err := net.ParseMAC(a.MAC); err == nil {
		r.Mac = mac
	}
	if mac, err := net.ParseMAC(a.FormerMAC); err == nil {
		r.FormerMac = mac
	}
	for _, text := range []*string{&r.ContainerId, &r.Namespace, &r.Pod, &r.Hostname, &r.FixedIn, &r.ReservedFor} {
		if len(*text) > table.MaxLength {
			*text = ""
		}
	}
	if len(r.Interface) >= unix.IFNAMSIZ {
		r.Interface = ""
	}
	return r
}
