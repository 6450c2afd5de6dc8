package verdict

import (
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
	name := owners[0].VirtualMachine()
	return name != "" && !slices.ContainsFunc(owners, func(o Owner) bool { return o.VirtualMachine() != name })
}

// VirtualMachine is the one that the owner runs, as NAMESPACE/NAME; empty for none.
func (o *Owner) VirtualMachine() string {
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
func (j *attributing) join(o *Owner) {
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
func recall(owners []Owner, before []Member) {
	for i := range owners {
		o := &owners[i]
		k := slices.IndexFunc(before, func(was Member) bool { return was.ID == o.ID })
		if k >= 0 && before[k].Orphaned != nil && o.Assigned && o.Kind() == Pod && o.Pod == nil {
			o.Pod, o.Orphaned = before[k].Orphaned, true
		}
	}
}
