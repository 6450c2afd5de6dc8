package report

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ipwitness/ipwitness/aggregator/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// All fields of reports are checked here before they are used. An agent may be malicious, or it may
// have read names that an attacker chose to cause harm where they are printed.

// A rule defines the valid values of a field of a report.
type rule struct {
	// text is the form of a string. Invalid strings are corrected and counted.
	text form.Form
	// sizes are the valid lengths of a bytes field. A message with another length is refused. If
	// must is set, a message with an invalid string is refused, too.
	sizes []int
	must  bool
}

// rules has a rule for each string and bytes field of a report. For a map field, it applies to keys
// and values.
var rules = map[string]rule{
	"Hello.node":    {text: form.Node, must: true},
	"Hello.boot_id": {text: form.ID, must: true},
	"Hello.netns":   {text: form.Digits, must: true},
	"Hello.version": {text: form.Text(128)},
	"Hello.kernel":  {text: form.Text(128)},

	"NamespaceRecord.netns": {text: form.Digits},

	"Workload.namespace":       {text: form.Label},
	"Workload.name":            {text: form.Name}, // for pods see nameOf
	"Workload.uid":             {text: form.ID},
	"Workload.container_id":    {text: form.ID},
	"Workload.source":          {text: form.Word(maxWord)},
	"Workload.process":         {text: form.Process},
	"Workload.sources":         {text: form.Word(maxWord)},
	"Workload.virtual_machine": {text: form.Subdomain},
	"Workload.phase":           {text: form.Word(maxWord)},
	"Controller.kind":          {text: form.Word(maxWord)},
	"Controller.name":          {text: form.Subdomain},

	"Intended.address":   {text: form.Address},
	"Intended.source":    {text: form.Word(maxWord)},
	"Intended.interface": {text: form.Interface},

	"LinkRecord.name": {text: form.Link},

	"InterfaceRecord.name":           {text: form.Interface},
	"InterfaceRecord.kind":           {text: form.Word(maxWord)},
	"InterfaceRecord.mac":            {sizes: hardwareSizes},
	"InterfaceRecord.link":           {text: form.Link},
	"InterfaceRecord.host_interface": {text: form.Interface},
	"InterfaceRecord.vrf":            {text: form.Interface},

	"ClaimRecord.address": {sizes: addressSizes},
	"ClaimRecord.mac":     {sizes: hardwareSizes},
	"ClaimRecord.link":    {text: form.Link},
	"ClaimRecord.source":  {sizes: hardwareSizes},
	"ClaimRecord.network": {text: form.Name},

	"FloodingRecord.interface":     {text: form.Interface},
	"StatusRecord.wire":            {text: form.Word(maxWord)},
	"StatusRecord.problems":        {text: form.Text(maxText)},
	"StatusRecord.runtime":         {text: form.Text(128)},
	"StatusRecord.calico_nodename": {text: form.Node},
	"Port.interface":               {text: form.Interface},
	"Port.mode":                    {text: form.Word(maxWord)},

	"PoolRecord.name":     {text: form.Path},
	"PoolRecord.ipam":     {text: form.Word(maxWord)},
	"PoolRecord.network":  {text: form.Name},
	"PoolRecord.gateways": {sizes: addressSizes},
	"PoolRecord.problem":  {text: form.Text(maxText)},
	"PoolRecord.plugin":   {text: form.Name},
	"PoolRecord.device":   {text: form.Interface},
	"PoolRecord.config":   {text: form.Path},
	"AddressRange.first":  {sizes: addressSizes},
	"AddressRange.last":   {sizes: addressSizes},

	"AllocationRecord.ipam":         {text: form.Word(maxWord)},
	"AllocationRecord.pool":         {text: form.Path},
	"AllocationRecord.address":      {sizes: addressSizes},
	"AllocationRecord.container_id": {text: form.ID},
	"AllocationRecord.interface":    {text: form.Interface},
}

// The valid lengths of IP addresses and of hardware addresses. A hardware address may be empty, an
// EUI-64 (FireWire), 20 bytes long (InfiniBand), or have any other length up to MAX_ADDR_LEN.
var (
	addressSizes  = []int{4, 16}
	hardwareSizes = upTo(32)
)

func upTo(most int) (all []int) {
	for n := range most + 1 {
		all = append(all, n)
	}
	return all
}

// nameOf returns the form of a workload's name. Only Kubernetes restricts names.
func nameOf(w *pb.Workload) form.Form {
	if w.GetKind() == pb.Workload_POD {
		return form.Subdomain
	}
	return rules["Workload.name"].text
}

// A checker checks messages of one type. It is built once for each type.
type checker struct {
	// fields are the fields of the type by index; nil for fields without a check.
	fields []*checkedField
	// must are the fields that must not be missing.
	must []*checkedField
}

