package dra_test

import (
	"fmt"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dra"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestAddressesOfDevices(t *testing.T) {
	c := ipamtest.New(t, &dra.IPAM, dra.Claims)
	const used = "reservedFor: [{resource: pods, name: web, uid: u1}]"
	for _, step := range []struct{ status, want, changed string }{
		{"{}", "[]", "[]"},
		{"{" + used + ", devices: [{driver: cni.dra, device: net1, networkData: {interfaceName: net1, ips: [10.9.0.5/24, 'fd00::5/64']}}]}", "[{10.9.0.5 net1} {fd00::5 net1}]", "[u1]"},
		{"{" + used + ", devices: [{networkData: {interfaceName: net1, ips: [10.9.0.6/24]}}, {device: gpu0}]}", "[{10.9.0.6 net1}]", "[u1 u1]"},
		{"{reservedFor: [{resource: pods, uid: u1}, {resource: pods, uid: u2}], devices: [{networkData: {ips: [10.9.0.6/24]}}]}", "[]", "[u1]"},
		{"{reservedFor: [{resource: jobs, uid: u1}], devices: [{networkData: {ips: [10.9.0.6/24]}}]}", "[]", "[]"},
		{"{" + used + ", devices: [{networkData: {ips: [nowhere, 10.9.0.7/24]}}]}", "[{10.9.0.7 }]", "[u1]"},
	} {
		c.Pods = nil
		c.Apply(dra.Claims, "metadata: {namespace: shop, name: net}\nspec: {}\nstatus: "+step.status)
		if got := fmt.Sprint(c.Devices("u1")); got != step.want || fmt.Sprint(c.Pods) != step.changed {
			t.Errorf("%s: got %s, changed %v, want %s, %s", step.status, got, c.Pods, step.want, step.changed)
		}
	}
	if all := c.Problems(); len(all) != 1 {
		t.Errorf("got problems %q, want one about the invalid address", all)
	}
	c.Remove(dra.Claims, ipam.Key{Namespace: "shop", Name: "net"})
	if got := c.Devices("u1"); len(got) != 0 || len(c.Problems()) != 0 {
		t.Errorf("got %v without the claim, want none", got)
	}
}
