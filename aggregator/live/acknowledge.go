package live

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// saveAgainAfter is the time after which a failed write is retried.
	saveAgainAfter = 10 * time.Second
	// unseenFor is how long an object that this replica wrote may be missing in its mirror.
	unseenFor = 30 * time.Second
)

// acknowledgement records that a user accepts a conflict with its current owners, in this episode,
// for a limited time. It silences alerts and has no effect on verdicts.
type acknowledgement struct {
	kube.Acknowledgement
	proto *pb.Acknowledgement
	// active is set if its conflict is active. Otherwise, the conflict may be detected again: it is one from before the
	// start, or in a replica one that only the leader may see. since is when that was last known.
	active bool
	since  verdict.Stamp
}

func newAcknowledgement(k *kube.Acknowledgement, since verdict.Stamp) *acknowledgement {
	return &acknowledgement{Acknowledgement: *k, since: since, proto: &pb.Acknowledgement{
		Reason: k.Reason, AcknowledgedAt: timestamppb.New(k.At), AcknowledgedBy: k.By, ExpiresAt: timestamppb.New(k.Expires),
	}}
}

func acknowledgedOwners(c *verdict.Conflict) (all []string) {
	for i := range c.Owners {
		all = append(all, acknowledgedAs(&c.Owners[i]))
	}
	return all
}

// acknowledgedAs returns the string by which an acknowledgement recognises an owner. A device
// outside all namespaces is recognised by its hardware address, because the links on which it is
// seen may be merged.
func acknowledgedAs(o *verdict.Owner) string {
	if o.Namespace == nil && o.MAC != "" {
		return o.MAC.String()
	}
	return o.ID
}

// AcknowledgementsConfig contains the dependencies of acknowledgements. All fields are required.
type AcknowledgementsConfig struct {
	Facts     *facts.Facts
	Conflicts *judge.Conflicts
	Log       *slog.Logger
	// Judge waits until everything that a change affects is judged.
	Judge func(*facts.Batch)
	// DataDir is the data directory; empty to keep acknowledgements only in memory.
	DataDir string
	// Shared is the Kubernetes API. If replicas share their acknowledgements there, none are kept in the
	// data directory. It may be nil.
	Shared *kube.Cluster
}

// Acknowledgements holds the acknowledgements of active conflicts. Use NewAcknowledgements.
type Acknowledgements struct {
	AcknowledgementsConfig
	dir *dataDir
	// unsaved contains a token if there are changes to write.
	unsaved chan struct{}

	// adopting is held while the shared acknowledgements are taken over, so that later ones are not
	// replaced by earlier ones.
	adopting sync.Mutex

	mu   sync.Mutex
	byID map[string]*acknowledgement
	// written has the versions of the objects that this replica wrote and that are not in the mirror yet.
	// ended has the versions of acknowledgements that have ended, by conflict; the leader deletes the
	// objects. Both are empty if acknowledgements are not shared.
	written map[string]writtenObject
	ended   map[string]string
}

type writtenObject struct {
	version string
	at      verdict.Stamp
}

// NewAcknowledgements locks the data directory, and loads the acknowledgements that are kept there. An unusable directory
// does not prevent the start; an error is that another process uses it.
func NewAcknowledgements(cfg AcknowledgementsConfig) (*Acknowledgements, error) {
	a := &Acknowledgements{
		AcknowledgementsConfig: cfg, dir: &dataDir{path: cfg.DataDir}, unsaved: make(chan struct{}, 1), byID: make(map[string]*acknowledgement),
		written: make(map[string]writtenObject), ended: make(map[string]string),
	}
	if err := a.load(); errors.Is(err, errInUse) {
		return nil, err
	}
	for _, problem := range a.Problems() {
		cfg.Log.Error("data directory is unusable: starting without it", "problem", problem)
	}
	return a, nil
}

// Close releases the data directory if Run is never called.
func (a *Acknowledgements) Close() error { return a.dir.close() }

// Problems returns descriptions of the problems of the data directory.
func (a *Acknowledgements) Problems() []string { return a.dir.problems() }

// Of returns the acknowledgement of a conflict; nil for none.
func (a *Acknowledgements) Of(id string) *pb.Acknowledgement {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack := a.byID[id]; ack != nil && ack.active {
		return ack.proto
	}
	return nil
}

// has reports whether a conflict has an acknowledgement, or gets the one from before the start as soon as it is judged.
func (a *Acknowledgements) has(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[id] != nil
}

