package verdicttest

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Kubernetes is the state of the Kubernetes API.
type Kubernetes struct {
	Pods      map[string]*verdict.PodObject
	PodCIDR   netip.Prefix
	PodCIDROf string        // the only node whose pod range has the address; empty for all nodes
	Known     verdict.Stamp // the time until which pods are known; 0 for now
	Listed    bool          // whether pods that were not added are absent
	OneTenant bool          // whether no pod belongs to a tenant with a network of its own
}

// Pod returns a pod's workload.
func Pod(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: name, UID: "uid-" + name, Source: "cni-result", PID: 1}
}

// podNamed returns the pod that a test added, or an absent one if pods are listed.
func (k *Kubernetes) podNamed(namespace, name string) *verdict.PodObject {
	for _, p := range k.Pods {
		if p.Namespace == namespace && p.Name == name {
			return p
		}
	}
	if k.Listed && name != "" {
		return &verdict.PodObject{Absent: true}
	}
	return nil
}

// Says adds a pod to the Kubernetes API.
func (k *Kubernetes) Says(uid string, p verdict.PodObject) {
	if k.Pods == nil {
		k.Pods = map[string]*verdict.PodObject{}
	}
	p.UID = uid
	k.Pods[uid] = &p
}
