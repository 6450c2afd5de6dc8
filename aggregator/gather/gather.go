// Package gather answers for all replicas that share the addresses: it asks each for what it serves, and
// merges the answers in order. It holds no state.
package gather

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/share"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Service is the WitnessService of a replica. What it does not gather, the replica knows itself: nodes,
// pools, and the history, which is that of all.
type Service struct {
	*api.Service
	Share *share.Share
}

// Handle answers a request of another replica from what this one serves.
func (s *Service) Handle(ctx context.Context, method string, request []byte, send func(proto.Message) error) error {
	own := s.Service
	switch method {
	case pb.WitnessService_ListOwners_FullMethodName:
		return unary(ctx, request, new(pb.ListOwnersRequest), own.ListOwners, send)
	case pb.WitnessService_ListConflicts_FullMethodName:
		return unary(ctx, request, new(pb.ListConflictsRequest), own.ListConflicts, send)
	case pb.WitnessService_ListFindings_FullMethodName:
		return unary(ctx, request, new(pb.ListFindingsRequest), own.ListFindings, send)
	case pb.WitnessService_GetConflict_FullMethodName:
		return unary(ctx, request, new(pb.GetConflictRequest), own.GetConflict, send)
	case pb.WitnessService_GetFinding_FullMethodName:
		return unary(ctx, request, new(pb.GetFindingRequest), own.GetFinding, send)
	case pb.WitnessService_Explain_FullMethodName:
		return unary(ctx, request, new(pb.ExplainRequest), own.Explain, send)
	case pb.WitnessService_AcknowledgeConflict_FullMethodName:
		return unary(ctx, request, new(pb.AcknowledgeConflictRequest), own.AcknowledgeConflict, send)
	case pb.WitnessService_WatchOwners_FullMethodName:
		return streaming(ctx, request, new(pb.WatchOwnersRequest), own.WatchOwners, send)
	case pb.WitnessService_WatchConflicts_FullMethodName:
		return streaming(ctx, request, new(pb.WatchConflictsRequest), own.WatchConflicts, send)
	case pb.WitnessService_WatchFindings_FullMethodName:
		return streaming(ctx, request, new(pb.WatchFindingsRequest), own.WatchFindings, send)
	}
	return status.Errorf(codes.Unimplemented, "replicas cannot ask each other for %s", method)
}

func unary[Q, A proto.Message](ctx context.Context, raw []byte, q Q, do func(context.Context, Q) (A, error), send func(proto.Message) error) error {
	if err := proto.Unmarshal(raw, q); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	answer, err := do(ctx, q)
	if err != nil {
		return err
	}
	return send(answer)
}

// A replica is what is known of one replica while a request is answered.
type replica struct {
	name string // empty for this one
	set  facts.PartitionSet
}

// replicas are all replicas, this one first.
type replicas struct {
	all []replica
	// anybody has the partitions that some replica serves completely.
	anybody facts.PartitionSet
}

func (s *Service) replicas() (r replicas, changed <-chan struct{}) {
	state, changed := s.Share.State()
	r.all = append(r.all, replica{set: state.Complete})
	for _, name := range state.Names() {
		r.all = append(r.all, replica{name, state.Others[name]})
	}
	for _, one := range r.all {
		for p, in := range one.set {
			r.anybody[p] = r.anybody[p] || in
		}
	}
	return r, changed
}

// knows reports whether an item of a partition is to be taken from a replica: one that serves the
// partition completely or, if there is none, any that has the item.
func (r *replicas) knows(one *replica, partition int) bool {
	return one.set[partition] || !r.anybody[partition]
}

// ask asks one replica. method and own are the method of the service.
func ask[Q, A proto.Message](ctx context.Context, s *Service, one *replica, method string, q Q, answer A, own func(context.Context, Q) (A, error)) (A, error) {
	if one.name == "" {
		return own(ctx, q)
	}
	err := s.Share.Call(ctx, one.name, method, q, answer)
	return answer, err
}

// askAll asks all replicas at the same time. It fails only if this one does; the other replicas that do
// not answer are failed.
func askAll[Q, A proto.Message](ctx context.Context, s *Service, r *replicas, method string, q Q, empty func() A, own func(context.Context, Q) (A, error)) (answers []A, failed int, err error) {
	answers = make([]A, len(r.all))
	errs := make([]error, len(r.all))
	var group sync.WaitGroup
	for i := range r.all {
		group.Go(func() { answers[i], errs[i] = ask(ctx, s, &r.all[i], method, q, empty(), own) })
	}
	group.Wait()
	if errs[0] != nil {
		return nil, 0, errs[0]
	}
	for i, one := range errs {
		if one != nil {
			answers[i] = empty()
			failed++
			if !errors.Is(ctx.Err(), context.Canceled) {
				s.Share.Log.Debug("a replica does not answer", "replica", r.all[i].name, "error", one)
			}
		}
	}
	return answers, failed, ctx.Err()
}

// first asks one replica after the other until one has what is asked for.
func first[Q, A proto.Message](ctx context.Context, s *Service, method string, q Q, empty func() A, own func(context.Context, Q) (A, error)) (answer A, err error) {
	r, _ := s.replicas()
	missing := error(nil)
	for i := range r.all {
		if answer, err = ask(ctx, s, &r.all[i], method, q, empty(), own); err == nil {
			return answer, nil
		}
		if status.Code(err) != codes.NotFound {
			missing = err
		}
	}
	if missing != nil {
		return answer, missing // the item may be there
	}
	return answer, err
}

// GetConflict returns a conflict by its ID.
func (s *Service) GetConflict(ctx context.Context, q *pb.GetConflictRequest) (*pb.GetConflictResponse, error) {
	return first(ctx, s, pb.WitnessService_GetConflict_FullMethodName, q, func() *pb.GetConflictResponse { return new(pb.GetConflictResponse) }, s.Service.GetConflict)
}

// GetFinding returns a finding by its ID.
func (s *Service) GetFinding(ctx context.Context, q *pb.GetFindingRequest) (*pb.GetFindingResponse, error) {
	return first(ctx, s, pb.WitnessService_GetFinding_FullMethodName, q, func() *pb.GetFindingResponse { return new(pb.GetFindingResponse) }, s.Service.GetFinding)
}

// AcknowledgeConflict acknowledges a conflict at all replicas that have it: while a partition is handed over,
// two of them do.
func (s *Service) AcknowledgeConflict(ctx context.Context, q *pb.AcknowledgeConflictRequest) (answer *pb.AcknowledgeConflictResponse, err error) {
	r, _ := s.replicas()
	missing := error(nil)
	for i := range r.all {
		one, failed := ask(ctx, s, &r.all[i], pb.WitnessService_AcknowledgeConflict_FullMethodName, q, new(pb.AcknowledgeConflictResponse), s.Service.AcknowledgeConflict)
		switch {
		case failed == nil:
			answer = one
		case missing == nil || status.Code(failed) != codes.NotFound:
			missing = failed
		}
	}
	if answer != nil {
		return answer, nil
	}
	return nil, missing
}

// Explain explains why an address is, or is not, in conflict. The replica that serves the address knows.
func (s *Service) Explain(ctx context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	partition, err := api.PartitionOf(q.GetAddress())
	if err != nil {
		return nil, err
	}
	r, _ := s.replicas()
	for i := range r.all {
		if one := &r.all[i]; r.knows(one, partition) && q.GetAt() == nil {
			return ask(ctx, s, one, pb.WitnessService_Explain_FullMethodName, q, new(pb.ExplainResponse), s.Service.Explain)
		}
	}
	return s.Service.Explain(ctx, q)
}
