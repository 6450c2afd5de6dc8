package verdict

import (
	"cmp"
	"slices"
	"time"
)

// samePod reports whether all owners are sandboxes of one pod.
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
	case w.OnlyNetns() || other.OnlyNetns(): // the processes in the namespace do not identify its pod
		return false
	case w.UID != "" && other.UID != "":
		return w.UID == other.UID
	case w.ContainerID != "" && w.ContainerID == other.ContainerID:
		return true
	}
	return w.Kind == Pod && other.Kind == Pod && w.Name != "" && w.Name == other.Name && w.Namespace == other.Namespace
}

// copies returns the owners that are one container on several machines: an engine has restored a copy of it. Engines give
// each container a random id, 64 hexadecimal digits. Other programs derive ids from names, which may be alike, and a pod
// with a UID has a new id on each node.
func copies(owners []Owner) (found []*Owner) {
	for i := range owners {
		o, w := &owners[i], owners[i].Workload()
		if o.Namespace != nil && len(w.ContainerID) == 64 && !w.OnlyNetns() && slices.ContainsFunc(owners, func(other Owner) bool {
			v := other.Workload()
			return v.ContainerID == w.ContainerID && !v.OnlyNetns() && (v.UID == "" || w.UID == "") && other.Node.Boot != o.Node.Boot
		}) {
			found = append(found, o)
		}
	}
	return found
}

// Copied reports whether owners are one container on several machines.
func (c *Conflict) Copied() bool { return len(copies(c.Owners)) > 0 }

// sameVM reports whether all owners are pods that run one virtual machine, as two pods do during a
// migration.
func sameVM(owners []Owner) bool {
	name := owners[0].VirtualMachine()
	return name != "" && !slices.ContainsFunc(owners, func(o Owner) bool { return o.VirtualMachine() != name })
}

// OneWorkload reports whether two owners are sandboxes of one pod, or pods of one virtual machine.
func OneWorkload(a, b Owner) bool {
	two := []Owner{a, b}
	return samePod(two) || sameVM(two)
}

// InGuest reports whether the guest of a virtual machine has the address, and not the kernel of the pod
// that runs it. A guest keeps its address when it is migrated to another pod.
func (o *Owner) InGuest() bool {
	return o.Namespace != nil && !o.Assigned && !o.DADFailed() && o.VirtualMachine() != ""
}

// runsMachine reports whether a namespace is that of a pod that runs a virtual machine.
func (c *Case) runsMachine(ns *Namespace) bool {
	if ns == nil || ns.Who.Kind() != Pod {
		return false
	}
	p := c.pod(ns)
	return p != nil && p.VirtualMachine != "" || ns.Who.Workload().VirtualMachine != ""
}

// migrates reports whether KubeVirt migrates the virtual machine of owners, and returns until when their
// pods may both have its address otherwise: for the grace after the last known change.
func (p *Policy) migrates(owners []Owner) (migrating bool, until Stamp) {
	for i := range owners {
		if pod := owners[i].Pod; pod != nil && pod.MachineSince != 0 {
			migrating, until = migrating || pod.Migrating, max(until, pod.MachineSince.Add(p.MigrationGrace))
		}
	}
	return migrating, until
}

// runsMachine reports whether KubeVirt says that the owner's node runs the owner's virtual machine, and
// does not migrate it.
func (o *Owner) runsMachine() bool {
	return o.Pod != nil && o.Pod.MachineNode != "" && !o.Pod.Migrating && o.OnNode(o.Pod.MachineNode)
}

// VirtualMachine returns the virtual machine that the owner runs, as NAMESPACE/NAME; empty if there
// is none.
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

// absentAfter is how long an owner must exist before a missing pod in the Kubernetes API counts.
// The aggregator's view of the API may lag behind the node by this much.
const absentAfter = 5 * time.Second

// endedAfter is how long a sandbox may exist after its pod has ended. The kubelet reports the end
// before it removes the sandbox.
const endedAfter = 5 * time.Second

// joinPod adds the state of the Kubernetes API to an owner.
func (j *attribution) joinPod(o *Owner) {
	if o.Kind() != Pod {
		return
	}
	o.Pod = j.in.pod(o.Namespace)
	switch p := o.Pod; {
	case p == nil || !o.Has():
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
		case j.in.PodsKnownUntil < at: // the API is not followed, or is being listed again
			j.again(j.in.Now.Add(checkInterval))
		default:
			o.Orphaned = true
		}
	}
}

// Ended reports whether the pod has ended for good.
func (p *PodObject) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// orphans returns the owners whose pods have ended or no longer exist.
func orphans(owners []Owner) (left []*Owner) {
	for i := range owners {
		if owners[i].Orphaned {
			left = append(left, &owners[i])
		}
	}
	return left
}

// PodLives reports whether the Kubernetes API has the owner's pod, and the pod has not ended.
func (o *Owner) PodLives() bool { return o.Pod != nil && !o.Pod.Absent && !o.Pod.Ended() }

// restoreOrphaned restores what the Kubernetes API said about orphaned owners, unless the API contradicts it
// now. It cannot do so while it is disconnected, and is not known to be complete for a while after each start.
func restoreOrphaned(owners []Owner, before []Member) {
	for i := range owners {
		o := &owners[i]
		k := slices.IndexFunc(before, func(was Member) bool { return was.ID == o.ID })
		if k >= 0 && before[k].Orphaned != nil && o.Has() && o.Kind() == Pod && !o.PodLives() {
			o.Pod, o.Orphaned = cmp.Or(o.Pod, before[k].Orphaned), true
		}
	}
}
