package judge

// Kept returns the number of entries and of functions to call, of timers, and of places in the
// list of conflicts.
func (s *Shards) Kept() (entries, timers, conflicts int) {
	for _, w := range s.workers {
		w.asideMu.Lock() // the goroutine takes it before it accesses either
		entries += len(w.entries) + len(w.aside)
		timers += len(w.timers)
		w.asideMu.Unlock()
	}
	for range s.Conflicts.order.Snapshot().From(conflictPlace{}) {
		conflicts++
	}
	return entries, timers, conflicts
}
