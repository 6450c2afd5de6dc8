package model_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A step is one event of a history. Its text is one line, so that a history can be stored as a
// test:
//
//	sleep 1.5s
//	n1 connect 7            opens a stream with a snapshot; the number is the order of its records
//	n1 delta claims:{…}     changes the table of the agent, and reports that
type step struct {
	verb   string
	agent  int               // for all verbs except sleep
	number uint64            // for verbs with a number
	wait   time.Duration     // for sleep
	change *pb.ReportRequest // for delta and lose
}

// String returns the step as one line.
func (s step) String() string {
	if s.verb == "sleep" {
		return "sleep " + s.wait.String()
	}
	line := fmt.Sprintf("n%d %s", s.agent, s.verb)
	switch {
	case s.change != nil:
		line += " " + strings.ReplaceAll(prototext.MarshalOptions{}.Format(s.change), "  ", " ")
	case s.number != 0:
		line += fmt.Sprintf(" %d", s.number)
	}
	return line
}

// parse parses a step from a line.
func parse(line string) (s step, err error) {
	words := strings.SplitN(strings.TrimSpace(line), " ", 3)
	if words[0] == "sleep" {
		s.verb = "sleep"
		s.wait, err = time.ParseDuration(words[1])
		return s, err
	}
	if _, err = fmt.Sscanf(words[0], "n%d", &s.agent); err != nil || len(words) < 2 {
		return s, fmt.Errorf("parse step %q: use NODE VERB", line)
	}
	s.verb = words[1]
	switch {
	case len(words) < 3:
	case s.verb == "delta" || s.verb == "lose":
		s.change = new(pb.ReportRequest)
		err = prototext.Unmarshal([]byte(words[2]), s.change)
	default:
		_, err = fmt.Sscan(words[2], &s.number)
	}
	return s, err
}

// A setting is the configuration of one history.
type setting struct {
	config aggregator.Config
	agents int
}

// settingOf returns the setting with a number below 24. Settings from 6 to 11 have shorter times,
// because pings make long jumps slow. Settings from 12 on are like those 12 below, but with odd
// times, so that no timer is due at the time of a ping: the order of the two would be undefined.
func settingOf(number int) setting {
	unusual := number >= 12
	number %= 12
	s := setting{agents: 2 + number%3, config: aggregator.Config{
		Kubeconfig: kube.Off, Settle: time.Second, StaleAfter: time.Minute, NodeTimeout: 90 * time.Second, HandoverGrace: 5 * time.Second,
		LeakedAfter: 30 * time.Second,
	}}
	if number >= 6 {
		c := &s.config
		c.StaleAfter, c.NodeTimeout, c.HandoverGrace, c.LeakedAfter = 20*time.Second, 30*time.Second, 2*time.Second, 10*time.Second
	}
	if unusual {
		c := &s.config
		c.StaleAfter += 3 * time.Millisecond
		c.NodeTimeout += 7 * time.Millisecond
		c.HandoverGrace += 2 * time.Millisecond
		c.LeakedAfter += time.Millisecond
	}
	if number/3%2 == 1 {
		s.config.Networks = []verdict.Network{{Name: "flat", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}}
		s.config.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.4/32"), Reason: "anycast"}}
		s.config.Routers = []verdict.Router{{Who: "default/c", Reason: "gateway"}}
	}
	return s
}

// policy returns the policy of the reference.
func (s setting) policy() verdict.Policy {
	return verdict.Policy{
		Cluster: aggregator.DefaultCluster, Settle: s.config.Settle, StaleAfter: s.config.StaleAfter, NodeTimeout: s.config.NodeTimeout,
		HandoverGrace: s.config.HandoverGrace, LeakedAfter: s.config.LeakedAfter, MigrationGrace: time.Minute,
		Networks: s.config.Networks, Shared: s.config.Shared, Routers: s.config.Routers,
	}
}

