package live

import (
	"log/slog"
	"maps"
	"net/netip"
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
	// maxReason is the maximum length of a reason in bytes.
	maxReason = 1024
	// longestAcknowledgement is one year, even if it is a leap year.
	longestAcknowledgement = 366 * 24 * time.Hour
)

// acknowledgement records that a user accepts a conflict with its current owners, in this episode,
// for a limited time. It silences alerts and has no effect on verdicts. It never changes.
type acknowledgement struct {
	proto   *pb.Acknowledgement
	address netip.Addr
	until   verdict.Stamp
	owners  []string
	// version is the version of its object; empty in the data directory.
	version string
}

// covers returns the time until which the acknowledgement holds. A new owner of the conflict ends it, but
// only after the settle time, because the owner may leave again immediately. An owner that left and
// came back is not new.
func (a *acknowledgement) covers(c *verdict.Conflict, settle time.Duration) verdict.Stamp {
	until := a.until
	for i := range c.Owners {
		if o := &c.Owners[i]; !slices.Contains(a.owners, acknowledgedAs(o)) {
			until = min(until, o.Begun().Add(settle))
		}
	}
	return until
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

// Acknowledgements holds the acknowledgements of active conflicts. Use New.
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
	// recalled contains the acknowledgements from before the start whose conflicts have not been
	// detected again yet.
	recalled map[string]*acknowledgement
	// objects is empty if acknowledgements are not shared.
	objects objects
}

// NewAcknowledgements locks the data directory, and loads the acknowledgements that are kept there.
func NewAcknowledgements(cfg AcknowledgementsConfig) (*Acknowledgements, error) {
	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	a := &Acknowledgements{
		AcknowledgementsConfig: cfg, dir: dir, unsaved: make(chan struct{}, 1), byID: make(map[string]*acknowledgement), objects: newObjects(),
	}
	a.recalled = dir.load()
	if cfg.Shared.SharesAcknowledgements() {
		if n := len(a.recalled); n > 0 {
			cfg.Log.Warn("acknowledgements in the data directory are not used, because replicas share theirs in the Kubernetes API: "+
				"acknowledge these conflicts again, and delete the file", "file", acknowledgementsFile, "acknowledgements", n)
		}
		a.recalled = make(map[string]*acknowledgement)
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
	if ack := a.byID[id]; ack != nil {
		return ack.proto
	}
	return nil
}

// Len returns the number of acknowledged conflicts.
func (a *Acknowledgements) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.byID)
}

// all returns the acknowledgements of current conflicts and of those that may come back.
func (a *Acknowledgements) all() map[string]*acknowledgement {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[string]*acknowledgement, len(a.recalled)+len(a.byID))
	maps.Copy(all, a.recalled)
	maps.Copy(all, a.byID)
	return all
}

