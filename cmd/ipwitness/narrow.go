package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
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
		if other := to.Get(parameter); other != "" && spelled(other) != spelled(text) {
			return fmt.Errorf("--%s selects the %s %s, but %s is also selected: remove one of them", flag, parameter, text, other)
		}
		to.Set(parameter, text)
	}
	return nil
}

// spelled returns the usual spelling of a MAC or of a CIDR, and any other text as it is.
func spelled(text string) string {
	if mac, err := net.ParseMAC(text); err == nil {
		return mac.String()
	}
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Masked().String()
	}
	return text
}

// Names that Kubernetes allows: a label for namespaces, labels with dots for pods.
var (
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	podName       = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)
	// nodeName matches names of nodes and ids of findings.
	nodeName = regexp.MustCompile(`^[A-Za-z0-9][-_.@A-Za-z0-9]*$`)
	// conflictID matches the id of a conflict. It has no dot or colon, so it is never an address.
	conflictID = regexp.MustCompile(`^[a-z0-9]+$`)
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

// selector selects owners.
type selector struct {
	// query contains the parameters of the request.
	query url.Values
	// name, if set, is the short name that owners must have in addition.
	name string
	// what describes the selection, to follow "No owner "; empty for all owners.
	what string
}

// parseSelector recognises ADDRESS, CIDR, NAMESPACE/POD and MAC, and the short names of the WORKLOAD
// column. Eight groups of two digits are an IPv6 address, six are a MAC.
func parseSelector(arg string) (selector, error) {
	if arg == "" {
		return selector{query: url.Values{}}, nil
	}
	if addr, err := parseAddress(arg); err == nil {
		return selector{query: url.Values{"address": {addr.String()}}, what: "of address " + addr.String()}, nil
	}
	if mac, err := net.ParseMAC(arg); err == nil && len(mac) == 6 {
		return selector{query: url.Values{"mac": {mac.String()}}, what: "with MAC " + mac.String()}, nil
	}
	before, after, _ := strings.Cut(arg, "/")
	if _, err := netip.ParseAddr(before); err == nil {
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return selector{}, fmt.Errorf("%q is not a CIDR: write the prefix length after the slash, like 10.244.0.0/16", arg)
		}
		return selector{query: url.Values{"cidr": {prefix.Masked().String()}}, what: "inside " + prefix.Masked().String()}, nil
	}
	if slices.Contains([]string{"container", "vm", "host", "netns"}, before) && after != "" && !strings.Contains(after, "/") {
		return selector{query: url.Values{}, name: arg, what: "matches " + arg}, nil
	}
	if !namespaceName.MatchString(before) || !podName.MatchString(after) {
		return selector{}, notSelector(arg)
	}
	query := url.Values{"namespace": {before}, "pod": {after}}
	return selector{query: query, what: fmt.Sprintf("matches pod %s/%s", before, after)}, nil
}

// keep reports whether an owner that the server sent is selected.
func (s selector) keep(o *pb.Owner) bool { return s.name == "" || show.Name(o) == s.name }

// parseAddress parses an address. It drops a zone, which has a meaning only on one host.
func parseAddress(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	return addr.WithZone(""), err
}

// notSelector returns the error for an argument that selects no owners.
func notSelector(arg string) error {
	return fmt.Errorf("%q is neither an address (10.244.0.7), a CIDR (10.244.0.0/16), a pod (NAMESPACE/POD) nor a MAC (0a:58:0a:f4:00:07)", arg)
}

// idOrAddress parses the argument of conflicts and explain. One of id and address is empty.
func idOrAddress(arg string) (id, address string, err error) {
	if addr, err := parseAddress(arg); err == nil {
		return "", addr.String(), nil
	}
	if conflictID.MatchString(arg) {
		return arg, "", nil
	}
	return "", "", fmt.Errorf("%q is neither the id of a conflict (lower-case letters and digits) nor an address (10.244.0.7)", arg)
}
