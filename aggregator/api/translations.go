package api

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxTranslations limits the translations of an address that are named.
const maxTranslations = 64

// protocols are the names of the protocols that agents report.
var protocols = map[uint32]string{6: "tcp", 17: "udp"}

// translated returns the connections whose packets nodes send to an address that is not their destination, by the answers of
// agents. The caller holds the facts.
func (s *Service) translated(answers []report.Answer, missed unseen) (all []verdict.Translation) {
	senders := make(map[netip.Addr]*verdict.Owner)
	for _, answer := range answers {
		if reason, bad := unreadTranslations[answer.Beliefs.GetTranslationsRead()]; bad {
			missed.count(reason, answer.Node, 1)
		}
		for _, r := range answer.Beliefs.GetTranslations() {
			from, ok := netip.AddrFromSlice(r.GetSource())
			to, ok2 := netip.AddrFromSlice(r.GetDestination())
			if !ok || !ok2 || protocols[r.GetProtocol()] == "" {
				continue
			}
			if _, known := senders[from]; !known && len(senders) < maxTranslations {
				senders[from] = s.ownerOf(from)
			}
			all = append(all, verdict.Translation{
				Node: answer.Node.Rec, Protocol: protocols[r.GetProtocol()], Sender: senders[from],
				From: netip.AddrPortFrom(from, uint16(r.GetSourcePort())), To: netip.AddrPortFrom(to, uint16(r.GetDestinationPort())), //nolint:gosec // checked
				Port: uint16(r.GetPort()), Zone: uint16(r.GetZone()), Existed: facts.Stamp(r.GetExistedAt()), //nolint:gosec // checked
			})
		}
	}
	slices.SortFunc(all, audit.CompareTranslations)
	return all
}

// unreadTranslations are the reasons why entries of the connection tracking are not known.
var unreadTranslations = map[pb.TranslationRecord_Read]pb.Senders_Unseen_Reason{
	pb.TranslationRecord_SOME:          pb.Senders_Unseen_TRANSLATIONS_TRUNCATED,
	pb.TranslationRecord_NOT_PERMITTED: pb.Senders_Unseen_TRANSLATIONS_NOT_PERMITTED,
	pb.TranslationRecord_NOT_SUPPORTED: pb.Senders_Unseen_TRANSLATIONS_NOT_SUPPORTED,
	pb.TranslationRecord_FAILED:        pb.Senders_Unseen_TRANSLATIONS_FAILED,
}

// ownerOf returns the owner of an address; nil if none is known, or several.
func (s *Service) ownerOf(a netip.Addr) (found *verdict.Owner) {
	judged := s.Facts.Policy.Judge(s.Facts.Builder().Case(index.AddressOf(a), false))
	for i := range judged.Owners {
		o := &judged.Owners[i]
		if !o.Alive() || o.Excluded != nil {
			continue
		}
		if found != nil {
			return nil
		}
		found = o
	}
	return found
}

// tenures returns what the journal has about the owners of an address, by their IDs, if any node sends connections to it. The
// caller does not hold the facts, because the journal may be slow.
func (s *Service) tenures(addr netip.Addr, answers []report.Answer) map[string]audit.Tenure {
	if s.Journal == nil || !slices.ContainsFunc(answers, func(a report.Answer) bool { return len(a.Beliefs.GetTranslations()) > 0 }) {
		return nil
	}
	owners := make(map[string]*pb.Owner)
	s.Facts.RLock()
	judged := s.Facts.Policy.Judge(s.Facts.Builder().Case(index.AddressOf(addr), false))
	for i := range judged.Owners {
		if o := &judged.Owners[i]; o.Alive() && o.Excluded == nil && len(owners) < mostPrevious {
			owners[o.ID] = s.Convert.Owner(addr, o, judged.Owners)
		}
	}
	s.Facts.RUnlock()
	tenures := make(map[string]audit.Tenure)
	for id, o := range owners {
		var t audit.Tenure
		found := false
		was, err := s.Journal.Before(addr, func(other *pb.Owner) bool { return sameOwner(o, other) }, func(other *pb.Owner) bool {
			switch {
			case !hasAddress(other) || found && (sameOwner(o, other) || sameWorkload(o, other)):
				return false
			case !sameOwner(o, other) && !sameWorkload(o, other):
				found = true
				return true
			}
			if got := facts.Stamp(other.GetAssignedAt()); t.Since == 0 || got < t.Since {
				t.Since = got
			}
			return false
		})
		if err == nil && was != nil {
			t.Former = &verdict.Former{Owner: live.RecordedOwner(was.Owner, "", false), Until: verdict.At(was.Until)}
		}
		tenures[id] = t
	}
	return tenures
}
