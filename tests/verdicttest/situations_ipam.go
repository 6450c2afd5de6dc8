package verdicttest

import (
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// ofRecords are the situations whose causes depend on the records of an IPAM.
var ofRecords = []Situation{
	{
		Name: "T1 the record of the first pod is gone", Cause: lost,
		Build: func(w *World) {
			Twins(w)
			p := w.Pool(hostlocal.Name, "n1", "kindnet")
			p.LostAt, p.Lost = Start.Add(time.Second), 3
			w.Books(p, "new")
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
			"records-lost pool=host-local|n1|kindnet at=1s count=3",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 the route leads to the pod without a record", Cause: lost,
		Build: func(w *World) {
			a, _ := Twins(w)
			a.Routed = true
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 the pod without a record has the address in a network stack outside of its kernel", Cause: lost,
		Build: func(w *World) {
			Sandbox(w, "n1", "cni0", "kindnet", Who("old"))
			w.After(time.Minute)
			w.Within("n1", "cni0", "kindnet", Who("new"))
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 all records are gone", Cause: lost,
		Build: func(w *World) {
			Twins(w)
			w.Pool(hostlocal.Name, "n1", "kindnet").State = ipam.Missing
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=3",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 without IPAM records", Cause: unknown,
		Build: func(w *World) { Twins(w) },
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"ipam-state-lost (open): no-records-known nodes=n1 network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 records that are being read", Cause: unknown,
		Build: func(w *World) {
			Twins(w)
			w.Pool(hostlocal.Name, "n1", "kindnet").State = ipam.Reading
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"ipam-state-lost (open): records-being-read pool=host-local|n1|kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 records that cannot be read: host-local gives no address of a network twice", Cause: lost,
		Build: func(w *World) {
			Twins(w)
			p := w.Pool(hostlocal.Name, "n1", "kindnet")
			p.State, p.Problem = ipam.Unreadable, "permission denied"
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet text=permission_denied state=4",
			"pool-never-gives-twice pool=host-local|n1|kindnet",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "records of whereabouts that cannot be read prove nothing", Cause: unknown,
		Build: func(w *World) {
			Twins(w)
			p := w.Pool(whereabouts.Name, "", "kindnet")
			p.State, p.Problem = ipam.Unreadable, "no such resource"
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"ipam-state-lost (open): records-unreadable pool=whereabouts||kindnet text=no_such_resource",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "IPAM has it for both", Cause: twice,
		Build: func(w *World) {
			Twins(w)
			p := w.Pool(whereabouts.Name, "", "kindnet")
			w.Books(p, "old")
			w.Books(p, "new")
		},
		Facts: []string{
			"allocated owners=new pool=whereabouts||kindnet",
			"allocated owners=old pool=whereabouts||kindnet",
			"record pool=whereabouts||kindnet state=1 record=container-new->new record=container-old->old",
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=whereabouts||kindnet",
			"overlapping-networks: one-network network=kindnet",
			"ipam-state-lost: all-allocated owners=old,new pool=whereabouts||kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "IPAM has it for both, but one of the pools is another tenant's", Cause: unknown,
		Build: func(w *World) {
			Twins(w)
			w.Books(w.Pool(ovn.KubeOVN.Name, "", "kindnet"), "old")
			other := w.Pool(ovn.KubeOVN.Name, "", "other")
			other.Realm = "vpc/blue"
			w.Books(other, "new")
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=kube-ovn||kindnet",
			"overlapping-networks: one-network network=kindnet",
			"ipam-state-lost: given-once owners=old pool=kube-ovn||kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "the pod whose allocation is gone is being deleted", Cause: unknown,
		Build: func(w *World) {
			Twins(w)
			w.Says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running", DeletionTimestamp: Start})
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"ipam-state-lost: being-deleted owners=old",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T1 only the container runtime reports the assignment", Cause: lost,
		Build: func(w *World) {
			a, b := Twins(w)
			a.Network, b.Network = "cri", "cri"
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"given-by-runtime owners=old",
			"given-by-runtime owners=new",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T2 on a bridge", Cause: lost,
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("old"))
			w.After(time.Minute).Within("n1", "cni0", "cbr0", Who("new"))
			w.Books(w.Pool(hostlocal.Name, "n1", "cbr0"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=cbr0",
			"given-by-network owners=new network=cbr0",
			"record pool=host-local|n1|cbr0 state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=cbr0",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T13 the same with IPv6", Cause: lost, Addr: "fd00:10:244::5",
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("old"))
			w.After(time.Minute).Within("n1", "cni0", "cbr0", Who("new"))
			w.Books(w.Pool(hostlocal.Name, "n1", "cbr0", "fd00:10:244::1-fd00:10:244::ffff"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=cbr0",
			"given-by-network owners=new network=cbr0",
			"record pool=host-local|n1|cbr0 state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=cbr0",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T12 the same where the kernel finds it", Cause: lost, Addr: "fd00:10:244::5",
		Build: func(w *World) {
			w.Within("n1", "cni0", "cbr0", Who("old"))
			c := w.After(time.Minute).Within("n1", "cni0", "cbr0", Who("new"))
			c.Kind, c.Flags, c.Network = verdict.DADFailed, verdict.FlagDADFailed, ""
			w.Books(w.Pool(hostlocal.Name, "n1", "cbr0", "fd00:10:244::1-fd00:10:244::ffff"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=cbr0",
			"allocated owners=new pool=host-local|n1|cbr0",
			"record pool=host-local|n1|cbr0 state=1 record=container-new->new",
		},
		RuledOut: []string{
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T4 a reservation of whereabouts is lost", Cause: lost, Addr: "192.168.2.5",
		Build: func(w *World) {
			lan := OnLAN(w, "n1", "n2")
			var claims []*verdict.Claim
			for i, name := range []string{"old", "new"} {
				ns := w.Namespace(fmt.Sprint("n", i+1), 7, fmt.Sprint(70+i), Who(name))
				c := w.Assigned(w.Interface(ns, verdict.Interface{Name: "net1", MAC: verdict.MAC("nv" + name + "x")[:6], Attachment: verdict.Lower, Link: lan[i].Link, HostInterface: "eth0"}))
				c.Network = "lan"
				claims = append(claims, c)
			}
			p := w.Pool(whereabouts.Name, "", "lan", "192.168.2.1-192.168.2.9")
			w.Books(p, "new")
			w.Was(claims[0], verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{ContainerID: "container-old"}})
		},
		Facts: []string{
			"given-by-network owners=old network=lan",
			"given-by-network owners=new network=lan",
			"record pool=whereabouts||lan state=1 record=container-new->new",
			"record-vanished owners=old pool=whereabouts||lan at=0s",
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere pool=whereabouts||lan",
			"pod-cidr-overlap: pool-of-cluster pool=whereabouts||lan",
			"overlapping-networks: one-network network=lan",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "T3 booked for another node", Cause: elsewhere,
		Build: func(w *World) {
			a := w.Within("n1", "", "k8s-pod-network", Who("web"))
			w.After(time.Minute).Within("n2", "", "k8s-pod-network", Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingBookedElsewhere, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n9"}})
		},
		Facts: []string{
			"was-allocated-elsewhere owners=web pool=calico|| at=0s record=default|web||n9",
			"record pool=calico|| state=1 record=default|db|container-db|n2->db",
		},
		RuledOut: []string{
			"pod-cidr-overlap: pool-of-cluster pool=calico||",
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "T3 nodename is another node's", Cause: elsewhere,
		Build: func(w *World) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n9", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
			w.Within("n1", "", "k8s-pod-network", Who("web"))
			w.After(time.Minute).Within("n2", "", "k8s-pod-network", Who("db"))
			w.Calico(w.Pool(calico.IPAM.Name, "", ""), "db", "n2")
		},
		Facts: []string{
			"wrong-node-name owners=web called=n9@/var/lib/calico/nodename",
			"record pool=calico|| state=1 record=default|db|container-db|n2->db",
		},
		RuledOut: []string{
			"pod-cidr-overlap: pool-of-cluster pool=calico||",
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "T3 the CNI configuration has the name of another node", Cause: elsewhere,
		Build: func(w *World) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n9", Source: ipam.ConfName, File: "/etc/cni/net.d/10-calico.conflist"}
			w.Within("n1", "", "k8s-pod-network", Who("web"))
			w.After(time.Minute).Within("n2", "", "k8s-pod-network", Who("db"))
			w.Calico(w.Pool(calico.IPAM.Name, "", ""), "db", "n2")
		},
		Facts: []string{
			"wrong-node-name owners=web called=n9@/etc/cni/net.d/10-calico.conflist",
			"record pool=calico|| state=1 record=default|db|container-db|n2->db",
		},
		RuledOut: []string{
			"pod-cidr-overlap: pool-of-cluster pool=calico||",
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "nodename is right: the record was lost", Cause: lost,
		Build: func(w *World) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n1.example.org", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
			a := w.Within("n1", "", "k8s-pod-network", Who("web"))
			w.After(time.Minute).Within("n2", "", "k8s-pod-network", Who("db"))
			p := w.Pool(calico.IPAM.Name, "", "")
			w.Calico(p, "db", "n2")
			w.Was(a, verdict.FindingInUseUnallocated, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Namespace: "default", Pod: "web", Node: "n1"}})
		},
		Facts: []string{
			"given-by-network owners=web network=k8s-pod-network",
			"given-by-network owners=db network=k8s-pod-network",
			"record pool=calico|| state=1 record=default|db|container-db|n2->db",
			"record-vanished owners=web pool=calico|| at=0s",
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: never-allocated-elsewhere nodes=n1 pool=calico||",
			"pod-cidr-overlap: pool-of-cluster pool=calico||",
			"static-address: given-to-all owners=web,db",
		},
	},
	{
		Name: "nodename is wrong, but the address is not Calico's", Cause: lost,
		Build: func(w *World) {
			w.Node("n1").IPAMName = ipam.NodeName{Name: "n9", Source: ipam.FileName, File: "/var/lib/calico/nodename"}
			Twins(w)
			w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"ipam-booked-elsewhere: no-node-named-pool nodes=n1 called=n9@/var/lib/calico/nodename",
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
	{
		Name: "an allocation for the rival is not an allocation elsewhere", Cause: lost,
		Build: func(w *World) {
			a, _ := Twins(w)
			al := w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
			w.Was(a, verdict.FindingBookedElsewhere, al)
		},
		Facts: []string{
			"given-by-network owners=old network=kindnet",
			"given-by-network owners=new network=kindnet",
			"record pool=host-local|n1|kindnet state=1 record=container-new->new",
		},
		RuledOut: []string{
			"overlapping-networks: one-network network=kindnet",
			"static-address: given-to-all owners=old,new",
		},
	},
}
