package api

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ListNodes lists the agents and their health.
func (s *Service) ListNodes(_ context.Context, q *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	coverage := s.Coverage.Current()
	return &pb.ListNodesResponse{
		Nodes: s.nodes(""), Kubernetes: s.Kubernetes.Status(), Coverage: coverage, Problems: s.Problems(), Election: s.Kubernetes.Election(),
	}, nil
}

// GetNode returns a node by its name.
func (s *Service) GetNode(_ context.Context, q *pb.GetNodeRequest) (*pb.GetNodeResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	if q.GetName() != "" {
		for _, n := range s.nodes(q.GetName()) {
			return &pb.GetNodeResponse{Node: n}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no node has the name %q: /v1/nodes lists all nodes", q.GetName())
}

// isNode reports whether a node has a name.
func (s *Service) isNode(name string) bool {
	s.Facts.RLock()
	defer s.Facts.RUnlock()
	for n := range s.Facts.Nodes {
		if n.Rec.Name == name {
			return true
		}
	}
	return false
}

// nodes returns the nodes with a name, or all nodes if the name is empty, by name and identity.
func (s *Service) nodes(name string) []*pb.Node {
	type named struct {
		name string
		node *facts.Node
	}
	var all []named
	s.Facts.RLock()
	for n := range s.Facts.Nodes {
		if name == "" || n.Rec.Name == name {
			all = append(all, named{n.Rec.Name, n})
		}
	}
	s.Facts.RUnlock()
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(strings.Compare(a.name, b.name), a.node.ID.Compare(b.node.ID)) })
	out := []*pb.Node{}
	for some := range slices.Chunk(all, pageStep) {
		s.Facts.RLock()
		for _, n := range some {
			if slices.Contains(s.Facts.At(n.node.ID.Place()), n.node) {
				out = append(out, s.Convert.Node(n.node))
			}
		}
		s.Facts.RUnlock()
	}
	return out
}

// lookEvery is the interval at which a watch of nodes looks for changes that are not published, such as
// new problems.
const lookEvery = 5 * time.Second

// A nodeWatch is one subscriber to the nodes. It has no queue: it compares the nodes with what it has
// sent, so that nothing waits for it, and a slow subscriber gets the latest state.
type nodeWatch struct {
	s     *Service
	send  func(*pb.WatchNodesResponse) error
	flush func() error
	name  string // of the only node; empty for all
	past  recorded

	// next is the revision after the last published event that was looked at.
	next uint64
	some []live.Event
	// sent has the nodes that the subscriber knows, by name.
	sent map[string]sentNode
	seed maphash.Seed
	// from is the time of the state from before the subscriber resumed, while it is not known whether nodes of that
	// state are gone; zero otherwise.
	from time.Time
	// marked is the last bookmark, and token is its token.
	marked *pb.WatchNodesResponse
	token  atomic.Pointer[resumeToken]
}

// A sentNode is what a subscriber knows of a node.
type sentNode struct {
	// sum is a hash of the state; 0 if the subscriber knows the node only from before it resumed.
	sum uint64
	// boot and netns are sent again when the node is gone.
	boot, netns string
}

// WatchNodes sends the nodes, then every change of a node.
func (s *Service) WatchNodes(q *pb.WatchNodesRequest, stream pb.WitnessService_WatchNodesServer) error {
	if err := s.own(q); err != nil {
		return err
	}
	var token resumeToken
	if text := q.GetResumeToken(); text != "" {
		var err error
		if token, err = parseResumeToken(text); err != nil {
			return err
		}
	}
	s.NodeWatches.Add(1)
	defer s.NodeWatches.Add(-1)
	w := &nodeWatch{
		s: s, name: q.GetName(), seed: maphash.MakeSeed(), sent: make(map[string]sentNode),
		// The journal gets nodes in the order of the events of conflicts.
		past: recorded{instance: instanceText(s.Instance), journal: s.Journal, kind: pb.Event_CONFLICT},
	}
	w.token.Store(&resumeToken{instance: w.past.instance}) // leads to LOST
	cutOff := func() string { return w.token.Load().String() }
	return Attend(stream, s.Stopped, cutOff, func(ctx context.Context, send func(*pb.WatchNodesResponse) error, flush func() error) error {
		w.send, w.flush = send, flush
		return w.follow(ctx, token)
	})
}

