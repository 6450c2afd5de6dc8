package main

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// narrowing contains the flags that filter what a server lists or sends, in addition to the argument.
type narrowing struct {
	node, namespace, cidr, mac, workload, scope, state, cause string
}

// addFlags adds the named ones of the flags. They are only taken from the command line: a variable or
// a file that names the node of an agent must not hide the owners of the others.
func (n *narrowing) addFlags(cmd *cobra.Command, of string, names ...string) {
	for _, name := range names {
		switch name {
		case "node":
			cmd.Flags().StringVar(&n.node, "node", "", of+" on the node with this `NAME`")
		case "namespace":
			cmd.Flags().VarP(cli.NewValue(&n.namespace, "NAMESPACE", parseNamespace), "namespace", "n", of+" of workloads in this Kubernetes namespace (default: all namespaces)")
		case "scope":
			cmd.Flags().Var(cli.NewValue(&n.scope, "KIND[/NAME]", parseScope), "scope", of+" in this kind of scope ("+strings.Join(scopeKinds(), ", ")+"), or in one scope, like network/pods")
		case "cidr":
			cmd.Flags().Var(cli.NewValue(&n.cidr, "CIDR", parseCIDR), "cidr", of+" with an address in this prefix")
		case "mac":
			cmd.Flags().Var(cli.NewValue(&n.mac, "MAC", parseMAC), "mac", of+" with this MAC")
		case "workload":
			cmd.Flags().Var(cli.NewValue(&n.workload, "NAMESPACE[/NAME]", parseWorkload), "workload", of+" of a Kubernetes namespace or of one workload in it")
		case "cause":
			cmd.Flags().Var(cli.NewValue(&n.cause, "CAUSE", parseCause), "cause", of+" with this cause, like "+verdict.CauseSplitBrain)
			cli.CompleteFlag(cmd, "cause", verdict.Causes())
		}
		cli.OnlyOnCommandLine(cmd, name)
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
	cmd.Flags().Var(cli.NewValue(&n.state, "STATE", parse), "state", of+" in this state: "+strings.Join(words, ", "))
	cli.CompleteFlag(cmd, "state", words)
	cli.OnlyOnCommandLine(cmd, "state")
}

// ask adds the filters to the parameters of a request. It returns an error if a filter contradicts the
// argument of the command, or another filter.
func (n *narrowing) ask(to url.Values) error {
	namespace, name, _ := strings.Cut(n.workload, "/")
	for _, filter := range []struct{ flag, parameter, text string }{
		{"node", "node", n.node},
		{"cidr", "cidr", n.cidr},
		{"mac", "mac", n.mac},
		{"workload", "namespace", namespace},
		{"workload", "pod", name},
		{"namespace", "namespace", n.namespace},
		{"scope", "scope", n.scope},
		{"state", "state", strings.ToUpper(n.state)},
		{"cause", "cause", n.cause},
	} {
		if filter.text == "" {
			continue
		}
		if other := to.Get(filter.parameter); other != "" && other != filter.text {
			return fmt.Errorf("--%s selects the %s %s, but %s is also selected: remove one of them", filter.flag, filter.parameter, filter.text, other)
		}
		to.Set(filter.parameter, filter.text)
	}
	return nil
}

// selector parses the argument of a command: as parseSelector does or, if a namespace is selected, as
// the name of a pod in it.
func (n *narrowing) selector(arg string) (selector, error) {
	sel, err := parseSelector(arg)
	if err != nil && n.namespace != "" && podName.MatchString(arg) {
		return parseSelector(n.namespace + "/" + arg)
	}
	return sel, err
}

// given returns the filters on the command line, in the form --NAME.
func (n *narrowing) given(cmd *cobra.Command) (flags []string) {
	for _, name := range []string{"node", "namespace", "workload", "cidr", "mac", "scope", "state", "cause"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			flags = append(flags, "--"+name)
		}
	}
	return flags
}

func parseNamespace(s string) (string, error) {
	if !namespaceName.MatchString(s) {
		return "", fmt.Errorf("%q is not the name of a namespace: write it like kube-system", s)
	}
	return s, nil
}

// scopeKinds returns the kinds of scopes, from narrow to wide.
func scopeKinds() (kinds []string) {
	for kind := verdict.LinkScope; kind <= verdict.NetworkScope; kind++ {
		kinds = append(kinds, strings.ToLower(kind.String()))
	}
	return kinds
}

// parseScope accepts a kind of scope, and one scope as KIND/NAME.
func parseScope(s string) (string, error) {
	kind, name, named := strings.Cut(s, "/")
	if kind = strings.ToLower(kind); !slices.Contains(scopeKinds(), kind) || named && name == "" {
		return "", fmt.Errorf("%q is not a scope: use one of %s, or one scope like network/pods", s, strings.Join(scopeKinds(), ", "))
	}
	if named {
		kind += "/" + name
	}
	return kind, nil
}

func parseCause(s string) (string, error) {
	if causes := verdict.Causes(); !slices.Contains(causes, s) {
		return "", fmt.Errorf("%q is not a cause: use one of %s", s, strings.Join(causes, ", "))
	}
	return s, nil
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
