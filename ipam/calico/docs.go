package calico

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "Calico IPAM (Kubernetes datastore)",
		State: "by its interface: Calico's own CRDs, in a real API server; real pods. " +
			"Its native v3 CRDs (`projectcalico.org`, 3.32) likewise, with definitions that we rewrote. Its etcd mode is not read",
		Evidence: "`TestT3CalicoAllocatesForAnotherNode`, `TestNativeCalicoOfARealAPI`, `TestNameIsTheOneThatThePluginDetermines`, `TestAgentReportsCalicosNodeName`, `TestChurnOfRecordsIsSilent` (500 pods)",
	}},
	Mounts: []ipam.Mount{{
		Files: "`nodename` in the CNI configuration (`/etc/cni/net.d`, see host-local), then `/var/lib/calico/nodename` (or `nodename_file`), " +
			"then the name of the host: the name that Calico has for the node, as its CNI plugin determines it",
		Mount:   "`/var/lib`",
		Without: "a wrong name is not noticed as the cause of [ipam-booked-elsewhere](runbooks/ipam-booked-elsewhere.md)",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "restarts the holder, if it belongs to a Deployment, StatefulSet, DaemonSet or ReplicaSet, " +
			"and waits until there are as many as before (not for a ReplicaSet); otherwise by hand",
		BookedElsewhere: "corrects `/var/lib/calico/nodename` if the name is from there, has a person restart calico-node, then restarts the holder",
		Leaked:          "`calicoctl ipam release`, if no running pod has the address",
	},
	Runbooks: runbooks,
}
