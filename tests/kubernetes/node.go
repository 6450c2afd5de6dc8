package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/tests/containerd"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Node is a machine with a container runtime and a kubelet.
type Node struct {
	*netlab.Host
	// Name is the name of the Node object.
	Name string
	// Address is the InternalIP of the node, on mgmt, its cable to the control plane.
	Address string
	// Runtime is the node's containerd.
	Runtime *containerd.Containerd

	cluster *Cluster
	kubelet *daemon
}

func nodeName(number int) string { return "node" + strconv.Itoa(number) }

// Uplink is a node's end of its cable to the control plane.
const Uplink = "mgmt"

// newNode creates a machine and connects it to the control plane.
func (c *Cluster) newNode(number int) (*Node, error) {
	h, err := netlab.NewMachine(nodeName(number))
	if err != nil {
		return nil, err
	}
	gateway := netip.AddrFrom4([4]byte{198, 18, 1, byte(2 * number)})
	n := &Node{Host: h, Name: nodeName(number), Address: gateway.Next().String(), cluster: c}
	far := n.Name
	err = errors.Join(
		h.Boot(fmt.Sprintf("c1a5%04d-0000-4000-8000-000000000000", number)),
		h.Cable(Uplink, c.Host, far))
	if err != nil {
		h.Close()
		return nil, err
	}
	for _, line := range []struct {
		on   *netlab.Host
		line string
	}{
		{c.Host, fmt.Sprintf("ip addr add %s peer %s dev %s", gateway, n.Address, far)},
		{h, fmt.Sprintf("ip addr add %s peer %s dev %s", n.Address, gateway, Uplink)},
		{h, fmt.Sprintf("ip route add default via %s dev %s", gateway, Uplink)},
	} {
		if _, err := line.on.Run("%s", line.line); err != nil {
			h.Close()
			return nil, err
		}
	}
	return n, nil
}

func (n *Node) startRuntime(ctx context.Context) (err error) {
	n.Runtime, err = containerd.Start(ctx, n.Host, containerd.Options{Bin: n.cluster.options.Containerd, Network: n.cluster.options.Network})
	if err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	return nil
}

const kubeletConfig = "/etc/kubernetes/kubelet.yaml"

// tunables replaces files to which kubelet writes by plain files, because the real ones apply to
// the whole kernel.
const tunables = `
	for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
		mkdir -p $(dirname /run/sysctl/$f)
		cat /proc/sys/$f >/run/sysctl/$f
		mount --bind /run/sysctl/$f /proc/sys/$f
	done`

// startKubelet configures kubelet and starts it.
func (n *Node) startKubelet() error {
	if _, err := n.Output(n.Command("sh", "-euc", tunables)); err != nil {
		return err
	}
	if _, err := n.cluster.Kubeconfig(n.Name, n.Name); err != nil {
		return err
	}
	// All nodes share the cgroups of the kernel. Without its own cgroup root, each kubelet would
	// kill the pods of the others.
	err := write(n.Host, kubeletConfig, fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: %s
containerRuntimeEndpoint: unix://%s
failSwapOn: false
failCgroupV1: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {}
localStorageCapacityIsolation: false
readOnlyPort: 0
serverTLSBootstrap: false
syncFrequency: 10s
clusterDNS: [%s]
clusterDomain: %s
nodeStatusUpdateFrequency: 5s
resolvConf: ""
`, n.Cgroup(), containerd.Socket, Address, Domain))
	if err != nil {
		return err
	}
	return n.RestartKubelet()
}

// KillKubelet kills kubelet as in an accident: pods continue to run without supervision.
func (n *Node) KillKubelet() { n.kubelet.kill() }

// RestartKubelet starts kubelet after KillKubelet. It does not wait.
func (n *Node) RestartKubelet() (err error) {
	n.kubelet, err = n.cluster.begin(n.Host, "kubelet", "--config="+kubeletConfig, "--kubeconfig=/run/kubernetes/"+n.Name+".conf",
		"--hostname-override="+n.Name, "--node-ip="+n.Address, "--v=2")
	return err
}

// Forget deletes the state of host-local on the node, so that host-local allocates the
// first addresses of its range again.
func (n *Node) Forget() error { return n.forget("/var/lib/cni/networks") }

// forget deletes a directory. Kubelet repeatedly makes host-local release allocations of pods that
// have ended, which may write files meanwhile; they are deleted, too.
func (n *Node) forget(dir string) error {
	for {
		if err := os.RemoveAll(n.Path(dir)); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
}

// Sandbox is a sandbox of a pod in the container runtime.
type Sandbox struct {
	ID string
	// PID is the PID of the pause process, in the node's PID namespace.
	PID int
}

// Sandboxes returns the ready sandboxes of a pod: one, except for short periods.
func (n *Node) Sandboxes(ctx context.Context, uid string) ([]Sandbox, error) {
	cri := n.Runtime.Runtime()
	list, err := cri.ListPodSandbox(ctx, &runtimev1.ListPodSandboxRequest{Filter: &runtimev1.PodSandboxFilter{
		State:         &runtimev1.PodSandboxStateValue{State: runtimev1.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid},
	}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var all []Sandbox
	for _, i := range list.GetItems() {
		status, err := cri.PodSandboxStatus(ctx, &runtimev1.PodSandboxStatusRequest{PodSandboxId: i.GetId(), Verbose: true})
		if err != nil {
			return nil, fmt.Errorf("ask for a sandbox: %w", err)
		}
		pid, err := pidOf(status.GetInfo())
		if err != nil {
			return nil, err
		}
		all = append(all, Sandbox{ID: i.GetId(), PID: pid})
	}
	return all, nil
}

// ContainerPIDs returns the PIDs of the first processes of a pod's running containers.
func (n *Node) ContainerPIDs(ctx context.Context, uid string) ([]int, error) {
	cri := n.Runtime.Runtime()
	list, err := cri.ListContainers(ctx, &runtimev1.ListContainersRequest{Filter: &runtimev1.ContainerFilter{
		State:         &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid},
	}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var all []int
	for _, c := range list.GetContainers() {
		status, err := cri.ContainerStatus(ctx, &runtimev1.ContainerStatusRequest{ContainerId: c.GetId(), Verbose: true})
		if err != nil {
			return nil, fmt.Errorf("ask for a container: %w", err)
		}
		pid, err := pidOf(status.GetInfo())
		if err != nil {
			return nil, err
		}
		all = append(all, pid)
	}
	return all, nil
}

// pidOf parses the verbose information of containerd.
func pidOf(info map[string]string) (int, error) {
	var more struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &more); err != nil {
		return 0, fmt.Errorf("parse containerd's list of sandboxes: %w", err)
	}
	return more.PID, nil
}

// Close ends the node and everything that runs on it, without notifying the control plane.
func (n *Node) Close() {
	if n.kubelet != nil {
		n.kubelet.kill()
	}
	if n.Runtime != nil {
		_ = n.Runtime.Close()
	}
	n.Host.Close()
}
