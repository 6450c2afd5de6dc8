package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sourceState is how far a custom resource is read.
type sourceState int

const (
	undiscovered  sourceState = iota // nobody has said yet whether it is there
	absentHere                       // it is not installed
	strange                          // it is there only in versions that are not known
	reading                          // it is being listed
	followed                         // it was listed, and changes are heard
	failing                          // it was listed, and is not followed any more
	forbiddenHere                    // it may not be listed
)

// sourceMisses is how many attempts in a row must fail before a custom resource counts
// as one that does not work.
const sourceMisses = 3

// source is a custom resource that an IPAM is read from. What changes is behind the
// cluster's mu.
type source struct {
	// kind is the one that is read: origin, or where that is not served at all its native one.
	kind, origin kind
	feed         *feed
	ipam         *ipam
	// needed says that nothing is known of the IPAM without it, extra that all is but
	// for what may be odd.
	needed, extra bool

	state    sourceState
	problem  string // why it is not read, in words
	failures int    // in a row
	// bell rings when it was found to be served.
	bell chan struct{}
}

// newSource makes one: lost is what is missing without it.
func newSource(c *Cluster, k kind, into sink, lost string) *source {
	return &source{
		kind: k, origin: k, bell: make(chan struct{}, 1),
		feed: &feed{
			cluster: c, name: k.String(), lost: lost, client: c.clients.custom[k.gv()], resource: k.resource,
			into: into, list: func() list { return &objects{} },
		},
	}
}

// decided tells whether all of it is known, or that it cannot be.
func (s *source) decided() bool { return s.state != undiscovered && s.state != reading }

// set notes a state. It is called under mu.
func (s *source) set(state sourceState, problem string) {
	if s.state == state && s.problem == problem {
		return
	}
	s.state, s.problem = state, problem
	s.ipam.settle()
	s.ipam.assess()
}

// await waits until the resource is served. The objects of one that is not are gone.
func (s *source) await(ctx context.Context) bool {
	c := s.feed.cluster
	for {
		c.mu.RLock()
		state, client := s.state, c.clients.custom[s.kind.gv()]
		c.mu.RUnlock()
		switch {
		case state > strange:
			if s.feed.client != client {
				s.feed.client, s.feed.version = client, ""
			}
			return true
		case state == absentHere:
			s.feed.version = ""
			s.feed.into.anew().complete()
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.bell:
		}
	}
}

// discovered notes whether the resource is served, and as what: with a problem, only
// otherwise than we know it. It is called under mu.
func (s *source) discovered(as kind, served bool, problem string) {
	waits := s.state <= strange
	switch {
	case served && waits:
		s.kind = as
		s.feed.cluster.problem(s.feed.name, "")
		s.set(reading, "")
		select {
		case s.bell <- struct{}{}:
		default:
		}
	case served:
	case waits, s.state == forbiddenHere, s.state == failing:
		// One that is followed ends by itself.
		s.feed.cluster.problem(s.feed.name, problem)
		if problem != "" {
			s.set(strange, problem)
		} else {
			s.set(absentHere, "")
		}
	}
}

// gone tells whether an error says that the resource is not served.
func (s *source) gone(err error) bool {
	c := s.feed.cluster
	c.mu.RLock()
	defer c.mu.RUnlock()
	return apierrors.IsNotFound(err) || c.discovery.blind && apierrors.IsForbidden(err)
}

// vanished notes that the resource is not served any more.
func (s *source) vanished() {
	c := s.feed.cluster
	c.mu.Lock()
	c.problem(s.feed.name, "")
	s.failures = 0
	s.set(absentHere, "")
	blind := c.discovery.blind
	c.mu.Unlock()
	if !blind {
		c.discovery.kick()
	}
}

// worked notes that it was listed, or is followed again. It is called under mu.
func (s *source) worked() {
	s.failures = 0
	s.set(followed, "")
}

// failed notes that it could not be listed or followed, and why. It is called under mu.
func (s *source) failed(err error, problem string) {
	if s.failures++; !answered(err) {
		s.failures = 0
	}
	switch {
	case problem == "":
		// It says something of the server, or may be over in a moment.
	case apierrors.IsForbidden(err):
		s.set(forbiddenHere, problem)
	case s.state >= followed:
		s.set(failing, problem)
	}
}

// discovery finds out from time to time which custom resources are served. It asks
// the API server, as kubectl does: to list the CustomResourceDefinitions would need
// a right of its own.
type discovery struct {
	cluster *Cluster
	every   time.Duration
	bell    chan struct{}
	// check is how often it is looked for what is odd only if it lasts, checked when it was.
	check   time.Duration
	checked time.Time
	// blind tells that it may not be asked: then each resource is tried.
	blind bool
	// refused is since when that is so, believe how long it must be: a server that
	// begins forbids all.
	refused time.Time
	believe time.Duration
}

// discoverEvery is how often it is asked which custom resources are served, checkEvery
// how often it is looked for what is odd, believeAfter how long it must be forbidden to
// ask.
const (
	discoverEvery = 30 * time.Second
	checkEvery    = 2 * time.Minute
	believeAfter  = 30 * time.Second
)

