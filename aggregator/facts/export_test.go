package facts

// Covered reports whether everything on the node with a name is known. The caller holds the lock.
func (f *Facts) Covered(name string) bool { return f.covered(name) }

// Given returns the number of allocations in the node's own pools.
func (n *counts) Given() int { return n.allocated }
