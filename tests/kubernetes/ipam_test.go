package kubernetes

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// withoutHostLocal hides host-local from the agents, as if another IPAM allocated the addresses of
// pods. The kubelets' own network takes the part of Calico or whereabouts, and the test writes the
// objects that these would write.
func (l *lab) withoutHostLocal() {
	l.t.Helper()
	l.agent = filepath.Join(l.t.TempDir(), "ipwitness")
	script := fmt.Sprintf(`#!/bin/sh
exec unshare --mount --propagation slave sh -ec '
	mkdir -p /var/lib/cni/networks /etc/cni
	mount -t tmpfs tmpfs /var/lib/cni/networks
	mount -t tmpfs tmpfs /etc/cni
	exec %s "$@"' sh "$@"
`, netlab.AgentOf(binary))
	if err := os.WriteFile(netlab.AgentOf(l.agent), []byte(script), 0o700); err != nil {
		l.t.Fatal(err)
	}
}

// define applies the custom resource definitions of an IPAM for the duration of the test.
func (l *lab) define(ipam string) {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	l.t.Cleanup(func() {
		ctx, cancel := l.context()
		defer cancel()
		if err := l.DeleteCRDs(ctx, ipam); err != nil {
			l.t.Error(err)
		}
	})
	if err := l.ApplyCRDs(ctx, ipam); err != nil {
		l.t.Fatal(err)
	}
}

// gateway is the bridge address of each kubelet's network. Calico and whereabouts would have none.
const gateway = "10.244.0.1"

// findings returns the current findings of the aggregator, also as KIND ADDRESS.
func (l *lab) findings() (texts []string, all []*ipwitnessv1.Finding, err error) {
	var m ipwitnessv1.ListFindingsResponse
	if err := l.aggregator.Get(l.t.Context(), "/v1/findings", &m); err != nil {
		return nil, nil, err
	}
	for _, f := range m.GetFindings() {
		// The networks of the kubelets do overlap: this is the cause of the duplicates here.
		if f.GetAddress() != gateway && f.GetKind() != "pod-cidr-overlap" {
			texts = append(texts, strings.TrimSpace(f.GetKind()+" "+f.GetAddress()))
			all = append(all, f)
		}
	}
	return texts, all, nil
}

// awaitFindings waits until the findings are exactly these.
func (l *lab) awaitFindings(want ...string) (all []*ipwitnessv1.Finding) {
	l.t.Helper()
	slices.Sort(want)
	l.until(fmt.Sprintf("findings %q", want), func() (err error) {
		var got []string
		got, all, err = l.findings()
		if slices.Sort(got); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
	return all
}

// awaitFinding waits until there is exactly this finding and its summary contains the names, which
// may be added later.
func (l *lab) awaitFinding(want string, names ...string) (f *ipwitnessv1.Finding) {
	l.t.Helper()
	l.until("what "+want+" says", func() error {
		f = l.awaitFindings(want)[0]
		for _, name := range names {
			if !strings.Contains(f.GetSummary(), name) {
				return fmt.Errorf("got %q, want it to name %s", f.GetSummary(), name)
			}
		}
		return nil
	})
	return f
}

// audited waits until a pool is known with a number of allocations.
func (l *lab) audited(pool string, allocations uint64) {
	l.t.Helper()
	l.until(fmt.Sprintf("pool %s with %d allocations", pool, allocations), func() error {
		var m ipwitnessv1.ListPoolsResponse
		if err := l.aggregator.Get(l.t.Context(), "/v1/pools", &m); err != nil {
			return err
		}
		for _, p := range m.GetPools() {
			if p.GetName() == pool && p.GetState() == ipwitnessv1.Pool_KNOWN && p.GetAllocated() == allocations {
				return nil
			}
		}
		return fmt.Errorf("got %v", m.GetPools())
	})
}

// plan runs the output of `ipwitness audit --fix-plan` for a machine with kubectl.
func (l *lab) plan() string {
	l.t.Helper()
	script, err := l.Stdout(l.Command(binary, "audit", "--fix-plan"))
	if err != nil {
		l.t.Fatal(err)
	}
	for range 2 { // the plan is idempotent
		l.t.Logf("the plan says:\n%s", l.shell(script, "cluster"))
	}
	return script
}

// shell runs a script on a machine with kubectl, and returns its output.
func (l *lab) shell(script string, args ...string) string {
	l.t.Helper()
	dir := l.t.TempDir()
	file := filepath.Join(dir, "script.sh")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		l.t.Fatal(err)
	}
	// The test's kubectl, with its kubeconfig and in the cluster's network.
	kubectl := l.KubectlCommand()
	at := slices.Index(kubectl.Args, filepath.Join(l.programs, "kubectl"))
	if at < 0 {
		l.t.Fatalf("kubectl is run as %q", kubectl.Args)
	}
	var quoted []string
	for _, arg := range kubectl.Args[at:] {
		quoted = append(quoted, "'"+arg+"'")
	}
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\nexec "+strings.Join(quoted, " ")+" \"$@\"\n"), 0o700); err != nil {
		l.t.Fatal(err)
	}
	cmd := l.Command("sh", append([]string{file}, args...)...)
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := l.Output(cmd)
	if err != nil {
		l.t.Fatalf("%v\n%s\n%s", err, out, script)
	}
	return out
}

