package explain_test

import (
	"cmp"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/tests/canary"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// remedyOf returns the remedy of a conflict as lines of text, including those of alternatives.
func remedyOf(w *verdicttest.World, c *verdict.Conflict) []string {
	return flat(explain.Conflict(&w.Policy, c).Remedy)
}

// flat returns actions as lines of text, including those of alternatives.
func flat(actions []advice.Action) (lines []string) {
	for _, a := range actions {
		line := a.Text
		if a.Command != "" {
			line += " " + a.Command
		}
		lines = append(lines, line)
		for _, alternative := range a.Choice {
			lines = append(lines, "if "+alternative.When)
			lines = append(lines, flat(alternative.Actions)...)
		}
	}
	return lines
}

// only judges a world, and returns its only conflict.
func only(t *testing.T, w *verdicttest.World) *verdict.Conflict {
	t.Helper()
	out := w.Judge()
	if len(out.Conflicts) != 1 {
		t.Fatalf("got %d conflicts, want one", len(out.Conflicts))
	}
	return &out.Conflicts[0]
}

// situated returns the conflict of a situation.
func situated(t *testing.T, name string) (*verdicttest.World, *verdict.Conflict) {
	t.Helper()
	all := slices.Concat(verdicttest.Situations, scenes)
	i := slices.IndexFunc(all, func(s verdicttest.Situation) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no situation %q", name)
	}
	w, c := all[i].Judge()
	if c == nil {
		t.Fatalf("got no conflict of %q, or several", name)
	}
	return w, c
}

func TestRemedies(t *testing.T) {
	tests := []struct {
		situation string
		want      []string // in order
	}{
		{"T1 the record of the first pod is gone", []string{
			"Do not restart anything yet", "ipwitness audit --fix-plan > plan.sh", "Leave pod default/new",
			"kubectl delete pod -n default old",
		}},
		{"T1 the route leads to the pod without a record", []string{
			"Do not restart anything yet", "Leave pod default/new", "kubectl delete pod -n default old", "ip route get 10.244.1.5", "ip route replace 10.244.1.5/32 dev veth102 scope link",
		}},
		{"T1 all records are gone", []string{"Do not restart anything yet", "Leave pod default/old", "had the address first", "Reserve 10.244.1.5 for pod default/old", "kubectl delete pod -n default new"}},
		{"T3 the CNI configuration has the name of another node", []string{
			"kubectl delete pods -A -l k8s-app=calico-node --field-selector spec.nodeName=n1", "grep name /etc/cni/net.d/10-calico.conflist", "kubectl delete pod -n default web",
		}},
		{"T3 nodename is another node's", []string{
			"On node n1", "printf %s n1 > /var/lib/calico/nodename",
			"kubectl delete pods -A -l k8s-app=calico-node --field-selector spec.nodeName=n1",
			"kubectl delete pod -n default web", "ipwitness audit",
		}},
		{"T3 booked for another node", []string{"cat /var/lib/calico/nodename", "kubectl delete pod -n default web"}},
		{"T5 the ranges of pods of both nodes have it", []string{
			"The range of a node cannot be changed", "kubectl get node -o yaml n2 > n2.yaml", "kubectl drain --ignore-daemonsets n2", "kubectl delete node n2", "On node n2", "systemctl restart kubelet",
		}},
		{"T5 each node's own IPAM has it for its own pod", []string{
			"write a range that no other node has into its configuration in /etc/cni/net.d", "kubectl delete pod -n default webn2", "Restart the other pods of network pods on node n2",
		}},
		{"T5 the gateway of both nodes' pods", []string{
			"a different range", "kubectl drain --ignore-daemonsets n2", "write a range that no other node has", "ip link del dev cni0", "kubectl uncordon n2",
		}},
		{"T5 host-local of a macvlan network, on one LAN", []string{
			"gets a different range", "On node n2, write a range that no other node has into /etc/cni/net.d/10-lan.conflist", "kubectl delete pod -n default webn2",
			"Restart the other pods of network lan on node n2",
		}},
		{"T1 without IPAM records", []string{
			"how network kindnet assigns addresses", "if the configuration has the address itself", "Run only one of them",
			"if the IPAM allocates addresses", "with its own tools", "Leave pod default/old", "kubectl delete pod -n default new",
		}},
		{"only one node has the range", []string{"how network pods assigns addresses", "Run only one of them", "with its own tools"}},
		{"T1 records that are being read", []string{"check the IPAM records and repair them", "ipwitness audit", "kubectl delete pod -n default new"}},
		{"a client that keeps its address although the server has leased it to another one", []string{
			"Leave node n2 itself", "IPAM dnsmasq", "Have node n1 itself (eth0) release its lease and request another one: restart its DHCP client",
		}},
		{"a client that has given its lease back, and goes on using the address", []string{
			"gave it back (DHCPRELEASE)", "ipwitness audit", "Leave node n2 itself", "Have node n1 itself (eth0) release its lease and request another one",
		}},
		{"one reservation for two machines", []string{
			"In /etc/dnsmasq.d/dock of node n3, make a reservation for each client", "only if it finds no error", "Leave node n2 itself", "Have node n1 itself (eth0) release its lease and request another one",
		}},
		{"the server leased the address to another client while the first one had it", []string{"(DHCPRELEASE) or the server leased", "Leave node n2 itself"}},
		{"a client that has given its lease back, and has another one beside the old address", []string{
			"gave it back (DHCPRELEASE)", "Leave node n2 itself", "promote_secondaries=1", "ip addr del 10.244.1.5/24 dev eth0",
		}},
		{"T1 the pod without a record has the address in a network stack outside of its kernel", []string{
			"ipwitness audit", "Leave pod default/new", "kubectl delete pod -n default old",
		}},
		{"a lease that another client had before, and a machine that was never a client", []string{"Ask the person who set it there", "ip addr del 10.244.1.5/24 dev eth0"}},
		{"docker of two nodes has one range for a network on their LAN", []string{
			"node n1 keeps its range", "On node n2, look at the settings of network net0 of docker", "docker network inspect net0", "`--ip-range`",
		}},
		{"docker of two nodes started a container with one fixed address", []string{
			"Decide which of these containers keeps the address. They have one name", "docker stop container-we", "give it a different fixed address",
		}},
		{"a network of docker overlaps with one of CNI on a bridge", []string{
			"if network kindnet keeps its range", "created again with a different range (--subnet)", "a fixed address (`docker run --ip`", "docker stop", "docker start",
		}},
		{"machines that may have one address from DHCP, without a lifetime", []string{
			"if a DHCP client has set it on each of them", "Compare the client identifiers of node n1 itself and node n2 itself", "neither knows the leases of the other",
			"if no software moves the address", "ip addr del",
		}},
		{"machines that may have one address from DHCP, for a limited time", []string{
			"if no software moves the address", "Have node n2 itself (eth0) release its lease", "gets the same address again", "Compare the client identifiers",
		}},
		{"a pod with an address of the IPAM static, and its node", []string{"Check whether pod default/web has a fixed address", "kubectl delete pod -n default web"}},
		{"T14 two CNI networks", []string{"Give network net1 (10.244.1.0/24) a different range than network net0", "/etc/cni/net.d", "kubectl delete pod -n default db"}},
		{"T14 a CNI network and a bridge of docker", []string{"Leave pod default/web", "Give bridge docker0 (10.244.0.0/16) a different range than network kindnet", "Stop container c1"}},
		{"T6 a pod has the own address of its node, which DHCP gave", []string{"Leave node n1 itself (eth0)", "InternalIP", "Exclude 10.244.1.5 from the range", "kubectl delete pod -n default web"}},
		{"T6 a pod has the own address of its node", []string{"Leave node n1 itself (eth0)", "InternalIP", "Exclude 10.244.1.5 from the range", "kubectl delete pod -n default web"}},
		{"a pod on the LAN of its node gets the address that the node had first", []string{
			"Leave node n1 itself (eth0)", "the node had it first", "Exclude 192.0.2.50 from the range of IPAM host-local", "kubectl delete pod -n default web",
		}},
		{"a pod on the LAN of its node gets the address that DHCP gave the node", []string{
			"Leave node n1 itself (eth0)", "the node had it first", "Exclude 192.0.2.50 from the range of IPAM host-local", "kubectl delete pod -n default web",
		}},
		{"a pod on the LAN of its node had the address before somebody set it on the node", []string{
			"if pod default/web keeps the address", "ip addr del 192.0.2.50/24 dev eth0", "if node n1 itself must keep", "from the range", "kubectl delete pod -n default web",
		}},
		{"a container was restored on another node while it runs", []string{
			"Decide which of them goes on", "a copy was restored", "on n1 goes on", "Stop container 4f2b7c3d9e8a on n2", "--ignore-static-ip --ignore-static-mac", "on n2 goes on", "Stop container 4f2b7c3d9e8a on n1",
		}},
		{"a container with the name of a pod was restored on another node, and an IPAM has it", []string{
			"if pod db/db on n1 goes on", "Stop pod db/db on n2", "if pod db/db on n2 goes on", "Stop pod db/db on n1", "Check that IPAM still has the address",
		}},
		{"a pod that was started on another node again", []string{"Find out which sandbox the kubelet uses"}},
		{"both ends of a veth", []string{
			"Decide which of them keeps the address", "if node n1 itself (veth105) keeps the address", "ip -n app addr del fd00:7::2/64 dev eth0",
			"if network namespace app on n1 keeps the address", "ip addr del fd00:7::2/64 dev veth105", "Restart network namespace app",
		}},
		{"T6 on the node", []string{"if pod default/web keeps the address", "ip addr del 10.244.1.5/24 dev eth0", "if node n1 itself must keep", "from the range", "kubectl delete pod -n default web"}},
		{"T6 on the node, with records of IPAM", []string{"ip addr del", "Exclude 10.244.1.5 from the range of IPAM host-local (/var/lib/cni/networks/kindnet, network kindnet, node n1): set rangeStart and rangeEnd", "kubectl delete pod -n default web"}},
		{"T11 a tunnel", []string{"if pod default/web keeps the address", "ip addr del", "if the device must keep", "kubectl delete pod -n default web"}},
		{"T8 kube-vip assigns the own address of a node to another node", []string{
			"Leave node n2 itself", "InternalIP", "Have Service shop/web use a different address", "servicelb", "If node n1 still has", "addr del",
		}},
		{"bridges of libvirt that a port joins", []string{
			"meant to be one network", "n2/eth1", "if they are not", "ip link set dev eth1 nomaster", "if they are", "On node n2, give the libvirt network of virbr0", "On node n1, give",
		}},
		{"bridges of docker that are one link", []string{"`bridge link`", "if they are not", "Take the port", "if they are", "On node n2, give the network of docker0"}},
		{"nodes of which one answered with a group MAC", []string{
			"share the load", "03:00:60:0d:f0:0d", "CLUSTERIP", "NLB", "if they share it", "--shared 192.168.1.121/32", "if they do not", "pacemakerd", "addr del",
		}},
		{"kube-vip assigns the main address of a host to a node", []string{
			"Decide which of them clients expect", "if node n3 itself keeps the address", "Have Service shop/web use a different address",
			"if it stays a virtual address", "Do not be connected to node n3 by this address",
		}},
		{"a host leases the virtual address of keepalived", []string{
			"Decide which of them clients expect", "if node n3 itself keeps the address", "Replace the address in the configuration of keepalived",
			"if it stays a virtual address", "Take the address out of the range of dnsmasq", "Have node n3 itself (eth0) release its lease",
		}},
		{"T7 a router outside has the address of docker's bridge", []string{
			"Leave the device with MAC 02:00:00:00:00:99 as it is", "On node n1, give the network of docker0 a range", "Do not only delete the address",
		}},
		{"T7 a router outside has an address that IPAM has allocated to a pod", []string{
			"Ask the administrator of that LAN", "if pod default/a keeps the address", "Find the device with MAC 02:00:00:00:00:99",
			"if the device with MAC 02:00:00:00:00:99 keeps the address", "Exclude 192.168.1.1 from the range", "kubectl delete pod -n default a",
		}},
		{"T7 a machine outside has the node's address", []string{"Find the device with MAC 02:00:00:00:00:99", "changes nothing"}},
		{"T7 a machine outside has a pod's address, and a node has no agent", []string{"ip -br link | grep -i 02:00:00:00:00:99", "Find the device"}},
		{"T10 the pod is deleted, and IPAM has allocated its address again", []string{"crictl stopp container-ol && crictl rmp container-ol"}},
	}
	for _, tt := range tests {
		t.Run(tt.situation, func(t *testing.T) {
			text := strings.Join(remedyOf(situated(t, tt.situation)), "\n")
			rest := text
			for _, part := range tt.want {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Fatalf("got advice\n%s\nwant %q in it, after what comes before", text, part)
				}
				rest = after
			}
		})
	}
}

