package report

import (
	"bytes"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	maxSnapshot = 256 << 20 // bytes; several times the snapshot of the largest node
	maxText     = 1024      // bytes of a problem
	maxRanges   = 1024      // ranges of a pool
	maxFlooding = 256       // ports of a node
)

// Limits for one namespace. They exceed what any real namespace has.
const (
	maxSources  = 32
	maxIntended = 256
	maxWord     = facts.MaxWord // bytes of a field, source or interface
)

// validate returns an error for a report that no version of the agent sends. Single fields have
// been checked by rules. Records of a newer agent that are not known are dropped and counted later.
func validate(m *pb.ReportRequest) error {
	bad := func(what string) error {
		return status.Error(codes.InvalidArgument, what+": this is not what an ipwitness agent sends")
	}
	for _, c := range m.GetClaims() {
		switch {
		case c.GetVlan() > 4095 || c.GetInnerVlan() > 4095:
			return bad("a VLAN ID must be below 4096")
		case c.GetPrefixLength() > uint32(8*len(c.GetAddress())): //nolint:gosec // 16 bytes at most
			return bad("a prefix is longer than its address")
		}
	}
	for _, ns := range m.GetNamespaces() {
		if len(ns.GetWorkload().GetSources()) > maxSources || len(ns.GetIntended()) > maxIntended {
			return bad("a namespace has too many sources or addresses")
		}
	}
	if len(m.GetStatus().GetFlooding()) > maxFlooding {
		return bad("there are too many flooding ports")
	}
	for _, p := range m.GetPools() {
		if len(p.GetRanges()) > maxRanges || len(p.GetGateways()) > maxRanges {
			return bad("a pool has too many ranges or gateways")
		}
		for _, r := range p.GetRanges() {
			if len(r.GetLast()) != len(r.GetFirst()) || bytes.Compare(r.GetFirst(), r.GetLast()) > 0 {
				return bad("a range must have two addresses of 4 or 16 bytes, the smaller one first")
			}
		}
	}
	for _, l := range m.GetLinks() {
		if l.GetName() == "" {
			return bad("the name of a link is empty")
		}
	}
	return nil
}
