package hostlocal

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// A directory has the allocations of one network, with a file for each address
// (plugins/ipam/host-local/backend/disk/backend.go of containernetworking/plugins). An event only
// says where to look. The state of the directory at that time counts.
type directory struct {
	ipam.FilePool // its name is the path of the directory
	host          ipam.Host
	found         bool       // it is, or was, in one of the configured directories
	refused       string     // why the configuration of the network has no effect, or only in part
	passed        cniNetwork // the configuration in results, if no file has one

	id        ipam.DirID // the directory that was read; zero if none was
	watch     ipam.Watch
	stale     bool // it must be read again
	allocated map[netip.Addr]*allocation
	unread    int             // number of address files that cannot be read
	touched   map[string]bool // files that have changed

	losses
}

// losses tracks removals from a directory.
type losses struct {
	marked   bool // host-local has used the directory: its lock or last address exists
	unmarked bool // the lock or the last address was removed
	used     bool // it has had an allocation
	loss     loss
	missing  map[netip.Addr]string // lost allocations that are not restored yet: containers by address
}

type allocation struct {
	ipam.FileAllocation
	unread bool
	since  time.Time // when it was first seen with this container
}

// loss is a run of removals. Host-local itself never removes the lock or the last address. If
// one of them is removed, and the run removes everything that existed before that, then all
// allocations were lost at once.
type loss struct {
	last          time.Time // time of the last removal
	removed       map[netip.Addr]*allocation
	first, latest time.Time // when the lock or the last address was removed
}

// sameRun is the maximum time between two removals of the same run. rm is faster than that,
// and the releases of individual pods are seldom that fast.
const sameRun = 500 * time.Millisecond

// maxFileSize limits the size of the file of an address.
const maxFileSize = 4096

func newDirectory(path string, host ipam.Host) *directory {
	d := &directory{FilePool: *ipam.NewFilePool(Name, path), host: host, allocated: map[netip.Addr]*allocation{}, touched: map[string]bool{}}
	d.Network = filepath.Base(path)
	return d
}

// configure applies the configuration of the network: the zero value if it has none.
func (d *directory) configure(n cniNetwork) {
	d.Wiring, d.Config, d.Ranges, d.Gateways, d.refused = n.wiring, n.file, n.ranges, n.gateways, n.refused
	if d.State == ipam.Known || d.State == ipam.Stale {
		d.Problem = d.refused
	}
}

// foreign reports whether the directory is one of /run/cni that host-local has not used: MicroShift has plugins in /run/cni/bin.
func (d *directory) foreign() bool {
	return strings.HasSuffix(filepath.Dir(d.Name), "/run/cni") && d.State == ipam.Known && d.Config == "" && !d.marked && !d.used && len(d.Ranges) == 0
}

// isMark reports whether host-local created the file for itself.
func isMark(name string) bool {
	return name == "lock" || strings.HasPrefix(name, "last_reserved_ip.")
}

// event records that a file of the directory has changed.
func (d *directory) event(name string, removed bool) {
	if !isMark(name) {
		if _, ok := addressOf(name); ok {
			d.touched[name] = true
		}
		return
	}
	d.marked, d.unmarked = d.marked || !removed, d.unmarked || removed
}

// addressOf returns the address that a file is named after. Host-local has only one way to
// write each address.
func addressOf(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(name)
	return a, err == nil && a.Zone() == "" && !a.Is4In6() && a.String() == name
}

// readTouched reads the files that have changed.
func (d *directory) readTouched(now time.Time) {
	for name := range d.touched {
		a, _ := addressOf(name)
		al, err := d.readAllocation(name)
		if errors.Is(err, os.ErrNotExist) {
			d.remove(a, now)
		} else {
			d.put(a, al, now)
		}
	}
	clear(d.touched)
}

