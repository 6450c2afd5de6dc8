package kube

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/proto/form"
)

// podFeed is the name of the feed of pods, which decides whether the mirror is live.
const podFeed = "pods"

// podRecord is the record of a pod.
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
	// memberships are the networks of the pod's addresses. unread is the name of an annotation about
	// them that cannot be read.
	memberships []membership
	unread      string
	// allocated are the addresses that OVN-Kubernetes has allocated to a pod whose status does not have
	// them yet.
	allocated [2]netip.Addr
}

func (m *podMore) isEmpty() bool {
	return m.alias == "" && m.plugin == nil && !m.vip.IsValid() && m.agentOn == "" && len(m.memberships) == 0 && m.unread == "" && m.allocated == [2]netip.Addr{}
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

// pods has the pods of all namespaces.
type pods struct {
	ipam.Mirror[*corev1.Pod, podRecord]
	cluster *Cluster
	byUID   map[string]*podRecord
	aliases map[string]*podRecord
	// plugins has the pods of CNI plugins, by node.
	plugins map[string][]*podRecord
	// vips counts the kube-vip pods of each control plane address.
	vips map[netip.Addr]int
	// agentAccounts is Config.AgentAccounts. agents counts the pods of these accounts on each
	// node.
	agentAccounts []string
	agents        map[string]int
	// attached has the pods that are attached to the network of a NetworkAttachmentDefinition.
	attached map[ipam.Key]map[*podRecord]bool
	// tenants has the pods that belong to a tenant with a network of its own.
	tenants map[*podRecord]bool
	// unread has the pods with an annotation about networks that cannot be read.
	unread map[*podRecord]bool
}

func newPods(c *Cluster) pods {
	return pods{
		cluster: c,
		Mirror: ipam.Mirror[*corev1.Pod, podRecord]{
			Read:    func(pod *corev1.Pod) (ipam.Key, *podRecord) { return c.pods.read(pod) },
			Same:    samePod,
			Changed: func(_ ipam.Key, before, after *podRecord) { c.pods.changed(before, after) },
		},
		byUID: make(map[string]*podRecord), aliases: make(map[string]*podRecord),
		attached: make(map[ipam.Key]map[*podRecord]bool), unread: make(map[*podRecord]bool), tenants: make(map[*podRecord]bool), plugins: make(map[string][]*podRecord), vips: make(map[netip.Addr]int), agents: make(map[string]int),
	}
}

// find returns the pod that Pod looks up; nil if there is none.
func (p *pods) find(namespace, name, uid, node string) *podRecord {
	if uid != "" {
		if r := p.byUID[uid]; r != nil {
			return r
		}
		return p.aliases[uid]
	}
	r := p.Records[ipam.Key{Namespace: namespace, Name: name}]
	if r != nil && r.Node != "" && r.Node != node {
		return nil
	}
	return r
}

// read returns the record of a pod.
func (p *pods) read(pod *corev1.Pod) (ipam.Key, *podRecord) {
	namespace := ipam.Interned(pod.Namespace)
	r := &podRecord{PodObject: verdict.PodObject{
		Namespace: namespace, Name: pod.Name, UID: string(pod.UID), Node: ipam.Interned(pod.Spec.NodeName),
		Phase: ipam.Interned(string(pod.Status.Phase)), HostNetwork: pod.Spec.HostNetwork, RuntimeClass: pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName != "", IPs: podIPs(pod),
		VirtualMachine: ipam.Interned(virtualMachine(pod)),
	}}
	kind, name := controller(pod)
	r.ControllerKind, r.Controller = ipam.Interned(kind), ipam.Interned(name)
	correctPod(&r.PodObject)
	if pod.DeletionTimestamp != nil {
		r.DeletionTimestamp = verdict.At(pod.DeletionTimestamp.Time)
	}
	more := podMore{vip: keptVIP(pod), agentOn: p.agentOn(pod)}
	if alias := pod.Annotations[corev1.MirrorPodAnnotationKey]; alias != r.UID {
		more.alias = form.ID.Correct(alias)
	}
	r.ovn, more.allocated = allocatedByOVN(pod, r.IPs)
	if name := pluginOf(pod); name != "" {
		more.plugin = readPlugin(name, pod)
	}
	more.memberships, more.unread = p.readMemberships(pod)
	if !more.isEmpty() {
		r.more = &more
	}
	return ipam.Key{Namespace: namespace, Name: pod.Name}, r
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

// podIPs returns the pod's addresses according to the API.
func podIPs(pod *corev1.Pod) []netip.Addr {
	n := len(pod.Status.PodIPs)
	if n == 0 {
		if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
			return []netip.Addr{a.Unmap()}
		}
		return nil
	}
	ips := make([]netip.Addr, 0, n)
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			ips = append(ips, a.Unmap())
		}
	}
	return ips
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

// samePod reports whether two records of a pod are equal.
func samePod(a, b *podRecord) bool {
	return sameObject(&a.PodObject, &b.PodObject) && a.ovn == b.ovn && sameMore(a.more, b.more)
}

