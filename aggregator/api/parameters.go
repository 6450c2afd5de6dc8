package api

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// readQuery parses the query of a request for an operation. It refuses what the gateway would ignore,
// and what the gateway would refuse in the terms of its parser. The names of states and kinds may be
// in lower case.
func readQuery(op *operation, raw string) (url.Values, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the query is malformed: %s", err)
	}
	given := make(map[protoreflect.FieldNumber]string)
	for _, name := range slices.Sorted(maps.Keys(q)) {
		field := op.query[name]
		if field == nil {
			return nil, unknownParameter(op, name)
		}
		if before := given[field.Number()]; before != "" {
			return nil, status.Errorf(codes.InvalidArgument, "%s and %s are the same parameter: use only one of them", before, name)
		}
		given[field.Number()] = name
		if field.IsList() {
			continue // of names
		}
		if n := len(q[name]); n > 1 {
			return nil, status.Errorf(codes.InvalidArgument, "%s is given %d times: give it once", name, n)
		}
		value, err := readParameter(field, name, q.Get(name))
		if err != nil {
			return nil, err
		}
		q.Set(name, value)
	}
	return q, nil
}

// readParameter checks the value of a parameter that is not a string, and returns it as the gateway
// parses it.
func readParameter(field protoreflect.FieldDescriptor, name, value string) (string, error) {
	switch field.Kind() {
	case protoreflect.EnumKind:
		value = strings.ToUpper(value)
		if value != "" && field.Enum().Values().ByName(protoreflect.Name(value)) == nil {
			return "", wordErrors[field.Enum().FullName()]
		}
	case protoreflect.BoolKind:
		if _, err := strconv.ParseBool(value); err != nil {
			return "", status.Errorf(codes.InvalidArgument, "%s must be true or false", name)
		}
	case protoreflect.Uint32Kind:
		if _, err := strconv.ParseUint(value, 10, 32); err != nil {
			return "", status.Errorf(codes.InvalidArgument,
				"%s must be a number: 0 is %d, and there are at most %d on a page", name, defaultPage, maxPage)
		}
	case protoreflect.MessageKind: // a Timestamp
		if _, err := time.Parse(time.RFC3339Nano, value); err != nil {
			return "", status.Errorf(codes.InvalidArgument, "%s must be a time in RFC 3339, like 2026-03-14T15:09:26Z", name)
		}
	default:
	}
	return value, nil
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
