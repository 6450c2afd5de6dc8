package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/kubernetes"
)

// apiPods is the number of pods in the Kubernetes API.
const apiPods = 10_000

// kubernetesRows measures the aggregator's cost of following the pods of a real API server, and how
// soon it notices that the server is gone and back.
func kubernetesRows(ctx context.Context, bin string) ([]row, error) {
	c, err := kubernetes.New(ctx, kubernetes.Options{Bare: true})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	kubeconfig, err := c.Kubeconfig("bench", "admin")
	if err != nil {
		return nil, err
	}
	off, err := measureAPI(ctx, bin, c, "off", ipwitnessv1.Kubernetes_OFF, 0)
	if err != nil {
		return nil, err
	}
	empty, err := measureAPI(ctx, bin, c, kubeconfig, ipwitnessv1.Kubernetes_LIVE, 0)
	if err != nil {
		return nil, err
	}
	if err := c.Fill(ctx, apiPods); err != nil {
		return nil, err
	}
	full, err := measureAPI(ctx, bin, c, kubeconfig, ipwitnessv1.Kubernetes_LIVE, apiPods)
	if err != nil {
		return nil, err
	}
	perPod := func(mib float64) string { return fmt.Sprintf("%.0f bytes", mib*(1<<20)/apiPods) }
	return []row{
		{"RSS of an aggregator without a Kubernetes API", fmt.Sprintf("%.1f MiB", off.rss), "", true},
		{"  with the API of an empty cluster", fmt.Sprintf("%.1f MiB", empty.rss), "", true},
		{fmt.Sprintf("  for each of %d pods in the API, minus that", apiPods), fmt.Sprintf("%s (%.1f MiB)", perPod(full.rss-empty.rss), full.rss), "", true},
		{"    of the heap after the last garbage collection", perPod(full.heap - empty.heap), "", true},
		{"  peak while they are listed", fmt.Sprintf("%.1f MiB", full.peak), "", true},
		{fmt.Sprintf("From the start until %d pods are known", apiPods), millis(full.synced), "", true},
		{"From SIGKILL of the API server until STALE (the server takes long to end)", millis(full.stale), "", true},
		{"From when it is ready again until LIVE", millis(full.live), "", true},
	}, nil
}

// apiCost is the cost of an aggregator.
type apiCost struct {
	rss, peak, heap     float64 // MiB
	synced, stale, live time.Duration
}

// measureAPI runs an aggregator that follows an API server with the given number of pods.
func measureAPI(ctx context.Context, bin string, c *kubernetes.Cluster, kubeconfig string, state ipwitnessv1.Kubernetes_State, pods uint32) (cost apiCost, err error) {
	begin := time.Now()
	s := &site{Host: c.Host}
	if s.program, err = c.Aggregator(ctx, bin, "--kubeconfig", kubeconfig); err != nil {
		return cost, err
	}
	defer s.program.Kill()
	await := func(state ipwitnessv1.Kubernetes_State) error {
		for {
			var m ipwitnessv1.ListNodesResponse
			if err := s.program.Get(ctx, "/v1/nodes", &m); err != nil {
				return fmt.Errorf("%w\n%s", err, s.program.Log)
			}
			if k := m.GetKubernetes(); k.GetState() == state && k.GetPods() == pods {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait until the Kubernetes API is %s: %w\n%s", state, ctx.Err(), s.program.Log)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	if err := await(state); err != nil {
		return cost, err
	}
	cost.synced = time.Since(begin)
	select {
	case <-ctx.Done():
		return cost, ctx.Err()
	case <-time.After(calmTime):
	}
	text, textErr := s.program.Text(ctx, "/metrics")
	var rssErr, peakErr error
	cost.rss, rssErr = s.rss()
	cost.peak, peakErr = s.memory("VmHWM")
	// The next garbage collection begins when the heap has grown to one and a half times its live
	// size.
	cost.heap = float64(sum(text, "go_memstats_next_gc_bytes ")) / 1.5 / (1 << 20)
	if err := errors.Join(textErr, rssErr, peakErr); err != nil || pods == 0 {
		return cost, err
	}

	begin = time.Now()
	c.KillAPI() // its connections end only when its memory has been freed, which takes most of the time
	if err := await(ipwitnessv1.Kubernetes_STALE); err != nil {
		return cost, err
	}
	cost.stale = time.Since(begin)
	if err := c.RestartAPI(ctx); err != nil {
		return cost, err
	}
	begin = time.Now()
	err = await(ipwitnessv1.Kubernetes_LIVE)
	cost.live = time.Since(begin)
	return cost, err
}
