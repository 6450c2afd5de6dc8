package agent

import (
	"cmp"
	"fmt"
	"os"

	"github.com/ipwitness/ipwitness/agent/workload"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
)

// Wire is the way in which the agent watches the wire.
type Wire string

// Values of Wire.
const (
	WireAuto   Wire = "auto"   // TCX where the kernel has it, clsact otherwise
	WireTCX    Wire = "tcx"    // TCX only (Linux 6.6)
	WireClsact Wire = "clsact" // a filter in the clsact qdisc
	WireOff    Wire = "off"    // netlink only
)

// Config is the configuration of an agent.
type Config struct {
	// Node is the name of this node. It is only a label. Empty: the host's name.
	Node    string
	Version string
	// Wire is how the wire is watched. Empty: auto.
	Wire Wire
	// Interfaces are globs (path.Match) of interface names to watch. Empty: all.
	Interfaces []string
	// ExcludeInterfaces are globs of interface names that are not watched.
	ExcludeInterfaces []string
	// NetnsDirs are directories with a file for each named network namespace. Empty:
	// /run/netns and /run/docker/netns.
	NetnsDirs []string
	// CNIResults is libcni's result cache. Empty: /var/lib/cni/results.
	CNIResults string
	// CNIConfig are the directories of CNI configurations. Empty: /etc/cni/net.d, and those of k3s,
	// microk8s and Nomad.
	CNIConfig []string
	// IPAMDirs are directories with a host-local directory for each network. Empty:
	// /var/lib/cni/networks, kindnet's /run/cni-ipam-state, and Nomad's /run/cni.
	IPAMDirs []string
	// CalicoDir is the directory of the file that has Calico's name for this node. Empty:
	// /var/lib/calico.
	CalicoDir string
	// CRISocket is the socket of the container runtime: a path, a unix:// URL, RuntimeAuto
	// or RuntimeOff of package workload. Empty: auto.
	CRISocket string
}

// defaults fills in empty fields. Flags refuse most invalid values, so that it returns an error only for an invalid
// CRISocket, or if the name of the host is not known.
func (c Config) defaults() (Config, error) {
	if c.Node == "" {
		name, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("get host name: %w: name the node with --node", err)
		}
		c.Node = name
	}
	c.Wire = cmp.Or(c.Wire, WireAuto)
	if len(c.NetnsDirs) == 0 {
		c.NetnsDirs = []string{"/run/netns", "/run/docker/netns"}
	}
	c.CNIResults = cmp.Or(c.CNIResults, "/var/lib/cni/results")
	if len(c.CNIConfig) == 0 {
		c.CNIConfig = []string{"/etc/cni/net.d", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/snap/microk8s/current/args/cni-network", "/opt/cni/config"}
	}
	if len(c.IPAMDirs) == 0 {
		c.IPAMDirs = []string{hostlocal.DefaultDir, "/run/cni-ipam-state", "/run/cni"}
	}
	var err error
	c.CRISocket, err = workload.ParseRuntimeSocket(c.CRISocket)
	return c, err
}
