package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// pluginSets maps the names of the DaemonSets in the manifests and charts of CNI plugins to the plugins, and so do the labels
// of their pods (k8s-app, app, app.kubernetes.io/name) if the DaemonSet has another name.
var pluginSets = map[string]string{
	"calico-node": "Calico", "canal": "Canal", "rke2-canal": "Canal",
	"cilium": "Cilium", "cilium-envoy": "Cilium",
	"kube-flannel": "Flannel", "kube-flannel-ds": "Flannel",
	"kindnet": "kindnet", "weave-net": "Weave Net",
	"antrea-agent": "Antrea",
	"ovnkube-node": "OVN-Kubernetes", "ovnkube-controller": "OVN-Kubernetes", "ovs-node": "OVN-Kubernetes",
	"kube-ovn-cni": "Kube-OVN", "ovs-ovn": "Kube-OVN",
	"kube-router": "kube-router", "romana-agent": "Romana", "contiv-vpp-vswitch": "Contiv",
	"aws-node": "Amazon VPC CNI", "azure-cns": "Azure CNI", "azure-npm": "Azure CNI", "azure-ipam": "Azure CNI",
	"netd": "GKE netd", "anetd": "GKE Dataplane V2", "terway": "Terway", "terway-eniip": "Terway",
	"multus": "Multus", "kube-multus-ds": "Multus", "multus-daemonset": "Multus",
	"whereabouts": "whereabouts", "spiderpool-agent": "spiderpool", "danm-cni": "DANM",
	"sriov-cni": "SR-IOV CNI", "kube-sriov-cni-ds": "SR-IOV CNI", "kube-ovs-cni": "OVS CNI", "ovs-cni-amd64": "OVS CNI",
	"tigera-operator": "Calico", "nsx-ncp-bootstrap": "NSX-T", "nsx-node-agent": "NSX-T",
	"flannel": "Flannel", "antrea": "Antrea", // labels only
}

// pluginOf returns the CNI plugin that a DaemonSet's pod belongs to, or the empty string. The
// names alone prove nothing, because any user may choose them. So the pod must also be in a
// system namespace or use the host network.
func pluginOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind != "DaemonSet" || !pod.Spec.HostNetwork && !slices.Contains(systemNamespaces, pod.Namespace) {
		return ""
	}
	if name := pluginSets[owner.Name]; name != "" {
		return name
	}
	component := pod.Labels["component"]
	if component == "agent" && pod.Labels["app"] == "antrea" {
		return "Antrea"
	}
	for _, label := range []string{"k8s-app", "app.kubernetes.io/name", "app", "name"} {
		if name := pluginSets[pod.Labels[label]]; name != "" {
			return name
		}
	}
	return ""
}

// systemNamespaces usually hold a cluster's network components.
var systemNamespaces = []string{
	"kube-system", "kube-flannel", "calico-system", "cilium", "cilium-system", "antrea-system", "ovn-kubernetes",
	"openshift-ovn-kubernetes", "openshift-multus", "kube-ovn", "kube-router", "weave", "spiderpool", "multus", "whereabouts",
}

type pluginState struct {
	name string
	// word is a short form of the state: Running, or the reason why the pod is not running.
	word string
	// message is the kubelet's message about the state.
	message  string
	ready    bool
	restarts int32
	// restarted is when one of the containers last terminated, and begun is when the pod
	// started.
	restarted, begun verdict.Stamp
}

func readPlugin(name string, pod *corev1.Pod) *pluginState {
	s := &pluginState{name: name, word: string(pod.Status.Phase), message: ipam.Shorten(pod.Status.Message)}
	if pod.Status.Reason != "" {
		s.word = ipam.Plain(pod.Status.Reason)
	}
	if pod.Status.StartTime != nil {
		s.begun = verdict.At(pod.Status.StartTime.Time)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			s.ready = condition.Status == corev1.ConditionTrue
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			c := &statuses[i]
			s.restarts += c.RestartCount
			if ended := c.LastTerminationState.Terminated; ended != nil {
				s.restarted = max(s.restarted, verdict.At(ended.FinishedAt.Time))
			}
			if waiting := c.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing" {
				s.word, s.message = ipam.Plain(waiting.Reason), ipam.Shorten(waiting.Message)
			}
			if ended := c.State.Terminated; ended != nil && ended.ExitCode != 0 {
				s.restarted = max(s.restarted, verdict.At(ended.FinishedAt.Time))
				s.word, s.message = ipam.Plain(cmp.Or(ended.Reason, "Error")), ipam.Shorten(ended.Message)
			}
		}
	}
	if s.word == string(corev1.PodRunning) && !s.ready {
		s.word = "NotReady"
	}
	if pod.DeletionTimestamp != nil {
		s.word = "Terminating"
	}
	return s
}

// lately is the maximum age of an event that may explain a conflict.
const lately = time.Hour

// sameHealth reports whether two states differ in nothing that is reported.
func sameHealth(a, b *pluginState) bool {
	return a == b || a != nil && b != nil && a.word == b.word && a.ready == b.ready && a.restarts == b.restarts
}

// keptVIP returns the control plane address that a kube-vip pod manages.
func keptVIP(pod *corev1.Pod) netip.Addr {
	if pod.Namespace != "kube-system" || !strings.HasPrefix(pod.Name, "kube-vip") {
		return netip.Addr{}
	}
	for i := range pod.Spec.Containers {
		for _, v := range pod.Spec.Containers[i].Env {
			if v.Name == "address" || v.Name == "vip_address" {
				a, _ := netip.ParseAddr(v.Value)
				return a.Unmap()
			}
		}
	}
	return netip.Addr{}
}

func (s *pluginState) counted() string {
	if s.restarts == 1 {
		return "1 restart"
	}
	return fmt.Sprintf("%d restarts", s.restarts)
}
