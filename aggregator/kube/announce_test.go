package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// ready returns the events to write at a time, as if this replica led.
func ready(c *Cluster, now time.Time) []notice { return c.announcer.waiting(now, true, time.Time{}) }

// queued returns what is announced by the events to write, and their targets, and takes them for written.
func queued(c *Cluster, now time.Time) string {
	var about, targets []string
	for _, n := range ready(c, now) {
		word := "conflict"
		if n.finding {
			word = n.reason
		}
		if n.resolved {
			word = "resolved"
		}
		if !slices.Contains(about, word) {
			about = append(about, word)
		}
		targets = append(targets, fmt.Sprintf("%s@%s", n.target.name, n.target.node))
		n.state.wants, n.state.at = nil, now
	}
	slices.Sort(targets)
	return strings.Join(append(about, targets...), " ")
}

func TestWhichConflictsAreAnnounced(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	c.announcer.pause = 0
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_SUSPECTED, "one@n1", "@n2")
	conflict.Owners = append(conflict.Owners, &pb.Owner{Node: "n1", Mac: "02:00:00:00:00:01", Workload: &pb.Workload{Kind: pb.Workload_EXTERNAL}})
	announce := func(what, want string) {
		t.Helper()
		c.Announce(proto.CloneOf(conflict), false)
		if got := queued(c, time.Now()); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	announce("suspected", "")
	conflict.State, conflict.ConfirmedAt = pb.Conflict_CONFIRMED, timestamppb.Now()
	conflict.Acknowledgement = &pb.Acknowledgement{}
	announce("acknowledged", "")
	conflict.Acknowledgement = nil
	announce("confirmed", "conflict @n1 @n2 one@n1")
	announce("confirmed again", "")
	conflict.Owners = append(conflict.Owners, &pb.Owner{Node: "n3", Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: "late"}})
	announce("one more", "conflict @n3 late@n3")
	conflict.State, conflict.Owners = pb.Conflict_RESOLVED, conflict.Owners[1:2]
	announce("resolved", "resolved @n1 @n2 @n3 late@n3 one@n1")
	announce("resolved again", "")
	conflict.State, conflict.DetectedAt = pb.Conflict_CONFIRMED, timestamppb.Now()
	announce("another episode", "conflict @n2")
	conflict.State, conflict.ConfirmedAt, conflict.DetectedAt = pb.Conflict_RESOLVED, nil, timestamppb.Now()
	announce("one that was only suspected", "")
	conflict.ConfirmedAt = timestamppb.Now()
	announce("one that was acknowledged to its end", "")
	conflict.State, conflict.DetectedAt = pb.Conflict_CONFIRMED, timestamppb.New(time.Now().Add(time.Second))
	announce("another episode, although the end of the one before was not announced", "conflict @n2")
}

// An API server forgets events after an hour, and knows those of pods by the names that they had at first.
func TestEventsAreRenewedAndRenamed(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	c.announcer.pause = 0
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1", "@n2")
	wanted := func(what string, at time.Time, want string) {
		t.Helper()
		if got := queued(c, at); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	announce := func(what, want string) {
		t.Helper()
		c.Announce(proto.CloneOf(conflict), false)
		wanted(what, time.Now(), want)
	}
	now := time.Now()
	renew := func(what, want string) {
		t.Helper()
		now = now.Add(renewEvery + time.Second)
		wanted(what, now, want)
	}
	conflict.Owners[0].Workload = &pb.Workload{Kind: pb.Workload_UNKNOWN, Name: "heir"}
	announce("confirmed, the pod is not known", "conflict @n1 @n2")
	conflict.Owners[0].Workload = &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: "one"}
	announce("the pod is known", "conflict @n1 @n2 one@n1")
	conflict.Summary = "another one"
	announce("another summary", "")
	wanted("after a minute", now.Add(time.Minute), "")
	renew("after a while", "conflict @n1 @n2 one@n1")
	wanted("a minute later", now.Add(time.Minute), "")
	renew("after another while", "conflict @n1 @n2 one@n1")
	conflict.Acknowledgement = &pb.Acknowledgement{}
	announce("acknowledged", "")
	renew("while it is acknowledged", "")
	conflict.Acknowledgement = nil
	announce("not acknowledged any more", "")
	renew("after that", "conflict @n1 @n2 one@n1")
	conflict.State = pb.Conflict_RESOLVED
	announce("resolved", "resolved @n1 @n2 one@n1")
	renew("after its end", "")
}

