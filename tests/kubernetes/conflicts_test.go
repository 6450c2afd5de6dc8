package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	confirmed = ipwitnessv1.Conflict_CONFIRMED
	resolved  = ipwitnessv1.Conflict_RESOLVED
)

func TestPodsOfTwoNodesWithOneAddress(t *testing.T) {
	l := newLab(t, "two-nodes")
	// With the value of the chart, the aggregator has this permission, too.
	l.kube("create", "clusterrole", "conditions", "--verb=patch", "--resource=nodes/status")
	l.kube("create", "clusterrolebinding", "conditions", "--clusterrole=conditions", "--serviceaccount="+Outside+":"+Outside+"-aggregator")
	t.Cleanup(func() {
		l.kube("delete", "clusterrolebinding", "conditions")
		l.kube("delete", "clusterrole", "conditions")
	})
	l.witness("--node-condition")
	l.deploy("web", 2)
	l.deploy("db", 2)

	// Each node allocates its addresses in the same order.
	at := map[string][]pod{}
	for _, p := range l.pods("app") {
		at[p.Address] = append(at[p.Address], p)
	}
	if len(at) != 2 {
		t.Fatalf("addresses of four pods: got %v, want two", at)
	}
	for addr, pods := range at {
		c := l.awaitOwners(addr, pods...)
		if got := fmt.Sprint(c.GetScope().GetKind(), " ", c.GetScope().GetName()); got != "NETWORK pods" {
			t.Errorf("scope of %s: got %s, want NETWORK pods", addr, got)
		}
	}

	// One of the two pods ends. The pod that replaces it has a different address, because
	// host-local continues after the last allocated one.
	pods := at[l.pods("app=web")[0].Address]
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(pods[0].Address, resolved)
	l.awaitHolders(pods[0].Address, pods[1])

	// The nodes have the condition until the other conflict is over, too.
	condition := func(what string, want string) {
		t.Helper()
		l.until(what, func() error {
			got := l.kube("get", "nodes", "--sort-by=.metadata.name", "--output", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="AddressConflict")].status} {.status.conditions[?(@.type=="Ready")].status},{end}`)
			if got != want {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
	}
	condition("the condition of both nodes", "node1 True True,node2 True True,")
	l.in("scale", "deployment", "db", "--replicas=0")
	condition("the condition to be cleared", "node1 False True,node2 False True,")
	l.shell(`kubectl get nodes -o name | xargs -I{} kubectl patch {} --subresource=status -p '{"status":{"conditions":[{"type":"AddressConflict","$patch":"delete"}]}}'`)
	condition("the condition to be gone", "node1  True,node2  True,")
}

// awaitOwners waits until the conflict of an address is confirmed and its owners are these pods.
// Their names may be known later than the conflict.
func (l *lab) awaitOwners(addr string, pods ...pod) *ipwitnessv1.Conflict {
	l.t.Helper()
	var want []string
	for _, p := range pods {
		want = append(want, l.owner(p))
	}
	slices.Sort(want)
	return l.awaitConflictSuch(addr, confirmed, func(c *ipwitnessv1.Conflict) error {
		var got []string
		for _, o := range c.GetOwners() {
			got = append(got, nameOf(o))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("owners: got %v, want %v", got, want)
		}
		return nil
	})
}

// awaitControllers waits until the conflict of an address is confirmed and all its owners are known
// to be running pods of a Deployment.
func (l *lab) awaitControllers(addr, deployment string) {
	l.t.Helper()
	l.awaitConflictSuch(addr, confirmed, func(c *ipwitnessv1.Conflict) error {
		for _, o := range c.GetOwners() {
			w := o.GetWorkload()
			if by := w.GetController(); by.GetKind() != "Deployment" || by.GetName() != deployment || w.GetPhase() != "Running" {
				return fmt.Errorf("%s: got %v, %s, want Deployment %s, Running", nameOf(o), by, w.GetPhase(), deployment)
			}
		}
		return nil
	})
}

// Reasons of the Events.
const (
	conflictEvent = "AddressConflict"
	resolvedEvent = "AddressConflictResolved"
)

func TestEventsOfAConflict(t *testing.T) {
	l := newLab(t, "events")
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	l.deploy("web", 2)
	pods := l.pods("app=web")
	addr := pods[0].Address
	l.awaitConflict(addr, confirmed)

	for _, p := range pods {
		l.described(conflictEvent, "pod", p.Name, addr)
		l.described(conflictEvent, "node", p.Node, addr)
	}
	// The Events name the controller of the pods.
	l.awaitControllers(addr, "web")
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(addr, resolved)
	l.described(resolvedEvent, "pod", pods[1].Name, addr)
	for _, n := range l.Nodes {
		l.described(resolvedEvent, "node", n.Name, addr)
	}
}

// described waits until `kubectl describe` shows an Event that contains a text.
func (l *lab) described(reason, kind, name, tells string) {
	l.t.Helper()
	l.until(fmt.Sprintf("an event %s of %s %s", reason, kind, name), func() error {
		out := l.in("describe", kind, name)
		_, events, _ := strings.Cut(out, "\nEvents:")
		for line := range strings.Lines(events) {
			if w := strings.Fields(line); len(w) > 1 && w[1] == reason && strings.Contains(line, tells) {
				return nil
			}
		}
		return fmt.Errorf("got %s", events)
	})
}

func TestT10ForceDeletedPodWhoseNamespaceRemains(t *testing.T) {
	l := newLab(t, "force-deleted")
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	node1 := l.node("node1")
	old := l.run("old", "node1", "")
	l.awaitHolders(old.Address, old)
	node1.KillKubelet()
	restart := func() {
		if err := node1.RestartKubelet(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if node1.kubelet.running() != nil {
			restart()
		}
	})
	l.in("delete", "pod", "old", "--force", "--grace-period=0")
	for _, n := range l.Nodes {
		if err := n.Forget(); err != nil {
			t.Fatal(err)
		}
	}
	young := l.run("young", "node2", "")
	if young.Address != old.Address {
		t.Fatalf("addresses: got %s and %s, want the same", old.Address, young.Address)
	}
	// A pod that is missing from the API counts as deleted only after some time, because the API
	// may be behind the node.
	l.awaitCause(old.Address, "orphaned-sandbox")
	for _, o := range l.awaitOwners(old.Address, old, young).GetOwners() {
		if got, want := o.GetWorkload().GetOrphaned(), o.GetWorkload().GetUid() == old.UID; got != want {
			t.Errorf("%s is orphaned: got %t, want %t", nameOf(o), got, want)
		}
	}
	l.announce(old, young)
	l.row("T10", old.Address, "assigned-twice")
	// Kubelet returns and cleans up.
	restart()
	l.awaitConflict(old.Address, resolved)
	l.awaitHolders(old.Address, young)
}
