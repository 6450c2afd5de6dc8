package dhcp

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/golden"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// TestRemedies compares the steps of remedies with testdata/remedies.txt and the texts about pools with
// testdata/pools.txt; -update writes both.
func TestRemedies(t *testing.T) {
	const update = "run `go test ./ipam/dhcp -update` and review it"
	device := ipamtest.Holder(func(h *ipam.Holder) { h.IsPod, h.Name = false, "node b itself" })
	four, six := netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("fd00::5")
	kea := &ipam.Pool{IPAM: KeaName, Name: "/var/lib/kea/kea-leases4.csv#eth0", Config: "/etc/kea/kea-dhcp4.conf"}
	leased := ipam.Allocation{Address: four, MAC: "02:00:00:00:00:01", Hostname: "printer"}
	udhcpd := &ipam.Pool{IPAM: UdhcpdName, Name: "/var/lib/misc/udhcpd.leases#eth0", Config: "/etc/udhcpd.conf"}
	reserved := leased
	reserved.FixedIn, reserved.ReservedFor = "/etc/dnsmasq.d/hosts", "02:00:00:00:00:01 02:00:00:00:00:02"
	remedies, pools := "", ""
	for _, one := range []struct {
		ipam  *ipam.IPAM
		pools []*ipam.Pool
	}{
		{&Kea, []*ipam.Pool{kea}},
		{&Udhcpd, []*ipam.Pool{udhcpd}},
		{&Dnsmasq, []*ipam.Pool{
			{Name: "/var/lib/misc/dnsmasq.leases#eth0", Config: "/etc/dnsmasq.conf"},
			{Name: "/var/lib/libvirt/dnsmasq/virbr0.status#virbr0", Config: "/var/lib/libvirt/dnsmasq/default.conf"},
			{Name: "/var/lib/NetworkManager/dnsmasq-wlan0.leases#wlan0"},
			{Name: "/var/lib/incus/networks/incusbr0/dnsmasq.leases#incusbr0", Config: "/var/lib/incus/networks/incusbr0/dnsmasq.pid"},
		}},
	} {
		r := ipamtest.Remedies{IPAM: one.ipam}
		of := func(a netip.Addr, h *ipam.Holder, al ipam.Allocation) ipam.Case {
			return ipam.Case{Address: a, Pool: one.pools[0], Node: "a", Holder: h, Allocation: al}
		}
		r.Reserve("in use by a pod, not leased", of(four, ipamtest.Holder(), ipam.Allocation{}))
		r.Reserve("in use by a device, not leased", of(six, device, ipam.Allocation{}))
		r.Reserve("the holder is not known", of(four, nil, ipam.Allocation{}))
		r.Reassign("leased to another client", of(four, device, leased))
		r.Reassign("in use by a pod, leased to another client", of(four, ipamtest.Holder(), leased))
		for _, p := range one.pools {
			r.Reassign("reserved for other clients in "+p.Name, ipam.Case{Address: four, Pool: p, Node: "a", Holder: device, Allocation: reserved})
		}
		r.Release("leased to nobody", of(four, nil, leased))
		remedies += r.String()
		pools += ipamtest.DescribePools(one.ipam, "a", four, one.pools...)
	}
	pools += ipamtest.DescribePools(&Dnsmasq, "a", six, &ipam.Pool{Name: "/var/lib/misc/dnsmasq.leases"})
	golden.Compare(t, "testdata/remedies.txt", remedies, update)
	golden.Compare(t, "testdata/pools.txt", pools, update)
}
