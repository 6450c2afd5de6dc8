package live

import (
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxNamed is the maximum number of nodes named in one finding.
const maxNamed = 1000

// Finding returns a finding in the format of the API, and whether it has become a conflict.
func (s *Converter) Finding(f *judge.Found, superseded bool) *pb.Finding {
	recorded, _ := s.Recorded.get(f.ID)
	if before := recorded.GetFinding(); f.Unjudged && before != nil {
		out := proto.CloneOf(before)
		out.Remedy, out.Fixes = nil, nil // they might not be safe any longer
		return out
	}
	a := s.Findings.Whole(f.Finding)
	out := &pb.Finding{
		Kind: a.Kind, Address: f.Place.Address, Id: a.ID, Severity: pb.Finding_Severity(a.Severity),
		Incident: incident.OfFinding(s.Facts.Policy.Cluster, a), DetectedAt: timestamp(f.Since), Runbook: explain.Runbook(a.Kind), Owners: Owners(a.Address, a.Owners, s.Owner),
	}
	if f := a.Former; f != nil {
		o := &f.Owner
		out.Previous = &pb.PreviousOwner{
			Workload: workloadProto(o), Node: o.Node.Name, Interface: o.Interface.Name, Mac: o.MAC.String(), Netns: netns(o),
			Until: timestamp(f.Until), Gap: durationpb.New(f.Gap()),
		}
	}
	out.Beliefs = each(a.Beliefs, s.belief)
	out.Endpoints = each(a.Endpoints, func(e ipam.Endpoint) *pb.Endpoint {
		return &pb.Endpoint{
			Namespace: e.Service.Namespace, Service: e.Service.Name, Slice: e.Slice, Manager: e.Manager, PodNamespace: e.Pod.Namespace, Pod: e.Pod.Name, Uid: e.UID,
		}
	})
	out.Translations = each(a.Translations, func(t verdict.Translation) *pb.Senders_Translation {
		one := s.Translation(&t)
		one.Former = true
		return one
	})
	out.Memory = memory(a.Past, []*verdict.Pool{a.Pool})
	var use verdict.PoolUse
	if p := s.Facts.Pool(a.Pool); p != nil {
		use = s.Findings.Use(p)
		out.Pool = Pool(&p.Rec, use)
	} else if a.Stock != nil {
		out.Pool = Pool(a.Pool, a.Stock.Use)
	}
	text := explain.Finding(a, use)
	if superseded {
		text = text.Superseded()
	}
	out.Summary, out.Evidence, out.Remedy = text.Summary, text.Evidence, adviceProto(text.Remedy)
	out.Fixes = each(text.Fixes, func(f advice.Fix) *pb.Fix {
		return &pb.Fix{Node: f.Node, What: f.What, Command: f.Command, Manual: f.Manual}
	})
	out.Addresses = each(audit.Addresses(a), netip.Addr.String)
	out.Allocations = each(a.Allocations, allocationProto)
	nodes := audit.Nodes(a)
	out.Nodes = nodes[:min(len(nodes), maxNamed)]
	return out
}

func (s *Converter) belief(b verdict.Belief) *pb.Belief {
	out := &pb.Belief{
		Mac: b.MAC.String(), Node: b.Link.Node.Name, Link: b.Link.Name, State: pb.Belief_State(b.State), Count: b.Count, Since: timestamp(b.Since),
	}
	for _, i := range b.Holders {
		out.Holders = append(out.Holders, &pb.Belief_Holder{Workload: workloadProto(of(i.Namespace)), Interface: i.Name, Netns: i.Namespace.Netns})
	}
	if b.Former != nil {
		out.Former = &pb.PreviousOwner{Workload: workloadProto(of(b.Former)), Node: b.Former.Node.Name, Mac: out.GetMac(), Until: timestamp(b.Left)}
	}
	if len(b.Receivers) > 0 {
		out.Receiver = workloadProto(of(b.Receivers[0].Namespace))
	}
	return out
}

// Translation returns a connection that a node sends to an address in the format of the API. The caller holds the facts.
func (s *Converter) Translation(t *verdict.Translation) *pb.Senders_Translation {
	out := &pb.Senders_Translation{
		Node: t.Node.Name, Protocol: t.Protocol, Source: t.From.String(), Destination: t.To.String(), Port: uint32(t.Port), Zone: uint32(t.Zone), ExistedAt: timestamp(t.Existed),
	}
	if t.Sender != nil {
		out.Workload = workloadProto(t.Sender)
	}
	return out
}

func of(ns *verdict.Namespace) *verdict.Owner {
	return &verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns}
}

// Workload returns the workload in a namespace in the format of the API. The caller holds the facts.
func (s *Converter) Workload(ns *verdict.Namespace) *pb.Workload {
	o := of(ns)
	o.Pod = s.Facts.PodObject(ns)
	return workloadProto(o)
}

// adviceProto converts the actions for a finding to the format of the API.
func adviceProto(actions []advice.Action) []*pb.Action {
	return each(actions, func(a advice.Action) *pb.Action {
		return &pb.Action{Text: a.Text, Command: a.Command, Node: a.Node, Verify: a.Verify, Choice: each(a.Choice, func(alt advice.Alternative) *pb.Alternative {
			return &pb.Alternative{When: alt.When, Actions: adviceProto(alt.Actions)}
		})}
	})
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
	out.Ranges = each(slices.Concat(p.Ranges, p.Divided), ipam.Range.String)
	if use.ExhaustedIn > 0 {
		out.ExhaustedIn = durationpb.New(time.Duration(min(use.ExhaustedIn, maxExhaustion.Seconds()) * float64(time.Second)))
	}
	return out
}

// PoolHistory returns the use of a pool over time in the format of the API.
func PoolHistory(used []audit.Used) []*pb.Pool_Sample {
	return each(used, func(u audit.Used) *pb.Pool_Sample {
		return &pb.Pool_Sample{At: timestamp(u.At), Allocated: u.Allocated}
	})
}

// maxExhaustion limits how far ahead the exhaustion of a pool is predicted.
const maxExhaustion = 365 * 24 * time.Hour
