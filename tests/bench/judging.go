package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// judgingRows measures what the journal costs on the judging path. Two hosts, one with a journal and
// one without, take turns, so that the load of the machine is the same for both.
func judgingRows(ctx context.Context, bin string) ([]row, error) {
	dir, err := os.MkdirTemp("", "ipwitness-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var sites [2]*site
	requested := [2]map[string]time.Time{{}, {}}
	for k, args := range [2][]string{{"--data-dir", "off"}, {"--data-dir", filepath.Join(dir, "data")}} {
		s, err := openSite(ctx, func(h *netlab.Host) (*netlab.Program, error) { return h.Ipwitness(ctx, bin, args...) })
		if err != nil {
			return nil, err
		}
		defer s.close()
		if err := s.firstOwners(); err != nil {
			return nil, err
		}
		sites[k] = s
	}
	for _, s := range sites {
		if err := s.settled(ctx, 2*duplicates); err != nil {
			return nil, err
		}
	}
	for i := range duplicates {
		for turn := range sites {
			k := (i + turn) % len(sites)
			addr := duplicateAddress(i)
			at, err := request(sites[k].Host, fmt.Sprintf("b%d", i), addr)
			if err != nil {
				return nil, err
			}
			requested[k][addr] = at
			if err := sites[k].suspected.await(ctx, "SUSPECTED lines", i+1); err != nil {
				return nil, fmt.Errorf("%w\n%s", err, sites[k].program.Log)
			}
		}
	}
	var took [2][2][]time.Duration
	for k, s := range sites {
		if err := s.confirmed.await(ctx, "CONFIRMED lines", duplicates); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, s.program.Log)
		}
		took[k][0], took[k][1] = s.since(requested[k])
	}
	var rows []row
	for _, one := range []struct {
		what  string
		line  int
		q     float64
		limit bool
	}{
		{"RTM_NEWADDR request to the SUSPECTED line, p50, with a journal and without", 0, 0.5, true},
		{"  p99", 0, 0.99, false},
		{"  to the CONFIRMED line minus the settle time, p50", 1, 0.5, true},
		{"  p99", 1, 0.99, false},
	} {
		without, with := quantile(took[0][one.line], one.q), quantile(took[1][one.line], one.q)
		ratio := float64(with) / float64(without)
		r := row{one.what, fmt.Sprintf("%.2f × (%s, %s)", ratio, millis(with), millis(without)), "", true}
		if one.limit {
			r.budget, r.met = "≤ 1.1 ×", ratio <= 1.1
		}
		rows = append(rows, r)
	}
	return rows, nil
}
