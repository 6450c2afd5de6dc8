package hostlocal

import (
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// host-local (plugins/ipam/host-local/backend/disk) keeps one file for each allocated address in
// its directory, named after the address. The file contains the id of the container, CR LF, and
// the interface. host-local does not allocate an address whose file exists, and DEL removes only
// files with exactly the container and interface that it is called with. Both hold a lock on
// DIR/lock (flock). last_reserved_ip.N only says where the search for a free address
// begins and may be missing.

// addressFile is the file of an address, in shell commands.
type addressFile struct {
	directory string
	address   netip.Addr
}

// path returns the path of the file, quoted.
func (f addressFile) path() string {
	return advice.File(strings.TrimSuffix(f.directory, "/") + "/" + f.address.String())
}

// dir returns the directory, quoted.
func (f addressFile) dir() string { return advice.File(strings.TrimSuffix(f.directory, "/")) }

// locked returns a command that runs under host-local's lock, in its own subshell.
func (f addressFile) locked(indent string, command ...string) string {
	text := []string{
		indent + "(",
		indent + "  if command -v flock >/dev/null 2>&1; then exec 9>>" + f.dir() + "/lock; flock 9; fi",
	}
	for _, c := range command {
		text = append(text, indent+"  "+c)
	}
	return advice.Script(append(text, indent+")")...)
}

// lockedIfThere returns a command that runs under host-local's lock if host-local's directory
// exists.
func (f addressFile) lockedIfThere(command ...string) string {
	return advice.Script(
		"if [ -d "+f.dir()+" ]; then",
		f.locked("  ", command...),
		"else",
		"  echo "+advice.Quote(f.directory+" does not exist: nothing to do"),
		"fi")
}
