package vip

import (
	"fmt"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestMachines(t *testing.T) {
	c := ipamtest.New(t, &KubeVirt, Machines)
	at := ipam.Key{Namespace: "shop", Name: "vm"}
	for _, step := range []struct{ status, want, changed string }{
		{"{phase: Scheduling}", "<nil>", "[]"},
		{"{nodeName: n1, activePods: {uid-a: n1}}", "n1 [uid-a] false", "[uid-a]"},
		{"{nodeName: n1, activePods: {uid-a: n1}, interfaces: [{ipAddress: 192.0.2.1}]}", "n1 [uid-a] false", "[]"},
		{"{nodeName: n1, activePods: {uid-b: n2, uid-a: n1}, migrationState: {sourceNode: n1, targetNode: n2}}", "n1 [uid-a uid-b] true", "[uid-a uid-a uid-b]"},
		{"{nodeName: n2, activePods: {uid-b: n2, uid-a: n1}, migrationState: {completed: true}}", "n2 [uid-a uid-b] false", "[uid-a uid-b uid-a uid-b]"},
		{"{nodeName: n2, activePods: {uid-b: n2}, migrationState: {failed: true}, newer: 1}", "n2 [uid-b] false", "[uid-a uid-b uid-b]"},
		{"{nodeName: [n2]}", "<nil>", "[uid-b]"},
	} {
		c.Machines = nil
		c.Apply(Machines, "metadata: {namespace: shop, name: vm}\nstatus: "+step.status)
		got := "<nil>"
		if m := c.Machine(at); m != nil {
			got = fmt.Sprint(m.Node, " ", m.Pods, " ", m.Migrating)
		}
		if got != step.want || fmt.Sprint(c.Machines) != step.changed {
			t.Errorf("%s: got %s, changed %v, want %s, %s", step.status, got, c.Machines, step.want, step.changed)
		}
	}
	c.Want("nothing is allocated",
		"kubevirt VirtualMachineInstance objects known: VirtualMachineInstance shop/vm is invalid: its status has an unexpected format: /nodeName is a JSON array")
}
