package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Sandbox is a pod, as the container runtime describes it. It is never changed.
type Sandbox struct {
	ID       string
	Path     string                // of its network namespace, normalized by ipam.CleanPath; empty if unknown
	Process  Process               // its first process, if the path is unknown
	Workload *ipwitnessv1.Workload // nil if the sandbox is in the node's own network
	IPs      []netip.Addr          // its addresses, as far as the runtime knows
	Unparsed error                 // another address cannot be parsed
}

const (
	// maxInfo and maxIPs are more than a runtime returns for one sandbox.
	maxInfo = 1 << 20
	maxIPs  = 16
	// PodInterface is the interface whose addresses CRI runtimes return.
	PodInterface = "eth0"
)

// kubeVirtLabels are labels with the name of the virtual machine of a pod. The first one that
// a pod has counts.
var kubeVirtLabels = []string{"vm.kubevirt.io/name", "kubevirt.io/domain"}

// errNotReady is returned for a sandbox that has ended or is not ready yet.
var errNotReady = errors.New("the sandbox is not ready")

// parseSandbox parses the answer to a verbose PodSandboxStatus.
func parseSandbox(r *runtimev1.PodSandboxStatusResponse) (*Sandbox, error) {
	s := r.GetStatus()
	if s.GetState() != runtimev1.PodSandboxState_SANDBOX_READY {
		return nil, errNotReady
	}
	out := &Sandbox{ID: s.GetId()}
	if s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimev1.NamespaceMode_NODE {
		return out, nil
	}
	m := s.GetMetadata()
	w := &ipwitnessv1.Workload{
		Kind: ipwitnessv1.Workload_POD, Namespace: m.GetNamespace(), Name: m.GetName(), Uid: m.GetUid(),
		ContainerId: s.GetId(), Source: Source,
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
		// An aggregator would reject the whole message.
		if len(text) > table.MaxLength {
			return nil, fmt.Errorf("parse sandbox: a name has %d bytes, but the limit is %d", len(text), table.MaxLength)
		}
	}
	out.Workload = w
	addresses := []string{s.GetNetwork().GetIp()}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		addresses = append(addresses, more.GetIp())
	}
	for _, text := range addresses {
		switch a, err := netip.ParseAddr(text); {
		case err != nil && text != "":
			out.Unparsed = fmt.Errorf("sandbox %s: %q is not an address", out.ID, text)
		case err == nil && a.Zone() == "" && len(out.IPs) < maxIPs:
			out.IPs = append(out.IPs, a.Unmap())
		}
	}
	path, pid := sandboxNamespace(r.GetInfo()["info"])
	if out.Path = path; path == "" {
		out.Process.PID = pid
	}
	return out, nil
}

// sandboxNamespace finds the network namespace of a sandbox in the non-standard information
// of containerd and CRI-O: its path, or else a process in it.
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
		if ns.Type == "network" && strings.HasPrefix(ns.Path, "/") && len(ns.Path) <= table.MaxLength {
			path = ipam.CleanPath(ns.Path)
		}
	}
	return path, max(0, in.PID)
}