// The API server may have forgotten the events from before a start, or forget them soon if starts are frequent.
func TestEventsFromBeforeTheStartAreRenewed(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1", "@n2")
	conflict.ConfirmedAt = timestamppb.New(time.Now().Add(-2 * lately))
	start := time.Now()
	c.Announce(conflict, true)
	for _, at := range []struct {
		after time.Duration
		want  string
	}{
		{renewEvery / 40, ""},
		{renewEvery / 10, "conflict @n1 @n2 one@n1"},
		{renewEvery / 5, ""},
		{renewEvery / 2, ""},
		{renewEvery*11/10 + time.Second, "conflict @n1 @n2 one@n1"},
	} {
		if got := queued(c, start.Add(at.after)); got != at.want {
			t.Errorf("%s after the start: got %q, want %q", at.after, got, at.want)
		}
	}
}

func TestWhatIsChangedOfARenewedEvent(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	before := &corev1.Event{Message: "as before", Count: 3, LastTimestamp: metav1.NewTime(at)}
	for _, row := range []struct {
		what         string
		renews, next bool
		message      string
		after        time.Duration
		want         string // the message and the count of the changes
	}{
		{"announced again", false, false, "another", time.Hour, "<nil> <nil>"},
		{"another episode", false, true, "another", time.Second, "another 4"},
		{"renewed", true, false, "as before", renewEvery, "as before 4"},
		{"renewed by another replica a moment ago", true, false, "as before", time.Minute, "<nil> <nil>"},
		{"renamed", true, false, "another", time.Minute, "another <nil>"},
	} {
		event := &corev1.Event{Message: row.message, LastTimestamp: metav1.NewTime(at.Add(row.after))}
		got := notice{renews: row.renews}.changes(before, event, row.next)
		if text := fmt.Sprint(got["message"], " ", got["count"]); text != row.want {
			t.Errorf("%s: got %s, want %s", row.what, text, row.want)
		}
	}
}

// A conflict that comes and goes has the Event about its last state written last, and no Event more than once within eventPause.
func TestEventsOfAConflictAreWrittenInOrder(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1")
	announce := func(states ...pb.Conflict_State) {
		for _, conflict.State = range states {
			c.Announce(proto.CloneOf(conflict), false)
		}
	}
	announce(pb.Conflict_CONFIRMED, pb.Conflict_RESOLVED)
	for range 3 {
		conflict.DetectedAt = timestamppb.New(conflict.GetDetectedAt().AsTime().Add(time.Second))
		announce(pb.Conflict_CONFIRMED, pb.Conflict_RESOLVED)
	}
	conflict.DetectedAt = timestamppb.New(conflict.GetDetectedAt().AsTime().Add(time.Second))
	announce(pb.Conflict_CONFIRMED)
	now := time.Now()
	for _, row := range []struct {
		at   time.Time
		want string
	}{{now, "resolved @n1 one@n1"}, {now, "conflict @n1 one@n1"}, {now, ""}} {
		if got := queued(c, row.at); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
	announce(pb.Conflict_RESOLVED)
	conflict.DetectedAt = timestamppb.New(conflict.GetDetectedAt().AsTime().Add(time.Second))
	announce(pb.Conflict_CONFIRMED)
	if got := c.announcer.counts[limited].Load(); got != 2*2 {
		t.Errorf("got %d limited, want the two of each target", got)
	}
	for _, row := range []struct {
		at   time.Time
		want string
	}{{now.Add(eventPause / 2), ""}, {now.Add(eventPause), "resolved @n1 one@n1"}, {now.Add(eventPause), "conflict @n1 one@n1"}} {
		if got := queued(c, row.at); got != row.want {
			t.Errorf("after the pause: got %q, want %q", got, row.want)
		}
	}
}

// New events are written before those that are written again. These are not lost if they wait for too long, because they
// are wanted again.
func TestEventsThatAreRenewedAreNotDropped(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	now, a := time.Now(), &c.announcer
	for i := range 7 { // of a pod and its node
		conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1")
		conflict.Id, conflict.ConfirmedAt = fmt.Sprint(i), timestamppb.New(now.Add(-2*lately))
		c.Announce(conflict, true)
	}
	now = now.Add(renewEvery)
	if n := len(ready(c, now)); n != 2*7 || a.counts[dropped].Load() != 0 {
		t.Errorf("got %d waiting and %d dropped, want none dropped", n, a.counts[dropped].Load())
	}
	fresh := conflictOf("default", "10.0.0.2", pb.Conflict_CONFIRMED, "two@n2")
	fresh.Id = "fresh"
	c.AnnounceFinding(&pb.Finding{
		Kind: verdict.FindingPodCIDROverlap, Id: "found", Severity: pb.Finding_WARNING, DetectedAt: timestamppb.Now(), Nodes: []string{"n1"},
	}, false, false)
	c.Announce(fresh, false)
	var first []string
	all := ready(c, now.Add(time.Second))
	for _, n := range all[:4] {
		first = append(first, n.id)
	}
	if len(all) != 2*7+3 || !slices.Equal(first[:3], []string{"fresh", "fresh", "found"}) || first[3] == "found" || a.counts[dropped].Load() != 0 {
		t.Errorf("got %d waiting, the first about %s, and %d dropped, want the new ones first, those about conflicts before", len(all), first, a.counts[dropped].Load())
	}
	ready(c, now.Add(lately+time.Minute))
	if got := a.counts[dropped].Load(); got != 3 { // a look-alike: the new ones, which were never written
		t.Errorf("got %d dropped, want the new ones", got)
	}
}

func TestTextOfAnEvent(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) {
		c.put(&c.nodes, testNode("n1", ""))
		c.put(&c.pods, testPod("one", "n1", "10.0.0.1"))
	})
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1", "two@n2", "@n3")
	for i, summary := range []string{"It is held twice.", strings.Repeat("long \x1b", 500)} {
		conflict.Summary, conflict.Id = summary, fmt.Sprint(i)
		conflict.Remedy[0].Text = strings.Repeat("Delete the pod. ", 1+50*i)
		c.Announce(conflict, false)
		all := ready(c, time.Now())
		n := all[len(all)-1]
		if text := n.text(); len(text) > maxText || strings.Contains(text, "\x1b") || !strings.HasSuffix(text, " More: ipwitness explain 10.0.0.1") {
			t.Errorf("%d bytes: %q", len(text), text)
		}
	}
	n := ready(c, time.Now())[0]
	if got, want := n.text(), "It is held twice. First: Delete the pod. More: ipwitness explain 10.0.0.1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	event := func(about target) *corev1.Event {
		return c.announcer.event(notice{announcement: n.announcement, target: about})
	}
	if e := event(target{"default", "one", "", "n1"}); e == nil || e.Name != eventName("one", "0", conflictReason, "uid-one") ||
		e.InvolvedObject.UID != "uid-one" || e.Namespace != "default" {
		t.Errorf("got %+v", e)
	}
	if e := event(target{node: "n1"}); e == nil || e.InvolvedObject.UID != "n1" || e.Namespace != "default" {
		t.Errorf("got %+v", e)
	}
	for _, gone := range []target{{"default", "two", "", "n2"}, {node: "n2"}, {"default", "one", "another", "n1"}} {
		if e := event(gone); e != nil {
			t.Errorf("%v: got %+v", gone, e)
		}
	}
	if name := eventName(strings.Repeat("a.", 126)+"a", "id", conflictReason, "uid"); len(name) > 253 {
		t.Errorf("a name of %d bytes", len(name))
	}
}

