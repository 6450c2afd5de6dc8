// Package podips describes the addresses of running pods in the Kubernetes API
// (Pod.status.podIPs). No IPAM keeps them, but two pods with one address are a duplicate.
package podips

import (
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of the addresses of pods in the API.
const Name = "kubernetes"

// IPAM describes the addresses of pods.
var IPAM = ipam.IPAM{
	Name: Name, Title: "the Kubernetes API",
	Traits: ipam.Traits{
		Status:   true,
		EndDelay: 30 * time.Second, // a pod that had the address before its node rebooted
	},
	PoolTitle: func(*ipam.Pool, string) string { return "the Kubernetes API" },
}