// read reads the whole directory, which must be watched before.
func (d *directory) read(now time.Time) {
	d.stale = false
	clear(d.touched) // their files are read now
	if err := d.host.Visible(filepath.Dir(d.Name)); err != nil {
		d.fail(err, now)
		return
	}
	dir, id, err := d.host.OpenDir(d.Name)
	if err != nil {
		d.fail(err, now)
		return
	}
	defer func() { _ = dir.Close() }()
	if d.id != (ipam.DirID{}) && d.id != id {
		d.vanish(now) // another directory is at the path now
	}
	all := map[netip.Addr]*allocation{}
	marked := false
	for err == nil {
		var names []string
		names, err = dir.Readdirnames(1024)
		for _, name := range names {
			marked = marked || isMark(name)
			a, ok := addressOf(name)
			if !ok {
				continue
			}
			if al, err := d.readAllocation(name); !errors.Is(err, os.ErrNotExist) {
				all[a] = al
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		d.fail(err, now)
		return
	}
	d.unmarked = d.unmarked || d.marked && !marked
	for a := range d.allocated {
		if all[a] == nil {
			d.remove(a, now)
		}
	}
	for a, al := range all {
		d.put(a, al, now)
	}
	d.id, d.marked = id, marked
	d.stale = id != d.watch.ID // the directory was created since then: changes before it was watched had no events
	d.Succeed(d.refused, d.watch)
}

// same reports whether the directory that was read is still the one at the path.
func (d *directory) same() bool {
	dir, id, err := d.host.OpenDir(d.Name)
	if err != nil {
		return false
	}
	_ = dir.Close()
	return id == d.id
}

// fail records that the directory cannot be read.
func (d *directory) fail(err error, now time.Time) {
	switch {
	case errors.Is(err, os.ErrNotExist):
		d.vanish(now)
		d.State = ipam.Missing
		d.Problem = "the directory does not exist: no address was allocated there yet, or it was removed"
		if d.refused != "" && d.LostAt.IsZero() {
			d.State, d.Problem = ipam.Unreadable, d.refused
		}
		return
	case errors.Is(err, ipam.ErrOrphaned):
		d.vanish(now)
		err = ipam.ErrOrphaned
	default:
		for a := range d.allocated {
			d.drop(a) // it is no longer known, and does not count as lost
		}
		d.id, d.marked, d.loss = ipam.DirID{}, false, loss{}
	}
	d.State, d.Problem = ipam.Unreadable, ipam.Unreadably(err)
}

// vanish records that the directory was removed with everything in it.
func (d *directory) vanish(now time.Time) {
	if d.id == (ipam.DirID{}) {
		return
	}
	for a := range d.allocated {
		d.remove(a, now)
	}
	d.unmarked = true
	d.judgeLoss(now)
	d.id, d.marked = ipam.DirID{}, false
}

// put records the content of an address file.
func (d *directory) put(a netip.Addr, al *allocation, now time.Time) {
	al.Address, al.since = a, now
	d.used = true
	if old := d.allocated[a]; old != nil {
		if old.unread == al.unread && old.FileAllocation == al.FileAllocation {
			return
		}
		if old.ContainerID == al.ContainerID || old.ContainerID == "" || al.unread {
			al.since = old.since
			d.drop(a)
		} else {
			d.remove(a, now) // it was allocated again, to another container
		}
	}
	d.allocated[a] = al
	if al.unread {
		d.unread++
	}
	d.Changes[a] = &al.FileAllocation
	if was, lost := d.missing[a]; lost && (was == al.ContainerID || was == "") {
		// The file was restored, or rebuilt from the addresses of pods. If it was lost before
		// it could be read, any container counts as the previous one.
		if delete(d.missing, a); len(d.missing) == 0 {
			d.LostAt, d.Lost, d.missing = time.Time{}, 0, nil
		}
	}
}

// remove records that an address was released, or that its file was lost.
func (d *directory) remove(a netip.Addr, now time.Time) {
	if al := d.allocated[a]; al != nil {
		d.begin(now)
		d.loss.removed[a] = al
		d.drop(a)
	}
}

func (d *directory) drop(a netip.Addr) {
	if d.allocated[a].unread {
		d.unread--
	}
	delete(d.allocated, a)
	d.Changes[a] = nil
}

// anyUnread returns the file of the first address whose owner is not known.
func (d *directory) anyUnread() (path string) {
	var first netip.Addr
	for a, al := range d.allocated {
		if al.unread && (!first.IsValid() || a.Less(first)) {
			first, path = a, al.Location
		}
	}
	return path
}

// begin starts a run of removals, or continues the current one.
func (d *directory) begin(now time.Time) {
	if d.loss.removed == nil || now.Sub(d.loss.last) > sameRun {
		d.loss = loss{removed: map[netip.Addr]*allocation{}}
	}
	d.loss.last = now
}

// judgeLoss decides whether the current run of removals removed everything.
func (d *directory) judgeLoss(now time.Time) {
	if d.unmarked {
		d.begin(now)
		d.unmarked, d.loss.latest = false, now
		if d.loss.first.IsZero() {
			d.loss.first = now
		}
	}
	if len(d.loss.removed) == 0 || d.loss.latest.IsZero() || now.Sub(d.loss.last) > sameRun {
		return
	}
	oldest := now
	for _, al := range d.allocated {
		if al.since.Before(oldest) {
			oldest = al.since
		}
	}
	// The latest mark counts if allocations since the last loss were lost as well. The first
	// mark counts if a pod started while everything was being removed.
	for _, mark := range []time.Time{d.loss.latest, d.loss.first} {
		lost := map[netip.Addr]string{}
		for a, al := range d.loss.removed {
			if al.since.Before(mark) {
				lost[a] = al.ContainerID
			}
		}
		if !oldest.Before(mark) && len(lost) > 0 {
			d.LostAt, d.Lost, d.missing, d.loss = now, len(lost), lost, loss{}
			return
		}
	}
}

// readAllocation reads the file of an address. It returns an error only if there is no file. As
// long as any file has that name, host-local does not allocate the address again.
func (d *directory) readAllocation(name string) (*allocation, error) {
	path := filepath.Join(d.Name, name)
	data, written, err := d.host.ReadFile(path, false, maxFileSize)
	if errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	al := &allocation{unread: err != nil || bytes.IndexByte(data, 0) >= 0} // a file may have NULs after a loss of power
	if err != nil {
		info, err := os.Lstat(path)
		a, _ := addressOf(name)
		switch had := d.allocated[a]; {
		case errors.Is(err, os.ErrNotExist):
			return nil, err
		case err == nil:
			written = info.ModTime()
		case had != nil:
			written = had.AllocatedAt
		}
	}
	al.Location, al.AllocatedAt = path, written
	if !al.unread {
		al.ContainerID, al.Interface = parse(data)
	}
	return al, nil
}

// parse parses the file of an address. It has the container's ID and, since version 0.7 of the
// plugins, the interface on a second line.
func parse(data []byte) (container, iface string) {
	container, iface, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
	iface, _, _ = strings.Cut(iface, "\n")
	return strings.TrimSpace(container), strings.TrimSpace(iface)
}
