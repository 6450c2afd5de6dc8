package ovnkubernetes

import (
	"encoding/json"
	"net/netip"
)

const (
	// Annotation is the annotation in which OVN-Kubernetes records the addresses of a pod
	// (go-controller/pkg/util/pod_annotation.go). It restores its allocations from it.
	Annotation = "k8s.ovn.org/pod-networks"
	// DefaultNetwork is the key of the cluster's default network in the annotation.
	DefaultNetwork = "default"
	// Annotated is the JSON pointer of the annotation in a pod (RFC 6901).
	Annotated = "/metadata/annotations/k8s.ovn.org~1pod-networks"
)

// longest is the maximum length of an annotation that is parsed.
const longest = 64 << 10

// Addresses returns the addresses in the default network according to an annotation: at most one of
// each family. There are none if the annotation cannot be read.
func Addresses(annotation string) (all []netip.Addr) {
	if annotation == "" || len(annotation) > longest {
		return nil
	}
	var networks map[string]struct {
		IPs []string `json:"ip_addresses"`
		IP  string   `json:"ip_address"` // of older versions
	}
	if json.Unmarshal([]byte(annotation), &networks) != nil {
		return nil
	}
	network := networks[DefaultNetwork]
	if len(network.IPs) == 0 {
		network.IPs = []string{network.IP}
	}
	for _, text := range network.IPs {
		if p, err := netip.ParsePrefix(text); err == nil && len(all) < 2 {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}
