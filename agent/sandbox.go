package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/files"
	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/proc"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// sandbox is what a container runtime says of one pod. It is never changed.
type sandbox struct {
	id       string
	path     string                // of its network namespace, as names has it; empty: not told
	process  proc.Process          // its first one, where no path is told
	workload *ipwitnessv1.Workload // nil: it is in the node's own network
	ips      []netip.Addr          // that the runtime believes it has
}

const (
	// maxInfo and maxIPs are more than a runtime has to say of one sandbox.
	maxInfo = 1 << 20
	maxIPs  = 16
	// podInterface is what CRI runtimes call the interface whose addresses they tell.
	podInterface = "eth0"
)

// kubeVirtLabels name the virtual machine of a pod; the first one that it has counts.
var kubeVirtLabels = []string{"vm.kubevirt.io/name", "kubevirt.io/domain"}

// errNotReady says that a sandbox has ended, or is not there yet.
var errNotReady = errors.New("the sandbox is not ready")

// parseSandbox reads the answer to PodSandboxStatus, asked to be verbose.
func parseSandbox(r *runtimev1.PodSandboxStatusResponse) (*sandbox, error) {
	s := r.GetStatus()
	if s.GetState() != runtimev1.PodSandboxState_SANDBOX_READY {
		return nil, errNotReady
	}
	out := &sandbox{id: s.GetId()}
	if s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimev1.NamespaceMode_NODE {
		return out, nil
	}
	m := s.GetMetadata()
	w := &ipwitnessv1.Workload{
		Kind: ipwitnessv1.Workload_POD, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
		ContainerId: s.GetId(), Source: sourceCRI,
	}
	for _, label := range kubeVirtLabels {
		if w.VirtualMachine == "" {
			w.VirtualMachine = s.GetLabels()[label]
		}
	}
	if w.GetName() == "" || w.GetContainerId() == "" {
		return nil, errors.New("parse sandbox: it has no name or no id")
	}
	for _, text := range []string{w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId(), w.GetVirtualMachine()} {
		// An aggregator would refuse all that the node tells.
		if len(text) > form.MaxLength {
			return nil, fmt.Errorf("parse sandbox: a name has %d bytes, %d are possible", len(text), form.MaxLength)
		}
	}
	out.workload = w
	out.ips = sandboxIPs(s.GetNetwork())
	path, pid := sandboxNamespace(r.GetInfo()["info"])
	if out.path = path; path == "" {
		out.process.PID = pid
	}
	return out, nil
}

// sandboxIPs gives the addresses in a status, each once.
func sandboxIPs(n *runtimev1.PodSandboxNetworkStatus) (ips []netip.Addr) {
	add := func(text string) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || len(ips) == maxIPs {
			return
		}
		ips = append(ips, a.Unmap())
	}
	add(n.GetIp())
	for _, more := range n.GetAdditionalIps() {
		add(more.GetIp())
	}
	return ips
}

// sandboxNamespace finds a network namespace in what containerd and CRI-O say of
// a sandbox beyond the standard: by its path, or else by a process in it.
func sandboxNamespace(info string) (path string, pid int) {
	if len(info) > maxInfo {
		return "", 0
	}
	var in struct {
		PID         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct {
					Type string `json:"type"`
					Path string `json:"path"`
				} `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(info), &in); err != nil {
		return "", 0
	}
	for _, ns := range in.RuntimeSpec.Linux.Namespaces {
		if ns.Type == "network" && strings.HasPrefix(ns.Path, "/") && len(ns.Path) <= form.MaxLength {
			path = files.Clean(ns.Path)
		}
	}
	return path, max(0, in.PID)
}
