package allocations

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/files"
	"github.com/ipwitness/ipwitness/agent/form"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A hostLocal is a directory in which host-local keeps its allocations, with a file for each
// address (plugins/ipam/host-local/backend/disk/backend.go of containernetworking/plugins). An
// event only says where to look. The state of the directory at that time counts.
type hostLocal struct {
	path    string
	root    files.Root
	conf    *cniNetwork // nil if no configuration names it
	found   bool        // it is, or was, in one of the configured directories
	state   ipwitnessv1.Pool_State
	problem string

	id      fileID // the directory that was read; zero if none was
	heard   fileID // the directory just before it was watched; zero if none was
	unheard error  // why its changes are not received
	stale   bool   // it must be read again
	given   map[netip.Addr]*givenAddr
	unread  int             // number of address files that cannot be read
	touched map[string]bool // files that have changed

	losses
	pending
}

// pending has the changes that are not in the table yet.
type pending struct {
	told    *ipwitnessv1.PoolRecord                      // the record in the table
	changes map[netip.Addr]*ipwitnessv1.AllocationRecord // nil: released
}

// losses tracks removals from a directory.
type losses struct {
	marked   bool // host-local has used the directory: its lock or last address exists
	unmarked bool // the lock or the last address was removed
	loss     loss
	lostAt   time.Time
	lost     int
	back     map[netip.Addr]string // lost allocations that are not restored yet: containers by address
}

// fileID identifies a directory. A directory that reuses the inode of a removed one has
// another ID.
type fileID struct {
	major, minor uint32
	inode        uint64
	born         unix.StatxTimestamp // zero if the file system does not record it
}

// givenAddr is an allocated address.
type givenAddr struct {
	record *ipwitnessv1.AllocationRecord
	unread bool
	since  time.Time // when it was first seen with this container
}

// loss is a run of removals. Host-local itself never removes the lock or the last address. If
// one of them is removed, and the run removes everything that existed before that, then all
// allocations were lost at once.
type loss struct {
	last          time.Time // time of the last removal
	removed       map[netip.Addr]*givenAddr
	first, latest time.Time // when the lock or the last address was removed
}

// sameRun is the maximum time between two removals of the same run. rm is faster than that,
// and the releases of individual pods are seldom that fast.
const sameRun = 500 * time.Millisecond

const (
	// maxHostLocal limits the directories that are read, and maxGiven the addresses in each:
	// all of an IPv4 /16. maxGivenAll limits the addresses in all directories, and
	// maxGivenFile the size of each file.
	maxHostLocal = 256
	maxGiven     = 65536
	maxGivenAll  = 2 * maxGiven
	maxGivenFile = 4096
)

func newHostLocal(path string, root files.Root) *hostLocal {
	return &hostLocal{
		path: path, root: root, given: map[netip.Addr]*givenAddr{}, touched: map[string]bool{},
		pending: pending{changes: map[netip.Addr]*ipwitnessv1.AllocationRecord{}},
	}
}

// isMark reports whether host-local created the file for itself.
func isMark(name string) bool {
	return name == "lock" || strings.HasPrefix(name, "last_reserved_ip.")
}

// event records that a file of the directory has changed.
func (h *hostLocal) event(name string, removed bool) {
	if !isMark(name) {
		if _, ok := addressOf(name); ok {
			h.touched[name] = true
		}
		return
	}
	h.unmarked = h.unmarked || removed
}

// addressOf returns the address that a file is named after. Host-local has only one way to
// write each address.
func addressOf(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && !a.Is4In6() && a.String() == name
}

// readTouched reads the files that have changed.
func (h *hostLocal) readTouched(room int, now time.Time) {
	for name := range h.touched {
		a, _ := addressOf(name)
		g, err := readGiven(filepath.Join(h.path, name))
		switch _, known := h.given[a]; {
		case errors.Is(err, os.ErrNotExist):
			h.remove(a, now)
		case known || len(h.given) < maxGiven && room > 0:
			if !known {
				room--
			}
			h.put(a, g, now)
		default:
			h.stale = true // handled like a directory that is too large
		}
	}
	clear(h.touched)
}

