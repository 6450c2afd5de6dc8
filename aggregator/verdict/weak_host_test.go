package verdict_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// Linux answers on any interface for any IPv4 address that it has. Nodes that have an address on bridges of their own do not meet
// on the LAN on which their kernels answer for it.
func TestWeakHostsAreNotOnTheLinkOnWhichTheyAnswer(t *testing.T) {
	const docker, metadata = "172.17.0.1", "169.254.169.254"
	for _, test := range []struct {
		name, address, device string
		change                func(w *world, lan, bridges []*verdict.Interface, frames []*verdict.Claim)
		want                  []string
	}{
		{"the bridges of an engine", docker, "docker0", nil, nil},
		{"the bridges of an engine, on nodes with a program that moves addresses", docker, "docker0", func(w *world, _, _ []*verdict.Interface, _ []*verdict.Claim) {
			w.Node("n1").VIPProgram, w.Node("n2").VIPProgram = "keepalived", "keepalived"
		}, nil},
		{"a metadata service on bridges", metadata, "br-md", nil, nil},
		{"a metadata service on bridges, on nodes with a program that moves addresses", metadata, "br-md", func(w *world, _, _ []*verdict.Interface, _ []*verdict.Claim) {
			w.Node("n1").VIPProgram = "keepalived"
		}, nil},
		{"they send requests with the address", docker, "docker0", func(_ *world, _, _ []*verdict.Interface, frames []*verdict.Claim) {
			for _, c := range frames {
				c.Kind = verdict.Used
			}
		}, nil},
		{"devices without ARP", "192.0.2.50", "vip0", func(_ *world, lan, bridges []*verdict.Interface, _ []*verdict.Claim) {
			for i, vip := range bridges {
				vip.Kind, vip.NoARP, vip.Link = "macvlan", true, lan[i].Link
			}
		}, nil},
		{"a third node has it on the LAN", docker, "docker0", func(w *world, lan, _ []*verdict.Interface, _ []*verdict.Claim) {
			w.Assigned(lan[2])
		}, []string{"LINK=n3/eth0 assigned-twice n1 n2 n3"}},
		{"a device outside uses it on the LAN", docker, "docker0", func(w *world, lan, _ []*verdict.Interface, _ []*verdict.Claim) {
			w.Wire(lan[2], externalMAC)
		}, []string{"LINK=n1/eth0 assigned-twice n1 n2 " + externalMAC}},
		{"one of them has announced it there", "192.0.2.50", "br-vip", func(w *world, lan, _ []*verdict.Interface, _ []*verdict.Claim) {
			w.Wire(lan[2], string(lan[0].MAC))
		}, []string{"LINK=n1/eth0 assigned-twice n1 n2"}},
		{"a program moves it", "192.0.2.50", "br-vip", func(w *world, _, _ []*verdict.Interface, _ []*verdict.Claim) {
			w.Node("n1").VIPProgram = "keepalived"
		}, []string{"LINK=n1/eth0 split-brain n1 n2"}},
		{"a controller assigns it", "192.0.2.50", "br-vip", func(w *world, _, _ []*verdict.Interface, _ []*verdict.Claim) {
			p := &verdict.Pool{Pool: ipam.Pool{IPAM: vip.KubeVIP.Name, Traits: ipam.Traits{Assigns: true}, Name: "addresses", State: ipam.Known}}
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Node: "n1"}})
		}, []string{"LINK=n1/eth0 split-brain n1 n2"}},
		{"the bridges lead to the LAN", docker, "docker0", func(_ *world, lan, bridges []*verdict.Interface, _ []*verdict.Claim) {
			for i, bridge := range bridges {
				bridge.Link = lan[i].Link
			}
		}, []string{"LINK=n1/eth0 assigned-twice n1 n2"}},
	} {
		w := newWorld(test.address)
		lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
		var bridges []*verdict.Interface
		var frames []*verdict.Claim
		for i, n := range []string{"n1", "n2"} {
			lan[i].MAC = verdict.MAC("\x02\x00\x00\x00\x00" + string(rune('1'+i)))
			bridge := w.Interface(w.Host(n), verdict.Interface{
				Name: test.device, Kind: "bridge", MAC: verdict.MAC("\x02\x00\x00\x00\x01" + string(rune('1'+i))), Attachment: verdict.Own,
				Link: w.Link(n, test.device, verdict.Bridge, true),
			})
			w.Assigned(bridge)
			bridges = append(bridges, bridge)
			frames = append(frames, answer(w, lan[i], lan[2], lan[i].MAC))
		}
		if test.change != nil {
			test.change(w, lan, bridges, frames)
		}
		w.wantConflicts(t, test.name, test.want...)
	}
}
