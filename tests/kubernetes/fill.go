package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Many pods are spread over manyNamespaces namespaces, with a fixed number on each node.
const (
	manyNamespaces = 40
	podsOfNode     = 110
)

func manyNamespace(i int) string { return fmt.Sprintf("team-%02d", i%manyNamespaces) }

func manyNode(i int) string {
	return fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250)
}

// Pod returns the i-th pod. It resembles a pod of a Deployment with sidecars: about 7 kB of JSON,
// half of it managed fields.
func Pod(i int) *corev1.Pod {
	deployment, hash := fmt.Sprintf("service-%03d", i%300), fmt.Sprintf("%010x", 0x7d4b9c6f5d+i%300)
	yes, seconds := true, int64(30)
	now := metav1.NewTime(time.Unix(1773500966, 0))
	node := manyNode(i / podsOfNode)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%s-%05x", deployment, hash, i), GenerateName: deployment + "-" + hash + "-",
			Namespace: manyNamespace(i), UID: types.UID(fmt.Sprintf("%08x-5d0f-4f6e-9a55-%012x", i, i*7919)), CreationTimestamp: now,
			Labels: map[string]string{
				"app.kubernetes.io/name": deployment, "app.kubernetes.io/instance": deployment + "-prod", "app.kubernetes.io/version": "1.42.7",
				"app.kubernetes.io/managed-by": "Helm", "pod-template-hash": hash, "team": manyNamespace(i),
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
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
	return pod
}

// Fill creates the first pods of Pod, and Node objects without machines. In a cluster with
// controllers these would be deleted.
func (c *Cluster) Fill(ctx context.Context, pods int) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	post := func(path string, object any) error {
		return client.send(ctx, http.MethodPost, "/api/v1/"+path, "application/json", object)
	}
	for i := range manyNamespaces {
		namespace := manyNamespace(i)
		err := post("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		if err != nil {
			return err
		}
		// Pods cannot be created before their default service account exists.
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if err := post("namespaces/"+namespace+"/serviceaccounts", account); err != nil {
			return err
		}
	}
	for i := range (pods + podsOfNode - 1) / podsOfNode {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: manyNode(i)}, Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 64+i/250, i%250)}}
		node.Spec.PodCIDRs = []string{node.Spec.PodCIDR}
		if err := post("nodes", node); err != nil {
			return err
		}
	}
	make := func(i int) error {
		pod := Pod(i)
		of := "namespaces/" + pod.Namespace + "/pods"
		no := false
		pod.ManagedFields, pod.UID, pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = nil, "", "default", &no
		for v := range pod.Spec.Volumes {
			if pod.Spec.Volumes[v].Projected != nil {
				pod.Spec.Volumes[v].Projected.Sources = []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}
			}
		}
		if err := post(of, pod); err != nil {
			return err
		}
		return client.send(ctx, http.MethodPatch, "/api/v1/"+of+"/"+pod.Name+"/status", "application/merge-patch+json", map[string]any{"status": pod.Status})
	}
	var next atomic.Int64
	var faults faults
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for !faults.any() {
				i := int(next.Add(1)) - 1
				if i >= pods {
					return
				}
				faults.add(make(i))
			}
		})
	}
	workers.Wait()
	return faults.joined()
}

// faults collects the errors of several goroutines.
type faults struct {
	mu  sync.Mutex
	all []error
}

func (f *faults) add(err error) {
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all = append(f.all, err)
	}
}

func (f *faults) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all) > 0
}

func (f *faults) joined() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.all...)
}

// client is a client for an administrator, because kubectl is too slow here.
type client struct{ *http.Client }

func (c *Cluster) client() (*client, error) {
	cert, err := os.ReadFile(c.Path(apiCert))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return &client{&http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = c.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}}, nil
}

// send requests a change.
func (c *client) send(ctx context.Context, method, path, content string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+Address+":6443"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", content)
	r.Header.Set("Authorization", "Bearer admin")
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return err
}
