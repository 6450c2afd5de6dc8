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
	l.witness()
	l.deploy("web", 2)
	l.deploy("db", 2)

	// Each node gives out its addresses in the same order.
	at := map[string][]pod{}
	for _, p := range l.pods("app") {
		at[p.Address] = append(at[p.Address], p)
	}
	if len(at) != 2 {
		t.Fatalf("addresses of four pods: got %v, want two", at)
	}
	for addr, pods := range at {
		c := l.awaitConflict(addr, confirmed)
		if got := fmt.Sprint(c.GetScope().GetKind(), " ", c.GetScope().GetName()); got != "NETWORK pods" {
			t.Errorf("scope of %s: got %s, want NETWORK pods", addr, got)
		}
		l.wantOwners(c, pods...)
	}

	// One of the two ends. What its Deployment makes instead has another address:
	// host-local goes on where it stopped.
	pods := at[l.pods("app=web")[0].Address]
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(pods[0].Address, resolved)
	l.awaitHolders(pods[0].Address, pods[1])
}

// wantOwners fails where a conflict has other owners.
func (l *lab) wantOwners(c *ipwitnessv1.Conflict, pods ...pod) {
	l.t.Helper()
	var got, want []string
	for _, o := range c.GetOwners() {
		got = append(got, nameOf(o))
	}
	for _, p := range pods {
		want = append(want, l.owner(p))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.t.Errorf("owners of %s: got %v, want %v", c.GetAddress(), got, want)
	}
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
	// What made the pods is told with them.
	for _, o := range l.awaitConflict(addr, confirmed).GetOwners() {
		if got := o.GetWorkload().GetController(); got.GetKind() != "Deployment" || got.GetName() != "web" {
			t.Errorf("controller of %s: got %v, want Deployment web", nameOf(o), got)
		}
	}
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(addr, resolved)
	l.described(resolvedEvent, "pod", pods[1].Name, addr)
	for _, n := range l.Nodes {
		l.described(resolvedEvent, "node", n.Name, addr)
	}
}

// described waits until `kubectl describe` shows an Event that tells something.
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

func TestT10ForceDeletedPodWhoseNamespaceLivesOn(t *testing.T) {
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
	// What the API does not have counts after a while: it may be behind the node.
	var c *ipwitnessv1.Conflict
	l.until("the cause", func() error {
		if c = l.awaitConflict(old.Address, confirmed); c.GetCause() != "orphaned-sandbox" {
			return fmt.Errorf("got %s, want orphaned-sandbox", c.GetCause())
		}
		return nil
	})
	l.wantOwners(c, old, young)
	for _, o := range c.GetOwners() {
		if got, want := o.GetWorkload().GetOrphaned(), o.GetWorkload().GetUid() == old.UID; got != want {
			t.Errorf("%s is orphaned: got %t, want %t", nameOf(o), got, want)
		}
	}
	l.announce(old, young)
	l.row("T10", old.Address, "assigned-twice")
	// Kubelet comes back, and tidies up.
	restart()
	l.awaitConflict(old.Address, resolved)
	l.awaitHolders(old.Address, young)
}
