package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// recorder records changes of nodes, pools and namespaces.
type recorder struct {
	ignoring
	heard     []string
	answers   int
	contested []string
}

// disputed yields the disputed addresses.
func (c *recorder) disputed(yield func(index.Address) bool) {
	for _, a := range c.contested {
		if !yield(key(a)) {
			return
		}
	}
}

func (c *recorder) hear(format string, args ...any) {
	c.heard = append(c.heard, fmt.Sprintf(format, args...))
}

func (c *recorder) changed(what *Changes) {
	c.ignoring.changed(what)
	for _, n := range what.Nodes {
		c.hear("changed %s", n.Rec.Name)
	}
	for _, n := range what.Names {
		c.hear("names %s", n.Rec.Name)
	}
	for n := range what.Ranges {
		c.hear("ranges %s", nameOfNode(n))
	}
	for ns := range what.Lacking {
		c.hear("lack %s#%d", ns.Node.Rec.Name, ns.Record)
	}
	for _, ns := range what.Former {
		c.hear("former %s#%s", ns.Node.Rec.Name, ns.ID)
	}
	for p := range what.Pools {
		c.hear("pool %s", p.Rec.Name)
	}
	for _, p := range what.Ended {
		c.hear("pool-ended %s of %s", p.Rec.Name, nameOfNode(p.Node))
	}
	if what.Coverage {
		c.hear("coverage")
	}
	for record := range what.Refused {
		c.hear("refused %s", record)
	}
	if what.Answered != nil {
		c.answers++
	}
}

func nameOfNode(n *Node) string {
	if n == nil {
		return "-"
	}
	return n.Rec.Name
}

// scene has facts with a clock that the test sets, and whose addresses only the test judges.
type scene struct {
	*testing.T
	*Facts
	notified *recorder
	now      verdict.Stamp
}

func newScene(t *testing.T) *scene {
	s := &scene{T: t, notified: &recorder{ignoring: ignoring{dropped: map[string]int{}}}, now: verdict.Stamp(time.Hour)}
	s.Facts = timed(t, &s.now, s.notified.changed)
	s.Disputed = s.notified.disputed
	return s
}

func (s *scene) after(d time.Duration) { s.now = s.now.Add(d) }

// agent is an agent that reports for a node.
type agent struct {
	s *scene
	p *quiet
	n *Node
}

// hello connects an agent.
func (s *scene) hello(h *pb.Hello, vouched string) (*agent, error) {
	p := &quiet{}
	n, _, err := s.Connect(p, h, vouched)
	return &agent{s, p, n}, err
}

// joins connects an agent whose snapshot consists of messages.
func (s *scene) joins(name, boot string, epoch uint64, messages ...*pb.ReportRequest) *agent {
	s.Helper()
	a, err := s.hello(&pb.Hello{Node: name, BootId: boot, Netns: "1", Epoch: epoch}, "")
	if err != nil {
		s.Fatal(err)
	}
	a.snapshot(messages...)
	return a
}

func (a *agent) snapshot(messages ...*pb.ReportRequest) {
	a.s.Helper()
	messages = append([]*pb.ReportRequest{{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}}, messages...)
	if _, err := a.s.Snapshot(a.p, a.n, &Snapshot{Messages: slices.Values(messages)}, func() {}); err != nil {
		a.s.Fatal(err)
	}
}

func (a *agent) report(messages ...*pb.ReportRequest) {
	a.s.Helper()
	for _, m := range messages {
		if _, err := a.s.Delta(a.p, a.n, m, a.s.now, nil); err != nil {
			a.s.Fatal(err)
		}
	}
}

func (a *agent) leave() { a.s.Disconnect(a.p, a.n, func(*Node) bool { return false }) }

// states returns the nodes with their states.
func (s *scene) states() (all []string) {
	for n := range s.Nodes {
		text := n.Rec.Name
		for _, is := range []struct {
			set  bool
			name string
		}{{n.Peer != nil, "connected"}, {n.Rec.Unheard, "unheard"}, {n.Rec.TimedOut, "timed-out"}, {n.Rec.Rebooted, "rebooted"}, {n.Covers(), "covers"}} {
			if is.set {
				text += " " + is.name
			}
		}
		all = append(all, fmt.Sprintf("%s claims=%d", text, n.Claims()))
	}
	return all
}

func (s *scene) wantNodes(why string, want ...string) {
	s.Helper()
	if got := s.states(); !slices.Equal(got, want) {
		s.Errorf("%s: got\n\t%q, want\n\t%q", why, got, want)
	}
}

// wantHeard checks the notifications since the last call, in any order and each of them once.
func (s *scene) wantHeard(why string, want ...string) {
	s.Helper()
	got := s.notified.heard
	s.notified.heard = nil
	slices.Sort(got)
	got = slices.Compact(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Errorf("%s: got\n\t%q, want\n\t%q", why, got, want)
	}
}

// wantJudged checks the queued addresses.
func (s *scene) wantJudged(why string, want ...string) {
	s.Helper()
	var got []string
	for _, a := range s.judgeAll() {
		got = append(got, a.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.Errorf("%s: got %q to be judged, want %q", why, got, want)
	}
}

func second[T any](_ T, err error) error { return err }

func assignedMessage(record uint32, addr string) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(record, addr)}}
}

// lan returns a report of an uplink with a MAC.
func lan(mac byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Links:      []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 9, Name: "eth0", Mac: []byte{2, 2, 0, 0, 0, mac}, Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true}},
	}
}

// used returns a report of a request that entered through the uplink.
func used(addr string, mac []byte, count uint32) *pb.ReportRequest {
	m := seen(addr, mac, count)
	m.Claims[0].Kind = pb.Evidence_USED
	return m
}

// seen returns a report of a frame that entered through the uplink.
func seen(addr string, mac []byte, count uint32) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 9, Mac: mac, Link: "eth0", Count: count,
	}}}
}
