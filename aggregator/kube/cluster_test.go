package kube

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestPodsOfARealAPI(t *testing.T) {
	l := newLab(t)
	l.node("other-node", "10.99.9.0/24")
	l.node("pods-node", "10.99.1.0/24")
	l.pod("plain", "pods-node", "10.99.1.7", "")
	l.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NAMESPACE}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: example/image}]}
`)
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)

	m.until("the node's range is known", func() bool { return m.InPodCIDR(netip.MustParseAddr("10.99.1.200")) })
	before := m.named("plain", "pods-node")
	if before == nil || before.Absent || before.Phase != "Running" || before.Node != "pods-node" || before.UID == "" ||
		!slices.Equal(before.IPs, []netip.Addr{netip.MustParseAddr("10.99.1.7")}) {
		t.Errorf("got %+v", before)
	}
	if by := m.Pod("", "", before.UID, ""); by != before {
		t.Errorf("by uid: got %+v, want the same object", by)
	}
	for what, p := range map[string]*verdict.PodObject{
		"another node":    m.named("plain", "other-node"),
		"an unknown name": m.named("nobody", "pods-node"),
		"an unknown uid":  m.Pod(l.namespace, "plain", "7c6e8a8e-0000-0000-0000-000000000000", "pods-node"),
	} {
		if p == nil || !p.Absent {
			t.Errorf("%s: got %+v, want absent", what, p)
		}
	}
	if p := m.named("nobody", "elsewhere"); p != nil {
		t.Errorf("on a machine outside the cluster: got %+v, want nothing", p)
	}
	if m.InPodCIDR(netip.MustParseAddr("10.99.2.1")) {
		t.Error("a range that no node has is known")
	}

	var web *verdict.PodObject
	m.until("the pod of the Deployment is reported", func() bool {
		return m.reported(func(c Changes) bool {
			i := slices.IndexFunc(c.Pods, func(p PodKey) bool { return p.Namespace == l.namespace && strings.HasPrefix(p.Name, "web-") })
			if i >= 0 {
				web = m.Pod("", "", c.Pods[i].UID, "")
			}
			return i >= 0
		})
	})
	if web.ControllerKind != "Deployment" || web.Phase != "Pending" {
		t.Errorf("got %+v, want it of the Deployment web, and pending", web)
	}

	// With a finalizer, the pod is terminating and stays.
	l.kube("patch", "--namespace", l.namespace, "pod/plain", "--patch", `{"metadata":{"finalizers":["ipwitness.test/stay"]}}`)
	l.kube("delete", "--namespace", l.namespace, "pod/plain", "--wait=false")
	m.until("the deletion of the pod is requested", func() bool {
		p := m.named("plain", "pods-node")
		return p != nil && p.DeletionTimestamp != 0
	})
	l.kube("patch", "--namespace", l.namespace, "pod/plain", "--patch", `{"metadata":{"finalizers":null}}`)
	m.until("the pod is absent", func() bool { return gone(m.Pod("", "", before.UID, "pods-node")) })
	m.until("the end of the pod is reported", func() bool {
		return m.reported(func(c Changes) bool {
			return slices.ContainsFunc(c.Pods, func(p PodKey) bool { return p.UID == before.UID })
		})
	})
	if s := m.Status(); len(s.GetProblems()) > 0 || s.GetNodes() == 0 || !strings.HasPrefix(s.GetServer(), "https://") || s.GetLastHeard() == nil {
		t.Errorf("got status %v", s)
	}
}

// If the API server is killed, nothing is forgotten.
func TestTheAPIServerIsKilled(t *testing.T) {
	l := newLab(t)
	l.node("killed-node", "10.99.3.0/24")
	l.pod("stays", "killed-node", "10.99.3.7", "")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	stays := m.named("stays", "killed-node")

	l.KillAPI()
	m.awaitState(pb.Kubernetes_STALE)
	if m.named("stays", "killed-node") != stays || m.Pod("", "", stays.UID, "") != stays {
		t.Error("a known pod was forgotten")
	}
	if p := m.named("nobody", "killed-node"); p != nil {
		t.Errorf("unknown pod: got %+v, want nothing", p)
	}
	m.until("there is a problem", func() bool {
		return slices.ContainsFunc(m.Status().GetProblems(), func(p string) bool { return strings.Contains(p, " does not respond") })
	})
	l.restart()
	m.awaitState(pb.Kubernetes_LIVE)
	if m.named("stays", "killed-node") != stays {
		t.Error("the pod was reported again without a change")
	}
	m.until("the state is reported", func() bool { return m.reported(func(c Changes) bool { return c.State }) })
	m.until("there is no problem", func() bool { return len(m.Status().GetProblems()) == 0 })
}

// After an outage, the mirror learns of the changes that it missed. It continues from the last
// version it has seen, or lists again if that is too old for the server.
func TestMirrorCatchesUpAfterAnOutage(t *testing.T) {
	l := newLab(t)
	l.node("meanwhile-node", "10.99.4.0/24")
	m := l.mirror(rich)
	m.awaitState(pb.Kubernetes_LIVE)
	for _, anew := range []bool{false, true} {
		l.pod("stays", "meanwhile-node", "10.99.4.7", "")
		l.pod("goes", "meanwhile-node", "10.99.4.8", "")
		m.until("the pods are known", func() bool {
			p := m.named("goes", "meanwhile-node")
			return p != nil && len(p.IPs) == 1 && there(m.named("stays", "meanwhile-node"))
		})
		stays, goes := m.named("stays", "meanwhile-node"), m.named("goes", "meanwhile-node")
		m.cut(true)
		m.awaitState(pb.Kubernetes_STALE)
		l.kube("delete", "--namespace", l.namespace, "pod/goes", "--force")
		l.pod("comes", "meanwhile-node", "10.99.4.9", "")
		if anew { // a restarted server has no history
			l.KillAPI()
			l.restart()
		}
		if m.Pod("", "", goes.UID, "") != goes || m.named("comes", "meanwhile-node") != nil {
			t.Error("events are received without a watch")
		}
		m.cut(false)
		m.awaitState(pb.Kubernetes_LIVE)
		m.until("the new pod is known", func() bool { return there(m.named("comes", "meanwhile-node")) })
		m.until("the deleted pod is absent", func() bool { return gone(m.Pod("", "", goes.UID, "meanwhile-node")) })
		m.until("the end of the pod is reported", func() bool {
			return m.reported(func(c Changes) bool { return slices.Contains(c.Pods, PodKey{goes.Namespace, goes.Name, goes.UID}) })
		})
		if m.named("stays", "meanwhile-node") != stays {
			t.Error("an unchanged pod was reported as changed")
		}
		l.kube("delete", "--namespace", l.namespace, "pod/comes", "--force")
	}
}
