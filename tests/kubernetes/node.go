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
	// Name is that of the Node object.
	Name string
	// Address is its InternalIP, on its cable to the control plane, mgmt.
	Address string
	// Runtime is its containerd.
	Runtime *containerd.Containerd

	cluster *Cluster
	kubelet *daemon
}

func nodeName(number int) string { return "node" + strconv.Itoa(number) }

// Uplink is a node's end of its cable to the control plane.
const Uplink = "mgmt"

// newNode makes a machine and joins it to the control plane.
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

// tunables are what kubelet writes to, which is the whole kernel's: it finds plain
// files in their places.
const tunables = `
	for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
		mkdir -p $(dirname /run/sysctl/$f)
		cat /proc/sys/$f >/run/sysctl/$f
		mount --bind /run/sysctl/$f /proc/sys/$f
	done`

// startKubelet configures kubelet, and starts it.
func (n *Node) startKubelet() error {
	if _, err := n.Output(n.Command("sh", "-euc", tunables)); err != nil {
		return err
	}
	if _, err := n.cluster.Kubeconfig(n.Name, n.Name); err != nil {
		return err
	}
	// Both nodes share the kernel's cgroups: without a root of its own, each
	// kubelet would kill the pods of the other.
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

// KillKubelet kills kubelet as an accident would: pods live on, and nobody looks
// after them.
func (n *Node) KillKubelet() { n.kubelet.kill() }

// RestartKubelet starts kubelet after KillKubelet. It does not wait.
func (n *Node) RestartKubelet() (err error) {
	n.kubelet, err = n.cluster.begin(n.Host, "kubelet", "--config="+kubeletConfig, "--kubeconfig=/run/kubernetes/"+n.Name+".conf",
		"--hostname-override="+n.Name, "--node-ip="+n.Address, "--v=2")
	return err
}

// Forget deletes what host-local knows on the node, the accident of the blog post:
// it gives out its first addresses again.
func (n *Node) Forget() error { return n.forget("/var/lib/cni/networks") }

// forget deletes a directory. Kubelet has host-local release from time to time what is
// long released: what it writes meanwhile is deleted, too.
func (n *Node) forget(dir string) error {
	for {
		if err := os.RemoveAll(n.Path(dir)); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
}

// Sandbox is what the container runtime has of a pod.
type Sandbox struct {
	ID string
	// PID is that of the pause process, in the node's PID namespace.
	PID int
}

// Sandboxes gives those of a pod that are ready: one, but for a short while.
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

// ContainerPIDs gives the first processes of a pod's containers that run.
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

// pidOf reads what containerd tells when it is asked for all.
func pidOf(info map[string]string) (int, error) {
	var more struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &more); err != nil {
		return 0, fmt.Errorf("parse what containerd tells: %w", err)
	}
	return more.PID, nil
}

// Close ends the node and all that runs on it, without telling the control plane.
func (n *Node) Close() {
	if n.kubelet != nil {
		n.kubelet.kill()
	}
	if n.Runtime != nil {
		_ = n.Runtime.Close()
	}
	n.Host.Close()
}
