package main

import (
	"context"
	"fmt"
	"os"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

const (
	// predictedPods is the number of pods when host-local's directory is deleted, predictedRuns the
	// number of runs.
	predictedPods, predictedRuns = 250, 5
	// predictedWithin is the time limit for reporting each of their addresses.
	predictedWithin = time.Second
)

// predictedRows measures from just before the directory is deleted until a watch has received the
// finding about the last address, and the finding that names all of them.
func predictedRows(ctx context.Context, bin string) ([]row, error) {
	s, err := newSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	cni, err := s.CNI(netlab.PTP)
	if err != nil {
		return nil, err
	}
	for i := range predictedPods {
		if err := cni.Add(fmt.Sprintf("p%d", i)); err != nil {
			return nil, err
		}
	}
	dir := s.Path("/run/cni-ipam-state/kindnet")
	kept := s.Path("/run/kept")
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		return nil, err
	}
	var first, last, named []time.Duration
	for range predictedRuns {
		a, b, c, err := s.predicted(ctx, dir)
		if err != nil {
			return nil, err
		}
		first, last, named = append(first, a), append(last, b), append(named, c)
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil { // restore it
			return nil, err
		}
		if _, err := s.until(ctx, func(text string) bool { return sum(text, "ipwitness_findings{") == 0 }); err != nil {
			return nil, err
		}
	}
	worst := max(quantile(last, 1), quantile(named, 1))
	return []row{
		{fmt.Sprintf("host-local's directory deleted under %d pods: until the first finding is read, median of %d", predictedPods, predictedRuns), millis(quantile(first, 0.5)), "", true},
		{"  until each address is a finding, median", millis(quantile(last, 0.5)), "", true},
		{"  until the finding that names all of them, median", millis(quantile(named, 0.5)), "", true},
		{"  maximum", millis(worst), "≤ 1 s", worst <= predictedWithin},
	}, nil
}

// predicted deletes the directory, and measures the time until the findings arrive.
func (s *site) predicted(ctx context.Context, dir string) (first, last, named time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var begin time.Time
	seen := make(map[string]bool)
	err = s.program.WatchFindings(ctx, func(e netlab.FindingEvent) bool {
		f := e.GetFinding()
		switch {
		case e.GetType() == ipwitnessv1.Watch_BOOKMARK && begin.IsZero():
			begin = time.Now()
			err = os.RemoveAll(dir)
			return err == nil
		case e.GetType() == ipwitnessv1.Watch_REMOVED || begin.IsZero():
		case f.GetKind() == "in-use-unallocated":
			if len(seen) == 0 {
				first = e.Read.Sub(begin)
			}
			seen[f.GetAddress()] = true
			last = e.Read.Sub(begin)
		case f.GetKind() == "ipam-state-lost" && len(f.GetAddresses()) == predictedPods:
			named = e.Read.Sub(begin)
		}
		return len(seen) < predictedPods || named == 0
	})
	return first, last, named, err
}
