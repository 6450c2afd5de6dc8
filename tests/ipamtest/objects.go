package ipamtest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CalicoPool is an IPPool in Calico's format.
const CalicoPool = `
metadata:
  annotations: {projectcalico.org/metadata: '{"uid":"ea36eb56","creationTimestamp":"2022-07-23T12:04:44Z"}'}
  name: default-ipv4-ippool
spec:
  allowedUses: [Workload, Tunnel]
  blockSize: 26
  cidr: 192.168.0.0/16
  ipipMode: Never
  natOutgoing: true
  nodeSelector: all()
  vxlanMode: CrossSubnet
`

// CalicoBlock returns a block of 64 addresses in Calico's format. given are the owner attributes of
// the first addresses; empty for free ones.
func CalicoBlock(name, cidr string, given ...string) string {
	allocations := slices.Repeat([]string{"null"}, 64)
	attributes := make([]string, len(given))
	for i, g := range given {
		if attributes[i] = cmp.Or(g, "{}"); g != "" {
			allocations[i] = strconv.Itoa(i)
		}
	}
	return `
metadata:
  annotations: {projectcalico.org/metadata: '{"creationTimestamp":null}'}
  name: ` + name + `
spec:
  affinity: host:node1
  cidr: ` + cidr + `
  deleted: false
  sequenceNumber: 1690000000000000000
  sequenceNumberForAllocation: {}
  strictAffinity: false
  allocations: [` + strings.Join(allocations, ", ") + `]
  unallocated: []
  attributes: [` + strings.Join(attributes, ", ") + `]
`
}

// ContainerID is the ID of a container.
const ContainerID = "6bf5918459e920bb5adae8e14a8424dd69dba59383927e68f49c77c49a0d531d"

// CalicoPod returns the owner attributes of a pod.
func CalicoPod(pod, node, id string) string {
	return fmt.Sprintf(`{handle_id: k8s-pod-network.%s, secondary: {namespace: default, node: %s, pod: %s, timestamp: "2023-09-26 17:11:53.923041651 +0000 UTC"}}`, id, node, pod)
}

// CalicoTunnel has the owner attributes of the tunnel address of node1.
const CalicoTunnel = `{handle_id: vxlan-tunnel-addr-node1, secondary: {node: node1, type: vxlanTunnelAddress}}`

// WhereaboutsPool is an IPPool in the format of whereabouts.
const WhereaboutsPool = `
metadata: {name: 192.168.2.0-24, namespace: kube-system}
spec:
  range: 192.168.2.0/24
  allocations:
    "1":
      id: 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190
      ifname: net1
      podref: test/test-648b75d6fc-f56cp
    "2":
      id: 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06
      podref: test/test-648b75d6fc-sdbbm
`

// WhereaboutsReservation returns an OverlappingRangeIPReservation in namespace kube-system.
func WhereaboutsReservation(name, pod string) string {
	return `
metadata: {name: ` + name + `, namespace: kube-system}
spec: {podref: ` + pod + `, ifname: net1}
`
}

// WhereaboutsNetwork is a typical NetworkAttachmentDefinition.
const WhereaboutsNetwork = `
metadata: {name: whereabouts-conf, namespace: default}
spec:
  config: '{
      "cniVersion": "0.3.0",
      "name": "whereaboutsexample",
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "whereabouts",
        "range": "192.168.2.225/24",
        "exclude": ["192.168.2.0/30", "192.168.2.16"],
        "range_end": "192.168.2.20",
        "gateway": "192.168.2.4"
      }
    }'
`

// CiliumNode returns a CiliumNode in the format of Cilium's operator and agent.
func CiliumNode(name, ip, cidrs, router, more string) string {
	return `
metadata: {name: ` + name + `, labels: {kubernetes.io/hostname: ` + name + `}}
spec:
  addresses:
  - {ip: ` + ip + `, type: InternalIP}
  - {ip: ` + router + `, type: CiliumInternalIP}
  alibaba-cloud: {}
  azure: {}
  bootid: 3f0a2f3c-5b3c-4b3c-8b3c-3f0a2f3c5b3c
  encryption: {}
  eni: {}
  health: {ipv4: 10.0.2.46}
  ingress: {}
  ipam:
    podCIDRs: [` + cidrs + `]
    pools: {}
` + more
}

// CiliumEndpoint returns a CiliumEndpoint in the format of Cilium's agent.
func CiliumEndpoint(namespace, pod, id, ip, node string) string {
	return `
metadata: {name: ` + pod + `, namespace: ` + namespace + `, creationTimestamp: "2023-01-08T03:17:22Z"}
status:
  encryption: {}
  external-identifiers:
    cni-attachment-id: ` + id + `:eth0
    container-id: "` + id + `"
    k8s-namespace: ` + namespace + `
    k8s-pod-name: ` + pod + `
    pod-name: ` + namespace + `/` + pod + `
  id: 207
  identity: {id: 23407, labels: ["k8s:app=productpage"]}
  networking:
    addressing: [{ipv4: ` + ip + `}]
    node: ` + node + `
  state: ready
`
}

