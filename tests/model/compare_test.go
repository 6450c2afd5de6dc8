package model_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// resolvedEvery is the interval, in comparisons, at which resolved conflicts are compared even if
// those of the reference have not changed.
const resolvedEvery = 10

// compare returns the difference between the lists of the aggregator and of the reference. Resolved
// conflicts become numerous, so they are compared only after a change in the reference, at
// intervals, and at the end.
func (r *run) compare(end bool) string {
	for _, a := range r.agents {
		if s := a.stream; s != nil && s.ended() != s.session.over {
			return fmt.Sprintf("n%d: got a stream that ended: %t, want %t", a.number, s.ended(), s.session.over)
		}
	}
	r.publish() // including results of messages that are left out
	ctx := context.Background()
	var owners []*pb.Owner
	for token := ""; ; {
		page, err := r.witness.ListOwners(ctx, &pb.ListOwnersRequest{PageSize: 10_000, PageToken: token})
		if err != nil {
			return err.Error()
		}
		owners = append(owners, page.GetOwners()...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if d := differ("owner", owners, r.listOwners(), scrubOwner); d != "" {
		return d
	}
	resolved := r.resolved()
	r.compared++
	all := end || r.compared%resolvedEvery == 0 || !slices.Equal(resolved, r.lastResolved)
	r.lastResolved = resolved
	var conflicts []*pb.Conflict
	for token := ""; ; {
		page, err := r.witness.ListConflicts(ctx, &pb.ListConflictsRequest{All: all, PageSize: 10_000, PageToken: token})
		if err != nil {
			return err.Error()
		}
		conflicts = append(conflicts, page.GetConflicts()...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if d := differ("conflict", conflicts, r.listConflicts(all), scrubConflict); d != "" {
		return d
	}
	for _, n := range r.nodes {
		for _, i := range n.interfaces {
			r.twins[verdict.FindingID(r.policy.Cluster, verdict.FindingMACCloned, i.rec.MAC.String()+" "+i.namespace.rec.ID)] = true
		}
	}
	var findings []*pb.Finding
	for token := ""; ; {
		page, err := r.witness.ListFindings(ctx, &pb.ListFindingsRequest{PageSize: 10_000, PageToken: token})
		if err != nil {
			return err.Error()
		}
		for _, f := range page.GetFindings() {
			if !r.twins[f.GetId()] && (r.quiet() || !isLate(f)) {
				findings = append(findings, proto.CloneOf(f))
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	// Findings about a node whose report is awaited do not end before it has arrived. The reference ends them, and does not
	// know which former owners they name.
	reference, awaited := r.listFindings(), map[string]bool{}
	for _, f := range slices.Concat(findings, reference) {
		awaited[f.GetId()] = awaited[f.GetId()] || slices.ContainsFunc(r.nodes, func(n *node) bool {
			return n.session != nil && n.rec.Unheard && !n.rec.TimedOut && slices.Contains(f.GetNodes(), n.rec.Name)
		})
	}
	// A hardware address may be found in a snapshot that is being received: its finding ends some milliseconds later.
	receives := slices.ContainsFunc(r.agents, func(a *agent) bool { return a.stream != nil && a.stream.inside })
	waits := func(f *pb.Finding) bool {
		return awaited[f.GetId()] || receives && f.GetKind() == verdict.FindingMACCloned || !r.settled() && f.GetKind() == verdict.FindingStaleBelief
	}
	return differ("finding", slices.DeleteFunc(findings, waits), slices.DeleteFunc(reference, waits), scrubFinding)
}

// isLate reports whether a finding is one of lateFindings, and not about one address.
func isLate(f *pb.Finding) bool {
	_, err := netip.ParseAddr(f.GetAddress())
	return err != nil && slices.Contains(lateFindings, f.GetKind())
}

func scrubFinding(f *pb.Finding) {
	f.Summary, f.Evidence, f.Remedy, f.Runbook, f.Fixes, f.Memory, f.Previous = "", nil, nil, "", nil, nil, nil
	f.Incident = ""
	if f.GetKind() == verdict.FindingIntendedNotObserved { // which of several rivals is named depends on the order of judgements
		f.Nodes = nil
	}
	if f.GetPool() != nil {
		f.Pool.ExhaustedIn = nil
	}
	for _, o := range f.GetOwners() {
		scrubOwner(o)
		if f.GetPool() != nil { // the pool is kept unchanged while it cannot be read, but its owner may change
			scrubSeen(o)
		}
		if f.GetKind() == verdict.FindingMACCloned { // it concerns many addresses, so its owners are not specific to one of them
			node, netns := o.GetNode(), o.GetNetns()
			proto.Reset(o)
			o.Node, o.Netns = node, netns
		}
	}
	if isLate(f) {
		f.DetectedAt = nil
	}
	if f.GetKind() == verdict.FindingStaleBelief {
		f.DetectedAt = nil
		for _, b := range f.GetBeliefs() {
			b.Holders, b.Since, b.Former, b.Receiver = nil, nil, nil, nil
		}
		for _, o := range f.GetOwners() {
			scrubSeen(o)
		}
	}
}

// differ compares two lists. Before that, scrub removes the parts of the aggregator's messages that
// are not compared.
func differ[M proto.Message](what string, got, want []M, scrub func(M)) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("%s is missing:\n  want %s", what, text(want[i]))
		case i >= len(want):
			scrub(got[i])
			return fmt.Sprintf("%s is unexpected:\n  got  %s", what, text(got[i]))
		}
		scrub(got[i])
		scrub(want[i])
		if !equal(got[i], want[i]) {
			return fmt.Sprintf("%s differs:\n  got  %s\n  want %s", what, text(got[i]), text(want[i]))
		}
	}
	return ""
}

// equal is equivalent to proto.Equal, but several times as fast if the messages are equal.
func equal(a, b proto.Message) bool {
	options := proto.MarshalOptions{Deterministic: true}
	x, err := options.Marshal(a)
	y, other := options.Marshal(b)
	return err == nil && other == nil && bytes.Equal(x, y) || proto.Equal(a, b)
}

func text(m proto.Message) string { return prototext.MarshalOptions{}.Format(m) }

func scrubOwner(o *pb.Owner) {
	if o.GetExcluded() != "" {
		o.Excluded = anyText
	}
}

func scrubConflict(c *pb.Conflict) {
	over := c.GetState() == pb.Conflict_RESOLVED
	c.Summary, c.Because, c.Diagnosis, c.Remedy, c.Runbook, c.Related, c.Memory = "", nil, nil, nil, "", nil, nil
	c.Incident = ""
	c.Eldest = nil // it depends on the clock skew, which the reference does not measure
	for _, e := range c.GetExcluded() {
		e.Reason = ""
	}
	for _, o := range c.GetOwners() {
		scrubOwner(o)
		if over { // it shows either the old or the current state
			scrubSeen(o)
			o.Intended = nil
		}
	}
}

func scrubSeen(o *pb.Owner) {
	o.Evidence, o.FirstSeen, o.LastSeen, o.AssignedAt = nil, nil, nil, nil
}
