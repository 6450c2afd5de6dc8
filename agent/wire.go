package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/wake"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Wire says how the agent watches the wire.
type Wire string

// The ways to watch the wire.
const (
	WireAuto   Wire = "auto"   // TCX where the kernel has it, clsact otherwise
	WireTCX    Wire = "tcx"    // TCX only (Linux 6.6)
	WireClsact Wire = "clsact" // a filter in the clsact qdisc
	WireOff    Wire = "off"    // netlink only
)

// wireKept is how long a claim that only the wire shows is kept after it was
// last seen. A known binding is told again every 30 s while it is used.
const wireKept = 10 * time.Minute

// wire keeps the observer on the ports of the node, and turns what it sees
// into claims.
type wire struct {
	log              *slog.Logger
	kernel           *kernel.Mirror
	table            *table.Table
	obs              *bpf.Observer
	mode             bpf.Mode
	include, exclude []string
	changed          chan struct{} // holds one token while ports may have changed
	statusChanged    func()

	mu       sync.Mutex
	attached map[int32]*port

	// Bindings that the observer is to forget. Each costs a system call, and there
	// can be thousands: it is done without the locks that are held when they end,
	// as to be late means only to be told once more.
	endedMu sync.Mutex
	ended   []table.ClaimKey
	letting chan struct{} // holds one token while ended has keys, or the importance of an address has changed

	floods floods
	clock  frameClock // used by read only
}

// port is one interface with the observer on it, or the reason why not.
type port struct {
	name string
	gen  uint64
	att  *bpf.Attachment
	err  error
}

func newWire(log *slog.Logger, k *kernel.Mirror, t *table.Table, obs *bpf.Observer, mode bpf.Mode, include, exclude []string) *wire {
	w := &wire{
		log:           log,
		kernel:        k,
		table:         t,
		obs:           obs,
		mode:          mode,
		include:       include,
		exclude:       exclude,
		changed:       make(chan struct{}, 1),
		statusChanged: func() {},
		attached:      map[int32]*port{},
		letting:       make(chan struct{}, 1),
		floods:        floods{log: log},
	}
	k.PortsChanged = func() { wake.Poke(w.changed) }
	k.ClaimEnded = w.letGo
	t.FollowImportance(func() { wake.Poke(w.letting) })
	return w
}

// run attaches, reads and expires until ctx ends. It detaches everything
// before it returns.
func (w *wire) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, w.obs.Interrupt)
	defer stop()
	g.Go(func() error { return w.read(ctx) })
	g.Go(func() error { w.keep(ctx); return nil })
	g.Go(func() error { w.forget(ctx); return nil })
	g.Go(func() error { w.lookForFloods(ctx); return nil })
	return g.Wait()
}

// letGo has the observer tell the next frames of bindings.
func (w *wire) letGo(keys []table.ClaimKey) {
	if len(keys) == 0 {
		return
	}
	w.endedMu.Lock()
	w.ended = append(w.ended, keys...)
	w.endedMu.Unlock()
	wake.Poke(w.letting)
}

// forget deletes ended bindings from the observer and tells it which addresses
// are important, until ctx ends.
func (w *wire) forget(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.letting:
		}
		w.endedMu.Lock()
		ended := w.ended
		w.ended = nil
		w.endedMu.Unlock()
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
				w.log.Debug("cannot have the observer prefer an address", "address", addr, "error", err)
			}
		}
	}
}

// read turns frames into claims.
func (w *wire) read(ctx context.Context) error {
	var ev bpf.Event
	for {
		err := w.obs.Read(&ev)
		switch {
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("read frames from the observer: %w", err)
		}
		w.frame(&ev)
	}
}

// frame makes a claim of one event of the observer.
func (w *wire) frame(ev *bpf.Event) {
	seen := w.clock.at(ev.Ktime)
	key := table.ClaimKey{
		Address:   ev.Addr,
		Kind:      evidenceOf[ev.Kind],
		At:        table.InterfaceKey{Namespace: table.OwnNamespace, Index: int32(ev.Ifindex)},
		MAC:       string(ev.SHA[:]),
		VLAN:      ev.VLAN,
		InnerVLAN: ev.InnerVLAN,

		NoOverride: ev.NoOverride,
	}
	if ev.Source != ev.SHA {
		key.Source = string(ev.Source[:])
	}
	w.kernel.AddFrame(key, table.Claim{First: seen, Last: seen, Count: ev.Frames})
}

// keep holds the attachments equal to the ports that there are.
func (w *wire) keep(ctx context.Context) {
	defer w.detachAll()
	// A port that could not be had is tried again; old claims are let go.
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		w.attach(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-tick.C:
			w.check()
			w.kernel.Expire(time.Now().Add(-wireKept))
			w.statusChanged()
		}
	}
}