// Acknowledge silences a conflict until the acknowledgement expires, or withdraws the
// acknowledgement, on behalf of a user. It returns the conflict as it was before.
func (a *Acknowledgements) Acknowledge(q *pb.AcknowledgeConflictRequest, by string) (*verdict.Conflict, error) {
	// A change is on disk before the response is sent. Only requests to acknowledge wait for the disk.
	a.dir.mu.Lock()
	defer a.dir.mu.Unlock()
	c, ack, err := a.acknowledging(q, by)
	for err == nil && (ack != nil || a.Of(c.ID) != nil) {
		id, episode := c.ID, c.Episode
		if err := a.keep(id, ack); err != nil {
			return nil, err
		}
		var next *acknowledgement
		if c, next, err = a.acknowledging(q, by); err != nil {
			a.revoke(id, ack)
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

// keep saves an acknowledgement, or that there is none, where it survives this process.
func (a *Acknowledgements) keep(id string, ack *acknowledgement) error {
	if a.Shared.SharesAcknowledgements() {
		if err := a.share(id, ack); err != nil {
			return status.Errorf(codes.Unavailable, "cannot save the acknowledgement: %s: nothing was changed; "+
				"make sure that the Kubernetes API answers and that the chart's custom resource definition and Role exist, and try again", err)
		}
		return nil
	}
	all := a.all()
	if delete(all, id); ack != nil {
		all[id] = ack
	}
	if err := a.dir.save(all); err != nil {
		return status.Errorf(codes.Unavailable,
			"cannot save the acknowledgement: %s: nothing was changed; repair the data directory of the aggregator and try again", err)
	}
	return nil
}

// revoke undoes keep for a conflict that has ended in the meantime.
func (a *Acknowledgements) revoke(id string, ack *acknowledgement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack != nil && ack.version != "" {
		delete(a.objects.written, id)
		a.objects.ended[id] = ack.version
	}
	a.changed() // what is kept no longer matches
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
		a.byID[id] = ack
	}
	return true
}

// acknowledging returns the conflict that a request is about, and the acknowledgement that it asks
// for; nil if it withdraws one.
func (a *Acknowledgements) acknowledging(q *pb.AcknowledgeConflictRequest, by string) (*verdict.Conflict, *acknowledgement, error) {
	ack, err := newAcknowledgement(q, a.Facts.Clock())
	if err != nil {
		return nil, nil, err
	}
	c := a.Conflicts.Get(q.GetId())
	if c == nil {
		return nil, nil, NoConflict(q.GetId())
	}
	if !c.Active() {
		return nil, nil, status.Errorf(codes.FailedPrecondition,
			"the conflict %s of %s was resolved at %s: if it occurs again, acknowledge it then",
			c.ID, c.Address, c.ResolvedAt.Time().Format(time.RFC3339))
	}
	if ack != nil {
		ack.address, ack.proto.AcknowledgedBy = c.Address, by
		for i := range c.Owners {
			ack.owners = append(ack.owners, acknowledgedAs(&c.Owners[i]))
		}
	}
	return c, ack, nil
}

// NoConflict is the error of a request for a conflict that is not known.
func NoConflict(id string) error {
	return status.Errorf(codes.NotFound,
		"no conflict has the id %q: `ipwitness conflicts --all` lists all conflicts; resolved ones are kept for a day", id)
}

// newAcknowledgement returns the acknowledgement that a request asks for; nil if it withdraws one.
func newAcknowledgement(q *pb.AcknowledgeConflictRequest, now verdict.Stamp) (*acknowledgement, error) {
	bad := func(format string, args ...any) (*acknowledgement, error) {
		return nil, status.Errorf(codes.InvalidArgument, format, args...)
	}
	if q.GetWithdraw() {
		if q.GetReason() != "" || q.GetExpiresAt() != nil {
			return bad("withdraw cannot be combined with reason and expires_at: remove withdraw, or both of the others")
		}
		return nil, nil
	}
	reason := strings.TrimSpace(q.GetReason())
	expires := q.GetExpiresAt().AsTime()
	switch {
	case reason == "":
		return bad("reason is missing: give the reason why the conflict is acknowledged")
	case len(reason) > maxReason:
		return bad("reason has %d bytes, but the limit is %d", len(reason), maxReason)
	case q.GetExpiresAt() == nil:
		return bad("expires_at is missing: give a time like %s", now.Add(24*time.Hour).Time().Format(time.RFC3339))
	case !q.GetExpiresAt().IsValid():
		return bad("expires_at is not a time: give one like %s", now.Add(24*time.Hour).Time().Format(time.RFC3339))
	case !expires.After(now.Time()):
		return bad("expires_at is %s, but the current time is %s: give a future time, or withdraw the acknowledgement",
			expires.Format(time.RFC3339), now.Time().Format(time.RFC3339))
	case expires.After(now.Add(longestAcknowledgement).Time()):
		return bad("expires_at is %s: an acknowledgement lasts at most a year; acknowledge the conflict again when it ends", expires.Format(time.RFC3339))
	}
	return &acknowledgement{
		proto: &pb.Acknowledgement{Reason: reason, AcknowledgedAt: timestamppb.New(now.Time()), ExpiresAt: q.GetExpiresAt()},
		until: verdict.At(expires),
	}, nil
}

// Lapse removes the acknowledgement of a conflict if the conflict is over, has had an additional
// owner for the settle time, or if the acknowledgement has expired, and reports whether it did.
// Otherwise it returns the time until which the acknowledgement holds; 0 if there is none. If
// the conflict was acknowledged before the start of this process and is detected again, it gets that
// acknowledgement back.
func (a *Acknowledgements) Lapse(c *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack := a.recalled[c.ID]; ack != nil && c.Active() {
		a.activate(c, ack)
	}
	ack := a.byID[c.ID]
	if ack == nil {
		return 0, false
	}
	if until := ack.covers(c, a.Facts.Policy.Settle); c.Active() && a.Facts.Clock() < until {
		return until, false
	}
	delete(a.byID, c.ID)
	switch {
	case ack.version == "":
	case !c.Active() && !a.Shared.Leads(): // the leader may have agents that this replica does not have
		a.recalled[c.ID], a.objects.since[c.ID] = ack, a.Facts.Clock()
	default:
		a.objects.ended[c.ID] = ack.version
	}
	a.changed()
	return 0, true
}
