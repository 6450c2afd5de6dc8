package ipam

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A FileSource reads the records that an IPAM keeps in files on the node. A driver watches the
// places of the source, and calls its methods one at a time:
//
//	Places, Find, Places, Read, Pools, Problems
//
// at the start, after events that the source does not handle itself, and every CheckEvery. After
// other events, it starts with Read.
type FileSource interface {
	// Places returns the directories with files that the source reads. They need not exist.
	Places() []string
	// Find looks for places, and reads the files that lead to them. It must not read allocations,
	// because new places are only watched after it. It returns true if it is to be called again
	// soon.
	Find(now time.Time) (again bool)
	// Event records that a file was changed, created or removed. It reports whether Read is
	// sufficient to handle the event. It must return false for files that it does not know.
	Event(path string, removed bool) (handled bool)
	// Read reads the files that have changed. It returns true if Find and Read are to be called
	// again soon.
	Read(r FileRead) (again bool)
	// Pools returns all pools. The driver clears the Changes of a pool once they are published. If
	// it does not get a pool any more, it removes the pool with all its allocations.
	Pools() []*FilePool
	// Problems says which records cannot be read, and what to do about it. It is text for people.
	Problems() []string
}

// A FileRead says what a FileSource has to read.
type FileRead struct {
	Now time.Time
	// All is set if any file may have changed without an event, because Find was called. Lost is
	// set if events were lost, so that files have to be read even if nothing indicates a change.
	All, Lost bool
	// Watches are the states of the watched directories, by path.
	Watches map[string]Watch
}

// A Watch is the state of a watched directory.
type Watch struct {
	// ID is the directory just before it was watched; zero if there was none. Changes of another
	// directory at the same path may have had no events.
	ID DirID
	// Err says why changes of the directory have no events. It is nil if the directory is missing.
	Err error
}

// A DirID identifies a directory. A directory that reuses the inode of a removed one has another
// ID.
type DirID struct {
	Major, Minor uint32
	Inode        uint64
	// Born is when the directory was created, in nanoseconds since 1970; 0 if the file system does
	// not record it.
	Born int64
}

// FilesConfig says where a FileSource has to look.
type FilesConfig struct {
	// Dirs are the directories of the IPAM. CNIConfig are the directories of CNI configurations.
	Dirs, CNIConfig []string
	// CNIResults is libcni's cache of results.
	CNIResults string
}

// A Host gives access to the files of the node. Their owners can neither block nor mislead it.
type Host interface {
	// ReadFile reads a regular file that has no more than the given number of bytes, and returns
	// when it was last written. It follows a symbolic link only if follow is set.
	ReadFile(path string, follow bool, most int64) (data []byte, written time.Time, err error)
	// OpenDir opens a directory. The error is os.ErrNotExist if there is none, and ErrOrphaned if
	// it was removed while it was mounted into the agent's container.
	OpenDir(path string) (dir *os.File, id DirID, err error)
	// Visible returns an error if none of the directories, whether they exist or not, is visible to
	// this process. The error says what to mount.
	Visible(dirs ...string) error
	// Devices returns the network interfaces of the node.
	Devices() []Device
	// Uplink returns the name of the interface of the first default route of the node; empty if there is none.
	Uplink() string
}

// A Device is a network interface of the node.
type Device struct {
	Index     int
	Name, MAC string // MAC is in lower case with colons
	Prefixes  []netip.Prefix
	// Temporary are the addresses with a lifetime, such as those that a DHCP client sets.
	Temporary []netip.Addr
}

// ErrOrphaned is returned for mounted directories that were removed. A directory that is created in
// their place is not visible in the container.
var ErrOrphaned = errors.New("the directory that was mounted here was removed: mount its parent instead, and start the agent again")

const (
	// CheckEvery is how often a driver checks everything, because a mount or a link may have
	// changed the directory at a path without an event.
	CheckEvery = 15 * time.Second
	// Settled is the minimum age of a file that counts as complete. A younger file that cannot be
	// parsed may still be being written. It is also how soon a driver calls a source again.
	Settled = time.Second
	// MaxText limits each text in a record: an aggregator rejects longer ones.
	MaxText = 512
)

// BeingWritten reports whether a file that was last written at the given time may be incomplete.
func BeingWritten(written, now time.Time) bool {
	age := now.Sub(written)
	return 0 <= age && age < Settled
}

