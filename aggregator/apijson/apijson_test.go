package apijson

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// messages returns an empty message of each type of the API, nested ones included.
func messages(t testing.TB) (all []proto.Message) {
	t.Helper()
	var add func(of protoreflect.MessageDescriptors)
	add = func(of protoreflect.MessageDescriptors) {
		for i := range of.Len() {
			if d := of.Get(i); !d.IsMapEntry() {
				kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, kind.New().Interface())
				add(d.Messages())
			}
		}
	}
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_ipwitness_v1_types_proto, pb.File_ipwitness_v1_api_proto, pb.File_ipwitness_v1_report_proto,
	} {
		add(file.Messages())
	}
	return all
}

// random fills messages with values, many of them zero or unusual.
type random struct{ *rand.Rand }

var texts = []string{
	"", "pod-1", "10.244.1.5", `quo"ted`, `back\slash`, "tab\tnew\nline\r\b\f", "\x00\x01\x1f\x7f", "ü€𐍈\u2028\u2029", "<a&b>", " ", "\ufffd", "é~",
}

func (r random) text() string { return texts[r.IntN(len(texts))] }

func (r random) fill(m protoreflect.Message, depth int) {
	switch m := m.Interface().(type) {
	case *timestamppb.Timestamp:
		m.Seconds = []int64{0, 1, -1, 1_700_000_000, firstSecond, lastSecond, r.Int64N(1 << 31)}[r.IntN(7)]
		m.Nanos = []int32{0, 1, 1000, 1_000_000, 120_000_000, 999_999_999, 1_000_100, r.Int32N(1_000_000_000)}[r.IntN(8)]
		return
	case *durationpb.Duration:
		m.Seconds, m.Nanos = r.Int64N(1<<31), r.Int32N(1_000_000_000)
		return
	case *structpb.Struct:
		m.Fields = map[string]*structpb.Value{r.text(): structpb.NewStringValue(r.text()), "n": structpb.NewNumberValue(r.Float64())}
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if r.IntN(4) == 0 || depth == 0 && fd.Message() != nil {
			continue
		}
		switch {
		case fd.IsMap():
			for range r.IntN(4) {
				m.Mutable(fd).Map().Set(r.value(fd.MapKey(), protoreflect.Value{}, depth).MapKey(), r.value(fd.MapValue(), m.Mutable(fd).Map().NewValue(), depth))
			}
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range r.IntN(4) {
				list.Append(r.value(fd, list.NewElement(), depth))
			}
		default:
			m.Set(fd, r.value(fd, m.NewField(fd), depth))
		}
	}
}

// value returns a value of a field; empty is an empty message for a field that has messages.
func (r random) value(fd protoreflect.FieldDescriptor, empty protoreflect.Value, depth int) protoreflect.Value {
	number := r.Uint64() >> r.IntN(64)
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(number&1 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(9) - 1))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(number))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(number)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(r.text())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(r.text()))
	default:
		r.fill(empty.Message(), depth-1)
		return empty
	}
}

func TestAppendWritesWhatProtojsonWrites(t *testing.T) {
	r := random{rand.New(rand.NewPCG(1, 2))}
	own := 0
	for _, empty := range messages(t) {
		if planOf(empty).form == object {
			own++
		}
		for i := range 300 {
			m := empty.ProtoReflect().New()
			if i > 0 {
				r.fill(m, 4)
			}
			reference, err := options.Marshal(m.Interface())
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := json.Compact(&want, reference); err != nil {
				t.Fatal(err)
			}
			written, err := Append([]byte("before"), m.Interface())
			if err != nil {
				t.Fatalf("%s: %v", want.Bytes(), err)
			}
			var got bytes.Buffer // messages that protojson writes have spaces at random
			if err := json.Compact(&got, bytes.TrimPrefix(written, []byte("before"))); err != nil {
				t.Fatalf("%s: %v", written, err)
			}
			if got.String() != want.String() {
				t.Fatalf("%s: got\n%s, want\n%s", m.Descriptor().FullName(), got.Bytes(), want.Bytes())
			}
		}
	}
	if own < 40 {
		t.Errorf("%d types are not left to protojson, want nearly all", own)
	}
}

// The types of large answers must not be handed to protojson unnoticed.
func TestTheTypesOfLargeAnswersAreNotDelegated(t *testing.T) {
	for _, m := range []proto.Message{
		&pb.ListOwnersResponse{}, &pb.WatchOwnersResponse{}, &pb.Owner{}, &pb.Workload{}, &pb.Evidence{}, &pb.Scope{}, &pb.Conflict{}, &pb.Finding{}, &pb.Node{},
	} {
		if got := planOf(m).form; got != object {
			t.Errorf("%s: got form %d, want an object", m.ProtoReflect().Descriptor().FullName(), got)
		}
	}
}

func TestWhatProtojsonRefusesIsRefused(t *testing.T) {
	for name, m := range map[string]proto.Message{
		"a text that is no UTF-8":   &pb.Owner{Node: "a\xff"},
		"a key that is no UTF-8":    &pb.Workload{Sources: map[string]string{"a\xff": ""}},
		"a value that is no UTF-8":  &pb.Workload{Sources: map[string]string{"a": "\xff"}},
		"a time after 9999":         &pb.Owner{FirstSeen: &timestamppb.Timestamp{Seconds: lastSecond + 1}},
		"a time before the year 1":  &pb.Owner{FirstSeen: &timestamppb.Timestamp{Seconds: firstSecond - 1}},
		"a second of two seconds":   &pb.Owner{FirstSeen: &timestamppb.Timestamp{Nanos: 1_000_000_000}},
		"a negative part of a time": &pb.Owner{FirstSeen: &timestamppb.Timestamp{Nanos: -1}},
	} {
		if _, err := options.Marshal(m); err == nil {
			t.Errorf("%s: protojson takes it", name)
		}
		if out, err := Append(nil, m); err == nil {
			t.Errorf("%s: got %s, want an error", name, out)
		}
	}
}

func BenchmarkOwner(b *testing.B) {
	seen := &timestamppb.Timestamp{Seconds: 1_700_000_000, Nanos: 123_456_789}
	o := &pb.Owner{
		Address: "10.244.1.5", Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"}, Node: "node-1", Interface: "eth0",
		HostInterface: "veth12345678", Mac: "02:00:00:00:00:01", Netns: "4026532000",
		Workload: &pb.Workload{
			Kind: pb.Workload_POD, Namespace: "default", Name: "pod-1", Uid: "0ddba110-0000-4000-8000-000000000001",
			Source: "cri", Sources: map[string]string{"name": "cri", "namespace": "cri"},
		},
		State: pb.Owner_LIVE, FirstSeen: seen, LastSeen: seen, AssignedAt: seen,
		Evidence: []*pb.Evidence{{Kind: pb.Evidence_ASSIGNED, FirstSeen: seen, LastSeen: seen, Count: 1, Witness: "node-1/eth0", Mac: "02:00:00:00:00:01"}},
	}
	for name, encode := range map[string]func([]byte, proto.Message) ([]byte, error){"protojson": options.MarshalAppend, "apijson": Append} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var out []byte
			var err error
			for b.Loop() {
				if out, err = encode(out[:0], o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
