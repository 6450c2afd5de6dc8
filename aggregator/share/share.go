// Package share divides the addresses among the replicas of an aggregator, which find each other on
// NATS. Each address belongs to one of 256 partitions, and each partition to one replica, to which
// agents send the claims to its addresses. Everything else goes to every replica.
//
// A replica is alive as long as it renews its lease in a key-value bucket. All replicas compute from
// the leases who serves which partition. The one that served a partition until now goes on until the new
// one has all claims, so that a duplicate is always detected by at least one of them. While NATS is away,
// each goes on with what it serves.
//
// The package decides nothing about addresses.
package share

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// answerWithin is how long NATS may take to answer, and renewWithin is how long to renew a lease.
	answerWithin = 5 * time.Second
	renewWithin  = time.Second
	// complainAfter is how long NATS may fail before that is a problem.
	complainAfter = 10 * time.Second
	// againAfter is the pause after an error.
	againAfter = 500 * time.Millisecond
)

// Config is the configuration of a Share. All fields are required.
type Config struct {
	stream.Settings
	Cluster string
	// Replica is the name of this replica, and Instance identifies the process.
	Replica  string
	Instance int64
	Facts    *facts.Facts
	Findings *findings.Findings
	// Drop forgets the addresses of partitions that are not served any longer.
	Drop func(facts.PartitionSet)
	// Judge waits until everything that a change affects is judged.
	Judge func(*facts.Batch)
	// Complete reports whether all nodes report that are known, so that a partition is complete as soon as
	// all that are connected have sent it.
	Complete func() bool
	// Journal is filled by Keep. Heard is called with what another replica has recorded.
	Journal *journal.Journal
	Heard   func(*pb.Event)
	// Gained puts back what was known of partitions that are gained, and returns when complete does and
	// that was judged.
	Gained func(ctx context.Context, set facts.PartitionSet, complete func() bool) error
	// Untidy is called after a large change, so that unused memory is released later.
	Untidy func()
	// Handle answers the requests of other replicas.
	Handle Handler
	Log    *slog.Logger
	Clock  func() time.Time
}

// completeWithin is how long after it was gained a partition may be incomplete because a node does not
// report.
const completeWithin = 10 * time.Second

// A Share is what a replica knows of the others. Use New.
type Share struct {
	Config
	link      *stream.Link
	sightings sightings
	// departed is when other replicas were gone, and when this one has given up partitions, as long as what
	// they have told is not forgotten. whole is since when all partitions are served; zero if some are not.
	// Only follow uses them.
	departed map[string]time.Time
	whole    time.Time

	mu sync.Mutex
	// served are the partitions that this replica serves, complete are those of which it has all claims, and
	// gained is when the last one was gained.
	served, complete facts.PartitionSet
	gained           time.Time
	// ready are the partitions whose past was put back.
	ready facts.PartitionSet
	// recording are the complete partitions that the lease names, apart from those whose new holder is
	// complete: one replica records what happens.
	recording facts.PartitionSet
	// others are the other replicas with their complete partitions.
	others map[string]facts.PartitionSet
	// failing is the last error, and since when there are errors; nil if there is none.
	failing error
	since   time.Time
	// changed is closed when served, complete or others change. restated is closed when the state is to be
	// recorded again.
	changed, restated chan struct{}

	// asked is when the others were asked for their state last. Only read uses it.
	asked time.Time

	mail     mailbox
	arrivals chan arrival
	saying   chan said
	// caught is closed when this replica has read the log up to its end; ended when Run has ended.
	caught     chan struct{}
	caughtOnce sync.Once
	ended      chan struct{}
}

// New returns a Share that does nothing before Run.
func New(cfg Config) (*Share, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &Share{
		Config: cfg, departed: make(map[string]time.Time), sightings: sightings{all: make(map[[2]facts.LinkID]facts.Sighting)}, others: make(map[string]facts.PartitionSet), changed: make(chan struct{}), restated: make(chan struct{}),
		mail: mailbox{wake: make(chan struct{}, 1)}, arrivals: make(chan arrival), saying: make(chan said, 8192), caught: make(chan struct{}), ended: make(chan struct{}),
	}, nil
}

// A State is what a replica knows of the partitions.
type State struct {
	// Served are the partitions that this replica serves, and Complete those of which it has all claims.
	Served, Complete facts.PartitionSet
	// Others are the other replicas, with the partitions that they serve completely.
	Others map[string]facts.PartitionSet
	// Failing is why NATS cannot be used, and Since is since when; nil if it can.
	Failing error
	Since   time.Time
}

// Missing returns the number of partitions that no replica serves completely.
func (s *State) Missing() (n int) {
	for p := range s.Complete {
		somebody := s.Complete[p]
		for _, set := range s.Others {
			somebody = somebody || set[p]
		}
		if !somebody {
			n++
		}
	}
	return n
}

