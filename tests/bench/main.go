// Command bench measures the budgets of the design and prints them as a table.
// Everything runs in namespaces of its own. Times are ratios to a floor of the
// same run wherever that is possible: machines are shared, and noisy.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	rows, err := bench(ctx)
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
		if r.budget != "" && !r.met {
			verdict = "missed"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.what, r.measured, r.budget, verdict)
	}
	_ = w.Flush()
}

func bench(ctx context.Context) (rows []row, err error) {
	if err := netlab.Possible(); errors.Is(err, netlab.ErrNoRoot) {
		return nil, errors.New("needs root to make namespaces: run 'sudo make bench'")
	} else if err != nil {
		return nil, err
	}
	bin, err := filepath.Abs("bin/ipwitness")
	if err != nil {
		return nil, err
	}
	progress := func(what string) { fmt.Fprintln(os.Stderr, "measuring", what, "…") }

	progress("a frame through the observer")
	if rows, err = frameRows(ctx); err != nil {
		return rows, err
	}
	progress("TCP between two pods")
	more, err := tcpRows(ctx, bin)
	if rows = append(rows, more...); err != nil {
		return rows, err
	}
	progress("200 duplicates by rtnetlink")
	more, err = requestRows(ctx, bin)
	if rows = append(rows, more...); err != nil {
		return rows, err
	}
	for _, network := range []struct{ name, conflist string }{{"T1 (ptp)", netlab.PTP}, {"T2 (bridge)", netlab.Bridge}} {
		progress("200 duplicates by real plugins: " + network.name)
		more, err = pluginRows(ctx, bin, network.name, network.conflist)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// quantile gives the value below which a part q of them is.
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
