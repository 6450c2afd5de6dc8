package ipam

import "time"

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
