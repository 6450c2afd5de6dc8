package workload

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/table"
)

// ProcDir is the path of a proc file system.
type ProcDir string

// Process is a process, as /proc/PID/stat describes it.
type Process struct {
	PID, Parent int
	Name        string
	Start       uint64 // in clock ticks since boot: distinguishes two processes with the same PID
	Ended       bool   // the process has ended, but its namespace may still exist
}

// TicksPerSecond is USER_HZ, the unit of starttime in /proc/PID/stat.
const TicksPerSecond = 100

// BootTicks returns the time since boot in clock ticks, or 0 if the clock cannot be read.
func BootTicks() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return uint64(t.Nano()) / (1e9 / TicksPerSecond)
}

// Path returns the path of a file of a process.
func (d ProcDir) Path(pid int, file string) string {
	return filepath.Join(string(d), strconv.Itoa(pid), file)
}

// Netns returns the inode of the network namespace that a process is in.
func (d ProcDir) Netns(pid int) (uint64, error) {
	var link [64]byte
	size, err := unix.Readlink(string(d)+"/"+strconv.Itoa(pid)+"/ns/net", link[:]) // net:[4026531840]
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(string(link[:size]), "net:["), "]"), 10, 64)
}

// read returns the content of a file that the kernel makes at once, by three system calls. os.ReadFile needs nine.
func (d ProcDir) read(pid int, file string) (string, error) {
	fd, err := unix.Open(d.Path(pid, file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var data []byte
	var piece [4096]byte
	for {
		n, err := unix.Read(fd, piece[:])
		if err != nil {
			return "", err
		}
		if data = append(data, piece[:n]...); n < len(piece) {
			return string(data), nil
		}
	}
}

// Name returns the name of a process, at most 15 bytes long; empty if it cannot be read.
func (d ProcDir) Name(pid int) string {
	data, _ := d.read(pid, "comm")
	return strings.TrimSuffix(data, "\n")
}

// vipProgram returns the name of a process, which may be one of vipPrograms; empty if its title shows that it is none.
func (d ProcDir) vipProgram(pid int) string {
	name := d.Name(pid)
	if title := vipTitles[name]; title != "" {
		if data, err := d.read(pid, "cmdline"); err != nil || !strings.HasPrefix(data, title) {
			return ""
		}
	}
	return name
}

// Process reads the status of a process.
func (d ProcDir) Process(pid int) (Process, error) {
	data, err := d.read(pid, "stat")
	if err != nil {
		return Process{}, err
	}
	return parseStat(data)
}

// Container returns the container that the cgroup of a process belongs to, or the
// zero value if there is none or it cannot be read.
func (d ProcDir) Container(pid int) Container {
	data, err := d.read(pid, "cgroup")
	if err != nil {
		return Container{}
	}
	return parseCgroup(data)
}

var errNoStat = errors.New("not the status of a process")

// parseStat parses /proc/PID/stat (proc_pid_stat(5)). The name of a process may
// contain any bytes, including blanks and parentheses.
func parseStat(data string) (Process, error) {
	first, rest, _ := strings.Cut(data, "(")
	end := strings.LastIndexByte(rest, ')')
	if end < 0 {
		return Process{}, errNoStat
	}
	fields := strings.Fields(rest[end+1:]) // starting with the third field
	if len(fields) < 20 {
		return Process{}, errNoStat
	}
	pid, e1 := strconv.Atoi(strings.TrimSpace(first))
	parent, e2 := strconv.Atoi(fields[1])
	start, e3 := strconv.ParseUint(fields[19], 10, 64)
	if err := errors.Join(e1, e2, e3); err != nil {
		return Process{}, fmt.Errorf("%w: %w", errNoStat, err)
	}
	return Process{PID: pid, Parent: parent, Name: table.Printable(rest[:end]), Start: start, Ended: fields[0] == "Z" || fields[0] == "X"}, nil
}
