package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// maxTranslations limits the translations of an address that are named.
	maxTranslations = 64
	// clocksDiffer is how far the clocks of two nodes may differ after they were compared.
	clocksDiffer = time.Second
)

// protocols are the names of the protocols that agents report.
var protocols = map[uint32]string{6: "tcp", 17: "udp"}

// addTranslations adds the connections whose packets nodes send to an address that is not their destination, by the answers of
// agents. It reports whether one of them was made for a former owner. The caller holds the facts.
func (s *Service) addTranslations(out *pb.Senders, addr netip.Addr, owners []verdict.Owner, answers []report.Answer, missed unseen) (former bool) {
	workloads := make(map[netip.Addr]*pb.Workload)
	for _, answer := range answers {
		n := answer.Node
		if reason, bad := unreadTranslations[answer.Beliefs.GetTranslationsRead()]; bad && answer.Beliefs != nil {
			missed.count(reason, n, 1)
		}
		for _, r := range answer.Beliefs.GetTranslations() {
			source, ok := netip.AddrFromSlice(r.GetSource())
			to, ok2 := netip.AddrFromSlice(r.GetDestination())
			if !ok || !ok2 || protocols[r.GetProtocol()] == "" {
				continue
			}
			if _, known := workloads[source]; !known && len(workloads) < maxTranslations {
				workloads[source] = s.workloadWith(source)
			}
			t := &pb.Senders_Translation{
				Node: n.Rec.Name, Protocol: protocols[r.GetProtocol()], Workload: workloads[source], Port: r.GetPort(),
				Source: addrPort(source, r.GetSourcePort()), Destination: addrPort(to, r.GetDestinationPort()),
			}
			existed := verdict.At(r.GetExistedAt().AsTime())
			if r.GetExistedAt() != nil {
				t.ExistedAt = timestamppb.New(existed.Time())
			}
			if r.GetExistedAt() != nil && precedes(n.Rec, existed, owners) {
				former, t.Former, t.Command = true, true, deletes(addr, t.GetProtocol(), source, to, r)
			}
			out.Translations = append(out.Translations, t)
		}
	}
	slices.SortFunc(out.GetTranslations(), func(a, b *pb.Senders_Translation) int {
		if a.GetFormer() != b.GetFormer() {
			return map[bool]int{true: -1, false: 1}[a.GetFormer()]
		}
		return cmp.Or(strings.Compare(a.GetNode(), b.GetNode()), strings.Compare(a.GetProtocol(), b.GetProtocol()), strings.Compare(a.GetDestination(), b.GetDestination()), strings.Compare(a.GetSource(), b.GetSource()))
	})
	out.TranslationCount = uint32(len(out.GetTranslations())) //nolint:gosec // limited by the answers
	out.Translations = out.GetTranslations()[:min(len(out.GetTranslations()), maxTranslations)]
	return former
}

// unreadTranslations are the reasons why entries of the connection tracking are not known.
var unreadTranslations = map[pb.TranslationRecord_Read]pb.Senders_Unseen_Reason{
	pb.TranslationRecord_UNSPECIFIED:   pb.Senders_Unseen_TRANSLATIONS_UNKNOWN,
	pb.TranslationRecord_SOME:          pb.Senders_Unseen_TRANSLATIONS_TRUNCATED,
	pb.TranslationRecord_NOT_PERMITTED: pb.Senders_Unseen_TRANSLATIONS_NOT_PERMITTED,
	pb.TranslationRecord_NOT_SUPPORTED: pb.Senders_Unseen_TRANSLATIONS_NOT_SUPPORTED,
	pb.TranslationRecord_FAILED:        pb.Senders_Unseen_TRANSLATIONS_FAILED,
}

// precedes reports whether an entry of a node existed before any present owner had the address, as far as is known of all of them.
func precedes(n *verdict.Node, existed verdict.Stamp, owners []verdict.Owner) bool {
	any := false
	for i := range owners {
		o := &owners[i]
		if o.State == verdict.Gone || o.Excluded != nil {
			continue
		}
		since, apart := o.TenureSince(), clocksDiffer
		if o.Node == n || o.Node != nil && o.Node.Name == n.Name {
			apart = 0
		}
		if since == 0 || o.Node == nil || existed.Add(apart-n.Skew) >= since.Add(-o.Node.Skew) {
			return false
		}
		any = true
	}
	return any
}

// workloadWith returns the workload that has an address; nil if none is known, or several.
func (s *Service) workloadWith(a netip.Addr) (found *pb.Workload) {
	judged := s.Facts.Policy.Judge(s.Facts.Builder().Case(index.AddressOf(a), false))
	for i := range judged.Owners {
		o := &judged.Owners[i]
		if !o.Alive() || o.Excluded != nil {
			continue
		}
		if found != nil {
			return nil
		}
		found = s.Convert.Owner(a, o, judged.Owners).GetWorkload()
	}
	return found
}

// deletes returns the command that deletes exactly one entry. It deletes nothing once the entry leads elsewhere.
func deletes(addr netip.Addr, protocol string, source, to netip.Addr, r *pb.TranslationRecord) string {
	command := fmt.Sprintf("conntrack -D -p %s --orig-src %s --sport %d --orig-dst %s --dport %d --reply-src %s", protocol, source, r.GetSourcePort(), to, r.GetDestinationPort(), addr)
	if r.GetZone() != 0 {
		command += fmt.Sprintf(" --zone %d", r.GetZone())
	}
	return command
}

func addrPort(a netip.Addr, port uint32) string { return netip.AddrPortFrom(a, uint16(port)).String() } //nolint:gosec // checked