func newDiscovery(c *Cluster) discovery {
	return discovery{cluster: c, every: discoverEvery, check: checkEvery, believe: believeAfter, bell: make(chan struct{}, 1)}
}

// kick has it asked soon.
func (d *discovery) kick() {
	select {
	case d.bell <- struct{}{}:
	default:
	}
}

// discoveryProblem is what problems of discovery are about.
const discoveryProblem = "discovery"

// run asks until ctx ends.
func (d *discovery) run(ctx context.Context) {
	backoff := firstBackoff
	for {
		back := d.cluster.health.back()
		err := d.ask(ctx)
		var wait time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			backoff, d.refused = firstBackoff, time.Time{}
			d.cluster.checkOdd()
			wait = d.every
		case apierrors.IsForbidden(err) && d.refusedLong():
			d.try()
			wait = rightsAgain
		default: // the feeds say what is wrong with the server
			wait, backoff = backoff, min(2*backoff, maxBackoff)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-back:
		case <-timer.C:
		case <-d.bell:
			d.pause(ctx)
		}
		timer.Stop()
	}
}

// refusedLong tells whether it has been forbidden to ask for long enough.
func (d *discovery) refusedLong() bool {
	if d.refused.IsZero() {
		d.refused = time.Now()
	}
	return time.Since(d.refused) >= d.believe
}

// pause has what was just removed be gone from what the server tells.
func (d *discovery) pause(ctx context.Context) {
	timer := time.NewTimer(min(time.Second, d.every))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// ask asks once.
func (d *discovery) ask(ctx context.Context) error {
	var all metav1.APIGroupList
	if err := d.get(ctx, &all, "/apis"); err != nil {
		return err
	}
	served := make(map[string][]string) // the versions of each group
	for _, g := range all.Groups {
		for _, v := range g.Versions {
			served[g.Name] = append(served[g.Name], v.Version)
		}
	}
	resources := make(map[kind]bool) // without a name
	for _, k := range customKinds {
		at := kind{group: k.group, version: k.version}
		native := k.gv() == calicoNative
		if _, known := resources[at]; known || !slices.Contains(served[k.group], k.version) || native && len(served[calicoPools.group]) > 0 {
			continue
		}
		resources[at] = true
		var list metav1.APIResourceList
		err := d.get(ctx, &list, "/apis/"+k.group+"/"+k.version)
		if err != nil && !apierrors.IsNotFound(err) && (!native || d.cluster.readsNative()) {
			return err // of a group that Calico's own API server answers for it says nothing of the others
		}
		for _, r := range list.APIResources {
			resources[kind{group: k.group, version: k.version, resource: r.Name}] = true
		}
	}
	c := d.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	d.blind = false
	c.problem(discoveryProblem, "")
	for _, m := range c.ipams {
		for _, s := range m.sources {
			k, problem := s.origin, ""
			if resources[kind{group: calicoNative.Group, version: calicoNative.Version, resource: calicoBlocks.resource}] {
				k = k.native()
			}
			if other := served[k.group]; len(other) > 0 && !slices.Contains(other, k.version) {
				problem = fmt.Sprintf("%s is served as %v only, and we know %s: %s; use a version of ipwitness that knows it",
					k.group, plain(fmt.Sprint(other)), k.version, s.feed.lost)
			}
			s.discovered(k, resources[kind{group: k.group, version: k.version, resource: k.resource}], problem)
		}
	}
	return nil
}

// try has each resource tried, where it may not be asked which there are.
func (d *discovery) try() {
	c := d.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	d.blind = true
	c.problem(discoveryProblem, "may not ask which custom resources there are (get of /apis): those that may not be listed count as not there; "+
		"bind ipwitness's service account to the ClusterRole system:discovery")
	for _, m := range c.ipams {
		for _, s := range m.sources {
			s.discovered(s.origin, true, "")
		}
	}
}

// readsNative tells whether anything is read of Calico's newer group.
func (c *Cluster) readsNative() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.ContainsFunc(c.ipams, func(m *ipam) bool {
		return slices.ContainsFunc(m.sources, func(s *source) bool { return s.kind.gv() == calicoNative && s.state > strange })
	})
}

// get reads what the server says of itself.
func (d *discovery) get(ctx context.Context, into any, path string) error {
	ctx, cancel := context.WithTimeout(ctx, d.cluster.health.pulse.within)
	defer cancel()
	raw, err := d.cluster.clients.custom[whereaboutsPools.gv()].Get().AbsPath(path).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return err
	}
	d.cluster.hear()
	return part(raw, "answer to "+http.MethodGet+" "+path, into)
}

// checkOdd looks at what is odd only if it lasts.
func (c *Cluster) checkOdd() {
	if time.Since(c.discovery.checked) < c.discovery.check {
		return
	}
	c.discovery.checked = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.ipams {
		if m.check != nil {
			m.check()
		}
	}
}
