// Package apijson encodes protocol buffer messages as JSON. It writes what protojson writes with
// EmitDefaultValues, without the random spaces that protojson adds, in a fraction of the time:
// protojson determines the names, the order and the kinds of the fields again for each message, while
// this package does so once for each type, and reads the fields of the generated structs. It
// delegates types that are rare in the API to protojson: types with a oneof, bytes or floating-point
// numbers, and all well-known types except Timestamp.
package apijson

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
	return new(encoder).message(out, reflect.ValueOf(m), planOf(m))
}

// encoder encodes one message.
type encoder struct {
	// minute is the minute of the last time that was encoded, and prefix is its text up to the
	// seconds. The times of one message are often close together.
	minute int64
	prefix [17]byte
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

// elsewhere are the kinds of values that protojson encodes.
var elsewhere = []protoreflect.Kind{protoreflect.BytesKind, protoreflect.FloatKind, protoreflect.DoubleKind, protoreflect.GroupKind}

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
	places := placesOf(pointer.Elem())
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
		if oneof := fd.ContainingOneof(); !there || oneof != nil && !oneof.IsSynthetic() || slices.Contains(elsewhere, f.kind) ||
			f.dict && (fd.MapKey().Kind() != protoreflect.StringKind || f.kind != protoreflect.StringKind) {
			return p
		}
		switch f.kind {
		case protoreflect.MessageKind:
			element := pointer.Elem().Field(at).Type
			if f.list {
				element = element.Elem()
			}
			f.plan = newPlan(fd.Message(), element, made)
		case protoreflect.EnumKind:
			for i := range fd.Enum().Values().Len() {
				v := fd.Enum().Values().Get(i)
				if int(v.Number()) != i || fd.Enum().FullName() == "google.protobuf.NullValue" {
					return p // only numbers that are 0, 1, 2 and so on
				}
				f.words = append(f.words, strconv.Quote(string(v.Name())))
			}
		}
		fields = append(fields, f)
	}
	p.form, p.fields = object, fields
	return p
}

// placesOf returns the indexes of the fields of a generated struct by field number. A field's tag
// looks like `protobuf:"bytes,3,opt,name=node,proto3"`.
func placesOf(of reflect.Type) map[protoreflect.FieldNumber]int {
	places := make(map[protoreflect.FieldNumber]int)
	for i := range of.NumField() {
		parts := strings.SplitN(of.Field(i).Tag.Get("protobuf"), ",", 3)
		if len(parts) < 2 {
			continue
		}
		if number, err := strconv.Atoi(parts[1]); err == nil {
			places[protoreflect.FieldNumber(number)] = i
		}
	}
	return places
}

// message appends the message that a pointer refers to.
func (e *encoder) message(out []byte, pointer reflect.Value, p *plan) (_ []byte, err error) {
	switch p.form {
	case timestamp:
		return e.timestamp(out, pointer.Interface().(*timestamppb.Timestamp))
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
		case f.list:
			out = append(out, '[')
			for i := 0; i < v.Len() && err == nil; i++ {
				if i > 0 {
					out = append(out, ',')
				}
				out, err = e.value(out, v.Index(i), f)
			}
			out = append(out, ']')
		case f.dict:
			out, err = entries(out, v.Interface().(map[string]string))
		default:
			out, err = e.value(out, v, f)
		}
		if err != nil {
			return out, err
		}
	}
	return append(out, '}'), nil
}

// entries appends a map in the order of its keys.
func entries(out []byte, all map[string]string) (_ []byte, err error) {
	var some [8]string
	keys := some[:0]
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	out = append(out, '{')
	for i, key := range keys {
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

// value appends a value that is neither a list nor a map.
func (e *encoder) value(out []byte, v reflect.Value, f *field) ([]byte, error) {
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
		return e.message(out, v, f.plan)
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

// timestamp appends a time in RFC 3339 format with 0, 3, 6 or 9 fractional digits.
func (e *encoder) timestamp(out []byte, t *timestamppb.Timestamp) ([]byte, error) {
	s, n := t.GetSeconds(), t.GetNanos()
	if s < firstSecond || s > lastSecond || n < 0 || n > 999_999_999 {
		return options.MarshalAppend(out, t)
	}
	minute, second := s/60, s%60
	if second < 0 {
		minute, second = minute-1, second+60
	}
	if minute != e.minute || e.prefix[0] == 0 {
		e.minute = minute
		time.Unix(60*minute, 0).UTC().AppendFormat(e.prefix[:0], "2006-01-02T15:04:")
	}
	out = append(append(out, '"'), e.prefix[:]...)
	out = append(out, byte('0'+second/10), byte('0'+second%10))
	if n != 0 {
		digits := 9
		for n%1000 == 0 {
			n, digits = n/1000, digits-3
		}
		end := len(out) + 1 + digits
		out = append(out, ".000000000"[:1+digits]...)
		for i := end - 1; n > 0; i-- {
			out[i] = byte('0' + n%10)
			n /= 10
		}
	}
	return append(out, 'Z', '"'), nil
}
