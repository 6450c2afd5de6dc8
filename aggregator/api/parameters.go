package api

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// readQuery sets the parameters in the query of a request for an operation. The names of states and kinds
// may be in lower case.
func readQuery(op *operation, q url.Values, into protoreflect.Message) error {
	given := make(map[protoreflect.FieldNumber]string)
	for _, name := range slices.Sorted(maps.Keys(q)) {
		field := op.query[name]
		if field == nil {
			return unknownParameter(op, name)
		}
		if before := given[field.Number()]; before != "" {
			return status.Errorf(codes.InvalidArgument, "%s and %s are the same parameter: use only one of them", before, name)
		}
		given[field.Number()] = name
		if field.IsList() { // of names
			for _, value := range q[name] {
				into.Mutable(field).List().Append(protoreflect.ValueOfString(value))
			}
			continue
		}
		if n := len(q[name]); n > 1 {
			return status.Errorf(codes.InvalidArgument, "%s is given %d times: give it once", name, n)
		}
		value, err := readParameter(field, name, q.Get(name))
		if err != nil {
			return err
		}
		into.Set(field, value)
	}
	return nil
}

// readParameter returns the value of a parameter.
func readParameter(field protoreflect.FieldDescriptor, name, text string) (value protoreflect.Value, err error) {
	switch field.Kind() {
	case protoreflect.EnumKind:
		word := field.Enum().Values().ByName(protoreflect.Name(strings.ToUpper(text)))
		if word == nil {
			return value, wordErrors[field.Enum().FullName()]
		}
		return protoreflect.ValueOfEnum(word.Number()), nil
	case protoreflect.BoolKind:
		is, err := strconv.ParseBool(text)
		if err != nil {
			return value, status.Errorf(codes.InvalidArgument, "%s must be true or false", name)
		}
		return protoreflect.ValueOfBool(is), nil
	case protoreflect.Uint32Kind:
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return value, status.Errorf(codes.InvalidArgument,
				"%s must be a number: 0 is %d, and there are at most %d on a page", name, defaultPage, maxPage)
		}
		return protoreflect.ValueOfUint32(uint32(n)), nil
	case protoreflect.MessageKind: // a Timestamp
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return value, status.Errorf(codes.InvalidArgument, "%s must be a time in RFC 3339, like 2026-03-14T15:09:26Z", name)
		}
		return protoreflect.ValueOfMessage(timestamppb.New(at).ProtoReflect()), nil
	default:
		if !utf8.ValidString(text) {
			return value, status.Errorf(codes.InvalidArgument, "%s is not in UTF-8", name)
		}
		return protoreflect.ValueOfString(text), nil
	}
}

// wordErrors has the error for a word that an enumeration does not have.
var wordErrors = map[protoreflect.FullName]error{
	pb.Owner_UNSPECIFIED.Descriptor().FullName():    errOwnerState,
	pb.Conflict_UNSPECIFIED.Descriptor().FullName(): errState,
	pb.Event_UNSPECIFIED.Descriptor().FullName():    errEventKind,
}

var errEventKind = status.Error(codes.InvalidArgument, "kind must be OWNER, CONFLICT, FINDING or NODE: omit it for all events")

// unknownParameter returns the error for a parameter that an operation does not have. It names the
// nearest parameter, or all of them if none is near.
func unknownParameter(op *operation, name string) error {
	known := slices.Sorted(maps.Keys(op.query))
	if len(known) == 0 {
		return status.Errorf(codes.InvalidArgument, "unknown parameter %q: this call has no parameters in its query", name)
	}
	nearest, distance := "", 0
	for _, one := range known {
		if d := levenshtein.ComputeDistance(strings.ToLower(name), strings.ToLower(one)); nearest == "" || d < distance {
			nearest, distance = one, d
		}
	}
	if distance <= max(1, len(nearest)/3) {
		return status.Errorf(codes.InvalidArgument, "unknown parameter %q: did you mean %q?", name, nearest)
	}
	var names []string
	for i := range op.method.Input().Fields().Len() {
		if f := op.method.Input().Fields().Get(i); op.query[string(f.Name())] != nil {
			names = append(names, string(f.Name()))
		}
	}
	return status.Error(codes.InvalidArgument, fmt.Sprintf("unknown parameter %q: this call has %s", name, strings.Join(names, ", ")))
}
