package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

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
