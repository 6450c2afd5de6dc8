package aggregator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// entries returns the entries of some namespaces on cni0 for 10.244.0.7.
func entries(mac uint32, state pb.BeliefRecord_State, holders ...uint32) *pb.BeliefRecord {
	out := &pb.BeliefRecord{
		Link: "cni0", Address: netip.MustParseAddr("10.244.0.7").AsSlice(), Mac: records.MAC(mac), State: state, Count: uint32(len(holders)),
	}
	for _, of := range holders {
		out.Holders = append(out.Holders, &pb.BeliefRecord_Holder{Namespace: of, Index: 2})
	}
	return out
}

// sendersOf describes who sends to which owner: "owner: name (state)…".
func (l *lab) sendersOf(addr string) (all, unseen []string) {
	l.Helper()
	out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, Senders: true})
	if err != nil {
		l.Fatal(err)
	}
	for _, r := range out.GetSenders().GetReceivers() {
		var to, from []string
		for _, i := range r.GetOwners() {
			to = append(to, out.GetOwners()[i].GetWorkload().GetName())
		}
		if len(to) == 0 {
			to = []string{"not " + r.GetWorkload().GetName()}
		}
		for _, s := range r.GetSenders() {
			from = append(from, s.GetNode()+"/"+s.GetWorkload().GetName())
		}
		all = append(all, fmt.Sprintf("%s %d+%d+%d: %s", strings.Join(to, " or "), r.GetInUse(), r.GetPermanent(), r.GetOld(), strings.Join(from, " ")))
	}
	missed := out.GetSenders().GetUnseen()
	if out.GetSenders() == nil {
		missed = out.GetUnseen()
	}
	for _, u := range missed {
		unseen = append(unseen, fmt.Sprint(u.GetReason(), " ", u.GetCount(), " ", u.GetNodes()))
	}
	slices.Sort(all)
	return all, unseen
}

func TestExplainSaysWhoSendsToWhichOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.244.0.7"
		l := newLab(t, Config{})
		// Two owners on cni0 of n1, a pod without the address, and 20 other pods; n2 has a network of its own with the address.
		pods := []*pb.ReportRequest{bridged(2, "a", addr), bridged(3, "b", addr), bridged(4, "x", "10.244.0.4")}
		for i := range uint32(20) {
			pods = append(pods, bridged(10+i, fmt.Sprintf("c%02d", i), fmt.Sprintf("10.244.0.%d", 10+i)))
		}
		n1 := l.dial()
		n1.answer = func(q *pb.BeliefQuestion) *pb.BeliefAnswer {
			if netip.MustParseAddr(addr) != netip.AddrFrom4([4]byte(q.GetAddress())) {
				return &pb.BeliefAnswer{TranslationsRead: pb.TranslationRecord_ALL}
			}
			var even, odd []uint32
			for i := range uint32(20) {
				if i%2 == 0 {
					even = append(even, 10+i)
				} else {
					odd = append(odd, 10+i)
				}
			}
			return &pb.BeliefAnswer{Beliefs: []*pb.BeliefRecord{
				entries(2, pb.BeliefRecord_IN_USE, even...), entries(3, pb.BeliefRecord_IN_USE, odd[:8]...), entries(3, pb.BeliefRecord_OLD, odd[8:]...),
				entries(4, pb.BeliefRecord_PERMANENT, 29),
			}, Unread: 2, TranslationsRead: pb.TranslationRecord_ALL, Route: &pb.RouteRecord{
				Kind: pb.Senders_Route_PATHS, Hops: []*pb.RouteRecord_Hop{{Interface: "cni0", Link: "cni0"}},
			}}
		}
		n2 := l.dial()
		n2.answer = func(*pb.BeliefQuestion) *pb.BeliefAnswer {
			return &pb.BeliefAnswer{Beliefs: []*pb.BeliefRecord{entries(9, pb.BeliefRecord_IN_USE, 3)}, TranslationsRead: pb.TranslationRecord_ALL, Route: &pb.RouteRecord{
				Kind: pb.Senders_Route_PATHS, Hops: []*pb.RouteRecord_Hop{{Interface: "cni0", Link: "cni0"}},
			}} // of another network
		}
		n3 := l.dial() // does not answer
		n1.send(snapshot(hello("n1", 1), pods...)).sync()
		n2.send(snapshot(hello("n2", 1), bridged(2, "docker", "10.244.0.8"), bridged(3, "other", "10.244.0.9"))).sync()
		n3.send(snapshot(hello("n3", 1))).sync()
		time.Sleep(5 * time.Second)

		begin := time.Now()
		got, unseen := l.sendersOf(addr)
		want := []string{
			"a 10+0+0: n1/c00 n1/c02 n1/c04 n1/c06 n1/c08 n1/c10 n1/c12 n1/c14 n1/c16 n1/c18",
			"b 8+0+2: n1/c01 n1/c03 n1/c05 n1/c07 n1/c09 n1/c11 n1/c13 n1/c15 n1/c17 n1/c19",
			"not x 0+1+0: n1/c19",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if want := []string{"NO_ANSWER 1 [n3]", "NO_PROCESS 2 [n1]"}; !slices.Equal(unseen, want) || time.Since(begin) != time.Second {
			t.Errorf("not looked at: got %q after %s, want %q after a second", unseen, time.Since(begin), want)
		}
		out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, Senders: true})
		if err != nil {
			t.Fatal(err)
		}
		var routes []string
		for _, r := range out.GetSenders().GetRoutes() {
			routes = append(routes, fmt.Sprint(r.GetNodes(), r.GetKind(), r.GetOwners(), r.GetPartly(), r.GetHops()[0].GetInterface()))
		}
		if want := []string{"[n1] PATHS [0 1] falsecni0", "[n2] PATHS [] falsecni0"}; !slices.Equal(routes, want) {
			t.Errorf("got routes %q, want %q", routes, want)
		}
		n3.cancel()
		_ = n3.ended()
		time.Sleep(time.Millisecond)
		begin = time.Now()
		if _, unseen := l.sendersOf(addr); !slices.Contains(unseen, "DISCONNECTED 1 [n3]") || time.Since(begin) != 0 {
			t.Errorf("not looked at: got %q after %s, want that n3 is disconnected at once", unseen, time.Since(begin))
		}
		if got, unseen := l.sendersOf("10.244.0.4"); got != nil || !slices.Equal(unseen, []string{"DISCONNECTED 1 [n3]"}) {
			t.Errorf("got %q, %q about an address without a conflict, want only that n3 is disconnected", got, unseen)
		}
	})
}

