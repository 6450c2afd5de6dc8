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

// selector says which owners are asked for.
type selector struct {
	// query is what the server is asked.
	query url.Values
	// name, if set, is the short name that owners must have besides.
	name string
	// what is the selection in words, to follow "No owner "; empty for all.
	what string
}

// Names as Kubernetes allows them: a label for namespaces, labels with dots for pods.
var (
	namespaceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	podName       = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)
)

// parseSelector recognises ADDRESS, CIDR, NAMESPACE/POD and MAC, and the short
// names of the WORKLOAD column. Eight groups of two digits are an IPv6 address,
// six are a MAC.
func parseSelector(arg string) (selector, error) {
	if arg == "" {
		return selector{}, nil
	}
	if addr, err := parseAddress(arg); err == nil {
		return selector{query: url.Values{"address": {addr.String()}}, what: "of the address " + addr.String()}, nil
	}
	if mac, err := net.ParseMAC(arg); err == nil && len(mac) == 6 {
		return selector{query: url.Values{"mac": {mac.String()}}, what: "with the MAC " + mac.String()}, nil
	}
	before, after, ok := strings.Cut(arg, "/")
	if !ok {
		return selector{}, notSelector(arg)
	}
	if _, err := netip.ParseAddr(before); err == nil {
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			return selector{}, fmt.Errorf("%q is not a CIDR: want the number of mask bits after the slash, like 10.244.0.0/16", arg)
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

// keep tells whether an owner that the server sent is asked for.
func (s selector) keep(o *pb.Owner) bool { return s.name == "" || show.Name(o) == s.name }

// parseAddress parses an address. A zone is a name on one host and is left out.
func parseAddress(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	return addr.Unmap().WithZone(""), err
}

func notSelector(arg string) error {
	return fmt.Errorf("%q is neither an address (10.244.0.7), a CIDR (10.244.0.0/16), a pod (NAMESPACE/POD) nor a MAC (0a:58:0a:f4:00:07)", arg)
}

// conflictID is what an id looks like: it has no dot and no colon, so that it
// is never an address.
var conflictID = regexp.MustCompile(`^[a-z0-9]+$`)

// idOrAddress recognises the argument of conflicts and explain; one of id and
// address is empty.
func idOrAddress(arg string) (id, address string, err error) {
	if addr, err := parseAddress(arg); err == nil {
		return "", addr.String(), nil
	}
	if conflictID.MatchString(arg) {
		return arg, "", nil
	}
	return "", "", fmt.Errorf("%q is neither the id of a conflict (small letters and digits) nor an address (10.244.0.7)", arg)
}
