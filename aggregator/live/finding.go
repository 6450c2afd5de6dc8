package live

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxNamed is the maximum number of nodes named in one finding.
const maxNamed = 1000

// Finding returns a finding in the format of the API, and whether it has become a conflict.
func (s *Converter) Finding(f *judge.Found, superseded bool) *pb.Finding {
	a := s.Findings.Clones.Whole(f.Finding)
	out := &pb.Finding{
		Kind: a.Kind, Address: f.Place.Address, Id: a.ID, Severity: pb.Finding_Severity(a.Severity),
		DetectedAt: timestamp(f.Since), Runbook: explain.Runbook(a.Kind), Owners: Owners(a.Address, a.Owners, s.Owner),
	}
	out.Previous = previous(a.Former)
	var use verdict.PoolUse
	if p := s.Facts.Pool(a.Pool); p != nil {
		use = s.Findings.Pools.Use(p)
		out.Pool = Pool(&p.Rec, use)
	} else if a.Stock != nil {
		out.Pool = Pool(a.Pool, a.Stock.Use)
	}
	text := explain.Finding(a, use)
	if superseded {
		text = text.Superseded()
	}
	out.Summary, out.Evidence, out.Remedy = text.Summary, text.Evidence, adviceProto(text.Remedy)
	for _, fix := range text.Fixes {
		out.Fixes = append(out.Fixes, &pb.Fix{Node: fix.Node, What: fix.What, Command: fix.Command, Manual: fix.Manual})
	}
	for _, addr := range audit.Addresses(a) {
		out.Addresses = append(out.Addresses, addr.String())
	}
	for _, al := range a.Allocations {
		out.Allocations = append(out.Allocations, allocationProto(al))
	}
	nodes := audit.Nodes(a)
	out.Nodes = nodes[:min(len(nodes), maxNamed)]
	return out
}

// previous returns a former owner in the format of the API; nil if there is none.
func previous(f *verdict.Former) *pb.PreviousOwner {
	if f == nil {
		return nil
	}
	m := new(maker)
	o := &f.Owner
	return &pb.PreviousOwner{
		Workload: m.workload(new(pb.Workload), o), Node: o.Node.Name, Interface: o.Interface.Name, Mac: o.MAC.String(), Netns: netns(o),
		Until: timestamp(f.Until), Gap: durationpb.New(f.Gap()),
	}
}

// adviceProto converts the actions for a finding to the format of the API.
func adviceProto(actions []advice.Action) []*pb.Action {
	out := make([]*pb.Action, 0, len(actions))
	for _, a := range actions {
		do := &pb.Action{Text: a.Text, Command: a.Command, Node: a.Node}
		for _, alt := range a.Choice {
			do.Choice = append(do.Choice, &pb.Alternative{When: alt.When, Actions: adviceProto(alt.Actions)})
		}
		out = append(out, do)
	}
	return out
}

// Pool returns a pool in the format of the API, with its usage.
func Pool(p *verdict.Pool, use verdict.PoolUse) *pb.Pool {
	out := &pb.Pool{
		Ipam: p.IPAM, Name: p.Name, Network: p.Network, State: pb.Pool_State(p.State),
		Size: use.Size, Allocated: use.Allocated, Leaked: use.Leaked,
	}
	if p.Node != nil {
		out.Node = p.Node.Name
	}
	for _, r := range slices.Concat(p.Ranges, p.Divided) {
		out.Ranges = append(out.Ranges, r.String())
	}
	if use.ExhaustedIn > 0 {
		out.ExhaustedIn = durationpb.New(time.Duration(min(use.ExhaustedIn, maxExhaustion.Seconds()) * float64(time.Second)))
	}
	return out
}

// PoolHistory returns the use of a pool over time in the format of the API.
func PoolHistory(used []audit.Used) []*pb.Pool_Sample {
	out := make([]*pb.Pool_Sample, 0, len(used))
	for _, u := range used {
		out = append(out, &pb.Pool_Sample{At: timestamp(u.At), Allocated: u.Allocated})
	}
	return out
}

// maxExhaustion limits how far ahead the exhaustion of a pool is predicted.
const maxExhaustion = 365 * 24 * time.Hour
