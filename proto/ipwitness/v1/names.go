package ipwitnessv1

import "cmp"

// OwnerName returns the short name of an owner: NAMESPACE/POD (pod-uid/UID, shortened, if only the uid is
// known), container/NAME, vm/NAME, host/NODE, netns/NAME, process/NAME (PID) or, for an external
// device, external.
func OwnerName(o *Owner) string {
	w := o.GetWorkload()
	switch w.GetKind() {
	case Workload_POD:
		if w.GetName() == "" {
			return "pod-uid/" + ShortID(w.GetUid())
		}
		return w.GetNamespace() + "/" + w.GetName()
	case Workload_CONTAINER:
		if w.GetSource() == "netns" {
			return "netns/" + w.GetName() // a name of a namespace says no more
		}
		return "container/" + cmp.Or(w.GetName(), ShortID(w.GetContainerId()), o.GetNetns())
	case Workload_VM:
		return "vm/" + cmp.Or(w.GetName(), o.GetNetns())
	case Workload_HOST:
		return "host/" + cmp.Or(o.GetNode(), w.GetName())
	case Workload_EXTERNAL:
		return "external"
	default:
		if w.GetName() == "" && w.GetProcess() != "" {
			return "process/" + w.GetProcess()
		}
		return "netns/" + cmp.Or(w.GetName(), o.GetNetns(), "?")
	}
}

// ShortID shortens the ID of a container to the length that docker ps shows.
func ShortID(id string) string { return id[:min(len(id), 12)] }
