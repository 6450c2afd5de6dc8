package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An operation is one call of the REST interface: a method of the service. Only one of unary and stream is set.
type operation struct {
	method protoreflect.MethodDescriptor
	unary  *grpc.MethodDesc
	stream *grpc.StreamDesc
	// path are the names of the parameters in the path. body is set if the others are in the body.
	path []string
	body bool
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
		pattern, err := regexp.Compile("^" + variable.ReplaceAllString(template, "([^/]+)") + "$")
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
	op := &operation{method: method, path: inPath, body: body, query: make(map[string]protoreflect.FieldDescriptor), watch: isWatch(method)}
	for i := range method.Input().Fields().Len() {
		f := method.Input().Fields().Get(i)
		if body || slices.Contains(inPath, string(f.Name())) {
			continue
		}
		op.query[string(f.Name())], op.query[f.JSONName()] = f, f
	}
	desc := &pb.WitnessService_ServiceDesc
	if i := slices.IndexFunc(desc.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == string(method.Name()) }); i >= 0 {
		op.unary = &desc.Methods[i]
	} else {
		i := slices.IndexFunc(desc.Streams, func(m grpc.StreamDesc) bool { return m.StreamName == string(method.Name()) })
		op.stream = &desc.Streams[i]
	}
	return op
}

// request returns the request message of a call. Values are those of the parameters in the path.
func (op *operation) request(r *http.Request, q url.Values, values []string) (proto.Message, error) {
	typ, err := protoregistry.GlobalTypes.FindMessageByName(op.method.Input().FullName())
	if err != nil {
		return nil, err
	}
	m := typ.New()
	if err := readQuery(op, q, m); err != nil {
		return nil, err
	}
	if op.body {
		var body json.RawMessage
		err := json.NewDecoder(r.Body).Decode(&body)
		if err == nil {
			err = protojson.Unmarshal(body, m.Interface())
		}
		switch tooLarge := (*http.MaxBytesError)(nil); {
		case err == nil, errors.Is(err, io.EOF): // an empty body sets no fields
		case errors.As(err, &tooLarge):
			return nil, status.Errorf(codes.InvalidArgument, "the body is too large: the limit is %d bytes", tooLarge.Limit)
		default:
			return nil, status.Errorf(codes.InvalidArgument, "read the body: expected JSON as /openapi.json describes it: %s", err)
		}
	}
	for i, name := range op.path {
		m.Set(op.method.Input().Fields().ByName(protoreflect.Name(name)), protoreflect.ValueOfString(values[i]))
	}
	return m.Interface(), nil
}

// call calls the method without a connection, so that messages are neither encoded nor copied on the way, and
// writes the response. The guard checks the call.
func (op *operation) call(w http.ResponseWriter, r *http.Request, service pb.WitnessServiceServer, guard *access.Guard, q proto.Message) error {
	ctx, end, err := guard.EnterREST(r.Context(), "/"+pb.WitnessService_ServiceDesc.ServiceName+"/"+string(op.method.Name()))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, end) // like that of a request: the response stays in memory until then
	read := func(into any) error {
		proto.Merge(into.(proto.Message), q)
		return nil
	}
	if op.unary != nil {
		out, err := op.unary.Handler(service, ctx, read, nil)
		if err != nil {
			return err
		}
		body, err := encoded(out.(proto.Message))
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // the client may be gone
		return nil
	}
	// The service writes the messages itself, so that no other goroutine has to wake up for each message.
	lines, _ := ctx.Value(linesKey{}).(*linesWriter)
	err = op.stream.Handler(service, lineServer{ctx: ctx, lines: lines, read: read})
	if begun := lines.end(err); begun {
		return nil
	}
	return err
}

// isWatch reports whether a method sends watch events.
func isWatch(method protoreflect.MethodDescriptor) bool {
	typ := method.Output().Fields().ByName("type")
	return method.IsStreamingServer() && typ != nil && typ.Enum() != nil && typ.Enum().FullName() == pb.Watch_UNSPECIFIED.Descriptor().FullName()
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

// serve serves the operations of a service. mux has everything else that this server serves.
func (all resources) serve(service pb.WitnessServiceServer, guard *access.Guard, mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := slices.IndexFunc(all, func(one *resource) bool { return one.pattern.MatchString(r.URL.Path) })
		if i < 0 {
			serveOther(mux, w, r)
			return
		}
		at, verb := all[i], r.Method
		if verb == http.MethodHead { // the server sends no body
			verb = http.MethodGet
		}
		op := at.operations[verb]
		if op == nil {
			notAllowed(w, r, at.allow())
			return
		}
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			refuse(w, r, status.Errorf(codes.InvalidArgument, "the query is malformed: %s", err))
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
		m, err := op.request(r, q, at.pattern.FindStringSubmatch(r.URL.Path)[1:])
		if err == nil {
			err = op.call(w, r, service, guard, m)
		}
		if err != nil {
			refuse(w, r, err)
		}
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
	answer(w, r, http.StatusMethodNotAllowed, status.Newf(codes.InvalidArgument, "%s is not allowed for %s: use %s", r.Method, r.URL.Path, allow))
}

// httpStatus has the HTTP status of each code. It is 500 for the others.
var httpStatus = map[codes.Code]int{
	codes.Canceled: 499, codes.InvalidArgument: http.StatusBadRequest, codes.FailedPrecondition: http.StatusBadRequest,
	codes.OutOfRange: http.StatusBadRequest, codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.NotFound: http.StatusNotFound, codes.AlreadyExists: http.StatusConflict, codes.Aborted: http.StatusConflict,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.Unimplemented: http.StatusNotImplemented,
	codes.Unavailable: http.StatusServiceUnavailable, codes.DeadlineExceeded: http.StatusGatewayTimeout,
}

// refuse answers a request with an error: a google.rpc.Status.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	s := status.Convert(err)
	answer(w, r, cmp.Or(httpStatus[s.Code()], http.StatusInternalServerError), s)
}

func answer(w http.ResponseWriter, r *http.Request, code int, s *status.Status) {
	body, err := encoded(s.Proto())
	if err != nil { // a detail of an unknown type
		body, _ = encoded(status.New(codes.Internal, s.Message()).Proto())
	}
	access.Challenge(w, r, s.Code())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client may be gone
}
