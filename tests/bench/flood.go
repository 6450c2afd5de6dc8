package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

const (
	// floodBindings is more bindings than can arrive within floodTime.
	floodBindings = 1 << 23
	// floodTime is long enough for the flood to fill its port's share of the table and
	// to continue after that.
	floodTime = 20 * time.Second
	// floodDuplicates is how many duplicates of each kind are planted during the
	// flood.
	floodDuplicates = 20
)

// floodRows measures the cost of a flood of new bindings on one port, and how long
// it takes to detect duplicates on other ports meanwhile.
func floodRows(ctx context.Context, bin string) ([]row, error) {
	s, err := newSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	f := &floodSite{site: s}
	for _, line := range podLines("flood") {
		if _, err := s.Run("%s", line); err != nil {
			return nil, err
		}
	}
	for i := range floodDuplicates {
		for _, side := range []string{"a", "b"} {
			for _, line := range podLines(fmt.Sprintf("%s%d", side, i)) {
				if _, err := s.Run("%s", line); err != nil {
					return nil, err
				}
			}
		}
		for _, addr := range []string{assigned(i), claimed(i)} {
			if _, err := s.Run("ip -n a%d addr add %s/32 dev eth0", i, addr); err != nil {
				return nil, err
			}
		}
	}
	if err := s.settled(ctx, 2*floodDuplicates+1); err != nil {
		return nil, err
	}
	before, err := s.cpu()
	if err != nil {
		return nil, err
	}
	flood := make(chan error, 1)
	var sent sent
	go func() {
		var err error
		sent, err = stormHost{s.Host}.enter("vflood", floodBindings, stormPause, floodTime)
		flood <- err
	}()
	kernel, wire, err := f.plant(ctx)
	if err := errors.Join(err, <-flood); err != nil {
		return nil, err
	}
	used, err := s.cpu()
	if err != nil {
		return nil, err
	}
	rss, err := s.rss()
	if err != nil {
		return nil, err
	}
	named, err := f.named(ctx)
	if err != nil {
		return nil, err
	}
	percent := 100 * (used - before).Seconds() / sent.took.Seconds()
	rows := []row{
		{
			fmt.Sprintf("flood of new bindings on one port, %s: CPU of agent and aggregator", rate(sent)),
			fmt.Sprintf("%.1f %% of a core", percent), "≤ 25 %", percent <= 25,
		},
		{"  RSS after it", fmt.Sprintf("%.1f MiB", rss), "", true},
		{"  the port is named as flooding", fmt.Sprint(named), "true", named},
	}
	for _, d := range []struct {
		what  string
		times []time.Duration
	}{{"of two kernels", kernel}, {"of a kernel and an external device", wire}} {
		p50, worst := quantile(d.times, 0.5), quantile(d.times, 1)
		rows = append(rows, row{
			fmt.Sprintf("  %d duplicates %s, on other ports meanwhile: request to the SUSPECTED line, p50 and maximum", len(d.times), d.what),
			millis(p50) + ", " + millis(worst), "≤ 50 ms", worst <= 50*time.Millisecond,
		})
	}
	return rows, nil
}

// floodSite is a site with a pod that floods and pairs of other pods.
type floodSite struct{ *site }

// assigned and claimed return the address of the i-th duplicate: assigned for one
// between two kernels, claimed for one between a kernel and frames.
func assigned(i int) string { return fmt.Sprintf("172.16.0.%d", i+1) }
func claimed(i int) string  { return fmt.Sprintf("172.16.1.%d", i+1) }

// plant creates duplicates one after the other until the flood ends.
func (f *floodSite) plant(ctx context.Context) (kernel, wire []time.Duration, err error) {
	tick := time.NewTicker(floodTime / (2*floodDuplicates + 2))
	defer tick.Stop()
	requested := map[string]time.Time{}
	for i := range floodDuplicates {
		<-tick.C
		if requested[assigned(i)], err = request(f.Host, fmt.Sprintf("b%d", i), assigned(i)); err != nil {
			return nil, nil, err
		}
		<-tick.C
		if requested[claimed(i)], err = f.claim(i); err != nil {
			return nil, nil, err
		}
	}
	if err := f.suspected.await(ctx, "SUSPECTED lines", 2*floodDuplicates); err != nil {
		return nil, nil, fmt.Errorf("%w\n%s", err, f.program.Log)
	}
	for i := range floodDuplicates {
		line, _ := f.suspected.get(assigned(i))
		kernel = append(kernel, line.Sub(requested[assigned(i)]))
		line, _ = f.suspected.get(claimed(i))
		wire = append(wire, line.Sub(requested[claimed(i)]))
	}
	return kernel, wire, nil
}

// claim makes a pod claim an address only by frames, and returns the time of the
// claim.
func (f *floodSite) claim(i int) (at time.Time, err error) {
	p, err := f.Pod(fmt.Sprintf("b%d", i))
	if err != nil {
		return at, err
	}
	defer p.Close()
	addr := netip.MustParseAddr(claimed(i))
	frame := netlab.ARP(1, net.HardwareAddr{2, 1, 0, 0, 0, byte(i)}, addr, addr)
	err = p.Do(func() error {
		at = time.Now()
		return netlab.Send("eth0", frame)
	})
	return at, err
}

// named waits until the port is reported as flooding.
func (f *floodSite) named(ctx context.Context) (bool, error) {
	for range 30 {
		nodes, err := f.program.Nodes(ctx)
		if err != nil {
			return false, err
		}
		if floods(nodes, "vflood") {
			return true, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false, nil
}

func floods(nodes []*ipwitnessv1.Node, port string) bool {
	for _, n := range nodes {
		for _, flooding := range n.GetFlooding() {
			if flooding.GetInterface() == port && flooding.GetLeftOut() > 0 {
				return true
			}
		}
	}
	return false
}
