package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// replica is a replica of the aggregator.
type replica struct {
	pod
	// lab queries this replica.
	*lab
}

// replicas returns the replicas, which are queried by the names of their pods.
func (i *installed) replicas() (all []replica) {
	i.t.Helper()
	ctx, cancel := i.context()
	defer cancel()
	token, err := i.token(ctx, "ipwitness-reader")
	if err != nil {
		i.t.Fatal(err)
	}
	ca, err := i.authority()
	if err != nil {
		i.t.Fatal(err)
	}
	for _, p := range i.ours("aggregator") {
		l := *i.lab
		l.aggregator, err = query(p.Name+".ipwitness-replicas."+home+".svc", ca, token, func(ctx context.Context) (net.Conn, error) {
			return i.services.DialPod(ctx, home, p.Name, 9641)
		})
		if err != nil {
			i.t.Fatal(err)
		}
		all = append(all, replica{p, &l})
	}
	return all
}

// election returns what a replica says about the leader.
func (r replica) election() (*ipwitnessv1.Election, error) {
	var m ipwitnessv1.ListNodesResponse
	err := r.aggregator.Get(r.t.Context(), "/v1/nodes", &m)
	return m.GetElection(), err
}

// leader waits until all replicas know the same leader. It returns the leader, and one of the others.
func (i *installed) leader(all []replica) (leader, other replica) {
	i.t.Helper()
	i.until("a leader that all replicas know", func() (fault error) {
		leaders := 0
		for _, r := range all {
			e, err := r.election()
			fault = errors.Join(fault, err)
			if e.GetLeads() {
				leaders++
			}
			if e.GetReplica() == e.GetLeader() {
				leader = r
			} else {
				other = r
			}
			if e.GetReplica() != r.Name || e.GetLeader() == "" {
				fault = errors.Join(fault, fmt.Errorf("%s says %v", r.Name, e))
			}
		}
		if leaders != 1 {
			fault = errors.Join(fault, fmt.Errorf("%d replicas lead", leaders))
		}
		return fault
	})
	return leader, other
}

