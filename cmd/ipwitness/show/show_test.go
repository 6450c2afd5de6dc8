package show

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/golden"
)

// piped and wide are layouts of output that is not shown in a terminal.
var (
	piped = Layout{Program: "ipwitness"}
	wide  = Layout{Wide: true, Program: "ipwitness"}
)

// now is the time of all tests. at returns the time that long before it.
var now = time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC)

func at(before time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-before)) }

// wantShown compares a text with testdata/NAME.golden, and checks the properties that all output
// must have.
func wantShown(t *testing.T, name, got string) {
	t.Helper()
	for line := range strings.Lines(got) {
		if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
			t.Errorf("got spaces at the end of %q, want none", line)
		}
	}
	golden.Compare(t, filepath.Join("testdata", name+".golden"), got, "write it with go test -update and read the diff")
}

func pod(namespace, name, netns string) *pb.Owner {
	return &pb.Owner{
		Address:       "10.244.0.7",
		Scope:         &pb.Scope{Kind: pb.Scope_NODE, Name: "worker-1"},
		Node:          "worker-1",
		Interface:     "eth0",
		HostInterface: "veth" + netns,
		Mac:           "0a:58:0a:f4:00:07",
		Netns:         "40265319" + netns,
		Workload:      &pb.Workload{Kind: pb.Workload_POD, Namespace: namespace, Name: name, Source: "cni-result"},
		Evidence: []*pb.Evidence{
			{Kind: pb.Evidence_ANSWERED, FirstSeen: at(4 * time.Minute), LastSeen: at(time.Second), Count: 12, Witness: "worker-1/veth" + netns, Mac: "0a:58:0a:f4:00:07"},
			{Kind: pb.Evidence_ASSIGNED, FirstSeen: at(5 * time.Minute), LastSeen: at(5 * time.Minute), Count: 1, Witness: "worker-1"},
		},
		FirstSeen:  at(5 * time.Minute),
		LastSeen:   at(time.Second),
		State:      pb.Owner_LIVE,
		AssignedAt: at(6 * time.Minute),
	}
}

func external() *pb.Owner {
	return &pb.Owner{
		Address:   "192.168.1.5",
		Scope:     &pb.Scope{Kind: pb.Scope_LINK, Name: "worker-1/eth0"},
		Node:      "worker-1",
		Interface: "eth0",
		Mac:       "de:ad:be:ef:00:05",
		Workload:  &pb.Workload{Kind: pb.Workload_EXTERNAL},
		Evidence:  []*pb.Evidence{{Kind: pb.Evidence_USED, FirstSeen: at(30 * time.Hour), LastSeen: at(20 * time.Minute), Count: 3, Witness: "worker-1/eth0"}},
		FirstSeen: at(30 * time.Hour),
		LastSeen:  at(20 * time.Minute),
		State:     pb.Owner_STALE,
	}
}

func owners() []*pb.Owner {
	local := pod("kube-system", "dns", "4")
	local.Address, local.Excluded, local.Scope = "169.254.20.10", "it is on a loopback or dummy device", nil
	unknown := pod("", "", "5")
	unknown.Address, unknown.Workload = "fd00:10:244::7", &pb.Workload{Kind: pb.Workload_UNKNOWN}
	host := pod("", "", "0")
	host.Address, host.HostInterface, host.Workload = "172.18.0.2", "", &pb.Workload{Kind: pb.Workload_HOST, Name: "worker-1"}
	container := pod("", "", "6")
	container.Workload = &pb.Workload{Kind: pb.Workload_CONTAINER, ContainerId: "0123456789abcdef0123", Source: "cgroup", Process: "ng\ninx (4711)"}
	uid := pod("", "", "7")
	uid.Workload = &pb.Workload{
		Kind: pb.Workload_POD, Uid: "0125ec2f-b64a-4868-8f5b-94b56cbab864", ContainerId: "0123456789abcdef0123", Source: "cgroup", Process: "pause (815)",
	}
	process := pod("", "", "8")
	process.Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN, Source: "process", Process: "sleep (42)"}
	return []*pb.Owner{pod("default", "web-1", "1"), pod("shop", "cart-7d5f\x1b[31m", "2"), container, uid, process, host, external(), local, unknown}
}

func conflict(state pb.Conflict_State) *pb.Conflict {
	c := &pb.Conflict{
		Id:      "k3j5x2a7",
		Episode: 2,
		Address: "10.244.0.7",
		Scope:   &pb.Scope{Kind: pb.Scope_NODE, Name: "worker-1"},
		State:   state,
		Cause:   "ipam-state-lost",
		Rule:    "assigned-twice",
		Summary: "10.244.0.7 is held by default/web-1 and shop/cart on node worker-1.",
		Remedy: []*pb.Action{
			{Text: "Restore the state of the IPAM plugin.", Command: "ipwitness audit --fix-plan > plan.sh"},
			{Text: "Decide which one keeps it.", Choice: []*pb.Alternative{
				{When: "default/web-1 keeps it", Actions: []*pb.Action{{Text: "Delete shop/cart.", Command: "kubectl delete pod -n shop cart"}}},
				{When: "shop/cart keeps it", Actions: []*pb.Action{{Text: "Look.", Node: "worker-1", Command: "if true; then\n  true\nfi"}, {Text: "Delete default/web-1."}}},
			}},
		},
		Owners:     []*pb.Owner{pod("default", "web-1", "1"), pod("shop", "cart", "2")},
		DetectedAt: at(3 * time.Minute),
	}
	c.Owners[1].AssignedAt = at(3*time.Minute + 2*time.Millisecond)
	c.Owners[1].FirstSeen = at(3*time.Minute + time.Millisecond)
	if state != pb.Conflict_SUSPECTED {
		c.ConfirmedAt = at(3*time.Minute - time.Second)
	}
	if state == pb.Conflict_RESOLVED {
		c.ResolvedAt = at(30 * time.Second)
	}
	return c
}

// handover returns a conflict of two owners that both had the address for a moment.
func handover() *pb.Conflict {
	c := conflict(pb.Conflict_RESOLVED)
	c.Rule, c.Cause, c.Because = "split-brain", "split-brain", []string{"Both nodes are on one link."}
	c.ResolvedAt, c.ConfirmedAt, c.Remedy = at(3*time.Minute-20*time.Millisecond), nil, nil
	return c
}