// Only a bridge that a plugin makes again is deleted: the device of another plugin may be the card of the node.
func TestOnlyBridgesOfPluginsAreDeleted(t *testing.T) {
	deleted := 0
	for _, s := range verdicttest.Situations {
		w, c := s.Judge()
		for _, a := range flat(explain.Conflict(&w.Policy, c).Remedy) {
			_, device, found := strings.Cut(a, "ip link del dev ")
			if !found {
				continue
			}
			deleted++
			if !slices.ContainsFunc(w.Pools, func(p *verdict.Pool) bool { return p.Plugin == "bridge" && p.Device == device }) ||
				slices.ContainsFunc(w.Subnets, func(s verdict.Subnet) bool { return s.Interface.Name == device && s.LAN }) {
				t.Errorf("%s: got %q, want no device to be deleted that no plugin made", s.Name, a)
			}
		}
	}
	if deleted == 0 {
		t.Error("got no bridge to be deleted, want one")
	}
}

func TestTunnelAddressThatIPAMAllocatedToAPod(t *testing.T) {
	w := verdicttest.New("10.244.1.5")
	w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
	w.Device("n1", "tunl0", "ipip")
	w.Calico(w.Pool(calico.IPAM.Name, "", ""), "web", "n1")
	text := strings.Join(remedyOf(w, only(t, w)), "\n")
	if !strings.Contains(text, "k8s-app=calico-node") || strings.Contains(text, "delete pod -n default web") {
		t.Errorf("got advice %q, want the tunnel to get another address", text)
	}
}

