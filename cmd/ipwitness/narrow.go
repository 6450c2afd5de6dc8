package main

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// narrowing contains the filters of what a server lists or sends, by the names of their flags. They are only taken from
// the command line: a variable or a file that names the node of an agent must not hide the owners of the others.
type narrowing map[string]*string

// addFilters adds the named filters of a list of items. states are the values of the filter state.
func (q *query) addFilters(cmd *cobra.Command, of string, states map[string]int32, names ...string) {
	q.filters = narrowing{}
	for _, name := range names {
		to := new(string)
		q.filters[name] = to
		add := func(short, kind, usage string, parse func(string) (string, error), known ...source) {
			cmd.Flags().VarP(cli.NewValue(to, kind, parse), name, short, of+" "+usage)
			if len(known) > 0 {
				cli.CompleteFlagWith(cmd, name, q.complete(known...))
			}
		}
		switch name { // the server checks what could be written in several ways
		case "node":
			add("", "NAME", "on the node with this name", parseText, nodeNames)
		case "namespace":
			add("n", "NAMESPACE", "of workloads in this Kubernetes namespace (default: all namespaces)", parseNamespace, namespaces)
		case "scope":
			add("", "KIND[/NAME]", "in this kind of scope ("+strings.Join(scopeKinds(), ", ")+"), or in one scope, like network/pods", parseText, scopes)
		case "cidr":
			add("", "CIDR", "with an address in this prefix", parseText)
		case "mac":
			add("", "MAC", "with this MAC", parseText)
		case "workload":
			add("", "NAMESPACE[/NAME]", "of a Kubernetes namespace or of one workload in it", parseWorkload, workloads)
		case "incident":
			add("", "ID", "of the incident with this id", parseText, incidentIDs)
		case "cause":
			wordFlag(cmd, to, name, "CAUSE", of+" with this cause, like "+verdict.CauseSplitBrain, "a cause", verdict.Causes())
		case "state":
			words := lowerWords(states, pb.Owner_UNSPECIFIED.String(), pb.Owner_GONE.String())
			wordFlag(cmd, to, name, "STATE", of+" in this state: "+strings.Join(words, ", "), "a state", words)
		}
		cli.OnlyOnCommandLine(cmd, name)
	}
}

// wordFlag adds a flag for one of several words, and completes it. what is the kind of the words.
func wordFlag(cmd *cobra.Command, to *string, name, kind, usage, what string, words []string) {
	cmd.Flags().Var(cli.NewValue(to, kind, func(s string) (string, error) {
		if s = strings.ToLower(s); !slices.Contains(words, s) {
			return "", fmt.Errorf("%q is not %s: use one of %s", s, what, strings.Join(words, ", "))
		}
		return s, nil
	}), name, usage)
	cli.CompleteFlag(cmd, name, words)
}

// lowerWords returns the values of an enum as words, in order.
func lowerWords(values map[string]int32, without ...string) (words []string) {
	for word := range values {
		if !slices.Contains(without, word) {
			words = append(words, strings.ToLower(word))
		}
	}
	return slices.Sorted(slices.Values(words))
}

func (n narrowing) get(name string) string {
	if value := n[name]; value != nil {
		return *value
	}
	return ""
}

// given returns the filters that are set, in the form --NAME.
func (n narrowing) given() (flags []string) {
	for _, name := range slices.Sorted(maps.Keys(n)) {
		if n.get(name) != "" {
			flags = append(flags, "--"+name)
		}
	}
	return flags
}

// ask adds the filters to the parameters of a request. It returns an error if a filter contradicts the
// argument of the command, or another filter.
func (n narrowing) ask(to url.Values) error {
	namespace, name, _ := strings.Cut(n.get("workload"), "/")
	for _, filter := range [][3]string{
		{"node", "node", n.get("node")},
		{"cidr", "cidr", n.get("cidr")},
		{"mac", "mac", n.get("mac")},
		{"workload", "namespace", namespace},
		{"workload", "pod", name},
		{"namespace", "namespace", n.get("namespace")},
		{"scope", "scope", n.get("scope")},
		{"state", "state", n.get("state")},
		{"cause", "cause", n.get("cause")},
		{"incident", "incident", n.get("incident")},
	} {
		flag, parameter, text := filter[0], filter[1], filter[2]
		if text == "" {
			continue
		}
		if other := to.Get(parameter); other != "" && other != text {
			return fmt.Errorf("--%s selects the %s %s, but %s is also selected: remove one of them", flag, parameter, text, other)
		}
		to.Set(parameter, text)
	}
	return nil
}

// Names that Kubernetes allows: a label for namespaces, labels with dots for pods.
var (
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	podName       = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)
)

// parseText accepts any text that is not empty.
func parseText(s string) (string, error) {
	if s == "" {
		return "", errors.New("it is empty: give a value, or leave the flag out")
	}
	return s, nil
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

func parseWorkload(s string) (string, error) {
	namespace, name, named := strings.Cut(s, "/")
	if !namespaceName.MatchString(namespace) || named && !podName.MatchString(name) {
		return "", fmt.Errorf("%q is neither the name of a namespace (default) nor of a workload in one (default/web-1)", s)
	}
	return s, nil
}
