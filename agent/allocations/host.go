package allocations

import (
	"cmp"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
)

// host implements ipam.Host.
type host struct {
	root Root
	// lack is an error that says nothing about a file, because a resource was exhausted.
	lack error
}

// note notes an error that says nothing about a file.
func (h *host) note(err error) {
	if table.Lack(err) != "" {
		h.lack = err
	}
}

// lacked returns the last error that was noted since it was called before.
func (h *host) lacked() (err error) {
	err, h.lack = h.lack, nil
	return err
}

// ReadFile implements ipam.Host.
func (h *host) ReadFile(path string, follow bool, most int64) (data []byte, written time.Time, err error) {
	flags := unix.O_NOFOLLOW
	if follow {
		flags = 0
	}
	data, written, err = table.ReadRegular(path, flags, most)
	h.note(err)
	return data, written, err
}

func (h *host) OpenDir(path string) (*os.File, ipam.DirID, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if Orphaned(path) {
		err = &os.PathError{Op: "read", Path: path, Err: ipam.ErrOrphaned} // it may exist, and is empty
	}
	var id ipam.DirID
	if err == nil {
		id, err = identify(int(dir.Fd()), "")
	}
	if err != nil {
		h.note(err)
		_ = dir.Close()
		return nil, id, err
	}
	return dir, id, nil
}

func (h *host) Visible(dirs ...string) error { return h.root.ReachAny(dirs) }

// Devices implements ipam.Host. It returns none if they cannot be listed.
func (h *host) Devices() (devices []ipam.Device) {
	conn, err := rtnetlink.Dial()
	if err != nil {
		h.note(err)
		return nil
	}
	defer conn.Close()
	links, err := conn.Links(rtnetlink.NoNSID)
	addresses, errAddresses := conn.Addresses(rtnetlink.NoNSID, 0)
	if err := cmp.Or(err, errAddresses); err != nil {
		h.note(err)
		return nil
	}
	for _, l := range links {
		d := ipam.Device{Index: int(l.Index), Name: l.Name, MAC: net.HardwareAddr(l.MAC).String()}
		for _, a := range addresses {
			if a.Index == l.Index {
				d.Prefixes = append(d.Prefixes, netip.PrefixFrom(a.Addr, int(a.PrefixLength)))
				if a.Flags&unix.IFA_F_PERMANENT == 0 {
					d.Temporary = append(d.Temporary, a.Addr)
				}
			}
		}
		devices = append(devices, d)
	}
	return devices
}

func (h *host) Uplink() string {
	conn, err := rtnetlink.Dial()
	if err != nil {
		h.note(err)
		return ""
	}
	defer conn.Close()
	index, err := conn.DefaultRoute()
	if err != nil {
		h.note(err)
		return ""
	}
	links, err := conn.Links(rtnetlink.NoNSID)
	h.note(err)
	if i := slices.IndexFunc(links, func(l rtnetlink.Link) bool { return l.Index == index }); i >= 0 {
		return links[i].Name
	}
	return ""
}

// identify returns the ID of the directory at a path, or of the one open as fd if the path is
// empty.
func identify(fd int, path string) (ipam.DirID, error) {
	flags := 0
	if path == "" {
		flags = unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, path, flags, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return ipam.DirID{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	id := ipam.DirID{Major: st.Dev_major, Minor: st.Dev_minor, Inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = st.Btime.Sec*int64(time.Second) + int64(st.Btime.Nsec)
	}
	return id, nil
}
