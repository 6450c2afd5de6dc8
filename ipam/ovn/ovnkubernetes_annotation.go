package ovn

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

// Networks returns the addresses in an annotation, which have a prefix length, by the key of their
// network: DefaultNetwork, or the name of a NetworkAttachmentDefinition. It returns false if the
// annotation cannot be read.
func Networks(annotation string) (addresses map[string][]string, ok bool) {
	var networks map[string]struct {
		IPs []string `json:"ip_addresses"`
		IP  string   `json:"ip_address"` // of older versions
	}
	if len(annotation) > longest || json.Unmarshal([]byte(annotation), &networks) != nil {
		return nil, false
	}
	addresses = make(map[string][]string, len(networks))
	for key, network := range networks {
		if len(network.IPs) == 0 && network.IP != "" {
			network.IPs = []string{network.IP}
		}
		addresses[key] = network.IPs
	}
	return addresses, true
}

// Addresses returns the addresses in the default network according to an annotation: at most one of
// each family. There are none if the annotation cannot be read.
func Addresses(annotation string) (all []netip.Addr) {
	if annotation == "" {
		return nil
	}
	networks, _ := Networks(annotation)
	for _, text := range networks[DefaultNetwork] {
		if p, err := netip.ParsePrefix(text); err == nil && len(all) < 2 {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}
