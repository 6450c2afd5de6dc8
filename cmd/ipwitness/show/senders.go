package show

import (
	"fmt"
	"slices"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// senders adds who sends packets to which of some owners.
func (p *page) senders(s *pb.Senders, owners []*pb.Owner) {
	if s == nil {
		return
	}
	p.heading("Who sends to it, by their neighbour tables:")
	if len(s.GetReceivers()) == 0 {
		p.item("  ", "No table that was looked at has an entry for it.")
	}
	called, routes := OwnerNames(owners), false
	for _, r := range s.GetReceivers() {
		var to []string
		for _, i := range r.GetOwners() {
			if int(i) < len(owners) {
				to = append(to, called[i])
			}
		}
		name := join(" or ", to...)
		if len(to) == 0 {
			if name = "no owner"; r.GetWorkload() != nil {
				name = pb.OwnerName(&pb.Owner{Workload: r.GetWorkload(), Node: r.GetWorkload().GetName()}) + ", which is no owner"
			}
		}
		p.text("  ", "to "+name+", MAC "+r.GetMac())
		for _, entries := range []struct {
			name  string
			state pb.Belief_State
			count uint32
		}{{"now", pb.Belief_IN_USE, r.GetInUse()}, {"permanent", pb.Belief_PERMANENT, r.GetPermanent()}, {"not in use", pb.Belief_OLD, r.GetOld()}} {
			if entries.count == 0 {
				continue
			}
			names, host := senderNames(r.GetSenders(), entries.state)
			if more := int(entries.count) - len(names); more > 0 && len(names) > 0 {
				names = append(names, fmt.Sprintf("and %d more", more))
			}
			routes = routes || host
			p.item(detailLead(entries.name), join(": ", fmt.Sprint(entries.count), join(", ", names...)))
		}
	}
	if routes {
		p.item("  ", "A host also sends what it routes for others, whose tables have no entry.")
	}
	if len(s.GetServices()) > 0 {
		p.item("  ", "Packets to these Services are sent to it as well, because it is their endpoint: "+counted(s.GetServices(), int(s.GetServiceCount()))+".")
	}
	p.items("Where nodes send packets of their own for it, by their routes:", routeRows(s.GetRoutes(), called))
	p.translations(s)
	p.items("Not looked at:", unseen(s.GetUnseen()))
}

// unseen returns what was not looked at: where, and why.
func unseen(all []*pb.Senders_Unseen) (rows [][2]string) {
	for _, u := range all {
		text, n := notSeen[u.GetReason()], int(u.GetCount())
		if u.GetReason() == pb.Senders_Unseen_NO_PROCESS {
			text, n = fmt.Sprintf(text, n), len(u.GetNodes())
		}
		rows = append(rows, [2]string{"node " + counted(u.GetNodes(), n), text})
		if len(u.GetNodes()) == 0 {
			rows[len(rows)-1][0] = "all nodes"
		}
		if u.GetReason() == pb.Senders_Unseen_SERVICES {
			rows[len(rows)-1][0] = "Kubernetes"
		}
	}
	return rows
}

// NotLookedAt returns what was not looked at as a phrase; empty if there is nothing.
func NotLookedAt(all []*pb.Senders_Unseen) string {
	var parts []string
	for _, row := range unseen(all) {
		parts = append(parts, row[0]+" ("+row[1]+")")
	}
	return join(", ", parts...)
}

// routeRows returns which nodes have which routes, and to which of some owners they lead.
func routeRows(all []*pb.Senders_Route, owners []string) (rows [][2]string) {
	for _, r := range all {
		var to, paths []string
		for _, i := range r.GetOwners() {
			if int(i) < len(owners) {
				to = append(to, owners[i])
			}
		}
		for _, hop := range r.GetHops() {
			by := ""
			if hop.GetGateway() != "" {
				by = " by way of " + join(", node ", hop.GetGateway(), hop.GetNode())
			}
			paths = append(paths, hop.GetInterface()+by)
		}
		text := "to " + join(" or ", to...)
		switch {
		case r.GetKind() == pb.Senders_Route_NONE:
			text = "to nobody: no route, or one that drops packets"
		case len(to) == 0 && r.GetPartly():
			text = "not known to which owner"
		case len(to) == 0:
			text = "elsewhere, to none of these owners"
		case r.GetPartly():
			text += ", perhaps also to others"
		}
		if r.GetKind() == pb.Senders_Route_LOCAL {
			paths = append(paths, "the node itself")
		}
		if len(paths) > 0 {
			text += ": " + join(" or ", paths...)
		}
		rows = append(rows, [2]string{"node " + counted(r.GetNodes(), int(r.GetCount())), text})
	}
	return rows
}

// translations adds the connections whose packets nodes send to the address, although it is not their destination.
func (p *page) translations(s *pb.Senders) {
	if len(s.GetTranslations()) == 0 {
		return
	}
	p.heading("Connections that a node sends to it (DNAT), by the connection tracking of nodes:")
	for _, t := range s.GetTranslations() {
		from := t.GetSource()
		if w := t.GetWorkload(); w != nil {
			from += " (" + pb.OwnerName(&pb.Owner{Workload: w}) + ")"
		}
		p.text("  ", "node "+t.GetNode()+": "+t.GetProtocol()+" from "+from+" to "+t.GetDestination())
		age := "not known: the kernel does not record it (net.netfilter.nf_conntrack_timestamp)"
		if t.GetExistedAt() != nil {
			age = "since " + clock(t.GetExistedAt(), p.now) + " or longer"
		}
		p.item(detailLead("age"), age)
		if t.GetFormer() {
			p.item(detailLead("wrong"), "it is older than the owner that has the address now (finding nat-to-former-owner)")
		}
	}
	if more := int(s.GetTranslationCount()) - len(s.GetTranslations()); more > 0 {
		p.item("  ", fmt.Sprintf("and %d more", more))
	}
}

// notSeen describes what was not looked at.
var notSeen = map[pb.Senders_Unseen_Reason]string{
	pb.Senders_Unseen_NO_ANSWER:    "the agent did not answer within a second",
	pb.Senders_Unseen_DISCONNECTED: "the agent is not connected",
	pb.Senders_Unseen_OWN_ONLY:     "the agent follows only the table of the node itself",
	pb.Senders_Unseen_NO_PROCESS:   "IPv4 entries from before the agent followed %d namespaces in which it sees no process",
	pb.Senders_Unseen_TRUNCATED:    "entries above a limit of the agent or of the answer",
	pb.Senders_Unseen_NOT_ASKED:    "not asked: too many nodes, or too many questions of one caller",
	pb.Senders_Unseen_SERVICES:     "which Services have it as an endpoint, because EndpointSlices cannot be read",
	pb.Senders_Unseen_BEFORE_START: "IPv6 entries of namespaces from before the agents followed them",

	pb.Senders_Unseen_TRANSLATIONS_TRUNCATED:     "connection tracking: entries above a limit of their number or of the time",
	pb.Senders_Unseen_TRANSLATIONS_NOT_PERMITTED: "connection tracking: the agent lacks CAP_NET_ADMIN",
	pb.Senders_Unseen_TRANSLATIONS_NOT_SUPPORTED: "connection tracking: the kernel has none, or does not list it",
	pb.Senders_Unseen_TRANSLATIONS_FAILED:        "connection tracking: reading it failed, as the log of the agent says",
}

// senderNames returns the names of senders with entries in a state, and whether one of them is a host.
func senderNames(all []*pb.Senders_Sender, state pb.Belief_State) (names []string, host bool) {
	var owners []*pb.Owner
	for _, s := range all {
		if s.GetState() == state {
			owners = append(owners, &pb.Owner{Workload: s.GetWorkload(), Node: s.GetNode(), Netns: s.GetNetns()})
			host = host || s.GetWorkload().GetKind() == pb.Workload_HOST
		}
	}
	names = OwnerNames(owners)
	for i, o := range owners {
		if across := slices.ContainsFunc(all, func(s *pb.Senders_Sender) bool { return s.GetNode() != o.GetNode() }); across && names[i] == pb.OwnerName(o) && o.GetWorkload().GetKind() != pb.Workload_HOST {
			names[i] += "@" + o.GetNode()
		}
	}
	return names, host
}
