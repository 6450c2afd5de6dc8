package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// maxSenders limits the senders that are named for a receiver, and maxStrangers the receivers that are no owners.
	maxSenders, maxStrangers = 32, 32
	// maxServices limits the Services that are named.
	maxServices = 32
	// maxUnseen limits the nodes that are named for a reason.
	maxUnseen = 32
)

// misdirected reports whether it matters who sends packets for an address to which owner.
func (s *Service) misdirected(addr netip.Addr) bool {
	a := index.AddressOf(addr)
	_, findings, _ := s.Shards.Conflicts.Remembered(a)
	return slices.ContainsFunc(findings, misleads) || slices.ContainsFunc(s.Shards.Conflicts.Of(a), func(c verdict.Conflict) bool { return c.Active() })
}

// misleads reports whether a finding is about packets that are sent to the wrong owner.
func misleads(f verdict.Finding) bool {
	return (f.Kind == verdict.FindingStaleBelief || f.Kind == verdict.FindingEndpointOfFormerOwner) && !f.Waiting
}

// senders returns who sends packets for the address of a case to which owner that is in a conflict or a finding, by the
// answers of agents, and the finding nat-to-former-owner; nil if nobody is known to send them to the wrong one. unread is what
// none of this is known of. The caller holds the facts.
func (s *Service) senders(b *facts.Builder, c *verdict.Case, why *verdict.Explanation, answers []report.Answer, tenures map[string]audit.Tenure) (out *pb.Senders, nat *verdict.Finding, unread []*pb.Senders_Unseen) {
	missed := make(unseen)
	for _, answer := range answers {
		missed.unanswered(answer.Node, answer)
	}
	translated := s.translated(answers, missed)
	unread = missed.all()
	nat = audit.Translations(s.Facts.Policy, c, why.Owners, tenures, translated)
	if nat == nil && !s.misdirected(c.Address) {
		return nil, nil, unread
	}
	out = &pb.Senders{}
	s.addTranslations(out, translated, nat)
	involved := make(map[string]bool)
	for _, conflict := range why.Conflicts {
		for _, o := range conflict.Owners {
			involved[o.ID] = true
		}
	}
	for _, f := range c.Before {
		for _, o := range f.Owners {
			involved[o.ID] = involved[o.ID] || misleads(f)
		}
	}
	var owners []*verdict.Owner
	var indexes []uint32
	for i := range why.Owners {
		if o := &why.Owners[i]; (involved[o.ID] || nat != nil && o.Excluded == nil) && o.State != verdict.Gone {
			owners, indexes = append(owners, o), append(indexes, uint32(i)) //nolint:gosec // few
		}
	}
	if c.Address.Is6() {
		missed[pb.Senders_Unseen_BEFORE_START] = &pb.Senders_Unseen{}
	}
	receivers, strangers := make(map[string]*pb.Senders_Receiver), 0
	for _, answer := range answers {
		n := answer.Node
		if answer.Beliefs == nil || n.Peer != answer.Peer {
			continue // names of the records have another meaning in a new stream
		}
		missed.add(n, answer.Beliefs)
		for _, belief := range b.Answered(n, answer.Beliefs) {
			got, met := belief.ReceivedBy(owners, c.Address)
			if len(got) == 0 && !met {
				continue // the address of others
			}
			key := fmt.Sprint(got, belief.MAC)
			r := receivers[key]
			switch {
			case r != nil:
			case len(got) == 0 && strangers == maxStrangers:
				missed.count(pb.Senders_Unseen_TRUNCATED, n, 1)
				continue
			default:
				r = &pb.Senders_Receiver{Mac: belief.MAC.String()}
				for _, i := range got {
					r.Owners = append(r.Owners, indexes[i])
				}
				if len(got) == 0 {
					strangers++
					if len(belief.Receivers) > 0 {
						r.Workload = s.Convert.Workload(belief.Receivers[0].Namespace)
					}
				}
				receivers[key] = r
				out.Receivers = append(out.Receivers, r)
			}
			s.addSenders(r, &belief)
		}
	}
	for _, r := range out.Receivers {
		slices.SortFunc(r.Senders, func(x, y *pb.Senders_Sender) int {
			return cmp.Or(cmp.Compare(x.GetState(), y.GetState()), strings.Compare(x.GetNode(), y.GetNode()),
				strings.Compare(x.GetWorkload().GetNamespace(), y.GetWorkload().GetNamespace()),
				strings.Compare(x.GetWorkload().GetName(), y.GetWorkload().GetName()), strings.Compare(x.GetInterface(), y.GetInterface()))
		})
		r.Senders = r.Senders[:min(len(r.Senders), maxSenders)]
	}
	slices.SortFunc(out.Receivers, func(x, y *pb.Senders_Receiver) int {
		total := func(r *pb.Senders_Receiver) uint32 { return r.GetInUse() + r.GetPermanent() + r.GetOld() }
		return cmp.Or(-cmp.Compare(total(x), total(y)), strings.Compare(x.GetMac(), y.GetMac()), slices.Compare(x.GetOwners(), y.GetOwners()))
	})
	s.addRoutes(out, b, c.Address, owners, indexes, answers)
	if s.Kubernetes != nil {
		services, known := s.Kubernetes.ServicesTo(c.Address)
		out.ServiceCount = uint32(len(services)) //nolint:gosec // few
		for _, service := range services[:min(len(services), maxServices)] {
			out.Services = append(out.Services, service.Namespace+"/"+service.Name)
		}
		if !known {
			missed[pb.Senders_Unseen_SERVICES] = &pb.Senders_Unseen{}
		}
	}
	out.Unseen = missed.all()
	return out, nat, unread
}