// Callers that ask at the same time share the answers, and an answer of a stream that was asked before it ended is not used.
func TestQuestionsAboutAnAddressAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.244.0.7"
		l := newLab(t, Config{})
		n1 := l.dial()
		asked := 0
		n1.answer = func(*pb.BeliefQuestion) *pb.BeliefAnswer {
			asked++
			time.Sleep(100 * time.Millisecond)
			return &pb.BeliefAnswer{Beliefs: []*pb.BeliefRecord{entries(2, pb.BeliefRecord_IN_USE, 4)}}
		}
		n1.send(snapshot(hello("n1", 1), bridged(2, "a", addr), bridged(3, "b", addr), bridged(4, "c", "10.244.0.4"))).sync()
		time.Sleep(5 * time.Second)
		done := make(chan []string)
		for range 3 {
			go func() { got, _ := l.sendersOf(addr); done <- got }()
		}
		for range 3 {
			if got := <-done; !slices.Equal(got, []string{"a 1+0+0: n1/c"}) {
				t.Errorf("got %q, want c", got)
			}
		}
		if asked != 1 {
			t.Errorf("the agent was asked %d times, want once", asked)
		}
	})
}

func TestExplainNamesTheServicesThatSendToAnAddress(t *testing.T) {
	api := newAPI(t)
	a := apiPod("a", "n1", "10.244.0.7")
	const services = 40
	for i := range services {
		api.set("ADDED", apiSlice(fmt.Sprintf("s%02d-x", i), fmt.Sprintf("s%02d", i), "10.244.0.7", a))
	}
	api.set("ADDED", apiSlice("other-x", "other", "10.244.0.8", a))
	senders := func(kubeconfig string) *pb.Senders {
		l := newLab(t, Config{Kubeconfig: kubeconfig})
		l.dial().send(snapshot(hello("n1", 1), bridged(2, "a", "10.244.0.7"), bridged(3, "b", "10.244.0.7"))).sync()
		var out *pb.ExplainResponse
		wait.Until(t, "a conflict, with what is known of Services", func() bool {
			var err error
			if out, err = l.client.Explain(l.ctx, &pb.ExplainRequest{Address: "10.244.0.7", Senders: true}); err != nil {
				t.Fatal(err)
			}
			return out.GetSenders() != nil && (kubeconfig == "off" || len(out.GetSenders().GetServices()) > 0)
		})
		return out.GetSenders()
	}
	unread := func(s *pb.Senders) bool {
		return slices.ContainsFunc(s.GetUnseen(), func(u *pb.Senders_Unseen) bool { return u.GetReason() == pb.Senders_Unseen_SERVICES })
	}
	got := senders(api.kubeconfig())
	if all := got.GetServices(); len(all) != 32 || all[0] != "default/s00" || all[31] != "default/s31" || got.GetServiceCount() != services || unread(got) {
		t.Errorf("got %d of %d, %q, %v, want the first 32 of %d Services", len(all), got.GetServiceCount(), all, got.GetUnseen(), services)
	}
	if got := senders("off"); len(got.GetServices()) > 0 || unread(got) {
		t.Errorf("without Kubernetes: got %v, want nothing about Services", got)
	}
	bare := newLab(t, Config{Kubeconfig: newAPI(t).kubeconfig()})
	bare.dial().send(snapshot(hello("n1", 1), bridged(2, "a", "10.244.0.7"), bridged(3, "b", "10.244.0.7"))).sync()
	wait.Until(t, "EndpointSlices are said not to be read", func() bool {
		out, err := bare.client.Explain(bare.ctx, &pb.ExplainRequest{Address: "10.244.0.7", Senders: true})
		return err == nil && unread(out.GetSenders()) && len(out.GetSenders().GetServices()) == 0
	})
}

