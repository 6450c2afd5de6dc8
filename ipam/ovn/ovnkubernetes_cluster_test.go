package ovn_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestIPAMClaims(t *testing.T) {
	c := ipamtest.New(t, &ovn.OVNKubernetes, ovn.Claims)
	c.Apply(ovn.Claims, ipamtest.IPAMClaim("shop", "db.blue", "blue", "10.200.0.5/24, 'fd20::5/64'", "virt-launcher-db-x"))
	c.Apply(ovn.Claims, ipamtest.IPAMClaim("shop", "web.blue", "blue", "10.200.0.5/24", ""))
	c.Apply(ovn.Claims, ipamtest.IPAMClaim("bank", "db.red", "red", "10.200.0.5/24", "virt-launcher-db-y"))
	c.Apply(ovn.Claims, "metadata: {name: new, namespace: shop}\nspec: {network: blue, interface: net1}")
	const pools = "ovn-kubernetes blue known\novn-kubernetes red known\n"
	const db = "10.200.0.5 shop/virt-launcher-db-x pod16367aacb67 at ipamclaims shop/db.blue\n"
	const web = "10.200.0.5 shop/web.blue pod16367aacb67 at ipamclaims shop/web.blue\n"
	const six = "fd20::5 shop/virt-launcher-db-x pod16367aacb67 at ipamclaims shop/db.blue\n"
	const red = "10.200.0.5 bank/virt-launcher-db-y pod16367aacb67 at ipamclaims bank/db.red"
	c.Want("claims of two networks", pools+db+web+six+red)
	if blue, red := c.Pool("blue"), c.Pool("red"); blue.Realm == red.Realm {
		t.Errorf("got realm %q of both networks", blue.Realm)
	}
	if al := c.Allocation("blue", "10.200.0.5", "ipamclaims shop/web.blue"); !al.Kept {
		t.Errorf("got %+v, want that it is kept without a pod", al)
	}
	c.Changes()
	c.List(ovn.Claims)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of a listing without differences", n)
	}
	c.Apply(ovn.Claims, ipamtest.IPAMClaim("shop", "db.blue", "blue", "10.200.0.6/24", "virt-launcher-db-z"))
	c.Want("a claim gets another address, and its machine another pod", pools+web+
		"10.200.0.6 shop/virt-launcher-db-z pod16367aacb67 at ipamclaims shop/db.blue\n"+red)
	c.Remove(ovn.Claims, ipam.Key{Namespace: "bank", Name: "db.red"})
	c.Remove(ovn.Claims, ipam.Key{Namespace: "shop", Name: "web.blue"})
	c.Want("the last claim of a network is gone", "ovn-kubernetes blue known\n10.200.0.6 shop/virt-launcher-db-z pod16367aacb67 at ipamclaims shop/db.blue")
	c.Apply(ovn.Claims, "metadata: {name: db.blue, namespace: shop}\nspec: {network: blue, interface: net1}\nstatus: []")
	c.Want("a claim that cannot be read keeps its address", "ovn-kubernetes IPAMClaim objects known: IPAMClaim shop/db.blue is invalid: its status has an unexpected format: / is a JSON array\n"+
		"ovn-kubernetes blue known\n10.200.0.6 shop/virt-launcher-db-z pod16367aacb67 at ipamclaims shop/db.blue")
	c.Remove(ovn.Claims, ipam.Key{Namespace: "shop", Name: "db.blue"})
	c.Want("it is gone", "")
}
