// Package apijson encodes protocol buffer messages as JSON. It writes what protojson writes with
// EmitDefaultValues, without the random spaces that protojson adds, in a fraction of the time:
// protojson determines the names, the order and the kinds of the fields again for each message, while
// this package does so once for each type, and reads the fields of the generated structs. It
// delegates types that are rare in the API to protojson: types with a oneof, bytes or floating-point
// numbers, and all well-known types except Timestamp.
package apijson

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// options are the protojson options that produce an equivalent encoding.
var options = protojson.MarshalOptions{EmitDefaultValues: true}

// Append appends m as JSON. m must not be nil.
func Append(out []byte, m proto.Message) ([]byte, error) {
	return appendMessage(out, reflect.ValueOf(m), planOf(m))
}

// plan describes how messages of one type are encoded.
type plan struct {
	form   form
	fields []field
	empty  reflect.Value // pointer to an empty message
}

// form is how a message is encoded.
type form uint8

const (
	object form = iota
	timestamp
	delegated // encoded by protojson
)

// field describes how one field is encoded.
type field struct {
	at       int // index in the struct
	kind     protoreflect.Kind
	list     bool
	dict     bool     // a map
	optional bool     // a pointer to a message or another value
	name     string   // with quotes and a colon
	words    []string // names of an enumeration, with quotes
	plan     *plan    // plan of a message
}

// plans contains the plans of all types that were encoded so far, by Go type.
var plans sync.Map

func planOf(m proto.Message) *plan {
	of := reflect.TypeOf(m)
	if known, ok := plans.Load(of); ok {
		return known.(*plan)
	}
	p := newPlan(m.ProtoReflect().Descriptor(), of, map[reflect.Type]*plan{})
	plans.Store(of, p)
	return p
}

// newPlan returns the plan of a type. made contains the unfinished plans, because types may be
// recursive.
func newPlan(of protoreflect.MessageDescriptor, pointer reflect.Type, made map[reflect.Type]*plan) *plan {
	if p := made[pointer]; p != nil {
		return p
	}
	p := &plan{form: delegated}
	made[pointer] = p
	if pointer.Kind() != reflect.Pointer || pointer.Elem().Kind() != reflect.Struct {
		return p
	}
	p.empty = reflect.New(pointer.Elem())
	switch {
	case of.FullName() == "google.protobuf.Timestamp":
		p.form = timestamp
		return p
	case of.ParentFile().Package() == "google.protobuf", of.RequiredNumbers().Len() > 0, of.ExtensionRanges().Len() > 0:
		return p
	}
	// The field numbers are in the tags of a generated struct, like `protobuf:"bytes,3,opt,name=node,proto3"`.
	places := make(map[protoreflect.FieldNumber]int)
	for i := range pointer.Elem().NumField() {
		parts := strings.SplitN(pointer.Elem().Field(i).Tag.Get("protobuf"), ",", 3)
		if number, err := strconv.Atoi(parts[min(1, len(parts)-1)]); err == nil {
			places[protoreflect.FieldNumber(number)] = i
		}
	}
	var fields []field
	for i := range of.Fields().Len() {
		fd := of.Fields().Get(i)
		at, there := places[fd.Number()]
		f := field{
			at: at, kind: fd.Kind(), list: fd.IsList(), dict: fd.IsMap(), optional: fd.HasPresence(), name: strconv.Quote(fd.JSONName()) + ":",
		}
		if f.dict {
			f.kind = fd.MapValue().Kind()
		}
		if oneof := fd.ContainingOneof(); !there || oneof != nil && !oneof.IsSynthetic() ||
			f.dict && (fd.MapKey().Kind() != protoreflect.StringKind || f.kind != protoreflect.StringKind) {
			return p
		}
		switch f.kind {
		case protoreflect.BytesKind, protoreflect.FloatKind, protoreflect.DoubleKind, protoreflect.GroupKind:
			return p
		case protoreflect.MessageKind:
			element := pointer.Elem().Field(at).Type
			if f.list {
				element = element.Elem()
			}
			f.plan = newPlan(fd.Message(), element, made)
		case protoreflect.EnumKind:
			if f.words = words(fd.Enum()); f.words == nil {
				return p
			}
		}
		fields = append(fields, f)
	}
	p.form, p.fields = object, fields
	return p
}

