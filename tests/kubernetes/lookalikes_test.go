package kubernetes

import (
	"fmt"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestL3KubeletRecreatesASandbox(t *testing.T) {
	l := newLab(t, "sandbox-again")
	l.witness()
	node1 := l.node("node1")
	p := l.run("web", "node1", "")
	l.awaitHolders(p.Address, p)
	first := l.sandbox(p, "")
	if err := node1.Forget(); err != nil { // the new sandbox gets the address of the old one
		t.Fatal(err)
	}
	l.sh(node1, "kill -KILL %d", first.PID)
	l.sandbox(p, first.ID)
	l.until("the pod to be ready as it was before", func() error {
		l.in("wait", "--for=condition=Ready", "pod/web", "--timeout=2m")
		if again := l.pod("web"); again != p {
			return fmt.Errorf("got %v, want %v", again, p)
		}
		return nil
	})
	l.awaitHolders(p.Address, p)
	l.wantOnlyPlanted()
	l.announce(p)
	l.row("L3-kubelet", p.Address, "one-owner")
}

func TestL4CompletedPodStillListsItsAddress(t *testing.T) {
	l := newLab(t, "completed")
	l.witness()
	node1 := l.node("node1")
	done := l.run("done", "node1", "", `"restartPolicy": "Never"`)
	l.awaitHolders(done.Address, done)
	ctx, cancel := l.context()
	defer cancel()
	pids, err := node1.ContainerPIDs(ctx, done.UID)
	if err != nil || len(pids) != 1 {
		t.Fatalf("containers of the pod: got %v, %v, want one", pids, err)
	}
	l.sh(node1, "kill -TERM %d", pids[0])
	l.in("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/done", "--timeout=2m")
	l.awaitHolders(done.Address) // its sandbox has ended
	if err := node1.Forget(); err != nil {
		t.Fatal(err)
	}
	next := l.run("next", "node1", "")
	if got := l.pod("done").Address; got != next.Address {
		t.Fatalf("addresses in the API: got %s and %s, want the same", got, next.Address)
	}
	l.awaitHolders(next.Address, next)
	l.wantOnlyPlanted()
	if all := l.conflicts(next.Address); all != nil {
		t.Errorf("conflict: got %v, want none", all)
	}
	l.announce(next)
	l.row("L4", next.Address, "one-owner")
}

func TestL5HostNetworkPodsHaveTheNodesAddress(t *testing.T) {
	l := newLab(t, "host-network")
	l.witness()
	for _, name := range []string{"first", "second"} {
		p := l.run(name, "node1", "", `"hostNetwork": true`)
		if want := l.node("node1").Address; p.Address != want {
			t.Fatalf("address of a pod with hostNetwork: got %s, want that of the node, %s", p.Address, want)
		}
	}
	l.wantOnlyPlanted()
	addr := l.node("node1").Address
	if all := l.conflicts(addr); all != nil {
		t.Errorf("conflict: got %v, want none", all)
	}
	l.until("the node to hold its address alone", func() error {
		got, err := l.listHolders(addr)
		if err == nil && (len(got) != 1 || got[0] != "node1//node1/") {
			err = fmt.Errorf("got %v, want node1", got)
		}
		return err
	})
	l.row("L5-kubernetes", addr, "one-owner")
}

func TestL16TwoLaunchersOfOneVirtualMachine(t *testing.T) {
	l := newLab(t, "migration")
	l.witness("--network", "machines=10.99.0.0/24")
	l.api(ipwitnessv1.Kubernetes_LIVE)
	const vm1 = `"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm1"`
	launch := func(name, node, labels, addr string) pod {
		p := l.run(name, node, labels)
		l.sh(l.node(node), "nsenter --target %d --net -- ip addr add %s/32 dev eth0", l.sandbox(p, "").PID, addr)
		return p
	}
	// Two pods that run no virtual machine, then two that do. A migration may last only a minute,
	// so everything else is prepared before.
	other := launch("other-from", "node1", "", "10.99.0.2")
	launch("other-to", "node2", "", "10.99.0.2")
	l.awaitConflict("10.99.0.2", confirmed)
	from := launch("vm1-from", "node1", vm1, "10.99.0.1")
	to := launch("vm1-to", "node2", vm1, "10.99.0.1")
	l.awaitHolders("10.99.0.1", from, to)
	l.wantOnlyPlanted("10.99.0.2", other.Address)
	l.row("L16-migration", "10.99.0.1", "same-vm")
}
