package report

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Each string and bytes field of a report must have a rule. This test fails for a new field without
// one.
func TestEachTextOfAReportHasARule(t *testing.T) {
	found := map[string]bool{}
	var walk func(of protoreflect.MessageDescriptor)
	walk = func(of protoreflect.MessageDescriptor) {
		for i := range of.Fields().Len() {
			f := of.Fields().Get(i)
			key := string(of.Name()) + "." + string(f.Name())
			switch {
			case f.Kind() == protoreflect.StringKind, f.Kind() == protoreflect.BytesKind, f.IsMap():
				found[key] = true
				if r, ok := rules[key]; !ok || (f.Kind() == protoreflect.BytesKind) != (r.sizes != nil) {
					t.Errorf("%s has no rule, or one of another kind", key)
				}
			case f.Message() != nil && f.Message().ParentFile().Package() == of.ParentFile().Package():
				walk(f.Message())
			}
		}
	}
	walk((*pb.ReportRequest)(nil).ProtoReflect().Descriptor())
	for key := range rules {
		if !found[key] {
			t.Errorf("there is a rule of %s, and no such field", key)
		}
	}
}
