package aggregator

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The address of a pod that has ended is given to another pod while its object exists, and the EndpointSlice of its Service
// still has it (kubernetes/kubernetes issue 109414).
func TestIncident40AnEndpointLeadsToTheNextOwner(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	api := newAPI(t)
	b, c := apiPod("b", "n1", addr), apiPod("c", "n1", addr)
	api.set("ADDED", apiNode("n1"))
	api.set("ADDED", b)
	slice := apiSlice("web-x", "web", addr, b)
	api.set("ADDED", slice)
	l := newLab(t, Config{Kubeconfig: api.kubeconfig()})
	n := l.dial().send(snapshot(hello("n1", 1), bridged(2, "a", "10.244.0.5"), bridged(3, "b", addr))).sync()
	findings := func() (all []*pb.Finding) {
		out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range out.GetFindings() {
			if f.GetKind() == "endpoint-of-former-owner" {
				all = append(all, f)
			}
		}
		return all
	}
	wait.Until(t, "the API is read", func() bool { return l.kubernetes().GetState() == pb.Kubernetes_LIVE })

	b = b.DeepCopy()
	b.Status.Phase = corev1.PodFailed
	api.set("MODIFIED", b)
	n.send(ended(3)).sync()
	api.set("ADDED", c)
	n.send(bridged(4, "c", addr)).sync()
	begin := time.Now()
	var f *pb.Finding
	wait.Until(t, "the finding", func() bool {
		if all := findings(); len(all) == 1 {
			f = all[0]
		}
		return f != nil
	})
	if within := time.Since(begin); within < 9*time.Second {
		t.Errorf("got it after %s, want it after the grace", within)
	}
	e := f.GetEndpoints()
	if f.GetAddress() != addr || f.GetSeverity() != pb.Finding_CRITICAL || f.GetOwners()[0].GetWorkload().GetName() != "c" || len(e) != 1 ||
		e[0].GetPod() != "b" || e[0].GetUid() != "uid-b" || e[0].GetService() != "web" || e[0].GetSlice() != "web-x" || e[0].GetManager() != "endpointslice-controller.k8s.io" {
		t.Errorf("got %v, want that packets for web that are meant for b reach c", f)
	}
	why, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr, Senders: true})
	if got := why.GetSenders().GetServices(); err != nil || len(got) != 1 || got[0] != "default/web" {
		t.Errorf("explain: got Services %q and error %v, want the one that sends to it", got, err)
	}

	// The object of the former pod is deleted, whereupon the controller updates the EndpointSlice.
	api.set("DELETED", b)
	time.Sleep(100 * time.Millisecond)
	if len(findings()) != 1 {
		t.Error("the finding ended before the endpoint")
	}
	api.set("MODIFIED", apiSlice("web-x", "web", addr, c))
	wait.Until(t, "its end", func() bool { return len(findings()) == 0 })
}

// The finding lasts over a restart of the aggregator, also while the API is not read and until the grace has passed again.
func TestAnEndpointOfAFormerOwnerLastsOverARestart(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	api := newAPI(t)
	api.set("ADDED", apiNode("n1"))
	api.set("ADDED", apiPod("c", "n1", addr))
	slice := apiSlice("web-x", "web", addr, apiPod("b", "n1", addr))
	api.set("ADDED", slice)
	cfg := Config{DataDir: t.TempDir(), Kubeconfig: api.kubeconfig()}
	start := func() (l *lab, listed func() int) {
		l = newLab(t, cfg)
		l.dial().send(snapshot(hello("n1", 1), bridged(4, "c", addr))).sync()
		return l, func() int {
			out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Address: addr})
			if err != nil {
				t.Fatal(err)
			}
			return len(out.GetFindings())
		}
	}
	l, listed := start()
	wait.Until(t, "the finding", func() bool { return listed() == 1 })
	l.settled()
	l.stop()
	answer := api.delay("endpointslices")
	l, listed = start()
	wait.Until(t, "the journal to be read", func() bool { return listed() == 1 })
	lasts := func(when string, d time.Duration) {
		for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			if listed() != 1 {
				t.Fatalf("it ended %s", when)
			}
		}
	}
	lasts("before EndpointSlices were read", 2*time.Second)
	answer()
	lasts("although nothing has changed", 13*time.Second)
	api.set("DELETED", slice)
	wait.Until(t, "its end", func() bool { return listed() == 0 })
	l.stop()
}