// follow sends the nodes, then the changes. One of its Sends may block forever.
func (w *nodeWatch) follow(ctx context.Context, token resumeToken) error {
	if token.instance != "" && !w.recall(ctx, token) {
		if err := w.send(&pb.WatchNodesResponse{Type: pb.Watch_LOST}); err != nil {
			return err
		}
	}
	look, quiet := time.NewTicker(lookEvery), time.NewTicker(bookmarkEvery)
	defer look.Stop()
	defer quiet.Stop()
	for {
		soon := time.NewTimer(readEvery)
		w.next = w.s.Events.Conflicts.Revision()
		if err := w.compare(); err != nil {
			return err
		}
		if err := w.mark(ctx, quiet.C); err != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
		if err := w.await(ctx, look.C); err != nil {
			return err
		}
		select {
		case <-soon.C: // many nodes may change at once
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// recall reads which nodes the subscriber knows from before it resumed. It returns false if the journal
// does not know that.
func (w *nodeWatch) recall(ctx context.Context, t resumeToken) bool {
	if !w.past.valid(ctx, t) {
		return false
	}
	w.from = t.at
	err := w.s.Journal.At(ctx, pb.Event_NODE, t.at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		if n := e.GetNode(); w.name == "" || w.name == n.GetName() {
			w.sent[n.GetName()] = sentNode{boot: n.GetBootId(), netns: n.GetNetns()}
		}
		return true
	})
	if err != nil {
		clear(w.sent)
	}
	return err == nil
}

// compare sends the nodes that differ from what was sent, and those that are gone.
func (w *nodeWatch) compare() error {
	// Before the agents that were connected before a restart have reported again, or have timed out, their nodes
	// only seem to be gone.
	complete := true
	if w.s.Journal != nil {
		_, complete, _ = w.s.Journal.Mark(w.past.kind)
	}
	now := make(map[string]bool)
	for _, n := range w.s.nodes(w.name) {
		name := n.GetName()
		now[name] = true
		heard, lag, skew := n.LastHeard, n.Lag, n.Skew
		n.LastHeard, n.Lag, n.Skew = nil, nil, nil // they change all the time
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(n)
		n.LastHeard, n.Lag, n.Skew = heard, lag, skew
		if err != nil {
			return err
		}
		sum := maphash.Bytes(w.seed, raw)
		m := &pb.WatchNodesResponse{Type: pb.Watch_ADDED, Node: n}
		was, known := w.sent[name]
		switch {
		case known && was.sum == sum:
			continue
		case known:
			m.Type = pb.Watch_UPDATED
		}
		if err := w.send(m); err != nil {
			return err
		}
		w.sent[name] = sentNode{sum, n.GetBootId(), n.GetNetns()}
	}
	settled := true
	for _, name := range slices.Sorted(maps.Keys(w.sent)) {
		if now[name] {
			continue
		}
		if !complete && w.sent[name].sum == 0 {
			settled = false
			continue
		}
		gone := &pb.Node{Name: name, BootId: w.sent[name].boot, Netns: w.sent[name].netns}
		if err := w.send(&pb.WatchNodesResponse{Type: pb.Watch_REMOVED, Node: gone}); err != nil {
			return err
		}
		delete(w.sent, name)
	}
	if settled {
		w.from = time.Time{}
	}
	return nil
}

// mark sends a bookmark if it is due or would differ from the last one.
func (w *nodeWatch) mark(ctx context.Context, due <-chan time.Time) error {
	m := &pb.WatchNodesResponse{
		Type: pb.Watch_BOOKMARK, Coverage: w.s.Coverage.Current(), Kubernetes: w.s.Kubernetes.Status(),
		Problems: w.s.Problems(), Election: w.s.Kubernetes.Election(),
	}
	select {
	case <-due:
	default:
		if w.marked != nil && sameSituation(m, w.marked) {
			return nil
		}
	}
	var token resumeToken
	if w.from.IsZero() {
		token = w.past.settled(ctx, w.next)
	} else { // it is not known whether the nodes from before are gone
		token = w.past.within(w.from)
	}
	m.ResumeToken = token.String()
	w.token.Store(&token)
	w.marked = m
	return w.send(m)
}

// sameSituation reports whether two bookmarks say the same, apart from times and counters.
func sameSituation(a, b *pb.WatchNodesResponse) bool {
	k, l := a.GetKubernetes(), b.GetKubernetes()
	return proto.Equal(a.GetCoverage(), b.GetCoverage()) && slices.Equal(a.GetProblems(), b.GetProblems()) &&
		proto.Equal(a.GetElection(), b.GetElection()) && k.GetState() == l.GetState() && slices.Equal(k.GetProblems(), l.GetProblems())
}

// await waits until the change of a node is published, or until it is time to look for other changes.
func (w *nodeWatch) await(ctx context.Context, look <-chan time.Time) error {
	isNode := func(e live.Event) bool { return e.Node != nil }
	for {
		var lost uint64
		var changed <-chan struct{}
		clear(w.some)
		w.some, w.next, lost, changed = w.s.Events.Conflicts.Since(w.next, live.Latest, w.some[:0])
		if lost > 0 || slices.ContainsFunc(w.some, isNode) {
			return nil
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-look:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
