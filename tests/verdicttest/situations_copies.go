package verdicttest

import (
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
)

const (
	leftover = verdict.CauseLeftoverNamespace
	client   = verdict.CauseDHCPClientIdentity
	clone    = verdict.CauseClonedMachine
)

// machines gives two machines on one LAN the address, with the given hardware addresses.
func machines(w *World, macs ...verdict.MAC) {
	for i, u := range OnLAN(w, "n1", "n2", "n3")[:len(macs)] {
		u.MAC = macs[i]
		w.Assigned(u)
		w.After(time.Minute)
	}
}

// lease has a DHCP server on node n1 lease the address to a hardware address, and before to another one
// for the same client identifier if former is not empty.
func lease(w *World, mac, former verdict.MAC) {
	p := w.Pool(dhcp.DnsmasqName, "n1", "", "10.244.1.1-10.244.1.20")
	p.Device = "eth0"
	w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: mac.String(), FormerMAC: former.String()}})
}

// formerlyLeased gives two nodes on one LAN the address. A DHCP server on a third node had leased it to the first one, and has
// leased it to the second one.
func formerlyLeased(w *World, past verdict.Past) {
	machines(w, oneMAC, otherMAC)
	p := w.Pool(dhcp.DnsmasqName, "n3", "", "10.244.1.1-10.244.1.20")
	p.Device = "eth0"
	former := w.Claims[0].Interface
	past.Owner, past.Kind, past.Since = former.Namespace.ID, verdict.FindingInUseUnallocated, Start
	past.Allocation = &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: former.MAC.String()}}
	w.Past = append(w.Past, past)
	w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC(otherMAC).String()}})
}

// leased has the DHCP client of a node record a lease, the server, and the client identifier that it sent.
func leased(w *World, node string, mac verdict.MAC, server, id string) {
	p := w.Pool(dhcp.ClientName, node, "/run/systemd/netif/leases#eth0")
	p.Wiring, p.ClientID, p.Ranges = ipam.Wiring{Device: "eth0"}, id, nil
	p.Server, _ = netip.ParseAddr(server)
	w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: mac.String()}})
}

// without gives a workload without processes the address, on node n1.
func without(w *World, network string, of verdict.Workload) {
	of.PID, of.Idle = 0, true
	w.Within("n1", "", network, of)
	w.After(time.Minute)
}

const (
	oneMAC   = "\x52\x54\x00\xaa\xbb\x01"
	otherMAC = "\x52\x54\x00\xaa\xbb\x02"
)

// containerID is the id of a container as engines make it.
const containerID = "4f2b7c3d9e8a4f2b7c3d9e8a4f2b7c3d9e8a4f2b7c3d9e8a4f2b7c3d9e8a1111"

// OnNodes gives a workload on each of two nodes on one LAN the address, on a macvlan device. The ids of their containers
// may differ.
func OnNodes(w *World, who verdict.Workload, one, other string) {
	for k, u := range OnLAN(w, "n1", "n2") {
		who.ContainerID = []string{one, other}[k]
		ns := w.Namespace(u.Link.Node.Name, 5, "105", who)
		w.Assigned(w.Interface(ns, verdict.Interface{MAC: oneMAC, Attachment: verdict.Lower, Link: u.Link, HostInterface: "eth0"})).Network = "lan"
		w.After(time.Minute)
	}
}