// The name of a pod or an interface must not change the meaning of a command, for example to delete
// other pods.
func TestCommandsQuoteNames(t *testing.T) {
	const evil = `x'; touch /tmp/owned; $(reboot) "`
	w := verdicttest.New("10.244.1.5")
	mad := verdict.Workload{Kind: verdict.Pod, Namespace: evil, Name: "--all", UID: "uid-1", ContainerID: "-f; reboot", Source: "cni-result"}
	w.Within("n1", "", "", mad)
	named := w.Within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: evil, Source: "netns"})
	named.Interface.Name = evil
	w.Says("uid-1", verdict.PodObject{Namespace: evil, Name: "--all", Phase: "Running"})
	alive := remedyOf(w, only(t, w))
	w.Says("uid-1", verdict.PodObject{Absent: true})
	orphaned := remedyOf(w, only(t, w.After(time.Minute)))
	n := 0
	for _, step := range slices.Concat(alive, orphaned) {
		for _, command := range []string{"kubectl delete", "ip -n", "crictl stopp"} {
			if _, rest, ok := strings.Cut(step, command); ok {
				n++
				rest, _, _ = strings.Cut(rest, "; a running kubelet does so")
				words := shellWords(t, rest)
				for _, w := range words {
					if strings.Contains(w, "touch") && w != evil || w == "reboot" || w == "--all" && words[len(words)-2] != "--" {
						t.Errorf("got words %q of %s%s", words, command, rest)
					}
				}
			}
		}
	}
	if n < 3 {
		t.Errorf("got %d commands in %q and %q, want one to delete the pod, one of the namespace and one of the sandbox", n, alive, orphaned)
	}
}

