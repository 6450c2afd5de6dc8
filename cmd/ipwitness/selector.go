package main

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// selector selects owners.
type selector struct {
	// query contains the parameters of the request.
	query url.Values
	// name, if set, is the short name that owners must have in addition.
	name string
	// what describes the selection, to follow "No owner "; empty for all owners.
	what string
}

// Names that Kubernetes allows: a label for namespaces, labels with dots for pods.
var (
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	podName       = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)
)

// parseSelector recognises ADDRESS, CIDR, NAMESPACE/POD and MAC, and the short names of the WORKLOAD
// column. Eight groups of two digits are an IPv6 address, six are a MAC.
func parseSelector(arg string) (selector, error) {
	if arg == "" {
		return selector{}, nil
	}
	if addr, err := parseAddress(arg); err == nil {
		return selector{query: url.Values{"address": {addr.String()}}, what: "of address " + addr.String()}, nil
	}
	if mac, err := net.ParseMAC(arg); err == nil && len(mac) == 6 {
		return selector{query: url.Values{"mac": {mac.String()}}, what: "with MAC " + mac.String()}, nil
	}
	before, after, ok := strings.Cut(arg, "/")
	if !ok {
		return selector{}, notSelector(arg)
	}
	if _, err := netip.ParseAddr(before); err == nil {
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return selector{}, fmt.Errorf("%q is not a CIDR: write the prefix length after the slash, like 10.244.0.0/16", arg)
		}
		return selector{query: url.Values{"cidr": {prefix.Masked().String()}}, what: "inside " + prefix.Masked().String()}, nil
	}
	switch before {
	case "container", "vm", "host", "netns":
		if after == "" || strings.Contains(after, "/") {
			return selector{}, notSelector(arg)
		}
		return selector{query: url.Values{}, name: arg, what: "is " + arg}, nil
	}
	if !namespaceName.MatchString(before) || !podName.MatchString(after) {
		return selector{}, notSelector(arg)
	}
	query := url.Values{"namespace": {before}, "pod": {after}}
	return selector{query: query, what: fmt.Sprintf("is pod %s of namespace %s", after, before)}, nil
}

// keep reports whether an owner that the server sent is selected.
func (s selector) keep(o *pb.Owner) bool { return s.name == "" || show.Name(o) == s.name }

// parseAddress parses an address. It drops a zone, which has a meaning only on one host.
func parseAddress(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	return addr.Unmap().WithZone(""), err
}

func notSelector(arg string) error {
	return fmt.Errorf("%q is neither an address (10.244.0.7), a CIDR (10.244.0.0/16), a pod (NAMESPACE/POD) nor a MAC (0a:58:0a:f4:00:07)", arg)
}

// conflictID matches the id of a conflict. It has no dot or colon, so it is never an address.
var conflictID = regexp.MustCompile(`^[a-z0-9]+$`)

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
