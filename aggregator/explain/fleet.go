package explain

import (
	"fmt"
	"net/netip"
	"strings"
)

// BetweenClusters summarizes a conflict of an address of a network that clusters share. over is set if it is
// resolved.
func BetweenClusters(a netip.Addr, network string, clusters []string, over bool) string {
	n := len(clusters)
	names := strings.Join(clusters[:n-1], ", ") + " and " + clusters[n-1]
	if over {
		return fmt.Sprintf("%s is no longer held by different owners in the clusters %s, which share the network %s.", a, names, network)
	}
	return fmt.Sprintf("%s is held by different owners in the clusters %s, which share the network %s.", a, names, network)
}

// InCluster is what a fleet knows of an address in one cluster.
type InCluster struct {
	Name string
	// Owners is the number of owners that are compared with one another. Conflict is set if they are in
	// conflict.
	Owners   int
	Conflict bool
}

// Clusters returns the answer of a fleet about an address, now or at a time in the past. between is set if
// owners in different clusters are in conflict with each other.
func Clusters(a netip.Addr, all []InCluster, between, past bool) string {
	verb, are := "has", "are"
	if past {
		verb, are = "had", "were"
	}
	var parts []string
	for _, c := range all {
		owners := fmt.Sprintf("%d owners", c.Owners)
		if c.Owners == 1 {
			owners = "one owner"
		}
		part := owners + " in the cluster " + c.Name
		if c.Conflict {
			part += " (in conflict there)"
		}
		parts = append(parts, part)
	}
	var answer string
	switch n := len(parts); {
	case n == 0 && past:
		return fmt.Sprintf("No owner of %s is recorded for that time.", a)
	case n == 0:
		return fmt.Sprintf("No owner of %s is known.", a)
	case n == 1:
		answer = parts[0]
	default:
		answer = strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
	answer = fmt.Sprintf("%s %s %s.", a, verb, answer)
	if between {
		answer += fmt.Sprintf(" Owners in different clusters %s in conflict with each other.", are)
	}
	return answer
}