// shellWords returns the words into which a shell splits a command line.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	line, _, _ = strings.Cut(line, " && ")
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+line).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// paths returns all paths through a remedy. Each takes one alternative of every choice.
func paths(actions []advice.Action) [][]advice.Action {
	all := [][]advice.Action{nil}
	for _, a := range actions {
		ways := [][]advice.Action{{a}}
		if len(a.Choice) > 0 {
			ways = nil
			for _, alternative := range a.Choice {
				ways = append(ways, paths(alternative.Actions)...)
			}
		}
		var longer [][]advice.Action
		for _, path := range all {
			for _, way := range ways {
				longer = append(longer, append(slices.Clone(path), way...))
			}
		}
		all = longer
	}
	return all
}

// takes matches the commands that remove an address from an owner. Its group is the owner's name.
var takes = regexp.MustCompile(`^kubectl delete pod -n \S+ (?:-- )?(\S+)$|^ip -n (\S+) addr del|^(ip) addr del|^crictl stopp (\S+) `)

// With every alternative, one owner keeps the address. It is the rightful owner if that is known
// and no decision of a person is needed.
func TestEachRemedyLeavesOneOwner(t *testing.T) {
	for _, s := range verdicttest.Situations {
		t.Run(s.Name, func(t *testing.T) {
			w, c := s.Judge()
			remedy, keep := explain.Conflict(&w.Policy, c).Remedy, ""
			if c.Keeper != "" {
				keep = verdicttest.Name(c, c.Keeper)
			}
			for i, path := range paths(remedy) {
				var taken []string
				for _, a := range path {
					if m := takes.FindStringSubmatch(a.Command); m != nil {
						if name := strings.Join(m[1:], ""); !slices.Contains(taken, name) {
							taken = append(taken, name)
						}
					}
				}
				if len(taken) >= len(c.Owners) {
					t.Errorf("path %d leaves no owner, %q:\n%s", i, taken, strings.Join(flat(path), "\n"))
				}
				asked := slices.ContainsFunc(remedy, func(a advice.Action) bool { return len(a.Choice) > 0 })
				if !asked && keep != "" && slices.Contains(taken, keep) {
					t.Errorf("path %d takes it from the rightful owner %s:\n%s", i, keep, strings.Join(flat(path), "\n"))
				}
			}
			if len(remedy) == 0 || remedy[len(remedy)-1].Command != fmt.Sprint("ipwitness explain ", c.Address) {
				t.Errorf("got remedy %q, want it to end with the command that shows that the conflict is resolved", flat(remedy))
			}
		})
	}
}

