package kube

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/tests/kubernetes"
)

// replicaRights are the permissions of docs/reference.md that only replicas need.
const replicaRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: replicas, namespace: NAMESPACE}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [witness], verbs: [get, update]}
- {apiGroups: [ipwitness.io], resources: [addressconflictacknowledgements], verbs: [list, watch, create, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: replicas, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: replicas}
subjects: [{kind: ServiceAccount, name: ACCOUNT, namespace: OUTSIDE}]
`

// On a real API server, one of two replicas leads, both have the acknowledgements, and the other one is the
// next leader.
func TestRealReplicas(t *testing.T) {
	l := newLab(t)
	definition, err := os.ReadFile("../../deploy/helm/ipwitness/crds/addressconflictacknowledgements.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l.apply("%s", definition)
	l.Cleanup(func() { l.kube("delete", "crd", acknowledgementKind.String()) })
	l.kube("wait", "--for=condition=Established", "crd/"+acknowledgementKind.String(), "--timeout=1m")
	l.apply("%s", strings.NewReplacer("NAMESPACE", l.namespace, "ACCOUNT", rich, "OUTSIDE", kubernetes.Outside).Replace(replicaRights))
	start := func() (m *mirrored, stop func()) {
		m = l.replica(rich, l.namespace+"/witness")
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if err := m.Lead(ctx, func() bool { return true }, func(ctx context.Context) { <-ctx.Done() }); err != nil {
				t.Error(err)
			}
		})
		stop = sync.OnceFunc(func() { cancel(); group.Wait() })
		t.Cleanup(stop)
		return m, stop
	}
	a, stop := start()
	a.until("the first replica leads", a.Leads)
	b, _ := start()
	b.until("the second one knows the leader", func() bool { return b.Election().GetLeader() != "" })
	if b.Leads() {
		t.Error("both lead")
	}

	const conflict = "abcdefghijklmnop"
	expires := time.Now().Add(time.Hour).UTC()
	ack := &Acknowledgement{Conflict: conflict, Address: addresses("10.0.0.1")[0], Reason: "NET-1", By: "ada", At: time.Now().UTC(), Expires: expires, Owners: []string{"boot/1"}}
	first, err := a.Acknowledge(t.Context(), ack)
	if err != nil {
		t.Fatal(err)
	}
	find := func(version string) func() bool {
		return func() bool {
			all, known := b.Acknowledgements()
			return known && len(all) == 1 && all[0].Version == version
		}
	}
	b.until("the acknowledgement in the other replica", find(first))
	if all, _ := b.Acknowledgements(); all[0].Reason != "NET-1" || all[0].By != "ada" || !all[0].Expires.Equal(expires) || len(all[0].Owners) != 1 {
		t.Errorf("got %+v, want %+v", all[0], ack)
	}
	ack.Owners = []string{"boot/2", "boot/3"}
	second, err := b.Acknowledge(t.Context(), ack)
	if err != nil {
		t.Fatal(err)
	}
	if !Older(first, second) {
		t.Errorf("version %s is not older than %s", first, second)
	}
	b.until("the other owners", find(second))
	if err := a.Withdraw(t.Context(), conflict, first); err != nil {
		t.Fatal(err)
	}
	if got := l.kube("get", "aca", "--namespace", l.namespace, "--no-headers"); !strings.Contains(got, conflict) || !strings.Contains(got, "10.0.0.1") || !strings.Contains(got, "NET-1") {
		t.Errorf("kubectl shows %q after an older version was withdrawn", got)
	}
	if err := a.Withdraw(t.Context(), conflict, second); err != nil {
		t.Fatal(err)
	}
	b.until("the end of the acknowledgement", func() bool { all, _ := b.Acknowledgements(); return len(all) == 0 })

	manifest := "apiVersion: ipwitness.io/v1alpha1\nkind: AddressConflictAcknowledgement\nmetadata: {name: %s, namespace: %s}\nspec: {reason: %q, expiresAt: %q}\n"
	l.apply(manifest, "late", l.namespace, "by hand", "2099-01-01T00:00:00Z")
	b.until("the problem of an object that lasts too long", func() bool {
		return strings.Contains(strings.Join(b.Status().GetProblems(), "\n"), l.namespace+"/late")
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := l.Apply(ctx, strings.NewReplacer("NAME", l.namespace).Replace(
		"apiVersion: ipwitness.io/v1alpha1\nkind: AddressConflictAcknowledgement\nmetadata: {name: bad, namespace: NAME}\nspec: {expiresAt: tomorrow}\n")); err == nil {
		t.Error("the API server accepts an object without a reason")
	}

	stop()
	b.until("the second replica leads", b.Leads)
}
