package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Explain explains why an address is, or is not, in conflict.
func (s *Service) Explain(ctx context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	if out := ExplainSpecial(q.GetAddress()); out != nil {
		out.Coverage = s.Coverage.Current()
		return out, nil
	}
	addr, err := ParseAddress(q.GetAddress())
	if err != nil {
		return nil, err
	}
	if q.GetAt() != nil {
		return s.explainAt(ctx, q, addr)
	}
	var answers []report.Answer
	if q.GetSenders() && s.Reports != nil {
		answers = s.Reports.Ask(addr, access.Of(ctx).MayAsk())
	}
	out, f := s.explain(addr, q.GetCase(), answers, s.tenures(addr, answers))
	s.addPrevious(out.GetOwners())
	if f != nil {
		file, err := casefile.Encode(f)
		if err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		out.Case = &structpb.Struct{}
		if err := out.Case.UnmarshalJSON(file); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return out, nil
}

// ExplainSpecial explains an address that cannot be in conflict, whoever has it: a loopback, multicast, broadcast or
// unspecified address, or an IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2), which is not the IPv4 address. It
// returns nil for other addresses.
func ExplainSpecial(text string) *pb.ExplainResponse {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return nil
	}
	a = a.WithZone("")
	var key string
	switch {
	case a.Is4In6():
		key = "mapped"
	case a.IsLoopback():
		key = "loopback"
	case a.IsMulticast():
		key = "multicast"
	case a.IsUnspecified():
		key = "unspecified"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		key = "broadcast"
	default:
		return nil
	}
	return &pb.ExplainResponse{Address: a.String(), Summary: explain.Text("answer/"+key, "address", a, "unmapped", a.Unmap())}
}

// explain explains why an address is, or is not, in conflict. If withCase is set, it also returns a file with a
// copy of the case, because encoding the case itself would hold the lock of the facts for too long. answers are those of
// agents about the address, and tenures what is recorded about its owners; none if the agents were not asked.
func (s *Service) explain(addr netip.Addr, withCase bool, answers []report.Answer, tenures map[string]audit.Tenure) (out *pb.ExplainResponse, file *casefile.File) {
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	a := index.AddressOf(addr)
	b := s.Facts.Builder()
	c := b.Explained(a)
	coverage := s.Coverage.Now()
	c.Incomplete, c.Awaited = coverage.GetIncomplete(), live.Starting(coverage)
	conflicts := s.Shards.Conflicts.Of(a)
	for i := range conflicts {
		c.Conflicts = append(c.Conflicts, conflicts[i].Memory())
		c.Awaited = c.Awaited || conflicts[i].Active() && conflicts[i].Awaited // frames of an owner may be minutes apart
	}
	c.Past, c.Before, c.Former = s.Shards.Conflicts.Remembered(a)
	why := s.Facts.Policy.Explain(c)
	if withCase {
		file = &casefile.File{Version: s.Version, Policy: s.Facts.Policy, Case: casefile.Copy(c), Judged: judged(&why)}
	}
	out = live.Explanation(s.Facts.Policy, why, s.Convert.Owner)
	if answers != nil {
		var nat *verdict.Finding
		if out.Senders, nat, out.Unseen = s.senders(b, c, &why, answers, tenures); nat != nil {
			f := s.Convert.Finding(&judge.Found{Finding: nat, Place: judge.PlaceOf(nat), Since: nat.Since}, false)
			f.Incident = "" // which lasts, and is listed
			out.Findings = append(out.Findings, f)
		}
	}
	for _, one := range latestFirst(conflicts) {
		out.Conflicts = append(out.Conflicts, s.Convert.Conflict(&one))
	}
	out.Coverage = coverage
	return out, file
}

// judged returns what the rules have decided about an address.
func judged(e *verdict.Explanation) map[string]string {
	out := map[string]string{"the number of conflicts": strconv.Itoa(len(e.Conflicts))}
	for i := range e.Conflicts {
		c := &e.Conflicts[i]
		of := " of conflict " + c.ID
		out["the state"+of], out["the rule"+of], out["the cause"+of] = pb.Conflict_State(c.Phase).String(), c.Rule, c.Cause
		if keeper := c.Owner(c.Keeper); keeper != nil {
			out["the keeper"+of] = explain.OwnerName(keeper) + " (" + keeper.ID + ")"
		}
	}
	for i := range e.Owners {
		if o := &e.Owners[i]; o.Excluded != nil {
			out["the exclusion of "+explain.OwnerName(o)+" ("+o.ID+")"] = o.Excluded.Rule
		}
	}
	return out
}