// asks matches the steps of which a person chooses an alternative. In others, the result of a command does.
var asks = regexp.MustCompile("^(Decide|Find out|Check whether) ")

// Each choice about a conflict has the alternative to silence it: by its id, because its address may have others.
func TestEachChoiceCanSilenceTheConflict(t *testing.T) {
	choices := 0
	for _, s := range slices.Concat(verdicttest.Situations, scenes) {
		w := verdicttest.New(cmp.Or(s.Addr, verdicttest.DefaultAddr))
		s.Build(w)
		out := w.Judge()
		for i := range out.Conflicts {
			c := &out.Conflicts[i]
			remedy := explain.Conflict(&w.Policy, c).Remedy
			text := strings.Join(flat(remedy), "\n")
			if strings.Count(text, "ipwitness acknowledge ") != strings.Count(text, "ipwitness acknowledge "+c.ID+" --reason") {
				t.Errorf("%s: got\n%s\nwant conflicts to be acknowledged by their id", s.Name, text)
			}
			for _, a := range remedy {
				if len(a.Choice) == 0 || !asks.MatchString(a.Text) {
					continue
				}
				choices++
				if !strings.Contains(strings.Join(flat([]advice.Action{a}), "\n"), "if the conflict is known") {
					t.Errorf("%s: got no alternative to silence the conflict in\n%s", s.Name, strings.Join(flat([]advice.Action{a}), "\n"))
				}
			}
		}
	}
	if choices < 20 {
		t.Errorf("got %d choices, want more", choices)
	}
}