// read reads the whole directory, which must be watched before.
func (h *hostLocal) read(room int, now time.Time) {
	h.stale = false
	clear(h.touched)
	if err := h.root.Reach(filepath.Dir(h.path)); errors.Is(err, files.ErrNotMounted) {
		h.fail(err, now)
		return
	}
	d, err := os.OpenFile(h.path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		h.fail(err, now)
		return
	}
	defer func() { _ = d.Close() }()
	id, err := identify(int(d.Fd()), "")
	if err != nil {
		h.fail(err, now)
		return
	}
	if h.id != (fileID{}) && h.id != id {
		h.vanish(now) // another directory is at the path now
	}
	all := map[netip.Addr]*givenAddr{}
	marked, full := false, false
	for err == nil && !full {
		var names []string
		names, err = d.Readdirnames(1024)
		for _, name := range names {
			marked = marked || isMark(name)
			a, ok := addressOf(name)
			if !ok {
				continue
			}
			if full = len(all) >= min(maxGiven, room+len(h.given)); full {
				break
			}
			if g, err := readGiven(filepath.Join(h.path, name)); !errors.Is(err, os.ErrNotExist) {
				all[a] = g
			}
		}
	}
	if !full && !errors.Is(err, io.EOF) {
		h.fail(err, now)
		return
	}
	h.unmarked = h.unmarked || h.marked && !marked && !full
	for a := range h.given {
		if all[a] == nil {
			h.remove(a, now)
		}
	}
	for a, g := range all {
		h.put(a, g, now)
	}
	h.id, h.marked = id, marked
	h.stale = id != h.heard // the directory was created since then: changes before it was watched had no events
	h.state, h.problem = ipwitnessv1.Pool_KNOWN, ""
	switch {
	case full:
		h.state = ipwitnessv1.Pool_UNREADABLE
		h.problem = fmt.Sprintf("it has more than the %d addresses that are looked at (%d in all such directories): remove those that no pod has",
			maxGiven, maxGivenAll)
	case h.unheard != nil:
		h.state = ipwitnessv1.Pool_STALE
		h.problem = fmt.Sprintf("changes of it are not heard (%s), it is read every %s: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
			form.Short(h.unheard), checkEvery)
	}
}

