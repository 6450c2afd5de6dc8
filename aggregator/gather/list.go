package gather

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A part is the page of one replica. Its items are in order.
type part[T any] struct {
	of    *replica
	items []T
	next  string
}

// An order is how the items of a list are ordered, and which partition an item belongs to.
type order[T any] struct {
	compare   func(a, b T) int
	partition func(T) int
}

// merge merges the pages of all replicas into one. It ends where the first of them ends that has more
// pages, because the next item of that replica may come before those of others. A token says after which
// item a page begins, so it is valid for every replica.
func merge[T any](r *replicas, parts []part[T], by order[T]) (items []T, next string) {
	var end *T
	for i := range parts {
		one := &parts[i]
		if n := len(one.items); one.next != "" && n > 0 && (end == nil || by.compare(one.items[n-1], *end) < 0) {
			end, next = &one.items[n-1], one.next
		}
	}
	type from struct {
		item T
		part int
	}
	var all []from
	for i := range parts {
		for _, item := range parts[i].items {
			if (end == nil || by.compare(item, *end) <= 0) && r.knows(parts[i].of, by.partition(item)) {
				all = append(all, from{item, i})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b from) int { return by.compare(a.item, b.item) })
	for i, one := range all {
		if i > 0 && by.compare(all[i-1].item, one.item) == 0 && all[i-1].part != one.part {
			all[i].part = all[i-1].part // while a partition is handed over, two replicas have it
			continue
		}
		items = append(items, one.item)
	}
	return items, next
}

// pageOf returns the size of the page of each replica, so that all together are one page.
func pageOf(asked uint32, replicas int) uint32 {
	if asked == 0 {
		asked = 1000
	}
	return max(1, asked/uint32(replicas)) //nolint:gosec // few
}

func addressOf(text string) netip.Addr {
	a, _ := netip.ParseAddr(text)
	return a
}

func partitionOf(c *journal.Change) int {
	p, _ := journal.Partition(c)
	return p
}

var (
	ownersOrder = order[*pb.Owner]{
		func(a, b *pb.Owner) int { return addressOf(a.GetAddress()).Compare(addressOf(b.GetAddress())) },
		func(o *pb.Owner) int { return partitionOf(&journal.Change{Owner: o}) },
	}
	conflictsOrder = order[*pb.Conflict]{
		func(a, b *pb.Conflict) int {
			return cmp.Or(addressOf(a.GetAddress()).Compare(addressOf(b.GetAddress())), cmp.Compare(a.GetId(), b.GetId()))
		},
		func(c *pb.Conflict) int { return partitionOf(&journal.Change{Conflict: c}) },
	}
	findingsOrder = order[*pb.Finding]{
		func(a, b *pb.Finding) int {
			return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
		},
		func(f *pb.Finding) int { return partitionOf(&journal.Change{Finding: f}) },
	}
)

// covered returns the coverage of an answer. If a replica has not answered, or if nobody serves a
// partition, something may be missing.
func (r *replicas) covered(c *pb.Coverage, failed int) *pb.Coverage {
	missing := uint32(0)
	for _, in := range r.anybody {
		if !in {
			missing++
		}
	}
	if failed == 0 && missing == 0 {
		return c
	}
	c = proto.CloneOf(c)
	c.Incomplete, c.MissingPartitions, c.SilentReplicas = true, missing, uint32(failed) //nolint:gosec // few
	return c
}

// ListOwners lists the owners of addresses, now or at a time.
func (s *Service) ListOwners(ctx context.Context, q *pb.ListOwnersRequest) (*pb.ListOwnersResponse, error) {
	if q.GetAt() != nil {
		return s.Service.ListOwners(ctx, q)
	}
	r, _ := s.replicas()
	of := proto.CloneOf(q)
	of.PageSize = pageOf(q.GetPageSize(), len(r.all))
	answers, failed, err := askAll(ctx, s, &r, pb.WitnessService_ListOwners_FullMethodName, of, func() *pb.ListOwnersResponse { return new(pb.ListOwnersResponse) }, s.Service.ListOwners)
	if err != nil {
		return nil, err
	}
	var parts []part[*pb.Owner]
	for i, a := range answers {
		parts = append(parts, part[*pb.Owner]{&r.all[i], a.GetOwners(), a.GetNextPageToken()})
	}
	owners, next := merge(&r, parts, ownersOrder)
	return &pb.ListOwnersResponse{Owners: owners, NextPageToken: next, Coverage: r.covered(answers[0].GetCoverage(), failed)}, nil
}

// ListConflicts lists the conflicts, now or at a time.
func (s *Service) ListConflicts(ctx context.Context, q *pb.ListConflictsRequest) (*pb.ListConflictsResponse, error) {
	if q.GetAt() != nil {
		return s.Service.ListConflicts(ctx, q)
	}
	r, _ := s.replicas()
	of := proto.CloneOf(q)
	of.PageSize = pageOf(q.GetPageSize(), len(r.all))
	answers, failed, err := askAll(ctx, s, &r, pb.WitnessService_ListConflicts_FullMethodName, of, func() *pb.ListConflictsResponse { return new(pb.ListConflictsResponse) }, s.Service.ListConflicts)
	if err != nil {
		return nil, err
	}
	var parts []part[*pb.Conflict]
	for i, a := range answers {
		parts = append(parts, part[*pb.Conflict]{&r.all[i], a.GetConflicts(), a.GetNextPageToken()})
	}
	conflicts, next := merge(&r, parts, conflictsOrder)
	return &pb.ListConflictsResponse{Conflicts: conflicts, NextPageToken: next, Coverage: r.covered(answers[0].GetCoverage(), failed)}, nil
}

// ListFindings lists problems that are not conflicts, now or at a time.
func (s *Service) ListFindings(ctx context.Context, q *pb.ListFindingsRequest) (*pb.ListFindingsResponse, error) {
	if q.GetAt() != nil {
		return s.Service.ListFindings(ctx, q)
	}
	r, _ := s.replicas()
	of := proto.CloneOf(q)
	of.PageSize = pageOf(q.GetPageSize(), len(r.all))
	answers, failed, err := askAll(ctx, s, &r, pb.WitnessService_ListFindings_FullMethodName, of, func() *pb.ListFindingsResponse { return new(pb.ListFindingsResponse) }, s.Service.ListFindings)
	if err != nil {
		return nil, err
	}
	var parts []part[*pb.Finding]
	for i, a := range answers {
		parts = append(parts, part[*pb.Finding]{&r.all[i], a.GetFindings(), a.GetNextPageToken()})
	}
	findings, next := merge(&r, parts, findingsOrder)
	return &pb.ListFindingsResponse{Findings: findings, NextPageToken: next, Coverage: r.covered(answers[0].GetCoverage(), failed)}, nil
}
