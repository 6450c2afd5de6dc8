// Package agent observes the owners of the addresses on this node, and reports it.
//
// The package has the configuration, the health and the metrics of an agent, and the checks of
// the host that "ipwitness doctor" shows. It creates the packages below it and connects them:
// sources (kernel, wire, workload, allocations) fill one table, and report carries the table to
// the aggregators. It judges nothing: the agent does not know what a conflict is, and shares
// only proto with the aggregator.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/ipwitness/ipwitness/agent/allocations"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/wire"
	"github.com/ipwitness/ipwitness/agent/workload"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ErrBlind is the error of an agent that can observe neither frames nor addresses.
var ErrBlind = errors.New("neither frames nor addresses can be observed")

// An Agent observes one node.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	hello    *ipwitnessv1.Hello
	table    *table.Table
	inode    uint64
	runtime  *workload.Runtime
	ipam     *allocations.Reader
	load     func() (*bpf.Observer, error)
	problems []string // found at startup
	blind    bool     // found at startup: addresses inside pods are not seen

	// sources has 1 for each source of evidence that the agent can use, 0 for others.
	sources atomic.Pointer[map[string]float64]
	wire    atomic.Pointer[wire.Wire]
	vips    atomic.Pointer[workload.VIPProgram]
	mirror  atomic.Pointer[kernel.Mirror]
	// seesProcesses is set before vips.
	seesProcesses bool
	// streams has a function for each group of aggregators, which returns how many of them are connected
	// and disconnected.
	streams atomic.Pointer[[]func() (connected, disconnected int)]

	lostNetlink    atomic.Uint32
	lostNeighbours atomic.Uint32
	malformed      atomic.Uint32

	reporting sync.Mutex // held while the status is assembled
}

// New checks cfg and reads the identity of this node. It starts nothing.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Agent, error) {
	cfg, err := cfg.defaults()
	if err != nil {
		return nil, err
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	var netns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &netns); err != nil {
		return nil, fmt.Errorf("read own network namespace: %w", err)
	}
	dirs := map[string][]string{hostlocal.Name: cfg.IPAMDirs}
	if cfg.CalicoDir != "" {
		dirs[calico.IPAM.Name] = []string{cfg.CalicoDir}
	}
	a := &Agent{
		cfg: cfg, log: log, load: bpf.Load, table: table.New(), inode: netns.Ino, runtime: workload.NewRuntime(log, cfg.CRISocket, "/proc"),
		hello: &ipwitnessv1.Hello{
			Node: cfg.Node, BootId: strings.TrimSpace(string(bootID)), Netns: fmt.Sprint(netns.Ino),
			Epoch: uint64(time.Now().UnixNano()), Version: cfg.Version, Kernel: KernelRelease(),
		},
	}
	a.ipam = allocations.New(log, a.table, allocations.Config{Dirs: dirs, CNIConfig: cfg.CNIConfig, CNIResults: cfg.CNIResults}, allocations.FindRoot("/proc"))
	a.runtime.StatusChanged, a.ipam.StatusChanged, a.runtime.Lacks.Changed = a.report, a.report, a.report
	if err := reg.Register(&collector{agent: a}); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return a, nil
}

