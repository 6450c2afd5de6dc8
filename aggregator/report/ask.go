package report

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// answersWithin is how long the answers of agents are awaited.
	answersWithin = time.Second
	// maxAsked limits the agents that are asked about an address.
	maxAsked = 64
)

// An Answer is what the agent of a node says about the entries of neighbour tables for an address.
type Answer struct {
	Node *facts.Node
	// Peer is the stream that was asked; nil if the agent was not connected.
	Peer facts.Peer
	// Asked is set if the agent was asked.
	Asked bool
	// Beliefs is the answer; nil if there was none in time.
	Beliefs *pb.BeliefAnswer
}

// An asker receives one answer. It does not block.
type asker func(*pb.BeliefAnswer)

// Ask asks the agents about an address and waits for their answers: those on the links on which it is claimed first. Callers
// that ask about the same address at the same time share the answers. If may is not set, it asks none, and says so for each.
func (s *Service) Ask(a netip.Addr, may bool) []Answer {
	if !may {
		return s.ask(a, 0)
	}
	all, _, _ := s.asking.Do(a.String(), func() (any, error) { return s.ask(a, maxAsked), nil })
	return all.([]Answer)
}

func (s *Service) ask(a netip.Addr, most int) (all []Answer) {
	s.Facts.RLock()
	for _, n := range s.Facts.Near(index.AddressOf(a)) {
		if n.Peer != nil || !n.Rec.TimedOut {
			all = append(all, Answer{Node: n, Peer: n.Peer})
		}
	}
	s.Facts.RUnlock()
	type answered struct {
		i int
		*pb.BeliefAnswer
	}
	arrived, asked := make(chan answered, most), 0
	for i := range all {
		r, ok := all[i].Peer.(*Session)
		if !ok || asked == most {
			continue
		}
		asked++
		all[i].Asked = true
		defer r.ask(a, func(answer *pb.BeliefAnswer) { arrived <- answered{i, answer} })()
	}
	late := time.NewTimer(answersWithin)
	defer late.Stop()
	for ; asked > 0; asked-- {
		select {
		case one := <-arrived:
			all[one.i].Beliefs = one.BeliefAnswer
		case <-late.C:
			return all
		case <-s.Stopped:
			return all
		}
	}
	return all
}

// ask asks the agent about an address. forget must be called when its answer is no longer awaited.
func (r *Session) ask(a netip.Addr, answered asker) (forget func()) {
	var id uint64
	r.update(func() {
		r.askID++
		id = r.askID
		r.questions = append(r.questions, &pb.BeliefQuestion{Id: id, Address: a.AsSlice()})
		r.askers[id] = answered
	})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.askers, id)
		r.questions = slices.DeleteFunc(r.questions, func(q *pb.BeliefQuestion) bool { return q.GetId() == id })
	}
}

// answered passes answers to those that wait for them.
func (r *Session) answered(all []*pb.BeliefAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range all {
		if answered := r.askers[a.GetId()]; answered != nil {
			delete(r.askers, a.GetId())
			answered(a)
		}
	}
}
