package calico

import (
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

// During a live migration, an address belongs to either of two pods.
func TestCalicoOfAMachineThatMoves(t *testing.T) {
	_, block := (&blockReader{hash: func(string, string) uint64 { return 1 }}).read(&ipam.Object{Spec: []byte(`{"cidr":"10.0.0.0/30","allocations":[null,0,1,2],"attributes":[
		{"handle_id":"k8s-pod-network.default-vm","secondary":{"namespace":"default","pod":"virt-launcher-vm-1","node":"n1"},"alternate":{"namespace":"default","pod":"virt-launcher-vm-2","node":"n2"}},
		{"handle_id":"k8s-pod-network.default-vm","secondary":{"namespace":"default","pod":"virt-launcher-vm-1","node":"n1"}},
		{"handle_id":"k8s-pod-network.default-vm","alternate":{"namespace":"default","pod":"virt-launcher-vm-2","node":"n2"}}]}`)})
	var got []string
	for _, b := range block.allocations {
		got = append(got, b.pod+" on "+b.node)
	}
	if want := []string{" on ", "virt-launcher-vm-1 on n1", " on "}; !slices.Equal(got, want) || block.problem != "" {
		t.Errorf("got %q, %s, want %q", got, block.problem, want)
	}
}

// Some IPPools are only for pods that name them, for example for a node's network, so that
// their traffic is not masqueraded.
func TestPoolsOfCalicoThatMustBeAskedFor(t *testing.T) {
	for spec, want := range map[string]bool{
		`{"cidr":"10.250.0.0/16","nodeSelector":"!all()"}`: true, `{"cidr":"10.250.0.0/16","nodeSelector":"! all( )"}`: true,
		`{"cidr":"10.250.0.0/16","assignmentMode":"Manual"}`: true, `{"cidr":"10.250.0.0/16","nodeSelector":"all()","assignmentMode":"Automatic"}`: false,
		`{"cidr":"10.250.0.0/16"}`: false, `{"cidr":"10.250.0.0/16","nodeSelector":"!has(edge)"}`: false,
	} {
		if _, p := readPool(&ipam.Object{Spec: []byte(spec)}); p.problem != "" || p.asked != want {
			t.Errorf("%s: got %+v, want asked %v", spec, p, want)
		}
	}
}
