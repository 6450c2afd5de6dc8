package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

const (
	// journalTransitions is the number of transitions in the benchmark of the journal: enough for a
	// whole day at 20 a second.
	journalTransitions = 1_800_000
	journalDays        = 30
)

// journalRows runs the benchmarks of the journal, one after the other and without cgo, as the program is built.
func journalRows(ctx context.Context, _ string) ([]row, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-p", "1", "-run", "^$", "-bench", "^Benchmark(Journal|Resolve)$/^(busy|month)$",
		"-benchtime", fmt.Sprintf("%dx", journalTransitions), "-timeout", "2h", "./aggregator/journal", "./aggregator")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("run the benchmarks of the journal: %w\n%s", err, out)
	}
	metrics := benchmarks(out)
	resolve := func(unit string) float64 { return metrics["Resolve/month "+unit] }
	busy, month := func(unit string) float64 { return metrics["Journal/busy "+unit] }, func(unit string) float64 { return metrics["Journal/month "+unit] }
	disk := busy("disk-MB/day") * journalDays / 1000
	if disk == 0 || month("at-100k-ms") == 0 || resolve("resolve-100k-ms") == 0 {
		return nil, fmt.Errorf("a benchmark of the journal gave no result:\n%s", out)
	}
	rss := max(busy("peak-RSS-MiB"), month("peak-RSS-MiB"))
	return []row{
		{"the journal's disk space for 30 days at 20 transitions/s (30 × that of a whole day)", fmt.Sprintf("%.2f GB", disk), "≤ 4 GB", disk <= 4},
		{
			fmt.Sprintf("history of an address in %.0f days of %d transitions, p50 / p99", month("segments"), journalTransitions),
			fmt.Sprintf("%.2f / %.2f ms", month("history-p50-ms"), month("history-p99-ms")), "p99 ≤ 5 ms", month("history-p99-ms") <= 5,
		},
		{
			"100,000 owners at the end of a busy day, the worst time",
			fmt.Sprintf("%.0f ms", busy("at-100k-ms")), "≤ 1 s", busy("at-100k-ms") <= 1000,
		},
		{
			fmt.Sprintf("100,000 questions about this month through REST, 10,000 a request (%.1f MB each answer)", resolve("MB/answer")),
			fmt.Sprintf("%.0f ms", resolve("resolve-100k-ms")), "≤ 2 s", resolve("resolve-100k-ms") <= 2000,
		},
		{"  CPU for these questions", fmt.Sprintf("%.0f ms", resolve("resolve-100k-cpu-ms")), "", true},
		{"RSS of the journal with this load, at its worst", fmt.Sprintf("%.0f MiB", rss), "≤ 64 MiB", rss <= 64},
		{"  CPU for a history; for these owners", fmt.Sprintf("%.2f; %.0f ms", month("history-cpu-ms"), busy("at-100k-cpu-ms")), "", true},
		{"transitions per second that the journal records", fmt.Sprintf("%.0f", busy("transitions/s")), "", true},
	}, nil
}
