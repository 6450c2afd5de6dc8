// Command bench measures the budgets of the design and prints them as a table. Everything runs in
// its own namespaces. Where possible, times are ratios to a floor measured in the same run, because
// machines are shared and noisy.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	rows, err := bench(ctx, os.Args[1:])
	if len(rows) > 0 {
		printRows(rows)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		cancel()
		os.Exit(1)
	}
}

// row is one line of the table.
type row struct {
	what, measured, budget string
	met                    bool
}

func printRows(rows []row) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "WHAT\tMEASURED\tBUDGET\t")
	for _, r := range rows {
		verdict := ""
		switch {
		case r.budget == "":
		case r.met:
			verdict = "met"
		default:
			verdict = "MISSED"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.what, r.measured, r.budget, verdict)
	}
	_ = w.Flush()
}

func bench(ctx context.Context, only []string) (rows []row, err error) {
	if err := named(only); err != nil {
		return nil, err
	}
	if err := netlab.Possible(); errors.Is(err, netlab.ErrNoRoot) {
		return nil, errors.New("needs root to make namespaces: run 'sudo make bench'")
	} else if err != nil {
		return nil, err
	}
	bin, err := filepath.Abs("bin/ipwitness")
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s (%s) …\n", p.what, p.name)
		before, err := processors()
		if err != nil {
			return rows, err
		}
		more, err := p.measure(ctx, bin)
		rows = append(rows, more...)
		if late, ok := errors.AsType[*incompleteError](err); ok {
			rows = append(rows, row{p.what + ": incomplete", late.have, "all", false})
		} else if err != nil {
			return rows, err
		}
		after, err := processors()
		if err != nil {
			return rows, err
		}
		rows = append(rows, row{"  processors used by other programs meanwhile", fmt.Sprintf("%.0f %%", after.others(before)), "", true})
	}
	return rows, nil
}

// part is one benchmark, which is selected by its name: make bench ARGS=storm.
type part struct {
	name, what string
	measure    func(ctx context.Context, bin string) ([]row, error)
}

var parts = []part{
	{"frame", "a frame through the observer", frameRows},
	{"tcp", "TCP between two pods", tcpRows},
	{"latency", "200 duplicates by rtnetlink", requestRows},
	{"judging", "200 duplicates by rtnetlink, with a journal and without", judgingRows},
	{"cluster", "200 duplicates between nodes, by rtnetlink", clusterRows},
	{"plugins", "200 duplicates by the real ptp plugin", func(ctx context.Context, bin string) ([]row, error) {
		return pluginRows(ctx, bin, "T1 (ptp)", netlab.PTP)
	}},
	{"plugins", "200 duplicates by the real bridge plugin", func(ctx context.Context, bin string) ([]row, error) {
		return pluginRows(ctx, bin, "T2 (bridge)", netlab.Bridge)
	}},
	{"predicted", fmt.Sprintf("%d pods by the real ptp plugin, and host-local's directory deleted", predictedPods), predictedRows},
	{"storm", "a storm of ARP, here and with libpcap listeners", stormRows},
	{"flood", "a flood of new bindings, and duplicates meanwhile", floodRows},
	{"pods", "0, 50 and 250 idle pods", podRows},
	{"beliefs", fmt.Sprintf("%d pods that talk, and %d that come and go, with neighbour tables and without", talkingPods, passingPods), beliefRows},
	{"sources", fmt.Sprintf("an agent with %d allocations of each IPAM that is read from files", sourceAllocations), sourceRows},
	{"churn", fmt.Sprintf("%d pods that come and go with one address", warmPods+churnedPods), churnRows},
	{"runtime", fmt.Sprintf("%d sandboxes of a real containerd", sandboxes), runtimeRows},
	{"agents", fmt.Sprintf("%d simulated agents, and an aggregator that is killed", crowdNodes), agentRows},
	{"scale", fmt.Sprintf("memory in clusters of up to %d nodes with %d owners each", largest, scaleOwners), scaleRows},
	{"large", fmt.Sprintf("restarts, agents that connect again, idle CPU, pages and a watch with %d nodes", largest), largeRows},
	{"resync", fmt.Sprintf("%d agents that report at once, with duplicates and queries meanwhile", largest), resyncRows},
	{"cores", "judged changes with one core and with two", coresRows},
	{"replicas", fmt.Sprintf("1 to %d equal replicas", mostReplicas), replicaRows},
	{"memory", fmt.Sprintf("the aggregator's memory with up to %d flooded nodes", floodedNodes), memoryRows},
	{"audit", fmt.Sprintf("%d allocations of host-local against as many owners", auditNodes*auditPods), auditRows},
	{"replay", fmt.Sprintf("%d frames of a capture", replayedFrames), replayRows},
	{"journal", fmt.Sprintf("%d transitions in the journal, in a day and in a month", journalTransitions), journalRows},
	{"kubernetes", fmt.Sprintf("%d pods in a real Kubernetes API, whose server is killed", apiPods), kubernetesRows},
}

// named returns an error for a name that is not a part.
func named(only []string) error {
	for _, name := range only {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			var names []string
			for _, p := range parts {
				names = append(names, p.name)
			}
			return fmt.Errorf("there is no benchmark %q: there are %s", name, strings.Join(slices.Compact(names), ", "))
		}
	}
	return nil
}

// quantile returns the q-quantile of the durations.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.3f ms", float64(d.Microseconds())/1000)
}
