package live

import (
	"cmp"
	"context"
	"encoding/hex"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// lookAgainAfter is how often Run looks whether nodes have reported.
	lookAgainAfter = 200 * time.Millisecond
	// lookAtUnseenAfter is the same of conflicts that await frames.
	lookAtUnseenAfter = time.Second
	// awaitOwners limits how long the start waits for the owners from before, of which there may be millions.
	awaitOwners = 2 * time.Second
	// releasedTogether is the number of conflicts that are judged at a time, a part of what a subscriber
	// of events may be behind.
	releasedTogether = BusSize / 4
)

// RecallConfig contains the dependencies of a Recall. All fields are required.
type RecallConfig struct {
	Facts    *facts.Facts
	Shards   *judge.Shards
	Findings *judge.Findings
	Journal  *journal.Journal
	// Coverage is told what is awaited.
	Coverage *Coverage
	// Recorded gets the messages of the conflicts and findings.
	Recorded *Recorded
	Log      *slog.Logger
	// Judge waits until everything that a change affects is judged.
	Judge func(*facts.Batch)
}

// A Recall puts back what was known before the start. Use New.
type Recall struct {
	RecallConfig
	// at is the time of the state that is read; 0 for now.
	at verdict.Stamp
	// known is closed when what was known before the start has been read, and done when nothing is awaited any longer.
	known, done chan struct{}
	// boots has the boot IDs of the nodes by name. missing are the nodes that are awaited.
	boots   map[string]string
	missing map[string]bool
	// awaited are the conflicts that are not released yet. unseen are those whose nodes have reported, and that depend on
	// owners that only frames show: these may be minutes apart.
	awaited, unseen []*verdict.Conflict
	// before has what is known about addresses until the Kubernetes API is read, and lost the pools that had lost their records.
	before map[index.Address]judge.Recollection
	lost   []*verdict.Pool
}

// NewRecall returns a Recall that puts nothing back before Run.
func NewRecall(cfg RecallConfig) *Recall {
	cfg.Facts.AwaitNodes(cfg.Facts.Clock().Add(startGrace)) // agents may report before Run
	return &Recall{RecallConfig: cfg, known: make(chan struct{}), done: make(chan struct{}), boots: make(map[string]string), missing: make(map[string]bool), before: make(map[index.Address]judge.Recollection)}
}

// Known returns a channel that is closed when what was known before the start can be listed, or cannot be read.
func (r *Recall) Known() <-chan struct{} { return r.known }

// Done returns a channel that is closed when no node is awaited any longer, and no conflict except for the Kubernetes
// API, so that the present state can be compared with the state before the start.
func (r *Recall) Done() <-chan struct{} { return r.done }