// Of two controllers that assign one address, each sets it again. Both are named, and neither node is the right one.
func TestOneOfTwoControllersServesTheAddress(t *testing.T) {
	w, c := situated(t, "a virtual address that two controllers assign to different nodes")
	steps := strings.Join(remedyOf(w, c), "\n")
	for _, want := range []string{
		"Decide which of MetalLB and kube-vip serves the address", "if MetalLB serves it, on node n1 itself", "Have kube-vip no longer serve Service shop/web",
		"if kube-vip serves it, on node n2 itself", "Have MetalLB no longer serve Service shop/web", "if the conflict is known",
	} {
		if !strings.Contains(steps, want) {
			t.Errorf("got\n%s\nwant %q", steps, want)
		}
	}
	// The range of MetalLB has the address of the control plane, which does not give way to a Service.
	w.Allocations[1].Purpose = "control plane"
	steps = strings.Join(remedyOf(w, c), "\n")
	if want := "Take 192.168.1.50 out of the range of MetalLB, and give Service shop/web another address"; !strings.Contains(steps, want) {
		t.Errorf("got\n%s\nwant %q", steps, want)
	}
	for _, not := range []string{"if MetalLB serves it", "loadBalancerClass", "Have kube-vip"} {
		if strings.Contains(steps, not) {
			t.Errorf("got\n%s\nwant no %q", steps, not)
		}
	}
}

// Age does not tell real servers behind a load balancer from duplicates. Owners to which the address was given, or whose kernel
// found a rival, are no real servers.
func TestTheAddressOfTheOldestMayBeShared(t *testing.T) {
	for name, want := range map[string]bool{
		"real servers, of which only the director answers":             true,
		"T1 all records are gone":                                      false,
		"T1 without IPAM records":                                      false,
		"an address with a lifetime that a kernel refused and deleted": false,
		"a virtual address that its controller assigns to one node":    false,
	} {
		w, c := situated(t, name)
		steps := strings.Join(remedyOf(w, c), "\n")
		if got := strings.Contains(steps, "--shared "+c.Address.String()+"/32=REASON"); got != want {
			t.Errorf("%s: got the alternative to declare it %t, want %t, in\n%s", name, got, want, steps)
		}
		if want && (c.Right != verdict.RightOlderAssignment || strings.Index(steps, "if only one of them is") > strings.Index(steps, "addr del")) {
			t.Errorf("%s: got steps that remove the address before the choice\n%s", name, steps)
		}
	}
}

func TestRemedyFitsTheWorkload(t *testing.T) {
	for _, test := range []struct {
		who  verdict.Workload
		want string
	}{
		{verdicttest.Pod("b"), "kubectl delete pod -n default b"},
		{verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns"}, "ip -n blue addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Container, Name: "blue", Source: "netns"}, "ip -n blue addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Unknown}, "lsns -t net"},
		{verdict.Workload{Kind: verdict.Container, ContainerID: "0123456789abcdef"}, "Stop container 0123456789ab on node n1"},
		{verdict.Workload{Kind: verdict.Container, Name: "web", Source: "cgroup"}, "Stop container web on node n1"},
		{verdict.Workload{Kind: verdict.Pod, UID: "u-1", ContainerID: "0123456789abcdef", Source: "cgroup"}, "pod with uid u-1 on node n1. kubectl get pods -A"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12)", PID: 12, Source: "process"}, "process ns (x) (12) on node n1"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12)", PID: 12, Source: "process"}, "nsenter --net=/proc/12/ns/net ip addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12, ended)", PID: 12, Ended: true, Source: "process"}, "in the network namespace of process ns (x) (12, ended) on node n1: find the mount"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "(7, ended) (12)", PID: 12, Source: "process"}, "nsenter --net=/proc/12/ns/net ip addr del 10.244.0.5/24 dev eth0"},
		{verdict.Workload{Kind: verdict.Unknown, Process: "ns (x) (12, ended)", Source: "process"}, "lsns -t net"},
		{verdict.Workload{Kind: verdict.Container, Name: "blue", ContainerID: "0123456789abcdef", Process: "sleep (12)", Source: "netns"}, "ip -n blue addr del"},
	} {
		w := verdicttest.New("10.244.0.5")
		one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
		two, _ := w.Veth(w.Namespace("n1", 3, "103", test.who), "bbbbbb", w.Link("n1", "v2", verdict.PointToPoint, false))
		w.Assigned(one)
		later := w.Assigned(two)
		later.First += 5e9
		later.AssignedAt += 5e9
		remedy := strings.Join(remedyOf(w, only(t, w)), "\n")
		if !strings.Contains(remedy, test.want) || strings.Contains(remedy, "delete pod -n default a") {
			t.Errorf("got remedy\n%s\nwant %q, and nothing to be done to a", remedy, test.want)
		}
	}
}