// If one namespace rejects events (by a quota or an admission webhook), others still get them.
func TestOneNamespaceThatRefusesEvents(t *testing.T) {
	f := newFakeAPI(t)
	f.quota = "full"
	pod := testPod("one", "n1", "10.0.0.1")
	pod.Namespace = "full"
	f.put(pod)
	f.put(testPod("two", "n1", "10.0.0.2"))
	c := f.open()
	start(t, c)
	live(t, c)
	c.Announce(conflictOf("full", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1"), false)
	wait.Until(t, "missing permission for events is reported", func() bool { return len(c.Status().GetProblems()) == 1 })
	other := conflictOf("default", "10.0.0.2", pb.Conflict_CONFIRMED, "two@n1")
	other.Id = "another"
	c.Announce(other, false)
	wait.Until(t, "the other event is written", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.events == 1 })
	if p := c.Status().GetProblems(); len(p) != 1 {
		t.Errorf("got problems %q, want the one of the namespace", p)
	}
}

func TestWhichFindingsAreAnnounced(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	finding := &pb.Finding{
		Kind: "in-use-unallocated", Id: "id", Address: "10.0.0.1", Severity: pb.Finding_INFO, DetectedAt: timestamppb.Now(), Nodes: []string{"n1"},
		Summary: "10.0.0.1 is in use, and host-local takes it for free.", Remedy: []*pb.Action{{Text: "Restart the pod."}},
		Owners: conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1").Owners,
	}
	announce := func(what string, over bool, want string) {
		t.Helper()
		c.AnnounceFinding(proto.CloneOf(finding), over, false)
		if got := queued(c, time.Now()); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	announce("good to know", false, "")
	finding.Severity = pb.Finding_CRITICAL
	announce("critical", false, "AddressInUseUnallocated @n1 one@n1")
	announce("critical again", false, "")
	finding.Nodes = append(finding.Nodes, "n2")
	announce("of one more", false, "AddressInUseUnallocated @n2")
	finding.Owners = nil
	c.AnnounceFinding(proto.CloneOf(finding), true, false)
	all := ready(c, time.Now())
	n := all[0]
	if got, want := n.text(), "Resolved: 10.0.0.1 is in use, and host-local takes it for free. More: ipwitness explain 10.0.0.1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if n.over != "AddressInUseUnallocatedResolved" || len(all) != 3 {
		t.Errorf("got %+v", n)
	}
	queued(c, time.Now())
	announce("over again", true, "")

	// A finding that concerns hundreds of pods is announced for some of them. Conflicts come
	// first.
	finding = &pb.Finding{Kind: verdict.FindingPodCIDROverlap, Id: "many", Address: "10.0.0.0/16", Severity: pb.Finding_WARNING, DetectedAt: timestamppb.Now()}
	for i := range 500 {
		finding.Owners = append(finding.Owners, conflictOf("default", "", pb.Conflict_CONFIRMED, fmt.Sprintf("p%d@n1", i)).Owners...)
	}
	c.AnnounceFinding(finding, false, false)
	c.Announce(conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1"), false)
	all = ready(c, time.Now())
	if n := all[len(all)-1]; len(all) != maxFindingTargets+2 || n.reason != "IPAMPodCIDROverlap" || !strings.HasSuffix(n.text(), " More: ipwitness audit") {
		t.Errorf("got %+v", n)
	}
	for _, kind := range verdict.FindingKinds() {
		if findingReasons[kind] == "" {
			t.Errorf("events about findings of kind %s have no reason", kind)
		}
	}
	if all[0].finding {
		t.Error("the finding is written before the conflict")
	}
}

// A replica that detected an episode late does not count it again in the Event that another one wrote.
func TestWhichEventIsOfAnEarlierEpisode(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		what            string
		began, detected time.Duration // of the announcement, after those of the Event
		unknown, again  bool          // when the announced episode began is not known; it is not the first one
		want            bool
	}{
		{"the same one", 0, 0, false, false, false},
		{"the same one, detected after the Event was written", 0, time.Hour, false, true, false},
		{"a time that the agent computed again", 100 * time.Millisecond, time.Hour, false, true, false},
		{"an earlier one, detected after the Event was written", -time.Minute, time.Hour, false, true, false},
		{"a later one", time.Minute, time.Minute, false, false, true},
		{"a later one, detected at once", time.Second, time.Second, false, true, true},
		{"it is not known when it began, and it was detected now", 0, time.Minute, true, true, true},
		{"it is not known when it began, and it was detected before the Event", 0, -time.Second, true, true, false},
	} {
		event := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				beganNote: began.Format(time.RFC3339Nano), detectedNote: began.Add(time.Second).Format(time.RFC3339Nano),
			}},
			LastTimestamp: metav1.NewTime(began.Add(2 * time.Second)),
		}
		n := &announcement{began: began.Add(row.began), detected: began.Add(time.Second + row.detected), again: row.again}
		if row.unknown {
			n.began = time.Time{}
		}
		if got, err := c.announcer.isNext(t.Context(), n, event); err != nil || got != row.want {
			t.Errorf("%s: got %v, %v, want %v", row.what, got, err, row.want)
		}
	}
}

