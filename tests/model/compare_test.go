package model_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// resolvedEvery is how often resolved conflicts are compared that have not changed in the reference.
const resolvedEvery = 10

// compare returns how what the aggregator says differs from what the reference does. Resolved
// conflicts become many: they are compared when one of the reference's has changed, and at the end.
func (r *run) compare(end bool) string {
	for _, a := range r.agents {
		if s := a.stream; s != nil && s.ended() != s.session.over {
			return fmt.Sprintf("n%d: got a stream that ended: %t, want %t", a.number, s.ended(), s.session.over)
		}
	}
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
	var findings []*pb.Finding
	for token := ""; ; {
		page, err := r.witness.ListFindings(ctx, &pb.ListFindingsRequest{PageSize: 10_000, PageToken: token})
		if err != nil {
			return err.Error()
		}
		for _, f := range page.GetFindings() {
			if r.quiet() || !slices.Contains(lateFindings, f.GetKind()) {
				findings = append(findings, proto.CloneOf(f))
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	return differ("finding", findings, r.listFindings(), scrubFinding)
}

func scrubFinding(f *pb.Finding) {
	f.Summary, f.Evidence, f.Remedy, f.Runbook, f.Fixes = "", nil, nil, "", nil
	if f.GetPool() != nil {
		f.Pool.ExhaustedIn = nil
	}
	for _, o := range f.GetOwners() {
		scrubOwner(o)
		if f.GetPool() != nil { // it is kept as it was while the pool cannot be read, and its owner is seen again
			scrubSeen(o)
		}
		if f.GetKind() == verdict.FindingMACCloned { // it is about many addresses: what the owners are for one of them does not matter
			node, netns := o.GetNode(), o.GetNetns()
			proto.Reset(o)
			o.Node, o.Netns = node, netns
		}
	}
	if slices.Contains(lateFindings, f.GetKind()) {
		f.DetectedAt = nil
	}
}

// differ compares two lists, without what scrub takes out of what the aggregator says.
func differ[M proto.Message](what string, got, want []M, scrub func(M)) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("%s is missing:\n  want %s", what, text(want[i]))
		case i >= len(want):
			scrub(got[i])
			return fmt.Sprintf("%s is too many:\n  got  %s", what, text(got[i]))
		}
		scrub(got[i])
		scrub(want[i])
		if !equal(got[i], want[i]) {
			return fmt.Sprintf("%s differs:\n  got  %s\n  want %s", what, text(got[i]), text(want[i]))
		}
	}
	return ""
}

// equal is proto.Equal, which takes several times as long where both are equal.
func equal(a, b proto.Message) bool {
	options := proto.MarshalOptions{Deterministic: true}
	x, err := options.Marshal(a)
	y, other := options.Marshal(b)
	return err == nil && other == nil && bytes.Equal(x, y) || proto.Equal(a, b)
}

func text(m proto.Message) string { return prototext.MarshalOptions{}.Format(m) }

func scrubOwner(o *pb.Owner) {
	if o.GetExcluded() != "" {
		o.Excluded = said
	}
}

func scrubConflict(c *pb.Conflict) {
	over := c.GetState() == pb.Conflict_RESOLVED
	c.Summary, c.Because, c.Diagnosis, c.Remedy, c.Runbook, c.Related = "", nil, nil, nil, "", nil
	for _, e := range c.GetExcluded() {
		e.Reason = ""
	}
	for _, o := range c.GetOwners() {
		scrubOwner(o)
		if over { // it shows what there was, or what there is now
			scrubSeen(o)
			o.Intended = nil
		}
	}
}

func scrubSeen(o *pb.Owner) {
	o.Evidence, o.FirstSeen, o.LastSeen, o.AssignedAt = nil, nil, nil, nil
}
