package ipam_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestPortsOfKubeOVN(t *testing.T) {
	for name, want := range map[string]bool{
		"4f3a0d5b1c2d_h": true, "4f3a0d5_net1_h": true, "0_h": true,
		"veth4f3a0d5b_h": false, "4f3a0d5b1c2d31f": false, "_h": false, "pod-web-1_h": false, "": false,
	} {
		if got := ipam.SeparatesTenants(name); got != want {
			t.Errorf("%q: got %t, want %t", name, got, want)
		}
	}
}
