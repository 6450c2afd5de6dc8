package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// generatedName matches the names that container runtimes generate for files of namespaces:
// containerd, CRI-O and podman in /run/netns, docker in /run/docker/netns.
var generatedName = map[string]*regexp.Regexp{
	"netns":     regexp.MustCompile(`^(?:cni-|netns-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`),
	dockerNetns: regexp.MustCompile(`^[0-9a-f]{12}$`),
}

// dockerNetns is the source of names of files in /run/docker/netns.
const dockerNetns = "docker-netns"

// overlay matches docker's name for the namespace with the bridge of an overlay network: a number and the id
// that the network has on all nodes of the swarm, cut to twelve characters (GenerateKey in libnetwork/osl of moby).
var overlay = regexp.MustCompile(`^[0-9]{1,3}-([0-9a-z]{8})[0-9a-z]{0,2}$`)

// isGenerated reports whether there is a file whose name a container runtime generated.
func isGenerated(file *ipwitnessv1.Workload) bool {
	re := generatedName[file.GetSource()]
	return re != nil && re.MatchString(file.GetName())
}

// A tenant is the workload of a namespace of this node. Facts stay known if their source
// disappears before the namespace does.
type tenant struct {
	facts
	namespace uint64                // see kernel.OurInodes: the inode may belong to another namespace by now
	merged    *ipwitnessv1.Workload // the workload that follows from the facts in from
	from      facts
	settled   bool // the process had lived for settledAfter when it was last seen
	forgotten bool // a short-lived process named the namespace
	// emptySince is when all processes of the machine were first seen, and none was in the namespace.
	emptySince time.Time
	// returned is set if processes came back after the namespace was idle.
	returned bool
}

// name returns the workload that follows from the facts. It is computed again only if they
// change.
func (t *tenant) name() *ipwitnessv1.Workload {
	if t.from != t.facts {
		t.merged, t.from = t.workload(), t.facts
	}
	if t.merged == nil && t.forgotten {
		return &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_UNKNOWN} // replaces the previous name
	}
	return t.merged
}

// facts are the information of all sources about the workload of a namespace.
type facts struct {
	sandbox   *Sandbox              // of the container runtime
	result    *ipwitnessv1.Workload // of a CNI result
	engine    *ipam.Container       // of docker or podman
	file      *ipwitnessv1.Workload // from the name of its file
	process   Process               // the oldest process: pause, or the process that created the namespace
	container Container             // the container that this process's cgroup belongs to
	vips      vipProgram
	idle      bool // no process was in the namespace for idleAfter
	joins     bool // it is idle, and joins networks (kernel.Joins)
}

// with returns the facts, updated with new ones. Facts that the new ones lack are kept.
func (f facts) with(now facts) facts {
	f.sandbox, f.result = cmp.Or(now.sandbox, f.sandbox), cmp.Or(now.result, f.result)
	f.engine, f.file = cmp.Or(now.engine, f.engine), cmp.Or(now.file, f.file)
	return f
}

// workload returns the workload that uses the namespace, or nil if nothing is known.
// The best source sets kind and name; every other fact comes from the best source that has it.
// Only the runtime, which is the best source, knows virtual machines. A namespace with a name is a
// container if a runtime has a container in it.
func (f facts) workload() *ipwitnessv1.Workload {
	var w *ipwitnessv1.Workload
	for _, from := range f.sources() {
		if w == nil {
			w = proto.CloneOf(from)
			continue
		}
		fill := func(field string, to *string, value string) {
			if *to != "" || value == "" {
				return
			}
			*to = value
			if w.Sources == nil {
				w.Sources = map[string]string{}
			}
			w.Sources[field] = from.GetSource()
		}
		if w.GetKind() == ipwitnessv1.Workload_UNKNOWN && from.GetKind() != ipwitnessv1.Workload_UNKNOWN {
			w.Kind = ipwitnessv1.Workload_CONTAINER // a runtime knows the container under another name
		}
		fill("uid", &w.Uid, from.GetUid())
		fill("containerId", &w.ContainerId, from.GetContainerId())
		if w.GetProcess() == "" {
			w.ProcessId, w.ProcessEnded = from.GetProcessId(), from.GetProcessEnded()
		}
		fill("process", &w.Process, from.GetProcess())
	}
	if w == nil && (f.idle || f.vips.name != "") {
		w = &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_UNKNOWN}
	}
	if w != nil {
		w.Idle, w.VipProgram, w.VipProgramEnded = f.idle, f.vips.name, f.vips.ended
		// A namespace that a runtime made is its workload's, whatever networks it is in.
		w.MayForward = f.joins && !isGenerated(f.file) && slices.Contains([]string{"", "process", "netns"}, w.GetSource())
	}
	return w
}

// sources returns the workload according to each source, the best one first. A file name that
// a person chose is better than a cgroup, but a generated one is not.
func (f facts) sources() (all []*ipwitnessv1.Workload) {
	if f.sandbox != nil {
		all = append(all, f.sandbox.Workload)
	}
	if f.result != nil {
		all = append(all, f.result)
	}
	if c := f.engine; c != nil {
		all = append(all, &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: table.Printable(c.Name), ContainerId: c.ID, Source: c.Engine})
	}
	if f.file != nil && !isGenerated(f.file) {
		all = append(all, f.file)
	}
	if c := f.container; c != (Container{}) {
		w := &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_CONTAINER, Name: table.Printable(c.Name), Uid: c.Pod, ContainerId: c.ID, Source: "cgroup"}
		if c.Pod != "" {
			w.Kind = ipwitnessv1.Workload_POD
		}
		all = append(all, w)
	}
	if isGenerated(f.file) {
		all = append(all, f.file)
	}
	if p := f.process; p.PID != 0 {
		ended := ""
		if p.Ended {
			ended = ", ended"
		}
		all = append(all, &ipwitnessv1.Workload{
			Kind: ipwitnessv1.Workload_UNKNOWN, Process: fmt.Sprintf("%s (%d%s)", p.Name, p.PID, ended), Source: "process",
			ProcessId: uint32(p.PID), ProcessEnded: p.Ended,
		})
	}
	return all
}
