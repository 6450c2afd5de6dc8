// Package wire watches the wire: it keeps the BPF observer attached to the ports of the node,
// turns the observer's events into claims, and detects ports that flood the agent.
//
// It contains neither rtnetlink's state (package kernel) nor streams.
package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/table"

	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Kept is the lifetime of a wire claim after the last frame by which its sender claimed the address. The observer reports a
// known binding again every 30 s while it is used.
const Kept = 10 * time.Minute

// A Wire keeps the observer attached to the ports of the node, and turns the frames that it
// reports into claims.
type Wire struct {
	log           *slog.Logger
	kernel        *kernel.Mirror
	table         *table.Table
	obs           *bpf.Observer
	mode          bpf.Mode
	watch         globs
	changed       chan struct{} // holds one token while ports may have changed
	StatusChanged func()        // called when the status has changed; set before run

	mu       sync.Mutex // for attached, which only the goroutine of keep changes
	attached map[int32]*port

	// ending guards ended, the bindings that the observer must forget. Each costs a system call, and there can be
	// thousands. So another goroutine makes the calls, without the locks that are held when claims end. If it is late, the
	// observer merely reports a binding once more.
	ending sync.Mutex
	ended  []table.ClaimKey
	wake   chan struct{} // holds one token while there are ended bindings, or the importance of an address has changed

	floods               floods
	lostFrames, unparsed rising     // used by AddStatus only
	clock                frameClock // used by read only
}

// globs select interfaces by name.
type globs struct{ include, exclude []string }

// match reports whether an interface is to be watched.
func (g globs) match(name string) bool {
	matches := func(globs []string) bool {
		return slices.ContainsFunc(globs, func(glob string) bool {
			ok, _ := path.Match(glob, name) // the agent's configuration has only valid patterns
			return ok
		})
	}
	return (len(g.include) == 0 || matches(g.include)) && !matches(g.exclude)
}

// port is an interface with the observer attached to it, or the reason why it is not.
type port struct {
	name string
	gen  uint64
	// tunnels are those that the observer was told.
	tunnels map[uint32]uint16
	att     *bpf.Attachment
	err     error
	// untold is set if frames of several networks enter through it, which nothing tells apart. The last one came at seen.
	untold bool
	seen   time.Time
}

// New returns a Wire that keeps obs attached to the ports of k whose names match a glob of
// include, or any name if include is empty, and no glob of exclude.
func New(log *slog.Logger, k *kernel.Mirror, t *table.Table, obs *bpf.Observer, mode bpf.Mode, include, exclude []string) *Wire {
	w := &Wire{
		log: log, kernel: k, table: t, obs: obs, mode: mode, watch: globs{include, exclude},
		changed: make(chan struct{}, 1), StatusChanged: func() {}, attached: map[int32]*port{},
		wake: make(chan struct{}, 1), floods: floods{log: log},
	}
	k.Watch(func() { table.Poke(w.changed) }, w.letGo)
	t.FollowImportance(func() { table.Poke(w.wake) })
	return w
}

// Run attaches the observer, reads frames and ends old claims until ctx ends. It detaches
// the observer before it returns.
func (w *Wire) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, w.obs.Interrupt)
	defer stop()
	g.Go(func() error { // turn frames into claims until the observer is interrupted
		var ev bpf.Event
		for {
			err := w.obs.Read(&ev)
			switch {
			case errors.Is(err, os.ErrClosed):
				return nil
			case err != nil:
				return fmt.Errorf("read frames from the observer: %w", err)
			}
			w.frame(&ev)
		}
	})
	g.Go(func() error { w.keep(ctx); return nil })
	g.Go(func() error { w.forget(ctx); return nil })
	g.Go(func() error {
		tick := time.NewTicker(lookForFloodsEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-tick.C:
				w.readCounters(now)
			}
		}
	})
	return g.Wait()
}

// letGo makes the observer forget bindings, so that it reports their next frames.
func (w *Wire) letGo(keys []table.ClaimKey) {
	if len(keys) == 0 {
		return
	}
	w.ending.Lock()
	w.ended = append(w.ended, keys...)
	w.ending.Unlock()
	table.Poke(w.wake)
}

// forget deletes ended bindings from the observer and tells it which addresses
// are important, until ctx ends.
func (w *Wire) forget(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		w.ending.Lock()
		ended := w.ended
		w.ended = nil
		w.ending.Unlock()
		for _, c := range ended {
			var mac bpf.MAC
			copy(mac[:], c.MAC)
			source := mac
			copy(source[:], c.Source)
			if err := w.obs.Forget(uint32(c.At.Index), c.VLAN, c.InnerVLAN, c.Address, mac, source); err != nil {
				w.log.Debug("cannot forget binding", "address", c.Address, "error", err)
			}
		}
		for addr, important := range w.table.TakeImportance() {
			if err := w.obs.SetImportant(addr, important); err != nil {
				w.log.Debug("cannot mark an address as important in the observer", "address", addr, "error", err)
			}
		}
	}
}

// frame turns one event of the observer into a claim.
func (w *Wire) frame(ev *bpf.Event) {
	seen := w.clock.at(ev.Ktime)
	key := table.ClaimKey{
		Address: ev.Addr, Kind: Evidence[ev.Kind], At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: int32(ev.Ifindex)},
		MAC: string(ev.SHA[:]), VLAN: ev.VLAN, InnerVLAN: ev.InnerVLAN, NoOverride: ev.NoOverride,
	}
	if ev.Source != ev.SHA {
		key.Source = string(ev.Source[:])
	}
	w.kernel.AddFrame(key, table.Claim{First: seen, Last: seen, Count: ev.Frames})
	w.mu.Lock()
	p := w.attached[key.At.Index]
	first := false
	if p != nil && p.untold {
		first, p.seen = seen.Sub(p.seen) >= Kept, seen
	}
	w.mu.Unlock()
	if first {
		w.StatusChanged()
	}
}

