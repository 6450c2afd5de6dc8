package live

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestAllocationInTheContract(t *testing.T) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Traits: registry.Traits(hostlocal.Name), Name: "/var/lib/cni/networks/cbr0"}, Node: &verdict.Node{Name: "n1"}}
	al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: netip.MustParseAddr("10.0.0.5"), ContainerID: "c1", Interface: "eth0", Identity: 23407, Location: "/var/lib/cni/networks/cbr0/10.0.0.5"}, AllocatedAt: 1e9}
	want := &pb.Allocation{
		Ipam: "host-local", Pool: p.Name, Node: "n1", ContainerId: "c1", Interface: "eth0", Location: al.Location, AllocatedAt: timestamp(1e9), Identity: 23407,
	}
	if got := allocationProto(al); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
