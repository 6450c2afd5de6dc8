package aggregator

import (
	"encoding/hex"
	"net/netip"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// filter chooses owners. What is not set matches all.
type filter struct {
	addr                 netip.Addr
	prefix               netip.Prefix
	node, namespace, pod string
	mac                  verdict.MAC
}

// filtering is a request that has the fields of a filter.
type filtering interface {
	GetAddress() string
	GetCidr() string
	GetNode() string
	GetNamespace() string
	GetPod() string
	GetMac() string
}

func newFilter(q filtering) (f filter, err error) {
	f.node, f.namespace, f.pod = q.GetNode(), q.GetNamespace(), q.GetPod()
	if f.addr, err = optionalAddress(q.GetAddress()); err != nil {
		return f, err
	}
	if text := q.GetCidr(); text != "" {
		if f.prefix, err = netip.ParsePrefix(text); err != nil {
			return f, status.Errorf(codes.InvalidArgument, "%q is not a prefix: give one like 10.244.0.0/16 or fd00::/64", text)
		}
		f.prefix = unmap(f.prefix)
	}
	if text := q.GetMac(); text != "" {
		var ok bool
		if f.mac, ok = parseMAC(text); !ok {
			return f, status.Errorf(codes.InvalidArgument, "%q is not a hardware address: give one like 02:42:ac:11:00:02", text)
		}
	}
	return f, nil
}

// parseAddress reads one IP address in any notation; zones are left out.
func parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, status.Errorf(codes.InvalidArgument, "%q is not an address: give one like 10.244.1.5 or fd00::5", text)
	}
	return a.Unmap().WithZone(""), nil
}

func optionalAddress(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	return parseAddress(text)
}

// unmap is what a prefix of IPv4 addresses in IPv6 notation means.
func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// parseMAC reads a hardware address in any usual notation:
// 02:42:ac:11:00:02, 02-42-AC-11-00-02, 0242.ac11.0002, 0242ac110002.
func parseMAC(text string) (verdict.MAC, bool) {
	raw, err := hex.DecodeString(strings.NewReplacer(":", "", "-", "", ".", "").Replace(text))
	return verdict.MAC(raw), err == nil && len(raw) >= 6 && len(raw) <= 32
}

// address tells whether an address can match.
func (f *filter) address(a netip.Addr) bool {
	return (!f.addr.IsValid() || f.addr == a) && (!f.prefix.IsValid() || f.prefix.Contains(a))
}

// owner tells whether an owner of a matching address matches. Its node's name is
// told apart, as that may change.
func (f *filter) owner(o *verdict.Owner, node string) bool {
	if f.node != "" && f.node != node {
		return false
	}
	if f.namespace != "" || f.pod != "" {
		if namespace, name := o.Named(); f.namespace != "" && f.namespace != namespace || f.pod != "" && f.pod != name {
			return false
		}
	}
	if f.mac == "" || f.mac == o.MAC {
		return true
	}
	for _, c := range o.Claims {
		if f.mac == c.MAC {
			return true
		}
	}
	return false
}

// event is what an event is to a watcher with this filter, and whether it is
// one: an owner that matches no longer is gone for it, one that begins to is new.
func (f *filter) event(e *event) (typ watchType, ok bool) {
	if e.owner == nil {
		return e.typ, true
	}
	if !f.address(e.addr) {
		return e.typ, false
	}
	is := f.owner(&e.holder.owner, e.holder.node)
	was := is
	if e.typ == updated {
		was = f.owner(&e.before.owner, e.before.node)
	}
	switch {
	case is && !was:
		return added, true
	case was && !is:
		return removed, true
	}
	return e.typ, is
}

// any tells whether one of the owners of a matching address matches.
func (f *filter) any(owners []verdict.Owner) bool {
	for i := range owners {
		if f.owner(&owners[i], owners[i].Node.Name) {
			return true
		}
	}
	return false
}
