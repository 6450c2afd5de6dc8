package aggregator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// tokenOf returns the token of a node's agent.
func tokenOf(node string) string { return "token-of-the-agent-of-" + node }

// newGuardedLab creates a lab whose agents must present the tokens of their nodes.
func newGuardedLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	return newGuardedLabWith(t, Config{}, nodes...)
}

func newGuardedLabWith(t *testing.T, cfg Config, nodes ...string) *lab {
	t.Helper()
	var tokens strings.Builder
	for _, n := range nodes {
		tokens.WriteString(tokenOf(n) + " agent " + n + "\n")
	}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(tokens.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Access = access.Config{Tokens: file, Anonymous: access.AnonymousRead}
	return newLab(t, cfg)
}

// report opens a stream of a node's agent and sends its snapshot.
func (l *lab) report(h *pb.Hello, parts ...*pb.ReportRequest) *agent {
	l.Helper()
	return l.dialAs(tokenOf(h.GetNode())).send(snapshot(h, parts...)).sync()
}

// inPlaceOf returns the hello of an agent that reports the boot ID and network namespace of another
// agent.
func inPlaceOf(node, name string) *pb.Hello {
	h := hello(node, 1)
	h.Node = name
	return h
}

// nodeStates returns the nodes with their states, and marks those that share their place with
// another node.
func (l *lab) nodeStates() string {
	l.Helper()
	list, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	if err != nil {
		l.Fatal(err)
	}
	var states []string
	for _, n := range list.GetNodes() {
		one := n.GetName() + " " + n.GetState().String()
		for _, p := range n.GetProblems() {
			_, others, _ := strings.Cut(p, "the same boot id and network namespace as ")
			others, _, _ = strings.Cut(others, ", which")
			one += " where " + others + " is"
		}
		states = append(states, one)
	}
	return strings.Join(states, ", ")
}

// An agent with unproven claims cannot displace an agent that proves more: not if it connects
// earlier or later, nor if it reconnects.
func TestReportingAnotherNodesBootIDDoesNotExcludeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newGuardedLab(t, "liar", "victim")
		lie := inPlaceOf("victim", "liar")
		lying := l.report(lie)
		victim := l.report(hello("victim", 1), podVeth(2, "web", addr))
		want := func(want string) {
			t.Helper()
			if got := l.nodeStates(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		want("liar LIVE where victim is, victim LIVE where liar is")
		if o := l.owners(&pb.ListOwnersRequest{Address: addr}); len(o) != 1 || o[0].GetNode() != "victim" || o[0].GetState() != pb.Owner_LIVE {
			t.Errorf("got %v, want the pod of the victim", o)
		}

		lie.Epoch = 1 << 60 // like that of the newest agent
		again := l.report(lie)
		if err := lying.ended(); status.Code(err) != codes.Aborted {
			t.Errorf("the older stream of the lying agent: got %v, want Aborted", err)
		}
		victim.send(podVeth(3, "more", "10.244.0.6")).sync()
		again.cancel()
		synctest.Wait()
		want("liar DISCONNECTED, victim LIVE")
		victim.cancel()
		synctest.Wait()
		l.report(lie)
		want("liar LIVE, victim DISCONNECTED")
		l.report(hello("victim", 1), podVeth(2, "web", addr)).sync()
		want("liar LIVE where victim is, victim LIVE where liar is")
	})
}

// Situations that resemble another node's place, but are legitimate.
func TestNodesWithTheSameBootIDAndNamespace(t *testing.T) {
	another := func(boot, netns string, h *pb.Hello) *pb.Hello {
		h.BootId, h.Netns = boot, netns
		return h
	}
	for name, test := range map[string]struct {
		then *pb.Hello
		want string
	}{
		"two nodes on one kernel":       {another("boot-n1", "4026532999", hello("n2", 1)), "n1 LIVE, n2 LIVE"},
		"one network namespace's inode": {another("boot-n2", "4026531840", hello("n2", 1)), "n1 LIVE, n2 LIVE"},
		"a newer agent":                 {hello("n1", 2), "n1 LIVE"},
		"it was booted":                 {another("boot-later", "4026531840", hello("n1", 2)), "n1 LIVE, n1@boot-n1 DISCONNECTED"},
		"it was renamed":                {inPlaceOf("n1", "n2"), "n1 DISCONNECTED, n2 LIVE"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newGuardedLab(t, "n1", "n2")
				pod := podVeth(2, "web", addr)
				first := l.report(hello("n1", 1), pod)
				if strings.Contains(test.want, "DISCONNECTED") {
					first.cancel()
					synctest.Wait()
				}
				var parts []*pb.ReportRequest
				if test.then.GetBootId() == "boot-n1" && test.then.GetNetns() == "4026531840" {
					parts = append(parts, pod) // a renamed node is not a new owner
				}
				second := l.report(test.then, parts...)
				if got := l.nodeStates(); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				time.Sleep(DefaultNodeTimeout + DefaultSettle) // on the synctest clock
				if got := l.conflicts(); len(got) != 0 {
					t.Errorf("got %v, want no conflict", got)
				}
				second.send(podVeth(7, "one", addr)).send(podVeth(8, "two", addr)).sync()
				l.conflict(pb.Conflict_SUSPECTED)
			})
		})
	}
}
