package main

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// narrowing contains the flags that filter what a server lists or sends, in addition to the argument.
type narrowing struct {
	node, cidr, mac, workload, state, cause string
}

// addFlags adds the named ones of the flags.
func (n *narrowing) addFlags(cmd *cobra.Command, of string, names ...string) {
	for _, name := range names {
		switch name {
		case "node":
			cmd.Flags().StringVar(&n.node, "node", "", of+" on the node with this `NAME`")
		case "cidr":
			cmd.Flags().Var(value[string]{&n.cidr, "CIDR", parseCIDR}, "cidr", of+" with an address in this prefix")
		case "mac":
			cmd.Flags().Var(value[string]{&n.mac, "MAC", parseMAC}, "mac", of+" with this MAC")
		case "workload":
			cmd.Flags().Var(value[string]{&n.workload, "NAMESPACE[/NAME]", parseWorkload}, "workload", of+" of a Kubernetes namespace or of one workload in it")
		case "cause":
			cmd.Flags().StringVar(&n.cause, "cause", "", of+" with this `CAUSE`, like split-brain")
		}
	}
}

// stateFlag adds --state with the states of an enum.
func (n *narrowing) stateFlag(cmd *cobra.Command, of string, states map[string]int32, without ...string) {
	var words []string
	for word := range states {
		if !slices.Contains(without, word) {
			words = append(words, strings.ToLower(word))
		}
	}
	slices.Sort(words)
	parse := func(s string) (string, error) {
		if s = strings.ToLower(s); !slices.Contains(words, s) {
			return "", fmt.Errorf("%q is not a state: use one of %s", s, strings.Join(words, ", "))
		}
		return s, nil
	}
	cmd.Flags().Var(value[string]{&n.state, "STATE", parse}, "state", of+" in this state: "+strings.Join(words, ", "))
	if err := cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was added above
	}
}

// ask adds the filters to the parameters of a request.
func (n *narrowing) ask(to url.Values) {
	namespace, name, _ := strings.Cut(n.workload, "/")
	for parameter, text := range map[string]string{
		"node": n.node, "cidr": n.cidr, "mac": n.mac, "namespace": namespace, "pod": name, "state": strings.ToUpper(n.state), "cause": n.cause,
	} {
		if text != "" {
			to.Set(parameter, text)
		}
	}
}

func parseCIDR(s string) (string, error) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return "", fmt.Errorf("%q is not a CIDR: write it like 10.244.0.0/16 or fd00::/64", s)
	}
	return prefix.Masked().String(), nil
}

func parseMAC(s string) (string, error) {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return "", fmt.Errorf("%q is not a MAC: write it like 02:42:ac:11:00:02", s)
	}
	return mac.String(), nil
}

func parseWorkload(s string) (string, error) {
	namespace, name, named := strings.Cut(s, "/")
	if !namespaceName.MatchString(namespace) || named && !podName.MatchString(name) {
		return "", fmt.Errorf("%q is neither the name of a namespace (default) nor of a workload in one (default/web-1)", s)
	}
	return s, nil
}

// ownerState adds --state for owners; conflictState adds it for conflicts.
func (n *narrowing) ownerState(cmd *cobra.Command) {
	n.stateFlag(cmd, "owners", pb.Owner_State_value, pb.Owner_UNSPECIFIED.String(), pb.Owner_GONE.String())
}

func (n *narrowing) conflictState(cmd *cobra.Command) {
	n.stateFlag(cmd, "conflicts", pb.Conflict_State_value, pb.Conflict_UNSPECIFIED.String())
}
