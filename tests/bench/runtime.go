package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// sandboxes is the number of pods that a container runtime starts and stops, kubeletAtOnce the
// number that it does in parallel.
const sandboxes, kubeletAtOnce = 200, 4

// runtimeRows measures the cost of watching a real container runtime that starts and stops pods
// with real CNI plugins. The floor is an agent that does not query the runtime.
func runtimeRows(ctx context.Context, bin string) (rows []row, err error) {
	for _, v := range containerd.Versions() {
		if v.Missing != nil {
			return rows, v.Missing
		}
		floor, err := watchRuntime(ctx, bin, v, "off")
		if err != nil {
			return rows, err
		}
		m, err := watchRuntime(ctx, bin, v, "auto")
		if err != nil {
			return rows, err
		}
		perPod := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", 1000*d.Seconds()/sandboxes) }
		idle := 100 * m.idle.Seconds() / idleTime.Seconds()
		rows = append(rows,
			row{fmt.Sprintf("%s: time to start and stop %d sandboxes", m.name, sandboxes), fmt.Sprintf("%.1f s", m.took.Seconds()), "", true},
			row{"  calls of the agent for each started sandbox", fmt.Sprintf("%.2f status, %.2f lists", m.status, m.lists), "", true},
			row{"  CPU of the agent for each sandbox", perPod(m.agent), "", true},
			row{"  CPU of an agent that does not ask the runtime", perPod(floor.agent), "", true},
			row{"  CPU of the agent, divided by that of containerd without plugins and shims", fmt.Sprintf("%.3f", m.agent.Seconds()/m.containerd.Seconds()), "", true},
			row{"  CPU of containerd with the agent's calls, divided by that without", fmt.Sprintf("%.2f", m.containerd.Seconds()/floor.containerd.Seconds()), "", true},
			row{"  from the start of a pod to its name by the runtime, maximum", fmt.Sprintf("%.0f ms", 1000*m.named.Seconds()), "", true},
			row{fmt.Sprintf("  RSS of the agent with %d sandboxes", sandboxes), fmt.Sprintf("%.1f MiB", m.rss), "≤ 48 MiB", m.rss <= 48},
			row{fmt.Sprintf("  CPU of a core while idle for %.0f s", idleTime.Seconds()), fmt.Sprintf("%.2f %%", idle), "≤ 0.2 %", idle <= 0.2},
		)
	}
	return rows, nil
}

// watched is the cost of watching a runtime.
type watched struct {
	name              string
	took, named, idle time.Duration
	agent, containerd time.Duration // CPU
	status, lists     float64       // calls for each pod
	rss               float64
}

