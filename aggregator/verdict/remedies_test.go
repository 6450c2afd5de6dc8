package verdict_test

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestRemedies(t *testing.T) {
	tests := []struct {
		situation string
		want      []string // in this order
	}{
		{"T1 the record of the first pod is gone", []string{
			"Restart nothing yet", "ipwitness audit --fix-plan > plan.sh", "Leave pod default/new",
			"kubectl delete pod -n default old",
		}},
		{"T1 all records are gone", []string{"Restart nothing yet", "Leave pod default/old", "had the address first", "Reserve 10.244.1.5 for pod default/old", "kubectl delete pod -n default new"}},
		{"T3 nodename is another node's", []string{
			"On node n1", "printf %s n1 > /var/lib/calico/nodename",
			"kubectl delete pods -A -l k8s-app=calico-node --field-selector spec.nodeName=n1",
			"kubectl delete pod -n default web", "ipwitness audit",
		}},
		{"T3 booked for another node", []string{"cat /var/lib/calico/nodename", "kubectl delete pod -n default web"}},
		{"T5 the ranges of pods of both nodes have it", []string{
			"kubectl drain --ignore-daemonsets n2", "Node.spec.podCIDR cannot be changed", "kubectl delete node n2", "On node n2", "systemctl restart kubelet",
		}},
		{"T5 each node's own IPAM has it for its own pod", []string{
			"kubectl drain --ignore-daemonsets n2", "write a range into its configuration in /etc/cni/net.d that no other node has", "kubectl uncordon n2",
		}},
		{"T14 two CNI networks", []string{"Give network net1 (10.244.1.0/24) another range than network net0", "/etc/cni/net.d", "kubectl delete pod -n default db"}},
		{"T14 a CNI network and a bridge of docker", []string{"Leave pod default/web", "Give bridge docker0 (10.244.0.0/16) another range than network kindnet", "Stop container c1"}},
		{"T6 on the node", []string{"if pod default/web keeps the address", "ip addr del 10.244.1.5/24 dev eth0", "if node n1 itself cannot do without", "out of the range", "kubectl delete pod -n default web"}},
		{"T6 on the node, with records of IPAM", []string{"ip addr del", "have host-local leave 10.244.1.5 out", "kubectl delete pod -n default web"}},
		{"T11 a tunnel", []string{"if pod default/web keeps the address", "ip addr del", "if the device cannot do without", "kubectl delete pod -n default web"}},
		{"T7 a machine outside has the node's address", []string{"Find the device with MAC 02:00:00:00:00:99", "changes nothing"}},
		{"T7 a machine outside has a pod's address, and a node has no agent", []string{"ip -br link | grep -i 02:00:00:00:00:99", "Find the device"}},
		{"T10 the pod is no more, and IPAM has given its address away", []string{"crictl stopp container-ol && crictl rmp container-ol"}},
	}
	for _, tt := range tests {
		t.Run(tt.situation, func(t *testing.T) {
			advice := strings.Join(flat(situated(t, tt.situation).Remedy), "\n")
			rest := advice
			for _, part := range tt.want {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Fatalf("got advice\n%s\nwant %q in it, after what comes before", advice, part)
				}
				rest = after
			}
		})
	}
}

// situated is the conflict of a situation.
func situated(t *testing.T, name string) verdict.Conflict {
	t.Helper()
	for _, s := range situations {
		if s.name == name {
			return s.judge(t)
		}
	}
	t.Fatalf("no situation %q", name)
	return verdict.Conflict{}
}

func TestATunnelsAddressThatIPAMHasForAPod(t *testing.T) {
	w := newWorld("10.244.1.5")
	w.within("n1", "", "k8s-pod-network", who("web"))
	w.device("n1", "tunl0", "ipip")
	w.calico(w.pool(verdict.Calico, "", ""), "web", "n1")
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if advice := strings.Join(flat(c.Remedy), "\n"); c.Cause != tunnel || !strings.Contains(advice, "k8s-app=calico-node") || strings.Contains(advice, "delete pod -n default web") {
		t.Errorf("got cause %s, advice %q, want the tunnel to get another address", c.Cause, c.Remedy)
	}
}

