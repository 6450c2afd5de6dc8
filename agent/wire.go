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
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
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
	kernel           *kernel
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
}

// port is one interface with the observer on it, or the reason why not.
type port struct {
	name string
	gen  uint64
	att  *bpf.Attachment
	err  error
}

func newWire(log *slog.Logger, k *kernel, obs *bpf.Observer, mode bpf.Mode, include, exclude []string) *wire {
	w := &wire{
		log:           log,
		kernel:        k,
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
	k.portsChanged = func() { wake.Poke(w.changed) }
	k.claimEnded = w.letGo
	k.table.FollowImportance(func() { wake.Poke(w.letting) })
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
		for addr, important := range w.kernel.table.TakeImportance() {
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
		w.kernel.frame(&ev)
	}
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
			w.kernel.expire(time.Now().Add(-wireKept))
			w.statusChanged()
		}
	}
}

// attach brings the attachments up to date.
func (w *wire) attach(ctx context.Context) {
	want := w.kernel.ports()
	living := map[int32]uint64{}
	for _, p := range want {
		if w.wanted(p.name) {
			living[p.index] = p.gen
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
		if _, ok := living[l.index]; !ok || ctx.Err() != nil {
			continue
		}
		w.mu.Lock()
		old := w.attached[l.index]
		if old != nil {
			changed = changed || old.name != l.name
			old.name = l.name
		}
		w.mu.Unlock()
		if old != nil {
			continue
		}
		p := &port{name: l.name, gen: l.gen}
		p.att, p.err = w.attachOne(int(l.index))
		if errors.Is(p.err, bpf.ErrGone) {
			continue // its end is told by netlink, or was
		}
		if p.err != nil {
			w.log.Warn("cannot watch interface", "interface", l.name, "error", p.err)
		}
		w.mu.Lock()
		w.attached[l.index] = p
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
	w.kernel.table.Contest(addr, on)
	if err := w.obs.Contest(addr, on); err != nil {
		w.log.Warn("cannot watch contested address more often", "address", addr, "error", err)
	}
}

// watched is one interface that the observer belongs on.
type watched struct {
	index int32
	gen   uint64
	name  string
}

// ports lists the lowest devices of our own namespace by which frames can
// enter: not a bridge or a bond and its port both, nor a VLAN and its parent.
func (k *kernel) ports() []watched {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []watched
	for _, l := range k.own.links {
		if isPort(l) {
			out = append(out, watched{l.Index, l.gen, l.Name})
		}
	}
	slices.SortFunc(out, func(a, b watched) int { return int(a.index) - int(b.index) })
	return out
}

func isPort(l *link) bool {
	if l.ARPHRD != unix.ARPHRD_ETHER || isLocal(l) || isChild(l.Kind) {
		return false
	}
	switch l.Kind {
	case "bridge", "bond", "team", "vlan", "vrf", "openvswitch", "ifb":
		return false
	}
	return true
}

// frame handles one event of the observer.
func (k *kernel) frame(ev *bpf.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.own.links[int32(ev.Ifindex)]
	if l == nil {
		return // the port has ended, and with it all claims by it
	}
	received := k.clock.at(ev.Ktime)
	d := k.domainOf(l, tagsOf(ev.VLAN, ev.InnerVLAN)...)
	c := table.Claim{Link: d.name, First: received, Last: received, Count: ev.Frames}
	key := table.ClaimKey{
		Address:   ev.Addr,
		Kind:      evidenceOf[ev.Kind],
		At:        table.InterfaceKey{Namespace: table.OwnNamespace, Index: l.Index},
		MAC:       string(ev.SHA[:]),
		VLAN:      ev.VLAN,
		InnerVLAN: ev.InnerVLAN,

		NoOverride: ev.NoOverride,
	}
	if ev.Source != ev.SHA {
		key.Source = string(ev.Source[:])
	}
	if end, ok := k.ended[holding{ev.Addr, key.MAC}]; ok && received.Before(end) {
		k.claimEnded([]table.ClaimKey{key}) // sent before its holder gave the address up: the next one is not
		return
	}
	c.Routed = k.routedTo(l, d, ev.Addr)
	k.table.Update(func() {
		took, evicted := k.table.Add(key, c, received)
		if took {
			k.putDomain(d, received)
		}
		k.claimEnded(evicted)
	})
}

// routedTo reports whether the node itself routes an address to the namespace
// behind its port l: out of that port, or on the port's broadcast domain d to a
// next hop that the namespace has. Nothing inside the namespace can make the
// node do so. The result is false for addresses that the namespace itself has,
// except on its loopback.
func (k *kernel) routedTo(l *link, d domain, addr netip.Addr) bool {
	if l.published.GetPeerNamespace() == 0 || l.published.GetUplink() || addr.IsLinkLocalUnicast() {
		return false // a link-local address has a route through every interface
	}
	peer := k.byNSID[l.LowerNSID]
	if peer == nil {
		return false
	}
	for _, own := range peer.links {
		if own.addrs[addr] != nil && !isLocal(own) {
			return false
		}
	}
	hops, err := k.req.Route(addr)
	if err != nil {
		k.log.Debug("cannot look up route", "address", addr, "error", err)
		return false
	}
	return slices.ContainsFunc(hops, func(h rtnetlink.Hop) bool {
		if h.Index == l.Index {
			return true
		}
		out := k.own.links[h.Index]
		return out != nil && h.Gateway.IsValid() && peer.has(h.Gateway) && k.domainOf(out).name == d.name
	})
}

// frameClock turns the monotonic time of the kernel into ours.
type frameClock struct {
	now       time.Time
	monotonic time.Duration
}

// at gives the time of a frame. The two clocks are compared once a second, and
// not for each frame: that would be a system call.
func (c *frameClock) at(ktime time.Duration) time.Time {
	if c.now.IsZero() || (ktime-c.monotonic).Abs() > time.Second {
		for range 4 { // until nothing came between the two
			begin := time.Now()
			var ts unix.Timespec
			if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
				return begin
			}
			c.now, c.monotonic = begin, time.Duration(ts.Nano())
			if time.Since(begin) < 100*time.Microsecond {
				break
			}
		}
	}
	return c.now.Add(ktime - c.monotonic)
}

var evidenceOf = map[bpf.Kind]ipwitnessv1.Evidence_Kind{
	bpf.Announced: ipwitnessv1.Evidence_ANNOUNCED,
	bpf.Answered:  ipwitnessv1.Evidence_ANSWERED,
	bpf.Used:      ipwitnessv1.Evidence_USED,
}

// expire ends the wire claims that were last seen before a time, and the links
// that only they were on.
func (k *kernel) expire(before time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.table.Update(func() {
		k.claimEnded(k.table.RemoveOld(before, now))
		used := map[string]bool{}
		for _, r := range k.table.Interfaces.All() {
			used[r.GetLink()] = true
		}
		for _, index := range k.table.WirePorts() {
			for _, c := range k.table.WireClaims(index) {
				used[c.Link] = true
			}
		}
		for name := range k.domains {
			if !used[name] {
				k.dropDomain(name, now)
			}
		}
	})
}
