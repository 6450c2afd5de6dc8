package registry

import (
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// Titles returns the titles of the IPAMs that allocate addresses, as a list in a sentence: "host-local,
// Calico and Cilium", with "and" as the conjunction. It leaves out the IPAMs that match rejects.
func Titles(conjunction string, match func(*ipam.IPAM) bool) string {
	var titles []string
	for _, m := range All {
		if !m.Status && !m.Assigns && match(m) {
			titles = append(titles, m.Title)
		}
	}
	last := len(titles) - 1
	if last < 1 {
		return strings.Join(titles, "")
	}
	return strings.Join(titles[:last], ", ") + " " + conjunction + " " + titles[last]
}

// Any matches all IPAMs.
func Any(*ipam.IPAM) bool { return true }

// OfNodes matches the IPAMs whose records are files on the nodes.
func OfNodes(m *ipam.IPAM) bool { return m.Files != nil }

// OfCluster matches the IPAMs whose records are custom resources.
func OfCluster(m *ipam.IPAM) bool { return m.Objects != nil }