// State returns the present state, and a channel that is closed when it changes.
func (s *Share) State() (State, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Served: s.served, Complete: s.complete, Others: maps.Clone(s.others), Failing: s.failing, Since: s.since}, s.changed
}

// Run shares the addresses until ctx ends.
func (s *Share) Run(ctx context.Context) {
	link, err := stream.Connect(s.Settings, "ipwitness aggregator "+s.Cluster+" replica "+s.Replica, s.Log, s.Clock)
	for err != nil { // a file of the settings has changed
		s.failed(err)
		if sleep(ctx, againAfter) != nil {
			return
		}
		link, err = stream.Connect(s.Settings, "ipwitness aggregator "+s.Cluster+" replica "+s.Replica, s.Log, s.Clock)
	}
	defer link.Close()
	s.link = link
	defer close(s.ended)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { s.Keep(ctx) })
	group.Go(func() { s.say(ctx) })
	group.Go(func() { s.publish(ctx) })
	select {
	case <-s.caught: // the conflicts of the partitions to serve are in the journal
	case <-ctx.Done():
		return
	}
	m := &members{prefix: stream.Token(s.Cluster) + ".", name: s.Replica, instance: s.Instance, clock: s.Clock, others: make(map[string]*member)}
	for ctx.Err() == nil {
		if err := s.follow(ctx, m); err != nil && ctx.Err() == nil {
			if !s.link.Conn().IsConnected() {
				err = nats.ErrDisconnected // and not what could not be done because of that
			}
			s.failed(err)
			s.skip()
			_ = sleep(ctx, againAfter)
		}
	}
	s.leave(m)
}

// leave ends the own lease, so that others need not wait for it.
func (s *Share) leave(m *members) {
	if m.bucket == nil || m.revision == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), renewWithin)
	defer cancel()
	if err := m.bucket.Delete(ctx, m.key(), jetstream.LastRevision(m.revision)); err != nil {
		s.Log.Warn("cannot give up the lease: other replicas wait until it ends", "error", err, "ends_within", leaseFor)
	}
}

// follow renews the lease, and follows those of others, until ctx ends or NATS does not answer.
func (s *Share) follow(run context.Context, m *members) (err error) {
	ctx := run
	if m.bucket, err = s.openBucket(ctx); err != nil {
		return err
	}
	tellings := make(map[string]*telling)
	sub, err := s.link.Conn().Subscribe(s.subject("told"), func(m *nats.Msg) { s.told(m.Data, tellings) })
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	states, err := s.link.Conn().Subscribe(s.subject("state"), func(*nats.Msg) { s.Restate() })
	if err != nil {
		return err
	}
	defer func() { _ = states.Unsubscribe() }()
	calls, err := s.answer(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = calls.Unsubscribe() }()
	ctx, cancel := context.WithCancel(run)
	defer cancel()
	m.known = false
	watch, err := m.bucket.Watch(ctx, m.prefix+"*")
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }()
	beat, look := time.NewTicker(beatEvery), time.NewTicker(lookEvery)
	tell, all := time.NewTicker(tellEvery), time.NewTicker(tellAllEvery)
	for _, t := range []*time.Ticker{beat, look, tell, all} {
		defer t.Stop()
	}
	if err := m.renew(ctx, s.completed()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		select {
		case entry, open := <-watch.Updates():
			if !open {
				return errWatch
			}
			some := len(m.others)
			if m.hear(entry); entry == nil || len(m.others) > some {
				err = s.tell(true)
			}
		case <-tell.C:
			s.forget(m)
			err = s.tell(false)
		case <-all.C:
			err = s.tell(true)
		case <-beat.C:
			now := s.completed()
			for p := range now {
				now[p] = now[p] && m.told[p] // the others are told of more by look
			}
			err = m.renew(ctx, now)
		case <-look.C:
			if now := s.completed(); now != m.told {
				// The former holder of a partition needs to hear first what was found there.
				if err = s.tell(false); err == nil {
					err = m.renew(ctx, now)
				}
			}
		case <-ctx.Done():
			return nil
		}
		for _, name := range m.expire() {
			s.Log.Warn("a replica is gone: others take over its partitions", "replica", name)
			s.departed[name] = s.Clock()
			go s.Judge(s.Facts.Answered(name, nil, true))
		}
		s.divide(run, m)
		if err != nil {
			return err
		}
		s.failed(nil)
	}
	return nil
}

