package verdict

import (
	"fmt"
	"slices"
	"time"
)

// samePod tells whether all owners are sandboxes of one pod.
func samePod(owners []Owner) bool {
	first := owners[0].Workload()
	for i := range owners[1:] {
		if !first.samePod(owners[i+1].Workload()) {
			return false
		}
	}
	return true
}

func (w Workload) samePod(other Workload) bool {
	switch {
	case w.OnlyNetns() || other.OnlyNetns(): // what runs in there says nothing of whose it is
		return false
	case w.UID != "" && other.UID != "":
		return w.UID == other.UID
	case w.ContainerID != "" && w.ContainerID == other.ContainerID:
		return true
	}
	return w.Kind == Pod && other.Kind == Pod && w.Name != "" && w.Name == other.Name && w.Namespace == other.Namespace
}

// sameVM tells whether all owners are pods that run one virtual machine, as two do
// while it is migrated.
func sameVM(owners []Owner) bool {
	name := owners[0].virtualMachine()
	return name != "" && !slices.ContainsFunc(owners, func(o Owner) bool { return o.virtualMachine() != name })
}

// virtualMachine is the one that the owner runs, as NAMESPACE/NAME; empty for none.
func (o *Owner) virtualMachine() string {
	if o.Kind() != Pod {
		return ""
	}
	w := o.Workload()
	if w.VirtualMachine == "" {
		return ""
	}
	return w.Namespace + "/" + w.VirtualMachine
}

// absentAfter is how long an owner is there before it counts that the Kubernetes
// API has no pod for it: what we know of the API may be that much behind the node.
const absentAfter = 5 * time.Second

// endedAfter is how long a sandbox may be there after its pod has ended: the kubelet
// says so first, and removes it then.
const endedAfter = 5 * time.Second

// join says of an owner what the Kubernetes API does.
func (j *judging) join(o *Owner) {
	if o.Kind() != Pod {
		return
	}
	o.Pod = j.in.pod(o.Namespace)
	switch p := o.Pod; {
	case p == nil || !o.Assigned:
	case p.Ended():
		if at := p.Heard.Add(endedAfter); j.in.Now < at {
			j.again(at)
		} else {
			o.Orphaned = true
		}
	case p.Absent:
		switch at := o.Begun().Add(absentAfter); {
		case j.in.Now < at:
			j.again(at)
		case j.in.PodsKnownUntil < at: // it is not followed just now, or listed anew
			j.again(j.in.Now.Add(askEvery))
		default:
			o.Orphaned = true
		}
	}
}

// Ended tells whether all containers of the pod have ended for good.
func (p *PodObject) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// orphans are the owners that were left behind.
func orphans(owners []Owner) (left []*Owner) {
	for i := range owners {
		if owners[i].Orphaned {
			left = append(left, &owners[i])
		}
	}
	return left
}

// recall keeps what the Kubernetes API said of owners that were left behind while it
// is not heard from: nothing speaks against that.
func recall(owners, before []Owner) {
	for i := range owners {
		o := &owners[i]
		k := slices.IndexFunc(before, func(was Owner) bool { return was.ID == o.ID })
		if k >= 0 && before[k].Orphaned && o.Assigned && o.Kind() == Pod && o.Pod == nil {
			o.Pod, o.Orphaned = before[k].Pod, true
		}
	}
}

// exactly names a pod with its uid, where that is known: there may be another one
// of that name by now.
func (o *Owner) exactly() string {
	if w := o.Workload(); w.UID != "" && w.Name != "" {
		return o.name() + " with uid " + w.UID
	}
	return o.name()
}

// removal is how a sandbox that was left behind is removed.
func (o *Owner) removal() []Action {
	const kubelet = "kubelet does so by itself where it runs: if it does not, find out why"
	w := o.Workload()
	remove := say("On node %s, remove the sandbox of %s; %s.", o.Node.Name, o.name(), kubelet)
	if w.ContainerID != "" {
		id := argument(shortID(w.ContainerID))
		return []Action{remove.by(o.Node.Name, "crictl stopp "+id+" && crictl rmp "+id)}
	}
	of := "--label " + quote("io.kubernetes.pod.uid="+w.UID)
	if w.UID == "" {
		of = "--namespace " + quote(w.Namespace) + " --name " + quote(w.Name)
	}
	remove.Text = fmt.Sprintf("Remove that sandbox of %s (`crictl stopp ID && crictl rmp ID`); %s.", o.name(), kubelet)
	return []Action{say("On node %s, find the id of the sandbox of %s that is in network namespace %s.", o.Node.Name, o.name(), o.Namespace.Netns).by(o.Node.Name, "crictl pods "+of), remove}
}

// successor says what comes after a pod that is deleted.
func (o *Owner) successor() string {
	const asks = "makes a new one, which asks for a new address"
	switch p := o.Pod; {
	case p == nil || p.Absent:
		return "its controller, if it has one, " + asks
	case p.Controller == "":
		return "it has no controller: create it again from its manifest"
	case p.ControllerKind == "VirtualMachineInstance":
		return "that stops virtual machine " + p.Controller + ", which its VirtualMachine starts anew, if it has one"
	default:
		return p.ControllerKind + " " + p.Controller + " " + asks
	}
}

// static tells whether the owner is a static pod: kubelet goes by a file, whatever
// becomes of the pod in the API.
func (o *Owner) static() bool { return o.Pod != nil && o.Pod.ControllerKind == "Node" }

// again is how a static pod is made anew.
func (o *Owner) again() string {
	return fmt.Sprintf("%s is a static pod: to delete it in the API changes nothing. On node %s, take its manifest out of the directory of static pods (/etc/kubernetes/manifests, as a rule), and put it back when its containers are gone",
		capital(o.name()), o.Node.Name)
}