// deletions returns the commands that delete entries of the connection tracking, with their nodes.
func deletions(f *pb.Finding) (all []string) {
	for _, a := range f.GetRemedy() {
		if strings.HasPrefix(a.GetCommand(), "conntrack -D ") {
			all = append(all, a.GetNode()+": "+a.GetCommand())
		}
	}
	return all
}

// An entry of the connection tracking that is older than the owner of the address was made for its former owner.
func TestExplainNamesNATEntriesForAFormerOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "10.244.0.7"
		l := newLab(t, Config{})
		n1 := l.dial()
		got := time.Now()
		entry := func(port uint32, existed time.Duration) *pb.TranslationRecord {
			return &pb.TranslationRecord{
				Protocol: 6, Source: []byte{10, 244, 0, 4}, SourcePort: port, Destination: []byte{10, 96, 0, 10}, DestinationPort: 80, Port: 8080, ExistedAt: timestamppb.New(got.Add(existed)),
			}
		}
		answer := &pb.BeliefAnswer{}
		n1.answer = func(*pb.BeliefQuestion) *pb.BeliefAnswer { return proto.CloneOf(answer) }
		pod := bridged(2, "b", addr)
		pod.Claims[0].AssignedAt = timestamppb.New(got)
		n1.send(snapshot(hello("n1", 1), pod, bridged(3, "client", "10.244.0.4"))).sync()
		time.Sleep(5 * time.Second)
		var findings []*pb.Finding
		var unread []*pb.Senders_Unseen
		explained := func() *pb.Senders {
			out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, Senders: true})
			if err != nil {
				t.Fatal(err)
			}
			findings, unread = out.GetFindings(), out.GetUnseen()
			return out.GetSenders()
		}
		unknown := entry(4003, 0)
		unknown.ExistedAt = nil
		for name, entries := range map[string][]*pb.TranslationRecord{"none": nil, "younger ones": {entry(4001, 0), entry(4002, time.Second)}, "of unknown age": {unknown}} {
			if answer.Translations = entries; explained() != nil || len(findings) > 0 || unread != nil {
				t.Errorf("entries %s: got %v, %v, %v, want nothing", name, explained(), findings, unread)
			}
		}
		answer.TranslationsRead = pb.TranslationRecord_FAILED
		if explained() != nil || len(unread) != 1 || unread[0].GetReason() != pb.Senders_Unseen_TRANSLATIONS_FAILED {
			t.Errorf("got %v, want that the connection tracking was not looked at", unread)
		}
		answer.TranslationsRead = pb.TranslationRecord_SOME
		answer.Translations = []*pb.TranslationRecord{entry(4001, time.Second), entry(4002, -time.Millisecond)}
		s := explained()
		if len(s.GetTranslations()) != 2 {
			t.Fatalf("got %v, want both entries", s)
		}
		one := s.GetTranslations()[0]
		if !one.GetFormer() || one.GetNode() != "n1" || one.GetSource() != "10.244.0.4:4002" || one.GetWorkload().GetName() != "client" || one.GetDestination() != "10.96.0.10:80" {
			t.Errorf("got %v, want the older entry, of client", one)
		}
		if other := s.GetTranslations()[1]; other.GetFormer() {
			t.Errorf("got %v, want that the younger entry is right", other)
		}
		if len(findings) != 1 {
			t.Fatalf("got findings %v, want one", findings)
		}
		f := findings[0]
		if f.GetKind() != verdict.FindingNATToFormerOwner || f.GetSeverity() != pb.Finding_WARNING || f.GetAddress() != addr || len(f.GetOwners()) != 1 || f.GetPrevious() != nil || f.GetIncident() != "" ||
			len(f.GetTranslations()) != 1 || !proto.Equal(f.GetTranslations()[0], one) || !slices.Equal(f.GetNodes(), []string{"n1"}) {
			t.Errorf("got %v, want a warning about the older entry, as nobody knows who had the address before", f)
		}
		if got := deletions(f); !slices.Equal(got, []string{"n1: conntrack -D -p tcp --orig-src 10.244.0.4 --sport 4002 --orig-dst 10.96.0.10 --dport 80 --reply-src 10.244.0.7"}) {
			t.Errorf("got commands %q, want the one that deletes exactly that entry", got)
		}
		if all, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Address: addr}); err != nil || len(all.GetFindings()) > 0 {
			t.Errorf("got %v, %v, want no lasting finding", all, err)
		}
		if u := s.GetUnseen(); len(u) != 1 || u[0].GetReason() != pb.Senders_Unseen_TRANSLATIONS_TRUNCATED {
			t.Errorf("not looked at: got %v, want further entries", u)
		}
	})
}