// services receives the services of an aggregator when they are registered.
type services struct {
	report  pb.ReportServiceServer
	witness pb.WitnessServiceServer
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *services) RegisterService(_ *grpc.ServiceDesc, service any) {
	switch service := service.(type) {
	case pb.ReportServiceServer:
		s.report = service
	case pb.WitnessServiceServer:
		s.witness = service
	}
}

// GetServiceInfo implements reflection.ServiceInfoProvider.
func (s *services) GetServiceInfo() map[string]grpc.ServiceInfo { return nil }

// A run is a history that is being executed, in an aggregator and in a reference.
type run struct {
	services
	*reference
	agents []*agent
	start  time.Time
	// compared counts comparisons. lastResolved are the conflicts that were resolved at the last
	// comparison.
	compared     int
	lastResolved []ended
}

// play runs the steps that next returns, until there are no more or the aggregator and the
// reference differ. It returns the executed steps and the difference.
func play(t *testing.T, s setting, next func(*run) (step, bool)) (steps []step, difference string) {
	synctest.Test(t, func(t *testing.T) {
		agg, err := aggregator.New(s.config, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { _ = agg.Run(ctx); close(done) }()
		r := &run{reference: newReference(s.policy(), verdict.At(time.Now())), start: time.Now()}
		agg.Register(&r.services)
		for number := range s.agents {
			r.agents = append(r.agents, newAgent(number+1))
		}
		defer func() {
			for _, a := range r.agents {
				if a.stream != nil {
					a.stream.cancel()
				}
			}
			cancel()
			<-done
		}()
		for difference == "" {
			one, ok := next(r)
			if !ok {
				difference = r.compare(true)
				break
			}
			steps = append(steps, one)
			difference = r.do(one)
		}
	})
	return steps, difference
}

// do executes one step and returns the difference between the aggregator and the reference
// afterwards.
func (r *run) do(s step) string {
	if s.verb == "sleep" {
		return r.sleep(s.wait)
	}
	if s.agent < 1 || s.agent > len(r.agents) {
		return ""
	}
	a := r.agents[s.agent-1]
	if a.stream != nil && a.stream.ended() {
		a.stream = nil
	}
	switch s.verb {
	case "connect", "begin":
		if a.stream == nil {
			r.connect(a, a.epoch)
		}
		r.resync(a, s.number, s.verb == "connect")
	case "finish":
		if a.stream != nil && a.stream.inside {
			_, second := a.table.snapshot(s.number, time.Now())
			r.send(a, second)
		}
	case "older":
		if a.stream != nil && a.epoch > 1 {
			if difference := r.older(a, s.number); difference != "" {
				return difference
			}
		}
	case "takeover":
		if a.stream != nil {
			old := a.stream
			r.connect(a, a.epoch)
			r.resync(a, s.number, true)
			synctest.Wait()
			if !old.ended() {
				return "the stream that was taken over did not end"
			}
		}
	case "disconnect":
		r.disconnectAgent(a)
	case "delta":
		r.delta(a, s.change)
	case "lose":
		m := a.table.change(s.change, time.Now())
		if a.stream != nil && !a.stream.inside {
			m.Sequence = a.stream.skip()
			a.lost, a.stream.session.lost = m, true
		}
	case "late":
		if a.stream != nil && a.lost != nil && a.stream.sequence > a.lost.GetSequence() {
			a.stream.in <- a.lost
			a.stream.session.heard = r.now
		}
	case "repeat":
		if a.stream != nil && a.last != nil {
			a.stream.in <- a.last
			a.stream.session.heard = r.now
		}
	case "reboot":
		r.disconnectAgent(a)
		a.boot++
		a.epoch = 1
		a.reset()
	case "restart":
		r.disconnectAgent(a)
		a.epoch++
		a.table.renumber(uint32(s.number % 4))
	case "rename":
		a.name = fmt.Sprintf("n%d", s.number)
	case "deaf":
		a.deaf.Store(s.number != 0)
	case "mute":
		r.mute(a, s.number != 0)
	default:
		return "no such verb: " + s.verb
	}
	synctest.Wait()
	return r.compare(false)
}

// connect opens a stream for an agent.
func (r *run) connect(a *agent, epoch uint64) {
	a.stream = a.open(r.report)
	a.stream.epoch = epoch
	a.stream.session = &session{agent: a, start: verdict.At(time.Now())}
	if a.mute.Load() {
		a.stream.session.asked = a.stream.session.start
	}
	r.sessions[a.stream.session] = true
	a.last, a.lost = nil, nil
}

// mute makes an agent stop answering pings, or answer again, starting with the open ping.
func (r *run) mute(a *agent, mute bool) {
	a.mute.Store(mute)
	if a.stream == nil {
		return
	}
	s := a.stream.session
	switch {
	case !mute:
		switch {
		case s.asked == 0:
		case s.asked <= r.now:
			s.heard = r.now
			s.took, s.tookUntil = r.now.Sub(s.asked), s.nextPing(r.now+1)
		default:
			s.tookUntil = s.asked
		}
		s.asked = 0
		a.stream.mu.Lock()
		a.stream.pong()
		a.stream.mu.Unlock()
	case s.asked == 0:
		s.asked = s.nextPing(r.now + 1)
		if last := s.asked.Add(-pingEvery); last > s.start {
			s.heard = max(s.heard, last) // it has answered this ping
		}
		if s.tookUntil != 0 && s.tookUntil <= r.now {
			s.took = 0
		}
		s.tookUntil = 0
	}
}

// older makes an older agent of the node open a stream too, which must be refused.
func (r *run) older(a *agent, order uint64) string {
	stream, last, lost := a.stream, a.last, a.lost
	defer func() { a.stream, a.last, a.lost = stream, last, lost }()
	r.connect(a, a.epoch-1)
	r.resync(a, order, true)
	synctest.Wait()
	if !a.stream.ended() {
		return "the stream of an older agent did not end"
	}
	return ""
}

// resync sends a snapshot, or only its first half.
func (r *run) resync(a *agent, order uint64, whole bool) {
	first, second := a.table.snapshot(order, time.Now())
	if a.stream.sequence == 0 {
		first.Hello = a.hello(a.stream.epoch)
	}
	if whole && order%2 == 0 {
		proto.Merge(first, second)
		r.send(a, first)
		return
	}
	r.send(a, first)
	if whole {
		r.send(a, second)
	}
}

func (r *run) send(a *agent, m *pb.ReportRequest) {
	a.stream.send(m)
	r.receive(a.stream.session, m)
}

func (r *run) delta(a *agent, change *pb.ReportRequest) {
	if a.stream != nil && a.stream.inside {
		return // changes follow a complete snapshot
	}
	m := a.table.change(change, time.Now())
	if a.stream != nil {
		a.last = proto.CloneOf(m)
		r.send(a, m)
		a.last.Sequence = m.GetSequence()
	}
}

func (r *run) disconnectAgent(a *agent) {
	if a.stream == nil {
		return
	}
	s := a.stream
	a.stream, a.last, a.lost = nil, nil, nil
	s.cancel()
	synctest.Wait()
	r.disconnect(s.session)
}

// sleep advances time, and compares at each moment at which a timer is due.
func (r *run) sleep(d time.Duration) string {
	for end := time.Now().Add(d); time.Now().Before(end); {
		at := end
		if due := r.next(); due != 0 && due.Time().Before(end) {
			at = due.Time()
		}
		if !at.After(time.Now()) {
			return fmt.Sprintf("the reference has a timer at %s, but the time is %s", at, time.Now())
		}
		time.Sleep(time.Until(at))
		synctest.Wait()
		if r.now = verdict.At(time.Now()); r.next() != 0 && r.next() <= r.now {
			r.tick()
		}
		if difference := r.compare(false); difference != "" {
			return fmt.Sprintf("at %s: %s", time.Since(r.start), difference)
		}
	}
	return ""
}
