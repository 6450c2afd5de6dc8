package explain_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// TestCommandsChangeOnlyUnchangedState runs the commands for the Kubernetes API with fakes of
// kubectl and calicoctl that return prepared answers, and checks which changes they request.
func TestCommandsChangeOnlyUnchangedState(t *testing.T) {
	const (
		uid     = "4203561e-1821-45b6-a68a-d4619be90320"
		podref  = "spec.allocations.3.podref"
		id      = "spec.allocations.3.id"
		reserve = "get overlappingrangeipreservations.whereabouts.cni.cncf.io 192.0.2.3 "
		others  = "get overlappingrangeipreservations.whereabouts.cni.cncf.io -n kube-system -o name"
		pod0    = "get pod -n shop cam-0 "
		pod1    = "get pod -n shop cam-1 "
		ip      = "get ips.kubeovn.io cart-0.shop "
	)
	leak := map[string]string{podref: "shop/cam-1", id: otherID}
	tests := []struct {
		name, finding string
		// answers maps parts of command lines to outputs; "!" makes the command fail.
		answers map[string]string
		// changes are parts of the commands that change something, in order.
		changes []string
	}{
		{"not allocated", "in-use-unallocated whereabouts", map[string]string{pod0: uid}, []string{"patch ippools"}},
		{"another pod has the name", "in-use-unallocated whereabouts", map[string]string{pod0: "another"}, nil},
		{"the pod is gone", "in-use-unallocated whereabouts", nil, nil},
		{"the offset is taken", "in-use-unallocated whereabouts", map[string]string{pod0: uid, podref: "shop/cam-9"}, nil},
		{"allocated already, not reserved", "in-use-unallocated whereabouts", map[string]string{pod0: uid, podref: "shop/cam-0", others: "x"}, []string{"create -f -"}},
		{"allocated already, without reservations", "in-use-unallocated whereabouts", map[string]string{pod0: uid, podref: "shop/cam-0"}, nil},
		{"allocated and reserved already", "in-use-unallocated whereabouts", map[string]string{pod0: uid, podref: "shop/cam-0", reserve: "shop/cam-0", others: "x"}, nil},
		{"no API", "in-use-unallocated whereabouts", map[string]string{"get": "!"}, nil},

		{"leaked", "leaked whereabouts", leak, []string{"patch ippools"}},
		{"leaked, the sandbox is another one", "leaked whereabouts", map[string]string{podref: "shop/cam-1", id: "new"}, nil},
		{"leaked, freed, still reserved", "leaked whereabouts", map[string]string{reserve: "shop/cam-1"}, []string{"delete overlappingrangeipreservations"}},
		{"leaked, freed, reserved for another", "leaked whereabouts", map[string]string{reserve: "shop/cam-2"}, nil},
		{"leaked, the pod has it, where no kernel sees it", "leaked whereabouts", map[string]string{
			podref: "shop/cam-1", id: otherID, pod1: `[{"name": "shop/lan","ips": ["192.0.2.3"]}]`, reserve: "shop/cam-1",
		}, nil},
		{"leaked, reserved, the pod has it", "leaked whereabouts", map[string]string{pod1: `"192.0.2.3"`, reserve: "shop/cam-1"}, nil},
		{"leaked, the pod has another one now", "leaked whereabouts", map[string]string{podref: "shop/cam-1", id: otherID, pod1: `"192.0.2.30"`}, []string{"patch ippools"}},
		{"leaked, no API", "leaked whereabouts", map[string]string{"get": "!"}, nil},

		{"elsewhere, the other is gone", "booked-elsewhere whereabouts", map[string]string{podref: "shop/cam-1", pod0: uid}, []string{"patch ippools"}},
		{"elsewhere, the other is there", "booked-elsewhere whereabouts", map[string]string{podref: "shop/cam-1", pod0: uid, pod1: "pod/cam-1"}, nil},
		{"elsewhere, rebooked, still reserved", "booked-elsewhere whereabouts", map[string]string{podref: "shop/cam-0", pod0: uid, reserve: "shop/cam-1"}, []string{"patch overlappingrangeipreservations"}},
		{"elsewhere, no API", "booked-elsewhere whereabouts", map[string]string{"get": "!"}, nil},

		{"calico, restarted", "booked-elsewhere calico, nodename mended", map[string]string{"get pod -n shop web-5d": uid}, []string{"delete pod -n shop web-5d", "rollout status -n shop deployment/web"}},
		{"calico, restarted already", "booked-elsewhere calico, nodename mended", map[string]string{"get pod -n shop web-5d": "new"}, nil},
		{"calico, leaked", "leaked calico", map[string]string{"ipam show": "IP 10.244.0.5 is in use\nAttributes:\n  namespace: shop\n  pod: old"}, []string{"ipam release --ip=10.244.0.5"}},
		{"calico, leaked, free by now", "leaked calico", map[string]string{"ipam show": "IP 10.244.0.5 is not currently assigned"}, nil},
		{"calico, leaked, a pod has it", "leaked calico", map[string]string{"get pods -A": " 192.0.2.9 10.244.0.5 ", "ipam show": "  namespace: shop\n  pod: old"}, nil},
		{"calico, leaked, a pod has it as its second one", "leaked calico", map[string]string{"status.podIPs[*].ip": " fd00::9 10.244.0.5 ", "ipam show": "  namespace: shop\n  pod: old"}, nil},
		{"calico, leaked, other pods have others", "leaked calico", map[string]string{"get pods -A": " 10.244.0.50 110.244.0.5 ", "ipam show": "  namespace: shop\n  pod: old"}, []string{"ipam release --ip=10.244.0.5"}},
		{"calico, leaked, a pod of that name has it", "leaked calico", map[string]string{"get pod -n shop old": " 192.0.2.9 10.244.0.5 ", "ipam show": "  namespace: shop\n  pod: old"}, nil},
		{"calico, leaked, a pod of that name starts", "leaked calico", map[string]string{"get pod -n shop old": "  ", "ipam show": "  namespace: shop\n  pod: old"}, nil},
		{"calico, leaked, a pod of that name has another", "leaked calico", map[string]string{"get pod -n shop old": " 10.244.0.50 ", "ipam show": "  namespace: shop\n  pod: old"}, []string{"ipam release --ip=10.244.0.5"}},
		{"calico, leaked, allocated to a longer name", "leaked calico", map[string]string{"ipam show": "  namespace: shop\n  pod: old-2"}, nil},
		{"calico, leaked, allocated in another namespace", "leaked calico", map[string]string{"ipam show": "  namespace: other\n  pod: old"}, nil},
		{"calico, leaked, no API", "leaked calico", map[string]string{"get": "!", "ipam show": "  namespace: shop\n  pod: old"}, nil},
		{"cilium, leaked", "leaked cilium", nil, []string{"delete ciliumendpoints"}},
		{"cilium, leaked, the pod is there", "leaked cilium", map[string]string{"get pod -n shop old": "pod/old"}, nil},
		{"cilium, leaked, no API", "leaked cilium", map[string]string{"get": "!"}, nil},
		{"kube-ovn, leaked", "leaked kube-ovn", map[string]string{ip: "shop/cart-0/"}, []string{"delete ips.kubeovn.io cart-0.shop"}},
		{"kube-ovn, leaked, the pod is there", "leaked kube-ovn", map[string]string{ip: "shop/cart-0/", "get pod -n shop cart-0": "pod/cart-0"}, nil},
		{"kube-ovn, leaked, it is kept for a StatefulSet now", "leaked kube-ovn", map[string]string{ip: "shop/cart-0/StatefulSet"}, nil},
		{"kube-ovn, leaked, it is gone", "leaked kube-ovn", nil, nil},
		{"kube-ovn, leaked, no API", "leaked kube-ovn", map[string]string{"get": "!"}, nil},
		{"kube-ovn, leaked, no pods in the API", "leaked kube-ovn", map[string]string{ip: "shop/cart-0/", "get pod ": "!"}, nil},
	}
	all := findings()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := all[test.finding]
			dir := t.TempDir()
			log := filepath.Join(dir, "log")
			answers := "#!/bin/sh\ncase \"$*\" in\n"
			for part, answer := range test.answers {
				if answer == "!" {
					answers += "*'" + part + "'*) exit 1 ;;\n"
				} else {
					answers += "*'" + part + "'*) printf '%s\\n' '" + answer + "' ;;\n"
				}
			}
			answers += "get*|'ipam show'*) ;;\n*) echo \"$*\" >>'" + log + "' ;;\nesac\n"
			for _, name := range []string{"kubectl", "calicoctl"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(answers), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			ran := 0
			for _, fix := range explain.Finding(&f, verdict.PoolUse{}).Fixes {
				if fix.Manual || fix.Node != "" {
					continue
				}
				ran++
				cmd := exec.Command("sh", "-euc", fix.Command)
				cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("got %v: %s", err, out)
				}
			}
			if ran == 0 {
				t.Fatal("got no command to run")
			}
			raw, err := os.ReadFile(log)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			changed := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
			if len(raw) == 0 {
				changed = nil
			}
			if len(changed) != len(test.changes) {
				t.Fatalf("got changes %q, want %q", changed, test.changes)
			}
			for i, want := range test.changes {
				if !strings.Contains(changed[i], want) {
					t.Errorf("got %q, want %q", changed[i], want)
				}
			}
		})
	}
}