func acknowledged() *pb.Conflict {
	c := conflict(pb.Conflict_CONFIRMED)
	c.Acknowledgement = &pb.Acknowledgement{
		Reason: "NET-42: the old pod\nmoves on Friday", AcknowledgedAt: at(2 * time.Minute), ExpiresAt: at(-24 * time.Hour),
	}
	return c
}

func conflicts() []*pb.Conflict {
	outside := conflict(pb.Conflict_SUSPECTED)
	outside.Id, outside.Address, outside.Cause, outside.Episode = "b4c5d6", "192.168.1.5", "unknown", 1
	one, other := external(), external()
	other.Mac = "de:ad:be:ef:00:06"
	outside.Owners = []*pb.Owner{one, other}
	return []*pb.Conflict{conflict(pb.Conflict_CONFIRMED), outside}
}

func TestShortDurationsAreExact(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.0ms", 49 * time.Microsecond: "0.0ms", 349 * time.Microsecond: "0.3ms", 9999 * time.Microsecond: "9.9ms", 25 * time.Millisecond: "25ms",
		999 * time.Millisecond: "999ms", 2190 * time.Millisecond: "2.1s", 59999 * time.Millisecond: "59.9s", 185 * time.Second: "3m5s",
	} {
		if got := precise(durationpb.New(d), ""); got != want {
			t.Errorf("got %s for %s, want %s", got, d, want)
		}
	}
}

// conflictTable writes a table of conflicts.
func conflictTable(w io.Writer, conflicts []*pb.Conflict, layout Layout) error {
	_, err := Conflicts(w, conflicts, layout, now)
	return err
}

