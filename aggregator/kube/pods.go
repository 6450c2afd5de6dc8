package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/proto/form"
)

// podFeed is the name of the feed of pods, which decides whether the mirror is live.
const podFeed = "pods"

type podRecord struct {
	verdict.PodObject
	// more has fields that few pods have; nil for the others.
	more *podMore
	// ovn is set if OVN-Kubernetes has allocated the addresses in the status.
	ovn bool
}

// podMore has the fields of a record that only some pods have.
type podMore struct {
	// alias is the UID by which the container runtime knows a static pod.
	alias string
	// plugin is the state of a CNI plugin's pod; nil for other pods.
	plugin *pluginState
	// vip is the control plane address that a kube-vip pod manages.
	vip netip.Addr
	// agentOn is the node that an agent's pod runs on or was created for.
	agentOn string
	// memberships are the networks of the pod's addresses. unread names an annotation about them, or an
	// address, that cannot be read.
	memberships []membership
	unread      string
	// allocated are the addresses that OVN-Kubernetes has allocated to a pod whose status does not have
	// them yet.
	allocated [2]netip.Addr
	// clusterIPs is the value of the flag --service-cluster-ip-range of an API server.
	clusterIPs string
}

func (m *podMore) isEmpty() bool {
	return m.alias == "" && m.plugin == nil && !m.vip.IsValid() && m.agentOn == "" && len(m.memberships) == 0 && m.unread == "" && m.clusterIPs == "" && m.allocated == [2]netip.Addr{}
}

// Pod implements podips.Record.
func (r *podRecord) Pod() podips.Pod {
	if r == nil {
		return podips.Pod{}
	}
	return podips.Pod{
		Namespace: r.Namespace, Name: r.Name, Node: r.Node, VirtualMachine: r.VirtualMachine, IPs: r.shared(),
		Exclusive: !r.HostNetwork && r.Phase == string(corev1.PodRunning) && r.DeletionTimestamp == 0,
	}
}

// addresses returns the addresses of a pod; none for nil.
func (r *podRecord) addresses() []netip.Addr {
	if r == nil {
		return nil
	}
	return r.IPs
}

// shared returns the addresses of a pod in the network that all pods share. Pods of different tenants
// may have the same addresses.
func (r *podRecord) shared() []netip.Addr {
	if !slices.ContainsFunc(r.Memberships, ofTenant) {
		return r.IPs
	}
	return slices.DeleteFunc(slices.Clone(r.IPs), func(a netip.Addr) bool {
		return slices.ContainsFunc(r.Memberships, func(m verdict.Membership) bool { return m.Address == a && ofTenant(m) })
	})
}

// ofTenant reports whether an address is in a tenant's network.
func ofTenant(m verdict.Membership) bool { return m.OVS && m.Network != podNetwork }

type pods struct {
	ipam.Mirror[*corev1.Pod, podRecord]
	cluster *Cluster
	byUID   map[string]*podRecord
	aliases index[string, podRecord]
	// plugins has the pods of CNI plugins, by node.
	plugins index[string, podRecord]
	// vips has the kube-vip pods of each control plane address.
	vips index[netip.Addr, podRecord]
	// agentAccounts is Config.AgentAccounts. agents has the pods of these accounts, by node.
	agentAccounts []string
	agents        index[string, podRecord]
	// attached has the pods that are attached to the network of a NetworkAttachmentDefinition.
	attached index[ipam.Key, podRecord]
	// tenants has the pods that belong to a tenant with a network of its own, and unread those with an
	// annotation about networks that cannot be read, both by true.
	tenants, unread index[bool, podRecord]
	// servers has the API servers by the ranges of cluster IPs in their flags.
	servers index[string, podRecord]
}

func newPods(c *Cluster) pods {
	return pods{
		cluster: c,
		Mirror: ipam.Mirror[*corev1.Pod, podRecord]{
			Read: func(pod *corev1.Pod) (ipam.Key, *podRecord) { return c.pods.read(pod) },
			Same: func(a, b *podRecord) bool { // changed sets the other fields
				same := *a
				same.Heard, same.Memberships = b.Heard, b.Memberships
				return reflect.DeepEqual(&same, b)
			},
			Changed: func(_ ipam.Key, before, after *podRecord) { c.pods.changed(before, after) },
		},
		byUID: make(map[string]*podRecord), aliases: index[string, podRecord]{}, plugins: index[string, podRecord]{}, vips: index[netip.Addr, podRecord]{},
		agents: index[string, podRecord]{}, attached: index[ipam.Key, podRecord]{}, tenants: index[bool, podRecord]{}, unread: index[bool, podRecord]{}, servers: index[string, podRecord]{},
	}
}