// host-local never frees an allocation of another container, and with a slightly wrong node name
// Calico allocates addresses for a node that does not exist.
func TestOnlyKnownDataIsWritten(t *testing.T) {
	all := findings()
	for _, name := range []string{"in-use-unallocated host-local", "in-use-unallocated whereabouts", "booked-elsewhere host-local"} {
		f := all[name]
		o := f.Owners[0]
		ns := *o.Namespace
		who := ns.Who.Workload()
		who.Source, who.Sources = "cgroup", ""
		ns.Who = who.Who()
		i := *o.Interface
		i.Namespace = &ns
		o.Namespace, o.Interface = &ns, &i
		f.Owners = []verdict.Owner{o}
		for _, fix := range explain.Finding(&f, verdict.PoolUse{}).Fixes {
			if !fix.Manual {
				t.Errorf("%s: got %s, want it by hand: only a cgroup tells the container", name, fix.What)
			}
		}
	}
	f := all["booked-elsewhere calico"]
	o := f.Owners[0]
	o.Pod = nil
	f.Owners = []verdict.Owner{o}
	for _, fix := range explain.Finding(&f, verdict.PoolUse{}).Fixes {
		if !fix.Manual {
			t.Errorf("got %s, want it by hand: the Kubernetes name of the node is unknown", fix.What)
		}
	}
}

// A failure of crictl does not mean that a container is gone.
func TestNothingIsFreedIfTheRuntimeDoesNotAnswer(t *testing.T) {
	all := findings()
	for crictl, kept := range map[string]bool{"exit 1": true, "echo id": true, "exit 0": false} {
		dir := t.TempDir()
		f := all["leaked host-local"]
		pool := *f.Pool
		pool.Name = filepath.Join(dir, "networks")
		f.Pool = &pool
		if err := os.Mkdir(pool.Name, 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(pool.Name, "10.244.0.5")
		for name, text := range map[string]string{
			file: otherID + "\r\neth0", filepath.Join(dir, "crictl"): "#!/bin/sh\n" + crictl + "\n",
			filepath.Join(dir, "nsenter"): "#!/bin/sh\n", filepath.Join(dir, "ip"): "#!/bin/sh\n",
		} {
			if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-euc", explain.Finding(&f, verdict.PoolUse{}).Fixes[0].Command)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("got %v: %s", err, out)
		}
		if _, err := os.Stat(file); (err == nil) != kept {
			t.Errorf("crictl does %q: got %v, want kept %v", crictl, err, kept)
		}
	}
}
