package shard

// Kept returns the number of addresses of which something is remembered, of timers, and of places in
// the list of conflicts.
func (s *Shards) Kept() (entries, timers, conflicts int) {
	for _, w := range s.workers {
		entries += len(w.entries)
		timers += len(w.timers)
	}
	return entries, timers, s.Conflicts.order.Len()
}
