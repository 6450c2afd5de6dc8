package kube

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/ipam/ovn"

	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// The IPAMs whose allocations are in one object for each, or in the status of a pool, are read from a
// real API server with their definitions, as they come and go. IPAMClaims share their group with
// Multus, but not its version.
func TestResourcesOfARealAPI(t *testing.T) {
	l := newLab(t)
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	l.crds("whereabouts", "kube-ovn", "spiderpool", "antrea")
	l.custom(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"))
	web := ipamtest.KubeOVNIP("web", "shop", "10.16.0.5", "n1", "")
	l.custom(ovn.IPs, strings.Replace(web, `  creationTimestamp: "2023-01-08T03:17:22Z"`+"\n", "", 1))
	l.custom(ovn.VIPs, "metadata: {name: keepalived}\nspec: {subnet: ovn-default}\nstatus: {v4ip: 10.16.0.8}")
	l.custom(spiderpool.Pools, ipamtest.SpiderPool)
	l.custom(spiderpool.Endpoints, ipamtest.SpiderEndpoint("default", "db-0", "n2", "10.6.168.102", "StatefulSet"))
	l.custom(antrea.Pools, ipamtest.AntreaPool)
	const pools = `antrea pool1 known 192.168.240.130-192.168.240.140 192.168.241.1-192.168.241.14
kube-ovn ovn-default known 10.16.0.2-10.16.0.8 10.16.0.12-10.16.0.14
`
	const spider = `spiderpool v4pool known 10.6.168.101-10.6.168.104 10.6.168.106-10.6.168.110
192.168.240.130 shop/db-0 at ippools pool1 /status/ipAddresses of shop/db-0
192.168.240.131 shop/db-1 0d1e2f3a4b5c eth1 at ippools pool1 /status/ipAddresses of shop/db-1
192.168.240.132 shop/standalone c61f4b067978fbcc5f2197e328f8ed8319d8a4f5d19a16f4e8227c56f8b57373 at ippools pool1 /status/ipAddresses of shop/standalone
`
	const keepalived = "10.16.0.8 at vips keepalived\n"
	const rest = `10.6.168.101 default/web-7d4f8 eth0 at spiderippools v4pool /status/allocatedIPs
10.6.168.102 default/db-0 net1 n2 at spiderippools v4pool /status/allocatedIPs`
	m.ipam.await("all pools and allocations are known", pools+spider+"10.16.0.5 shop/web n1 at ips web.shop\n"+keepalived+rest)
	m.until("Multus without IPAMClaims is no problem", func() bool { return len(m.Status().GetProblems()) == 0 })

	l.crds("ovn-kubernetes")
	l.custom(ovn.Claims, strings.Replace(ipamtest.IPAMClaim("NAMESPACE", "db.blue", "blue", "10.200.0.5/24", "virt-launcher-db"), "NAMESPACE", l.namespace, 1))
	l.kube("delete", ovn.IPs.String(), "web.shop")
	claim := "10.200.0.5 " + l.namespace + "/virt-launcher-db pod16367aacb67 at ipamclaims " + l.namespace + "/db.blue\n"
	m.ipam.await("an address is freed, and another one is claimed", pools+"ovn-kubernetes blue known\n"+spider+keepalived+claim+rest)
	m.until("there is no problem", func() bool { return len(m.Status().GetProblems()) == 0 })
}
