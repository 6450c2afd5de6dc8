package sim

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The nodes share one LAN. Each has pods behind point-to-point veths, with unique addresses.
var (
	lan     = netip.MustParseAddr("172.16.0.0")
	pods    = netip.MustParseAddr("10.0.0.0")
	perNode = 256 // addresses
)

const (
	// ownNamespace is the record number of the agent's own network namespace.
	ownNamespace = 1
	// uplink is the index of the node's eth0, inside the index of a pod's eth0.
	uplink, inside = 2, 2
	// firstPort is the index of the node's end of the first veth.
	firstPort = 100
	// chatty is the interval of pods that are seen on the wire: one in chatty.
	chatty = 10
)

// nodeAddress returns the address of a node on the LAN, podAddress the address of a pod.
func nodeAddress(node int) netip.Addr { return after(lan, node+1) }

func podAddress(node, pod int) netip.Addr { return after(pods, node*perNode+pod+2) }

func after(a netip.Addr, n int) netip.Addr {
	raw := a.As4()
	binary.BigEndian.PutUint32(raw[:], binary.BigEndian.Uint32(raw[:])+uint32(n))
	return netip.AddrFrom4(raw)
}

// mac returns a unique MAC.
func mac(kind byte, node, pod int) []byte {
	return []byte{kind, 0x54, byte(node >> 8), byte(node), byte(pod >> 8), byte(pod)}
}

// Kinds of MACs: of uplinks, and of the two ends of a veth.
const uplinkMAC, podMAC, portMAC = 0x52, 0x46, 0x4a

// linkLocal returns the address that a kernel forms from a MAC (RFC 4291, appendix A).
func linkLocal(mac []byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// newAgent creates the agent of the i-th node. The node itself is one of its owners.
func newAgent(i int, size Size) *agent {
	now, node, owners := time.Now(), size.First+i, size.Owners
	a := &agent{
		made: now, news: make(chan message),
		hello: &pb.Hello{
			Node: fmt.Sprintf("node-%d", node), BootId: fmt.Sprintf("51b00700-0000-4000-8000-%012d", node), Netns: "4026531840",
			Epoch: uint64(now.UnixNano()), Version: "v0.0.0-sim", Kernel: "6.18.0",
		},
		table: &pb.ReportRequest{
			Namespaces: []*pb.NamespaceRecord{{
				Id: ownNamespace, Netns: "4026531840", FirstSeen: timestamppb.New(now),
				Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: fmt.Sprintf("node-%d", node), Source: "node"},
			}},
			Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
			Interfaces: []*pb.InterfaceRecord{{
				Namespace: ownNamespace, Index: uplink, Name: "eth0", Mac: mac(uplinkMAC, node, 0),
				Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true,
			}},
			Status: &pb.StatusRecord{Wire: "tcx"},
		},
	}
	a.assigned(ownNamespace, uplink, nodeAddress(node), 16)
	if next := size.First + (i+1)%size.Nodes; next != node { // the node with which it communicates
		a.seen(pb.Evidence_USED, uplink, "eth0", nodeAddress(next), mac(uplinkMAC, next, 0))
	}
	a.watches("eth0")
	for pod := range owners - 1 {
		a.addPod(node, pod)
	}
	if size.LinkLocal {
		a.addLinkLocal()
	}
	if size.IPAM {
		a.allocate(node, owners-1)
	}
	return a
}

// addPod adds a pod with its namespace, veth and address.
func (a *agent) addPod(node, pod int) {
	record, port, link := uint32(ownNamespace+1+pod), uint32(firstPort+pod), fmt.Sprintf("veth%08x", node<<16|pod)
	t := a.table
	t.Namespaces = append(t.Namespaces, &pb.NamespaceRecord{
		Id: record, Netns: fmt.Sprint(4026532000 + pod), FirstSeen: timestamppb.New(a.made),
		Workload: &pb.Workload{
			Kind: pb.Workload_POD, Namespace: "default", Name: fmt.Sprintf("web-%05d-%05d", node, pod), Source: "cni-result",
			Uid:         fmt.Sprintf("51b0070d-%04x-4000-8000-%012x", node, pod),
			ContainerId: fmt.Sprintf("%064x", node<<16|pod), Process: fmt.Sprintf("pause (%d)", 10_000+pod),
		},
	})
	t.Links = append(t.Links, &pb.LinkRecord{Name: link, Kind: pb.LinkRecord_POINT_TO_POINT})
	t.Interfaces = append(t.Interfaces, &pb.InterfaceRecord{
		Namespace: record, Index: inside, Name: "eth0", Kind: "veth", Mac: mac(podMAC, node, pod),
		Attachment: pb.InterfaceRecord_PEER, Link: link, HostInterface: link,
	}, &pb.InterfaceRecord{
		Namespace: ownNamespace, Index: port, Name: link, Kind: "veth", Mac: mac(portMAC, node, pod),
		Attachment: pb.InterfaceRecord_OWN, Link: link, PeerNamespace: record,
	})
	a.assigned(record, inside, podAddress(node, pod), 32)
	if pod%chatty == 0 {
		a.seen(pb.Evidence_USED, port, link, podAddress(node, pod), mac(podMAC, node, pod))
		a.seen(pb.Evidence_ANNOUNCED, port, link, podAddress(node, pod), mac(podMAC, node, pod))
	}
	a.watches(link)
}

// addLinkLocal assigns link-local addresses to the uplink and to the interfaces of pods.
func (a *agent) addLinkLocal() {
	for _, i := range a.table.GetInterfaces() {
		if i.GetUplink() || i.GetAttachment() == pb.InterfaceRecord_PEER {
			a.assigned(i.GetNamespace(), i.GetIndex(), linkLocal(i.GetMac()), 64)
		}
	}
}

// assigned adds an address of a kernel, seen one from the wire.
func (a *agent) assigned(namespace, index uint32, addr netip.Addr, bits uint32) {
	a.claim(&pb.ClaimRecord{
		Address: addr.AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: namespace, Index: index,
		PrefixLength: bits, Flags: 0x80, AssignedAt: timestamppb.New(a.made),
	})
}

func (a *agent) seen(kind pb.Evidence_Kind, port uint32, link string, addr netip.Addr, mac []byte) {
	a.claim(&pb.ClaimRecord{Address: addr.AsSlice(), Kind: kind, Namespace: ownNamespace, Index: port, Mac: mac, Link: link})
}

func (a *agent) claim(c *pb.ClaimRecord) {
	c.FirstSeen, c.LastSeen, c.Count = timestamppb.New(a.made), timestamppb.New(a.made), 1
	c.Residence = durationpb.New(50 * time.Microsecond)
	a.table.Claims = append(a.table.Claims, c)
}

// watches adds a port to which the observer is attached.
func (a *agent) watches(port string) {
	a.table.Status.Ports = append(a.table.Status.Ports, &pb.Node_Port{Interface: port, Mode: "tcx"})
}
