package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// AlertText is the text of an alert.
type AlertText struct{ Summary, Description, Runbook string }

// ConflictAlert returns the text of the alert of a conflict. summary is the text of the conflict.
func ConflictAlert(address, cause, id, summary string, confirmed bool) AlertText {
	key := "alert/suspected"
	if confirmed {
		key = "alert/confirmed"
	}
	s := scope{"address", address, "cause", cause, "id", id, "summary", summary}
	return AlertText{s.text(key), s.text(key + "/description"), Runbook(cause)}
}

// FindingAlert returns the text of the alert of a finding. summary is the text of the finding.
func FindingAlert(kind, id, summary string) AlertText {
	return AlertText{summary, Text("alert/finding/description", "summary", summary, "id", id), Runbook(kind)}
}

// OwnerChanged says that an owner of an address was added or removed, or has changed.
func OwnerChanged(how, address, namespace, name, node string) string {
	who := "An owner"
	switch {
	case namespace != "" && name != "":
		who = fmt.Sprintf("Pod %s/%s", namespace, name)
	case name != "":
		who = name
	}
	return Text("owner/"+how, "who", who, "where", after(" on node ", node), "address", address)
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
func Clusters(a netip.Addr, clusters []InCluster, between, past bool) string {
	verb, are := "has", "are"
	if past {
		verb, are = "had", "were"
	}
	parts := each(clusters, func(c *InCluster) string {
		owners := fmt.Sprintf("%d owners", c.Owners)
		if c.Owners == 1 {
			owners = "one owner"
		}
		if c.Conflict {
			return owners + " in the cluster " + c.Name + " (in conflict there)"
		}
		return owners + " in the cluster " + c.Name
	})
	switch {
	case len(parts) == 0 && past:
		return fmt.Sprintf("No owner of %s is recorded for that time.", a)
	case len(parts) == 0:
		return fmt.Sprintf("No owner of %s is known.", a)
	}
	answer := fmt.Sprintf("%s %s %s.", a, verb, all(parts))
	if between {
		answer += fmt.Sprintf(" Owners in different clusters %s in conflict with each other.", are)
	}
	return answer
}

// Past returns the answer about an address at a time in the past: the number of owners that were
// compared with one another, and whether they were in conflict.
func Past(a netip.Addr, owners int, conflict bool) string {
	had := fmt.Sprintf("%s had %d owners at that time", a, owners)
	switch owners {
	case 0:
		had = fmt.Sprintf("No owner of %s is recorded for that time", a)
	case 1:
		had = fmt.Sprintf("%s had one owner at that time", a)
	}
	if conflict {
		return had + ", and was in conflict."
	}
	return had + ", and was not in conflict."
}

// Flood returns the problem of a port that floods its agent. The namespace behind the port may be
// nil.
func Flood(port string, behind *verdict.Namespace, dropped uint64, since verdict.Stamp, rate uint64) string {
	if behind != nil {
		port += " (" + NamespaceName(behind) + ")"
	}
	return Text("flood", "port", port, "dropped", dropped, "since", since, "rate", rate)
}

// Unparsed returns the problem of frames that a node's observer could not parse because they had
// too many VLAN tags, IPv6 extension headers or NDP options. It is empty if there were no such
// frames.
func Unparsed(tags, extensions, options uint64) string {
	var kinds []string
	for i, what := range []string{"VLAN tags", "IPv6 extension headers", "NDP options"} {
		if frames := []uint64{tags, extensions, options}[i]; frames > 0 {
			kinds = append(kinds, fmt.Sprintf("%d with too many %s", frames, what))
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	return Text("unparsed", "kinds", all(kinds))
}

// Fields lists fields of records, each with the number of corrected texts.
func Fields(corrected map[string]int) string {
	var fields []string
	for _, field := range slices.Sorted(maps.Keys(corrected)) {
		fields = append(fields, fmt.Sprintf("%s (%d)", field, corrected[field]))
	}
	return strings.Join(fields, ", ")
}

// Names joins all names: "a, b and c".
func Names(names []string) string { return all(names) }

// Condition describes the conflicts on a node.
func Condition(conflicts []*verdict.Conflict) string {
	held := make([]string, len(conflicts))
	for i, c := range conflicts {
		held[i] = Text("condition/held", "address", c.Address, "owners", list(each(c.Owners, func(o *verdict.Owner) string {
			return OwnerName(o) + " (" + o.Node.Name + ")"
		})))
	}
	return Text("condition", "conflicts", list(held))
}