// Run observes the node and reports everything to each of the aggregators until ctx ends. It
// then detaches the observer and returns nil. It returns an error if neither netlink nor the
// wire can be used, or if another agent runs in this network namespace. It permanently drops
// the capabilities of the process that are only needed at startup.
func (a *Agent) Run(ctx context.Context, to ...report.Target) error {
	if len(to) == 0 {
		return errors.New("no aggregator is configured: add one with --aggregator")
	}
	unlock, err := lockNamespace()
	if err != nil {
		return err
	}
	defer unlock()

	req, err := rtnetlink.Dial()
	if err != nil {
		return err
	}
	defer req.Close()
	ownNSID, foreignErr := req.OwnNSID()
	if foreignErr != nil {
		a.blind = true
		a.problem("addresses inside pods are not seen: only frames and the node's own addresses are", foreignErr)
	}
	listener, hearErr := rtnetlink.Listen(true)
	if hearErr != nil {
		if listener, err = rtnetlink.Listen(false); err != nil {
			return err
		}
		if foreignErr == nil {
			a.problem(fmt.Sprintf("the kernel does not report changes of addresses inside pods: the addresses are read every %s instead", kernel.ListEvery), hearErr)
		}
	}
	defer listener.Close()
	neighbours, err := rtnetlink.ListenNeighbours(hearErr == nil)
	if err != nil {
		return err
	}
	defer neighbours.Close()

	obs, mode, wireErr := a.startObserver()
	later := table.Lack(wireErr) != "" // a resource may be free later
	defer func() {
		if obs != nil {
			_ = obs.Close()
		}
	}()
	switch {
	case obs == nil && foreignErr != nil:
		return fmt.Errorf("%w: %w", ErrBlind, errors.Join(foreignErr, wireErr))
	case wireErr != nil && !later:
		a.problem(noFrames, wireErr)
	}
	clock, err := bpf.AddressClock()
	if err != nil {
		a.log.Info("the times at which addresses were assigned are up to half a second off", "reason", err)
	}
	if !later {
		DropCapabilities(a.log, obs)
	}
	sources := map[string]float64{"addresses": 0}
	if foreignErr == nil {
		sources["addresses"] = 1
	}
	if obs != nil {
		sources["wire"] = 1
	} else if wireErr != nil {
		sources["wire"] = 0
	}
	a.sources.Store(&sources)

	k := kernel.New(a.log, a.table, req, ownNSID, a.inode, clock, a.cfg.Node)
	n := workload.New(a.log, k, a.cfg.NetnsDirs, a.cfg.CNIResults, "/proc", a.runtime, a.ipam.Containers)
	a.seesProcesses = allocations.SeesProcesses("/proc")
	n.SeesAll = a.seesProcesses
	n.Mounted, n.VIPs.Changed, a.ipam.Renamed = a.ipam.CheckMounts, a.report, n.Wake
	a.vips.Store(&n.VIPs)
	k.OwnOnly = hearErr != nil || foreignErr != nil
	a.mirror.Store(k)
	look := func(addr netip.Addr, on bool) {
		if w := a.wire.Load(); w != nil {
			w.Contest(addr, on)
		}
		k.Contest(addr, on)
	}
	watch := func(obs *bpf.Observer, mode bpf.Mode) *wire.Wire {
		w := wire.New(a.log, k, a.table, obs, mode, a.cfg.Interfaces, a.cfg.ExcludeInterfaces)
		w.StatusChanged = a.report
		a.wire.Store(w)
		return w
	}
	if obs != nil {
		watch(obs, mode)
	}
	contests, instances := report.NewContests(a.log, look), report.NewInstances()
	reporter := func(log *slog.Logger, conn grpc.ClientConnInterface) *report.Reporter {
		return report.New(log, a.table, a.hello, conn, n.Reread, k.Departed, k.Asked, contests, instances)
	}
	var groups []*report.Group
	var streams []func() (int, int)
	for _, target := range to {
		group := report.NewGroup(a.log, target, reporter)
		groups, streams = append(groups, group), append(streams, group.Streams)
	}
	a.streams.Store(&streams)
	n.Look(true) // names before addresses, so that the first report has both
	if err := k.List(); err != nil {
		a.log.Warn("cannot list addresses, trying again", "error", err)
		k.Incomplete()
	}
	wire.RemoveLeftovers(a.log, k.Ports())
	a.report()

	g, ctx := errgroup.WithContext(ctx)
	if w := a.wire.Load(); w != nil {
		g.Go(func() error { return w.Run(ctx) })
	}
	if later {
		g.Go(func() error {
			err := a.runtime.Lacks.Until(ctx, noFrames, func() (err error) { obs, mode, err = a.startObserver(); return err })
			DropCapabilities(a.log, obs)
			if err != nil {
				a.reporting.Lock()
				a.problem(noFrames, err)
				a.reporting.Unlock()
				a.report()
				return nil
			}
			sources := maps.Clone(sources)
			sources["wire"] = 1
			a.sources.Store(&sources)
			return watch(obs, mode).Run(ctx)
		})
	}
	g.Go(func() error { return a.runtime.Run(ctx) })
	g.Go(func() error { return n.Run(ctx) })
	g.Go(func() error { return a.ipam.Run(ctx) })
	g.Go(func() error { return a.follow(ctx, k, listener.Run) })
	g.Go(func() error { return k.FollowRoutes(ctx) })
	g.Go(func() error { return k.FollowAnswers(ctx) })
	g.Go(func() error {
		return neighbours.Run(ctx, k.HandleNeighbour, func() { a.lostNeighbours.Add(1); k.ListNeighbours() }, func() { a.malformed.Add(1) })
	})
	g.Go(func() error { return k.FollowBeliefs(ctx, a.report) })
	g.Go(func() error { return k.ListAgain(ctx, hearErr != nil && foreignErr == nil) })
	for _, group := range groups {
		g.Go(func() error {
			a.ipam.Await(ctx) // so that the first report has allocations
			return group.Run(ctx)
		})
	}
	return g.Wait()
}