// An API server with a short --event-ttl forgets an Event long before it is renewed.
func TestForgottenEventsAreWrittenAgain(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	conflict := conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1")
	c.Announce(conflict, false)
	now := time.Now()
	const want = "conflict @n1 one@n1"
	if got := queued(c, now); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one.0", Annotations: map[string]string{conflictNote: conflict.GetId()}}}
	other := event.DeepCopy()
	other.Name, other.Annotations = "two.0", map[string]string{findingNote: "another"}
	stored := &c.announcer.stored
	for _, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"both are stored", func() { c.put(stored, event); c.put(stored, other) }, ""},
		{"another one is forgotten", func() { c.drop(stored, other) }, ""},
		{"it is forgotten", func() { c.drop(stored, event) }, want},
		{"it is stored again", func() { c.put(stored, event) }, ""},
		{"it is missing in a new list", func() { c.replace(stored, nil) }, want},
		{"it was never stored", func() { c.replace(stored, nil) }, ""},
	} {
		step.change()
		if got := queued(c, time.Now().Add(2*eventPause)); got != step.want {
			t.Errorf("%s: got %q, want %q", step.what, got, step.want)
		}
	}
	conflict.State = pb.Conflict_RESOLVED
	c.put(stored, event)
	c.Announce(conflict, false)
	queued(c, time.Now().Add(2*eventPause))
	c.drop(stored, event)
	if got := queued(c, time.Now().Add(4*eventPause)); got != "" {
		t.Errorf("forgotten after its end: got %q", got)
	}
}