func TestTablesAndPages(t *testing.T) {
	nodes := []*pb.Node{
		{
			Name: "worker-1", State: pb.Node_LIVE, Version: "v0.1.0", Kernel: "6.18.44", Wire: "tcx", Ports: 14, Namespaces: 12,
			Claims: 260, LastHeard: at(0), ConnectedAt: at(26 * time.Hour), Netns: "4026531840", BootId: "8d0f7f8a", Runtime: "containerd 1.7.27",
			Lag: durationpb.New(340 * time.Microsecond), Skew: durationpb.New(-2170 * time.Millisecond),
		},
		{
			Name: "worker-2", State: pb.Node_DISCONNECTED, Version: "v0.1.0", Kernel: "5.15.0", Wire: "off", LostEvents: 3, LastHeard: at(90 * time.Second),
			Problems: []string{"frames are not seen: give the process CAP_BPF"},
		},
		{
			Name: "node-10-244-17-231", State: pb.Node_LIVE, Version: "v0.1.0", Kernel: "6.8.0-1021-azure", Wire: "clsact",
			Ports: 254, Claims: 1204, LostEvents: 10, LastHeard: at(0), Lag: durationpb.New(12 * time.Second), Skew: durationpb.New(25 * time.Millisecond),
		},
	}
	live := &pb.Kubernetes{
		State: pb.Kubernetes_LIVE, Server: "https://10.96.0.1:443", LastHeard: at(3 * time.Second), Pods: 812, Nodes: 1,
		Problems: []string{"no permission to list and watch services: addresses of load balancers are not explained"},
	}
	stale := &pb.Kubernetes{State: pb.Kubernetes_STALE, Server: "https://10.96.0.1:443", LastHeard: at(42 * time.Second), Pods: 812, Nodes: 3}
	explained := &pb.ExplainResponse{
		Address: "10.244.0.7",
		Summary: "10.244.0.7 is in conflict: two namespaces of worker-1 have it.",
		Scope:   &pb.Scope{Kind: pb.Scope_NODE, Name: "worker-1"},
		Owners:  owners()[:8],
		Steps: []*pb.ExplainResponse_Step{
			{Rule: "assigned-twice", Scope: &pb.Scope{Kind: pb.Scope_NODE, Name: "worker-1"}, Applied: true, Reason: "both are configured with it"},
			{Rule: "declared-shared", Reason: "no --shared range has it"},
			{Rule: "different-links", Scope: &pb.Scope{Kind: pb.Scope_LINK, Name: "worker-1/veth1"}, Reason: "each pod is on a link of its own"},
		},
		Conflicts: []*pb.Conflict{conflict(pb.Conflict_CONFIRMED), conflict(pb.Conflict_RESOLVED)},
	}
	known := &pb.ExplainResponse{
		Address: "10.244.0.7", Summary: "10.244.0.7 is in conflict: two namespaces of worker-1 have it.",
		Conflicts: []*pb.Conflict{acknowledged(), conflict(pb.Conflict_RESOLVED)},
	}
	lost := &pb.ExplainResponse{
		Address: "10.244.0.7", Summary: "Conflict. " + diagnosed().GetSummary(), Conflicts: []*pb.Conflict{diagnosed(), conflict(pb.Conflict_RESOLVED)},
	}
	pod := func(name, node string, state pb.Belief_State) *pb.Senders_Sender {
		return &pb.Senders_Sender{Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: name}, Node: node, Interface: "eth0", State: state}
	}
	sent := &pb.ExplainResponse{
		Address: "10.244.0.7", Summary: explained.GetSummary(), Owners: owners()[:2],
		Findings: []*pb.Finding{{
			Kind: "nat-to-former-owner", Severity: pb.Finding_CRITICAL, Summary: "NAT on worker-1 sends 1 connection to pod shop/new that began when pod shop/old had 10.244.0.7.",
			Remedy: []*pb.Action{{Text: "Delete the entry on node worker-1.", Node: "worker-1", Command: "conntrack -D -p tcp --orig-src 10.244.0.9 --sport 4000 --orig-dst 10.96.0.10 --dport 80 --reply-src 10.244.0.7"}},
		}},
		Senders: &pb.Senders{
			TranslationCount: 3,
			Translations: []*pb.Senders_Translation{
				{
					Node: "worker-1", Protocol: "tcp", Source: "10.244.0.9:4000", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "cart-1"}, Destination: "10.96.0.10:80", Port: 8080,
					ExistedAt: at(7 * time.Minute), Former: true,
				},
				{Node: "worker-2", Protocol: "udp", Source: "192.0.2.1:4000", Destination: "10.96.0.10:53", Port: 53},
			},
			Receivers: []*pb.Senders_Receiver{
				{Mac: "02:00:00:00:00:01", Owners: []uint32{0}, InUse: 5, Old: 1, Senders: []*pb.Senders_Sender{
					pod("cart-1", "worker-1", pb.Belief_IN_USE), pod("cart-2", "worker-2", pb.Belief_IN_USE),
					{Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: "worker-1"}, Node: "worker-1", Interface: "cni0", State: pb.Belief_IN_USE},
					pod("cart-3", "worker-1", pb.Belief_OLD),
				}},
				{Mac: "02:00:00:00:00:02", Owners: []uint32{0, 1}, Permanent: 1, Senders: []*pb.Senders_Sender{pod("cart-4", "worker-1", pb.Belief_PERMANENT)}},
				{Mac: "02:00:00:00:00:03", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "former"}, InUse: 1, Senders: []*pb.Senders_Sender{pod("cart-5", "worker-1", pb.Belief_IN_USE)}},
				{Mac: "02:00:00:00:00:04", Old: 1},
			},
			Unseen: []*pb.Senders_Unseen{
				{Reason: pb.Senders_Unseen_NO_ANSWER, Nodes: []string{"worker-3"}, Count: 1},
				{Reason: pb.Senders_Unseen_DISCONNECTED, Nodes: []string{"worker-4", "worker-5"}, Count: 2},
				{Reason: pb.Senders_Unseen_OWN_ONLY, Nodes: []string{"worker-6"}, Count: 1},
				{Reason: pb.Senders_Unseen_NO_PROCESS, Nodes: []string{"worker-1"}, Count: 3},
				{Reason: pb.Senders_Unseen_TRUNCATED, Nodes: []string{"worker-1"}, Count: 1},
				{Reason: pb.Senders_Unseen_NOT_ASKED, Nodes: []string{"w1", "w2", "w3", "w4", "w5", "w6"}, Count: 900},
				{Reason: pb.Senders_Unseen_BEFORE_START},
				{Reason: pb.Senders_Unseen_SERVICES},
				{Reason: pb.Senders_Unseen_TRANSLATIONS_NOT_PERMITTED, Nodes: []string{"worker-3"}, Count: 1},
			},
			Services: []string{"shop/api", "shop/web"}, ServiceCount: 40,
			Routes: []*pb.Senders_Route{
				{Nodes: []string{"worker-2", "worker-3"}, Count: 40, Kind: pb.Senders_Route_PATHS, Owners: []uint32{0}, Hops: []*pb.Senders_Route_Hop{{Interface: "eth0", Gateway: "192.0.2.11", Node: "worker-1"}}},
				{Nodes: []string{"worker-1"}, Count: 1, Kind: pb.Senders_Route_PATHS, Owners: []uint32{0, 1}, Hops: []*pb.Senders_Route_Hop{{Interface: "cni0"}}},
				{Nodes: []string{"worker-4"}, Count: 1, Kind: pb.Senders_Route_PATHS, Partly: true, Hops: []*pb.Senders_Route_Hop{{Interface: "eth0", Gateway: "192.0.2.1"}}},
				{Nodes: []string{"worker-5"}, Count: 1, Kind: pb.Senders_Route_LOCAL},
				{Nodes: []string{"worker-6"}, Count: 1, Kind: pb.Senders_Route_NONE},
				{Nodes: []string{"worker-7"}, Count: 1, Kind: pb.Senders_Route_PATHS, Owners: []uint32{1}, Partly: true, Hops: []*pb.Senders_Route_Hop{{Interface: "eth0"}, {Interface: "eth1", Gateway: "192.0.2.1"}}},
			},
		},
	}
	silent := &pb.ExplainResponse{Address: "10.244.0.7", Summary: explained.GetSummary(), Owners: owners()[:2], Senders: &pb.Senders{}}
	unread := &pb.ExplainResponse{Address: "10.244.0.7", Summary: "No conflict: 10.244.0.7 is held by one owner.", Owners: owners()[:1], Unseen: sent.GetSenders().GetUnseen()[:2]}
	unowned := &pb.ExplainResponse{Address: "10.9.9.9", Summary: "Nobody holds 10.9.9.9."}

	tests := map[string]func(*bytes.Buffer) error{
		"owners":         func(b *bytes.Buffer) error { return Owners(b, owners(), nil, piped, now) },
		"owners-wide":    func(b *bytes.Buffer) error { return Owners(b, owners(), nil, wide, now) },
		"conflicts":      func(b *bytes.Buffer) error { return conflictTable(b, conflicts(), piped) },
		"conflicts-wide": func(b *bytes.Buffer) error { return conflictTable(b, conflicts(), wide) },
		"conflict-page":  func(b *bytes.Buffer) error { return Conflict(b, conflict(pb.Conflict_CONFIRMED), piped, now) },
		"conflict-page-got-again": func(b *bytes.Buffer) error {
			c := conflict(pb.Conflict_CONFIRMED)
			c.Owners[1].AssignedAt = at(time.Minute)
			return Conflict(b, c, piped, now)
		},
		"conflict-page-resolved":   func(b *bytes.Buffer) error { return Conflict(b, conflict(pb.Conflict_RESOLVED), piped, now) },
		"conflict-page-handover":   func(b *bytes.Buffer) error { return Conflict(b, handover(), piped, now) },
		"conflict-page-externals":  func(b *bytes.Buffer) error { return Conflict(b, conflicts()[1], piped, now) },
		"conflict-page-kubernetes": func(b *bytes.Buffer) error { return Conflict(b, orphaned(), piped, now) },
		"conflict-page-cause":      func(b *bytes.Buffer) error { return Conflict(b, diagnosed(), piped, now) },
		"conflict-page-unknown":    func(b *bytes.Buffer) error { return Conflict(b, unexplained(), piped, now) },
		"explain-cause":            func(b *bytes.Buffer) error { return Explain(b, lost, piped, now) },
		"owners-kubernetes":        func(b *bytes.Buffer) error { return Owners(b, orphaned().GetOwners(), nil, wide, now) },
		"explain":                  func(b *bytes.Buffer) error { return Explain(b, explained, piped, now) },
		"conflicts-acknowledged": func(b *bytes.Buffer) error {
			return conflictTable(b, append(conflicts(), acknowledged()), piped)
		},
		"conflict-page-acknowledged": func(b *bytes.Buffer) error { return Conflict(b, acknowledged(), piped, now) },
		"conflict-acknowledged": func(b *bytes.Buffer) error {
			if err := Acknowledged(b, acknowledged(), piped, now); err != nil {
				return err
			}
			return Acknowledged(b, conflict(pb.Conflict_CONFIRMED), piped, now)
		},
		"explain-acknowledged": func(b *bytes.Buffer) error { return Explain(b, known, piped, now) },
		"explain-senders":      func(b *bytes.Buffer) error { return Explain(b, sent, piped, now) },
		"explain-no-senders":   func(b *bytes.Buffer) error { return Explain(b, silent, piped, now) },
		"explain-unseen":       func(b *bytes.Buffer) error { return Explain(b, unread, piped, now) },
		"explain-nobody":       func(b *bytes.Buffer) error { return Explain(b, unowned, piped, now) },
		"explain-past": func(b *bytes.Buffer) error {
			was := conflict(pb.Conflict_CONFIRMED)
			f := &pb.Finding{Kind: "in-use-unallocated", Severity: pb.Finding_CRITICAL, Summary: "IPAM considers it free."}
			e := &pb.ExplainResponse{Address: was.GetAddress(), Summary: was.GetAddress() + " had 2 owners at that time, and was in conflict.", Owners: was.GetOwners(), Conflicts: []*pb.Conflict{was}, Findings: []*pb.Finding{f}}
			return ExplainRecorded(b, e, piped, now, PastLacks)
		},
		"explain-previous": func(b *bytes.Buffer) error {
			for _, was := range []*pb.PreviousOwner{
				{Gap: durationpb.New(4 * time.Second)},
				{Gap: durationpb.New(0)},
				{NotBefore: timestamppb.New(now.Add(-time.Hour))},
			} {
				o := owners()[0]
				was.Workload, was.Node, was.Interface, was.Mac = &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "cart-0"}, "node-2", "eth0", "02:00:00:00:00:09"
				was.Until = timestamppb.New(now.Add(-time.Minute))
				o.Previous = was
				if err := Explain(b, &pb.ExplainResponse{Address: o.GetAddress(), Summary: "It has one owner.", Owners: []*pb.Owner{o}}, piped, now); err != nil {
					return err
				}
				if _, err := fmt.Fprintln(b, Previous(o, now)); err != nil {
					return err
				}
			}
			return nil
		},
		"status": func(b *bytes.Buffer) error {
			return WriteStatus(b, &Status{
				Incidents: incidents(), Nodes: &pb.ListNodesResponse{Nodes: nodes, Kubernetes: live, Problems: []string{"the journal cannot be written"}},
				Coverage: &pb.Coverage{Expected: 3, Heard: 2, SilentNodes: []string{"worker-3"}, Incomplete: true}, ReachesBackTo: at(30 * 24 * time.Hour),
			}, piped, now)
		},
		"incidents":      func(b *bytes.Buffer) error { return Incidents(b, incidents(), piped, now) },
		"incidents-wide": func(b *bytes.Buffer) error { return Incidents(b, incidents(), wide, now) },
		"incident-page": func(b *bytes.Buffer) error {
			return Incident(b, incidents()[0], conflicts()[:1], findings(), piped, now)
		},
		"status-clear": func(b *bytes.Buffer) error {
			return WriteStatus(b, &Status{Nodes: &pb.ListNodesResponse{Nodes: nodes[:1]}, Coverage: &pb.Coverage{Expected: 1, Heard: 1}}, piped, now)
		},
		"nodes": func(b *bytes.Buffer) error {
			return Nodes(b, &pb.ListNodesResponse{Nodes: nodes, Kubernetes: stale}, piped, now)
		},
		"nodes-wide": func(b *bytes.Buffer) error {
			return Nodes(b, &pb.ListNodesResponse{Nodes: nodes[:1], Kubernetes: live}, wide, now)
		},
		"owner-json":     func(b *bytes.Buffer) error { return Message(b, FormatJSON, external()) },
		"owner-yaml":     func(b *bytes.Buffer) error { return Message(b, FormatYAML, external()) },
		"conflicts-json": func(b *bytes.Buffer) error { return List(b, FormatJSON, ConflictKind, conflicts()[1:]) },
		"no-owners-json": func(b *bytes.Buffer) error { return List(b, FormatJSON, OwnerKind, []*pb.Owner(nil)) },
		"no-owners-yaml": func(b *bytes.Buffer) error { return List(b, FormatYAML, OwnerKind, []*pb.Owner(nil)) },
	}
	for name, show := range tests {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := show(&b); err != nil {
				t.Fatal(err)
			}
			wantShown(t, name, b.String())
		})
	}
}