// addRoutes adds where nodes send packets of their own for an address, and to which of some owners that leads.
func (s *Service) addRoutes(out *pb.Senders, b *facts.Builder, addr netip.Addr, owners []*verdict.Owner, indexes []uint32, answers []report.Answer) {
	var routes []*verdict.Route
	for _, answer := range answers {
		if r := b.RouteOf(answer.Node, answer.Beliefs); r != nil && answer.Node.Peer == answer.Peer {
			routes = append(routes, r)
		}
	}
	same := make(map[string]*pb.Senders_Route)
	for _, r := range routes {
		got, sure := r.LeadsTo(owners, addr, routes)
		one := &pb.Senders_Route{Kind: pb.Senders_Route_Kind(r.Kind), Partly: !sure}
		for _, i := range got {
			one.Owners = append(one.Owners, indexes[i])
		}
		for _, hop := range r.Hops {
			h := &pb.Senders_Route_Hop{Interface: hop.Interface}
			if hop.Gateway.IsValid() {
				h.Gateway = hop.Gateway.String()
			}
			if hop.Via != nil {
				h.Node = hop.Via.Name
			}
			one.Hops = append(one.Hops, h)
		}
		key := fmt.Sprint(one.Kind, one.Partly, one.Owners, one.Hops)
		if same[key] == nil {
			same[key] = one
			out.Routes = append(out.Routes, one)
		}
		if same[key].Count++; len(same[key].GetNodes()) < maxUnseen {
			same[key].Nodes = append(same[key].Nodes, r.Node.Name)
		}
	}
	for _, one := range out.GetRoutes() {
		slices.Sort(one.Nodes)
	}
	slices.SortFunc(out.Routes, func(x, y *pb.Senders_Route) int {
		return cmp.Or(-cmp.Compare(x.GetCount(), y.GetCount()), slices.Compare(x.GetNodes(), y.GetNodes()))
	})
}

// addTranslations adds connections that nodes send to the address, those of a finding first.
func (s *Service) addTranslations(out *pb.Senders, all []verdict.Translation, nat *verdict.Finding) {
	var others []*pb.Senders_Translation
	for i := range all {
		one := s.Convert.Translation(&all[i])
		if one.Former = nat != nil && slices.Contains(nat.Translations, all[i]); one.Former {
			out.Translations = append(out.Translations, one)
		} else {
			others = append(others, one)
		}
	}
	out.TranslationCount = uint32(len(all)) //nolint:gosec // limited by the answers
	out.Translations = append(out.Translations, others...)
	out.Translations = out.Translations[:min(len(all), maxTranslations)]
}

// addSenders adds the holders of a belief to the senders of a receiver.
func (s *Service) addSenders(r *pb.Senders_Receiver, b *verdict.Belief) {
	switch b.State {
	case verdict.EntryInUse:
		r.InUse += b.Count
	case verdict.EntryPermanent:
		r.Permanent += b.Count
	default:
		r.Old += b.Count
	}
	named := 0
	for _, one := range r.GetSenders() {
		if one.GetState() == pb.Belief_State(b.State) {
			named++
		}
	}
	for _, i := range b.Holders[:min(len(b.Holders), maxSenders-named)] { // which of them are left out is decided at the end
		r.Senders = append(r.Senders, &pb.Senders_Sender{
			Workload: s.Convert.Workload(i.Namespace), Node: b.Link.Node.Name, Interface: i.Name, Netns: i.Namespace.Netns, State: pb.Belief_State(b.State),
		})
	}
}

// unseen is what was not looked at, by its reason.
type unseen map[pb.Senders_Unseen_Reason]*pb.Senders_Unseen

// unanswered adds a node without an answer.
func (u unseen) unanswered(n *facts.Node, answer report.Answer) {
	switch {
	case answer.Peer == nil:
		u.count(pb.Senders_Unseen_DISCONNECTED, n, 1)
	case !answer.Asked:
		u.count(pb.Senders_Unseen_NOT_ASKED, n, 1)
	case answer.Beliefs == nil, n.Peer != answer.Peer:
		u.count(pb.Senders_Unseen_NO_ANSWER, n, 1)
	}
}

// add adds what the answer for a node does not tell of neighbour tables.
func (u unseen) add(n *facts.Node, answer *pb.BeliefAnswer) {
	if answer.GetOwnOnly() {
		u.count(pb.Senders_Unseen_OWN_ONLY, n, 1)
	}
	if answer.GetUnread() > 0 {
		u.count(pb.Senders_Unseen_NO_PROCESS, n, answer.GetUnread())
	}
	if answer.GetTruncated() {
		u.count(pb.Senders_Unseen_TRUNCATED, n, 1)
	}
}

// count adds a node to those of a reason.
func (u unseen) count(why pb.Senders_Unseen_Reason, n *facts.Node, many uint32) {
	one := u[why]
	if one == nil {
		one = &pb.Senders_Unseen{}
		u[why] = one
	}
	if slices.Contains(one.GetNodes(), n.Rec.Name) {
		return
	}
	if one.Count += many; len(one.GetNodes()) < maxUnseen {
		one.Nodes = append(one.Nodes, n.Rec.Name)
	}
}

// all returns everything in the order of the reasons.
func (u unseen) all() (all []*pb.Senders_Unseen) {
	for why, one := range u {
		one.Reason = why
		slices.Sort(one.Nodes)
		all = append(all, one)
	}
	slices.SortFunc(all, func(x, y *pb.Senders_Unseen) int { return cmp.Compare(x.GetReason(), y.GetReason()) })
	return all
}
