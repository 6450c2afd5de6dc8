package awsvpc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// ipamd (pkg/ipamd/datastore of aws/amazon-vpc-cni-k8s) writes its checkpoint with each allocation
// and each release: a new file, which it renames. The checkpoint has the allocations only. The
// addresses and prefixes that the ENIs have are in ipamd's memory and in EC2.

// version is the known version of the format.
const version = "vpc-cni-ipam/1"

// Pods that existed before ipamd had a checkpoint are recorded under placeholders for the network
// and the interface.
const migrated = "_migrated-from-cri"

type checkpoint struct {
	// network is the CNI network of the allocations; empty if none names one.
	network     string
	allocations map[netip.Addr]ipam.FileAllocation
	// invalid says which entries are invalid; empty if none are.
	invalid string
}

// checkpointFile has the fields in use of the file (CheckpointData).
type checkpointFile struct {
	Version     string                       `json:"version"`
	Allocations []ipam.Item[checkpointEntry] `json:"allocations"`
}

// checkpointEntry is an allocation in the file (CheckpointEntry).
type checkpointEntry struct {
	Network     string `json:"networkName"`
	ContainerID string `json:"containerID"`
	Interface   string `json:"ifName"`
	IPv4        string `json:"ipv4"`
	IPv6        string `json:"ipv6"`
	Timestamp   int64  `json:"allocationTimestamp"` // in nanoseconds since 1970
	Metadata    struct {
		Namespace string `json:"k8sPodNamespace"`
		Pod       string `json:"k8sPodName"`
	} `json:"metadata"`
}

func parse(data []byte, written time.Time) (c checkpoint, err error) {
	var f checkpointFile
	err = json.Unmarshal(data, &f)
	switch {
	case f.Version != "" && f.Version != version:
		// Another version may have other types of fields.
		return c, fmt.Errorf("its version is %q, and this ipwitness reads only %q: look for a newer ipwitness", ipam.Cut(ipam.Plain(f.Version), 64), version)
	case err != nil:
		return c, fmt.Errorf("parse JSON: %w", err)
	case f.Version == "":
		return c, errors.New("it has no version")
	}
	c.allocations = make(map[netip.Addr]ipam.FileAllocation, len(f.Allocations))
	networks := map[string]int{}
	twice, without, unread := "", 0, ""
	for i := range f.Allocations {
		e := &f.Allocations[i].Value
		if err := f.Allocations[i].Err; err != nil {
			unread = fmt.Sprintf("entry %d (container %s) has another format: %s", i, named(e.ContainerID), ipam.OneLine(err))
			continue
		}
		al := ipam.FileAllocation{
			Allocation:  ipam.Allocation{Namespace: e.Metadata.Namespace, Pod: e.Metadata.Pod, ContainerID: e.ContainerID, Interface: e.Interface},
			AllocatedAt: written,
		}
		if e.Network == migrated {
			al.Interface = ""
		}
		if e.Timestamp > 0 {
			al.AllocatedAt = time.Unix(0, e.Timestamp)
		}
		valid := false
		for _, text := range []string{e.IPv4, e.IPv6} {
			a, err := netip.ParseAddr(text)
			a = a.Unmap()
			if err != nil || a.Zone() != "" || !a.IsGlobalUnicast() && !a.IsLinkLocalUnicast() {
				continue // it cannot be that of a pod
			}
			valid = true
			al.Address = a
			if other, double := c.allocations[a]; double {
				twice = fmt.Sprintf("%s is allocated to containers %s and %s", a, named(other.ContainerID), named(al.ContainerID))
				if other.AllocatedAt.After(al.AllocatedAt) {
					continue // the newer one counts
				}
			}
			c.allocations[a] = al
		}
		if !valid {
			without++
		}
		if e.Network != "" && e.Network != migrated {
			networks[e.Network]++
		}
	}
	// The entries have no order. If they have several networks, the one with most entries counts.
	names := slices.SortedFunc(maps.Keys(networks), func(a, b string) int {
		return cmp.Or(cmp.Compare(networks[b], networks[a]), strings.Compare(a, b))
	})
	if len(names) > 0 && len(names[0]) <= ipam.MaxText {
		c.network = names[0]
	}
	switch {
	case unread != "" && len(c.allocations) == 0:
		return checkpoint{}, errors.New("parse JSON: " + unread)
	case unread != "":
		c.invalid = unread
	case twice != "":
		c.invalid = twice + ": ipamd does not start with such a file"
	case without > 0:
		c.invalid = fmt.Sprintf("%d of its %d entries have no valid address", without, len(f.Allocations))
	}
	return c, nil
}

// named returns a container ID for a message.
func named(id string) string {
	if id == "" {
		return "without ID"
	}
	return ipam.Cut(ipam.Plain(id), 64)
}