// find returns the pod that Pod looks up; nil if there is none.
func (p *pods) find(namespace, name, uid, node string) *podRecord {
	if uid != "" {
		if r := p.byUID[uid]; r != nil {
			return r
		}
		for r := range p.aliases[uid] {
			return r
		}
		return nil
	}
	r := p.Records[ipam.Key{Namespace: namespace, Name: name}]
	if r != nil && r.Node != "" && r.Node != node {
		return nil
	}
	return r
}

func (p *pods) read(pod *corev1.Pod) (ipam.Key, *podRecord) {
	namespace := ipam.Interned(pod.Namespace)
	ips, unreadIP := podIPs(pod)
	r := &podRecord{PodObject: verdict.PodObject{
		Namespace: namespace, Name: pod.Name, UID: string(pod.UID), Node: ipam.Interned(pod.Spec.NodeName),
		Phase: ipam.Interned(string(pod.Status.Phase)), HostNetwork: pod.Spec.HostNetwork, RuntimeClass: pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName != "", IPs: ips,
		VirtualMachine: ipam.Interned(virtualMachine(pod)),
	}}
	kind, name := controller(pod)
	r.ControllerKind, r.Controller = ipam.Interned(kind), ipam.Interned(name)
	correctPod(&r.PodObject)
	if pod.DeletionTimestamp != nil {
		r.DeletionTimestamp = verdict.At(pod.DeletionTimestamp.Time)
	}
	more := podMore{vip: keptVIP(pod), agentOn: p.agentOn(pod), clusterIPs: serverFlag(pod)}
	if alias := pod.Annotations[corev1.MirrorPodAnnotationKey]; alias != r.UID {
		more.alias = form.ID.Correct(alias)
	}
	if all := ovn.Addresses(pod.Annotations[ovn.Annotation]); len(all) > 0 {
		r.ovn = len(all) == len(r.IPs) && !slices.ContainsFunc(all, func(a netip.Addr) bool { return !slices.Contains(r.IPs, a) })
		if !r.ovn { // the status does not have them yet
			copy(more.allocated[:], all)
		}
	}
	if name := pluginOf(pod); name != "" {
		more.plugin = readPlugin(name, pod)
	}
	if more.memberships, more.unread = p.readMemberships(pod); more.unread != "" {
		more.unread = "annotation " + more.unread
	}
	more.unread = cmp.Or(unreadIP, more.unread)
	if !more.isEmpty() {
		r.more = &more
	}
	return ipam.Key{Namespace: namespace, Name: pod.Name}, r
}

// serverFlag returns the value of the flag --service-cluster-ip-range of an API server that runs as a pod, such as a static
// one of kubeadm. It returns the empty string for other pods.
func serverFlag(pod *corev1.Pod) string {
	if pod.Namespace != metav1.NamespaceSystem || pod.Labels["component"] != "kube-apiserver" && pod.Labels["k8s-app"] != "kube-apiserver" {
		return ""
	}
	for i := range pod.Spec.Containers {
		for _, arg := range slices.Concat(pod.Spec.Containers[i].Command, pod.Spec.Containers[i].Args) {
			if value, ok := strings.CutPrefix(arg, "--service-cluster-ip-range="); ok {
				return ipam.Shorten(value)
			}
		}
	}
	return ""
}

// agentOn returns the node that an agent's pod runs on, or that the DaemonSet controller
// created it for, which is in the pod's node affinity. It returns the empty string for other
// pods.
func (p *pods) agentOn(pod *corev1.Pod) string {
	if !slices.Contains(p.agentAccounts, pod.Namespace+"/"+pod.Spec.ServiceAccountName) {
		return ""
	}
	if a := pod.Spec.Affinity; pod.Spec.NodeName == "" && a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range term.MatchFields {
				if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
					return f.Values[0]
				}
			}
		}
	}
	return pod.Spec.NodeName
}

// podIPs returns the pod's addresses according to the API, and a text in their place that is no address.
func podIPs(pod *corev1.Pod) (ips []netip.Addr, unread string) {
	all := pod.Status.PodIPs
	if len(all) == 0 && pod.Status.PodIP != "" {
		all = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	for _, ip := range all {
		if a, err := ipam.ParseAddress(ip.IP); err == nil {
			ips = append(ips, a)
		} else {
			unread = fmt.Sprintf("address %q in status.podIPs", ipam.Shorten(ip.IP))
		}
	}
	return ips, unread
}

// controller returns the workload that created a pod. For a ReplicaSet, this is its
// Deployment: the ReplicaSet's name is the Deployment's name, a dash and the pod's label
// pod-template-hash. So there is no need to follow ReplicaSets.
func controller(pod *corev1.Pod) (kind, name string) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return "", ""
	}
	if hash := pod.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if deployment, ok := strings.CutSuffix(owner.Name, "-"+hash); ok {
			return "Deployment", deployment
		}
	}
	return owner.Kind, owner.Name
}

