package share

import (
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// tellEvery is how often replicas tell each other what is new, and tellAllEvery is how often they
	// repeat everything, because NATS may lose a message.
	tellEvery    = 250 * time.Millisecond
	tellAllEvery = 30 * time.Second
	// mostTold is the number of bytes of the items of a message.
	mostTold = 256 << 10
	// mostSightings limits the sightings that wait. Links are seen to be one again and again.
	mostSightings = 65536
)

// sightings are the frames that joined links and that others have not been told of, the latest of each
// pair of links.
type sightings struct {
	mu  sync.Mutex
	all map[[2]facts.LinkID]facts.Sighting
}

// Sighted notes a frame that joined two links.
func (s *Share) Sighted(one facts.Sighting) {
	s.sightings.mu.Lock()
	defer s.sightings.mu.Unlock()
	if len(s.sightings.all) < mostSightings {
		s.sightings.all[[2]facts.LinkID{one.Entered, one.Home}] = one
	}
}

func (s *sightings) take() map[[2]facts.LinkID]facts.Sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = make(map[[2]facts.LinkID]facts.Sighting)
	return all
}

// tell tells the other replicas what is new, or everything.
func (s *Share) tell(all bool) error {
	now := s.Facts.Clock()
	m, size := &pb.ReplicaHint{Replica: s.Replica, All: all}, 0
	send := func() error {
		raw, err := proto.Marshal(m)
		if err == nil {
			err = s.link.Conn().Publish(s.subject("told"), raw)
		}
		m, size = &pb.ReplicaHint{Replica: s.Replica, All: all, Part: m.GetPart() + 1}, 0
		return err
	}
	// more counts an item, and sends the message if it is full.
	more := func(item proto.Message) error {
		if size += proto.Size(item); size >= mostTold {
			return send()
		}
		return nil
	}
	for _, one := range s.sightings.take() {
		item := &pb.LinkSighting{
			Entered: linkRef(one.Entered), Home: linkRef(one.Home), Mac: []byte(one.MAC), Age: durationpb.New(max(0, now.Sub(one.Seen))),
		}
		m.Sightings = append(m.Sightings, item)
		if err := more(item); err != nil {
			return err
		}
	}
	answers, hints := s.Facts.TakeAnswers(), s.Findings.TakeHints()
	if all {
		answers, hints = s.Facts.AllAnswers(), s.Findings.AllHints()
	}
	for h, a := range answers {
		item := &pb.HostAnswers{Link: linkRef(h.Link), Mac: []byte(h.MAC), Addresses: uint32(a.Addresses), Owners: a.Owners} //nolint:gosec // few
		m.Answers = append(m.Answers, item)
		if err := more(item); err != nil {
			return err
		}
	}
	for a, h := range hints {
		item := hintOf(a, &h)
		m.Addresses = append(m.Addresses, item)
		if err := more(item); err != nil {
			return err
		}
	}
	if m.Last = all; !all && size == 0 {
		return nil
	}
	return send()
}

// skip forgets what is new while nobody can be told: everything is told when NATS is back.
func (s *Share) skip() {
	s.sightings.take()
	s.Facts.TakeAnswers()
	s.Findings.TakeHints()
}

// A telling is what a replica has told so far of everything.
type telling struct {
	next    uint32
	answers map[facts.Host]facts.Answers
	hints   map[index.Address]findings.Hint
}

// told takes what another replica tells. tellings are those that have begun.
func (s *Share) told(raw []byte, tellings map[string]*telling) {
	m := new(pb.ReplicaHint)
	if proto.Unmarshal(raw, m) != nil || m.GetReplica() == "" || m.GetReplica() == s.Replica {
		return
	}
	if len(m.GetSightings()) > 0 {
		now := s.Facts.Clock()
		all := make([]facts.Sighting, 0, len(m.GetSightings()))
		for _, one := range m.GetSightings() {
			all = append(all, facts.Sighting{
				Entered: linkID(one.GetEntered()), Home: linkID(one.GetHome()), MAC: verdict.MAC(one.GetMac()), Seen: now.Add(-max(0, one.GetAge().AsDuration())),
			})
		}
		s.Judge(s.Facts.Sighted(all))
	}
	answers, hints := make(map[facts.Host]facts.Answers, len(m.GetAnswers())), hintsFrom(m.GetAddresses())
	for _, one := range m.GetAnswers() {
		answers[facts.Host{Link: linkID(one.GetLink()), MAC: verdict.MAC(one.GetMac())}] = facts.Answers{Addresses: int(one.GetAddresses()), Owners: one.GetOwners()}
	}
	if m.GetAll() {
		t := tellings[m.GetReplica()]
		if m.GetPart() == 0 {
			t = &telling{answers: make(map[facts.Host]facts.Answers), hints: make(map[index.Address]findings.Hint)}
			tellings[m.GetReplica()] = t
		}
		if t == nil || m.GetPart() != t.next { // a message was lost
			delete(tellings, m.GetReplica())
			return
		}
		t.next++
		maps.Copy(t.answers, answers)
		maps.Copy(t.hints, hints)
		if !m.GetLast() {
			return
		}
		delete(tellings, m.GetReplica())
		answers, hints = t.answers, t.hints
	}
	if m.GetAll() || len(answers) > 0 {
		s.Judge(s.Facts.Answered(m.GetReplica(), answers, m.GetAll()))
	}
	if m.GetAll() || len(hints) > 0 {
		s.Findings.Told(m.GetReplica(), hints, m.GetAll())
	}
}

// What a replica has told of its addresses counts after it is gone, and what this replica has found counts
// after it has given up a partition, until others can have told it: for keepAfter after all partitions are
// served again, and at most for forgetAfter.
const (
	keepAfter   = 2 * time.Second
	forgetAfter = 30 * time.Second
)

// forget forgets what replicas have told that are gone.
func (s *Share) forget(m *members) {
	now := s.Clock()
	if state, _ := s.State(); state.Missing() > 0 {
		s.whole = time.Time{}
	} else if s.whole.IsZero() {
		s.whole = now
	}
	for name, gone := range s.departed {
		whole := !s.whole.IsZero() && now.Sub(s.whole) > keepAfter && now.Sub(gone) > keepAfter
		switch {
		case m.others[name] != nil:
			delete(s.departed, name)
		case whole || now.Sub(gone) > forgetAfter:
			delete(s.departed, name)
			if name == s.Replica {
				s.Findings.Dropped()
			} else {
				s.Findings.Told(name, nil, true)
			}
		}
	}
}