// block returns Calico's IPAMBlock of the first 64 addresses of the pod network. It contains
// allocations for pods, each with a node, and the address of a tunnel.
func block(affinity string, allocated map[string]calicoAllocation) string {
	allocations, attributes := make([]*int, 64), []map[string]any{}
	var unallocated []int
	for ordinal := range 64 {
		if ordinal == 60 {
			n := len(attributes)
			allocations[ordinal] = &n
			attributes = append(attributes, map[string]any{
				"handle_id": "vxlan-tunnel-addr-" + affinity, "secondary": map[string]string{"node": affinity, "type": "vxlanTunnelAddress"},
			})
			continue
		}
		addr := fmt.Sprintf("10.244.0.%d", ordinal)
		b, ok := allocated[addr]
		if !ok {
			unallocated = append(unallocated, ordinal)
			continue
		}
		n := len(attributes)
		allocations[ordinal] = &n
		attributes = append(attributes, map[string]any{
			"handle_id": "k8s-pod-network." + b.sandbox,
			"secondary": map[string]string{"node": b.node, "pod": b.pod, "namespace": b.namespace, "timestamp": row.Day + " 12:00:00.000000000 +0000 UTC"},
		})
	}
	text, _ := json.Marshal(map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": map[string]any{"name": "10-244-0-0-26"},
		"spec": map[string]any{
			"cidr": "10.244.0.0/26", "affinity": "host:" + affinity, "allocations": allocations, "attributes": attributes,
			"unallocated": unallocated, "strictAffinity": false, "deleted": false,
		},
	})
	return string(text)
}

type calicoAllocation struct{ node, namespace, pod, sandbox string }

