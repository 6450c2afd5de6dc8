package verdict

// replacedNamespace: a container got a new network namespace, and its previous one still has the
// address. The plugins are called once for each namespace of a container, so the namespace that got the
// address last is the current one. The kubelet decides the same for pods.
func (q *inquiry) replacedNamespace() (r reason) {
	if !q.c.SamePod() || q.c.Expected() || q.c.OfPod() {
		return reason{}
	}
	current := newestAssignment(q.owners)
	if current == nil {
		return reason{}
	}
	for _, o := range q.owners {
		if o == current {
			continue
		}
		r.Wrong = append(r.Wrong, o.ID)
		r.fact(Fact{Kind: FactNamespaceReplaced, Owners: ids(o, current), At: current.AssignedAt()})
		if w := o.Workload(); w.Process != "" {
			r.fact(Fact{Kind: FactNamespaceUsed, Owners: ids(o), Text: w.Process})
		}
	}
	r.Headline = &Fact{Kind: HeadNamespaceReplaced, Owners: ids(current)}
	return r
}

// OfPod reports whether one of the owners is known to be a pod.
func (c *Conflict) OfPod() bool {
	for i := range c.Owners {
		if c.Owners[i].Kind() == Pod {
			return true
		}
	}
	return false
}

// newestAssignment returns the owner whose kernel got the address last; nil if that is not known, or if
// the owners are on several nodes.
func newestAssignment(owners []*Owner) (newest *Owner) {
	for _, o := range owners {
		at := o.AssignedAt()
		switch {
		case !o.Assigned || at == 0 || !o.Node.Is(owners[0].Node):
			return nil
		case newest == nil || at > newest.AssignedAt():
			newest = o
		}
	}
	for _, o := range owners {
		if o != newest && o.AssignedAt() == newest.AssignedAt() {
			return nil
		}
	}
	return newest
}
