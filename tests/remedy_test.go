package tests

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// Each remedy is carried out literally: the printed commands in their order, on their
// nodes. Instructions for a person are carried out according to the table of
// interpretations; an instruction without an interpretation fails the test. kubectl,
// crictl and calicoctl are fakes that record their arguments. The scene then applies the
// effect of the real command to the lab, and acts as a controller that replaces each
// deleted pod. Each alternative is carried out in a lab of its own.

// scene is a problem in a lab, and the data needed to solve it.
type scene struct {
	*lab
	t     *testing.T
	nodes map[string]*lab // by name
	pods  map[string]*placed
	// waiting are pods to be created, which kubelet retries.
	waiting []string
	held    map[string]bool // nodes that are cordoned
	// sandboxes maps container IDs to pods.
	sandboxes map[string]string
	// about is the address in question. kind is the kind of the finding; empty for a
	// conflict.
	about, kind string
	// keeper is the workload or MAC that must have the address in the end. It is "-" if the address
	// must be free, and empty if the finding is not about an address.
	keeper string
	// ways maps a part of an alternative's label to the keeper in that alternative.
	ways map[string]string
	// byHand maps a part of an instruction to a function that does what a person would do.
	byHand map[string]func()
	// effects maps a part of a command to its effect, if it is specific to this scene.
	effects map[string]func()
	// unreal are parts of the labels of alternatives that do not apply in this lab.
	unreal []string
	// left are the kinds of findings that remain, because they have another cause.
	left []string
	// played is the incident that the scene plays; nil if it plays none.
	played *incident
}

// placed is the location of a pod.
type placed struct {
	node *lab
	cni  *netlab.CNI
}

// fakes is the directory of the programs that only record their arguments.
const fakes = "/run/fakes"

