package doctor

import (
	"fmt"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/ipam"
)

// readOVS checks whether the tenants of pods on this host's ports of Open vSwitch can be told apart.
func readOVS(req *rtnetlink.Conn) Check {
	links, err := req.Links(rtnetlink.NoNSID)
	if err != nil {
		return Check{
			Feature: checkOVS, Status: StatusDegraded, Detail: err.Error(), Used: "other sources", Lost: "the ports of Open vSwitch",
			Fix: "look for what denies it: a seccomp profile or an LSM",
		}
	}
	return ovsCheck(kernel.OVSPorts(links))
}

// checkOVS is the feature of the check of Open vSwitch.
const checkOVS = "Open vSwitch"

func ovsCheck(ports []string) Check {
	c := Check{Feature: checkOVS, Status: StatusOK, Detail: "no ports here"}
	tenants := 0
	for _, name := range ports {
		if ipam.SeparatesTenants(name) {
			tenants++
		}
	}
	switch {
	case tenants > 0:
		c.Status = StatusDegraded
		c.Detail = fmt.Sprintf("%d ports, %d of them Kube-OVN's, whose tenants (VPCs) may use the same addresses: the kernel does not show to which tenant a port belongs", len(ports), tenants)
		c.Used = "annotations of pods, if the aggregator follows the Kubernetes API"
		c.Lost = "duplicates among pods of Kube-OVN, if it does not"
		c.Fix = "let the aggregator follow the Kubernetes API (--kubeconfig)"
	case len(ports) > 0:
		c.Detail = fmt.Sprintf("%d ports", len(ports))
	}
	return c
}