// CiliumEndpointSlice returns a CiliumEndpointSlice in the format of Cilium's operator, with pods as NAME
// ADDRESS NODE.
func CiliumEndpointSlice(name, namespace string, pods ...string) string {
	endpoints := make([]string, len(pods))
	for i, pod := range pods {
		part := strings.Fields(pod)
		endpoints[i] = "- {encryption: {}, id: 6704, name: " + part[0] + ", networking: {addressing: [{ipv4: " + part[1] + "}], node: " + part[2] + "}}"
	}
	return "metadata: {name: " + name + "}\nnamespace: " + namespace + "\nendpoints:\n" + strings.Join(endpoints, "\n") + "\n"
}

// KubeOVNSubnet returns a Subnet of the default VPC, in the format of Kube-OVN.
func KubeOVNSubnet(name, cidr string) string {
	return `
metadata: {name: ` + name + `}
spec:
  cidrBlock: ` + cidr + `
  default: true
  enableLb: true
  excludeIps: [10.16.0.1, 10.16.0.9..10.16.0.11]
  gateway: 10.16.0.1
  gatewayNode: ""
  gatewayType: distributed
  natOutgoing: true
  private: false
  protocol: IPv4
  provider: ovn
  vpc: ovn-cluster
status: {conditions: [], v4availableIPrange: 10.16.0.2-10.16.0.8, v4usingIPrange: ""}
`
}

// KubeOVNIP returns an IP object of subnet ovn-default, in the format of Kube-OVN.
func KubeOVNIP(pod, namespace, ip, node, kind string) string {
	return `
metadata:
  name: ` + pod + `.` + namespace + `
  creationTimestamp: "2023-01-08T03:17:22Z"
  labels: {ovn-default: "", ovn.kubernetes.io/ip_reserved: "false", ovn.kubernetes.io/node-name: ` + node + `, ovn.kubernetes.io/subnet: ovn-default}
spec:
  attachIps: []
  attachMacs: []
  attachSubnets: []
  containerID: ""
  ipAddress: ` + ip + `
  macAddress: 00:00:00:16:9A:87
  namespace: ` + namespace + `
  nodeName: ` + node + `
  podName: ` + pod + `
  podType: "` + kind + `"
  subnet: ovn-default
  v4IpAddress: ` + ip + `
  v6IpAddress: ""
`
}

// AntreaPool is an IPPool in the format of Antrea, with the addresses of a pod, of a pod of a
// StatefulSet that runs, and of one that does not.
const AntreaPool = `
metadata: {name: pool1}
spec:
  ipRanges:
  - {start: 192.168.240.130, end: 192.168.240.140}
  - {cidr: 192.168.241.0/28}
  subnetInfo: {gateway: 192.168.240.1, prefixLength: 23}
status:
  ipAddresses:
  - ipAddress: 192.168.240.132
    phase: Allocated
    owner: {pod: {name: standalone, namespace: shop, containerID: c61f4b067978fbcc5f2197e328f8ed8319d8a4f5d19a16f4e8227c56f8b57373}}
  - ipAddress: 192.168.240.130
    phase: Reserved
    owner: {statefulSet: {name: db, namespace: shop, index: 0}}
  - ipAddress: 192.168.240.131
    phase: Allocated
    owner:
      pod: {name: db-1, namespace: shop, containerID: 0d1e2f3a4b5c, ifName: eth1}
      statefulSet: {name: db, namespace: shop, index: 1}
  usage: {total: 25, used: 3}
`

// SpiderPool is a SpiderIPPool in the format of Spiderpool, whose allocations are JSON in a string.
const SpiderPool = `
metadata: {name: v4pool}
spec:
  default: true
  disable: false
  excludeIPs: [10.6.168.105]
  gateway: 10.6.0.1
  ipVersion: 4
  ips: [10.6.168.101-10.6.168.110]
  subnet: 10.6.0.0/16
  vlan: 0
status:
  allocatedIPCount: 2
  allocatedIPs: '{"10.6.168.101":{"interface":"eth0","pod":"default/web-7d4f8","podUid":"18fd2a5d"},"10.6.168.102":{"interface":"net1","pod":"default/db-0","podUid":"27c5f4a1"}}'
  totalIPCount: 9
`

// SpiderEndpoint returns a SpiderEndpoint in the format of Spiderpool.
func SpiderEndpoint(namespace, pod, node, ip, controller string) string {
	return `
metadata: {name: ` + pod + `, namespace: ` + namespace + `}
status:
  current:
    ips:
    - {cleanGateway: false, interface: eth0, ipv4: ` + ip + `/16, ipv4Gateway: 10.6.0.1, ipv4Pool: v4pool, vlan: 0}
    node: ` + node + `
    uid: 27c5f4a1
  ownerControllerName: owner
  ownerControllerType: ` + controller + `
`
}

// IPAMClaim returns an IPAMClaim in the format of OVN-Kubernetes.
func IPAMClaim(namespace, name, network, cidr, pod string) string {
	return `
metadata: {name: ` + name + `, namespace: ` + namespace + `}
spec: {network: ` + network + `, interface: pod16367aacb67}
status: {ips: [` + cidr + `], ownerPod: "` + pod + `"}
`
}
