package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// conflictOf returns a conflict of pods (NAME@NODE) or nodes (@NODE).
func conflictOf(namespace, address string, state pb.Conflict_State, owners ...string) *pb.Conflict {
	c := &pb.Conflict{
		Id: namespace + strings.ReplaceAll(address, ".", ""), Address: address, State: state,
		Summary: address + " is held by two pods of two nodes.", Remedy: []*pb.Action{{Text: "Delete the pod that came second."}, {Text: "Look at IPAM."}},
		DetectedAt: timestamppb.Now(),
	}
	if state != pb.Conflict_SUSPECTED {
		c.ConfirmedAt = timestamppb.Now()
	}
	for _, o := range owners {
		name, node, _ := strings.Cut(o, "@")
		w := &pb.Workload{Kind: pb.Workload_POD, Namespace: namespace, Name: name}
		if name == "" {
			w = &pb.Workload{Kind: pb.Workload_HOST, Name: node}
		}
		c.Owners = append(c.Owners, &pb.Owner{Address: address, Node: node, Workload: w})
	}
	return c
}

// events returns the events about an object, as TYPE REASON COUNT.
func (l *lab) events(kind, name string) []string {
	l.Helper()
	namespace := l.namespace
	if kind == "Node" {
		namespace = "default"
	}
	out := l.kube("get", "events", "--namespace", namespace, "--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name,
		"--output", `jsonpath={range .items[?(@.source.component=="ipwitness")]}{.type} {.reason} {.count}{"\n"}{end}`)
	lines := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
	slices.Sort(lines)
	return lines
}

// counted returns the number of events with a result.
func (m *mirrored) counted(r result) uint64 { return m.announcer.counts[r].Load() }

func TestEventsOfAConflict(t *testing.T) {
	l := newLab(t)
	l.node("event-node1", "10.99.5.0/24")
	l.node("event-node2", "10.99.5.0/24")
	const address = "10.99.5.7"
	l.pod("one", "event-node1", address, "")
	l.pod("two", "event-node2", address, "")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	m.until("the nodes are known", func() bool { return m.Status().GetNodes() >= 2 })
	conflict := conflictOf(l.namespace, address, pb.Conflict_SUSPECTED, "one@event-node1", "two@event-node2", "nobody@event-node2", "ghost@elsewhere")
	m.Announce(conflict, false)
	conflict.State, conflict.ConfirmedAt = pb.Conflict_CONFIRMED, timestamppb.Now()
	acknowledged := proto.CloneOf(conflict)
	acknowledged.Acknowledgement = &pb.Acknowledgement{Reason: "known"}
	m.Announce(acknowledged, false)
	for range 3 {
		m.Announce(conflict, false)
	}
	m.until("all is written", func() bool { return m.counted(written) == 4 })

	want := []string{"Warning AddressConflict 1"}
	for _, object := range [][2]string{{"Pod", "one"}, {"Pod", "two"}, {"Node", "event-node1"}, {"Node", "event-node2"}} {
		if got := l.events(object[0], object[1]); !slices.Equal(got, want) {
			t.Errorf("events of %s: got %q, want %q", object, got, want)
		}
	}
	described := l.kube("describe", "pod", "one", "--namespace", l.namespace)
	for _, text := range []string{"AddressConflict", "ipwitness", "is held by two pods of two nodes", "Delete the pod that came second.", "ipwitness explain " + address} {
		if !strings.Contains(described, text) {
			t.Errorf("kubectl describe pod does not show %q:\n%s", text, described)
		}
	}
	if described := l.kube("describe", "node", "event-node1"); !strings.Contains(described, "AddressConflict") {
		t.Errorf("kubectl describe node:\n%s", described)
	}

	// Another replica, or this one after a restart, detects the same conflict at another time.
	m.stop()
	again := l.mirror(rich)
	again.awaitState(pb.Kubernetes_LIVE)
	again.until("the nodes are known", func() bool { return again.Status().GetNodes() >= 2 })
	conflict.DetectedAt = timestamppb.New(time.Now().Add(2 * time.Second))
	again.Announce(conflict, false)
	again.until("the conflict is known", func() bool { return again.counted(known) == 4 })
	if got := l.events("Pod", "one"); !slices.Equal(got, want) {
		t.Errorf("after a restart: got %q, want %q", got, want)
	}

	// The conflict is over. This is also announced for a former owner.
	over := proto.CloneOf(conflict)
	over.State, over.Owners = pb.Conflict_RESOLVED, over.Owners[1:]
	for range 2 {
		again.Announce(over, false)
	}
	again.until("the end of the conflict is written", func() bool { return again.counted(written) == 4 })
	want = append(want, "Normal AddressConflictResolved 1")
	slices.Sort(want)
	for _, object := range [][2]string{{"Pod", "one"}, {"Node", "event-node2"}} {
		if got := l.events(object[0], object[1]); !slices.Equal(got, want) {
			t.Errorf("events of %s: got %q, want %q", object, got, want)
		}
	}

	// Another episode increases the count, even if another replica detects it.
	again.stop()
	third := l.mirror(rich)
	third.awaitState(pb.Kubernetes_LIVE)
	third.until("the nodes are known", func() bool { return third.Status().GetNodes() >= 2 })
	conflict.DetectedAt = timestamppb.New(time.Now().Add(3 * time.Second))
	third.Announce(conflict, false)
	third.until("the episode is counted", func() bool { return third.counted(repeated) == 4 })
	if got, want := l.events("Pod", "two"), []string{"Normal AddressConflictResolved 1", "Warning AddressConflict 2"}; !slices.Equal(got, want) {
		t.Errorf("another episode: got %q, want %q", got, want)
	}
	if n := third.counted(written) + third.counted(failed) + third.counted(limited); n != 0 {
		t.Errorf("%d events of another kind", n)
	}
}

