package verdict_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestLeasesMatchOwnersByHardwareAddress(t *testing.T) {
	n1, n2 := &verdict.Node{Name: "n1", Boot: "b1", Netns: "1"}, &verdict.Node{Name: "n2", Boot: "b2", Netns: "1"}
	on := func(n *verdict.Node, mac string, domain *verdict.Domain) *verdict.Interface {
		return &verdict.Interface{Namespace: &verdict.Namespace{Node: n}, Name: "eth0", MAC: verdict.MAC(mac), Link: &verdict.Link{Node: n, Name: "eth0", Domain: domain}}
	}
	kernel := func(i *verdict.Interface) *verdict.Claim { return &verdict.Claim{Kind: verdict.Assigned, Interface: i} }
	frame := func(i *verdict.Interface, mac string) *verdict.Claim {
		return &verdict.Claim{Kind: verdict.Announced, Interface: i, Frame: verdict.Frame{MAC: verdict.MAC(mac), Link: i.Link}}
	}
	const client, other = "\x02one_1", "\x02two_2"
	al := &verdict.Allocation{Pool: &verdict.Pool{Node: n1, Pool: ipam.Pool{IPAM: dhcp.DnsmasqName, Traits: registry.Traits(dhcp.DnsmasqName)}}, Allocation: ipam.Allocation{MAC: verdict.MAC(client).String()}}
	lan := &verdict.Domain{Node: n1, Name: "eth0"}
	for _, test := range []struct {
		name  string
		owner *verdict.Owner
		want  bool
	}{
		{"an interface of the server's node", &verdict.Owner{Node: n1, Interface: on(n1, client, nil), Claims: []*verdict.Claim{kernel(on(n1, client, nil))}}, true},
		{"another interface of the server's node", &verdict.Owner{Node: n1, Interface: on(n1, other, nil), Claims: []*verdict.Claim{kernel(on(n1, other, nil))}}, false},
		{"a machine that the server's node sees", &verdict.Owner{Node: n1, Interface: on(n1, other, nil), Claims: []*verdict.Claim{frame(on(n1, other, nil), client)}}, true},
		{"another machine that the server's node sees", &verdict.Owner{Node: n1, Interface: on(n1, client, nil), Claims: []*verdict.Claim{frame(on(n1, client, nil), other)}}, false},
		{"another node that the server's node sees", &verdict.Owner{Node: n2, Interface: on(n2, client, nil), Claims: []*verdict.Claim{kernel(on(n2, client, nil)), frame(on(n1, other, nil), client)}}, true},
		{"another node on one LAN", &verdict.Owner{Node: n2, Interface: on(n2, client, lan), Claims: []*verdict.Claim{kernel(on(n2, client, lan))}}, true},
		{"another node elsewhere", &verdict.Owner{Node: n2, Interface: on(n2, client, nil), Claims: []*verdict.Claim{kernel(on(n2, client, nil))}}, false},
	} {
		if got := al.For(test.owner); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
	if al.Nameless() {
		t.Error("got that a lease names nobody")
	}
}

// A node has an address that DHCP has leased to a machine outside: the node is the one that is wrong.
func TestMachineWithALeaseIsNotTheWrongOne(t *testing.T) {
	for name, leased := range map[string]bool{verdict.CauseStaticAddress: true, verdict.CauseExternalDevice: false} {
		w := verdicttest.New("10.9.0.15")
		i := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", Attachment: verdict.Own, Uplink: true, Link: w.Link("n1", "eth0", verdict.Uplink, false), MAC: "node-1"})
		p := w.Pool(dhcp.DnsmasqName, "n1", "", "10.9.0.10-10.9.0.20")
		p.Routed, p.Device = false, "eth0"
		const client = "\x02one_1"
		if leased {
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC(client).String()}})
		}
		kernel, machine := w.Assigned(i), w.Wire(i, client)
		for range 3 {
			w.Judge()
			w.After(time.Second)
			w.Read(kernel)
			w.Seen(machine)
		}
		out := w.Judge()
		if len(out.Conflicts) != 1 || out.Conflicts[0].Cause != name {
			t.Fatalf("leased %t: got %+v, want one conflict with cause %s", leased, out.Conflicts, name)
		}
		c := &out.Conflicts[0]
		keep, right := c.Rightful(c.Parties())
		if leased && (keep == nil || keep.Namespace != nil || right != verdict.RightAllocation || c.Headline.Pool.IPAM != dhcp.DnsmasqName) {
			t.Errorf("got %+v by %v, headline %+v, want the machine by its lease", keep, right, c.Headline)
		}
	}
}

// A DHCP server that has ended a lease may lease the address again, while its former client goes on using it; or the client
// has it from another server. What clients have recorded does not show whose lease counts.
func TestLeasesOfOneServer(t *testing.T) {
	const first, second = "\x02one_1", "\x02two_2"
	for _, test := range []struct {
		name  string
		book  func(by func(mac verdict.MAC), recorded func(node string, mac verdict.MAC, server string))
		keep  string
		right verdict.Right
	}{
		{"both clients have one", func(_ func(verdict.MAC), recorded func(string, verdict.MAC, string)) {
			recorded("n1", first, "192.168.1.1")
			recorded("n2", second, "192.168.1.1")
		}, "", verdict.RightUndecided},
		{"both clients have one, and the server that of the second one", func(by func(verdict.MAC), recorded func(string, verdict.MAC, string)) {
			recorded("n1", first, "192.168.1.1")
			recorded("n2", second, "192.168.1.1")
			by(second)
		}, "", verdict.RightUndecided},
		{"only the first client has one", func(_ func(verdict.MAC), recorded func(string, verdict.MAC, string)) {
			recorded("n1", first, "192.168.1.1")
		}, "n1", verdict.RightAllocation},
	} {
		w := verdicttest.New("192.168.1.20")
		for i, u := range verdicttest.OnLAN(w, "n1", "n2") {
			u.MAC = []verdict.MAC{first, second}[i]
			w.Assigned(u).Flags &^= verdict.FlagPermanent
			w.After(time.Minute)
		}
		book := func(ipamName, node, name string, mac verdict.MAC) *verdict.Pool {
			p := w.Pool(ipamName, node, name)
			p.Device = "eth0"
			w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: mac.String()}})
			return p
		}
		test.book(func(mac verdict.MAC) { book(dhcp.DnsmasqName, "n1", "", mac) }, func(node string, mac verdict.MAC, server string) {
			book(dhcp.ClientName, node, "/run/systemd/netif/leases#eth0", mac).Server = netip.MustParseAddr(server)
		})
		c := &w.Judge().Conflicts[0]
		keep, right := c.Rightful(c.Parties())
		name := ""
		if keep != nil {
			name = keep.Node.Name
		}
		if name != test.keep || right != test.right {
			t.Errorf("%s: got %q by %v, want %q by %v", test.name, name, right, test.keep, test.right)
		}
	}
}