type checkedField struct {
	protoreflect.FieldDescriptor
	rule
	// key is the key of the rule; inside checks nested messages.
	key    string
	inside *checker
}

// checkReport checks ReportRequest messages.
var checkReport = newChecker((*pb.ReportRequest)(nil).ProtoReflect().Descriptor())

// Check corrects invalid strings in a message, and returns the number of corrections by field; nil
// if there are none. It returns an error for values that no agent sends.
func Check(m *pb.ReportRequest) (corrected map[string]int, err error) {
	var done corrections
	err = checkReport.check(m.ProtoReflect(), &done)
	return done, err
}

// newChecker returns the checker of a message type. Messages of other packages have no strings and
// are not checked.
func newChecker(of protoreflect.MessageDescriptor) *checker {
	c := &checker{fields: make([]*checkedField, of.Fields().Len())}
	for i := range of.Fields().Len() {
		f := &checkedField{FieldDescriptor: of.Fields().Get(i), key: string(of.Name()) + "." + string(of.Fields().Get(i).Name())}
		switch {
		case f.IsMap(), f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.BytesKind:
			f.rule = rules[f.key]
		case f.Message() == nil || f.Message().ParentFile().Package() != of.ParentFile().Package():
			continue
		default:
			f.inside = newChecker(f.Message())
		}
		c.fields[i] = f
		if f.sizes != nil && !f.IsList() && !slices.Contains(f.sizes, 0) {
			c.must = append(c.must, f)
		}
	}
	return c
}

// corrections counts corrected strings by field.
type corrections map[string]int

// add adds the counts of others.
func (c *corrections) add(others corrections) {
	if *c == nil && len(others) > 0 {
		*c = make(corrections)
	}
	for field, n := range others {
		(*c)[field] += n
	}
}

// check corrects and counts invalid strings in a message. It returns an error for a value that no
// agent sends. If there are several, it is not defined which one the error names.
func (c *checker) check(m protoreflect.Message, done *corrections) (err error) {
	for _, f := range c.must {
		if _, err := f.checkValue(m.Get(f.FieldDescriptor), done); err != nil {
			return err
		}
	}
	m.Range(func(of protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f := c.fields[of.Index()]; f != nil {
			err = f.check(m, v, done)
		}
		return err == nil
	})
	return err
}

// check checks the value of a field in a message.
func (f *checkedField) check(m protoreflect.Message, v protoreflect.Value, done *corrections) (err error) {
	switch {
	case f.IsMap():
		f.checkMap(v.Map(), done)
	case f.IsList():
		err = f.checkList(v.List(), done)
	case f.inside != nil:
		if f.key == "NamespaceRecord.workload" {
			f.checkName(v.Message(), done)
		}
		err = f.inside.check(v.Message(), done)
	default:
		if v, err = f.checkValue(v, done); v.IsValid() {
			m.Set(f.FieldDescriptor, v)
		}
	}
	return err
}

// checkName corrects the name of a workload, whose form depends on its kind.
func (f *checkedField) checkName(m protoreflect.Message, done *corrections) {
	w, _ := m.Interface().(*pb.Workload)
	if of := nameOf(w); !of.Has(w.GetName()) {
		w.Name = of.Correct(w.GetName())
		done.add(corrections{"Workload.name": 1})
	}
}

func (f *checkedField) checkList(list protoreflect.List, done *corrections) error {
	for i := range list.Len() {
		v, err := list.Get(i), error(nil)
		if f.inside != nil {
			err = f.inside.check(v.Message(), done)
		} else if v, err = f.checkValue(v, done); v.IsValid() {
			list.Set(i, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkMap removes invalid entries.
func (f *checkedField) checkMap(m protoreflect.Map, done *corrections) {
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if !f.text.Has(k.String()) || !f.text.Has(v.String()) {
			m.Clear(k)
			done.add(corrections{f.key: 1})
		}
		return true
	})
}

// checkValue returns the corrected value of a string or bytes field; an invalid protoreflect.Value
// if no correction is needed.
func (f *checkedField) checkValue(v protoreflect.Value, done *corrections) (protoreflect.Value, error) {
	none := protoreflect.Value{}
	if f.Kind() == protoreflect.BytesKind {
		if n := len(v.Bytes()); !slices.Contains(f.sizes, n) {
			return none, status.Errorf(codes.InvalidArgument, "%s has %d bytes: this is not what an ipwitness agent sends", f.key, n)
		}
		return none, nil
	}
	text := v.String()
	switch {
	case f.text.Has(text):
		return none, nil
	case f.must:
		return none, status.Errorf(codes.InvalidArgument, "invalid %s %q: only letters, digits, -, _ and . are allowed", f.key, form.Text(64).Correct(text))
	}
	done.add(corrections{f.key: 1})
	return protoreflect.ValueOfString(f.text.Correct(text)), nil
}