// Judge judges a case from a file and explains the judgement like Explain. The result lacks data
// that only an aggregator has: acknowledgements, and Kubernetes objects that are not in the case.
// Of conflicts that were resolved before, it has only the course and the owners. changes says what the version that
// wrote the case judged differently.
func Judge(f *casefile.File) (out *pb.ExplainResponse, changes []string) {
	owner := func(a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
		return live.CaseOwner(f.Policy, a, o, all)
	}
	why := f.Policy.Explain(f.Case)
	if len(f.Judged) > 0 {
		now := judged(&why)
		every := maps.Clone(now)
		maps.Copy(every, f.Judged)
		for _, what := range slices.Sorted(maps.Keys(every)) {
			if f.Judged[what] != now[what] {
				changes = append(changes, fmt.Sprintf("%s was %s and is %s", what, cmp.Or(f.Judged[what], "none"), cmp.Or(now[what], "none")))
			}
		}
	}
	out = live.Explanation(f.Policy, why, owner)
	result := f.Policy.Judge(f.Case)
	for _, c := range latestFirst(result.Conflicts) {
		text := explain.Conflict(f.Policy, &c)
		out.Conflicts = append(out.Conflicts, live.Conflict(f.Policy, &c, &text, live.Owners(c.Address, c.Owners, owner)))
	}
	for _, m := range f.Case.Conflicts {
		if slices.ContainsFunc(result.Conflicts, func(c verdict.Conflict) bool { return c.ID == m.ID }) {
			continue
		}
		for _, over := range result.Ended {
			if over.ID == m.ID {
				m.Phase, m.ResolvedAt = verdict.Resolved, over.At
			}
		}
		c := live.Course(f.Case.Address, &m.Identity, &m.Course)
		for _, member := range m.Owners {
			if i := slices.IndexFunc(result.Owners, func(o verdict.Owner) bool { return o.ID == member.ID }); i >= 0 {
				c.Owners = append(c.Owners, owner(f.Case.Address, &result.Owners[i], result.Owners))
			} else {
				c.Owners = append(c.Owners, live.Gone(f.Case.Address, &member))
			}
		}
		c.Summary = explain.Remembered(f.Case.Address, &m)
		out.Conflicts = append(out.Conflicts, c)
	}
	out.Coverage = &pb.Coverage{Incomplete: f.Case.Incomplete}
	return out, changes
}

// latestFirst returns the active conflicts, followed by the resolved ones in order of their
// resolution, latest first.
func latestFirst(conflicts []verdict.Conflict) []verdict.Conflict {
	latest := func(c *verdict.Conflict) verdict.Stamp {
		if c.Active() {
			return math.MaxInt64
		}
		return c.ResolvedAt
	}
	return slices.SortedFunc(slices.Values(conflicts), func(a, b verdict.Conflict) int {
		return cmp.Or(cmp.Compare(latest(&b), latest(&a)), cmp.Compare(a.ID, b.ID))
	})
}

// mostPrevious is the number of owners of one address whose previous owners are looked up.
const mostPrevious = 16

// addPrevious adds the previous owners to the owners of one address, as far as the journal has them.
// The caller does not hold the facts, because the journal may be slow.
func (s *Service) addPrevious(owners []*pb.Owner) {
	if s.Journal == nil {
		return
	}
	for _, o := range owners[:min(len(owners), mostPrevious)] {
		addr, err := netip.ParseAddr(o.GetAddress())
		if err != nil || o.GetState() != pb.Owner_LIVE || !hasAddress(o) {
			continue
		}
		was, err := s.Journal.Before(addr, func(other *pb.Owner) bool { return sameOwner(o, other) }, func(other *pb.Owner) bool {
			return hasAddress(other) && !sameOwner(o, other) && !sameWorkload(o, other)
		})
		if err != nil || was == nil {
			continue // ListNodes says what is wrong with the journal
		}
		p := &pb.PreviousOwner{
			Workload: was.Owner.GetWorkload(), Node: was.Owner.GetNode(), Interface: was.Owner.GetInterface(), Mac: was.Owner.GetMac(), Netns: was.Owner.GetNetns(),
			Until: timestamppb.New(was.Until),
		}
		switch {
		case !was.NotBefore.IsZero():
			p.NotBefore = timestamppb.New(was.NotBefore)
		case !was.Since.IsZero():
			p.Gap = durationpb.New(max(0, was.Since.Sub(was.Until)))
		}
		o.Previous = p
	}
}

// hasAddress reports whether the kernel of an owner has the address, and the owner is compared with
// others.
func hasAddress(o *pb.Owner) bool { return o.GetAssignedAt() != nil && o.GetExcluded() == "" }

// sameOwner reports whether two records are of one network namespace.
func sameOwner(o, other *pb.Owner) bool {
	return o.GetNode() == other.GetNode() && o.GetNetns() == other.GetNetns()
}

// sameWorkload reports whether two records are of one workload, such as two sandboxes of a pod.
func sameWorkload(o, other *pb.Owner) bool {
	a, b := o.GetWorkload(), other.GetWorkload()
	return a.GetName() != "" && a.GetKind() == b.GetKind() && a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName() &&
		(a.GetKind() == pb.Workload_POD || o.GetNode() == other.GetNode())
}
