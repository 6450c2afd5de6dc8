package kube

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/proto/form"
)

// Annotations of pods in which network plugins write the networks of their addresses.
const (
	// Multus writes a list of further interfaces (nettypes.NetworkStatus of
	// github.com/k8snetworkplumbingwg/network-attachment-definition-client). It wrote the second name
	// until version 3.7.
	multusStatus    = "k8s.v1.cni.cncf.io/network-status"
	multusStatusOld = "k8s.v1.cni.cncf.io/networks-status"
	// Kube-OVN writes an annotation for each property of a network, which begins with its provider:
	// "ovn", or NAME.NAMESPACE.ovn for a NetworkAttachmentDefinition (pkg/util/const.go). The logical
	// router is the VPC. Subnets without one are VLANs, whose ranges may overlap
	// (pkg/controller/pod.go).
	kubeOVNSwitch  = ".kubernetes.io/logical_switch"
	kubeOVNRouter  = ".kubernetes.io/logical_router"
	kubeOVNAddress = ".kubernetes.io/ip_address"
	kubeOVNDefault = "ovn-cluster"
)

// podNetwork is the network of pods that belong to no tenant.
const podNetwork = "pods"

// mostMemberships limits the addresses of a pod, and longestAnnotation the length of an annotation
// that is parsed. Both are more than any pod has.
const (
	mostMemberships   = 64
	longestAnnotation = 64 << 10
)

// membership is the network of an address of a pod.
type membership struct {
	// Network is set if no NetworkAttachmentDefinition is.
	verdict.Membership
	definition ipam.Key
}

// readMemberships returns the networks of a pod's addresses according to its annotations, and the
// name of an annotation that cannot be read.
func (p *pods) readMemberships(pod *corev1.Pod) (all []membership, unread string) {
	var m memberships
	for name, value := range pod.Annotations {
		switch provider, found := strings.CutSuffix(name, kubeOVNSwitch); {
		case found && value != "":
			m.kubeOVN(provider, value, pod.Annotations)
		case name == ovn.Annotation:
			m.ovn(name, value)
		case name == multusStatus, name == multusStatusOld && pod.Annotations[multusStatus] == "":
			m.multus(name, value)
		}
	}
	slices.SortFunc(m.all, func(a, b membership) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Network, b.Network),
			cmp.Compare(a.definition.Namespace, b.definition.Namespace), cmp.Compare(a.definition.Name, b.definition.Name))
	})
	m.all = slices.Compact(m.all)
	correct(form.Name, &m.unread)
	return slices.Clone(m.all[:min(len(m.all), mostMemberships)]), m.unread
}

// memberships reads the annotations of a pod.
type memberships struct {
	all    []membership
	unread string
}

func (m *memberships) fail(annotation string) {
	if m.unread == "" || annotation < m.unread {
		m.unread = annotation
	}
}

// add adds an address, which may have a prefix length.
func (m *memberships) add(annotation, address string, of membership) {
	address, _, _ = strings.Cut(strings.TrimSpace(address), "/")
	a, err := netip.ParseAddr(address)
	if err != nil || a.Zone() != "" {
		m.fail(annotation)
		return
	}
	of.Address = a.Unmap()
	correct(form.Interface, &of.Interface)
	correct(form.Name, &of.Network)
	of.Interface, of.Network = ipam.Interned(of.Interface), ipam.Interned(of.Network)
	of.definition = ipam.Key{Namespace: ipam.Interned(of.definition.Namespace), Name: ipam.Interned(of.definition.Name)}
	m.all = append(m.all, of)
}

func (m *memberships) kubeOVN(provider, logicalSwitch string, annotations map[string]string) {
	of := membership{Membership: verdict.Membership{Network: "subnet/" + logicalSwitch, OVS: true}}
	switch router := annotations[provider+kubeOVNRouter]; router {
	case "":
	case kubeOVNDefault:
		of.Network = podNetwork
	default:
		of.Network = "vpc/" + router
	}
	name := provider + kubeOVNAddress
	if annotations[name] == "" {
		return // not allocated yet
	}
	for address := range strings.SplitSeq(annotations[name], ",") {
		m.add(name, address, of)
	}
}

// ovn reads the annotation of OVN-Kubernetes. The first interface is always in the default network, even
// if a user-defined network is the pod's primary one.
func (m *memberships) ovn(name, value string) {
	if value == "" {
		return
	}
	networks, ok := ovn.Networks(value)
	if !ok {
		m.fail(name)
	}
	for key, addresses := range networks {
		if key == ovn.DefaultNetwork {
			if slices.ContainsFunc(addresses, func(text string) bool { _, err := netip.ParsePrefix(text); return err != nil }) {
				m.fail(name)
			}
			continue // almost all pods have only this network
		}
		of := membership{Membership: verdict.Membership{OVS: true}, definition: definitionNamed(key)}
		if of.definition == (ipam.Key{}) {
			m.fail(name)
			continue
		}
		for _, address := range addresses {
			m.add(name, address, of)
		}
	}
}

func (m *memberships) multus(name, value string) {
	var networks []ipam.Item[struct {
		Name      string   `json:"name"`
		Interface string   `json:"interface"`
		IPs       []string `json:"ips"`
	}]
	if value == "" {
		return
	}
	if len(value) > longestAnnotation || json.Unmarshal([]byte(value), &networks) != nil {
		m.fail(name)
		return
	}
	for _, item := range networks {
		network := item.Value
		if item.Err != nil {
			m.fail(name)
			continue
		}
		definition := definitionNamed(network.Name)
		if definition == (ipam.Key{}) || network.Interface == "" {
			continue // the cluster's default network
		}
		for _, address := range network.IPs {
			m.add(name, address, membership{Membership: verdict.Membership{Interface: network.Interface}, definition: definition})
		}
	}
}

// definitionNamed returns the key of a NetworkAttachmentDefinition that is named
// NAMESPACE/NAME[/INDEX]; zero for another name.
func definitionNamed(name string) (none ipam.Key) {
	namespace, name, found := strings.Cut(name, "/")
	name, _, _ = strings.Cut(name, "/")
	if !found || namespace == "" || name == "" || !form.Label.Has(namespace) || !form.Subdomain.Has(name) {
		return none
	}
	return ipam.Key{Namespace: namespace, Name: name}
}