// Events wait until the API server is back.
func TestEventsOfAConflictWhileTheAPIServerIsDown(t *testing.T) {
	l := newLab(t)
	l.node("away-node", "10.99.6.0/24")
	l.pod("one", "away-node", "10.99.6.7", "")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	m.until("the node is known", func() bool { return m.Status().GetNodes() >= 1 })
	m.cut(true)
	m.awaitState(pb.Kubernetes_STALE)
	m.Announce(conflictOf(l.namespace, "10.99.6.7", pb.Conflict_CONFIRMED, "one@away-node", "@away-node"), false)
	m.cut(false)
	m.until("the events are written", func() bool { return m.counted(written) == 2 })
}

// If a conflict comes and goes, the last event is about its last state.
func TestEventsOfAConflictThatComesAndGoes(t *testing.T) {
	l := newLab(t)
	l.node("flap-node", "10.99.9.0/24")
	l.pod("one", "flap-node", "10.99.9.7", "")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	a := &m.announcer
	a.mu.Lock()
	a.pause = time.Hour
	a.mu.Unlock()
	conflict := conflictOf(l.namespace, "10.99.9.7", pb.Conflict_CONFIRMED, "one@flap-node")
	for i := range 4 {
		conflict.DetectedAt = timestamppb.New(time.Now().Add(time.Duration(i) * 10 * time.Second))
		for _, state := range []pb.Conflict_State{pb.Conflict_CONFIRMED, pb.Conflict_RESOLVED} {
			conflict.State = state
			m.Announce(proto.CloneOf(conflict), false)
		}
		m.until("the first events are written", func() bool { return m.counted(written) == 4 })
	}
	conflict.State, conflict.DetectedAt = pb.Conflict_CONFIRMED, timestamppb.New(time.Now().Add(time.Minute))
	m.Announce(conflict, false)
	// The first conflict and the first resolved event of the pod and the node are written. All
	// later ones wait: three episodes and the start of a fourth. Pretend that an hour has
	// passed.
	if got := m.counted(limited); got != 2*(2*3+1) {
		t.Errorf("got %d limited, want all others", got)
	}
	a.mu.Lock()
	a.pause = 0
	a.mu.Unlock()
	a.bell <- struct{}{}
	want := []string{"Normal AddressConflictResolved 2", "Warning AddressConflict 2"}
	m.until("all is written", func() bool { return m.counted(repeated) == 4 })
	if got := l.events("Pod", "one"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	when := func(reason string) string {
		return l.kube("get", "events", "--namespace", l.namespace, "--field-selector", "reason="+reason, "--output", "jsonpath={.items[0].lastTimestamp}")
	}
	if over, is := when(resolvedReason), when(conflictReason); over > is { // timestamps have a resolution of one second
		t.Errorf("the last Event says resolved at %s, but the conflict came again at %s", over, is)
	}
}

func TestMissingPermissions(t *testing.T) {
	l := newLab(t)
	l.node("poor-node", "10.99.7.0/24")
	l.pod("one", "poor-node", "10.99.7.7", "")
	m := l.mirror("poor")
	m.awaitState(pb.Kubernetes_LIVE)
	problems := func(about string) int {
		n := 0
		for _, p := range m.Status().GetProblems() {
			if strings.HasPrefix(p, about) {
				n++
			}
		}
		return n
	}
	m.until("all problems are there", func() bool { return len(m.Status().GetProblems()) == 3 })
	for _, what := range []string{"services", "leases", "events"} {
		if problems("no permission to list and watch "+what+": ") != 1 {
			t.Errorf("no problem with %s, or several: %q", what, m.Status().GetProblems())
		}
	}
	if !slices.Equal(m.named("one", "poor-node").IPs, addresses("10.99.7.7")) || !m.InPodCIDR(addresses("10.99.7.9")[0]) {
		t.Error("pods and nodes are not known")
	}
	m.Announce(conflictOf(l.namespace, "10.99.7.7", pb.Conflict_CONFIRMED, "one@poor-node"), false)
	m.until("missing permission for events is reported", func() bool { return problems("no permission to write Events: ") == 1 })

	// Newly granted rights take effect without a restart.
	l.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: poor-is-rich}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: outside-aggregator}
