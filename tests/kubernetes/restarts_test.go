package kubernetes

import (
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// duplicate creates two pods with one address, and waits until the conflict is confirmed.
func (l *lab) duplicate() (pods []pod, c *ipwitnessv1.Conflict) {
	l.t.Helper()
	l.deploy("web", 2)
	pods = l.pods("app=web")
	return pods, l.awaitOwners(pods[0].Address, pods...)
}

// wantUnmoved fails if a conflict has changed.
func (l *lab) wantUnmoved(was *ipwitnessv1.Conflict, pods ...pod) {
	l.t.Helper()
	l.plant() // all changes are known
	c := l.awaitOwners(was.GetAddress(), pods...)
	if c.GetId() != was.GetId() || c.GetEpisode() != was.GetEpisode() || !c.GetConfirmedAt().AsTime().Equal(was.GetConfirmedAt().AsTime()) {
		l.t.Errorf("conflict after a restart: got %v, want %v", c, was)
	}
}

func TestAPIServerRestarts(t *testing.T) {
	l := newLab(t, "api-restarts")
	l.witness()
	pods, c := l.duplicate()
	l.KillAPI()
	t.Cleanup(func() {
		if l.Cluster.api.running() != nil {
			l.restartAPI()
		}
	})
	l.wantUnmoved(c, pods...)
	l.restartAPI()
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(c.GetAddress(), resolved)
}

func (l *lab) restartAPI() {
	l.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	if err := l.RestartAPI(ctx); err != nil {
		l.t.Fatal(err)
	}
}

func TestAPIDataIsStaleWhileTheServerIsUnavailable(t *testing.T) {
	l := newLab(t, "api-away")
	l.witness()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	pods, c := l.duplicate()
	l.KillAPI()
	t.Cleanup(func() {
		if l.Cluster.api.running() != nil {
			l.restartAPI()
		}
	})
	l.api(ipwitnessv1.Kubernetes_STALE)
	l.wantUnmoved(c, pods...)
	l.restartAPI()
	l.api(ipwitnessv1.Kubernetes_LIVE)
	l.awaitControllers(c.GetAddress(), "web")
}

func TestContainerRuntimeRestarts(t *testing.T) {
	l := newLab(t, "runtime-restarts")
	l.witness()
	pods, c := l.duplicate()
	node1 := l.node("node1")
	restart := func() error {
		ctx, cancel := l.context()
		defer cancel()
		return node1.Runtime.Restart(ctx)
	}
	t.Cleanup(func() { _ = restart() }) // fails if it runs already
	if err := node1.Runtime.Kill(); err != nil {
		t.Fatal(err)
	}
	l.wantUnmoved(c, pods...)
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(c.GetAddress(), resolved)
}
