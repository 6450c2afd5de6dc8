package model_test

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// compare returns how what the aggregator says differs from what the reference does.
func (r *run) compare() string {
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
	var conflicts []*pb.Conflict
	for token := ""; ; {
		page, err := r.witness.ListConflicts(ctx, &pb.ListConflictsRequest{All: true, PageSize: 10_000, PageToken: token})
		if err != nil {
			return err.Error()
		}
		conflicts = append(conflicts, page.GetConflicts()...)
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	return differ("conflict", conflicts, r.listConflicts(), scrubConflict)
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
		if !proto.Equal(got[i], want[i]) {
			return fmt.Sprintf("%s differs:\n  got  %s\n  want %s", what, text(got[i]), text(want[i]))
		}
	}
	return ""
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
		if over { // shows what there is now, or what there was
			o.Evidence, o.FirstSeen, o.LastSeen, o.AssignedAt, o.Intended = nil, nil, nil, nil, nil
		}
	}
}