// newScene creates a scene in a lab with nodes. The lab itself may be one of them.
func newScene(t *testing.T, l *lab, nodes ...*lab) *scene {
	t.Helper()
	s := &scene{
		lab: l, t: t, nodes: map[string]*lab{}, pods: map[string]*placed{}, held: map[string]bool{}, sandboxes: map[string]string{},
		ways: map[string]string{}, byHand: map[string]func(){},
		effects: map[string]func(){},
	}
	if len(nodes) == 0 {
		l.name = "node1"
		nodes = []*lab{l}
	}
	for _, n := range nodes {
		s.nodes[n.name] = n
	}
	for _, at := range s.machines() {
		if err := os.MkdirAll(at.Path(fakes), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"kubectl", "crictl", "calicoctl", "systemctl"} {
			text := "#!/bin/sh\necho \"" + name + " $*\" >>" + fakes + "/log\n"
			if name == "crictl" { // the scene's answer about ready sandboxes
				text += "case \"$1\" in pods) cat " + fakes + "/ready 2>/dev/null ;; esac\nexit 0\n"
			}
			if err := os.WriteFile(at.Path(fakes+"/"+name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(binary, at.Path(fakes+"/ipwitness")); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// machines returns the nodes and the machine of the aggregator.
func (s *scene) machines() (all []*netlab.Host) {
	all = []*netlab.Host{s.at}
	for _, n := range s.nodes {
		if n.Host != s.at {
			all = append(all, n.Host)
		}
	}
	return all
}

// incident begins an incident, whose remedy is that of the scene.
func (s *scene) incident(number int) { s.t.Helper(); s.played = s.play(s.t, number) }

// foretold waits until there is a finding before the conflict of the scene.
func (s *scene) foretold(kind, addr string) { s.t.Helper(); s.played.foretold(kind, addr) }

// place creates pods on a node.
func (s *scene) place(node *lab, cni *netlab.CNI, pods ...string) {
	s.t.Helper()
	for _, pod := range pods {
		if err := cni.Add(pod); err != nil {
			s.t.Fatal(err)
		}
		s.pods[pod] = &placed{node, cni}
	}
}

// conflicted waits until the address has a confirmed conflict between owners with a
// cause.
func (s *scene) conflicted(addr, owners, cause string) *scene {
	s.t.Helper()
	s.about = addr
	s.watch.await(fmt.Sprintf("%s to be confirmed between %s, of cause %s", addr, owners, cause), func([]*ipwitnessv1.Conflict) bool {
		of := slices.DeleteFunc(s.watch.find(addr), func(c *ipwitnessv1.Conflict) bool { return c.GetCause() != cause })
		return between(addr, ipwitnessv1.Conflict_CONFIRMED, owners)(of)
	})
	for _, o := range s.owners("?address=" + addr) {
		if id := o.GetWorkload().GetContainerId(); id != "" {
			s.sandboxes[id] = o.GetWorkload().GetName()
		}
	}
	if s.played != nil {
		s.played.conflicted(addr, cause)
	}
	return s
}

// found waits until there is a finding of a kind about an address.
func (s *scene) found(kind, addr string) *scene {
	s.t.Helper()
	s.about, s.kind = addr, kind
	wait.Until(s.t, kind+" "+addr, func() bool { return s.finding() != nil })
	if s.played != nil {
		s.played.foretold(kind, addr)
		s.played.found(kind, addr)
	}
	return s
}

// finding returns the finding of the scene, or nil if it has ended.
func (s *scene) finding() *ipwitnessv1.Finding {
	s.t.Helper()
	for _, f := range s.findings("?kind=" + s.kind) {
		if s.about == "" || f.GetAddress() == s.about || slices.Contains(f.GetAddresses(), s.about) {
			return f
		}
	}
	return nil
}

// remedy returns the current remedy.
func (s *scene) remedy() []*ipwitnessv1.Action {
	s.t.Helper()
	if s.kind != "" {
		return s.finding().GetRemedy()
	}
	return s.only(s.about).GetRemedy()
}

// way is one path through a remedy.
type way struct {
	labels  []string
	actions []*ipwitnessv1.Action
}

// leaves begin the alternatives that leave the address with all owners.
var leaves = []string{"all of them are meant", "the conflict is known"}

// ways returns all paths through a remedy that leave the address with one owner. Each takes one alternative
// of every choice.
func ways(actions []*ipwitnessv1.Action) []way {
	all := []way{{}}
	for _, a := range actions {
		next := []way{{actions: []*ipwitnessv1.Action{a}}}
		if len(a.GetChoice()) > 0 {
			next = nil
			for _, alternative := range a.GetChoice() {
				if slices.ContainsFunc(leaves, func(begin string) bool { return strings.HasPrefix(alternative.GetWhen(), begin) }) {
					continue
				}
				for _, w := range ways(alternative.GetActions()) {
					next = append(next, way{append([]string{alternative.GetWhen()}, w.labels...), w.actions})
				}
			}
		}
		var longer []way
		for _, before := range all {
			for _, after := range next {
				longer = append(longer, way{slices.Concat(before.labels, after.labels), slices.Concat(before.actions, after.actions)})
			}
		}
		all = longer
	}
	return all
}

// interpretations are parts of instructions that mean the same in every scene. Most of
// them require nothing to be done in the lab.
var interpretations = []string{
	"Leave ", "Review plan.sh", "Verify", "The finding ends", "Find the other device that has the address",
	"Find out what deleted", "Find out how this happened", "Find out what removed the address", "Find out why two nodes got",
	"write the reservations of all addresses in use", "Rebuild the records", "Addresses leak if", "Identify the machines",
	"If it may, this version of the IPAM", "Restart all other workloads on", "make sure that they share nothing but the hostname",
	"Do not be connected to node", "Give the new object the labels",
}

// looks matches commands that only read. They may find nothing.
var looks = regexp.MustCompile(`^ip -br link \| grep|^kubectl get|^crictl pods|^cat |^find /proc `)

// exclusion matches the instruction to exclude an address from the range of host-local, by its configuration.
var exclusion = regexp.MustCompile(`^Exclude (\S+) from the range of IPAM host-local .* set rangeStart and rangeEnd in (\S+) `)

// do carries out one action.
func (s *scene) do(a *ipwitnessv1.Action) {
	s.t.Helper()
	s.t.Logf("do: %s\n%s", a.GetText(), a.GetCommand())
	done := false
	for part, fn := range s.byHand {
		if strings.Contains(a.GetText(), part) {
			fn()
			done = true
		}
	}
	if m := exclusion.FindStringSubmatch(a.GetText()); m != nil {
		after := netip.MustParseAddr(m[1]).Next()
		for _, at := range s.machines() {
			s.run(at, fmt.Sprintf(`if [ -e %[2]s ]; then sed -i -E 's#"subnet": ?"[^"]+"#&,"rangeStart":"%[1]s"#' %[2]s; fi`, after, m[2]))
		}
		done = true
	}
	if a.GetCommand() == "" {
		if !done && !slices.ContainsFunc(interpretations, func(part string) bool { return strings.Contains(a.GetText(), part) }) {
			s.t.Fatalf("no interpretation of the action %q", a.GetText())
		}
		if strings.HasPrefix(a.GetText(), "Review plan.sh, then run") {
			for name, n := range s.nodes { // each part that exists
				if plan, err := os.ReadFile(s.at.Path("/run/plan.sh")); err != nil {
					s.t.Fatal(err)
				} else if strings.Contains(string(plan), "'node "+name+"')") {
					s.run(n.Host, "sh plan.sh node "+name)
				}
			}
		}
		s.settle()
		return
	}
	at := s.at
	if a.GetNode() != "" {
		n := s.nodes[a.GetNode()]
		if n == nil {
			s.t.Fatalf("%q is to be run on unknown node %q", a.GetCommand(), a.GetNode())
		}
		at = n.Host
	}
	s.run(at, a.GetCommand())
	s.settle()
}

// run runs a command on a machine, and applies the effects of the fakes that it called.
func (s *scene) run(at *netlab.Host, command string) {
	s.t.Helper()
	cmd := at.Command("sh", "-euc", "PATH="+fakes+":$PATH; cd /run; "+command)
	out, err := at.Output(cmd)
	if err != nil && !looks.MatchString(command) {
		s.t.Fatalf("%v\n%s", err, out)
	}
	if plan, err := os.ReadFile(at.Path("/run/plan.sh")); err == nil { // the plan is copied to each node
		for _, other := range s.machines() {
			if err := os.WriteFile(other.Path("/run/plan.sh"), plan, 0o600); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	log, err := os.ReadFile(at.Path(fakes + "/log"))
	if errors.Is(err, os.ErrNotExist) {
		return
	} else if err != nil {
		s.t.Fatal(err)
	}
	if err := os.Remove(at.Path(fakes + "/log")); err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		s.effect(strings.Fields(line))
	}
}

// effect applies the effect of a command to the lab.
func (s *scene) effect(words []string) {
	s.t.Helper()
	last, call := words[len(words)-1], strings.Join(words[:2], " ")
	if fn := s.effects[call]; fn != nil {
		fn()
		return
	}
	switch call {
	case "kubectl delete":
		if words[2] != "pod" || words[4] != "default" {
			s.t.Fatalf("got %q, want a pod deleted", words)
		}
		s.end(last)
	case "kubectl cordon":
		s.held[last] = true
	case "kubectl uncordon":
		delete(s.held, last)
	case "kubectl drain":
		s.held[last] = true
		for pod, at := range s.pods {
			if at.node.name == last {
				s.end(pod)
			}
		}
	case "crictl stopp":
		for id, pod := range s.sandboxes {
			if strings.HasPrefix(id, last) {
				s.remove(pod)
				return
			}
		}
		s.t.Fatalf("no sandbox %s among %v", last, s.sandboxes)
	case "kubectl get", "crictl pods", "crictl rmp":
	default:
		s.t.Fatalf("the effect of %q is unknown", words)
	}
}

// remove ends a pod that nothing replaces.
func (s *scene) remove(pod string) {
	s.t.Helper()
	at := s.pods[pod]
	if at == nil {
		s.t.Fatalf("no pod %q", pod)
	}
	if err := at.cni.Delete(pod); err != nil {
		s.t.Fatal(err)
	}
	delete(s.pods, pod)
}

// end ends a pod that its controller replaces.
func (s *scene) end(pod string) {
	s.t.Helper()
	at := s.pods[pod]
	s.remove(pod)
	next := pod + "-n"
	s.waiting = append(s.waiting, next)
	s.pods[next] = at
	s.settle()
}

// settle creates the waiting pods that can now be created.
func (s *scene) settle() {
	s.t.Helper()
	s.waiting = slices.DeleteFunc(s.waiting, func(pod string) bool {
		at := s.pods[pod]
		if s.held[at.node.name] {
			for name, n := range s.nodes { // the scheduler chooses another node
				if other := s.networkOf(n); !s.held[name] && other != nil {
					at = &placed{n, other}
					s.pods[pod] = at
				}
			}
		}
		if s.held[at.node.name] {
			return false
		}
		if err := at.cni.Add(pod); err != nil {
			if _, err := at.node.Run("ip netns del %s", pod); err != nil {
				s.t.Fatal(err)
			}
			return false
		}
		return true
	})
}

// networkOf returns the network of a pod on a node, or nil if there is none.
func (s *scene) networkOf(n *lab) *netlab.CNI {
	for pod, at := range s.pods {
		if at.node == n && !slices.Contains(s.waiting, pod) {
			return at.cni
		}
	}
	return nil
}

// solved waits until no problem is left and the right workload has the address.
func (s *scene) solved(labels []string) {
	s.t.Helper()
	if len(s.waiting) > 0 {
		s.t.Errorf("pods that could not be created: %q", s.waiting)
	}
	keeper := s.keeper
	for _, label := range labels {
		for part, name := range s.ways {
			if strings.Contains(label, part) {
				keeper = name
			}
		}
	}
	if s.kind != "" {
		wait.Until(s.t, "the finding to be over", func() bool { return s.finding() == nil })
	} else {
		s.watch.await("the conflict to be over", inState(s.about, ipwitnessv1.Conflict_RESOLVED))
	}
	if s.about != "" && keeper != "" {
		want := []string{keeper}
		if keeper == "-" {
			want = nil
		}
		wait.Until(s.t, keeper+" alone to have the address", func() bool {
			var names []string
			for _, o := range s.owners("?address=" + s.about) {
				if o.GetExcluded() == "" && o.GetState() == ipwitnessv1.Owner_LIVE {
					names = append(names, first(o.GetWorkload().GetName(), o.GetMac()))
				}
			}
			return slices.Equal(names, want)
		})
	}
	// A mistake of the remedy would be visible by now.
	s.allocatedByOther()
	for _, c := range s.watch.all() {
		if c.GetState() != ipwitnessv1.Conflict_RESOLVED && !isPlanted(c) {
			s.t.Errorf("a conflict is left: %v", c.GetSummary())
		}
	}
	for _, f := range s.findings("") {
		if !slices.Contains(s.left, f.GetKind()) {
			s.t.Errorf("a finding is left: %v", f.GetSummary())
		}
	}
}

// allocatedByOther plants a duplicate on one of the nodes, and waits until it is reported.
func (s *scene) allocatedByOther() {
	s.t.Helper()
	for _, n := range s.nodes {
		n.plant()
		return
	}
}

func first(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

// carriedOut builds a scene for each path through its remedy, and carries out that path. The first
// scene determines the number of paths.
func carriedOut(t *testing.T, build func(t *testing.T, b block) *scene) {
	t.Helper()
	for n, of := 0, 1; n < of; n++ {
		t.Run(fmt.Sprint("way ", n+1), func(t *testing.T) {
			if n > 0 {
				t.Parallel()
			}
			s := build(t, newBlock(t))
			all := ways(s.remedy())
			if n == 0 {
				of = len(all)
			}
			if len(all) == 0 || len(all[min(n, len(all)-1)].actions) == 0 {
				t.Fatal("no remedy")
			}
			w := all[min(n, len(all)-1)]
			t.Logf("way %q of %d", w.labels, len(all))
			for _, label := range w.labels {
				if slices.ContainsFunc(s.unreal, func(part string) bool { return strings.Contains(label, part) }) {
					return
				}
			}
			for _, a := range w.actions {
				s.do(a)
			}
			s.solved(w.labels)
			if s.played != nil && n == 0 { // the other ways need not be on the page
				s.played.Remedied(w.actions, situations.Commands(w.actions)...)
				s.played.Check()
			}
		})
	}
}