var ofCopies = []Situation{
	{
		Name: "a container was restored on another node while it runs", Cause: clone, Addr: "192.0.2.50",
		Build: func(w *World) {
			OnNodes(w, verdict.Workload{Kind: verdict.Container, Source: "cni-result", PID: 1}, containerID, containerID)
		},
		Facts: []string{"one-container owners=" + containerID + "," + containerID + " nodes=n1,n2 text=" + containerID},
	},
	{
		Name: "a container with the name of a pod was restored on another node, and an IPAM has it", Cause: clone, Addr: "192.0.2.50",
		Build: func(w *World) {
			OnNodes(w, verdict.Workload{Kind: verdict.Pod, Namespace: "db", Name: "db", Source: "cni-result", PID: 1}, containerID, containerID)
			for _, n := range []string{"n1", "n2"} {
				w.Books(w.Pool(hostlocal.Name, n, "lan", "192.0.2.10-192.0.2.99"), "db").ContainerID = containerID
			}
		},
		Facts: []string{"one-container owners=db,db nodes=n1,n2 text=" + containerID},
	},
	{
		Name: "a pod that was started on another node again", Cause: unknown, Addr: "192.0.2.50",
		Build: func(w *World) {
			OnNodes(w, verdict.Workload{Kind: verdict.Pod, Namespace: "db", Name: "db", Source: "cni-result", PID: 1}, containerID, containerID[4:]+"2222")
		},
	},
	{
		Name: "a namespace without processes has the address of a pod", Cause: leftover,
		Build: func(w *World) {
			without(w, "kindnet", Who("old"))
			w.Within("n2", "", "kindnet", Who("new"))
		},
		Facts: []string{"no-process owners=old", "has-processes owners=new"},
		RuledOut: []string{
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "a namespace made by hand, in which no process ever ran", Cause: unknown,
		Build: func(w *World) {
			without(w, "", verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns"})
			w.Within("n1", "", "kindnet", Who("new"))
		},
		RuledOut: []string{"static-address (open): giver-not-known owners=blue"},
	},
	{
		Name: "a namespace made by hand, whose processes have ended", Cause: leftover,
		Build: func(w *World) {
			without(w, "", verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns", Ended: true})
			w.Within("n1", "", "kindnet", Who("new"))
		},
		Facts: []string{"no-process owners=blue", "has-processes owners=new"},
	},
	{
		Name: "two namespaces without processes", Cause: unknown,
		Build: func(w *World) {
			without(w, "", Who("old"))
			without(w, "", Who("new"))
		},
		RuledOut: []string{"static-address (open): giver-not-known owners=old"},
	},
	{
		Name: "a load balancer of Docker Swarm, which never has a process", Cause: unknown,
		Build: func(w *World) {
			balancer := Who("lb_3f2a91c04")
			balancer.Source = "docker-netns"
			without(w, "", balancer)
			w.Within("n1", "", "", Who("task"))
		},
		RuledOut: []string{"static-address (open): giver-not-known owners=lb_3f2a91c04"},
	},
	{
		Name: "the bridge of an overlay network of Docker Swarm, which never has a process", Cause: unknown,
		Build: func(w *World) {
			bridge := Who("1-3f2a91c04b")
			bridge.Source = "docker-netns"
			without(w, "", bridge)
			w.Within("n1", "", "", Who("task"))
		},
		RuledOut: []string{"static-address (open): giver-not-known owners=1-3f2a91c04b"},
	},
	{
		Name: "a router without processes has the address of a pod", Cause: unknown,
		Build: func(w *World) {
			without(w, "", verdict.Workload{Kind: verdict.Unknown, Name: "qrouter", Source: "netns", MayForward: true})
			w.Within("n1", "", "", Who("new"))
		},
		RuledOut: []string{"leftover-namespace (open): needs-no-process owners=qrouter", "static-address (open): giver-not-known owners=qrouter"},
	},
	{
		Name: "a router without processes, and what is left of a pod, have the address of a pod", Cause: leftover,
		Build: func(w *World) {
			without(w, "", verdict.Workload{Kind: verdict.Unknown, Name: "qrouter", Source: "netns", MayForward: true})
			without(w, "", Who("old"))
			w.Within("n1", "", "", Who("new"))
		},
		Facts:    []string{"no-process owners=old", "has-processes owners=new"},
		RuledOut: []string{},
	},
	{
		Name: "a router whose program that moves addresses has ended", Cause: unknown,
		Build: func(w *World) {
			router := Who("qrouter")
			router.VIPProgram, router.VIPProgramEnded = "keepalived", true
			without(w, "", router)
			taker := Who("qrouter")
			taker.VIPProgram = "keepalived"
			w.Within("n1", "", "", taker)
		},
	},
	{
		Name: "a pod has taken the address along with a device of its node", Cause: verdict.CauseTakenAlong,
		Build: func(w *World) {
			w.Within("n1", "", "lan", Who("took")).TakenAlong = true
			w.After(time.Minute).Within("n2", "", "lan", Who("leased"))
		},
		Facts:    []string{"taken-along owners=took network=lan"},
		RuledOut: []string{"static-address: given-to-all owners=took,leased"},
	},
	{
		Name: "a pod with a device of its node and an address from IPAM", Cause: unknown,
		Build: func(w *World) {
			w.Within("n1", "", "lan", Who("moved"))
			w.After(time.Minute).Within("n2", "", "lan", Who("other"))
		},
		RuledOut: []string{
			"pod-cidr-overlap (open): ranges-of-nodes-not-known nodes=n1,n2", "ipam-state-lost (open): no-records-known nodes=n1,n2",
			"static-address: given-to-all owners=moved,other",
		},
	},
	{
		Name: "machines with one client identifier", Cause: client,
		Build:    func(w *World) { machines(w, oneMAC, otherMAC); lease(w, otherMAC, oneMAC) },
		Facts:    []string{"lease-taken owners=n1,n2 pool=dnsmasq|n1|"},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2"},
	},
	{
		Name: "machines with one client identifier, as they say themselves", Cause: client,
		Build: func(w *World) {
			machines(w, oneMAC, otherMAC)
			leased(w, "n1", oneMAC, "10.244.1.1", "ff01")
			leased(w, "n2", otherMAC, "10.244.1.1", "ff01")
		},
		Facts: []string{"leased-to-both owners=n1,n2 text=ff01"},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2",
			"static-address: given-to-all owners=n1,n2",
		},
	},
	{
		Name: "machines with one DUID, as they say themselves", Cause: client, Addr: "2001:db8::8",
		Build: func(w *World) {
			machines(w, oneMAC, otherMAC)
			leased(w, "n1", oneMAC, "", "0000ab11f90dd0cf5e") // networkd does not keep the address of the server
			leased(w, "n2", otherMAC, "", "0000ab11f90dd0cf5e")
		},
		Facts: []string{"leased-to-both owners=n1,n2 text=0000ab11f90dd0cf5e"},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2",
			"static-address: given-to-all owners=n1,n2",
		},
	},
	{
		Name: "machines with two DUIDs", Cause: unknown, Addr: "2001:db8::8",
		Build: func(w *World) {
			machines(w, oneMAC, otherMAC)
			leased(w, "n1", oneMAC, "", "0000ab11f90dd0cf5e")
			leased(w, "n2", otherMAC, "", "0000ab11fa0dd0cf5e")
		},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2", "pod-cidr-overlap (open): ranges-of-nodes-not-known nodes=n1,n2",
			"static-address: given-to-all owners=n1,n2",
		},
	},
	{
		Name: "machines of which two servers have leased the address to one each, as they say", Cause: verdict.CauseTwoDHCPServers,
		Build: func(w *World) {
			machines(w, oneMAC, otherMAC)
			leased(w, "n1", oneMAC, "10.244.1.1", "ff01")
			leased(w, "n2", otherMAC, "10.244.1.2", "ff02")
		},
		Facts: []string{
			"leased owners=n1 pool=dhcp-client|n1|/run/systemd/netif/leases#eth0 address=10.244.1.1",
			"leased owners=n2 pool=dhcp-client|n2|/run/systemd/netif/leases#eth0 address=10.244.1.2",
		},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2",
			"static-address: given-to-all owners=n1,n2",
		},
	},
	{
		Name: "machines that have forgotten from which servers they have their leases", Cause: unknown,
		Build: func(w *World) {
			machines(w, oneMAC, otherMAC)
			leased(w, "n1", oneMAC, "", "")
			leased(w, "n2", otherMAC, "", "")
		},
		RuledOut: []string{
			"split-brain: not-moving owners=n1,n2", "pod-cidr-overlap (open): ranges-of-nodes-not-known nodes=n1,n2",
			"static-address: given-to-all owners=n1,n2",
		},
	},
	{
		Name: "a copied container with the hardware address of its original", Cause: client,
		Build: func(w *World) {
			for _, name := range []string{"web", "web-copy"} {
				c := w.Within("n1", "eth0", "", verdict.Workload{Kind: verdict.Container, Name: name, Source: "lxd", PID: 1})
				c.Interface.MAC = oneMAC
			}
			lease(w, oneMAC, "")
		},
		Facts: []string{"leased-to-one-mac owners=web,web-copy pool=dnsmasq|n1|"},
		RuledOut: []string{
			"ipam-state-lost: all-allocated owners=web,web-copy pool=dnsmasq|n1|",
			"static-address: given-to-all owners=web,web-copy",
		},
	},
	{
		Name: "a lease that another client had before, and a machine that was never a client", Cause: static,
		Build: func(w *World) { machines(w, oneMAC, otherMAC); lease(w, otherMAC, "\x52\x54\x00\xaa\xbb\x03") },
		Facts: []string{
			"allocated owners=n2 pool=dnsmasq|n1|", "on-device-of-node owners=n1 device=eth0",
			"range-of-pool pool=dnsmasq|n1| ranges=10.244.1.1-10.244.1.20",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2"},
	},
	{
		Name: "a client that keeps its address although the server has leased it to another one", Cause: unknown,
		Build: func(w *World) {
			machines(w, oneMAC, otherMAC)
			for _, c := range w.Claims {
				c.Flags &^= verdict.FlagPermanent
			}
			lease(w, otherMAC, "")
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "pod-cidr-overlap (open): not-known-to-be-given-to-both", "static-address: has-lifetime owners=n1"},
	},
	{
		Name: "a DHCP server on another node that has lost its leases", Cause: lost,
		Build: func(w *World) {
			formerlyLeased(w, verdict.Past{})
			w.Pools[0].LostAt, w.Pools[0].Lost = Start, 3
		},
		Facts: []string{
			"was-allocated owners=n1 pool=dnsmasq|n3|",
			"allocated owners=n2 pool=dnsmasq|n3|",
			"record pool=dnsmasq|n3| state=1 record=->n2",
			"records-lost pool=dnsmasq|n3| at=0s count=3",
			"record-vanished owners=n1 pool=dnsmasq|n3| at=0s",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "a client that has given its lease back, and goes on using the address", Cause: unknown,
		Build: func(w *World) { formerlyLeased(w, verdict.Past{}) },
		Facts: []string{
			"lease-gone owners=n1 pool=dnsmasq|n3| at=0s",
			"record pool=dnsmasq|n3| state=1 record=->n2",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "a client that has given its lease back, and has another one beside the old address", Cause: unknown,
		Build: func(w *World) {
			formerlyLeased(w, verdict.Past{})
			w.Subnet(w.Claims[0].Interface, "10.244.1.101/24")
			w.Subnets[0].Leased = true
		},
		Facts: []string{
			"lease-gone owners=n1 pool=dnsmasq|n3| at=0s",
			"leased-another owners=n1 device=eth0 address=10.244.1.101",
			"record pool=dnsmasq|n3| state=1 record=->n2",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "the server leased the address to another client while the first one had it", Cause: unknown,
		Build: func(w *World) {
			formerlyLeased(w, verdict.Past{})
			w.Allocations[0].Heard = Start
		},
		Facts: []string{
			"lease-replaced owners=n1 pool=dnsmasq|n3| at=0s",
			"record pool=dnsmasq|n3| state=1 record=->n2",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "another client got the address after the first one had given it back", Cause: unknown,
		Build: func(w *World) {
			formerlyLeased(w, verdict.Past{})
			w.Allocations[0].Heard, w.Allocations[0].FixedIn, w.Allocations[0].ReservedFor = Start.Add(time.Second), "/etc/dnsmasq.conf", w.Allocations[0].MAC
		},
		Facts: []string{
			"lease-gone owners=n1 pool=dnsmasq|n3| at=0s",
			"record pool=dnsmasq|n3| state=1 record=->n2",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "one reservation for two machines", Cause: unknown,
		Build: func(w *World) {
			formerlyLeased(w, verdict.Past{})
			al := w.Allocations[0]
			al.Heard, al.FixedIn, al.ReservedFor = Start.Add(time.Second), "/etc/dnsmasq.d/dock", w.Past[0].Allocation.MAC+" "+al.MAC
		},
		Facts: []string{
			"lease-replaced owners=n1 pool=dnsmasq|n3| at=0s",
			"one-reservation owners=n1 text=/etc/dnsmasq.d/dock",
			"record pool=dnsmasq|n3| state=1 record=->n2",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "a client that goes on using the address after the end of its lease", Cause: unknown,
		Build: func(w *World) { formerlyLeased(w, verdict.Past{Ended: Start.Add(-time.Second)}) },
		Facts: []string{
			"lease-ended owners=n1 pool=dnsmasq|n3| at=-1s",
			"record pool=dnsmasq|n3| state=1 record=->n2",
		},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2", "static-address: given-to-all owners=n1,n2"},
	},
	{
		Name: "cloned machines", Cause: clone, Addr: "192.168.1.200",
		Build:    func(w *World) { machines(w, oneMAC, oneMAC) },
		Facts:    []string{"one-mac owners=n1,n2 text=52:54:00:aa:bb:01"},
		RuledOut: []string{"split-brain: not-moving owners=n1,n2"},
	},
	{
		Name: "machines of one virtual router", Cause: split, Addr: "192.168.1.200",
		Build: func(w *World) { machines(w, "\x00\x00\x5e\x00\x01\x33", "\x00\x00\x5e\x00\x01\x33") },
		Facts: []string{"virtual-mac owners=n1", "virtual-mac owners=n2", "one-link", "beyond-handover-grace"},
	},
	{
		Name: "machines with one address by mistake", Cause: unknown, Addr: "192.168.1.200",
		Build:    func(w *World) { machines(w, oneMAC, otherMAC) },
		RuledOut: []string{"split-brain: not-moving owners=n1,n2"},
	},
	{
		Name: "one service in namespaces of two nodes", Cause: unknown, Addr: "192.168.1.200",
		Build: func(w *World) {
			for _, u := range OnLAN(w, "n1", "n2") {
				ns := w.Namespace(u.Link.Node.Name, 5, "105", verdict.Workload{Kind: verdict.Unknown, Name: "qrouter", Source: "netns", PID: 1})
				w.Assigned(w.Interface(ns, verdict.Interface{Name: "qg-1", MAC: oneMAC, Attachment: verdict.Lower, Link: u.Link, HostInterface: "eth0"}))
				w.After(time.Minute)
			}
		},
	},
	{
		Name: "routers in namespaces", Cause: split, Addr: "192.168.1.200",
		Build: func(w *World) {
			for _, u := range OnLAN(w, "n1", "n2") {
				n := u.Link.Node.Name
				ns := w.Namespace(n, 5, "105", verdict.Workload{Kind: verdict.Unknown, Name: "qrouter", Source: "netns", PID: 1, VIPProgram: "keepalived"})
				w.Assigned(w.Interface(ns, verdict.Interface{Name: "qg-1", MAC: verdict.MAC("rout" + n), Attachment: verdict.Lower, Link: u.Link, HostInterface: "eth0"}))
			}
		},
		Facts: []string{"program-runs owners=qrouter text=keepalived", "program-runs owners=qrouter text=keepalived", "one-link", "beyond-handover-grace"},
	},
}