// divide serves the partitions that are to be served.
func (s *Share) divide(ctx context.Context, m *members) {
	s.mu.Lock()
	before := s.served
	s.mu.Unlock()
	now := m.serve(before)
	gained := s.hold(m, now)
	if now != before {
		lost, b := s.Facts.Serve(now)
		if lost != (facts.PartitionSet{}) {
			s.Drop(lost)
			s.departed[s.Replica] = s.Clock()
		}
		go s.Judge(b)
		if gained != (facts.PartitionSet{}) {
			go s.regain(ctx, gained)
		}
		s.Untidy()
		s.Log.Info("serving other partitions", "partitions", now.Count(), "before", before.Count(), "replicas", len(m.others)+1)
	}
	complete := s.completed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.complete != complete {
		s.complete = complete
		s.announce()
	}
	for p := range complete {
		complete[p] = complete[p] && m.told[p] && !m.passed(p)
	}
	if s.recording != complete {
		s.recording = complete
		close(s.restated)
		s.restated = make(chan struct{})
	}
}

// hold notes what the other replicas serve, and the partitions that this one is to serve. Answers follow that
// before anything is forgotten. It returns the partitions that are gained.
func (s *Share) hold(m *members, now facts.PartitionSet) (gained facts.PartitionSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.served != now
	for p := range now {
		if gained[p] = now[p] && !s.served[p]; gained[p] {
			s.gained = s.Clock()
		}
		s.ready[p] = s.ready[p] && now[p]
		s.complete[p] = s.complete[p] && now[p]
	}
	s.served = now
	for name, one := range m.others {
		if s.others[name] != one.complete {
			s.others[name], changed = one.complete, true
		}
	}
	for name := range s.others {
		if m.others[name] == nil {
			delete(s.others, name)
			changed = true
		}
	}
	if changed {
		s.announce()
	}
	return gained
}

// announce tells those that wait for it that the state has changed. The caller holds s.mu.
func (s *Share) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// regain puts back what was known of partitions that are gained.
func (s *Share) regain(ctx context.Context, set facts.PartitionSet) {
	err := s.Gained(ctx, set, func() bool {
		complete := s.arrived()
		s.mu.Lock()
		defer s.mu.Unlock()
		for p := range set {
			if set[p] && s.served[p] && !complete[p] {
				return false
			}
		}
		return true
	})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.Log.Error("cannot read from the journal what was known of the partitions that are gained: conflicts that last are detected anew", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range set {
		s.ready[p] = s.ready[p] || set[p] && s.served[p]
	}
}

// arrived returns the partitions that are served and of which all claims are known.
func (s *Share) arrived() facts.PartitionSet {
	set, _ := s.Facts.Completed()
	s.mu.Lock()
	early := s.Clock().Sub(s.gained) < completeWithin
	before := s.complete
	s.mu.Unlock()
	if early && !s.Complete() { // a node may not be connected yet that has claims
		for p := range set {
			set[p] = set[p] && before[p]
		}
	}
	return set
}

// completed returns the partitions of which all is known that their former holders knew.
func (s *Share) completed() facts.PartitionSet {
	set := s.arrived()
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range set {
		set[p] = set[p] && s.ready[p]
	}
	return set
}

// failed notes an error; nil if NATS can be used.
func (s *Share) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.failing == nil:
		s.since = s.Clock()
		s.Log.Warn("cannot use NATS: going on with the partitions that are served, and trying again", "error", err)
	case err == nil && s.failing != nil:
		s.Log.Info("NATS can be used again")
	}
	s.failing = err
}

// Problems describes why partitions may not be served, or replicas may not know each other.
func (s *Share) Problems() (problems []string) {
	if s == nil {
		return nil
	}
	state, _ := s.State()
	if state.Failing != nil && s.Clock().Sub(state.Since) > complainAfter {
		problems = append(problems, fmt.Sprintf("NATS at %s has been unavailable since %s: each replica continues with the partitions that it serves, and answers only for those: %s",
			s.Hosts(), state.Since.UTC().Format(time.RFC3339), state.Failing))
	}
	select {
	case <-s.caught:
		if n := state.Missing(); n > 0 && state.Failing == nil {
			problems = append(problems, fmt.Sprintf("no replica serves %d of %d partitions completely: they are being taken over", n, len(state.Served)))
		}
	default:
		problems = append(problems, "this replica has not read the log of the others yet, so it serves nothing")
	}
	return problems
}

// subject returns a subject of the replicas of the cluster.
func (s *Share) subject(of string) string {
	return "ipwitness_share." + stream.Token(s.Cluster) + "." + of
}

// Names returns the names of the other replicas, in order.
func (s *State) Names() (names []string) {
	for name := range s.Others {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// caughtUp notes that the log was read up to its end.
func (s *Share) caughtUp() { s.caughtOnce.Do(func() { close(s.caught) }) }

// CaughtUp returns a channel that is closed when the journal has what the other replicas know.
func (s *Share) CaughtUp() <-chan struct{} { return s.caught }

// sleep waits for some time.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errWatch is the error for a watch that NATS has ended.
var errWatch = errors.New("NATS has ended the watch of the replicas")