// Calico's issue 12257: a node created from a template has the template's name in
// /var/lib/calico/nodename, so its first pod is allocated for another node. The garbage collector
// does not find the pod on that node and frees the address, which is then allocated again.
func TestT3CalicoAllocatesForAnotherNode(t *testing.T) {
	l := newLab(t, "calico")
	l.define("calico")
	l.withoutHostLocal()
	node1 := l.node("node1")
	if err := os.MkdirAll(node1.Path("/var/lib/calico"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(node1.Path("/var/lib/calico/nodename"), []byte("node2"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(node1.Path("/var/lib/calico")); err != nil {
			t.Error(err)
		}
	})
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	l.apply(`{"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "default-ipv4-ippool"},
		"spec": {"cidr": "10.244.0.0/16", "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Never", "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"]}}`)
	l.apply(`{"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": {"name": "node2-10-244-0-0-26"},
		"spec": {"cidr": "10.244.0.0/26", "node": "node2", "state": "confirmed", "deleted": "false"}}`)
	l.apply(block("node2", nil))

	i := l.incident(15)
	first := l.run("first", "node1", "")
	wrong := calicoAllocation{"node2", l.namespace, "first", l.sandbox(first, "").ID}
	l.apply(block("node2", map[string]calicoAllocation{first.Address: wrong}))
	f := l.awaitFinding("booked-elsewhere "+first.Address, "first", "node1", "node2")
	if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || !strings.Contains(fmt.Sprint(f.GetRemedy(), f.GetFixes()), "/var/lib/calico/nodename") {
		t.Errorf("got %v, want it critical, with the setting to correct", f)
	}
	l.described("AddressBookedElsewhere", "pod", "first", first.Address)
	i.Foretold(f, l.conflicts(first.Address))

	// Calico's garbage collector frees the address.
	l.apply(block("node2", nil))
	l.awaitFindings("in-use-unallocated " + first.Address)

	// The next pod gets the same address.
	for _, n := range l.Nodes { // not the directory that is hidden from the agents
		if err := n.forget("/var/lib/cni/networks/pods"); err != nil {
			t.Fatal(err)
		}
	}
	second := l.run("second", "node2", "")
	if second.Address != first.Address {
		t.Fatalf("addresses: got %s and %s, want the same", first.Address, second.Address)
	}
	l.apply(block("node2", map[string]calicoAllocation{second.Address: {"node2", l.namespace, "second", l.sandbox(second, "").ID}}))
	c := l.awaitCause(first.Address, "ipam-booked-elsewhere")
	l.awaitFindings()
	l.row("T3-calico", first.Address, "assigned-twice")
	i.Conflict(c, "ipam-booked-elsewhere", l.ipwitness)

	l.in("delete", "pod", "first")
	l.awaitConflict(first.Address, resolved)
	l.awaitFindings()
	i.Remedied(c.GetRemedy(), "kubectl delete pod -n calico first")
}

// awaitCause waits until the conflict of an address is confirmed and has a cause.
func (l *lab) awaitCause(addr, cause string) *ipwitnessv1.Conflict {
	l.t.Helper()
	return l.awaitConflictSuch(addr, confirmed, func(c *ipwitnessv1.Conflict) error {
		if c.GetCause() != cause {
			return fmt.Errorf("got %s: %v, not %v", c.GetCause(), c.GetBecause(), c.GetExcluded())
		}
		return nil
	})
}

// ippool returns an IPPool of whereabouts for five addresses, with its allocations.
func ippool(allocations map[string]map[string]string) string {
	text, _ := json.Marshal(map[string]any{
		"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool", "metadata": map[string]any{"name": "10.244.0.0-29", "namespace": "kube-system"},
		"spec": map[string]any{"range": "10.244.0.0/29", "allocations": allocations},
	})
	return string(text)
}

func TestWhereaboutsLeaksAfterACrashAndLosesRunningPods(t *testing.T) {
	l := newLab(t, "whereabouts")
	l.define("whereabouts")
	l.withoutHostLocal()
	l.witness("--leaked-after", "1s")
	l.api(ipwitnessv1.Kubernetes_LIVE)
	kube := func(manifest string) {
		t.Helper()
		ctx, cancel := l.context()
		defer cancel()
		if err := l.Apply(ctx, manifest); err != nil {
			t.Fatal(err)
		}
	}
	l.apply(`{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "pods"}, "spec": {"config":
		"{\"cniVersion\":\"1.0.0\",\"name\":\"pods\",\"type\":\"macvlan\",\"master\":\"eth0\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.244.0.0/29\",\"range_start\":\"10.244.0.2\",\"range_end\":\"10.244.0.6\"}}"}}`)

	a, b := l.run("a", "node1", ""), l.run("b", "node1", "")
	allocated, reserved := map[string]map[string]string{}, map[string]string{}
	allocate := func(addr, pod, sandbox string) {
		offset := fmt.Sprint(netip.MustParseAddr(addr).As4()[3])
		allocated[offset] = map[string]string{"id": sandbox, "podref": l.namespace + "/" + pod, "ifname": "eth0"}
		reserved[addr] = pod
		kube(fmt.Sprintf(`{"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation", "metadata": {"name": %q, "namespace": "kube-system"},
			"spec": {"containerid": %q, "podref": %q, "ifname": "eth0"}}`, addr, sandbox, l.namespace+"/"+pod))
	}
	for _, p := range []pod{a, b} {
		allocate(p.Address, p.Name, l.sandbox(p, "").ID)
	}
	// The allocations of a node that crashed.
	var lost []string
	for i := 2; i <= 6; i++ {
		if addr := fmt.Sprintf("10.244.0.%d", i); reserved[addr] == "" {
			allocate(addr, fmt.Sprintf("lost-%d", i), strings.Repeat(fmt.Sprint(i), 64))
			lost = append(lost, addr)
		}
	}
	kube(ippool(allocated))
	l.audited("kube-system/10.244.0.0-29", 5)
	want := []string{"pool-exhaustion"}
	for _, addr := range lost {
		want = append(want, "leaked "+addr)
	}
	for _, f := range l.awaitFindings(want...) {
		if p := f.GetPool(); p.GetSize() != 5 || p.GetAllocated() != 5 {
			t.Errorf("pool: got %v, want 5 of 5", p)
		}
	}
	l.plan()
	l.awaitFindings()
	offsets := func() (at []string) {
		t.Helper()
		var pool struct {
			Spec struct {
				Allocations map[string]struct{ Podref, ID, IfName string }
			}
		}
		if err := json.Unmarshal([]byte(l.kube("--namespace", "kube-system", "get", "ippools.whereabouts.cni.cncf.io", "10.244.0.0-29", "--output", "json")), &pool); err != nil {
			t.Fatal(err)
		}
		for offset, al := range pool.Spec.Allocations {
			at = append(at, offset+" "+al.Podref+" "+al.ID+" "+al.IfName)
		}
		slices.Sort(at)
		return at
	}
	alive := offsets()
	if len(alive) != 2 || !strings.Contains(alive[0], l.namespace+"/") {
		t.Errorf("allocations: got %q, want those of a and b", alive)
	}
	left := strings.Fields(l.kube("--namespace", "kube-system", "get", "overlappingrangeipreservations.whereabouts.cni.cncf.io", "--output", "jsonpath={.items[*].metadata.name}"))
	slices.Sort(left)
	if living := []string{a.Address, b.Address}; !slices.Equal(left, living) {
		t.Errorf("reservations: got %q, want %q", left, living)
	}

	// The reverse: an allocation is lost while its pod runs.
	i := l.incident(22)
	offset := fmt.Sprint(netip.MustParseAddr(a.Address).As4()[3])
	l.kube("--namespace", "kube-system", "patch", "ippools.whereabouts.cni.cncf.io", "10.244.0.0-29", "--type=json",
		"--patch", fmt.Sprintf(`[{"op": "remove", "path": "/spec/allocations/%s"}]`, offset))
	l.kube("--namespace", "kube-system", "delete", "overlappingrangeipreservations.whereabouts.cni.cncf.io", a.Address)
	f := l.awaitFinding("in-use-unallocated "+a.Address, l.namespace+"/a")
	i.Foretold(f, l.conflicts(a.Address))
	i.Found(f, f.GetKind(), l.ipwitness)
	l.plan()
	l.awaitFindings()
	i.Remedied(f.GetRemedy(), "ipwitness audit --fix-plan > plan.sh", "sh plan.sh cluster")
	if got := offsets(); !slices.Equal(got, alive) {
		t.Errorf("allocations: got %q, want %q (unchanged)", got, alive)
	}

	// All allocations are lost, with the pool.
	l.kube("--namespace", "kube-system", "delete", "ippools.whereabouts.cni.cncf.io", "10.244.0.0-29")
	l.kube("--namespace", "kube-system", "delete", "overlappingrangeipreservations.whereabouts.cni.cncf.io", "--all")
	l.awaitFindings("in-use-unallocated "+a.Address, "in-use-unallocated "+b.Address, "ipam-state-lost")
	l.plan()
	l.awaitFindings()
	if got := offsets(); !slices.Equal(got, alive) {
		t.Errorf("allocations after the pool was lost: got %q, want %q (unchanged)", got, alive)
	}
}

// An EndpointSlice that a person wrote keeps the address of a deleted pod, which another pod gets. The one that the controller
// made has followed.
func TestAnEndpointLeadsToTheNextOwner(t *testing.T) {
	l := newLab(t, "former-endpoint")
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	for name, selector := range map[string]string{"made": `, "selector": {"app": "old"}`, "written": ""} {
		l.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q}, "spec": {"ports": [{"port": 80}]%s}}`, name, selector))
	}
	i := l.incident(40)
	old := l.run("old", "node1", `"app": "old"`)
	l.awaitHolders(old.Address, old)
	l.apply(fmt.Sprintf(`{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"port": 80}],
		"metadata": {"name": "written-1", "labels": {"kubernetes.io/service-name": "written"}},
		"endpoints": [{"addresses": [%q], "targetRef": {"kind": "Pod", "namespace": %q, "name": "old", "uid": %q}}]}`, old.Address, l.namespace, old.UID))
	l.in("delete", "pod", "old")
	for _, n := range l.Nodes {
		if err := n.Forget(); err != nil {
			t.Fatal(err)
		}
	}
	young := l.run("young", "node1", "")
	if young.Address != old.Address {
		t.Fatalf("addresses: got %s and %s, want the same", old.Address, young.Address)
	}
	f := l.awaitFindings("endpoint-of-former-owner " + old.Address)[0]
	if e := f.GetEndpoints(); len(e) != 1 || e[0].GetSlice() != "written-1" || e[0].GetUid() != old.UID || f.GetOwners()[0].GetWorkload().GetUid() != young.UID {
		t.Errorf("got %v, want that packets for Service written reach pod young", f)
	}
	i.Found(f, f.GetKind(), l.ipwitness)
	i.Foretold(f, l.conflicts(old.Address)) // nothing has sent a packet to the Service
	l.in("delete", "endpointslice", "written-1")
	l.awaitFindings()
	i.Remedied(f.GetRemedy())
}

// The CiliumEndpoint of a pod that has ended keeps the address, which another pod gets. Cilium itself does not run: the test
// writes the objects that its agents would write, and its operator would delete the one of the ended pod.
func TestAnIdentityOfAFormerPod(t *testing.T) {
	l := newLab(t, "former-identity")
	l.define("cilium")
	l.withoutHostLocal()
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	l.apply(`{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "node1"},
		"spec": {"addresses": [{"type": "InternalIP", "ip": "172.18.0.2"}], "ipam": {"podCIDRs": ["10.244.0.0/24"]}}}`)
	endpoint := func(p pod, identity int) {
		t.Helper()
		l.apply(fmt.Sprintf(`{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": %[1]q,
			"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": %[1]q, "uid": %[2]q}]},
			"status": {"id": 207, "state": "ready", "external-identifiers": {"k8s-namespace": %[3]q, "k8s-pod-name": %[1]q},
			"identity": {"id": %[4]d, "labels": ["k8s:app=%[1]s"]}, "networking": {"addressing": [{"ipv4": %[5]q}], "node": "172.18.0.2"}}}`,
			p.Name, p.UID, l.namespace, identity, p.Address))
	}
	i := l.incident(63)
	job := l.run("job", "node1", "")
	endpoint(job, 23407)
	l.audited("node1", 1)
	l.awaitFindings()
	l.in("patch", "pod", "job", "--patch", `{"spec": {"activeDeadlineSeconds": 1}}`)
	l.until("the pod has ended", func() error {
		if phase := l.in("get", "pod", "job", "--output", "jsonpath={.status.phase}"); phase != "Failed" {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	l.awaitHolders(job.Address)
	for _, n := range l.Nodes {
		if err := n.Forget(); err != nil {
			t.Fatal(err)
		}
	}
	young := l.run("young", "node1", "")
	if young.Address != job.Address {
		t.Fatalf("addresses: got %s and %s, want the same", job.Address, young.Address)
	}
	endpoint(young, 40001)
	f := l.awaitFindings("identity-mismatch " + job.Address)[0]
	if al := f.GetAllocations(); len(al) != 1 || al[0].GetPod() != "job" || al[0].GetIdentity() != 23407 || f.GetOwners()[0].GetWorkload().GetUid() != young.UID {
		t.Errorf("got %v, want that pod young has the identity of pod job", f)
	}
	i.Found(f, f.GetKind(), l.ipwitness)
	var command string
	for _, c := range situations.Commands(f.GetRemedy()) {
		if strings.Contains(c, "kubectl delete ciliumendpoints") {
			command = c
		}
	}
	l.shell(command)
	l.awaitFindings()
	i.Remedied(f.GetRemedy(), command)
	if left := l.in("get", "ciliumendpoints.cilium.io", "--output", "jsonpath={.items[*].metadata.name}"); left != "young" {
		t.Errorf("left are the CiliumEndpoints of %s, want that of young", left)
	}
	l.described("AddressIdentityMismatch", "pod", "young", job.Address)
}