// keep attaches the observer to new ports and detaches it from former ones until ctx ends.
func (w *Wire) keep(ctx context.Context) {
	defer w.detachAll()
	// The ticks retry ports that the observer could not be attached to, and end old claims.
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		w.attach(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case now := <-tick.C:
			w.renew(now)
		}
	}
}

// renew has all ports checked, and ends old claims.
func (w *Wire) renew(now time.Time) {
	w.check()
	w.kernel.Expire(now.Add(-Kept))
	w.StatusChanged()
}

// attach attaches and detaches the observer as the current ports require.
func (w *Wire) attach(ctx context.Context) {
	want := w.kernel.Ports()
	living := map[int32]kernel.Port{}
	for _, p := range want {
		if w.watch.match(p.Name) {
			living[p.Index] = p
		}
	}
	changed := false
	for index, p := range w.attached {
		if now, ok := living[index]; !ok || now.Gen != p.gen {
			w.mu.Lock()
			delete(w.attached, index)
			w.mu.Unlock()
			w.detach(index, p)
			changed = true
		}
	}
	for _, l := range want {
		if _, ok := living[l.Index]; !ok || ctx.Err() != nil {
			continue
		}
		if old := w.attached[l.Index]; old != nil {
			changed = changed || old.name != l.Name
			w.mu.Lock()
			old.name, old.untold = l.Name, l.Untold
			w.mu.Unlock()
			changed = w.setTunnels(l, old) || changed
			continue
		}
		p := &port{name: l.Name, gen: l.Gen, untold: l.Untold}
		w.setTunnels(l, p)
		switch {
		case p.err != nil:
		case w.mode == bpf.TCX:
			p.att, p.err = w.obs.AttachTCX(int(l.Index))
		default:
			p.err = bpf.ErrDescriptors
		}
		if errors.Is(p.err, bpf.ErrDescriptors) {
			p.att, p.err = w.obs.AttachClsact(int(l.Index))
		}
		if errors.Is(p.err, bpf.ErrGone) {
			w.detach(l.Index, p)
			continue // the interface is gone, and netlink reports its end
		}
		if p.err != nil {
			w.log.Warn("cannot watch interface", "interface", l.Name, "error", p.err)
		}
		w.mu.Lock()
		w.attached[l.Index] = p
		w.mu.Unlock()
		changed = true
	}
	if changed {
		w.StatusChanged()
	}
}

// setTunnels tells the observer the tunnels of a port, and reports whether it can no longer be watched.
func (w *Wire) setTunnels(l kernel.Port, p *port) (failed bool) {
	if maps.Equal(l.Tunnels, p.tunnels) {
		return false
	}
	changed := map[uint16]bool{} // the VLANs that are of other tunnels now
	for id, vid := range p.tunnels {
		changed[vid] = changed[vid] || l.Tunnels[id] != vid
	}
	for id, vid := range l.Tunnels {
		changed[vid] = changed[vid] || p.tunnels[id] != vid
	}
	p.tunnels = l.Tunnels
	if err := w.obs.SetTunnels(int(l.Index), l.Tunnels); err != nil {
		w.detach(l.Index, p)
		w.mu.Lock()
		defer w.mu.Unlock()
		p.att, p.err = nil, err
		return true
	}
	w.kernel.TunnelsSet(l.Index, changed)
	return false
}

func (w *Wire) detach(index int32, p *port) {
	if p.att != nil {
		if err := p.att.Close(); err != nil {
			w.log.Warn("cannot detach from interface", "interface", p.name, "error", err)
		}
	}
	if len(p.tunnels) > 0 {
		if err := w.obs.SetTunnels(int(index), nil); err != nil {
			w.log.Warn("cannot forget tunnels", "interface", p.name, "error", err)
		}
	}
}

// check forgets the ports that the observer could not be attached to, and those from which
// another program removed it, so that both are tried again.
func (w *Wire) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for index, p := range w.attached {
		if p.err == nil {
			if p.att.There() {
				continue
			}
			w.log.Warn("another program removed the observer: attaching it again", "interface", p.name)
		}
		w.detach(index, p)
		delete(w.attached, index)
	}
	table.Poke(w.changed)
}

func (w *Wire) detachAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	// One at a time, because the kernel holds the rtnl lock for each.
	for index, p := range w.attached {
		w.detach(index, p)
	}
	clear(w.attached)
}

// Contest makes the observer report known bindings of an address every second, and reserves
// room for new ones.
func (w *Wire) Contest(addr netip.Addr, on bool) {
	w.table.Contest(addr, on)
	if err := w.obs.Contest(addr, on); err != nil {
		w.log.Warn("cannot raise the report rate of a contested address", "address", addr, "error", err)
	}
}

// Evidence are the kinds of evidence that frames are.
var Evidence = map[bpf.Kind]ipwitnessv1.Evidence_Kind{
	bpf.Announced: ipwitnessv1.Evidence_ANNOUNCED,
	bpf.Answered:  ipwitnessv1.Evidence_ANSWERED,
	bpf.Used:      ipwitnessv1.Evidence_USED,
}

// RemoveLeftovers removes the filters of a killed agent, which remain after its end.
func RemoveLeftovers(log *slog.Logger, ports []kernel.Port) {
	for _, p := range ports {
		if n, err := bpf.RemoveLeftovers(int(p.Index)); err != nil && !errors.Is(err, bpf.ErrGone) {
			log.Warn("cannot remove filters of an earlier run", "interface", p.Name, "error", err)
		} else if n > 0 {
			log.Info("removed filters of an earlier run", "interface", p.Name, "filters", n)
		}
	}
}
