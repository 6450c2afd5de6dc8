package netlab

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// CNI runs real CNI plugins on a host, as a container runtime does, with the result cache in
// /var/lib/cni/results.
type CNI struct {
	// Interface is the name of the interface in pods. It defaults to eth0, as with container
	// runtimes. Multus calls further interfaces net1 and so on.
	Interface string

	host *Host
	bin  string // directory of the plugins and cnitool
	name string // name of the network
}

// PTP is the network of kindnet: a routed veth for each pod, and addresses from host-local in
// /run/cni-ipam-state.
const PTP = `{"cniVersion":"1.0.0","name":"kindnet","plugins":[{"type":"ptp","ipMasq":false,"mtu":1500,
	"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.244.0.0/16"}]]}}]}`

// Bridge is the network of flannel and kubenet: all pods on one bridge with the gateway address,
// and addresses from host-local in /var/lib/cni/networks.
const Bridge = `{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,
	"ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.0.0/16"}]]}}]}`

// confDir is the directory of network configurations on the host, where container runtimes and
// ipwitness look for them.
const confDir = "/etc/cni/net.d"

// Plugins returns the directory of the plugins: IPWITNESS_CNI_BIN, or bin/cni of the repository
// that contains the working directory.
func Plugins() (string, error) {
	if dir := os.Getenv("IPWITNESS_CNI_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		bin := filepath.Join(dir, "bin/cni")
		if _, err := os.Stat(filepath.Join(bin, "cnitool")); err == nil {
			return bin, nil
		}
	}
	return "", errors.New("no CNI plugins in bin/cni: run 'make cni-plugins', or set IPWITNESS_CNI_BIN")
}

// AWSVPC returns the directory of the programs of the AWS VPC CNI: awsvpc beside the directory of the
// other plugins.
func AWSVPC() (string, error) {
	plugins, err := Plugins()
	if err != nil {
		return "", err
	}
	dir := awsVPC(plugins)
	if _, err := os.Stat(filepath.Join(dir, "ipamd")); err != nil {
		return "", fmt.Errorf("find the AWS VPC CNI: %w: run 'make aws-vpc-cni'", err)
	}
	return dir, nil
}

func awsVPC(plugins string) string { return filepath.Join(filepath.Dir(plugins), "awsvpc") }

// CNI configures a network on the host.
func (h *Host) CNI(conflist string) (*CNI, error) {
	bin, err := Plugins()
	if err != nil {
		return nil, err
	}
	var network struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal([]byte(conflist), &network); err != nil {
		return nil, fmt.Errorf("parse network configuration: %w", err)
	}
	c := &CNI{host: h, bin: bin, name: network.Name}
	if err := os.MkdirAll(h.Path(confDir), 0o755); err != nil {
		return nil, err
	}
	return c, os.WriteFile(filepath.Join(h.Path(confDir), network.Name+".conflist"), []byte(conflist), 0o644)
}

// Add creates a pod: a named network namespace that is connected to the network. In the CNI
// arguments the pod is called default/NAME, as with kubelet.
func (c *CNI) Add(pod string) error { return c.AddAs(pod, pod) }

// AddAs creates a sandbox of a pod: a named network namespace that is connected to the network,
// with the pod's name in the CNI arguments.
func (c *CNI) AddAs(sandbox, pod string) error {
	if err := c.host.Namespace(sandbox); err != nil {
		return err
	}
	return c.tool("add", sandbox, pod)
}

// Delete deletes a pod: first its network, then its namespace.
func (c *CNI) Delete(pod string) error {
	if err := c.tool("del", pod, pod); err != nil {
		return err
	}
	_, err := c.host.Run("ip netns del %s", pod)
	return err
}

func (c *CNI) tool(command, sandbox, pod string) error {
	cmd := c.host.Command(filepath.Join(c.bin, "cnitool"), command, c.name, "/run/netns/"+sandbox)
	cmd.Env = append(cmd.Env, "CNI_PATH="+c.bin+":"+awsVPC(c.bin), "NETCONFPATH="+confDir, "CNI_IFNAME="+cmp.Or(c.Interface, "eth0"),
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s;K8S_POD_UID=uid-%[1]s", pod))
	_, err := c.host.Output(cmd)
	return err
}

// Forget deletes host-local's directory, as a restore or a cleanup script might.
func (c *CNI) Forget() error {
	for _, dir := range []string{"/run/cni-ipam-state", "/var/lib/cni/networks"} {
		if err := os.RemoveAll(c.host.Path(dir)); err != nil {
			return fmt.Errorf("delete IPAM directory: %w", err)
		}
	}
	return nil
}
