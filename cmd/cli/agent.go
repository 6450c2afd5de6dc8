//go:build linux

package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/agent/workload"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
)

// AgentFlags adds the flags of an agent.
func AgentFlags(cmd *cobra.Command, cfg *agent.Config) {
	fs := cmd.Flags()
	hostname, _ := os.Hostname() // without a hostname, the agent requires --node
	cfg.Node = form.Node.Correct(hostname)
	cfg.Node = strings.ReplaceAll(cfg.Node, string(advice.Replaced), "-")
	cfg.Node = strings.TrimLeft(cfg.Node, "-._")
	fs.Var(NewValue(&cfg.Node, "NAME", parseNode), "node", "name of this node (default: the hostname)")
	ChoiceFlag(cmd, &cfg.Wire, "wire", "", "method to watch frames; auto is tcx if the kernel supports it (Linux 6.6)",
		agent.WireAuto, agent.WireTCX, agent.WireClsact, agent.WireOff)
	globsFlag(fs, &cfg.Interfaces, "interfaces", "interfaces to watch frames on, by name (default all)")
	fs.StringVar(&cfg.CRISocket, "cri-socket", workload.RuntimeAuto, "CRI socket of the container runtime: auto, off or a `PATH`")
	globsFlag(fs, &cfg.ExcludeInterfaces, "exclude-interfaces", "interfaces not to watch frames on, by name (default none)")
}

// parseNode parses the name of a node.
func parseNode(s string) (string, error) {
	if s, err := ParseName(s); err != nil || form.Node.Has(s) {
		return s, err
	}
	return "", fmt.Errorf("%q is not a valid node name: use letters, digits, -, _ and ., and begin with a letter or digit", s)
}