// diagnosed returns a conflict with a known cause and a complete diagnosis.
func diagnosed() *pb.Conflict {
	const pool = "IPAM host-local (/var/lib/cni/networks/cbr0, network cbr0, node worker-1)"
	c := conflict(pb.Conflict_CONFIRMED)
	c.Because = []string{
		"A CNI result says that network cbr0 gave it to pod default/web-1 on node worker-1.",
		"A CNI result says that network cbr0 gave it to pod shop/cart on node worker-1.",
		pool + " has it for pod shop/cart alone since 2026-03-14 15:06:25.998.",
		"All of its records were lost at 2026-03-14 15:05:00.000 (there were 3).",
	}
	c.Excluded = []*pb.Exclusion{
		{Cause: "orphaned-sandbox", Reason: "the Kubernetes API has pod default/web-1 and pod shop/cart, and none of them has ended"},
		{Cause: "static-address", Reason: "it was given to pod default/web-1 and pod shop/cart: nobody set it by hand"},
	}
	c.Diagnosis = []*pb.DiagnosisStep{
		{Step: "events", Answer: "The Kubernetes API tells of no event of the owners or of their nodes that would explain it."},
		{Step: "pods", Answer: "Pod default/web-1: Running, on node worker-1, with 10.244.0.7. Pod shop/cart: Running, on node worker-1, with 10.244.0.7."},
		{Step: "ipam", Answer: pool + " has it for pod shop/cart alone since 2026-03-14 15:06:25.998."},
		{Step: "pod-cidrs", Answer: "The address is in the range of pods (Node.spec.podCIDRs) of node worker-1."},
	}
	c.Allocations = []*pb.Allocation{{
		Ipam: "host-local", Pool: "/var/lib/cni/networks/cbr0", Node: "worker-1", ContainerId: "0123456789abcdef0123", Interface: "eth0",
		Location: "/var/lib/cni/networks/cbr0/10.244.0.7", AllocatedAt: at(3*time.Minute + 2*time.Millisecond),
	}}
	c.Runbook = "https://github.com/ipwitness/ipwitness/blob/main/docs/runbooks/ipam-state-lost.md"
	return c
}

