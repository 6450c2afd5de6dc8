package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

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
			one.operations[strings.ToUpper(verb)] = newOperation(method, names, verb == "post")
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *resource) int {
		return cmp.Or(cmp.Compare(strings.Count(b.template, ":"), strings.Count(a.template, ":")), cmp.Compare(a.template, b.template))
	})
	return all, nil
}

// newOperation returns the operation that calls a method. Fields that the path has, and all fields if
// the request has a body, are not in the query.
func newOperation(method protoreflect.MethodDescriptor, inPath []string, body bool) *operation {
	op := &operation{method: method, query: make(map[string]protoreflect.FieldDescriptor), watch: isWatch(method)}
	for i := range method.Input().Fields().Len() {
		f := method.Input().Fields().Get(i)
		if body || slices.Contains(inPath, string(f.Name())) {
			continue
		}
		op.query[string(f.Name())], op.query[f.JSONName()] = f, f
	}
	return op
}

// isWatch reports whether a method sends watch events.
func isWatch(method protoreflect.MethodDescriptor) bool {
	typ := method.Output().Fields().ByName("type")
	return method.IsStreamingServer() && typ != nil && typ.Enum() != nil && typ.Enum().FullName() == pb.Watch_UNSPECIFIED.Descriptor().FullName()
}

// at returns the resource at a path, or nil.
func (all resources) at(path string) *resource {
	for _, one := range all {
		if one.pattern.MatchString(path) {
			return one
		}
	}
	return nil
}

// allow returns the methods of a resource in the format of the header Allow.
func (r *resource) allow() string {
	methods := append(slices.Collect(maps.Keys(r.operations)), http.MethodOptions)
	if r.operations[http.MethodGet] != nil {
		methods = append(methods, http.MethodHead)
	}
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}

// serve passes requests for operations on to the gateway. mux has everything else that this server
// serves.
func (all resources) serve(gateway http.Handler, mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := all.at(r.URL.Path)
		if at == nil {
			serveOther(mux, w, r)
			return
		}
		verb := r.Method
		if verb == http.MethodHead { // the server sends no body
			verb = http.MethodGet
		}
		op := at.operations[verb]
		if op == nil {
			notAllowed(w, r, at.allow())
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

// serveOther answers a request for a path that is not in the API. If mux serves it, it does so for GET
// and HEAD only.
func serveOther(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	read := r.Clone(r.Context())
	read.Method = http.MethodGet
	if _, pattern := mux.Handler(read); pattern != "" && pattern != "/" {
		notAllowed(w, r, "GET, HEAD, OPTIONS")
		return
	}
	refuse(w, r, status.Errorf(codes.NotFound, "%s does not exist: / lists all paths", r.URL.Path))
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
