package live

import (
	"context"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// unseenFor is how long an object that this replica wrote may be missing in its mirror.
const unseenFor = 30 * time.Second

// objects is what this replica knows about the objects in which replicas share their acknowledgements. The
// mutex of the acknowledgements guards it.
type objects struct {
	// written has the versions of the objects that this replica wrote and that are not in the mirror yet.
	written map[string]writtenObject
	// ended has the versions of acknowledgements that have ended, by conflict. The leader deletes the
	// objects.
	ended map[string]string
	// since is when the acknowledgement of a conflict that is not active became known.
	since map[string]verdict.Stamp
}

type writtenObject struct {
	version string
	at      verdict.Stamp
}

func newObjects() objects {
	return objects{written: make(map[string]writtenObject), ended: make(map[string]string), since: make(map[string]verdict.Stamp)}
}

// share writes an acknowledgement as an object, or deletes the object if there is none. The caller holds
// the mutex of the directory.
func (a *Acknowledgements) share(id string, ack *acknowledgement) error {
	if ack == nil {
		if err := a.Shared.Withdraw(context.Background(), id, ""); err != nil {
			return err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.objects.written, id)
		if before := a.byID[id]; before != nil {
			a.objects.ended[id] = before.version // the mirror may still have it
		}
		return nil
	}
	version, err := a.Shared.Acknowledge(context.Background(), &kube.Acknowledgement{
		Conflict: id, Address: ack.address, Reason: ack.proto.GetReason(), By: ack.proto.GetAcknowledgedBy(),
		At: ack.proto.GetAcknowledgedAt().AsTime(), Expires: ack.proto.GetExpiresAt().AsTime(), Owners: ack.owners,
	})
	if err != nil {
		return err
	}
	ack.version = version
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects.written[id] = writtenObject{version, a.Facts.Clock()}
	return nil
}

// Adopt takes over the acknowledgements that the replicas share.
func (a *Acknowledgements) Adopt() {
	a.adopting.Lock()
	all, known := a.Shared.Acknowledgements()
	if !known {
		a.adopting.Unlock()
		return
	}
	changed := a.adopt(all)
	a.adopting.Unlock()
	if len(changed) > 0 {
		a.Judge(a.Facts.Republish(changed))
	}
}

// adopt returns the addresses whose conflicts have changed.
func (a *Acknowledgements) adopt(all []kube.Acknowledgement) (changed []index.Address) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, o := a.Facts.Clock(), &a.objects
	present := make(map[string]bool, len(all))
	for i := range all {
		k := &all[i]
		id := k.Conflict
		present[id] = true
		if own, is := o.written[id]; is {
			if kube.Older(k.Version, own.version) {
				continue
			}
			delete(o.written, id)
		}
		if o.ended[id] == k.Version {
			continue
		}
		delete(o.ended, id)
		if before := a.known(id); before != nil && before.version == k.Version {
			continue
		}
		ack := &acknowledgement{
			proto: &pb.Acknowledgement{
				Reason: k.Reason, AcknowledgedAt: timestamppb.New(k.At), AcknowledgedBy: k.By, ExpiresAt: timestamppb.New(k.Expires),
			},
			address: k.Address, until: verdict.At(k.Expires), owners: k.Owners, version: k.Version,
		}
		if c := a.Conflicts.Get(id); c != nil && c.Active() {
			a.activate(c, ack)
			changed = append(changed, index.AddressOf(c.Address))
			continue
		}
		delete(a.byID, id)
		a.recalled[id], o.since[id] = ack, now
	}
	gone := func(id string) bool {
		own, is := o.written[id]
		if is && now.Sub(own.at) >= unseenFor {
			delete(o.written, id)
			is = false
		}
		return !present[id] && !is
	}
	for id := range a.byID {
		if !gone(id) {
			continue
		}
		delete(a.byID, id)
		if c := a.Conflicts.Get(id); c != nil {
			changed = append(changed, index.AddressOf(c.Address))
		}
	}
	for id := range a.recalled {
		if gone(id) {
			a.forget(id)
		}
	}
	for id := range o.ended {
		if !present[id] {
			delete(o.ended, id)
		}
	}
	return changed
}

// known returns the acknowledgement of a conflict, whether or not it is active. The caller holds mu.
func (a *Acknowledgements) known(id string) *acknowledgement {
	if ack := a.byID[id]; ack != nil {
		return ack
	}
	return a.recalled[id]
}

// forget forgets the acknowledgement of a conflict that is not active. The caller holds mu.
func (a *Acknowledgements) forget(id string) {
	delete(a.recalled, id)
	delete(a.objects.since, id)
}

// activate uses an acknowledgement for a conflict. An object that was written by hand covers the owners that
// the conflict has when it is first used. The caller holds mu.
func (a *Acknowledgements) activate(c *verdict.Conflict, ack *acknowledgement) {
	a.forget(c.ID)
	if ack.owners == nil && a.Shared.SharesAcknowledgements() {
		with := *ack
		ack = &with
		for i := range c.Owners {
			ack.owners = append(ack.owners, acknowledgedAs(&c.Owners[i]))
		}
	}
	a.byID[c.ID] = ack
}

// runShared drops the acknowledgements of conflicts that are not detected, and deletes the objects of those
// that have ended if this replica leads, until ctx ends.
func (a *Acknowledgements) runShared(ctx context.Context) {
	again := time.NewTicker(saveAgainAfter)
	defer again.Stop()
	for {
		for id, version := range a.sweep() {
			if !a.Shared.Leads() || ctx.Err() != nil {
				break
			}
			if err := a.Shared.Withdraw(ctx, id, version); err != nil {
				a.Log.Warn("cannot delete an acknowledgement that has ended: trying again", "id", id, "error", err)
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			a.Adopt() // an object may have been deleted while it was not expected in the mirror yet
		case <-a.unsaved:
		}
	}
}

// sweep returns the versions of the objects to delete, by conflict.
func (a *Acknowledgements) sweep() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, leads := a.Facts.Clock(), a.Shared.Leads()
	for id, ack := range a.recalled {
		if !leads {
			a.objects.since[id] = now // only the leader decides that a conflict is not detected
		}
		if now < ack.until && now.Sub(a.objects.since[id]) < a.Facts.Policy.NodeTimeout {
			continue
		}
		a.Log.Info("acknowledgement dropped: its conflict was not detected", "id", id, "address", ack.address, "reason", ack.proto.GetReason())
		a.objects.ended[id] = ack.version
		a.forget(id)
	}
	return maps.Clone(a.objects.ended)
}
