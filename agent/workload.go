package agent

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// madeUp are the names that container runtimes make up for files of namespaces:
// containerd, CRI-O and podman in /run/netns, docker in /run/docker/netns.
var madeUp = map[string]*regexp.Regexp{
	"netns":        regexp.MustCompile(`^(?:cni-|netns-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`),
	"docker-netns": regexp.MustCompile(`^[0-9a-f]{12}$`),
}

func isMadeUp(file *ipwitnessv1.Workload) bool {
	re := madeUp[file.GetSource()]
	return re != nil && re.MatchString(file.GetName())
}

// with gives the tenant as it is with what is said of it now. Nothing that was
// said before is forgotten.
func (t tenant) with(now tenant) tenant {
	if now.sandbox != nil {
		t.sandbox = now.sandbox
	}
	if now.result != nil {
		t.result = now.result
	}
	if now.file != nil {
		t.file = now.file
	}
	return t
}

// workload says who lives in the namespace: nil where nothing is known. The best
// source says what it is and how it is called; each other fact is from the best
// source that has it.
func (t tenant) workload() *ipwitnessv1.Workload {
	var w *ipwitnessv1.Workload
	for _, from := range t.sources() {
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
		fill("uid", &w.Uid, from.GetUid())
		fill("containerId", &w.ContainerId, from.GetContainerId())
		fill("process", &w.Process, from.GetProcess())
		fill("virtualMachine", &w.VirtualMachine, from.GetVirtualMachine())
	}
	return w
}

// sources gives what each source says, the best one first. The name of a file
// that a person gave is better than a cgroup, one that a runtime made up is not.
func (t tenant) sources() (all []*ipwitnessv1.Workload) {
	add := func(w *ipwitnessv1.Workload, there bool) {
		if there {
			all = append(all, w)
		}
	}
	if t.sandbox != nil {
		add(t.sandbox.workload, true)
	}
	add(t.result, t.result != nil)
	add(t.file, t.file != nil && !isMadeUp(t.file))
	add(t.container.workload(), t.container != container{})
	add(t.file, t.file != nil && isMadeUp(t.file))
	add(t.process.workload(), t.process.pid != 0)
	return all
}

// workload is who lives in a namespace, as far as its cgroup says.
func (c container) workload() *ipwitnessv1.Workload {
	w := &ipwitnessv1.Workload{
		Kind:        ipwitnessv1.Workload_CONTAINER,
		Name:        printable(c.name),
		Uid:         c.pod,
		ContainerId: c.id,
		Source:      "cgroup",
	}
	if c.pod != "" {
		w.Kind = ipwitnessv1.Workload_POD
	}
	return w
}

// workload is who lives in a namespace of which nothing else is known.
func (p process) workload() *ipwitnessv1.Workload {
	return &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_UNKNOWN, Process: fmt.Sprintf("%s (%d)", p.name, p.pid), Source: "process"}
}