// acknowledge acknowledges a conflict through an aggregator, as soon as it may.
func (i *installed) acknowledge(through *netlab.Program, id string) {
	i.t.Helper()
	i.until("the conflict to be acknowledged", func() error {
		code, err := through.Post(i.t.Context(), "/v1/conflicts/"+id+":acknowledge",
			fmt.Sprintf(`{"reason": "NET-42", "expiresAt": %q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("got %d", code)
		}
		return err
	})
}

// operates makes the reader an operator.
func (i *installed) operates() {
	i.t.Helper()
	i.kube("create", "clusterrolebinding", "operator", "--clusterrole", "ipwitness-operator", "--serviceaccount", home+":ipwitness-reader")
	i.t.Cleanup(func() { i.kube("delete", "clusterrolebinding", "operator") })
}

// telling is an Event that a conflict requires: about one of its pods.
type telling struct{ conflict, pod string } // id, UID

// told returns how often the pods of the test's namespace were told of each of their conflicts.
func (l *lab) told() map[telling]int {
	l.t.Helper()
	var list corev1.EventList
	if err := json.Unmarshal([]byte(l.in("get", "events", "--field-selector", "involvedObject.kind=Pod,reason="+conflictEvent, "--output", "json")), &list); err != nil {
		l.t.Fatal(err)
	}
	told := map[telling]int{}
	for _, e := range list.Items {
		told[telling{e.Annotations["ipwitness/conflict"], string(e.InvolvedObject.UID)}] += int(e.Count)
	}
	return told
}

// awaitTold waits until all of these Events have been written.
func (l *lab) awaitTold(want ...telling) {
	l.t.Helper()
	l.until("Events about all pods", func() error {
		told := l.told()
		var lacking []string
		for _, w := range want {
			if told[w] == 0 {
				lacking = append(lacking, fmt.Sprint(w))
			}
		}
		if len(lacking) > 0 {
			return errors.New("there are none about " + strings.Join(lacking, ", "))
		}
		return nil
	})
}

// wantToldOnce fails unless all of these Events have been written, and none was written again.
func (l *lab) wantToldOnce(want ...telling) {
	l.t.Helper()
	told := l.told()
	for _, w := range want {
		if told[w] != 1 {
			l.t.Errorf("Events about pod %s and conflict %s: got %d, want 1", w.pod, w.conflict, told[w])
		}
	}
	for about, n := range told {
		if n > 1 {
			l.t.Errorf("pod %s was told of conflict %s %d times", about.pod, about.conflict, n)
		}
	}
}

func tellings(c *ipwitnessv1.Conflict, pods []pod) (all []telling) {
	for _, p := range pods {
		all = append(all, telling{c.GetId(), p.UID})
	}
	return all
}

// Both replicas know everything, with the same ids. What must happen once happens once, also when the
// leader is killed. They share acknowledgements, which outlive all of them.
func TestReplicas(t *testing.T) {
	i := newInstalled(t, "replicas")
	i.install()
	i.rollout()
	i.live()
	i.api(ipwitnessv1.Kubernetes_LIVE)
	i.operates()
	all := i.replicas()
	if len(all) != 2 || all[0].Node == all[1].Node {
		t.Fatalf("got the replicas %v, want one on each node", i.ours("aggregator"))
	}
	killed, other := i.leader(all)

	addr, pods := i.duplicate("web")
	conflict := i.awaitConflict(addr, confirmed)
	want := tellings(conflict, pods)
	for _, r := range all {
		if c := r.awaitOwners(addr, pods...); c.GetId() != conflict.GetId() {
			t.Errorf("%s calls the conflict %s, and another replica %s", r.Name, c.GetId(), conflict.GetId())
		}
	}
	i.awaitTold(want...)

	// A conflict begins while nobody leads.
	kill := func() error {
		ctx, cancel := i.context()
		defer cancel()
		node := i.node(killed.Node)
		pids, err := node.ContainerPIDs(ctx, killed.UID)
		for _, pid := range pids { // of the node
			_, fault := node.Run("kill -KILL %d", pid)
			err = errors.Join(err, fault)
		}
		return err
	}
	if err := kill(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	second, more := i.duplicate("db")
	want = append(want, tellings(other.awaitOwners(second, more...), more)...)
	t.Logf("%s after the leader was killed, the other replica knows another conflict", time.Since(begin).Round(time.Millisecond))
	i.until("the other replica to lead", func() error {
		_ = kill() // again, so that the leader does not come back
		if e, err := other.election(); err != nil || !e.GetLeads() {
			return fmt.Errorf("got %v, %w", e, err)
		}
		return nil
	})
	t.Logf("%s after the leader was killed, the other replica leads", time.Since(begin).Round(time.Millisecond))
	i.awaitTold(want...)
	i.rollout()
	i.leader(all)

	i.acknowledge(other.aggregator, conflict.GetId())
	acknowledged := func() {
		t.Helper()
		for _, r := range all {
			c := r.awaitConflictSuch(addr, confirmed, func(c *ipwitnessv1.Conflict) error {
				if c.GetAcknowledgement().GetReason() != "NET-42" {
					return fmt.Errorf("%s says %v", r.Name, c.GetAcknowledgement())
				}
				return nil
			})
			if c.GetId() != conflict.GetId() {
				t.Errorf("got conflict %s, want %s", c.GetId(), conflict.GetId())
			}
		}
	}
	acknowledged()
	i.kube("--namespace", home, "delete", "pod", "--selector", "app.kubernetes.io/component=aggregator", "--timeout=2m")
	acknowledged()
	i.leader(all)
	if out := i.kube("--namespace", home, "get", "addressconflictacknowledgements", "--output=name"); !strings.Contains(out, conflict.GetId()) {
		t.Errorf("got the objects %q, want one of conflict %s", out, conflict.GetId())
	}
	// The leader has said everything that it has to say when it tells of another conflict.
	third, last := i.duplicate("cache")
	want = append(want, tellings(i.awaitOwners(third, last...), last)...)
	i.awaitTold(want...)
	i.wantToldOnce(want...)
	i.uninstall()
}

// churn is a succession of pods, some of which have the same address.
type churn struct {
	*installed
	rounds int
	// told has the Events that the duplicates require.
	told []telling
	// latest is the longest time from the start of the pods to the confirmation of a duplicate.
	latest time.Duration
}

// round starts pods, waits until their duplicates are confirmed and their Events are written, and deletes
// them. It returns the number of duplicates.
func (c *churn) round() (planted int) {
	c.t.Helper()
	c.rounds++
	name := fmt.Sprintf("round-%d", c.rounds)
	c.deploy(name, 8)
	begin := time.Now()
	of := map[string][]pod{}
	for _, p := range c.pods("app=" + name) {
		of[p.Address] = append(of[p.Address], p)
	}
	var told []telling
	for addr, pods := range of {
		if len(pods) < 2 {
			continue
		}
		planted++
		told = append(told, tellings(c.awaitOwners(addr, pods...), pods)...)
	}
	c.latest = max(c.latest, time.Since(begin))
	c.awaitTold(told...)
	c.told = append(c.told, told...)
	c.in("delete", "deployment", name, "--cascade=foreground", "--timeout=2m")
	return planted
}

// during goes on until do has ended, and for one more round. It returns the number of duplicates that were
// planted before do had ended.
func (c *churn) during(do func() error) (planted int) {
	c.t.Helper()
	over := make(chan error, 1)
	go func() { over <- do() }()
	for {
		n := c.round()
		select {
		case err := <-over:
			if err != nil {
				c.t.Fatal(err)
			}
			c.round()
			return planted
		default:
			planted += n
		}
	}
}

// While the chart is upgraded, every duplicate is found, and told of once.
func TestHelmUpgradeUnderChurn(t *testing.T) {
	i := newInstalled(t, "churn")
	i.install()
	i.rollout()
	i.live()
	i.api(ipwitnessv1.Kubernetes_LIVE)
	i.leader(i.replicas())
	c := &churn{installed: i}
	for _, u := range []struct {
		what string
		args []string
	}{
		{"the replicas", i.upgradeArgs("aggregator.podAnnotations.again=yes")},
		{"the replicas and the agents, with another image", append(i.upgradeArgs(), "--set-string", "image.tag="+nextTag)},
	} {
		c.latest = 0
		before := i.ours("aggregator")
		var planted int
		away := i.without(func() {
			planted = c.during(func() error {
				if out, err := i.helm(u.args...); err != nil {
					return fmt.Errorf("%w\n%s", err, out)
				}
				ctx, cancel := i.context()
				defer cancel()
				for _, set := range []string{"daemonset/ipwitness-agent", "statefulset/ipwitness-aggregator"} {
					if _, err := i.Kubectl(ctx, "--namespace", home, "rollout", "status", set, "--timeout=2m"); err != nil {
						return err
					}
				}
				return nil
			})
		})
		for k, p := range i.ours("aggregator") {
			if p.UID == before[k].UID {
				t.Errorf("pod %s was not replaced", p.Name)
			}
		}
		if planted == 0 {
			t.Errorf("no duplicates began and were found while %s were replaced", u.what)
		}
		t.Logf("upgrade that replaces %s: %d duplicates began and were found meanwhile, the last of a round at most %s after its pods ran; %s",
			u.what, planted, c.latest.Round(time.Millisecond), away)
	}
	i.leader(i.replicas())
	c.wantToldOnce(c.told...)
	i.uninstall()
}