// The kernel removes the first address of a subnet together with the others, in a namespace as on a node.
func TestOtherAddressesOfTheSubnetStay(t *testing.T) {
	for _, who := range []struct {
		verdict.Workload
		enter string
	}{
		{verdict.Workload{Kind: verdict.Host}, ""},
		{verdict.Workload{Kind: verdict.Unknown, Name: "blue", Source: "netns"}, "ip netns exec blue "},
		{verdict.Workload{Kind: verdict.Unknown, Process: "sleep (12)", PID: 12, Source: "process"}, "nsenter --net=/proc/12/ns/net "},
	} {
		for name, test := range map[string]struct {
			change func(*verdict.Claim)
			first  bool
		}{
			"the first address":         {func(*verdict.Claim) {}, true},
			"a further address":         {func(c *verdict.Claim) { c.Flags |= verdict.FlagSecondary }, false},
			"an address of its own /32": {func(c *verdict.Claim) { c.PrefixLength = 32 }, false},
		} {
			w := verdicttest.New("10.244.0.5")
			one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
			two, _ := w.Veth(w.Namespace("n1", 3, "103", who.Workload), "bbbbbb", w.Link("n1", "v2", verdict.PointToPoint, false))
			w.Assigned(one)
			later := w.Assigned(two)
			later.First += 5e9
			later.AssignedAt += 5e9
			test.change(later)
			remedy := strings.Join(remedyOf(w, only(t, w)), "\n")
			if strings.Contains(remedy, " "+who.enter+"sysctl -w net/ipv4/conf/eth0/promote_secondaries=1") != test.first || strings.Contains(remedy, "sysctl") != test.first {
				t.Errorf("%s of %q: got remedy\n%s\nwant a command that keeps the others there: %t", name, who.enter, remedy, test.first)
			}
		}
	}
}

// The kubelet runs a static pod from a file. Deleting it in the API only deletes its mirror pod.
func TestAnAddressWithAPeerIsDeletedWithoutALength(t *testing.T) {
	w, c := situated(t, "T6 on the node")
	for _, claim := range w.Claims {
		claim.Peer = true
	}
	text := strings.Join(remedyOf(w, c), "\n")
	if !strings.Contains(text, "ip addr del 10.244.1.5 dev eth0") || strings.Contains(text, "10.244.1.5/") {
		t.Errorf("got advice %q, want the address deleted without a prefix length", text)
	}
}

func TestAStaticPodIsNotDeleted(t *testing.T) {
	w := verdicttest.New("10.244.0.5")
	one, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "bbbbbb", w.Link("n1", "v2", verdict.PointToPoint, false))
	w.Assigned(one)
	later := w.Assigned(two)
	later.First += 5e9
	later.AssignedAt += 5e9
	w.Pods = map[string]*verdict.PodObject{"uid-b": {Namespace: "default", Name: "b", Node: "n1", Phase: "Running", ControllerKind: "Node", Controller: "n1"}}
	if text := strings.Join(remedyOf(w, only(t, w)), "\n"); !strings.Contains(text, "On node n1, move its manifest out") || strings.Contains(text, "kubectl delete pod") {
		t.Errorf("got advice\n%s", text)
	}
}

// No name in any field makes a command of a remedy run anything else.
func TestNoNameInAConflictRunsACommand(t *testing.T) {
	cage := canary.New(t)
	for _, payload := range []string{"$(:>c)", "';:>c;'", "x\n:>c\n", "--evil=1", "x\x1b[2J"} {
		for _, s := range verdicttest.Situations {
			for n, more := 0, true; more; n++ {
				w := verdicttest.New(cmp.Or(s.Addr, verdicttest.DefaultAddr))
				s.Build(w)
				more = poison(w, n, payload)
				out := w.Judge()
				for i := range out.Conflicts {
					check(cage, explain.Conflict(&w.Policy, &out.Conflicts[i]).Remedy)
				}
			}
		}
		if script := cage.Sings(); script != "" {
			t.Errorf("got a command that executes %q:\n%s", payload, script)
		}
	}
}