func watchRuntime(ctx context.Context, bin string, v containerd.Version, socket string) (m watched, err error) {
	host, err := netlab.New()
	if err != nil {
		return m, err
	}
	defer host.Close()
	runtime, err := containerd.Start(ctx, host, containerd.Options{Bin: v.Bin, Network: netlab.PTP})
	if err != nil {
		return m, err
	}
	defer func() { _ = runtime.Close() }()
	name, version, err := runtime.Version(ctx)
	if err != nil {
		return m, err
	}
	m.name = name + " " + version
	aggregator, err := host.Aggregator(ctx, bin)
	if err != nil {
		return m, err
	}
	defer aggregator.Kill()
	agent, err := host.Agent(ctx, bin, "--aggregator", "127.0.0.1:9640", "--cri-socket", socket)
	if err != nil {
		return m, err
	}
	defer agent.Kill()
	if socket != "off" {
		if _, err := awaitCalls(ctx, agent, "ListPodSandbox", 1); err != nil {
			return m, err
		}
	}

	pid, err := runtime.PID()
	if err != nil {
		return m, err
	}
	agentBefore, err := cpuOf(agent.Cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	containerdBefore, err := cpuOf(pid)
	if err != nil {
		return m, err
	}
	listsBefore, err := calls(ctx, agent, "ListPodSandbox")
	if err != nil {
		return m, err
	}

	begin := time.Now()
	ids := make([]string, sandboxes)
	all := func(do func(context.Context, int) error) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(kubeletAtOnce)
		for i := range sandboxes {
			g.Go(func() error { return do(ctx, i) })
		}
		return g.Wait()
	}
	if err := all(func(ctx context.Context, i int) (err error) {
		ids[i], err = runtime.RunPod(ctx, containerd.Pod{Name: fmt.Sprintf("p%d", i), UID: fmt.Sprintf("0ddba110-0000-4000-8000-%012d", i)})
		return err
	}); err != nil {
		return m, err
	}
	started := time.Now()
	m.took = started.Sub(begin)
	source := "cri"
	if socket == "off" {
		source = "cni-result"
	}
	if err := awaitNames(ctx, aggregator, source); err != nil {
		return m, err
	}
	m.named = time.Since(started)
	if socket != "off" {
		for method, to := range map[string]*float64{"PodSandboxStatus": &m.status, "ListPodSandbox": &m.lists} {
			n, err := calls(ctx, agent, method)
			if err != nil {
				return m, err
			}
			if *to = n / sandboxes; method == "ListPodSandbox" {
				*to = (n - listsBefore) / sandboxes
			}
		}
		// Measure the idle cost separately from the cost of starting pods.
		pausedAgent, err := cpuOf(agent.Cmd.Process.Pid)
		if err != nil {
			return m, err
		}
		pausedContainerd, err := cpuOf(pid)
		if err != nil {
			return m, err
		}
		if m.idle, err = idleCPU(ctx, agent.Cmd.Process.Pid); err != nil {
			return m, err
		}
		if m.rss, err = memoryOf(agent.Cmd.Process.Pid, "VmRSS"); err != nil {
			return m, err
		}
		agentNow, err := cpuOf(agent.Cmd.Process.Pid)
		if err != nil {
			return m, err
		}
		containerdNow, err := cpuOf(pid)
		if err != nil {
			return m, err
		}
		agentBefore += agentNow - pausedAgent
		containerdBefore += containerdNow - pausedContainerd
	}

	stopping := time.Now()
	if err := all(func(ctx context.Context, i int) error {
		if err := runtime.StopPod(ctx, ids[i]); err != nil {
			return err
		}
		return runtime.RemovePod(ctx, ids[i])
	}); err != nil {
		return m, err
	}
	m.took += time.Since(stopping)
	agentAfter, err := cpuOf(agent.Cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	containerdAfter, err := cpuOf(pid)
	if err != nil {
		return m, err
	}
	m.agent, m.containerd = agentAfter-agentBefore, containerdAfter-containerdBefore
	return m, nil
}

// idleCPU returns the CPU time of a process during an idle period.
func idleCPU(ctx context.Context, pid int) (time.Duration, error) {
	var before time.Duration
	for _, d := range []time.Duration{calmTime, idleTime} {
		var err error
		if before, err = cpuOf(pid); err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(d):
		}
	}
	after, err := cpuOf(pid)
	return after - before, err
}

// awaitNames waits until the names of all pods are known from a source.
func awaitNames(ctx context.Context, aggregator *netlab.Program, source string) error {
	for {
		named := map[string]bool{}
		for token := ""; ; {
			var m ipwitnessv1.ListOwnersResponse
			if err := aggregator.Get(ctx, "/v1/owners?page_size=1000&page_token="+token, &m); err != nil {
				return fmt.Errorf("list owners, waiting for names: %w", err)
			}
			for _, o := range m.GetOwners() {
				if w := o.GetWorkload(); w.GetSource() == source {
					named[w.GetUid()] = true
				}
			}
			if token = m.GetNextPageToken(); token == "" {
				break
			}
		}
		if len(named) >= sandboxes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for names of %d pods: %w", sandboxes-len(named), ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// awaitCalls waits until the agent has made at least the given number of calls to the runtime.
func awaitCalls(ctx context.Context, agent *netlab.Program, method string, least float64) (float64, error) {
	for {
		n, err := calls(ctx, agent, method)
		if err != nil || n >= least {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, fmt.Errorf("wait for calls of the agent: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// calls returns the number of calls that the agent has made to the runtime.
func calls(ctx context.Context, agent *netlab.Program, method string) (sum float64, err error) {
	text, err := agent.Text(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for _, found := range regexp.MustCompile(`ipwitness_agent_cri_calls_total\{method="`+method+`",result="\w+"\} (\S+)`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
