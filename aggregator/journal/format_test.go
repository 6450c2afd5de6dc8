package journal

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fill sets every field of a message, and of the messages in it.
func fill(random *rand.Rand, m protoreflect.Message) {
	if t, ok := m.Interface().(*timestamppb.Timestamp); ok {
		t.Seconds = random.Int64N(1 << 33)
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		value := func() protoreflect.Value {
			switch f.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(string(f.Name()) + "x")
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(1)
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(7)
			default:
				return protoreflect.Value{}
			}
		}
		switch {
		case f.IsMap():
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			fill(random, m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(value())
		case f.Kind() == protoreflect.MessageKind:
			fill(random, m.Mutable(f).Message())
		default:
			if v := value(); v.IsValid() {
				m.Set(f, v)
			}
		}
	}
}

func TestAnOwnerIsReadAsItWasRecorded(t *testing.T) {
	full := &pb.Owner{}
	fill(rand.New(rand.NewPCG(1, 2)), full.ProtoReflect())
	pod := func(change func(*pb.Owner)) *pb.Owner {
		_, o := benchPod(0x10203, 1, time.UnixMilli(1767355200123), false)
		change(o)
		return o
	}
	for name, o := range map[string]*pb.Owner{
		"every field": full,
		"no field":    {},
		"a pod":       pod(func(*pb.Owner) {}),
		"other forms": pod(func(o *pb.Owner) {
			o.Mac, o.Netns, o.HostInterface = "02-00-00-00-00-01", "0123", "cali12345abcdef"
			o.Workload.Uid, o.Workload.ContainerId, o.Workload.Name = "F0000000-0000-0000-0000-000000000000", "ABCDEF012345", "Web_1"
		}),
		"no controller":         pod(func(o *pb.Owner) { o.Workload.Controller = nil }),
		"named like controller": pod(func(o *pb.Owner) { o.Workload.Name = o.Workload.Controller.Name }),
		"a static pod": pod(func(o *pb.Owner) {
			o.Workload.Uid, o.Workload.Name = "0123456789abcdef0123456789abcdef", strings.Repeat("long.name-", 25)
		}),
		"a random MAC": pod(func(o *pb.Owner) { o.Mac = "02:00:00:00:00:01" }),
		"InfiniBand":   pod(func(o *pb.Owner) { o.Mac = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:00:01" }),
		"hex only":     pod(func(o *pb.Owner) { o.HostInterface = "abcdef0123" }),
		"no workload":  pod(func(o *pb.Owner) { o.Workload = nil }),
		"an end":       pod(func(o *pb.Owner) { o.Workload.DeletionTimestamp = timestamppb.New(time.UnixMicro(1767355200123456)) }),
	} {
		want, at := trimOwner(o, true), stamp(1767355200999999)
		v, err := appendOwner(nil, proto.CloneOf(want), at)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseOwner(v, at)
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: got %v and %v, want %v", name, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	p := placeOf(netip.MustParseAddr("10.1.2.3"))
	_, o := benchPod(0x10203, 1, time.UnixMilli(1767355200123), true)
	v, err := appendOwner(nil, trimOwner(o, true), 1767355200999999)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(v)
	f.Add(subject{pb.Event_OWNER, p}.append(nil))
	f.Add(itemKey(segment{number: 1, start: 5}, pb.Event_NODE, placeOfName("n1"), 7))
	f.Add(timeKey(1, 1<<50, subject{pb.Event_FINDING, placeOf(netip.MustParseAddr("fe80::1"))}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if o, err := parseOwner(raw, 1767355200999999); err == nil {
			again, err := appendOwner(nil, proto.CloneOf(o), 1767355200999999)
			if err != nil {
				return // not UTF-8
			}
			if back, err := parseOwner(again, 1767355200999999); err != nil || !proto.Equal(o, back) {
				t.Errorf("got %v and %v, want %v", back, err, o)
			}
		}
		if s, err := parseSubject(raw); err == nil && string(s.append(nil)) != string(raw) {
			t.Errorf("got subject %v of %x", s, raw)
		}
		seg := segment{number: 1, start: 1 << 40}
		if p, typ, at, rest, err := parseItemKey(seg, raw); err == nil {
			key := itemKey(seg, pb.Event_Kind(raw[4]), place(p), at)
			if key[len(key)-1] |= byte(typ); string(key[4:])+string(rest) != string(raw[4:]) {
				t.Errorf("got key %x of %x", key, raw)
			}
		}
		if bucket, s, err := parseTimeKey(raw); err == nil {
			if key := timeKey(1, stamp(bucket)<<bucketBits, s); string(key[prefixSize:]) != string(raw[prefixSize:]) {
				t.Errorf("got key %x of %x", key, raw)
			}
		}
		_, _ = parseTermKey(podTerm("a", "b"), raw)
		_, _ = parseRecord(0, raw)
		if p, err := ParsePosition(string(raw)); err == nil && p.place != "" {
			if again, err := ParsePosition(p.Token()); err != nil || again != p {
				t.Errorf("got position %v and %v, want %v", again, err, p)
			}
		}
	})
}
