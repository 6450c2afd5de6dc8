package agent

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

// hostLocal is one directory in which host-local keeps what it has given: a file
// for each address (plugins/ipam/host-local/backend/disk/backend.go of
// containernetworking/plugins). An event only says where to look: what counts is
// what is there then.
type hostLocal struct {
	path    string
	root    files.Root
	conf    *cniNetwork // nil: no configuration names it
	found   bool        // it is, or was, where such directories are looked for
	state   ipwitnessv1.Pool_State
	problem string

	id      fileID // of the directory that was read; zero: none was
	heard   fileID // of the one that was there just before it was watched; zero: none was
	stale   bool   // it is to be read anew
	unheard error  // why its changes are not heard
	marked  bool   // host-local has been here: its lock or last address is
	given   map[netip.Addr]*givenAddr
	unread  int // files of addresses that cannot be read

	loss     loss
	unmarked bool // the lock or the last address went away
	lostAt   time.Time
	lost     int
	back     map[netip.Addr]string // what was lost and is not back: containers by address

	touched map[string]bool // files that something happened to
	told    *ipwitnessv1.PoolRecord
	changes map[netip.Addr]*ipwitnessv1.AllocationRecord // to be told; nil: given back
}

// fileID tells directories apart, also where one has the inode of one that was
// removed before.
type fileID struct {
	major, minor uint32
	inode        uint64
	born         unix.StatxTimestamp // zero where the file system does not know
}

// givenAddr is an address that was given.
type givenAddr struct {
	record *ipwitnessv1.AllocationRecord
	unread bool
	since  time.Time // when it was first seen with this container
}

// loss follows a run of removals. All allocations were lost at once where a run
// takes all that there were before the lock or the last address went away:
// host-local never removes those.
type loss struct {
	last          time.Time // when anything went away
	removed       map[netip.Addr]*givenAddr
	first, latest time.Time // when the lock or the last address went away
}

// sameRun is how long after one removal another is of the same run: rm is faster,
// and what gives back addresses of one pod after the other seldom is.
const sameRun = 500 * time.Millisecond

const (
	// maxHostLocal is how many directories are looked at, and maxGiven how many
	// addresses in each: all of an IPv4 /16. maxGivenAll is how many in all of them,
	// and maxGivenFile how long each file may be.
	maxHostLocal = 256
	maxGiven     = 65536
	maxGivenAll  = 2 * maxGiven
	maxGivenFile = 4096
)

func newHostLocal(path string, root files.Root) *hostLocal {
	return &hostLocal{
		path: path, root: root, given: map[netip.Addr]*givenAddr{}, touched: map[string]bool{},
		changes: map[netip.Addr]*ipwitnessv1.AllocationRecord{},
	}
}

// isMark tells whether host-local made the file for itself.
func isMark(name string) bool {
	return name == "lock" || strings.HasPrefix(name, "last_reserved_ip.")
}

// event notes that something happened to a file of the directory.
func (h *hostLocal) event(name string, removed bool) {
	if !isMark(name) {
		if _, ok := addressOf(name); ok {
			h.touched[name] = true
		}
		return
	}
	h.unmarked = h.unmarked || removed
}

// addressOf gives the address that a file is named after. Host-local knows one by
// one name only.
func addressOf(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && !a.Is4In6() && a.String() == name
}

// readTouched reads the files that something happened to.
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
			h.stale = true // as one that is too large
		}
	}
	clear(h.touched)
}

// read reads the whole directory. The caller has it watched before.
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
		h.vanish(now) // it is another one
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
	h.stale = id != h.heard // made since: what comes before it is watched is not heard
	h.state, h.problem = ipwitnessv1.Pool_KNOWN, ""
	switch {
	case full:
		h.state = ipwitnessv1.Pool_UNREADABLE
		h.problem = fmt.Sprintf("it has more than the %d addresses that are looked at (%d in all such directories): remove those that no pod has",
			maxGiven, maxGivenAll)
	case h.unheard != nil:
		h.state = ipwitnessv1.Pool_STALE
		h.problem = fmt.Sprintf("changes of it are not heard (%s), it is read every %s: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances",
			form.Short(h.unheard), ipamEvery)
	}
}

// identify says which directory is at a path, or behind a descriptor.
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

// same tells whether what was read is what is there now.
func (h *hostLocal) same() bool {
	id, err := identify(unix.AT_FDCWD, h.path)
	return err == nil && id == h.id
}

// fail takes up that the directory cannot be read.
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

// vanish takes up that the directory is gone with all that was in it.
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

// forget drops what is not known any more. It is not lost.
func (h *hostLocal) forget() {
	for a := range h.given {
		h.drop(a)
	}
	h.id, h.marked, h.loss = fileID{}, false, loss{}
}

// put takes up what the file of an address says.
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
			h.remove(a, now) // to be given to another one
		}
	}
	h.given[a] = g
	if g.unread {
		h.unread++
	}
	h.changes[a] = g.record
	if was, lost := h.back[a]; lost && (was == container || was == "") {
		// It was moved back, or written anew from what the pods have. Of a file that was
		// lost before its content was read nobody can tell.
		if delete(h.back, a); len(h.back) == 0 {
			h.lostAt, h.lost, h.back = time.Time{}, 0, nil
		}
	}
}

// remove takes up that an address was given back, or that its file was lost.
func (h *hostLocal) remove(a netip.Addr, now time.Time) {
	if g := h.given[a]; g != nil {
		h.begin(now)
		h.loss.removed[a] = g
		h.drop(a)
	}
}

func (h *hostLocal) drop(a netip.Addr) {
	if h.given[a].unread {
		h.unread--
	}
	delete(h.given, a)
	h.changes[a] = nil
}

// begin begins a run of removals, or goes on with the present one.
func (h *hostLocal) begin(now time.Time) {
	if h.loss.removed == nil || now.Sub(h.loss.last) > sameRun {
		h.loss = loss{removed: map[netip.Addr]*givenAddr{}}
	}
	h.loss.last = now
}

// judgeLoss says whether the present run of removals took everything.
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
	// The latest, where what was given since the last loss is lost, too; the first,
	// where a pod starts while all is being removed.
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

// record says what the directory is now.
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

// readGiven reads the file of an address. It gives an error only where there is
// none: host-local gives an address to nobody else, whatever is there by its name.
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

// parseGiven reads the content of an address's file: the container's id and, since
// version 0.7 of the plugins, the interface in a second line.
func parseGiven(data []byte) (container, iface string) {
	container, iface, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
	iface, _, _ = strings.Cut(iface, "\n")
	container, iface = form.Printable(strings.TrimSpace(container)), form.Printable(strings.TrimSpace(iface))
	if len(container) > form.MaxLength {
		container = "" // an aggregator would refuse all that the node tells
	}
	if len(iface) >= unix.IFNAMSIZ {
		iface = ""
	}
	return container, iface
}
