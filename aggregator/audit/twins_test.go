package audit_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestOneMACAtSeveralPlaces(t *testing.T) {
	const cloned, virtual = verdict.MAC("\x52\x54\x00\xaa\xbb\xcc"), verdict.MAC("\x00\x00\x5e\x00\x01\x33")
	n1, n2 := agent("n1", "1"), agent("n2", "1")
	lan := &verdict.Domain{Node: n1, Name: "eth0"}
	holder := func(n *verdict.Node, ns, address string, change ...func(*verdict.Interface)) audit.MACHolder {
		pod := verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: n.Name + ns, UID: n.Name + ns}
		i := &verdict.Interface{
			Namespace: &verdict.Namespace{Node: n, ID: n.Boot + ns, Who: pod.Who()}, Name: "eth0", MAC: cloned, Attachment: verdict.Own,
			Link: &verdict.Link{Node: n, Name: "eth0", Domain: lan, Proven: lan},
		}
		for _, c := range change {
			c(i)
		}
		h := audit.MACHolder{Interface: i}
		if address != "" {
			h.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		}
		return h
	}
	elsewhere := func(i *verdict.Interface) { i.Link = &verdict.Link{Node: i.Namespace.Node, Name: "eth1"} }
	vxlan := func(name string) func(*verdict.Interface) {
		return func(i *verdict.Interface) {
			i.Kind, i.Name, i.Link = "vxlan", name, &verdict.Link{Node: i.Namespace.Node, Name: name}
		}
	}
	for name, test := range map[string]struct {
		mac    verdict.MAC
		places []audit.MACHolder
		want   verdict.Severity // 0 for no finding
	}{
		"two nodes on one LAN":                         {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12")}, verdict.Critical},
		"two nodes on what one frame shows as one LAN": {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12", func(i *verdict.Interface) { i.Link.Proven = nil })}, verdict.Warning},
		"two containers on one bridge":                 {cloned, []audit.MACHolder{holder(n1, "2", "192.0.2.11", elsewhere), holder(n1, "3", "192.0.2.12", elsewhere)}, verdict.Critical},
		"another one on another LAN":                   {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "2", "192.0.2.13", elsewhere), holder(n2, "1", "192.0.2.12")}, verdict.Critical},
		"VXLAN devices of one name":                    {cloned, []audit.MACHolder{holder(n1, "1", "10.244.1.0", vxlan("flannel.1")), holder(n2, "1", "10.244.2.0", vxlan("flannel.1"))}, verdict.Warning},
		"VXLAN devices with one address":               {cloned, []audit.MACHolder{holder(n1, "1", "10.244.1.0", vxlan("flannel.1")), holder(n2, "1", "10.244.1.0", vxlan("flannel.1"))}, 0},
		"VXLAN devices of two names":                   {cloned, []audit.MACHolder{holder(n1, "1", "10.244.1.0", vxlan("flannel.1")), holder(n2, "1", "10.244.2.0", vxlan("vxlan.calico"))}, 0},
		"VXLAN devices in bridges of two nodes":        {cloned, []audit.MACHolder{holder(n1, "1", "10.244.1.0", vxlan("vx1"), elsewhere), holder(n2, "1", "10.244.2.0", vxlan("vx1"), elsewhere)}, 0},
		"two LANs":                                     {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12", elsewhere)}, 0},
		"one address":                                  {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.11")}, 0},
		"no address":                                   {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "")}, 0},
		"one namespace":                                {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n1, "1", "192.0.2.12")}, 0},
		"virtual routers with different addresses":     {virtual, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12")}, verdict.Critical},
		"virtual routers with one address":             {virtual, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.11")}, 0},
		"a distributed gateway":                        {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12", func(i *verdict.Interface) { i.Link.Distributed = true })}, 0},
		"a macvtap device and its guest":               {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11", func(i *verdict.Interface) { i.Kind = "macvtap" }), holder(n2, "1", "192.0.2.12")}, 0},
		"an ipvlan device":                             {cloned, []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n1, "2", "192.0.2.12", func(i *verdict.Interface) { i.Attachment = verdict.Lower })}, 0},
		"macvlan devices of two pods": {cloned, []audit.MACHolder{
			holder(n1, "2", "192.0.2.11", func(i *verdict.Interface) { i.Attachment = verdict.Lower }), holder(n1, "3", "192.0.2.12", func(i *verdict.Interface) { i.Attachment = verdict.Lower }),
		}, verdict.Critical},
		"two sandboxes of one pod": {cloned, []audit.MACHolder{holder(n1, "2", "192.0.2.11"), holder(n1, "3", "192.0.2.12", func(i *verdict.Interface) {
			i.Namespace.Who = verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: "n12", UID: "n12"}.Who()
		})}, 0},
		"made from an address by OVN":    {"\x0a\x58\x0a\x00\x00\x02", []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12")}, 0},
		"made from an address by docker": {"\x02\x42\x0a\x00\x00\x02", []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12")}, 0},
		"that of Calico's ports":         {"\xee\xee\xee\xee\xee\xee", []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12")}, 0},
		"that of no host":                {"\x00\x00\x00\x00\x00\x00", []audit.MACHolder{holder(n1, "1", "192.0.2.11"), holder(n2, "1", "192.0.2.12")}, 0},
	} {
		id := ""
		for range 2 {
			found := audit.Twins(policy, test.mac, test.places)
			switch {
			case test.want == 0 && len(found) == 0:
			case len(found) != 1 || found[0].Severity != test.want || found[0].Kind != verdict.FindingMACCloned:
				t.Errorf("%s: got %+v, want severity %d", name, found, test.want)
			case len(found[0].Owners) != 2 || len(audit.Addresses(&found[0])) != 2 || id != "" && id != found[0].ID:
				t.Errorf("%s: got %+v, want two owners, two addresses and one ID", name, found[0])
			default:
				id = found[0].ID
			}
			slices.Reverse(test.places) // the order does not matter
		}
	}
}
