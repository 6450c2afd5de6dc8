package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// sourceState is how far the feed of a custom resource has come.
type sourceState int

const (
	undiscovered  sourceState = iota // not known yet whether it is installed
	absentHere                       // not installed
	strange                          // installed only in versions that ipwitness does not know
	reading                          // being listed
	followed                         // listed, and its changes arrive
	failing                          // listed, but its changes no longer arrive
	forbiddenHere                    // listing it is forbidden
)

// sourceMisses is how many consecutive attempts must fail before a custom resource counts
// as failing.
const sourceMisses = 3

// source is a custom resource that an IPAM is read from. The cluster's mu guards the
// fields that change.
type source struct {
	*ipam.Resource
	feed *feed
	ipam *publisher

	// reads is the kind to read: Kind, or Alternative or the older version if the cluster serves that instead.
	reads    ipam.Kind
	state    sourceState
	problem  string // why it is not read
	failures int    // consecutive
	// bell rings when discovery finds that the server serves the resource.
	bell chan struct{}
}

// set changes the state. The caller holds mu.
func (s *source) set(state sourceState, problem string) {
	if s.state == state && s.problem == problem {
		return
	}
	s.state, s.problem = state, problem
	s.Decided, s.Followed = state != undiscovered && state != reading, state == followed
	s.feed.cluster.ring()
	if settle := s.ipam.objects.Settle; settle != nil {
		settle()
	}
	s.ipam.assess()
}

// await waits until the resource is served, and reports false when ctx ends. Meanwhile
// its objects count as deleted.
func (s *source) await(ctx context.Context) bool {
	c := s.feed.cluster
	for {
		c.mu.RLock()
		state, client := s.state, c.clients.custom[versionOf(s.reads)]
		c.mu.RUnlock()
		switch {
		case state > strange:
			s.feed.client = client
			return true
		case state == absentHere:
			c.replace(s.Store, nil)
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.bell:
		}
	}
}

// discovered records whether the resource is served, and as which kind. problem is set if only
// unknown versions are served. The caller holds mu.
func (s *source) discovered(as ipam.Kind, served bool, problem string) {
	waits := s.state <= strange
	switch {
	case served && waits:
		s.reads = as
		s.feed.cluster.problem(s.feed.name, "")
		s.set(reading, "")
		ring(s.bell)
	case served:
		s.reads = as // its feed reads another version as soon as its watch has ended
	case waits, s.state == forbiddenHere, s.state == failing:
		// The watch of a source that is followed ends by itself.
		s.feed.cluster.problem(s.feed.name, problem)
		if problem != "" {
			s.set(strange, problem)
		} else {
			s.set(absentHere, "")
		}
	}
}

// vanished records that the resource is no longer served.
func (s *source) vanished() {
	c := s.feed.cluster
	c.mu.Lock()
	c.problem(s.feed.name, "")
	s.failures = 0
	s.set(absentHere, "")
	c.mu.Unlock()
	ring(c.discovery.bell)
}

// discovery finds out at intervals which custom resources are served. Like kubectl, it
// uses the discovery API: listing CustomResourceDefinitions would need another RBAC rule.
type discovery struct {
	cluster *Cluster
	every   time.Duration
	bell    chan struct{}
	// check is the interval of checkIPAMs, and checked is the time of the last check.
	check   time.Duration
	checked time.Time
	// refused is the number of times in a row that the API server refused discovery. missed is that of all failures
	// since pods and nodes were read; the cluster's mu guards it.
	refused, missed int
}

// Defaults of the fields of discovery.
const (
	discoverEvery = 30 * time.Second
	checkEvery    = 2 * time.Minute
)

const discoveryProblem = "discovery"

func (d *discovery) run(ctx context.Context) {
	backoff := firstBackoff
	for {
		back := d.cluster.back()
		err := d.ask(ctx)
		var wait time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			backoff, d.refused = firstBackoff, 0
			d.miss(0)
			d.checkIPAMs()
			wait = d.every
		default: // the feeds report problems with the server
			// The API server may be starting: it then forbids everything.
			if answered(err) {
				d.refused++
			}
			d.miss(1)
			switch {
			case d.refused < sourceMisses:
			case apierrors.IsForbidden(err):
				d.cluster.setProblem(discoveryProblem, "no permission to discover custom resources (get of /apis): the records of IPAMs in custom resources are unknown; "+
					"bind ipwitness's service account to the ClusterRole system:discovery")
			default:
				d.cluster.setProblem(discoveryProblem, "cannot discover custom resources (get of /apis): the records of IPAMs in custom resources are unknown: "+ipam.Shorten(err.Error()))
			}
			wait, backoff = backoff, min(2*backoff, maxBackoff)
		}
		select {
		case <-ctx.Done():
		case <-back:
		case <-time.After(wait):
		case <-d.bell:
			pause(ctx, min(time.Second, d.every), nil) // until a resource that was just removed has left the discovery API as well
		}
	}
}