// Whoever names a pod or an interface must not have a command run, or another one's
// pods deleted.
func TestCommandsQuoteNames(t *testing.T) {
	const evil = `x'; touch /tmp/owned; $(reboot) "`
	w := newWorld("10.244.1.5")
	mad := verdict.Workload{Kind: verdict.Pod, Namespace: evil, Name: "--all", UID: "uid-1", ContainerID: "-f; reboot", Source: "cni-result"}
	w.within("n1", "", "", mad)
	named := w.within("n1", "", "", verdict.Workload{Kind: verdict.Unknown, Name: evil, Source: "netns"})
	named.Interface.Name = evil
	w.says("uid-1", verdict.PodObject{Namespace: evil, Name: "--all", Phase: "Running"})
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.says("uid-1", verdict.PodObject{Absent: true})
	orphaned := w.after(time.Minute).judge().Conflicts[0]
	n := 0
	for _, step := range append(flat(c.Remedy), flat(orphaned.Remedy)...) {
		for _, command := range []string{"kubectl delete", "ip -n", "crictl stopp"} {
			if _, rest, ok := strings.Cut(step, command); ok {
				n++
				rest, _, _ = strings.Cut(rest, "; kubelet does so")
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
		t.Errorf("got %d commands in %q and %q, want one to delete the pod, one of the namespace and one of the sandbox", n, c.Remedy, orphaned.Remedy)
	}
}

// shellWords are the words that a shell makes of a command line.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	line, _, _ = strings.Cut(line, " && ")
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+line).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// Causes are asked again whenever something is known that was not.
func TestCauseFollowsWhatIsKnown(t *testing.T) {
	w := newWorld("10.244.1.5")
	a, b := twins(w)
	c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Cause != unknown {
		t.Errorf("got cause %s without records, want none", c.Cause)
	}
	p := w.pool(verdict.HostLocal, "n1", "kindnet")
	w.books(p, "new")
	w.says("uid-old", verdict.PodObject{Namespace: "default", Name: "old", Phase: "Running", Node: "n1", IPs: []netip.Addr{w.addr}})
	w.after(time.Second).read(a, b)
	c = w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Cause != lost || len(c.Allocations) != 1 {
		t.Errorf("got cause %s, allocations %v, want the record that is lost", c.Cause, c.Allocations)
	}
	steps := map[string]string{}
	for _, d := range c.Diagnosis {
		steps[d.Step] = d.Answer
	}
	if steps[verdict.StepPods] != "Pod default/old: Running, on node n1, with 10.244.1.5." {
		t.Errorf("got pods %q", steps[verdict.StepPods])
	}
	if !strings.Contains(steps[verdict.StepIPAM], "has it for pod default/new alone") {
		t.Errorf("got ipam %q", steps[verdict.StepIPAM])
	}
	w.drop(a)
	if c = w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.Cause != lost || len(c.Because) == 0 {
		t.Errorf("got cause %s, %q of what is over, want what it was", c.Cause, c.Because)
	}
}

func TestRangesOfPodsInTheDiagnosis(t *testing.T) {
	for of, want := range map[string]string{"": "of n1 and n2 overlap", "n1": "in that of node n1, and not in that of n2", "n3": "of another node"} {
		w := newWorld("10.244.1.5")
		w.podCIDR, w.podCIDROf = netip.MustParsePrefix("10.244.1.0/24"), of
		w.within("n1", "", "pods", who("a"))
		w.within("n2", "", "pods", who("b"))
		c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
		if got := c.Diagnosis[len(c.Diagnosis)-1]; got.Step != verdict.StepPodCIDRs || !strings.Contains(got.Answer, want) {
			t.Errorf("got %+v, want the ranges: %q", got, want)
		}
	}
}

// Pools and allocations come in any order: what is said must not change with it.
func TestCauseIsSaidInOneOrder(t *testing.T) {
	said := func(turned bool) verdict.Conflict {
		w := newWorld("10.244.1.5")
		for _, n := range []string{"n1", "n2"} {
			w.within(n, "", "pods", who("web"+n))
			w.books(w.pool(verdict.HostLocal, n, "pods"), "web"+n)
		}
		if turned {
			slices.Reverse(w.pools)
			slices.Reverse(w.allocations)
		}
		return w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
	}
	one, other := said(false), said(true)
	if !slices.Equal(one.Because, other.Because) || !slices.Equal(one.Excluded, other.Excluded) || !slices.Equal(one.Diagnosis, other.Diagnosis) ||
		!slices.Equal(flat(one.Remedy), flat(other.Remedy)) || one.Allocations[0].ContainerID != other.Allocations[0].ContainerID {
		t.Errorf("got\n%q %q %q\nand\n%q %q %q", one.Because, one.Excluded, one.Diagnosis, other.Because, other.Excluded, other.Diagnosis)
	}
}