// OneLine returns the text of an error as a single line of limited length, because it may quote
// the content of files.
func OneLine(err error) string {
	text := err.Error()
	return strings.ReplaceAll(strings.ToValidUTF8(text[:min(len(text), MaxText)], "\uFFFD"), "\n", "; ")
}

// SameVersion reports whether a file has not changed between two looks at it; nil for none.
func SameVersion(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// CleanPath returns path in the form in which paths are compared: cleaned, and with /run instead
// of /var/run, which is a link to it.
func CleanPath(path string) string {
	path = filepath.Clean(path)
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return path
}

const (
	// MaxConfSize limits the size of a CNI configuration in bytes.
	MaxConfSize = 1 << 20
	// maxConfFiles is larger than the number of files in any directory of CNI configurations.
	maxConfFiles = 256
)

// Entries returns the entries of a directory, at most the given number, sorted by name; none if it does not exist. If it
// returns an error, there may be more.
func Entries(host Host, dir string, most int) (entries []os.DirEntry, err error) {
	d, _, err := host.OpenDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	if entries, err = d.ReadDir(most); errors.Is(err, io.EOF) {
		err = nil // it is empty
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// A ConfFile is a CNI configuration, or a directory of them that cannot be listed. Err says why it cannot be read.
type ConfFile struct {
	Path    string
	Data    []byte
	Written time.Time
	Err     error
}

// ConfFiles returns the files in directories that libcni reads as configurations, in the order in which container runtimes
// read them (ConfFiles in libcni/conf.go). A directory that cannot be listed follows its files.
func ConfFiles(host Host, dirs []string) (all []ConfFile) {
	for _, dir := range dirs {
		entries, unlisted := Entries(host, dir, maxConfFiles)
		for _, e := range entries {
			f := ConfFile{Path: filepath.Join(dir, e.Name())}
			if e.IsDir() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(f.Path)) {
				continue
			}
			f.Data, f.Written, f.Err = host.ReadFile(f.Path, true, MaxConfSize) // like libcni, follow symbolic links
			if !errors.Is(f.Err, os.ErrNotExist) {
				all = append(all, f)
			}
		}
		if unlisted != nil {
			all = append(all, ConfFile{Path: dir, Err: unlisted})
		}
	}
	return all
}

// A ContainerSource is a FileSource that also knows the containers of an engine, such as docker.
type ContainerSource interface {
	FileSource
	// Containers returns the running containers. A container that has not changed is the same
	// pointer as before.
	Containers() []*Container
}

// A Container is a running container of an engine. It never changes.
type Container struct {
	// Engine is the name of the engine's IPAM.
	Engine   string
	ID, Name string
	// Netns is the path of the container's network namespace, as Host.Clean returns it; empty if it
	// is not known.
	Netns string
	// Given are the addresses that the engine has given the container, with its networks as
	// EngineNetwork returns them; nil if the engine does not record this apart from its IPAM.
	Given map[netip.Addr]string
	// Fixed are those of them that the container's configuration fixes, in the file FixedIn.
	Fixed   map[netip.Addr]bool
	FixedIn string
}

// EngineNetwork returns the name of an engine's network among all networks of a node. No CNI network
// has such a name.
func EngineNetwork(engine, network string) string { return engine + ":" + network }

// CutEngine returns the engine and the engine's name of a network; false for a CNI network.
func CutEngine(network string) (engine, name string, ok bool) { return strings.Cut(network, ":") }

// A NodeName is the name under which an IPAM allocates the addresses of a node.
type NodeName struct {
	Name   string
	Source NameSource
	// File is the file that contains the name. For HostName, it is the file that takes precedence over
	// the name of the host.
	File string
}

// On says, as a clause, which name a node has, and where it is from.
func (n NodeName) On(node string) string {
	if n.Source == HostName {
		return n.File + " on node " + node + " contains no name, and the name of the host is " + n.Name
	}
	return n.File + " on node " + node + " contains " + n.Name
}

// NameSource is where a NodeName is from. The numbers are those of the API.
type NameSource uint8

// The sources of names.
const (
	ConfName NameSource = iota + 1 // the CNI configuration
	FileName                       // a file that contains nothing else
	HostName                       // the name of the host
)

// A NameReader finds the name that an IPAM has for the node. A driver watches its places, and calls
// its methods one at a time.
type NameReader interface {
	// Places returns the directories with files that the name is read from. They need not exist.
	Places() []string
	// Read returns the name; an empty one if there is none or it is not known. A problem says why it
	// is not known. It is text for people. again is set if Read is to be called again soon.
	Read(now time.Time) (name NodeName, problem string, again bool)
}