func sameObject(a, b *verdict.PodObject) bool {
	return a.UID == b.UID && a.Node == b.Node && a.Phase == b.Phase && a.DeletionTimestamp == b.DeletionTimestamp && a.HostNetwork == b.HostNetwork &&
		a.Controller == b.Controller && a.ControllerKind == b.ControllerKind && a.VirtualMachine == b.VirtualMachine && slices.Equal(a.IPs, b.IPs)
}

func sameMore(a, b *podMore) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.alias == b.alias && a.vip == b.vip && a.agentOn == b.agentOn && a.unread == b.unread && a.allocated == b.allocated && slices.Equal(a.memberships, b.memberships) && (a.plugin == b.plugin || a.plugin != nil && b.plugin != nil && *a.plugin == *b.plugin)
}

// changed updates the indexes and queues notifications. The caller holds mu.
func (p *pods) changed(before, after *podRecord) {
	pending := &p.cluster.pending
	if after != nil {
		// Readers cannot see the record before mu is released.
		after.Memberships = p.cluster.resolve(after)
	}
	tenants := len(p.tenants) > 0
	changed := before == nil || after == nil || !sameObject(&before.PodObject, &after.PodObject) || !slices.Equal(before.Memberships, after.Memberships)
	if before != nil {
		p.unindex(before)
		if changed {
			pending.pod(&before.PodObject)
			before.queueAlias(pending)
		}
	}
	if after != nil {
		after.Heard = verdict.Stamp(p.cluster.clock())
		if before != nil && !changed {
			after.Heard = before.Heard
		}
		p.index(after)
		if changed {
			pending.pod(&after.PodObject)
			after.queueAlias(pending)
		}
	}
	if tenants != (len(p.tenants) > 0) {
		pending.state = true // all pods whose tenant is not known are compared differently
		p.cluster.ring()
	}
	p.relate(before, after)
	if before.isUnread() || after.isUnread() {
		p.reportUnread()
	}
	p.cluster.addresses.Changed(before, after)
	p.cluster.annotated.Changed(annotatedPod{before}, annotatedPod{after})
}

// queueAlias queues a static pod also under the UID that its node uses, because its owners are
// found by that UID.
func (r *podRecord) queueAlias(p *pending) {
	if r.more != nil && r.more.alias != "" {
		p.pods[PodKey{r.Namespace, r.Name, r.more.alias}] = struct{}{}
	}
}

// isUnread reports whether a pod has an annotation about networks that cannot be read.
func (r *podRecord) isUnread() bool { return r != nil && r.more != nil && r.more.unread != "" }

func (p *pods) index(r *podRecord) {
	p.byUID[r.UID] = r
	if r.more == nil {
		return
	}
	if r.more.alias != "" {
		p.aliases[r.more.alias] = r
	}
	if r.more.plugin != nil {
		p.plugins[r.Node] = append(p.plugins[r.Node], r)
	}
	if r.more.vip.IsValid() {
		if p.vips[r.more.vip]++; p.vips[r.more.vip] == 1 {
			p.cluster.controlPlaneChanged()
		}
	}
	if r.more.agentOn != "" {
		p.agents[r.more.agentOn]++
	}
	if r.more.unread != "" {
		p.unread[r] = true
	}
	if slices.ContainsFunc(r.Memberships, ofTenant) {
		p.tenants[r] = true
	}
	for _, m := range r.more.memberships {
		if m.definition == (ipam.Key{}) {
			continue
		}
		if p.attached[m.definition] == nil {
			p.attached[m.definition] = make(map[*podRecord]bool)
		}
		p.attached[m.definition][r] = true
	}
}

func (p *pods) unindex(r *podRecord) {
	// Another record may have replaced this one: a static pod that was created again has the
	// same alias.
	if p.byUID[r.UID] == r {
		delete(p.byUID, r.UID)
	}
	if r.more == nil {
		return
	}
	delete(p.unread, r)
	delete(p.tenants, r)
	for _, m := range r.more.memberships {
		if delete(p.attached[m.definition], r); len(p.attached[m.definition]) == 0 {
			delete(p.attached, m.definition)
		}
	}
	if p.aliases[r.more.alias] == r {
		delete(p.aliases, r.more.alias)
	}
	if r.more.plugin != nil {
		rest := slices.DeleteFunc(p.plugins[r.Node], func(other *podRecord) bool { return other == r })
		if p.plugins[r.Node] = rest; len(rest) == 0 {
			delete(p.plugins, r.Node)
		}
	}
	if r.more.vip.IsValid() {
		if p.vips[r.more.vip]--; p.vips[r.more.vip] == 0 {
			delete(p.vips, r.more.vip)
			p.cluster.controlPlaneChanged()
		}
	}
	if on := r.more.agentOn; on != "" {
		if p.agents[on]--; p.agents[on] == 0 {
			delete(p.agents, on)
		}
	}
}

// relate queues a notification if the health of a node's CNI plugin changed.
func (p *pods) relate(before, after *podRecord) {
	var was, is *pluginState
	var node string
	if before != nil && before.more != nil {
		was, node = before.more.plugin, before.Node
	}
	if after != nil && after.more != nil {
		is, node = after.more.plugin, after.Node
	}
	if was == is || was != nil && is != nil && was.news() == is.news() {
		return
	}
	p.cluster.pending.relate(node)
}