// unexplained returns a conflict with an unknown cause.
func unexplained() *pb.Conflict {
	c := diagnosed()
	c.Cause, c.Because, c.Allocations = "unknown", nil, nil
	c.Excluded = append(c.Excluded[:1], &pb.Exclusion{
		Cause:  "ipam-state-lost",
		Reason: "both were given it by one network (cbr0), as when IPAM forgets; but no IPAM records of node worker-1 are known that have it",
	})
	c.Diagnosis = c.Diagnosis[:2]
	c.Owners[1].Workload.Process = "nginx (4711)"
	c.Order = []uint32{0, 1}
	c.Runbook = strings.Replace(c.Runbook, "ipam-state-lost", "unknown", 1)
	return c
}

// orphaned returns a conflict with data from the Kubernetes API.
func orphaned() *pb.Conflict {
	c := conflict(pb.Conflict_CONFIRMED)
	c.Cause = "orphaned-sandbox"
	left, there := c.Owners[0], c.Owners[1]
	left.Workload = &pb.Workload{
		Kind: pb.Workload_POD, Namespace: "default", Name: "web-1", Source: "cri", Uid: "0125ec2f-b64a-4868-8f5b-94b56cbab864",
		ContainerId: "0123456789abcdef0123", Process: "pause (815)", Orphaned: true,
		Sources: map[string]string{"process": "process", "orphaned": "kubernetes"},
	}
	there.Workload = &pb.Workload{
		Kind: pb.Workload_POD, Namespace: "shop", Name: "cart-7d5f9c-x2x", Source: "cni-result", Uid: "9c1d4b8e-6d0a-4a53-bd4b-8c2a4d7c8f11",
		Controller: &pb.Controller{Kind: "Deployment", Name: "cart"}, Phase: "Running", VirtualMachine: "vm1",
		Sources: map[string]string{"uid": "cgroup", "controller": "kubernetes", "phase": "kubernetes", "virtualMachine": "kubernetes"},
	}
	there.Intended = []*pb.Intended{{Address: "10.244.0.9", Source: "kubernetes"}, {Address: "10.244.0.8", Source: "cri", Interface: "eth0"}}
	c.Related = []*pb.Related{
		{Kind: "Event", Namespace: "shop", Name: "cart-7d5f9c-zzz", Node: "worker-1", Reason: "FailedCreatePodSandBox", Count: 14, LastSeen: at(20 * time.Second), Message: "plugin type=\"calico\" failed (add): no free addresses"},
		{Kind: "Pod", Namespace: "kube-system", Name: "calico-node-7s2lk", Node: "worker-1", Reason: "CrashLoopBackOff", Message: "12 restarts, the last one 2m ago"},
		{Kind: "Service", Namespace: "shop", Name: "front", Reason: "LoadBalancer", Message: "10.244.0.7 is its address", Healthy: true},
	}
	return c
}

func TestEventIsOneLineOfJSON(t *testing.T) {
	var b bytes.Buffer
	if err := Event(&b, FormatJSON, "ADDED", Field{"owner", &pb.Owner{Address: "10.0.0.1"}}); err != nil {
		t.Fatal(err)
	}
	if err := Event(&b, FormatJSON, "LOST", Field{"lost", 7}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], `{"type":"ADDED","owner":{"address":"10.0.0.1",`) || lines[1] != `{"type":"LOST","lost":7}` {
		t.Errorf("got %q, want an ADDED line and a LOST line", lines)
	}
}

func TestYAMLKeepsStringsThatLookLikeNumbers(t *testing.T) {
	var b bytes.Buffer
	if err := Message(&b, FormatYAML, map[string]any{"netns": "4026531840", "yes": "true", "none": nil, "n": 3}); err != nil {
		t.Fatal(err)
	}
	want := "n: 3\nnetns: \"4026531840\"\nnone: null\nyes: \"true\"\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestDurationHasTwoUnitsAtMost(t *testing.T) {
	tests := map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 50 * time.Millisecond: "0s", 450 * time.Millisecond: "0.4s", 12 * time.Second: "12s",
		3*time.Minute + 5*time.Second: "3m5s", 4 * time.Hour: "4h", 50*time.Hour + 59*time.Minute: "2d2h",
	}
	for d, want := range tests {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%s): got %q, want %q", d, got, want)
		}
	}
}