// words returns the names of an enumeration whose numbers are 0, 1, 2 and so on. It returns nil for
// any other enumeration.
func words(of protoreflect.EnumDescriptor) (all []string) {
	for i := range of.Values().Len() {
		v := of.Values().Get(i)
		if int(v.Number()) != i || of.FullName() == "google.protobuf.NullValue" {
			return nil
		}
		all = append(all, strconv.Quote(string(v.Name())))
	}
	return all
}

func appendMessage(out []byte, pointer reflect.Value, p *plan) (_ []byte, err error) {
	switch p.form {
	case timestamp:
		return appendTime(out, pointer.Interface().(*timestamppb.Timestamp))
	case delegated:
		return options.MarshalAppend(out, pointer.Interface().(proto.Message))
	case object:
	}
	if pointer.IsNil() {
		pointer = p.empty
	}
	m := pointer.Elem()
	out = append(out, '{')
	first := len(out)
	for i := range p.fields {
		f := &p.fields[i]
		v := m.Field(f.at)
		if f.optional {
			if v.IsNil() {
				continue
			}
			if f.plan == nil {
				v = v.Elem()
			}
		}
		if len(out) > first {
			out = append(out, ',')
		}
		out = append(out, f.name...)
		switch {
		case f.dict:
			out, err = appendMap(out, v.Interface().(map[string]string))
		case !f.list:
			out, err = appendValue(out, v, f)
		default:
			out = append(out, '[')
			for i := 0; i < v.Len() && err == nil; i++ {
				if i > 0 {
					out = append(out, ',')
				}
				out, err = appendValue(out, v.Index(i), f)
			}
			out = append(out, ']')
		}
		if err != nil {
			return out, err
		}
	}
	return append(out, '}'), nil
}

func appendMap(out []byte, all map[string]string) (_ []byte, err error) {
	out = append(out, '{')
	for i, key := range slices.Sorted(maps.Keys(all)) {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendString(out, key); err != nil {
			return out, err
		}
		if out, err = appendString(append(out, ':'), all[key]); err != nil {
			return out, err
		}
	}
	return append(out, '}'), nil
}

// appendValue appends a value that is neither a list nor a map.
func appendValue(out []byte, v reflect.Value, f *field) ([]byte, error) {
	switch f.kind {
	case protoreflect.StringKind:
		return appendString(out, v.String())
	case protoreflect.BoolKind:
		return strconv.AppendBool(out, v.Bool()), nil
	case protoreflect.EnumKind:
		n := v.Int()
		if n < 0 || n >= int64(len(f.words)) {
			return strconv.AppendInt(out, n, 10), nil
		}
		return append(out, f.words[n]...), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return strconv.AppendInt(out, v.Int(), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return strconv.AppendUint(out, v.Uint(), 10), nil
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return append(strconv.AppendInt(append(out, '"'), v.Int(), 10), '"'), nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return append(strconv.AppendUint(append(out, '"'), v.Uint(), 10), '"'), nil
	case protoreflect.MessageKind:
		return appendMessage(out, v, f.plan)
	default:
		return out, fmt.Errorf("encode %s: kind %s has no encoding", f.name, f.kind)
	}
}

// appendString appends a text. protojson encodes it if it must be escaped or is not UTF-8.
func appendString(out []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return options.MarshalAppend(out, wrapperspb.String(s))
		}
	}
	return append(append(append(out, '"'), s...), '"'), nil
}

// The first and the last second that a Timestamp can represent (years 1 to 9999).
const (
	firstSecond = -62135596800
	lastSecond  = 253402300799
)

// appendTime appends a time in RFC 3339 format with 0, 3, 6 or 9 fractional digits.
func appendTime(out []byte, t *timestamppb.Timestamp) ([]byte, error) {
	s, n := t.GetSeconds(), t.GetNanos()
	if s < firstSecond || s > lastSecond || n < 0 || n > 999_999_999 {
		return options.MarshalAppend(out, t)
	}
	layout := `"2006-01-02T15:04:05.000000000Z"`
	switch {
	case n == 0:
		layout = `"2006-01-02T15:04:05Z"`
	case n%1_000_000 == 0:
		layout = `"2006-01-02T15:04:05.000Z"`
	case n%1000 == 0:
		layout = `"2006-01-02T15:04:05.000000Z"`
	}
	return t.AsTime().AppendFormat(out, layout), nil
}
