package live

import (
	"context"
	"maps"
	"slices"
	"time"
)

// saveAgainAfter is the time after which a failed write is retried.
const saveAgainAfter = 10 * time.Second

// changed requests that the acknowledgements are written soon.
func (a *Acknowledgements) changed() {
	select {
	case a.unsaved <- struct{}{}:
	default:
	}
}

// Run saves the acknowledgements when some have ended, and drops the ones whose conflict was not
// detected again, until ctx ends. Then it releases the data directory.
func (a *Acknowledgements) Run(ctx context.Context) {
	if a.Shared.SharesAcknowledgements() {
		a.runShared(ctx)
		if err := a.dir.close(); err != nil {
			a.Log.Warn("close data directory", "error", err)
		}
		return
	}
	over := time.NewTimer(a.Facts.Policy.NodeTimeout)
	defer over.Stop()
	again := time.NewTimer(saveAgainAfter)
	again.Stop()
	// A directory that could not be used at the start may become usable.
	failed, logged := len(a.dir.problems()) > 0, ""
	if failed {
		again.Reset(saveAgainAfter)
	}
	save := func() {
		err := a.save()
		failed = err != nil
		switch {
		case err == nil:
			logged = ""
		case err.Error() != logged: // logged once although saving is retried
			logged = err.Error()
			a.Log.Error("cannot save acknowledgements: ended ones will be active again after a restart; free space in the data directory",
				"error", err, "again_every", saveAgainAfter)
		}
	}
	for {
		select {
		case <-ctx.Done():
			select {
			case <-a.unsaved:
				failed = true
			default:
			}
			if failed {
				save()
			}
			if err := a.dir.close(); err != nil {
				a.Log.Warn("close data directory", "error", err)
			}
			return
		case <-over.C:
			if !a.dropRecalled() {
				continue
			}
		case <-again.C:
		case <-a.unsaved:
		}
		again.Stop()
		if save(); failed {
			again.Reset(saveAgainAfter)
		}
	}
}

// save writes the current acknowledgements to the data directory.
func (a *Acknowledgements) save() error {
	d := a.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.save(a.all())
}

// dropRecalled drops the acknowledgements whose conflict was not detected again, and reports whether
// there were any.
func (a *Acknowledgements) dropRecalled() bool {
	a.mu.Lock()
	gone := a.recalled
	a.recalled = nil
	a.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		a.Log.Info("acknowledgement dropped: its conflict was not detected again", "id", id, "address", gone[id].address,
			"reason", gone[id].proto.GetReason())
	}
	return len(gone) > 0
}