func TestNamesDistinguishOwners(t *testing.T) {
	elsewhere := pod("default", "web-1", "1")
	elsewhere.Node = "worker-2"
	got := strings.Join(OwnerNames([]*pb.Owner{pod("default", "web-1", "1"), elsewhere, external()}), " | ")
	want := "default/web-1@worker-1 | default/web-1@worker-2 | external/de:ad:be:ef:00:05"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOwnerWatchShowsChangesOnly(t *testing.T) {
	var b bytes.Buffer
	w := NewWatch(&b, OwnerKind, piped)
	seconds := 0
	event := func(kind pb.Watch_Type, o *pb.Owner) {
		t.Helper()
		seconds++
		if err := w.Event(kind, o, now.Add(time.Duration(seconds)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	one, other := pod("default", "web-1", "1"), pod("shop", "a-name-that-is-longer-than-all-before", "2")
	w.Begin()
	event(pb.Watch_ADDED, one)
	if b.Len() > 0 {
		t.Errorf("got %q before the state was complete, want nothing", b.String())
	}
	event(pb.Watch_BOOKMARK, nil)
	event(pb.Watch_ADDED, other)
	stale := pod("default", "web-1", "1")
	stale.State = pb.Owner_STALE
	event(pb.Watch_UPDATED, stale)
	event(pb.Watch_UPDATED, stale) // no change in the table
	event(pb.Watch_NODE, nil)
	// The watch is interrupted, and meanwhile the other conflict ends.
	w.Begin()
	event(pb.Watch_ADDED, stale)
	event(pb.Watch_BOOKMARK, nil)
	event(pb.Watch_REMOVED, stale)
	wantShown(t, "owners-watch", b.String())
}

func TestConflictWatchShowsEveryState(t *testing.T) {
	var b bytes.Buffer
	w := NewWatch(&b, ConflictKind, piped)
	w.Begin()
	for i, e := range []struct {
		kind pb.Watch_Type
		c    *pb.Conflict
	}{
		{pb.Watch_BOOKMARK, nil},
		{pb.Watch_ADDED, conflict(pb.Conflict_SUSPECTED)},
		{pb.Watch_UPDATED, conflict(pb.Conflict_CONFIRMED)},
		{pb.Watch_UPDATED, acknowledged()},
		{pb.Watch_UPDATED, acknowledged()}, // renewed
		{pb.Watch_UPDATED, conflict(pb.Conflict_RESOLVED)},
		{pb.Watch_REMOVED, conflict(pb.Conflict_RESOLVED)}, // already resolved
	} {
		if err := w.Event(e.kind, e.c, now.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	wantShown(t, "conflicts-watch", b.String())
}

// account passes events to a Live and returns its output.
func account(feed func(l *Live)) string {
	var b bytes.Buffer
	l := NewLive(&b, piped)
	feed(l)
	return b.String()
}

func owner(kind pb.Watch_Type, o *pb.Owner) *pb.WatchOwnersResponse {
	return &pb.WatchOwnersResponse{Type: kind, Owner: o}
}

func conflictEvent(kind pb.Watch_Type, c *pb.Conflict) *pb.WatchConflictsResponse {
	return &pb.WatchConflictsResponse{Type: kind, Conflict: c}
}

func TestLiveShowsEvents(t *testing.T) {
	wantShown(t, "live", account(func(l *Live) {
		n := &pb.Node{Name: "worker-1", Kernel: "6.18.44", Wire: "tcx", Ports: 14, Namespaces: 12, Problems: []string{"no names: /var/lib/cni/results cannot be read"}}
		l.Start("v0.1.0", n, "127.0.0.1:9640", "127.0.0.1:9999")
		l.Owner(owner(pb.Watch_LOST, nil), now)
		l.Conflict(conflictEvent(pb.Watch_LOST, nil), now)
		for _, o := range owners() {
			l.Owner(owner(pb.Watch_ADDED, o), now)
		}
		l.Owner(owner(pb.Watch_BOOKMARK, nil), now)
		l.Conflict(conflictEvent(pb.Watch_BOOKMARK, nil), now)

		late := pod("", "", "9")
		late.Workload, late.Address = &pb.Workload{Kind: pb.Workload_UNKNOWN}, "10.244.0.19"
		l.Owner(owner(pb.Watch_ADDED, late), now.Add(2*time.Second))
		named := pod("default", "late", "9")
		named.Address = "10.244.0.19"
		l.Owner(owner(pb.Watch_UPDATED, named), now.Add(3*time.Second))
		linkLocal := pod("default", "late", "9")
		linkLocal.Address = "fe80::858:aff:fef4:13"
		l.Owner(owner(pb.Watch_ADDED, linkLocal), now.Add(3*time.Second))

		l.Conflict(conflictEvent(pb.Watch_ADDED, conflict(pb.Conflict_SUSPECTED)), now.Add(4*time.Second))
		l.Conflict(conflictEvent(pb.Watch_UPDATED, conflict(pb.Conflict_CONFIRMED)), now.Add(5*time.Second))
		l.Conflict(conflictEvent(pb.Watch_UPDATED, conflict(pb.Conflict_CONFIRMED)), now.Add(5*time.Second))
		l.Conflict(conflictEvent(pb.Watch_UPDATED, conflict(pb.Conflict_RESOLVED)), now.Add(6*time.Second))
		l.Conflict(conflictEvent(pb.Watch_REMOVED, conflict(pb.Conflict_RESOLVED)), now.Add(6*time.Second))
		l.Owner(owner(pb.Watch_REMOVED, named), now.Add(7*time.Second))
	}))
}

func TestLiveShortensAcknowledgedConflicts(t *testing.T) {
	suspected := acknowledged()
	suspected.State = pb.Conflict_SUSPECTED
	wantShown(t, "live-acknowledged", account(func(l *Live) {
		for i, c := range []*pb.Conflict{
			conflict(pb.Conflict_SUSPECTED), suspected, suspected, acknowledged(),
			conflict(pb.Conflict_CONFIRMED), // the acknowledgement has expired
		} {
			l.Conflict(conflictEvent(pb.Watch_UPDATED, c), now.Add(time.Duration(i)*time.Second))
		}
	}))
}

func TestLiveSumsUpBursts(t *testing.T) {
	wantShown(t, "live-burst", account(func(l *Live) {
		l.Owner(owner(pb.Watch_BOOKMARK, nil), now)
		second := func(n int) time.Time { return now.Add(time.Duration(n) * time.Second) }
		many := func(kind pb.Watch_Type, from, to int, when time.Time) {
			for i := from; i < to; i++ {
				o := pod("default", fmt.Sprintf("web-%d", i), fmt.Sprint(i))
				o.Address = fmt.Sprintf("10.244.0.%d", i)
				l.Owner(owner(kind, o), when)
			}
		}
		many(pb.Watch_ADDED, 1, 101, second(1)) // 20 lines, and 80 only counted
		many(pb.Watch_REMOVED, 1, 51, second(2))
		many(pb.Watch_ADDED, 101, 103, second(2))
		l.Tick(second(3))                           // the second burst: all are counted
		many(pb.Watch_ADDED, 103, 105, second(4))   // still counted after a burst
		l.Tick(second(5))                           // the burst has ended
		many(pb.Watch_REMOVED, 103, 104, second(6)) // a separate line
		for i := range 30 {
			c := conflict(pb.Conflict_SUSPECTED)
			c.Id = fmt.Sprintf("id%d", i)
			l.Conflict(conflictEvent(pb.Watch_ADDED, c), second(7))
		}
		l.Tick(second(9))
	}))
}

func TestLiveColoursOnlyWhenAsked(t *testing.T) {
	for _, color := range []bool{false, true} {
		var b bytes.Buffer
		l := NewLive(&b, Layout{Color: color, Program: "ipwitness"})
		l.Conflict(conflictEvent(pb.Watch_ADDED, conflict(pb.Conflict_CONFIRMED)), now)
		if got := strings.Contains(b.String(), "\x1b["); got != color {
			t.Errorf("colour %t: got escape codes %t", color, got)
		}
	}
}

// finding returns a finding about the n-th address.
func finding(n int, kind string, severity pb.Finding_Severity) *pb.Finding {
	owner := pod("shop", fmt.Sprintf("web-%d", n), "1")
	owner.Address = fmt.Sprintf("10.244.0.%d", n)
	return &pb.Finding{
		Id: fmt.Sprintf("id%d", n), Kind: kind, Severity: severity, Address: owner.Address, Nodes: []string{"worker-1"}, DetectedAt: at(time.Duration(n) * time.Second),
		Summary: fmt.Sprintf("%s is held by pod shop/web-%d, and host-local takes it for free.", owner.Address, n),
		Owners:  []*pb.Owner{owner}, Pool: pools()[0], Runbook: "https://example.net/" + kind + ".md",
		Evidence: []string{"host-local has no record of the address."}, Remedy: []*pb.Action{{Text: "Write it."}, {Text: "Find out who deleted it."}},
		Fixes: []*pb.Fix{
			{Node: "worker-1", What: "Reserve it.", Command: "if true; then\n  echo " + owner.Address + "\nfi"},
			{Manual: true, What: "Start no pods on node worker-1.", Command: "kubectl cordon worker-1"},
		},
	}
}

func pools() []*pb.Pool {
	return []*pb.Pool{
		{Ipam: "host-local", Name: "/var/lib/cni/networks/cbr0", Node: "worker-1", Network: "cbr0", State: pb.Pool_MISSING, Size: 253, Ranges: []string{"10.244.0.2-10.244.0.254"}},
		{Ipam: "whereabouts", Name: "kube-system/192.0.2.0-29", State: pb.Pool_KNOWN, Size: 5, Allocated: 5, Leaked: 3, Ranges: []string{"192.0.2.1-192.0.2.5"}},
		{Ipam: "calico", Name: "default", State: pb.Pool_KNOWN, Size: 65536, Allocated: 700, ExhaustedIn: durationpb.New(26 * time.Hour)},
	}
}

func findings() []*pb.Finding {
	leaked := finding(60, "leaked", pb.Finding_WARNING)
	leaked.Address, leaked.Owners, leaked.Pool, leaked.Nodes, leaked.Fixes = "192.0.2.3", nil, pools()[1], nil, []*pb.Fix{{What: "Free it's\naddress.", Command: "echo free"}}
	leaked.Allocations = []*pb.Allocation{{
		Ipam: "whereabouts", Pool: "kube-system/192.0.2.0-29", Namespace: "shop", Pod: "cam-1", ContainerId: "0123456789abcdef0123", Interface: "net1",
		Location: "IPPool kube-system/192.0.2.0-29 /spec/allocations/3", AllocatedAt: at(time.Hour),
	}}
	lost := &pb.Finding{
		Id: "lost", Kind: "ipam-state-lost", Severity: pb.Finding_CRITICAL, Nodes: []string{"worker-1"}, DetectedAt: at(time.Minute), Pool: pools()[0],
		Summary: "host-local has lost all of its records.",
	}
	twice := &pb.Finding{Id: "twice", Kind: "duplicate-node-name", Severity: pb.Finding_INFO, Nodes: []string{"worker-1", "worker-1@b\x1b[31m"}, Summary: "Two are called worker-1.", DetectedAt: at(time.Hour)}
	list := []*pb.Finding{twice, leaked}
	for n := 12; n > 1; n-- {
		f := finding(n, "in-use-unallocated", pb.Finding_CRITICAL)
		list = append(list, f)
		lost.Addresses = append(lost.Addresses, f.GetAddress())
	}
	list = append(list, lost, finding(99, "booked-elsewhere", pb.Finding_CRITICAL))
	SortFindings(list)
	return list
}

func TestFindings(t *testing.T) {
	var b bytes.Buffer
	for name, layout := range map[string]Layout{"findings": piped, "findings-wide": wide} {
		b.Reset()
		if err := Findings(&b, findings(), layout, now); err != nil {
			t.Fatal(err)
		}
		wantShown(t, name, b.String())
	}
}

func TestFindingPage(t *testing.T) {
	for _, f := range findings() {
		if !slices.Contains([]string{"lost", "id2", "id60"}, f.GetId()) {
			continue
		}
		var b bytes.Buffer
		if err := Finding(&b, f, piped, now); err != nil {
			t.Fatal(err)
		}
		wantShown(t, "finding-page-"+f.GetKind(), b.String())
	}

	// The owners of one MAC have no address, and so no time since when they have it.
	var b bytes.Buffer
	if err := Finding(&b, &pb.Finding{Id: "cloned", Owners: []*pb.Owner{{Node: "worker-1", Mac: "02:00:00:00:00:01"}}}, piped, now); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "since") {
		t.Errorf("owner without a time: got %s", b.String())
	}
}

func TestFindingWatch(t *testing.T) {
	var b bytes.Buffer
	w := NewWatch(&b, FindingKind, piped)
	w.Begin()
	event := func(kind pb.Watch_Type, f *pb.Finding) {
		if err := w.Event(kind, f, now); err != nil {
			t.Fatal(err)
		}
	}
	event(pb.Watch_ADDED, finding(2, "in-use-unallocated", pb.Finding_CRITICAL))
	event(pb.Watch_BOOKMARK, nil)
	event(pb.Watch_ADDED, finding(3, "leaked", pb.Finding_WARNING))
	event(pb.Watch_REMOVED, finding(2, "in-use-unallocated", pb.Finding_CRITICAL))
	wantShown(t, "findings-watch", b.String())
}

func TestPools(t *testing.T) {
	many := pools()
	for i := range 20 {
		many = append(many, &pb.Pool{Ipam: "host-local", Name: "/run/cni-ipam-state/kindnet", Node: fmt.Sprintf("worker-%d", i), State: pb.Pool_KNOWN, Size: 253, Allocated: uint64(i)})
	}
	var b bytes.Buffer
	if err := Pools(&b, many, piped); err != nil {
		t.Fatal(err)
	}
	wantShown(t, "pools", b.String())
	b.Reset()
	if err := Pools(&b, pools(), wide); err != nil {
		t.Fatal(err)
	}
	wantShown(t, "pools-wide", b.String())
	if got, want := Audited(pools()), "3 pools with 705 allocations (calico, host-local, whereabouts)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFixPlan(t *testing.T) {
	from := Origin{Server: "http://127.0.0.1:9641", Now: now, Nodes: []*pb.Node{{Name: "worker-1", BootId: "b00t", Netns: "4026531840"}}}
	plan := func(findings []*pb.Finding) string {
		var b bytes.Buffer
		if err := FixPlan(&b, findings, from); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	whole := plan(findings())
	wantShown(t, "fix-plan", whole)
	wantShown(t, "fix-plan-nothing", plan(nil))

	run := func(script string, args ...string) (string, error) {
		out, err := exec.Command("sh", append([]string{"-c", script, "plan.sh"}, args...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := run(plan(nil)); err != nil || out != "There is nothing to repair.\n" {
		t.Errorf("got %q, %v of a plan without steps", out, err)
	}
	usage, err := run(whole)
	if err != nil {
		t.Errorf("got %v without an argument: %s", err, usage)
	}
	wantShown(t, "fix-plan-usage", usage)
	if out, err := run(whole, "node", "worker-1"); err == nil || !strings.HasPrefix(out, "This is not node worker-1") {
		t.Errorf("got %q, %v on another node, want it refused", out, err)
	}
	if out, err := run(whole, "node", "worker-2"); err == nil || !strings.HasPrefix(out, "This plan has no such part") {
		t.Errorf("got %q, %v of a node without a part", out, err)
	}
	if _, err := exec.LookPath("kubectl"); err != nil {
		if out, err := run(whole, "cluster"); err == nil {
			t.Errorf("got %q without kubectl, want it refused", out)
		}
	}
}

func TestTimesAreInOneZoneWhichIsShownOnce(t *testing.T) {
	elsewhere := now.In(time.FixedZone("elsewhere", -(9*60+30)*60)) // in this time zone it is still the previous day
	f := finding(1, "leaked", pb.Finding_WARNING)
	live := func(now time.Time) func(*bytes.Buffer) error {
		return func(b *bytes.Buffer) error {
			l := NewLive(b, piped)
			l.Start("v0.1.0", &pb.Node{Name: "worker-1"}, "", "")
			l.Conflict(conflictEvent(pb.Watch_ADDED, diagnosed()), now)
			return nil
		}
	}
	watch := func(now time.Time) func(*bytes.Buffer) error {
		return func(b *bytes.Buffer) error {
			w := NewWatch(b, ConflictKind, piped)
			return errors.Join(w.Event(pb.Watch_ADDED, diagnosed(), now), w.Event(pb.Watch_BOOKMARK, nil, now))
		}
	}
	for name, output := range map[string]func(now time.Time) func(*bytes.Buffer) error{
		"conflict": func(now time.Time) func(*bytes.Buffer) error {
			return func(b *bytes.Buffer) error { return Conflict(b, diagnosed(), piped, now) }
		},
		"acknowledged": func(now time.Time) func(*bytes.Buffer) error {
			return func(b *bytes.Buffer) error { return Conflict(b, acknowledged(), piped, now) }
		},
		"acknowledgement": func(now time.Time) func(*bytes.Buffer) error {
			return func(b *bytes.Buffer) error { return Acknowledged(b, acknowledged(), piped, now) }
		},
		"explanation": func(now time.Time) func(*bytes.Buffer) error {
			return func(b *bytes.Buffer) error {
				return Explain(b, &pb.ExplainResponse{Conflicts: []*pb.Conflict{acknowledged()}, Owners: owners()}, piped, now)
			}
		},
		"finding": func(now time.Time) func(*bytes.Buffer) error {
			return func(b *bytes.Buffer) error { return Finding(b, f, piped, now) }
		},
		"live": live, "watch": watch,
	} {
		var here, there bytes.Buffer
		if err := errors.Join(output(now)(&here), output(elsewhere)(&there)); err != nil {
			t.Fatal(err)
		}
		if here.String() != there.String() {
			t.Errorf("%s: got\n%s\nin another time zone, want\n%s", name, &there, &here)
		}
		if got := strings.Count(here.String(), "UTC"); got != 1 {
			t.Errorf("%s: got the zone %d times, want it once:\n%s", name, got, &here)
		}
	}
}

// TestLogLinesDoNotInterruptAConflict writes log records while conflicts are printed.
func TestLogLinesDoNotInterruptAConflict(t *testing.T) {
	var b bytes.Buffer
	l := NewLive(&b, piped)
	log := slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn})).With("component", "agent").WithGroup("wire")
	const many = 200
	var done sync.WaitGroup
	done.Go(func() {
		for range many {
			log.Warn("cannot watch interface", "if_name", "veth0\x1b[2J", "error", errors.New("no\nroom"))
			log.Info("nobody asked for this")
		}
	})
	done.Go(func() {
		for i := range many {
			c := conflict(pb.Conflict_CONFIRMED)
			c.Id = fmt.Sprint("id", i)
			l.Conflict(conflictEvent(pb.Watch_ADDED, c), now.Add(time.Duration(i)*2*time.Second)) // spaced out, so that they are not a burst
		}
	})
	done.Wait()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	logged, begun := 0, 0
	for i := 0; i < len(lines); i++ {
		switch {
		case strings.Contains(lines[i], "WARN"):
			logged++
			if !strings.HasSuffix(lines[i], `level=WARN msg="cannot watch interface" component=agent wire.if_name="veth0\x1b[2J" wire.error="no\nroom"`) {
				t.Fatalf("got line %q", lines[i])
			}
		case strings.Contains(lines[i], "CONFIRMED"):
			begun++
			block := lines[i+1 : i+6]
			for _, line := range block {
				if !strings.HasPrefix(line, "            ") {
					t.Fatalf("got an interrupted description of a conflict:\n%s", strings.Join(block, "\n"))
				}
			}
			i += len(block)
		default:
			t.Fatalf("got line %q, want a log line or the first line of a conflict", lines[i])
		}
	}
	if logged != many || begun != many {
		t.Errorf("got %d lines of the log and %d conflicts, want %d of each", logged, begun, many)
	}
}

func TestCommandsOfARemedyInvokeThisProgramAsTheUserDoes(t *testing.T) {
	c := conflict(pb.Conflict_CONFIRMED)
	c.Remedy = []*pb.Action{
		{Text: "Check.", Command: "ipwitness explain 10.0.0.7"},
		{Text: "Look there.", Command: "ipwitness doctor", Node: "node-1"},
		{Text: "Restart it.", Command: "kubectl delete pod ipwitness -n shop"},
	}
	for program, want := range map[string][]string{
		"":                  {"ipwitness explain 10.0.0.7", "ipwitness doctor", "kubectl delete pod ipwitness -n shop"},
		"kubectl ipwitness": {"kubectl ipwitness explain 10.0.0.7", "ipwitness doctor", "kubectl delete pod ipwitness -n shop"},
	} {
		var b bytes.Buffer
		if err := Conflict(&b, c, Layout{Program: program}, now); err != nil {
			t.Fatal(err)
		}
		for _, command := range want {
			if !strings.Contains(b.String(), "  "+command+"\n") {
				t.Errorf("as %q: got\n%s\nwant the command %q", program, &b, command)
			}
		}
	}
}
