package report

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// All fields of reports are checked here before they are used. An agent may be malicious, or it may
// have read names that an attacker chose to cause harm where they are printed.

// Check corrects invalid strings in a message, and returns the number of corrections by field; nil
// if there are none. It returns an error for values that no agent sends.
func Check(m *pb.ReportRequest) (corrected map[string]int, err error) {
	var done corrections
	err = checkReport.check(reflect.ValueOf(m).Elem(), &done)
	return done, err
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

// A checker checks messages of one type. It reads the generated Go struct, because protoreflect
// takes several times as long and would be a large part of the cost of a report.
type checker []checkedField

// A checkedField is a field of the struct with a rule or with nested messages.
type checkedField struct {
	rule
	key string // of the rule
	at  int    // index of the field in the struct
	// check checks a value of the field or, if the field is a list, one element.
	check func(f *checkedField, v reflect.Value, done *corrections) error
	list  bool
	// inside checks nested messages; nil if the field has none.
	inside checker
}

var checkReport = newChecker(reflect.TypeFor[*pb.ReportRequest]())

// newChecker returns the checker of a message type, which is a pointer to a struct.
func newChecker(pointer reflect.Type) (c checker) {
	of := reflect.Zero(pointer).Interface().(proto.Message).ProtoReflect().Descriptor()
	for i := range pointer.Elem().NumField() {
		tag, ok := pointer.Elem().Field(i).Tag.Lookup("protobuf")
		if !ok {
			continue // not a field of the message
		}
		_, name, _ := strings.Cut(tag, "name=")
		name, _, _ = strings.Cut(name, ",")
		f := checkedField{key: string(of.Name()) + "." + name, at: i}
		f.rule = rules[f.key]
		t := pointer.Elem().Field(i).Type
		if t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
			f.list, t = true, t.Elem()
		}
		switch {
		case t.Kind() == reflect.String:
			f.check = (*checkedField).checkString
		case t.Kind() == reflect.Slice:
			f.check = (*checkedField).checkBytes
		case t.Kind() == reflect.Map:
			f.check = (*checkedField).checkMap
		case t == reflect.TypeFor[*pb.Workload]():
			f.check, f.inside = (*checkedField).checkWorkload, newChecker(t)
		case t.Kind() == reflect.Pointer:
			f.check, f.inside = (*checkedField).checkMessage, newChecker(t)
			if len(f.inside) == 0 {
				continue
			}
		default:
			continue
		}
		c = append(c, f)
	}
	return c
}

// check corrects and counts invalid strings in a message. It returns an error for a value that no
// agent sends.
func (c checker) check(message reflect.Value, done *corrections) error {
	for i := range c {
		f := &c[i]
		v := message.Field(f.at)
		if !f.list {
			if err := f.check(f, v, done); err != nil {
				return err
			}
			continue
		}
		for j := range v.Len() {
			if err := f.check(f, v.Index(j), done); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *checkedField) checkString(v reflect.Value, done *corrections) error {
	text := v.String()
	switch {
	case text == "" && !f.list, f.text.Has(text):
		return nil
	case f.must:
		return status.Errorf(codes.InvalidArgument, "invalid %s %q: only letters, digits, -, _ and . are allowed", f.key, form.Text(64).Correct(text))
	}
	v.SetString(f.text.Correct(text))
	done.count(f.key)
	return nil
}

func (f *checkedField) checkBytes(v reflect.Value, _ *corrections) error {
	if !slices.Contains(f.sizes, v.Len()) {
		return status.Errorf(codes.InvalidArgument, "%s has %d bytes: this is not what an ipwitness agent sends", f.key, v.Len())
	}
	return nil
}

func (f *checkedField) checkMap(v reflect.Value, done *corrections) error {
	if v.Len() == 0 {
		return nil
	}
	entries := v.Interface().(map[string]string)
	for key, value := range entries {
		if !f.text.Has(key) || !f.text.Has(value) {
			delete(entries, key)
			done.count(f.key)
		}
	}
	return nil
}

func (f *checkedField) checkMessage(v reflect.Value, done *corrections) error {
	if v.IsNil() {
		return nil
	}
	return f.inside.check(v.Elem(), done)
}

// checkWorkload checks a workload. The form of its name depends on its kind.
func (f *checkedField) checkWorkload(v reflect.Value, done *corrections) error {
	w := v.Interface().(*pb.Workload)
	of := rules["Workload.name"].text
	if w.GetKind() == pb.Workload_POD { // only Kubernetes restricts names
		of = form.Subdomain
	}
	if w != nil && !of.Has(w.GetName()) {
		w.Name = of.Correct(w.GetName())
		done.count("Workload.name")
	}
	return f.checkMessage(v, done)
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