// miss counts a failure, or none.
func (d *discovery) miss(n int) {
	c := d.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.missed += n; n == 0 || c.health.state == pb.Kubernetes_SYNCING {
		d.missed = 0
	}
	c.ring() // what fails is not awaited
}

// checkIPAMs makes the IPAMs look, at intervals, for inconsistencies that count only if they last.
func (d *discovery) checkIPAMs() {
	if time.Since(d.checked) < d.check {
		return
	}
	d.checked = time.Now()
	d.cluster.mu.Lock()
	defer d.cluster.mu.Unlock()
	for _, m := range d.cluster.ipams {
		if m.objects.Check != nil {
			m.objects.Check()
		}
	}
}

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
	resources := make(map[ipam.Kind]bool) // by kind without the name
	for _, m := range d.cluster.ipams {
		for _, s := range m.sources {
			for _, version := range served[s.Kind.Group] {
				if err := d.list(ctx, ipam.Kind{Group: s.Kind.Group, Version: version}, served, resources); err != nil {
					return err
				}
			}
			if len(served[s.Kind.Group]) > 0 {
				continue
			}
			if err := d.list(ctx, s.Alternative, served, resources); err != nil {
				d.cluster.mu.RLock()
				used := slices.ContainsFunc(m.sources, func(s *source) bool { return s.reads == s.Alternative && s.state > strange })
				d.cluster.mu.RUnlock()
				if used {
					return err // a failure of an IPAM's own API server must not hide the other groups
				}
			}
		}
	}
	c := d.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem(discoveryProblem, "")
	serves := func(k ipam.Kind) bool { k.Name = ""; return resources[k] }
	for _, m := range c.ipams {
		// The alternatives of all kinds are read, or none.
		alternative := slices.ContainsFunc(m.sources, func(s *source) bool { return serves(s.Alternative) }) &&
			!slices.ContainsFunc(m.sources, func(s *source) bool { return s.Role == ipam.Needed && !serves(s.Alternative) })
		for _, s := range m.sources {
			k, problem := s.Kind, ""
			switch older := k.In(s.Older); {
			case alternative:
				k = s.Alternative
			case s.Older != "" && !serves(k) && serves(older):
				k = older
			}
			other := slices.DeleteFunc(slices.Clone(served[k.Group]), func(version string) bool {
				return !serves(ipam.Kind{Group: k.Group, Version: version, Resource: k.Resource})
			})
			if !serves(k) && len(other) > 0 {
				problem = fmt.Sprintf("%s.%s is served only as %v, but ipwitness supports only %s: %s; use a version of ipwitness that supports it",
					k.Resource, k.Group, ipam.Plain(fmt.Sprint(other)), k.Version, s.Lost)
			}
			s.discovered(k, serves(k), problem)
		}
	}
	return nil
}

// list adds the resources in the group and version of a kind to those that are served, unless
// they were asked for already.
func (d *discovery) list(ctx context.Context, k ipam.Kind, served map[string][]string, resources map[ipam.Kind]bool) error {
	at := ipam.Kind{Group: k.Group, Version: k.Version}
	if resources[at] || !slices.Contains(served[k.Group], k.Version) {
		return nil
	}
	resources[at] = true
	var list metav1.APIResourceList
	if err := d.get(ctx, &list, "/apis/"+k.Group+"/"+k.Version); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for _, r := range list.APIResources {
		resources[ipam.Kind{Group: k.Group, Version: k.Version, Resource: r.Name}] = true
	}
	return nil
}

func (d *discovery) get(ctx context.Context, into any, path string) error {
	ctx, cancel := context.WithTimeout(ctx, d.cluster.health.pulse.within)
	defer cancel()
	raw, err := d.cluster.clients.discovery.Get().AbsPath(path).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return err
	}
	d.cluster.recordResponse()
	return ipam.Part(raw, "answer to "+http.MethodGet+" "+path, into)
}
