package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// realisticPod is a pod as a Deployment's are in a cluster with sidecars: some 7 kB
// of JSON, half of it managed fields.
func realisticPod(i int) *corev1.Pod {
	deployment, hash := fmt.Sprintf("service-%03d", i%300), fmt.Sprintf("%010x", 0x7d4b9c6f5d+i%300)
	yes, seconds := true, int64(30)
	now := metav1.NewTime(time.Unix(1773500966, 0))
	node := fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/110/250, i/110%250)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%05x", deployment, hash, i), GenerateName: deployment + "-" + hash + "-",
			Namespace: fmt.Sprintf("team-%02d", i%40), UID: types.UID(fmt.Sprintf("%08x-5d0f-4f6e-9a55-%012x", i, i*7919)), CreationTimestamp: now,
			Labels: map[string]string{
				"app.kubernetes.io/name": deployment, "app.kubernetes.io/instance": deployment + "-prod", "app.kubernetes.io/version": "1.42.7",
				"app.kubernetes.io/managed-by": "Helm", "pod-template-hash": hash, "team": fmt.Sprintf("team-%02d", i%40),
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "checksum/config": strings.Repeat("5e884898da28047151d0e56f8dc62927", 2),
				"kubectl.kubernetes.io/restartedAt": "2026-03-14T15:09:26Z",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: deployment + "-" + hash, UID: types.UID(fmt.Sprintf("%08x-0000-4f6e-9a55-000000000000", i%300)),
				Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: deployment,
			TerminationGracePeriodSeconds: &seconds, SchedulerName: "default-scheduler", EnableServiceLinks: &yes,
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
				{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: deployment}}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "kube-api-access-x7k2p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: fmt.Sprintf("10.%d.%d.%d", 64+i/62500, i/250%250, i%250+1), StartTime: &now, QOSClass: corev1.PodQOSBurstable,
		},
	}
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}, {IP: fmt.Sprintf("fd00:64::%x:%x", i>>16, i&0xffff)}}
	for _, name := range []string{"main", "sidecar"} {
		c := corev1.Container{
			Name: name, Image: "registry.example.com/" + deployment + "/" + name + ":1.42.7", ImagePullPolicy: corev1.PullIfNotPresent,
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
			}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "config", MountPath: "/etc/config"},
				{Name: "tmp", MountPath: "/tmp"},
				{Name: "kube-api-access-x7k2p", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
			},
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}
		for k := range 8 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", k), Value: fmt.Sprintf("value-%d-of-%s", k, deployment)})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, Image: c.Image, ImageID: c.Image + "@sha256:" + strings.Repeat("5e884898da28047151d0e56f8dc62927", 2), Ready: true, Started: &yes,
			ContainerID: "containerd://" + strings.Repeat(fmt.Sprintf("%016x", i*104729), 4), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, manager := range []string{"kube-controller-manager", "kubelet"} {
		fields := `{"f:metadata":{"f:generateName":{},"f:labels":{".":{}},"f:ownerReferences":{".":{}}},"f:spec":{` +
			strings.Repeat(`"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{}},"f:image":{},"f:resources":{}}},`, 8) + `"f:volumes":{}}}`
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)},
		})
	}
	return pod
}

// BenchmarkMirror lists 10,000 pods of a server in this process, which sends what it
// has encoded before: all that lives afterwards is the mirror's. In pages the server
// makes each page of parts, so that what is allocated then is for the most part its.
func BenchmarkMirror(b *testing.B) {
	const pods = 10_000
	f := newFakeAPI(b)
	for i := range pods {
		f.put(realisticPod(i))
	}
	text, err := json.Marshal(realisticPod(1))
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
				until(b, "all is told", func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					return len(c.pending.changes.Pods) == 0
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
			b.ReportMetric(float64(len(f.pods[realisticPod(1).Name])), "protobuf-B")
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

// BenchmarkPod asks for pods, as the aggregator does for each judgement.
func BenchmarkPod(b *testing.B) {
	c := newFakeAPI(b).open()
	for i := range 10_000 {
		c.pods.put(realisticPod(i))
	}
	c.health.state = pb.Kubernetes_LIVE
	known := realisticPod(77)
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

// BenchmarkInPodCIDR asks for addresses of a cluster of 5,000 nodes.
func BenchmarkInPodCIDR(b *testing.B) {
	c := newFakeAPI(b).open()
	const nodes = 5000
	listing := c.nodes.anew()
	for i := range nodes {
		listing.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: corev1.NodeSpec{
			PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), fmt.Sprintf("fd00:%x::/64", i)},
		}})
	}
	listing.complete()
	a := netip.MustParseAddr("10.7.77.7")
	b.ReportAllocs()
	for b.Loop() {
		if !c.InPodCIDR(a) {
			b.Fatal("not found")
		}
	}
}