// virtualMachine returns the name of the KubeVirt virtual machine that a pod runs, or the
// empty string.
func virtualMachine(pod *corev1.Pod) string {
	if pod.Labels["kubevirt.io"] != "virt-launcher" {
		return ""
	}
	if name := pod.Labels["vm.kubevirt.io/name"]; name != "" {
		return name
	}
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "VirtualMachineInstance" {
			return owner.Name
		}
	}
	return pod.Labels["kubevirt.io/domain"]
}

// changed updates the indexes and queues notifications. The caller holds mu.
func (p *pods) changed(before, after *podRecord) {
	pending := &p.cluster.pending
	if after != nil {
		// Readers cannot see the record before mu is released.
		after.Memberships = p.cluster.resolve(after)
	}
	tenants := len(p.tenants) > 0
	changed := before == nil || after == nil
	if !changed {
		after.Heard = before.Heard
		changed = !reflect.DeepEqual(before.PodObject, after.PodObject)
	}
	if after != nil && changed {
		after.Heard = verdict.Stamp(p.cluster.clock())
	}
	p.index(before, after)
	for _, r := range []*podRecord{before, after} {
		if r == nil || !changed {
			continue
		}
		pending.pod(&r.PodObject)
		if alias := r.rare().alias; alias != "" { // by which the owners of a static pod are found
			pending.pods[PodKey{r.Namespace, r.Name, alias}] = struct{}{}
		}
	}
	if tenants != (len(p.tenants) > 0) {
		pending.state = true // all pods whose tenant is not known are compared differently
		p.cluster.ring()
	}
	if !sameHealth(before.rare().plugin, after.rare().plugin) {
		for _, r := range []*podRecord{before, after} {
			if r.rare().plugin != nil { // the health of the node's CNI plugin has changed
				pending.relate(r.Node)
			}
		}
	}
	if before.rare().unread+after.rare().unread != "" {
		text := ""
		for r := range p.unread[true] { // one of them as an example
			text = fmt.Sprintf("cannot read %s of pod %s/%s: the pod's addresses are not compared in the networks that it names, or the address is not known (the same for %d pods in total); "+
				"look for what wrote it, or report its format if its network plugin did", r.more.unread, r.Namespace, r.Name, len(p.unread[true]))
			break
		}
		p.cluster.problem(unreadProblem, text)
	}
	if all := slices.Concat(before.addresses(), after.addresses()); changed && len(all) > 0 {
		p.cluster.podsChanged(all)
	}
	p.cluster.addresses.Changed(before, after)
	for _, r := range []*podRecord{before, after} {
		for _, a := range r.Pod().IPs {
			p.cluster.nodeAddresses.Publish(a)
		}
	}
	p.cluster.annotated.Changed(annotatedPod{before}, annotatedPod{after})
}

// rare returns the fields of a record that few pods have.
func (r *podRecord) rare() podMore {
	if r == nil || r.more == nil {
		return podMore{}
	}
	return *r.more
}

func (p *pods) index(before, after *podRecord) {
	// Another record may have replaced this one.
	if before != nil && p.byUID[before.UID] == before {
		delete(p.byUID, before.UID)
	}
	if after != nil {
		p.byUID[after.UID] = after
	}
	was, is := before.rare(), after.rare()
	if was.isEmpty() && is.isEmpty() {
		return
	}
	p.aliases.move(before, after, func(r *podRecord) []string { return given(r.rare().alias) })
	p.plugins.move(before, after, func(r *podRecord) []string {
		if r.rare().plugin == nil {
			return nil
		}
		return []string{r.Node}
	})
	p.agents.move(before, after, func(r *podRecord) []string { return given(r.rare().agentOn) })
	p.attached.move(before, after, func(r *podRecord) (all []ipam.Key) {
		for _, m := range r.rare().memberships {
			all = append(all, given(m.definition)...)
		}
		return all
	})
	p.tenants.move(before, after, func(r *podRecord) []bool { return given(slices.ContainsFunc(r.Memberships, ofTenant)) })
	p.unread.move(before, after, func(r *podRecord) []bool { return given(r.rare().unread != "") })
	if p.servers.move(before, after, func(r *podRecord) []string { return given(r.rare().clusterIPs) }); was.clusterIPs != is.clusterIPs {
		for _, m := range p.cluster.ipams {
			if changed := m.objects.ServerFlags; changed != nil {
				changed(slices.Sorted(maps.Keys(p.servers)))
			}
		}
	}
	if p.vips.move(before, after, func(r *podRecord) []netip.Addr { return given(r.rare().vip) }); was.vip != is.vip {
		p.cluster.controlPlaneChanged()
	}
}
