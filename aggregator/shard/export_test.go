package shard

// Kept returns the number of addresses of which something is remembered, of timers, and of places in
// the list of conflicts.
func (s *Shards) Kept() (entries, timers, conflicts int) {
	for _, w := range s.workers {
		w.forgetMu.Lock() // which the goroutine takes before it looks at either
		entries += len(w.entries)
		timers += len(w.timers)
		w.forgetMu.Unlock()
	}
	return entries, timers, s.Conflicts.order.Len()
}
