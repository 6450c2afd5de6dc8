package aggregator

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// What the Kubernetes API said about an orphaned sandbox counts until the API contradicts it, also if the API does not
// respond for longer than the node timeout after a start.
func TestAnOrphanedSandboxStaysOneAfterARestartWithoutTheAPI(t *testing.T) {
	t.Parallel()
	const alone = "10.244.1.6"
	for _, phase := range []string{"", "Failed"} { // the pod was deleted, or has ended
		a := newAPI(t)
		a.set("ADDED", apiNode("n1"))
		a.set("ADDED", apiNode("n2"))
		cfg := Config{
			DataDir: t.TempDir(), Kubeconfig: a.kubeconfig(), Settle: time.Millisecond, NodeTimeout: 2 * time.Second,
			Networks: []verdict.Network{{Name: "pods", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}},
		}
		for _, name := range []string{"old", "left"} {
			pod := apiPod(name, "n1")
			if a.set("ADDED", pod); phase == "" {
				a.set("DELETED", pod)
			} else {
				pod.Status.Phase = corev1.PodPhase(phase)
				a.set("MODIFIED", pod)
			}
		}
		a.set("ADDED", apiPod("new", "n2", "10.244.1.5"))
		report := func(l *lab) []*agent {
			pool := poolOf(hostLocal("10.244.1.0/24", pb.Pool_KNOWN)) // has no record of the sandboxes
			n1 := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "old", "10.244.1.5"), podVeth(3, "left", alone), pool)).sync()
			n2 := l.dial().send(snapshot(hello("n2", 1), podVeth(2, "new", "10.244.1.5"))).sync()
			return []*agent{n1, n2}
		}
		// The cause, and the kinds of the findings about the sandbox that is alone with its address. ok is set if they are judged.
		told := func(l *lab) (text string, ok bool) {
			all := l.list(&pb.ListConflictsRequest{State: pb.Conflict_CONFIRMED})
			ok = len(all) == 1 && len(all[0].GetRemedy()) > 0
			for _, c := range all {
				text += c.GetCause()
			}
			out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Address: alone})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range out.GetFindings() {
				text, ok = text+" "+f.GetKind()+" "+f.GetSeverity().String(), ok && len(f.GetRemedy()) > 0
			}
			return text, ok && len(out.GetFindings()) == 1
		}
		l := newLab(t, cfg)
		for _, node := range report(l) {
			node.send(&pb.ReportRequest{Checked: []uint64{node.check().GetId()}}).sync()
		}
		var before string
		wait.Until(t, "the conflict and the finding", func() (ok bool) {
			before, ok = told(l)
			return ok && strings.HasPrefix(before, verdict.CauseOrphanedSandbox)
		})
		l.settled()
		l.stop()
		answer := a.delay("")

		l = newLab(t, cfg)
		wait.Until(t, "the journal to be read", func() bool { now, _ := told(l); return now == before })
		report(l)
		for until := time.Now().Add(cfg.NodeTimeout + time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			if now, _ := told(l); now != before || len(l.list(&pb.ListConflictsRequest{})[0].GetRemedy()) > 0 {
				t.Fatalf("phase %q: got %q, or it was judged, before the API was read; want %q", phase, now, before)
			}
		}
		answer()
		wait.Until(t, "the conflict and the finding to be judged", func() bool {
			now, ok := told(l)
			if now != before {
				t.Fatalf("phase %q: got %q after the restart, want %q", phase, now, before)
			}
			return ok
		})
		l.stop()
	}
}

// Until the Kubernetes API is read, conflicts from before the start are listed as they were told: the scope in which their
// owners meet is not known. Then they last or end.
func TestConflictsLastUntilTheKubernetesAPIIsRead(t *testing.T) {
	t.Parallel()
	for _, slow := range []string{"", "nodes", "apis"} { // what answers late
		for _, lasts := range []bool{true, false} {
			a := newAPI(t)
			ranged := apiNode("n2", "10.244.1.0/24")
			a.set("ADDED", apiNode("n1"))
			a.set("ADDED", ranged)
			cfg := Config{DataDir: t.TempDir(), Kubeconfig: a.kubeconfig()}
			report := func(l *lab) {
				for _, n := range []string{"n1", "n2"} {
					l.dial().send(snapshot(hello(n, 1), podVeth(2, "web-"+n, "10.244.1.5"))).sync()
				}
			}
			active := func(l *lab) (texts []string, awaited bool) {
				out, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{})
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range out.GetConflicts() {
					texts = append(texts, c.GetId()+c.GetState().String()+c.GetCause())
				}
				return texts, slices.ContainsFunc(out.GetCoverage().GetAwaited(), func(w *pb.Awaited) bool { return w.GetWhat() == pb.Awaited_RECORDS && w.GetNode() == "" })
			}
			l := newLab(t, cfg)
			report(l)
			var before []string
			wait.Until(t, "the conflict", func() bool {
				var awaited bool
				before, awaited = active(l)
				return len(before) == 1 && !awaited
			})
			l.settled()
			l.stop()

			answer := a.delay(slow)
			if !lasts {
				a.set("DELETED", ranged)
			}
			l = newLab(t, cfg)
			wait.Until(t, "the journal to be read", func() bool { now, _ := active(l); return slices.Equal(now, before) })
			report(l)
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
				if now, awaited := active(l); !slices.Equal(now, before) || !awaited {
					t.Fatalf("slow %q: got %q, awaited %t, before the API was read; want %q", slow, now, awaited, before)
				}
			}
			if c := l.list(&pb.ListConflictsRequest{})[0]; strings.Contains(c.GetSummary(), "disconnected") || !strings.Contains(c.GetSummary(), "cannot be told yet") || c.GetOwners()[0].GetState() == pb.Owner_DISCONNECTED {
				t.Errorf("slow %q: got %v, although the nodes are connected", slow, c)
			}
			if n := len(l.events(&pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: "10.244.1.5"}).GetEvents()); n != 1 {
				t.Errorf("slow %q: got %d events of the conflict, want one", slow, n)
			}
			answer()
			wait.Until(t, "the conflict to be judged", func() bool {
				now, awaited := active(l)
				if lasts && !slices.Equal(now, before) {
					t.Fatalf("slow %q: got %q when the API was read, want %q", slow, now, before)
				}
				return !awaited && (!lasts || len(l.list(&pb.ListConflictsRequest{})[0].GetRemedy()) > 0) && (lasts || len(now) == 0)
			})
			l.stop()
		}
	}
}