// identify returns the ID of the directory at a path, or of the one open as fd if the path is
// empty.
func identify(fd int, path string) (fileID, error) {
	flags := 0
	if path == "" {
		flags = unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, path, flags, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return fileID{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	id := fileID{st.Dev_major, st.Dev_minor, st.Ino, unix.StatxTimestamp{}}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime
	}
	return id, nil
}

// same reports whether the directory that was read is still the one at the path.
func (h *hostLocal) same() bool {
	id, err := identify(unix.AT_FDCWD, h.path)
	return err == nil && id == h.id
}

// fail records that the directory cannot be read.
func (h *hostLocal) fail(err error, now time.Time) {
	if errors.Is(err, os.ErrNotExist) && !files.Orphaned(h.path) {
		h.vanish(now)
		h.state = ipwitnessv1.Pool_MISSING
		h.problem = "there is no such directory: no pod was given an address there yet, or it was removed"
		return
	}
	if files.Orphaned(h.path) {
		h.vanish(now)
		err = files.ErrOrphaned
	} else {
		h.forget()
	}
	h.state = ipwitnessv1.Pool_UNREADABLE
	if h.problem = form.OneLine(err); errors.Is(err, os.ErrPermission) {
		h.problem += ": let the agent's user read it"
	}
}

// vanish records that the directory was removed with everything in it.
func (h *hostLocal) vanish(now time.Time) {
	if h.id == (fileID{}) {
		return
	}
	for a := range h.given {
		h.remove(a, now)
	}
	h.unmarked = true
	h.judgeLoss(now)
	h.id, h.marked = fileID{}, false
}

// forget drops allocations that are no longer known, without counting them as lost.
func (h *hostLocal) forget() {
	for a := range h.given {
		h.drop(a)
	}
	h.id, h.marked, h.loss = fileID{}, false, loss{}
}

// put records the content of an address file.
func (h *hostLocal) put(a netip.Addr, g *givenAddr, now time.Time) {
	g.record.Ipam, g.record.Pool, g.record.Address = hostLocalName, h.path, a.AsSlice()
	g.since = now
	container := g.record.GetContainerId()
	if old := h.given[a]; old != nil {
		if old.unread == g.unread && proto.Equal(old.record, g.record) {
			return
		}
		if was := old.record.GetContainerId(); was == container || was == "" {
			g.since = old.since
			h.drop(a)
		} else {
			h.remove(a, now) // it was allocated again, to another container
		}
	}
	h.given[a] = g
	if g.unread {
		h.unread++
	}
	h.changes[a] = g.record
	if was, lost := h.back[a]; lost && (was == container || was == "") {
		// The file was restored, or rebuilt from the addresses of pods. If it was lost before
		// it could be read, any container counts as the previous one.
		if delete(h.back, a); len(h.back) == 0 {
			h.lostAt, h.lost, h.back = time.Time{}, 0, nil
		}
	}
}

// remove records that an address was released, or that its file was lost.
func (h *hostLocal) remove(a netip.Addr, now time.Time) {
	if g := h.given[a]; g != nil {
		h.begin(now)
		h.loss.removed[a] = g
		h.drop(a)
	}
}

// drop removes an address.
func (h *hostLocal) drop(a netip.Addr) {
	if h.given[a].unread {
		h.unread--
	}
	delete(h.given, a)
	h.changes[a] = nil
}

// begin starts a run of removals, or continues the current one.
func (h *hostLocal) begin(now time.Time) {
	if h.loss.removed == nil || now.Sub(h.loss.last) > sameRun {
		h.loss = loss{removed: map[netip.Addr]*givenAddr{}}
	}
	h.loss.last = now
}

// judgeLoss decides whether the current run of removals removed everything.
func (h *hostLocal) judgeLoss(now time.Time) {
	if h.unmarked {
		h.begin(now)
		h.unmarked, h.loss.latest = false, now
		if h.loss.first.IsZero() {
			h.loss.first = now
		}
	}
	if len(h.loss.removed) == 0 || h.loss.latest.IsZero() || now.Sub(h.loss.last) > sameRun {
		return
	}
	oldest := now
	for _, g := range h.given {
		if g.since.Before(oldest) {
			oldest = g.since
		}
	}
	// The latest mark counts if allocations since the last loss were lost as well. The first
	// mark counts if a pod started while everything was being removed.
	for _, mark := range []time.Time{h.loss.latest, h.loss.first} {
		lost := map[netip.Addr]string{}
		for a, g := range h.loss.removed {
			if g.since.Before(mark) {
				lost[a] = g.record.GetContainerId()
			}
		}
		if !oldest.Before(mark) && len(lost) > 0 {
			h.lostAt, h.lost, h.back, h.loss = now, len(lost), lost, loss{}
			return
		}
	}
}

// record returns the record of the directory.
func (h *hostLocal) record() *ipwitnessv1.PoolRecord {
	r := &ipwitnessv1.PoolRecord{
		Name: h.path, Ipam: hostLocalName, Network: filepath.Base(h.path),
		State: h.state, Problem: h.problem, Lost: uint32(h.lost),
	}
	if !h.lostAt.IsZero() {
		r.LostAt = timestamppb.New(h.lostAt)
	}
	if c := h.conf; c != nil {
		r.Plugin, r.Device, r.Routed, r.Config = c.plugin, c.device, c.routed, c.file
		for _, g := range c.gateways {
			r.Gateways = append(r.Gateways, g.AsSlice())
		}
		for _, a := range c.ranges {
			r.Ranges = append(r.Ranges, &ipwitnessv1.AddressRange{First: a.first.AsSlice(), Last: a.last.AsSlice()})
		}
	}
	return r
}

// readGiven reads the file of an address. It returns an error only if there is no file. As
// long as any file has that name, host-local does not allocate the address again.
func readGiven(path string) (*givenAddr, error) {
	g := &givenAddr{record: &ipwitnessv1.AllocationRecord{}}
	data, written, err := files.ReadRegular(path, unix.O_NOFOLLOW, maxGivenFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		g.unread = true
		info, err := os.Lstat(path)
		if err != nil {
			return nil, os.ErrNotExist
		}
		written = info.ModTime()
	}
	g.record.ContainerId, g.record.Interface = parseGiven(data)
	g.record.AllocatedAt = timestamppb.New(written)
	return g, nil
}

// parseGiven parses the file of an address. It has the container's ID and, since version 0.7
// of the plugins, the interface on a second line.
func parseGiven(data []byte) (container, iface string) {
	container, iface, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
	iface, _, _ = strings.Cut(iface, "\n")
	container, iface = form.Printable(strings.TrimSpace(container)), form.Printable(strings.TrimSpace(iface))
	if len(container) > form.MaxLength {
		container = "" // an aggregator would reject the whole message
	}
	if len(iface) >= unix.IFNAMSIZ {
		iface = ""
	}
	return container, iface
}
