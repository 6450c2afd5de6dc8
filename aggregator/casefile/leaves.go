package casefile

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A leaf defines how values of one type are written as text.
type leaf struct {
	text  func(reflect.Value) string
	parse func(string) (any, error)
	// example is an example of such a text for error messages.
	example string
}

// leaves are the types that are written as text.
var leaves = map[reflect.Type]leaf{
	reflect.TypeFor[verdict.Stamp](): leafOf(stampText, parseStamp, "2026-01-02T12:00:00.000000000Z"),
	reflect.TypeFor[verdict.MAC]():   leafOf(verdict.MAC.String, parseMAC, "02:00:00:00:00:01"),
	reflect.TypeFor[time.Duration](): leafOf(time.Duration.String, time.ParseDuration, "1.5s"),
	reflect.TypeFor[netip.Addr]():    leafOf(netip.Addr.String, netip.ParseAddr, "10.0.0.1"),
	reflect.TypeFor[netip.Prefix]():  leafOf(netip.Prefix.String, netip.ParsePrefix, "10.0.0.0/24"),

	reflect.TypeFor[verdict.Evidence]():     wordOf[verdict.Evidence](pb.Evidence_Kind_name),
	reflect.TypeFor[verdict.Attachment]():   wordOf[verdict.Attachment](pb.InterfaceRecord_Attachment_name),
	reflect.TypeFor[verdict.LinkKind]():     wordOf[verdict.LinkKind](pb.LinkRecord_Kind_name),
	reflect.TypeFor[verdict.WorkloadKind](): wordOf[verdict.WorkloadKind](pb.Workload_Kind_name),
	reflect.TypeFor[verdict.ScopeKind]():    wordOf[verdict.ScopeKind](pb.Scope_Kind_name),
	reflect.TypeFor[verdict.State]():        wordOf[verdict.State](pb.Owner_State_name),
	reflect.TypeFor[verdict.Phase]():        wordOf[verdict.Phase](pb.Conflict_State_name),
	reflect.TypeFor[verdict.LinkProof]():    wordOf[verdict.LinkProof](pb.LinkProof_Kind_name),
	reflect.TypeFor[ipam.State]():           wordOf[ipam.State](pb.Pool_State_name),
	reflect.TypeFor[ipam.NameSource]():      wordOf[ipam.NameSource](pb.NodeName_Source_name),
	reflect.TypeFor[verdict.Severity]():     wordOf[verdict.Severity](pb.Finding_Severity_name),
	reflect.TypeFor[verdict.Proxy](): wordOf[verdict.Proxy](map[int32]string{
		int32(verdict.ByPlugin): "PLUGIN", int32(verdict.ByNoOverride): "NO_OVERRIDE", int32(verdict.ByManyAddresses): "MANY_ADDRESSES",
		int32(verdict.ByOwnMAC): "OWN_MAC", int32(verdict.BySeveralOwners): "SEVERAL_OWNERS",
	}),
}

func leafOf[T any](text func(T) string, parse func(string) (T, error), example string) leaf {
	return leaf{
		text:    func(v reflect.Value) string { return text(v.Interface().(T)) },
		parse:   func(s string) (any, error) { return parse(s) },
		example: example,
	}
}

// wordOf returns the leaf of an enumeration whose values are written as in the API.
func wordOf[T ~uint8](words map[int32]string) leaf {
	values := map[string]T{}
	for value, word := range words {
		values[word] = T(value)
	}
	return leafOf(func(v T) string { return words[int32(v)] }, func(s string) (T, error) {
		v, ok := values[s]
		if !ok {
			return 0, fmt.Errorf("unknown value")
		}
		return v, nil
	}, words[1])
}

const stampLayout = "2006-01-02T15:04:05.000000000Z07:00"

func stampText(s verdict.Stamp) string { return s.Time().Format(stampLayout) }

func parseStamp(s string) (verdict.Stamp, error) {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, err
	}
	if stamp := verdict.At(at); stamp.Time().Equal(at) {
		return stamp, nil
	}
	return 0, fmt.Errorf("out of range")
}

func parseMAC(s string) (verdict.MAC, error) {
	digits := strings.ReplaceAll(s, ":", "")
	raw, err := hex.DecodeString(digits)
	if err == nil && verdict.MAC(raw).String() != strings.ToLower(s) {
		err = fmt.Errorf("not a hardware address")
	}
	return verdict.MAC(raw), err
}
