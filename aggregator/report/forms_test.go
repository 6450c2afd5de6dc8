package report

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Each string and bytes field of a report is checked: an invalid value is corrected and counted, or refused.
// This test fails for a new field that forms.go does not have.
func TestEachTextOfAReportIsChecked(t *testing.T) {
	fields := 0
	// walk sets each field below a message type to an invalid value, one after the other. set returns a report, and
	// the message of this type in it.
	var walk func(of protoreflect.MessageDescriptor, set func() (*pb.ReportRequest, protoreflect.Message))
	walk = func(of protoreflect.MessageDescriptor, set func() (*pb.ReportRequest, protoreflect.Message)) {
		for i := range of.Fields().Len() {
			f := of.Fields().Get(i)
			var invalid protoreflect.Value
			switch {
			case f.IsMap(), f.Kind() == protoreflect.StringKind:
				invalid = protoreflect.ValueOfString("\x1b")
			case f.Kind() == protoreflect.BytesKind:
				invalid = protoreflect.ValueOfBytes(make([]byte, 300))
			case f.Message() != nil && f.Message().ParentFile().Package() == of.ParentFile().Package():
				walk(f.Message(), func() (*pb.ReportRequest, protoreflect.Message) {
					report, m := set()
					if f.IsList() {
						return report, m.Mutable(f).List().AppendMutable().Message()
					}
					return report, m.Mutable(f).Message()
				})
				continue
			default:
				continue
			}
			fields++
			report, m := set()
			for k := range of.Fields().Len() { // others that must not be empty
				if other := of.Fields().Get(k); other.Kind() == protoreflect.BytesKind && !other.IsList() {
					m.Set(other, protoreflect.ValueOfBytes(make([]byte, 4)))
				}
			}
			switch {
			case f.IsMap():
				m.Mutable(f).Map().Set(invalid.MapKey(), invalid)
			case f.IsList():
				m.Mutable(f).List().Append(invalid)
			default:
				m.Set(f, invalid)
			}
			key := string(of.Name()) + "." + string(f.Name())
			corrected, err := Check(report)
			if corrected[key] != 1 && (err == nil || !strings.Contains(err.Error(), key)) {
				t.Errorf("got corrections %v and error %v of an invalid %s", corrected, err, key)
			}
		}
	}
	walk((*pb.ReportRequest)(nil).ProtoReflect().Descriptor(), func() (*pb.ReportRequest, protoreflect.Message) {
		m := &pb.ReportRequest{}
		return m, m.ProtoReflect()
	})
	if fields < 60 {
		t.Errorf("got %d fields, want all", fields)
	}
}
