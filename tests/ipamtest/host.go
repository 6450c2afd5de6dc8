package ipamtest

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/ipam"
)

// Host is an ipam.Host for the files of a test. Directories with an error in Hidden are not visible.
// Files and directories with an error in Broken cannot be opened.
type Host struct {
	Hidden, Broken map[string]error
	Interfaces     []ipam.Device
	Default        string // the interface of the default route
}

// NewHost returns a host on which everything can be read.
func NewHost() Host { return Host{Hidden: map[string]error{}, Broken: map[string]error{}} }

// ReadFile implements ipam.Host.
func (h Host) ReadFile(path string, follow bool, most int64) (data []byte, written time.Time, err error) {
	if err := h.Broken[path]; err != nil {
		return nil, written, err
	}
	info, err := os.Lstat(path)
	if err == nil && follow {
		info, err = os.Stat(path)
	}
	if err != nil {
		return nil, written, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, written, fmt.Errorf("not a regular file of at most %d bytes", most)
	}
	data, err = os.ReadFile(path)
	return data, info.ModTime(), err
}

// OpenDir implements ipam.Host.
func (h Host) OpenDir(path string) (*os.File, ipam.DirID, error) {
	if err := h.Broken[path]; err != nil {
		return nil, ipam.DirID{}, err
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, ipam.DirID{}, err
	}
	return dir, Identify(path), nil
}

// Visible implements ipam.Host.
func (h Host) Visible(dirs ...string) error {
	for _, dir := range dirs {
		if h.Hidden[dir] == nil {
			return nil
		}
	}
	if len(dirs) == 0 {
		return nil
	}
	return h.Hidden[dirs[0]]
}

// Devices implements ipam.Host.
func (h Host) Devices() []ipam.Device { return h.Interfaces }

// Uplink implements ipam.Host.
func (h Host) Uplink() string { return h.Default }

// Identify returns the ID of a directory; zero if it does not exist.
func Identify(path string) ipam.DirID {
	info, err := os.Stat(path)
	if err != nil {
		return ipam.DirID{}
	}
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st) != nil {
		return ipam.DirID{}
	}
	return ipam.DirID{Inode: info.Sys().(*syscall.Stat_t).Ino, Born: st.Btime.Sec*int64(time.Second) + int64(st.Btime.Nsec)}
}