subjects: [{kind: ServiceAccount, name: poor, namespace: outside}]
`)
	t.Cleanup(func() { l.kube("delete", "clusterrolebinding", "poor-is-rich") })
	m.until("services and events are followed", func() bool {
		return problems("no permission to list and watch services: ") == 0 && problems("no permission to list and watch events: ") == 0
	})
}

// Related returns the facts that explain a conflict.
func TestRelatedOfARealAPI(t *testing.T) {
	l := newLab(t)
	l.node("related-node1", "10.99.8.0/24")
	l.node("related-node2", "10.99.8.0/24")
	l.pod("one", "related-node1", "10.99.8.7", "")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	conflict := conflictOf(l.namespace, "192.0.2.80", pb.Conflict_CONFIRMED, "one@related-node1", "@related-node2")
	l.apply(`
apiVersion: v1
kind: Service
metadata: {name: front, namespace: NAMESPACE, annotations: {kube-vip.io/vipHost: related-node2}}
spec: {type: LoadBalancer, ports: [{port: 80}], selector: {app: front}}
`)
	l.status("service/front", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.80"}]}}}`)
	l.apply(`
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: plndr-svcs-lock, namespace: kube-system}
spec: {holderIdentity: related-node1, leaseDurationSeconds: 15, acquireTime: "2026-03-14T15:09:26.000000Z", renewTime: "2026-03-14T15:10:26.000000Z"}
`)
	t.Cleanup(func() { l.kube("delete", "lease", "plndr-svcs-lock", "--namespace", "kube-system") })
	now := time.Now().UTC().Format(time.RFC3339)
	for i := range 3 {
		l.apply(`
apiVersion: v1
kind: Event
metadata: {name: sandbox.%d, namespace: NAMESPACE}
involvedObject: {apiVersion: v1, kind: Pod, namespace: NAMESPACE, name: one}
type: Warning
reason: FailedCreatePodSandBox
message: "Failed to create pod sandbox: plugin type=\"ptp\" failed (add): \e[31mno IP addresses available"
count: %d
firstTimestamp: %q
lastTimestamp: %[3]q
source: {component: kubelet, host: related-node1}
`, i, i+1, now)
	}
	var related []string
	m.until("all is known", func() bool {
		related = related[:0]
		for _, r := range m.Related(conflict) {
			related = append(related, fmt.Sprintf("%s %s %s ×%d: %s", r.GetKind(), r.GetName(), r.GetReason(), r.GetCount(), r.GetMessage()))
		}
		return len(related) >= 5 && m.reported(func(c Changes) bool { return slices.Contains(c.Related, "related-node1") }) &&
			slices.ContainsFunc(related, func(s string) bool { return strings.Contains(s, "×6") }) && strings.HasPrefix(related[1], "Lease ")
	})
	if !strings.HasPrefix(related[0], "Service front Address ×0: 192.0.2.80 is the load balancer address of Service "+l.namespace+"/front; kube-vip has it on related-node2") ||
		!strings.Contains(related[1], "is held by related-node1 since 2026-03-14T15:09:26Z") ||
		!strings.HasPrefix(related[2], "Event one FailedCreatePodSandBox ×6: ") || strings.Contains(related[2], "\x1b") {
		t.Errorf("got:\n%s", strings.Join(related, "\n"))
	}
	t.Log("\n" + strings.Join(related, "\n"))
}

func TestEventsOfAFinding(t *testing.T) {
	l := newLab(t)
	l.node("finding-node", "10.99.8.0/24")
	const address = "10.99.8.7"
	l.pod("one", "finding-node", address, "")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	m.until("pod and node are known", func() bool { return m.Status().GetNodes() > 0 && m.named("one", "finding-node") != nil })
	finding := &pb.Finding{
		Kind: "booked-elsewhere", Id: l.namespace, Address: address, Severity: pb.Finding_CRITICAL, DetectedAt: timestamppb.Now(),
		Summary: address + " is allocated to another node.", Nodes: []string{"finding-node", "elsewhere"},
		Owners: conflictOf(l.namespace, address, pb.Conflict_CONFIRMED, "one@finding-node").GetOwners(),
	}
	objects := [][2]string{{"Pod", "one"}, {"Node", "finding-node"}}
	check := func(want ...string) {
		t.Helper()
		for _, object := range objects {
			if got := l.events(object[0], object[1]); !slices.Equal(got, want) {
				t.Errorf("events of %s: got %q, want %q", object, got, want)
			}
		}
	}
	for range 3 {
		m.AnnounceFinding(finding, false, false)
	}
	m.until("the conflict is written", func() bool { return m.counted(written) == 2 })
	check("Warning AddressBookedElsewhere 1")

	// Another replica finds the same conflict, and then that it is over.
	other := l.mirror(rich)
	other.awaitState(pb.Kubernetes_LIVE)
	other.AnnounceFinding(finding, false, false)
	other.until("the conflict is known", func() bool { return other.counted(known) == 2 })
	other.AnnounceFinding(finding, true, false)
	other.until("the end of the conflict is written", func() bool { return other.counted(written) == 2 })
	check("Normal AddressBookedElsewhereResolved 1", "Warning AddressBookedElsewhere 1")
	m.AnnounceFinding(finding, true, false)
	m.until("the end of the conflict is known", func() bool { return m.counted(known) == 2 })
}
