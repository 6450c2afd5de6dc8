package api

import (
	"encoding/hex"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// podName matches NAMESPACE/POD as Kubernetes allows it: a label, and labels with dots.
var podName = regexp.MustCompile(`^([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)/([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)$`)

// digitsOnly matches what is no name, but a part of an address.
var digitsOnly = regexp.MustCompile(`^[0-9]*\.[0-9.]*$`)

// workloadWords begin the names of workloads that are no pods, as tables print them.
var workloadWords = []string{"container", "vm", "host", "netns", "process", "pod-uid"}

// about restricts the filter to a thing that a user names. It is the only place that decides what a name means: an address,
// a prefix, a MAC, NAMESPACE/POD or KIND/NAME is recognised by its form. Any other word is the ID of a conflict, finding or
// incident, a node, or a part of the name of a workload. Things of several forms restrict it together.
func (f *filter) about(text string) (err error) {
	text, _, _ = strings.Cut(text, " (") // as tables print a process, or an owner in one of several namespaces
	for word := range strings.FieldsSeq(text) {
		if err == nil {
			err = f.add(word)
		}
	}
	return err
}

// add restricts the filter to one thing.
func (f *filter) add(text string) (err error) {
	if name, node, on := strings.Cut(text, "@"); on && strings.Contains(name, "/") { // as tables print owners of one name
		if f.node, err = chosen(f.node, node, literal); err != nil {
			return err
		}
		text = name
	}
	before, after, parted := strings.Cut(text, "/")
	if before == "external" || before == "mac" { // as tables print a device
		text, parted = after, false
	}
	if _, failed := netip.ParseAddr(text); failed == nil {
		f.addr, err = chosen(f.addr, text, ParseAddress)
		return err
	}
	if mac, failed := net.ParseMAC(text); failed == nil && len(mac) == 6 {
		f.mac, err = chosen(f.mac, text, parseMAC)
		return err
	}
	if _, failed := netip.ParseAddr(before); failed == nil && parted {
		f.prefix, err = chosen(f.prefix, text, parsePrefix)
		return err
	}
	if pod := podName.FindStringSubmatch(text); pod != nil && !slices.Contains(workloadWords, before) {
		if f.namespace, err = chosen(f.namespace, pod[1], literal); err == nil {
			f.pod, err = chosen(f.pod, pod[2], literal)
		}
		return err
	}
	workload := slices.Contains(workloadWords, before) && after != "" && !strings.Contains(after, "/")
	if parted && !workload || strings.Contains(text, ":") || digitsOnly.MatchString(text) {
		return status.Errorf(codes.InvalidArgument, "%q is neither an address (10.244.0.7), a prefix (10.244.0.0/16), a MAC (0a:58:0a:f4:00:07), "+
			"a pod (NAMESPACE/POD), another workload (%s/NAME), an ID, a node nor a part of a name", text, strings.Join(workloadWords, "/NAME, "))
	}
	f.word, err = chosen(f.word, text, literal)
	return err
}

func literal(text string) (string, error) { return text, nil }

// chosen returns the value of a text. It is an error if another one is selected already.
func chosen[T comparable](already T, text string, parse func(string) (T, error)) (T, error) {
	value, err := parse(text)
	if none := *new(T); err == nil && already != none && already != value {
		err = status.Errorf(codes.InvalidArgument, "%v is selected, and %s, too: omit one of them", already, text)
	}
	return value, err
}

// parseMAC parses a hardware address in any usual notation: 02:42:ac:11:00:02, 02-42-AC-11-00-02, 0242.ac11.0002,
// 0242ac110002.
func parseMAC(text string) (verdict.MAC, error) {
	raw, err := hex.DecodeString(strings.NewReplacer(":", "", "-", "", ".", "").Replace(text))
	if err != nil || len(raw) < 6 || len(raw) > 32 {
		return "", status.Errorf(codes.InvalidArgument, "%q is not a hardware address: give one like 02:42:ac:11:00:02", text)
	}
	return verdict.MAC(raw), nil
}

// parsePrefix parses a prefix, and masks it.
func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, status.Errorf(codes.InvalidArgument, "%q is not a prefix: give one like 10.244.0.0/16 or fd00::/64", text)
	case p.Addr().Is4In6():
		return p, status.Errorf(codes.InvalidArgument, "%s has IPv6 addresses of their own, whose owners are not compared: ask for %s", p, Unmap(p))
	}
	return p.Masked(), nil
}

// meaning returns the filter for the owners of an item with some IDs. If the word of the filter is one of them, it says nothing
// about the owners.
func (f filter) meaning(ids ...string) *filter {
	if slices.Contains(ids, f.word) {
		f.word = ""
	}
	return &f
}

// means reports whether the word of the filter means an owner, on a node: by its node or name.
func (f *filter) means(o *verdict.Owner, node string) bool {
	return f.word == "" || f.meansRecorded(live.NamesOf(o, node))
}

// meansRecorded is like means, for a recorded owner.
func (f *filter) meansRecorded(o *pb.Owner) bool {
	return f.word == "" || f.word == o.GetNode() || f.partOf(pb.OwnerName(o))
}

// partOf reports whether the word is a part of a name. A word with a slash is a whole name, and a number is not part of a longer
// one: web-1 is no part of web-10.
func (f *filter) partOf(name string) bool {
	if f.word == "" {
		return true
	}
	if strings.Contains(f.word, "/") {
		return f.word == name
	}
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	for at, rest := 0, name; ; {
		i := strings.Index(rest, f.word)
		if i < 0 {
			return false
		}
		at += i
		end := at + len(f.word)
		cut := at > 0 && digit(name[at-1]) && digit(name[at]) || end < len(name) && digit(name[end-1]) && digit(name[end])
		if !cut {
			return true
		}
		at++
		rest = name[at:]
	}
}
