package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An operation is one call of the REST interface: a method of the service.
type operation struct {
	method protoreflect.MethodDescriptor
	// query has the parameters that the query of a request may have, by each of their two names:
	// page_size and pageSize.
	query map[string]protoreflect.FieldDescriptor
	// watch is set if the response is a stream of watch events.
	watch bool
}

// A resource is one path of the REST interface, with its operations by HTTP method.
type resource struct {
	template   string
	pattern    *regexp.Regexp
	operations map[string]*operation
}

// resources are all paths. A path with a verb, like /v1/conflicts/{id}:acknowledge, precedes the path
// that it would also match without it.
type resources []*resource

// variable is a variable in the template of a path.
var variable = regexp.MustCompile(`\{([^}]+)\}`)

// newResources returns the paths of the description of the REST interface. The description says
// which method serves a path, and the method's request says which parameters there are.
func newResources(description []byte) (resources, error) {
	var api struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	if err := json.Unmarshal(description, &api); err != nil {
		return nil, fmt.Errorf("read the description of the REST interface: %w", err)
	}
	service := pb.File_ipwitness_v1_api_proto.Services().ByName("WitnessService")
	var all resources
	for template, operations := range api.Paths {
		var names []string
		for _, found := range variable.FindAllStringSubmatch(template, -1) {
			names = append(names, found[1])
		}
		pattern, err := regexp.Compile("^" + variable.ReplaceAllString(template, "[^/]+") + "$")
		if err != nil {
			return nil, fmt.Errorf("read the path %s: %w", template, err)
		}
		one := &resource{template, pattern, make(map[string]*operation)}
		for verb, described := range operations {
			method := service.Methods().ByName(protoreflect.Name(described.OperationID))
			if method == nil {
				return nil, fmt.Errorf("the service has no method for operation %q of %s", described.OperationID, template)
			}
			typ := method.Output().Fields().ByName("type")
			op := &operation{
				method: method, query: make(map[string]protoreflect.FieldDescriptor),
				watch: method.IsStreamingServer() && typ != nil && typ.Enum() != nil && typ.Enum().FullName() == pb.Watch_UNSPECIFIED.Descriptor().FullName(),
			}
			for i := range method.Input().Fields().Len() {
				// Fields that the path has, and all fields if the request has a body, are not in the query.
				if f := method.Input().Fields().Get(i); verb != "post" && !slices.Contains(names, string(f.Name())) {
					op.query[string(f.Name())], op.query[f.JSONName()] = f, f
				}
			}
			one.operations[strings.ToUpper(verb)] = op
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *resource) int {
		return cmp.Or(cmp.Compare(strings.Count(b.template, ":"), strings.Count(a.template, ":")), cmp.Compare(a.template, b.template))
	})
	return all, nil
}

// serve passes requests for operations on to the gateway. mux has everything else that this server
// serves.
func (all resources) serve(gateway http.Handler, mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := slices.IndexFunc(all, func(one *resource) bool { return one.pattern.MatchString(r.URL.Path) })
		if i < 0 {
			// If mux serves the path, it does so for GET and HEAD only.
			read := r.Clone(r.Context())
			read.Method = http.MethodGet
			if _, pattern := mux.Handler(read); pattern != "" && pattern != "/" {
				notAllowed(w, r, "GET, HEAD, OPTIONS")
				return
			}
			refuse(w, r, status.Errorf(codes.NotFound, "%s does not exist: / lists all paths", r.URL.Path))
			return
		}
		at := all[i]
		verb := r.Method
		if verb == http.MethodHead { // the server sends no body
			verb = http.MethodGet
		}
		op := at.operations[verb]
		if op == nil {
			methods := append(slices.Collect(maps.Keys(at.operations)), http.MethodOptions)
			if at.operations[http.MethodGet] != nil {
				methods = append(methods, http.MethodHead)
			}
			slices.Sort(methods)
			notAllowed(w, r, strings.Join(methods, ", "))
			return
		}
		q, err := readQuery(op, r.URL.RawQuery)
		if err != nil {
			refuse(w, r, err)
			return
		}
		if op.watch {
			w.Header().Add("Vary", "Accept")
			if lines, ok := r.Context().Value(linesKey{}).(*linesWriter); ok && wantsEvents(r) {
				lines.events = true
				if id := r.Header.Get(lastEventID); id != "" { // it is newer than the token in the URL
					q.Del("resumeToken")
					q.Set("resume_token", id)
				}
			}
		}
		asked := r.Clone(r.Context())
		asked.Method, asked.URL.RawQuery = verb, q.Encode()
		gateway.ServeHTTP(w, asked)
	})
}

// notAllowed answers a request whose method a path does not have, and requests for the list of methods.
func notAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	refuse(w, r, &runtime.HTTPStatusError{
		HTTPStatus: http.StatusMethodNotAllowed,
		Err:        status.Errorf(codes.InvalidArgument, "%s is not allowed for %s: use %s", r.Method, r.URL.Path, allow),
	})
}

// refuse answers a request with an error: a google.rpc.Status.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	code, s := 0, status.Convert(err)
	if other, ok := errors.AsType[*runtime.HTTPStatusError](err); ok {
		code, s = other.HTTPStatus, status.Convert(other.Err)
	}
	body, err := encoded(s.Proto())
	if err != nil { // a detail of an unknown type
		s = status.New(codes.Internal, s.Message())
		body, _ = encoded(s.Proto())
	}
	access.Challenge(w, r, s.Code())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(cmp.Or(code, runtime.HTTPStatusFromCode(s.Code())))
	_, _ = w.Write(body) // the client may be gone
}

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