// Acknowledge silences a conflict until the acknowledgement expires, or withdraws the
// acknowledgement, on behalf of a user. It returns the conflict as it was before.
func (a *Acknowledgements) Acknowledge(q *pb.AcknowledgeConflictRequest, by string) (*verdict.Conflict, error) {
	// A change is on disk before the response is sent. Only requests to acknowledge wait for the disk.
	a.dir.mu.Lock()
	defer a.dir.mu.Unlock()
	c, ack, err := a.requested(q, by)
	for err == nil && (ack != nil || a.has(c.ID)) {
		id, episode := c.ID, c.Episode
		if err := a.keep(id, ack); err != nil {
			return nil, err
		}
		var next *acknowledgement
		if c, next, err = a.requested(q, by); err != nil { // the conflict has ended in the meantime
			a.mu.Lock()
			if ack != nil && ack.Version != "" {
				delete(a.written, id)
				a.ended[id] = ack.Version
			}
			a.mu.Unlock()
			a.changed() // what is kept no longer matches
			break
		}
		if c.Episode != episode || !a.acknowledge(c.ID, episode, ack) { // it ended and started again in the meantime
			ack = next
			continue
		}
		a.Judge(a.Facts.Republish([]index.Address{index.AddressOf(c.Address)}))
		break
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// keep saves the acknowledgement of a conflict, or that there is none, where it survives this process: as an
// object or in the data directory.
func (a *Acknowledgements) keep(id string, ack *acknowledgement) error {
	if !a.Shared.SharesAcknowledgements() {
		if err := a.save(id, ack); err != nil {
			return status.Errorf(codes.Unavailable,
				"cannot save the acknowledgement: %s: nothing was changed; repair the data directory of the aggregator and try again", err)
		}
		return nil
	}
	var err error
	if ack == nil {
		err = a.Shared.Withdraw(context.Background(), id, "")
	} else {
		ack.Version, err = a.Shared.Acknowledge(context.Background(), &ack.Acknowledgement)
	}
	if err != nil {
		return status.Errorf(codes.Unavailable, "cannot save the acknowledgement: %s: nothing was changed; "+
			"make sure that the Kubernetes API answers and that the chart's custom resource definition and Role exist, and try again", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack != nil {
		a.written[id] = writtenObject{ack.Version, a.Facts.Clock()}
		return nil
	}
	delete(a.written, id)
	if before := a.byID[id]; before != nil {
		a.ended[id] = before.Version // the mirror may still have it
	}
	return nil
}

// acknowledge sets the acknowledgement of an episode of a conflict, or removes it if ack is nil. It
// reports whether the episode is still active: code that ends an episode looks for its
// acknowledgement afterwards.
func (a *Acknowledgements) acknowledge(id string, episode uint32, ack *acknowledgement) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.Conflicts.Get(id); c == nil || !c.Active() || c.Episode != episode {
		return false
	}
	if delete(a.byID, id); ack != nil {
		ack.active, a.byID[id] = true, ack
	}
	return true
}

// load takes over the acknowledgements in the data directory when they can be read for the first time. It returns an error if
// none can be saved now. The caller holds the mutex of the directory.
func (a *Acknowledgements) load() error {
	a.dir.lookAside()
	kept, err := a.dir.load()
	if n := len(kept); n > 0 && a.Shared.SharesAcknowledgements() {
		a.Log.Warn("acknowledgements in the data directory are not used, because replicas share theirs in the Kubernetes API: "+
			"acknowledge these conflicts again, and delete the file", "file", acknowledgementsFile, "acknowledgements", n)
		kept = nil
	}
	var addrs []index.Address
	a.mu.Lock()
	for i := range kept {
		a.byID[kept[i].Conflict] = newAcknowledgement(&kept[i], a.Facts.Clock())
		if a.Conflicts.Get(kept[i].Conflict) != nil { // it has been detected again before
			addrs = append(addrs, index.AddressOf(kept[i].Address))
		}
	}
	a.mu.Unlock()
	if len(addrs) > 0 {
		a.Judge(a.Facts.Republish(addrs))
	}
	return err
}

// save writes all acknowledgements to the data directory, except one of a conflict that is replaced by
// another one, or by none. It writes none if they are shared. The caller holds the mutex of the directory.
func (a *Acknowledgements) save(replaced string, by *acknowledgement) error {
	if err := a.load(); err != nil || a.Shared.SharesAcknowledgements() {
		return err
	}
	a.mu.Lock()
	all := maps.Clone(a.byID)
	a.mu.Unlock()
	if delete(all, replaced); by != nil {
		all[replaced] = by
	}
	return a.dir.save(all)
}

// requested returns the conflict that a request is about, and the acknowledgement that it asks for; nil if it
// withdraws one.
func (a *Acknowledgements) requested(q *pb.AcknowledgeConflictRequest, by string) (*verdict.Conflict, *acknowledgement, error) {
	now := a.Facts.Clock()
	bad := func(format string, args ...any) (*verdict.Conflict, *acknowledgement, error) {
		return nil, nil, status.Errorf(codes.InvalidArgument, format, args...)
	}
	reason, expires := strings.TrimSpace(q.GetReason()), q.GetExpiresAt().AsTime()
	switch {
	case q.GetWithdraw() && (q.GetReason() != "" || q.GetExpiresAt() != nil):
		return bad("withdraw cannot be combined with reason and expires_at: remove withdraw, or both of the others")
	case q.GetWithdraw():
	case reason == "":
		return bad("reason is missing: give the reason why the conflict is acknowledged")
	case len(reason) > kube.MaxReason:
		return bad("reason has %d bytes, but the limit is %d", len(reason), kube.MaxReason)
	case q.GetExpiresAt() == nil:
		return bad("expires_at is missing: give a time like %s", now.Add(24*time.Hour).Time().Format(time.RFC3339))
	case !q.GetExpiresAt().IsValid():
		return bad("expires_at is not a time: give one like %s", now.Add(24*time.Hour).Time().Format(time.RFC3339))
	case !expires.After(now.Time()):
		return bad("expires_at is %s, but the current time is %s: give a future time, or withdraw the acknowledgement",
			expires.Format(time.RFC3339), now.Time().Format(time.RFC3339))
	case expires.After(now.Add(kube.LongestAcknowledgement).Time()):
		return bad("expires_at is %s: an acknowledgement lasts at most a year; acknowledge the conflict again when it ends", expires.Format(time.RFC3339))
	}
	c := a.Conflicts.Get(q.GetId())
	switch {
	case c == nil:
		return nil, nil, NoConflict(q.GetId())
	case !c.Active():
		return nil, nil, status.Errorf(codes.FailedPrecondition,
			"the conflict %s of %s was resolved at %s: if it occurs again, acknowledge it then",
			c.ID, c.Address, c.ResolvedAt.Time().Format(time.RFC3339))
	case q.GetWithdraw():
		return c, nil, nil
	}
	return c, newAcknowledgement(&kube.Acknowledgement{
		Conflict: c.ID, Address: c.Address, Reason: reason, By: by, At: now.Time(), Expires: expires,
		Owners: acknowledgedOwners(c),
	}, 0), nil
}

// NoConflict is the error of a request for a conflict that is not known.
func NoConflict(id string) error {
	return status.Errorf(codes.NotFound,
		"no conflict has the id %q: `ipwitness conflicts --all` lists all conflicts; resolved ones are kept for a day", id)
}

// Lapse removes the acknowledgement of a conflict if the conflict is over, has had an additional
// owner for the settle time, or if the acknowledgement has expired, and reports whether it did.
// Otherwise it returns the time until which the acknowledgement holds; 0 if there is none. If
// the conflict was acknowledged before the start of this process and is detected again, it gets that
// acknowledgement back.
func (a *Acknowledgements) Lapse(c *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ack := a.byID[c.ID]
	if ack != nil && !ack.active && c.Active() {
		a.activate(c, ack)
	}
	if ack == nil || !ack.active {
		return 0, false
	}
	// A new owner of the conflict ends the acknowledgement, but only after the settle time, because the owner may leave
	// again immediately. An owner that left and came back is not new.
	until = verdict.At(ack.Expires)
	for i := range c.Owners {
		if o := &c.Owners[i]; len(o.Claims) > 0 && !slices.Contains(ack.Owners, acknowledgedAs(o)) { // one from before the start is judged later
			until = min(until, o.Begun().Add(a.Facts.Policy.Settle))
		}
	}
	if c.Active() && a.Facts.Clock() < until {
		return until, false
	}
	delete(a.byID, c.ID)
	switch {
	case ack.Version == "":
	case !c.Active() && !a.Shared.Leads(): // the leader may have agents that this replica does not have
		ack.active, ack.since, a.byID[c.ID] = false, a.Facts.Clock(), ack
	default:
		a.ended[c.ID] = ack.Version
	}
	a.changed()
	return 0, true
}

// activate uses an acknowledgement for a conflict. An object that was written by hand covers the owners that
// the conflict has when it is first used. The caller holds mu.
func (a *Acknowledgements) activate(c *verdict.Conflict, ack *acknowledgement) {
	if ack.Owners == nil && a.Shared.SharesAcknowledgements() {
		ack.Owners = acknowledgedOwners(c)
	}
	ack.active = true
}

// Adopt takes over the acknowledgements that the replicas share.
func (a *Acknowledgements) Adopt() {
	var changed []index.Address // addresses whose conflicts have changed
	a.adopting.Lock()
	if all, known := a.Shared.Acknowledgements(); known {
		changed = a.adopt(all)
	}
	a.adopting.Unlock()
	if len(changed) > 0 {
		a.Judge(a.Facts.Republish(changed))
	}
}

func (a *Acknowledgements) adopt(all []kube.Acknowledgement) (changed []index.Address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.Facts.Clock()
	present := make(map[string]bool, len(all))
	for i := range all {
		k := &all[i]
		id := k.Conflict
		present[id] = true
		if own, is := a.written[id]; is {
			if kube.Older(k.Version, own.version) {
				continue
			}
			delete(a.written, id)
		}
		if a.ended[id] == k.Version {
			continue
		}
		delete(a.ended, id)
		if before := a.byID[id]; before != nil && before.Version == k.Version {
			continue
		}
		a.byID[id] = newAcknowledgement(k, now)
		if c := a.Conflicts.Get(id); c != nil && c.Active() {
			a.activate(c, a.byID[id])
			changed = append(changed, index.AddressOf(c.Address))
		}
	}
	maps.DeleteFunc(a.written, func(_ string, own writtenObject) bool { return now.Sub(own.at) >= unseenFor })
	for id, ack := range a.byID {
		if _, own := a.written[id]; present[id] || own {
			continue
		}
		delete(a.byID, id)
		if c := a.Conflicts.Get(id); ack.active && c != nil {
			changed = append(changed, index.AddressOf(c.Address))
		}
	}
	maps.DeleteFunc(a.ended, func(id, _ string) bool { return !present[id] })
	return changed
}

// changed requests that the acknowledgements are written soon.
func (a *Acknowledgements) changed() {
	select {
	case a.unsaved <- struct{}{}:
	default:
	}
}

// Run saves the acknowledgements when some have ended, and drops the ones whose conflict was not
// detected again, until ctx ends. Then it releases the data directory. If the acknowledgements are shared, it
// deletes the objects of those that have ended if this replica leads.
func (a *Acknowledgements) Run(ctx context.Context) {
	defer func() {
		if err := a.dir.close(); err != nil {
			a.Log.Warn("close data directory", "error", err)
		}
	}()
	again := time.NewTicker(saveAgainAfter)
	defer again.Stop()
	shared, logged := a.Shared.SharesAcknowledgements(), ""
	save := func() (failed bool) {
		a.dir.mu.Lock()
		defer a.dir.mu.Unlock()
		err := a.save("", nil)
		if err == nil {
			logged = ""
		} else if !shared && err.Error() != logged { // logged once although saving is retried
			logged = err.Error()
			a.Log.Error("cannot save acknowledgements: ended ones will be active again after a restart; free space in the data directory",
				"error", err, "again_every", saveAgainAfter)
		}
		return err != nil
	}
	for unsaved := len(a.dir.problems()) > 0; ; { // a directory that could not be used at the start may become usable
		select {
		case <-ctx.Done():
			if !shared && (unsaved || len(a.unsaved) > 0) {
				save()
			}
			return
		case <-again.C:
			a.dir.lookAside()
			if shared {
				a.Adopt() // an object may have been deleted while it was not expected in the mirror yet
			}
		case <-a.unsaved:
			unsaved = true
		}
		dropped, ended := a.sweep()
		// A request that could not be kept was refused; saving again shows when others can be kept.
		if unsaved = !shared && (unsaved || dropped) || a.dir.unsaved.Load() != nil; unsaved {
			unsaved = save()
		}
		for id, version := range ended {
			if !a.Shared.Leads() || ctx.Err() != nil {
				break
			}
			if err := a.Shared.Withdraw(ctx, id, version); err != nil {
				a.Log.Warn("cannot delete an acknowledgement that has ended: trying again", "id", id, "error", err)
				break
			}
		}
	}
}

// sweep drops the acknowledgements whose conflict was not detected again, and reports whether there were any.
// It returns the versions of the objects to delete, by conflict.
func (a *Acknowledgements) sweep() (dropped bool, ended map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, shared := a.Facts.Clock(), a.Shared.SharesAcknowledgements()
	for id, ack := range a.byID {
		if ack.active {
			continue
		}
		if shared && !a.Shared.Leads() {
			ack.since = now // only the leader decides that a conflict is not detected
		}
		if (!shared || now < verdict.At(ack.Expires)) && now.Sub(ack.since) < a.Facts.Policy.NodeTimeout {
			continue
		}
		a.Log.Info("acknowledgement dropped: its conflict was not detected again", "id", id, "address", ack.Address, "reason", ack.Reason)
		if shared {
			a.ended[id] = ack.Version
		}
		delete(a.byID, id)
		dropped = true
	}
	return dropped, maps.Clone(a.ended)
}