const noFrames = "frames are not seen: only addresses inside network namespaces are"

func (a *Agent) aggregators() (connected, disconnected int) {
	if all := a.streams.Load(); all != nil {
		for _, streams := range *all {
			up, down := streams()
			connected, disconnected = connected+up, disconnected+down
		}
	}
	return connected, disconnected
}

// listen is the type of rtnetlink.Listener.Run.
type listen func(ctx context.Context, fn func(*rtnetlink.Message), lost, malformed func()) error

// follow passes the changes that netlink reports to k. If changes were lost, k lists
// everything again.
func (a *Agent) follow(ctx context.Context, k *kernel.Mirror, run listen) error {
	lost := func() {
		a.lostNetlink.Add(1)
		a.log.Warn("netlink events were lost: listing everything again")
		if err := k.List(); err != nil {
			a.log.Warn("cannot list after lost events, trying again", "error", err)
			k.Incomplete()
		}
		a.report()
	}
	return run(ctx, k.Handle, lost, func() { a.malformed.Add(1) })
}

// startObserver loads the observer and chooses how to attach it. It returns neither an
// observer nor an error if the wire is off.
func (a *Agent) startObserver() (*bpf.Observer, bpf.Mode, error) {
	if a.cfg.Wire == WireOff {
		return nil, 0, nil
	}
	obs, err := a.load()
	if err != nil {
		return nil, 0, fmt.Errorf("load the observer: %w", err)
	}
	if a.cfg.Wire == WireClsact {
		return obs, bpf.Clsact, nil
	}
	switch err := bpf.HaveTCX(); {
	case err == nil:
		return obs, bpf.TCX, nil
	case a.cfg.Wire == WireTCX:
		_ = obs.Close()
		return nil, 0, fmt.Errorf("%w: use --wire auto", err)
	default:
		a.log.Info("watching frames with clsact", "reason", err)
		return obs, bpf.Clsact, nil
	}
}

// lockNamespace makes this the only agent of its network namespace. It binds an abstract
// socket, which belongs to the namespace and ends with the process.
func lockNamespace() (unlock func(), err error) {
	l, err := net.Listen("unix", "@ipwitness-agent")
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.New("another ipwitness agent runs in this network namespace: stop it first, or query it with 'ipwitness owners'")
	}
	if err != nil {
		return nil, fmt.Errorf("lock network namespace: %w", err)
	}
	return func() { _ = l.Close() }, nil
}

// problem records and logs a limitation and its cause.
func (a *Agent) problem(what string, err error) {
	a.problems = append(a.problems, fmt.Sprintf("%s: %v", what, err))
	a.log.Warn("agent is limited", "problem", what, "error", err)
}

func (a *Agent) report() {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	now := time.Now()
	s := &ipwitnessv1.StatusRecord{
		Wire: string(WireOff), LostEvents: a.lostNetlink.Load(), Problems: slices.Clone(a.problems), Blind: a.blind,
	}
	runtime, problems := a.runtime.Health(now)
	s.Runtime, s.Problems = runtime, append(s.Problems, problems...)
	records := a.ipam.Health()
	s.UnreadIpams, s.UnreadableIpams = records.Unread, records.Unreadable
	if name := records.NodeName; name.Name != "" {
		s.NodeName = &ipwitnessv1.NodeName{Name: name.Name, Source: ipwitnessv1.NodeName_Source(name.Source), File: table.Printable(name.File)}
	}
	if v := a.vips.Load(); v != nil {
		s.VipProgram, s.VipProgramEnded = v.State()
		s.SeesProcesses = a.seesProcesses
	}
	s.Problems = slices.Concat(s.Problems, a.runtime.Lacks.Problems(), records.Problems)
	if w := a.wire.Load(); w != nil {
		w.AddStatus(s, now)
	}
	if k := a.mirror.Load(); k != nil && k.BeliefsLeftOut() > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("the neighbour tables have more than %d entries: who sends packets to a wrong MAC is not known for the others", k.BeliefsLeftOut()))
	}
	for i, problem := range s.Problems {
		s.Problems[i] = table.Printable(problem) // errors may contain names of files, which may have any bytes
	}
	a.table.Update(func() { a.table.SetStatus(s) })
}
