package verdicttest

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Kubernetes is what the Kubernetes API says.
type Kubernetes struct {
	Pods      map[string]*verdict.PodObject
	PodCIDR   netip.Prefix
	PodCIDROf string        // the one node that has it; empty for all
	Known     verdict.Stamp // until when pods are; 0 for now
	Listed    bool          // pods that are not there are absent
}

// Pod returns a pod.
func Pod(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: name, UID: "uid-" + name, Source: "cni-result"}
}

// podNamed is what was entered by hand, and Absent where pods are listed.
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

// Says has the Kubernetes API say something of a pod.
func (k *Kubernetes) Says(uid string, p verdict.PodObject) {
	if k.Pods == nil {
		k.Pods = map[string]*verdict.PodObject{}
	}
	p.UID = uid
	k.Pods[uid] = &p
}
