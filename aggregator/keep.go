package aggregator

import (
	"context"
	"maps"
	"slices"
	"time"
)

// saveAgainAfter is how long after a failure it is tried again to write.
const saveAgainAfter = 10 * time.Second

// archive is what outlives a restart: acknowledgements.
type archive struct {
	dir *dataDir
	// recalled are those of before the start.
	recalled map[string]*acknowledgement
	// unsaved asks to write what is in memory.
	unsaved chan struct{}
}

func newArchive(dir *dataDir, recalled map[string]*acknowledgement) archive {
	return archive{dir: dir, recalled: recalled, unsaved: make(chan struct{}, 1)}
}

// changed asks to write what is in memory, some time soon.
func (a *archive) changed() {
	select {
	case a.unsaved <- struct{}{}:
	default:
	}
}

// keep writes acknowledgements that ended, and drops those whose conflict did not
// come back, until ctx ends. Then it gives the data directory up.
func (s *store) keep(ctx context.Context) {
	over := time.NewTimer(s.policy.NodeTimeout)
	defer over.Stop()
	again := time.NewTimer(saveAgainAfter)
	again.Stop()
	// A directory that could not be used at the start may become usable.
	failed, said := len(s.archive.dir.problems()) > 0, ""
	if failed {
		again.Reset(saveAgainAfter)
	}
	save := func() {
		err := s.saveAcknowledgements()
		failed = err != nil
		switch {
		case err == nil:
			said = ""
		case err.Error() != said: // logged once although saving is retried
			said = err.Error()
			s.log.Error("cannot keep acknowledgements: those that ended come back after a restart; make room in the data directory",
				"error", err, "again_every", saveAgainAfter)
		}
	}
	for {
		select {
		case <-ctx.Done():
			select {
			case <-s.archive.unsaved:
				failed = true
			default:
			}
			if failed {
				save()
			}
			if err := s.archive.dir.close(); err != nil {
				s.log.Warn("close data directory", "error", err)
			}
			return
		case <-over.C:
			if !s.dropRecalled() {
				continue
			}
		case <-again.C:
		case <-s.archive.unsaved:
		}
		again.Stop()
		if save(); failed {
			again.Reset(saveAgainAfter)
		}
	}
}

// saveAcknowledgements writes the current acknowledgements to the data directory.
func (s *store) saveAcknowledgements() error {
	d := s.archive.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.save(s.acknowledgements.all())
}

// dropRecalled forgets the acknowledgements whose conflict did not come back, and
// reports whether there were any.
func (s *store) dropRecalled() bool {
	a := &s.acknowledgements
	a.mu.Lock()
	gone := a.recalled
	a.recalled = nil
	a.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		s.log.Info("acknowledgement dropped: its conflict did not come back", "id", id, "address", gone[id].address,
			"reason", gone[id].proto.GetReason())
	}
	return len(gone) > 0
}