// Entries from before a restart of a workload with its own address are right; those for another workload are not.
func TestNATEntriesAreComparedWithTheJournal(t *testing.T) {
	l := newLab(t, Config{DataDir: t.TempDir()})
	n1 := l.dial()
	begun := time.Now().Truncate(time.Second)
	pod := func(record uint32, name string, got time.Duration) *pb.ReportRequest {
		m := podVeth(record, name, addr)
		m.Claims[0].AssignedAt = timestamppb.New(begun.Add(got))
		return m
	}
	entry := func(port uint32, existed time.Duration) *pb.TranslationRecord {
		return &pb.TranslationRecord{Protocol: 17, Source: []byte{10, 244, 0, 4}, SourcePort: port, Destination: []byte{10, 96, 0, 10}, DestinationPort: 53, Port: 53, ExistedAt: timestamppb.New(begun.Add(existed))}
	}
	n1.answer = func(*pb.BeliefQuestion) *pb.BeliefAnswer {
		return &pb.BeliefAnswer{TranslationsRead: pb.TranslationRecord_ALL, Translations: []*pb.TranslationRecord{entry(1, -50*time.Second), entry(2, -30*time.Second), entry(3, -10*time.Second), entry(4, 0)}}
	}
	of := func(netns string, what pb.Watch_Type) {
		l.await(netns, &pb.ListEventsRequest{Address: addr}, func(e *pb.Event) bool { return e.GetType() == what && e.GetOwner().GetNetns() == netns })
	}
	explained := func() (ports []string, f *pb.Finding) {
		out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, Senders: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.GetFindings()) == 0 {
			return nil, nil
		}
		f = out.GetFindings()[0]
		for _, one := range f.GetTranslations() {
			ports = append(ports, one.GetSource())
		}
		return ports, f
	}
	n1.send(snapshot(hello("n1", 1), pod(2, "c", -60*time.Second))).sync()
	of("4026532002", pb.Watch_ADDED)
	n1.send(ended(2)).sync()
	of("4026532002", pb.Watch_REMOVED)
	n1.send(pod(3, "c", -20*time.Second)).sync()
	of("4026532003", pb.Watch_ADDED)
	if ports, f := explained(); f != nil {
		t.Errorf("after a restart: got %q, %v, want nothing", ports, f)
	}
	n1.send(ended(3)).sync()
	of("4026532003", pb.Watch_REMOVED)
	n1.send(pod(4, "new", -5*time.Second)).sync()
	of("4026532004", pb.Watch_ADDED)
	ports, f := explained()
	if want := []string{"10.244.0.4:1", "10.244.0.4:2", "10.244.0.4:3"}; !slices.Equal(ports, want) || f.GetSeverity() != pb.Finding_CRITICAL || f.GetPrevious().GetWorkload().GetName() != "c" || len(deletions(f)) != 1 {
		t.Errorf("another workload: got %q, %v, want %q of c, critical", ports, f, want)
	}
	n1.send(ended(4)).sync()
	of("4026532004", pb.Watch_REMOVED)
	n1.send(pod(5, "new", -2*time.Second)).sync()
	of("4026532005", pb.Watch_ADDED)
	if again, f := explained(); !slices.Equal(again, ports) || f.GetPrevious().GetWorkload().GetName() != "c" {
		t.Errorf("restarted later: got %q, %v, want those of c still", again, f)
	}
}
