package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/podips"
)

// annotatedPod is the record of a pod as OVN-Kubernetes has annotated it.
type annotatedPod struct{ *podRecord }

// Pod implements podips.Record. OVN-Kubernetes frees the address of a pod that has ended.
func (r annotatedPod) Pod() podips.Pod {
	p := r.podRecord.Pod()
	if r.podRecord == nil {
		return p
	}
	p.Exclusive = false
	switch phase := corev1.PodPhase(r.Phase); {
	case r.DeletionTimestamp != 0 || phase == corev1.PodSucceeded || phase == corev1.PodFailed:
	case r.ovn:
		p.Exclusive = true
	case r.more != nil && r.more.allocated[0].IsValid():
		all := r.more.allocated // a copy, because records never change
		p.IPs, p.Exclusive = slices.DeleteFunc(all[:], func(a netip.Addr) bool { return !a.IsValid() }), true
	}
	return p
}

// allocatedByOVN reports whether OVN-Kubernetes has allocated the addresses in the status of a pod.
// If the status does not have them yet, it returns them.
func allocatedByOVN(pod *corev1.Pod, status []netip.Addr) (same bool, allocated [2]netip.Addr) {
	all := ovn.Addresses(pod.Annotations[ovn.Annotation])
	if len(all) == 0 {
		return false, allocated
	}
	if len(all) == len(status) && !slices.ContainsFunc(all, func(a netip.Addr) bool { return !slices.Contains(status, a) }) {
		return true, allocated
	}
	copy(allocated[:], all)
	return false, allocated
}