// attach brings the attachments up to date.
func (w *wire) attach(ctx context.Context) {
	want := w.kernel.Ports()
	living := map[int32]uint64{}
	for _, p := range want {
		if w.wanted(p.Name) {
			living[p.Index] = p.Gen
		}
	}
	changed := false
	w.mu.Lock()
	var ended []*port
	for index, p := range w.attached {
		if gen, ok := living[index]; !ok || gen != p.gen {
			delete(w.attached, index)
			ended = append(ended, p)
		}
	}
	w.mu.Unlock()
	for _, p := range ended {
		changed = true
		w.detach(p)
	}
	for _, l := range want {
		if _, ok := living[l.Index]; !ok || ctx.Err() != nil {
			continue
		}
		w.mu.Lock()
		old := w.attached[l.Index]
		if old != nil {
			changed = changed || old.name != l.Name
			old.name = l.Name
		}
		w.mu.Unlock()
		if old != nil {
			continue
		}
		p := &port{name: l.Name, gen: l.Gen}
		p.att, p.err = w.attachOne(int(l.Index))
		if errors.Is(p.err, bpf.ErrGone) {
			continue // its end is told by netlink, or was
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
		w.statusChanged()
	}
}

func (w *wire) attachOne(index int) (*bpf.Attachment, error) {
	if w.mode == bpf.Clsact {
		return w.obs.AttachClsact(index)
	}
	return w.obs.AttachTCX(index)
}

func (w *wire) detach(p *port) {
	if p.att == nil {
		return
	}
	if err := p.att.Close(); err != nil {
		w.log.Warn("cannot detach from interface", "interface", p.name, "error", err)
	}
}

// check forgets the ports that could not be had, and those that somebody took
// the observer off, so that they are tried again.
func (w *wire) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for index, p := range w.attached {
		switch {
		case p.err != nil:
			delete(w.attached, index)
		case !p.att.There():
			w.log.Warn("somebody removed the observer: attaching it again", "interface", p.name)
			w.detach(p)
			delete(w.attached, index)
		}
	}
	wake.Poke(w.changed)
}

func (w *wire) detachAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	// One after the other: the kernel holds the rtnl lock for each.
	for _, p := range w.attached {
		w.detach(p)
	}
	clear(w.attached)
}

// wanted says whether the globs let an interface be watched.
func (w *wire) wanted(name string) bool {
	match := func(globs []string) bool {
		return slices.ContainsFunc(globs, func(g string) bool {
			ok, _ := path.Match(g, name) // the patterns were checked by New
			return ok
		})
	}
	return (len(w.include) == 0 || match(w.include)) && !match(w.exclude)
}

// ports returns the interfaces that the observer is attached to, by name, and
// one problem for each interface that could not be watched.
func (w *wire) ports() (out []*ipwitnessv1.Node_Port, problems []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.attached {
		if p.err != nil {
			problems = append(problems, fmt.Sprintf("frames on %s are not seen: %v", p.name, p.err))
			continue
		}
		out = append(out, &ipwitnessv1.Node_Port{Interface: p.name, Mode: p.att.Mode().String()})
	}
	slices.SortFunc(out, func(a, b *ipwitnessv1.Node_Port) int {
		return cmp.Compare(a.GetInterface(), b.GetInterface())
	})
	slices.Sort(problems)
	return out, problems
}

// unparsed returns how many frames were not parsed to the end, by reason.
func (w *wire) unparsed() *ipwitnessv1.Unparsed {
	return &ipwitnessv1.Unparsed{
		Tags:       w.frames(bpf.ResultUnparsedTags),
		Extensions: w.frames(bpf.ResultUnparsedExtensions),
		Options:    w.frames(bpf.ResultUnparsedOptions),
	}
}

// frames returns how many frames ended with a result.
func (w *wire) frames(result bpf.Result) (frames uint64) {
	counters, err := w.obs.Counters()
	if err != nil {
		w.log.Debug("cannot read the observer's counters", "error", err)
	}
	for _, c := range counters {
		if c.Result == result.String() {
			frames += c.Frames
		}
	}
	return frames
}

// contest makes the kernel report known bindings of an address every second, and
// reserves room for new ones.
func (w *wire) contest(addr netip.Addr, on bool) {
	w.table.Contest(addr, on)
	if err := w.obs.Contest(addr, on); err != nil {
		w.log.Warn("cannot watch contested address more often", "address", addr, "error", err)
	}
}

var evidenceOf = map[bpf.Kind]ipwitnessv1.Evidence_Kind{
	bpf.Announced: ipwitnessv1.Evidence_ANNOUNCED,
	bpf.Answered:  ipwitnessv1.Evidence_ANSWERED,
	bpf.Used:      ipwitnessv1.Evidence_USED,
}
