package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/kubernetes"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// BenchmarkMirror lists 10,000 pods from a server in the same process. The server sends
// pre-encoded objects, so all memory that is alive afterwards belongs to the mirror. With
// paging, the server assembles each page, so most allocations are the server's.
func BenchmarkMirror(b *testing.B) {
	const pods = 10_000
	f := newFakeAPI(b)
	for i := range pods {
		f.put(kubernetes.Pod(i))
	}
	text, err := json.Marshal(kubernetes.Pod(1))
	if err != nil {
		b.Fatal(err)
	}
	for _, paged := range []bool{false, true} {
		b.Run(map[bool]string{false: "stream", true: "pages"}[paged], func(b *testing.B) {
			f.paged = paged
			var kept, peak, took float64
			for b.Loop() {
				c := f.open()
				before := heap()
				var most uint64
				sampled, sampling := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(sampled)
					for {
						select {
						case <-sampling:
							return
						case <-time.After(time.Millisecond):
							var m runtime.MemStats
							runtime.ReadMemStats(&m)
							most = max(most, m.HeapAlloc)
						}
					}
				}()
				begin := time.Now()
				stop := run(c)
				live(b, c)
				took += time.Since(begin).Seconds()
				close(sampling)
				<-sampled
				wait.Until(b, "all changes are reported", func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					return len(c.pending.pods) == 0
				})
				kept += float64(heap() - before)
				peak += float64(most - before)
				if n := c.Status().GetPods(); n != pods {
					b.Fatalf("got %d pods", n)
				}
				stop()
				runtime.KeepAlive(c)
			}
			n := float64(b.N)
			b.ReportMetric(kept/n/pods, "heap-B/pod")
			b.ReportMetric(peak/n/1e6, "peak-MB")
			b.ReportMetric(took/n, "sync-s")
			b.ReportMetric(float64(len(f.pods[kubernetes.Pod(1).Name])), "protobuf-B")
			b.ReportMetric(float64(len(text)), "json-B")
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkPod looks up pods, as the aggregator does for each judgement.
func BenchmarkPod(b *testing.B) {
	c := newFakeAPI(b).open()
	for i := range 10_000 {
		c.put(&c.pods, kubernetes.Pod(i))
	}
	c.health.state = pb.Kubernetes_LIVE
	known := kubernetes.Pod(77)
	for name, ask := range map[string]func() *verdict.PodObject{
		"uid":     func() *verdict.PodObject { return c.Pod("", "", string(known.UID), known.Spec.NodeName) },
		"name":    func() *verdict.PodObject { return c.Pod(known.Namespace, known.Name, "", known.Spec.NodeName) },
		"unknown": func() *verdict.PodObject { return c.Pod("", "", "none", known.Spec.NodeName) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}

// BenchmarkInPodCIDR looks up addresses in a cluster of 5,000 nodes.
func BenchmarkInPodCIDR(b *testing.B) {
	c := newFakeAPI(b).open()
	const nodes = 5000
	var listed []any
	for i := range nodes {
		listed = append(listed, reduce(&c.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: corev1.NodeSpec{
			PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), fmt.Sprintf("fd00:%x::/64", i)},
		}}))
	}
	c.replace(&c.nodes, listed)
	a := netip.MustParseAddr("10.7.77.7")
	b.ReportAllocs()
	for b.Loop() {
		if !c.InPodCIDR(a) {
			b.Fatal("not found")
		}
	}
}

// BenchmarkRelated explains a conflict between two nodes while the event logs are full. The
// aggregator does this under its lock for each conflict that it reports.
func BenchmarkRelated(b *testing.B) {
	c := newFakeAPI(b).open()
	for _, node := range []string{"n1", "n2"} {
		c.put(&c.nodes, testNode(node, "10.0.0.0/24"))
		c.put(&c.pods, pluginPod("kindnet", node))
		for i := range maxNodeEvents {
			c.put(c.events.warnings, testEvent(fmt.Sprintf("w-%s-%d", node, i), fmt.Sprintf("p%d", i), node, "FailedCreatePodSandBox", 3, time.Minute))
			c.put(c.events.normal, testEvent(fmt.Sprintf("n-%s-%d", node, i), node, node, "Rebooted", 3, time.Minute))
		}
	}
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "p1@n1", "p2@n2")
	b.ReportAllocs()
	for b.Loop() {
		if len(c.Related(conflict)) == 0 {
			b.Fatal("nothing")
		}
	}
}