// Run puts everything back, and waits for the nodes, at most until they would have timed out, and for the Kubernetes API.
// It returns earlier if ctx ends.
func (r *Recall) Run(ctx context.Context) {
	start := r.Facts.Clock()
	select {
	case <-r.Journal.Opened():
	case <-ctx.Done():
		return
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	replaced := r.Journal.Replaced()
	err := r.read(ctx)
	if err != nil {
		r.Log.Error("cannot read from the journal what was known before the start: conflicts that last are detected anew", "error", err)
	}
	if r.Journal.Dir != "" && (err != nil || r.Journal.Stats().Memory) {
		beside.Go(func() {
			again := &Recall{RecallConfig: r.RecallConfig, at: start, boots: make(map[string]string), missing: make(map[string]bool)}
			if err := again.readLater(ctx, replaced); err != nil {
				r.Log.Error("cannot read from the journal what was known before the start: conflicts that last keep their later times", "error", err)
			}
		})
	}
	r.expect(maps.Clone(r.missing))
	owners := make(chan struct{})
	beside.Go(func() {
		defer close(owners)
		if err := r.readOwners(ctx); err != nil {
			r.Log.Error("cannot read from the journal which owners there were before the start: old frames may show conflicts with them", "error", err)
		}
	})
	select {
	case <-owners:
	case <-time.After(awaitOwners):
	case <-ctx.Done():
	}
	close(r.known)
	if r.wait(ctx, start.Add(r.Facts.Policy.NodeTimeout)) {
		r.expect(nil)
		close(r.done)
		look := time.NewTicker(lookAtUnseenAfter)
		defer look.Stop()
		read := false // the Kubernetes API
		for end := r.Facts.Clock().Add(r.Facts.Policy.StaleAfter); ; {
			r.Facts.RLock()
			unread := len(r.Facts.Unread()) > 0
			r.reported()
			r.Facts.RUnlock()
			if !read && !unread {
				read = true
				r.release(true, false)
				for a := range r.before {
					r.Shards.Recollect(a, judge.Recollection{})
				}
				r.before = nil
			}
			late := r.Facts.Clock() >= end
			if r.releaseSeen(late); read && late {
				break
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
		r.Judge(r.Facts.RecallTenures(nil))
		<-owners
		r.Judge(r.Facts.RecallDepartures(nil))
		select { // the messages of resolved conflicts are needed until then
		case <-time.After(max(0, start.Add(r.Shards.Clock().Sub(r.Shards.KeptSince())).Sub(r.Facts.Clock()))):
			r.Recorded.Keep(func(id string) bool { return r.Shards.Conflicts.Get(id) != nil || r.Findings.Get(id) != nil })
		case <-ctx.Done():
		}
	}
}

// readLater gives what lasts its times and episodes from before the start, as soon as a journal that was in memory, or could not
// be read, is replaced by one in its directory. What was not found again does not come back: the journal has recorded its end. What was found after the
// nodes would have timed out had ended before.
func (r *Recall) readLater(ctx context.Context, replaced <-chan struct{}) error {
	for inMemory := true; inMemory; inMemory = r.Journal.Stats().Memory {
		select {
		case <-replaced:
			replaced = r.Journal.Replaced()
		case <-ctx.Done():
			return nil
		}
	}
	if err := r.readNodes(ctx); err != nil {
		return err
	}
	deadline := r.at.Add(r.Facts.Policy.NodeTimeout)
	var conflicts []*verdict.Conflict
	var tenures []facts.Tenure
	if err := r.each(ctx, pb.Event_CONFLICT, func(e *pb.Event) {
		c, now := r.conflict(e.GetConflict()), r.Shards.Conflicts.Get(e.GetConflict().GetId())
		if c == nil || now == nil {
			return
		}
		if now.DetectedAt > deadline {
			c.Phase = verdict.Resolved
		}
		conflicts = append(conflicts, c)
		tenures = append(tenures, tenuresOf(c, e.GetConflict())...)
	}); err != nil {
		return err
	}
	r.Judge(r.Facts.RecallTenures(tenures))
	r.Shards.Recall(conflicts)
	for i, c := range conflicts { // of which some may have ended meanwhile
		now := *c
		now.Awaited, conflicts[i] = false, &now
	}
	r.judge(conflicts)
	var found []*judge.Found
	err := r.each(ctx, pb.Event_FINDING, func(e *pb.Event) {
		one := r.finding(e.GetFinding())
		if now := r.Findings.Get(one.ID); now != nil && now.Since <= deadline {
			found = append(found, one)
		}
	})
	r.Findings.Recall(found)
	r.Judge(r.Facts.RecallTenures(nil))
	return err
}

// readNodes reads the nodes before the start, and puts their programs back.
func (r *Recall) readNodes(ctx context.Context) error {
	programs := make(map[facts.NodeID]string)
	err := r.each(ctx, pb.Event_NODE, func(e *pb.Event) {
		n := e.GetNode()
		r.boots[n.GetName()] = n.GetBootId()
		if n.GetState() == pb.Node_LIVE {
			r.missing[n.GetName()] = true
		}
		if program := n.GetVipProgram(); program != "" {
			programs[facts.NodeID{Boot: n.GetBootId(), Netns: n.GetNetns()}] = program
		}
	})
	if err == nil {
		r.Judge(r.Facts.RecallPrograms(programs))
	}
	return err
}

// tenuresOf returns since when the owners of an active conflict had the address.
func tenuresOf(c *verdict.Conflict, m *pb.Conflict) (all []facts.Tenure) {
	if !c.Active() {
		return nil
	}
	for i, one := range m.GetOwners() {
		o := &c.Owners[i]
		all = append(all, facts.Tenure{
			Address: index.AddressOf(c.Address), Boot: o.Node.Boot, Owner: o.ID, MAC: o.MAC,
			Assigned: facts.Stamp(one.GetAssignedAt()), First: facts.Stamp(one.GetFirstSeen()),
		})
	}
	return all
}

// read reads the state before the start, and puts it back.
func (r *Recall) read(ctx context.Context) error {
	if err := r.readNodes(ctx); err != nil {
		return err
	}
	var active, resolved []*verdict.Conflict
	var tenures []facts.Tenure
	oldest := r.Shards.KeptSince()
	if err := r.each(ctx, pb.Event_CONFLICT, func(e *pb.Event) {
		c := r.conflict(e.GetConflict())
		switch {
		case c == nil:
			return
		case c.Active():
			active = append(active, c)
			for _, o := range c.Owners {
				r.missing[o.Node.Name] = true
			}
			tenures = append(tenures, tenuresOf(c, e.GetConflict())...)
		case c.Rule == verdict.RuleDADFailed: // a kernel may still not use the address because of it
			a := index.AddressOf(c.Address)
			at := r.before[a]
			at.Refused = true
			r.before[a] = at
			r.Shards.Recollect(a, at) // before the conflict, so that it is not forgotten at once
			resolved = append(resolved, c)
		case c.ResolvedAt > oldest:
			resolved = append(resolved, c)
		default:
			return
		}
		r.Recorded.Add(e)
		r.remember(c.Address, e.GetConflict().GetMemory(), nil)
	}); err != nil {
		return err
	}
	slices.SortFunc(resolved, func(a, b *verdict.Conflict) int { return cmp.Compare(a.ResolvedAt, b.ResolvedAt) })
	r.awaited = active
	r.Recorded.expect(maps.Clone(r.missing))
	r.Judge(r.Facts.RecallTenures(tenures))
	added := r.Shards.Recall(slices.Concat(resolved[max(0, len(resolved)-judge.KeepResolved):], active))
	var found []*judge.Found
	if err := r.each(ctx, pb.Event_FINDING, func(e *pb.Event) {
		r.Recorded.Add(e)
		one := r.finding(e.GetFinding())
		r.remember(one.Address, e.GetFinding().GetMemory(), e.GetFinding().GetPool())
		if one.Kind == verdict.FindingOrphanedSandbox {
			at := r.before[index.AddressOf(one.Address)]
			at.Orphans = append(at.Orphans, *one.Finding)
			r.before[index.AddressOf(one.Address)] = at
		}
		r.rememberFormer(one, e.GetFinding())
		found = append(found, one)
	}); err != nil {
		return err
	}
	var addrs []index.Address
	for a, before := range r.before {
		r.Shards.Recollect(a, before)
		addrs = append(addrs, a)
	}
	r.Findings.Recall(found)
	r.Judge(r.Facts.RecallLost(r.lost))
	r.Judge(r.Facts.Touch(addrs))
	select {
	case <-added:
	case <-ctx.Done():
	}
	return r.readDepartures(ctx)
}

// remember notes earlier states of the records of an address, and of a pool.
func (r *Recall) remember(a netip.Addr, memory []*pb.Remembered, pool *pb.Pool) {
	for _, m := range memory {
		rec, p := m.GetAllocation(), &verdict.Pool{}
		p.IPAM, p.Name = rec.GetIpam(), rec.GetPool() // only what identifies it
		if rec.GetNode() != "" {
			p.Node = &verdict.Node{Name: rec.GetNode()}
		}
		al := &verdict.Allocation{
			Pool: p, AllocatedAt: facts.Stamp(rec.GetAllocatedAt()),
			Allocation: ipam.Allocation{
				Node: rec.GetNode(), Namespace: rec.GetNamespace(), Pod: rec.GetPod(), ContainerID: rec.GetContainerId(), Interface: rec.GetInterface(),
				Location: rec.GetLocation(), MAC: rec.GetMac(), Hostname: rec.GetHostname(), Identity: rec.GetIdentity(),
			},
		}
		if m.GetKind() != verdict.FindingIPAMStateLost {
			if m.GetAllocation() == nil {
				al = nil
			}
			at := r.before[index.AddressOf(a)]
			at.Past = append(at.Past, verdict.Past{Owner: m.GetOwner(), Kind: m.GetKind(), Allocation: al, Ended: facts.Stamp(m.GetEndedAt()), Since: facts.Stamp(m.GetSince())})
			r.before[index.AddressOf(a)] = at
			continue
		}
		if p.Node == nil {
			continue // only the loss of a node's own pool is observed
		}
		p.Node.Boot, p.State = r.boots[p.Node.Name], ipam.Missing
		p.Loss = verdict.Loss{LostAt: facts.Stamp(m.GetSince()), Lost: m.GetCount(), LostHeard: facts.Stamp(m.GetSince())}
		if pool.GetName() == p.Name {
			p.Network = pool.GetNetwork()
			for _, text := range pool.GetRanges() {
				if one, err := ipam.ParseRange(text, "-"); err == nil {
					p.Ranges = append(p.Ranges, one)
				}
			}
		}
		r.lost = append(r.lost, p)
	}
}

// rememberFormer notes the former owner of an address that was used again too soon.
func (r *Recall) rememberFormer(f *judge.Found, m *pb.Finding) {
	was := m.GetPrevious()
	if f.Kind != verdict.FindingReusedTooSoon || was == nil || len(f.Owners) == 0 {
		return
	}
	former := verdict.Former{
		Owner: r.owner(&pb.Owner{
			Node: was.GetNode(), Netns: was.GetNetns(), Mac: was.GetMac(), Interface: was.GetInterface(), Workload: was.GetWorkload(), Scope: m.GetOwners()[0].GetScope(),
		}, false),
		Until: facts.Stamp(was.GetUntil()), Next: f.Owners[0].ID, Since: facts.Stamp(was.GetUntil()).Add(was.GetGap().AsDuration()),
	}
	at := r.before[index.AddressOf(f.Address)]
	at.Former = append(at.Former, former)
	r.before[index.AddressOf(f.Address)] = at
}

// finding returns a recorded finding, with what filters need of it.
func (r *Recall) finding(m *pb.Finding) *judge.Found {
	a, _ := netip.ParseAddr(m.GetAddress())
	f := &verdict.Finding{
		ID: m.GetId(), Kind: m.GetKind(), Severity: verdict.Severity(m.GetSeverity()), Address: a, Overlap: &verdict.Overlap{Nodes: m.GetNodes()},
	}
	if p := m.GetPool(); p != nil {
		f.Pool = &verdict.Pool{}
		f.Pool.IPAM, f.Pool.Name = p.GetIpam(), p.GetName()
		if p.GetNode() != "" {
			f.Pool.Node = &verdict.Node{Name: p.GetNode()}
		}
	}
	for _, o := range m.GetOwners() {
		f.Owners = append(f.Owners, r.owner(o, true))
	}
	for _, text := range m.GetAddresses() {
		if at, err := netip.ParseAddr(text); err == nil {
			f.Stock = cmp.Or(f.Stock, &verdict.Stock{})
			f.Stock.AtRisk = append(f.Stock.AtRisk, verdict.Held{Address: at})
		}
	}
	return &judge.Found{
		Finding: f, Place: judge.FindingPlace{Kind: f.Kind, Address: m.GetAddress(), ID: f.ID}, Since: facts.Stamp(m.GetDetectedAt()),
	}
}

// each calls do with each item of a kind that existed before the start.
func (r *Recall) each(ctx context.Context, kind pb.Event_Kind, do func(*pb.Event)) error {
	return r.Journal.At(ctx, kind, cmp.Or(r.at, r.Facts.Clock()).Time(), ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		do(e)
		return true
	})
}

// wait waits for the Kubernetes API and the nodes, at most until the deadline, and releases the conflicts whose nodes have reported. It returns
// false if ctx ends before.
func (r *Recall) wait(ctx context.Context, deadline verdict.Stamp) bool {
	look := time.NewTicker(lookAgainAfter)
	defer look.Stop()
	var complete verdict.Stamp // when the last node had reported
	for {
		now := r.Facts.Clock()
		r.Facts.RLock()
		before := len(r.missing)
		r.reported()
		undecided, unread := r.Findings.Undecided(), len(r.Facts.Unread())
		r.Facts.RUnlock()
		if len(r.missing) != before {
			r.expect(maps.Clone(r.missing))
		}
		if len(r.missing)+unread == 0 && complete == 0 {
			complete = now
		}
		late := now >= deadline || complete != 0 && now >= complete.Add(judge.SeenWithin)
		r.release(late, unread > 0)
		if len(r.missing)+len(r.awaited)+undecided+unread == 0 && r.Shards.Waiting() == 0 || now >= deadline {
			return true
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

func (r *Recall) expect(missing map[string]bool) {
	r.Coverage.Expect(missing)
	if missing != nil { // nodes that have timed out stay disconnected
		r.Recorded.expect(missing)
	}
	if len(missing) == 0 {
		r.Facts.AwaitNodes(0)
	}
}

// reported removes the nodes that have reported from the missing ones. The caller holds the facts.
func (r *Recall) reported() {
	maps.DeleteFunc(r.missing, func(name string, _ bool) bool {
		n := r.Facts.Reported(&verdict.Node{Name: name, Boot: r.boots[name]})
		return n != nil && len(n.Status.GetUnreadIpams()) == 0
	})
}

// release has the conflicts judged whose nodes have reported or, if late is set, all conflicts. While the Kubernetes API is
// unread, these are only conflicts that have ended because their nodes have timed out.
func (r *Recall) release(late, unread bool) {
	var released []*verdict.Conflict
	r.awaited = slices.DeleteFunc(r.awaited, func(c *verdict.Conflict) bool {
		left := 0
		for _, o := range c.Owners {
			if !r.missing[o.Node.Name] {
				left++
			}
		}
		if (c.LinkProof != 0 || left < len(c.Owners)) && !late || unread && (left > 1 || left == len(c.Owners)) {
			return false
		}
		now := *c
		now.Awaited, now.Resumed, now.Owners = false, r.Facts.Clock(), slices.Clone(c.Owners)
		timedOut := false
		for i := range now.Owners {
			if o := &now.Owners[i]; r.missing[o.Node.Name] {
				n := *o.Node
				n.TimedOut, o.Node, o.State, timedOut = true, &n, verdict.Gone, true
			}
		}
		if !timedOut && r.awaitsFrames(c) {
			r.unseen = append(r.unseen, &now)
		} else {
			released = append(released, &now)
		}
		return true
	})
	r.judge(released)
}

// awaitsFrames reports whether a conflict has owners that only frames have shown, and that agents may not have seen since
// they were started, and the kernels of the others still have the address.
func (r *Recall) awaitsFrames(c *verdict.Conflict) (awaits bool) {
	r.Facts.RLock()
	defer r.Facts.RUnlock()
	now := r.Facts.Clock()
	for _, o := range c.Owners {
		if o.Assigned && !r.Facts.Holds(o.ID, index.AddressOf(c.Address)) {
			return false
		}
		awaits = awaits || !o.Assigned && slices.ContainsFunc(r.Facts.Called(o.Node.Name), func(n *facts.Node) bool { return now < r.Facts.FramesKnown(n) })
	}
	return awaits
}

// releaseSeen has the conflicts judged that do not await frames any longer or, if late is set, all conflicts.
func (r *Recall) releaseSeen(late bool) {
	var released []*verdict.Conflict
	r.unseen = slices.DeleteFunc(r.unseen, func(c *verdict.Conflict) bool {
		if !late && r.awaitsFrames(c) {
			return false
		}
		released = append(released, c)
		return true
	})
	r.judge(released)
}

// judge has conflicts judged as if they had been detected since the start.
func (r *Recall) judge(released []*verdict.Conflict) {
	for some := range slices.Chunk(released, releasedTogether) {
		r.Shards.Recall(some)
		addrs := make([]index.Address, len(some))
		for i, c := range some {
			addrs[i] = index.AddressOf(c.Address)
		}
		r.Judge(r.Facts.Republish(addrs))
	}
}

// conflict returns a recorded conflict, or nil if it has no address.
func (r *Recall) conflict(m *pb.Conflict) *verdict.Conflict {
	a, err := netip.ParseAddr(m.GetAddress())
	if err != nil {
		return nil
	}
	c := &verdict.Conflict{
		Address: a, Recalled: true, Why: verdict.Why{Cause: m.GetCause()},
		Identity: verdict.Identity{
			ID: m.GetId(), Episode: m.GetEpisode(), Kind: verdict.ScopeKind(m.GetScope().GetKind()), Scope: m.GetScope().GetName(),
		},
		Course: verdict.Course{
			Phase: verdict.Phase(m.GetState()), Rule: m.GetRule(), LinkProof: verdict.LinkProof(m.GetLinkProof()),
			DetectedAt: facts.Stamp(m.GetDetectedAt()), ConfirmedAt: facts.Stamp(m.GetConfirmedAt()), ResolvedAt: facts.Stamp(m.GetResolvedAt()),
		},
		Order: m.GetOrder(),
	}
	c.Awaited = c.Active()
	for _, o := range m.GetOwners() {
		c.Owners = append(c.Owners, r.owner(o, c.Active()))
	}
	if i := int(m.GetEldest()); m.Eldest != nil && i < len(c.Owners) {
		c.Eldest = c.Owners[i].ID
	}
	return c
}

// owner returns an owner of a recorded conflict.
func (r *Recall) owner(m *pb.Owner, active bool) verdict.Owner {
	return RecordedOwner(m, r.boots[m.GetNode()], active)
}

// RecordedOwner returns an owner from the journal, whose node had a boot ID. It counts as disconnected if it is active, and has
// no claims of its kernel.
func RecordedOwner(m *pb.Owner, boot string, active bool) verdict.Owner {
	w := m.GetWorkload()
	o := verdict.Owner{
		Node: &verdict.Node{Name: m.GetNode(), Boot: boot, Unheard: true}, MAC: parseMAC(m.GetMac()), State: verdict.Gone,
		Assigned: m.GetAssignedAt() != nil, Orphaned: w.GetOrphaned(),
		Interface: &verdict.Interface{Name: m.GetInterface(), HostInterface: m.GetHostInterface(), MAC: parseMAC(m.GetMac())},
	}
	if o.Scope = (verdict.Scope{Kind: verdict.ScopeKind(m.GetScope().GetKind()), Name: m.GetScope().GetName()}); o.Scope.Kind != verdict.NetworkScope {
		o.Scope.Node, o.Scope.Name, _ = strings.Cut(m.GetScope().GetName(), "/")
	}
	if active {
		o.State = verdict.Unheard
	}
	if o.Orphaned { // what the Kubernetes API said then
		o.Pod = &verdict.PodObject{
			Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(), Phase: w.GetPhase(), Absent: w.GetPhase() == "",
			ControllerKind: w.GetController().GetKind(), Controller: w.GetController().GetName(),
		}
	}
	if m.GetInterface() == "" {
		o.Interface.Name = m.GetHostInterface()
	}
	if m.GetNetns() == "" { // a device outside of all nodes, which its MAC identifies
		o.ID = boot + "/" + m.GetMac()
		o.Interface.Namespace = &verdict.Namespace{Node: o.Node}
		o.Claims = []*verdict.Claim{{Interface: o.Interface, Frame: verdict.Frame{MAC: o.MAC}}} // where it was seen
		return o
	}
	// As verdict.OwnerID makes it: of a namespace without an inode, the message has the rest of the ID.
	number, isRest := strings.CutPrefix(m.GetNetns(), "#")
	o.Namespace = &verdict.Namespace{Node: o.Node, ID: boot + "/" + number, Who: verdict.Workload{
		Kind: verdict.WorkloadKind(w.GetKind()), Namespace: w.GetNamespace(), Name: w.GetName(), UID: w.GetUid(), ContainerID: w.GetContainerId(),
		Source: w.GetSource(), Process: w.GetProcess(), VirtualMachine: w.GetVirtualMachine(), Ended: w.GetProcessEnded(),
		Idle: w.GetIdle(), MayForward: w.GetMayForward(), VIPProgram: w.GetVipProgram(), VIPProgramEnded: w.GetVipProgramEnded(),
	}.Who()}
	if !isRest {
		o.Namespace.Netns = number
	}
	o.ID, o.Interface.Namespace = o.Namespace.ID, o.Namespace
	return o
}

func parseMAC(text string) verdict.MAC {
	raw, _ := hex.DecodeString(strings.ReplaceAll(text, ":", "")) // as MAC.String makes it
	return verdict.MAC(raw)
}

// Recorded has the messages of the conflicts and findings from before the start, as they were recorded.
// One that was not judged since has only them for a description.
type Recorded struct {
	mu      sync.Mutex
	byID    map[string]*pb.Event
	missing map[string]bool // the nodes that have not reported since
}

// NewRecorded returns a Recorded without messages.
func NewRecorded() *Recorded { return &Recorded{byID: make(map[string]*pb.Event)} }

// Add adds the message of a conflict or finding, which must not change afterwards.
func (r *Recorded) Add(e *pb.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[cmp.Or(e.GetConflict().GetId(), e.GetFinding().GetId())] = e
}

// Keep drops the messages for whose IDs needed returns false.
func (r *Recorded) Keep(needed func(id string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byID, func(id string, _ *pb.Event) bool { return !needed(id) })
}

func (r *Recorded) expect(missing map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = missing
}

func (r *Recorded) get(id string) (e *pb.Event, missing map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id], r.missing
}

// recalled returns the message of a conflict from before the start that was not judged since; nil if
// there is none. It has no steps to take, which might not be safe any longer.
func (s *Converter) recalled(c *verdict.Conflict) *pb.Conflict {
	recorded, missing := s.Recorded.get(c.ID)
	before := recorded.GetConflict()
	if before == nil {
		return nil
	}
	out := proto.CloneOf(before)
	out.Acknowledgement = s.Acknowledgements.Of(c.ID)
	if !c.Active() && before.GetState() == pb.Conflict_RESOLVED {
		return out
	}
	now := *c
	now.Owners = slices.Clone(c.Owners)
	for i, o := range out.GetOwners() {
		if i >= len(now.Owners) {
			break
		}
		if is := &now.Owners[i]; is.State == verdict.Unheard && !missing[is.Node.Name] {
			is.State = verdict.Stale // its node has reported
		}
		o.State = pb.Owner_State(now.Owners[i].State)
	}
	out.State, out.ResolvedAt, out.Summary = pb.Conflict_State(c.Phase), timestamp(c.ResolvedAt), explain.Recalled(s.Facts.Policy, &now)
	return out
}
