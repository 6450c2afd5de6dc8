package report

import (
	"bytes"
	"math"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// All fields of reports are checked here before they are used. An agent may be malicious, or it may
// have read names that an attacker chose to cause harm where they are printed.

// Check corrects invalid strings in a message, and returns the number of corrections by field; nil
// if there are none. It returns an error for values that no agent sends.
func Check(m *pb.ReportRequest) (corrected map[string]int, err error) {
	var c checker
	c.report(m)
	return c.corrected, c.refused
}

// corrections counts corrected strings by field.
type corrections map[string]int

func (c *corrections) count(field string) { c.add(corrections{field: 1}) }

func (c *corrections) add(others corrections) {
	if *c == nil && len(others) > 0 {
		*c = make(corrections)
	}
	for field, n := range others {
		(*c)[field] += n
	}
}

// A checker checks the fields of a message.
type checker struct {
	corrected corrections
	// refused is the error for the first value that no agent sends; nil if there is none.
	refused error
}

func (c *checker) text(field string, of form.Form, s *string) {
	if !of.Has(*s) {
		*s = of.Correct(*s)
		c.corrected.count(field)
	}
}

func (c *checker) texts(field string, of form.Form, all []string) {
	for i := range all {
		c.text(field, of, &all[i])
	}
}

// must refuses an invalid string.
func (c *checker) must(field string, of form.Form, s string) {
	if !of.Has(s) && c.refused == nil {
		c.refused = status.Errorf(codes.InvalidArgument, "invalid %s %q: only letters, digits, -, _ and . are allowed", field, form.Text(64).Correct(s))
	}
}

func (c *checker) bytes(field string, raw []byte, valid bool) {
	if !valid && c.refused == nil {
		c.refused = status.Errorf(codes.InvalidArgument, "%s has %d bytes: this is not what an ipwitness agent sends", field, len(raw))
	}
}

// most refuses a value of more than most bytes.
func (c *checker) most(field string, most int, raw []byte) { c.bytes(field, raw, len(raw) <= most) }

// address refuses a value that is not an IP address.
func (c *checker) address(field string, raw []byte) {
	c.bytes(field, raw, len(raw) == 4 || len(raw) == 16)
}

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
	maxHolders  = 8             // in a belief
	maxEntries  = 64            // in an answer about neighbour tables, and of the connection tracking
	maxSenders  = 32            // holders of each
	maxAnswers  = 16            // in a message
	maxHops     = 16            // of a route in an answer
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
	for _, b := range m.GetBeliefs() {
		if len(b.GetHolders()) > maxHolders {
			return bad("a belief has too many holders")
		}
	}
	if len(m.GetAnswers()) > maxAnswers {
		return bad("there are too many answers")
	}
	for _, a := range m.GetAnswers() {
		if len(a.GetBeliefs()) > maxEntries || slices.ContainsFunc(a.GetBeliefs(), func(b *pb.BeliefRecord) bool { return len(b.GetHolders()) > maxSenders }) {
			return bad("an answer has too many entries or holders")
		}
		if len(a.GetRoute().GetHops()) > maxHops {
			return bad("an answer has too many paths of a route")
		}
		if len(a.GetTranslations()) > maxEntries || slices.ContainsFunc(a.GetTranslations(), func(t *pb.TranslationRecord) bool {
			return max(t.GetSourcePort(), t.GetDestinationPort(), t.GetPort(), t.GetZone()) > math.MaxUint16
		}) {
			return bad("an answer has too many translations, or a port that does not exist")
		}
	}
	for _, l := range m.GetLinks() {
		if l.GetName() == "" {
			return bad("the name of a link is empty")
		}
	}
	return nil
}
