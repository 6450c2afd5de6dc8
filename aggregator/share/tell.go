package share

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// tellEvery is how often replicas tell each other what is new, and tellAllEvery is how often they
	// repeat everything, because NATS may lose a message.
	tellEvery    = 250 * time.Millisecond
	tellAllEvery = 30 * time.Second
	// mostTold is the number of items of a message.
	mostTold = 1000
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
	m := &pb.ReplicaHint{Replica: s.Replica, All: all}
	send := func() error {
		raw, err := proto.Marshal(m)
		if err == nil {
			err = s.link.Conn().Publish(s.subject("told"), raw)
		}
		m = &pb.ReplicaHint{Replica: s.Replica}
		return err
	}
	for _, one := range s.sightings.take() {
		m.Sightings = append(m.Sightings, &pb.LinkSighting{
			Entered: linkRef(one.Entered), Home: linkRef(one.Home), Mac: []byte(one.MAC), Age: durationpb.New(max(0, now.Sub(one.Seen))),
		})
		if len(m.Sightings) == mostTold {
			if err := send(); err != nil {
				return err
			}
		}
	}
	answers := s.Facts.TakeAnswers()
	if all {
		answers = s.Facts.AllAnswers()
	}
	for h, a := range answers {
		m.Answers = append(m.Answers, &pb.HostAnswers{Link: linkRef(h.Link), Mac: []byte(h.MAC), Addresses: uint32(a.Addresses), Owners: a.Owners}) //nolint:gosec // few
		if len(m.Answers) == mostTold && !m.All {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if !m.All && len(m.Sightings)+len(m.Answers) == 0 {
		return nil
	}
	return send()
}

// told takes what another replica tells.
func (s *Share) told(raw []byte) {
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
	answers := make(map[facts.Host]facts.Answers, len(m.GetAnswers()))
	for _, one := range m.GetAnswers() {
		answers[facts.Host{Link: linkID(one.GetLink()), MAC: verdict.MAC(one.GetMac())}] = facts.Answers{Addresses: int(one.GetAddresses()), Owners: one.GetOwners()}
	}
	if m.GetAll() || len(answers) > 0 {
		s.Judge(s.Facts.Answered(m.GetReplica(), answers, m.GetAll()))
	}
}

func linkRef(l facts.LinkID) *pb.LinkRef {
	return &pb.LinkRef{BootId: l.Node.Boot, Netns: l.Node.Netns, Vouched: l.Node.Vouched, Name: l.Name}
}

func linkID(l *pb.LinkRef) facts.LinkID {
	return facts.LinkID{Node: facts.NodeID{Boot: l.GetBootId(), Netns: l.GetNetns(), Vouched: l.GetVouched()}, Name: l.GetName()}
}
