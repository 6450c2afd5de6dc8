package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/apijson"
	"github.com/ipwitness/ipwitness/aggregator/web"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const indexPage = `ipwitness: who really holds this address, right now, and does anybody else?

/v1/owners           ?address= &cidr= &node= &namespace= &pod= &mac= &state= &scope= &at=
/v1/owners:resolve   POST {"questions":[{"address":"…","time":"…","node":"…","network":"…"}]}
/v1/incidents        ?node= &cause= &at=
/v1/incidents/{id}
/v1/conflicts        ?state= &cause= &scope= &address= &cidr= &node= &namespace= &pod= &mac= &incident= &all=true &at=
/v1/conflicts/{id}
/v1/conflicts/{id}:acknowledge   POST {"reason":"…","expiresAt":"…"}, or {"withdraw":true}
/v1/explain          ?address= &case=true
/v1/findings         ?kind= &address= &cidr= &node= &namespace= &pod= &mac= &incident= &at=
/v1/findings/{id}
/v1/pools            ?history=true
/v1/nodes
/v1/nodes/{name}
/v1/clusters
/v1/events           ?kind= &address= &cidr= &node= &namespace= &pod= &mac= &since= &until=
/v1/backup           POST {}; a stream, the files of the data directory
/v1/owners:watch     a stream, one JSON object a line; the same filters
/v1/conflicts:watch  a stream, one JSON object a line; the same filters
/v1/findings:watch   a stream, one JSON object a line; the same filters
/v1/incidents:watch  a stream, one JSON object a line; ?node= &cause=
/v1/nodes:watch      a stream, one JSON object a line; ?name=
/v1/events:watch     a stream, one JSON object a line; the same filters, but no &until=
/openapi.json        what these take and give
/metrics             for Prometheus
/healthz /readyz
`

// compactJSON encodes JSON as the API promises: empty lists and zero values are present.
type compactJSON struct{ runtime.JSONPb }

// streamType is the media type of streams.
const streamType = "application/x-ndjson"

// Marshal implements runtime.Marshaler. Streams do not use it.
func (m *compactJSON) Marshal(v any) ([]byte, error) {
	if message, ok := v.(proto.Message); ok {
		return encoded(message)
	}
	return m.JSONPb.Marshal(v)
}

// encodings pools the buffers in which messages are encoded, because their size is not known in
// advance.
var encodings = sync.Pool{New: func() any { return new([]byte) }}

// encoded returns a message as JSON. The bytes are not used again: HTTP/2 may still read them after a
// Write has returned because the stream was reset.
func encoded(m proto.Message) ([]byte, error) {
	buffer := encodings.Get().(*[]byte)
	defer encodings.Put(buffer)
	out, err := apijson.Append((*buffer)[:0], m)
	if err != nil {
		return nil, err
	}
	*buffer = out
	return bytes.Clone(out), nil
}

// NewDecoder implements runtime.Marshaler. Its errors describe the expected body of a request.
func (m *compactJSON) NewDecoder(r io.Reader) runtime.Decoder {
	decoder := m.JSONPb.NewDecoder(r)
	return runtime.DecoderFunc(func(v any) error {
		err := decoder.Decode(v)
		if err == nil || errors.Is(err, io.EOF) { // an empty body sets no fields
			return err
		}
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			return fmt.Errorf("the body is too large: the limit is %d bytes", tooLarge.Limit)
		}
		return fmt.Errorf("read the body: expected JSON as /openapi.json describes it: %w", err)
	})
}

// maxBody is the maximum size of the body of a request in bytes, except that of questions.
const maxBody = 64 << 10

// Handlers returns the HTTP handlers for callers that guard accepts. rest serves the whole API of
// service. probes serves only health, readiness and the metrics of gatherer, for a separate listener.
// ready reports whether the aggregator runs.
func Handlers(service pb.WitnessServiceServer, gatherer prometheus.Gatherer, guard *access.Guard, ready func() bool) (rest, probes http.Handler, err error) {
	gateway := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &compactJSON{runtime.JSONPb{
			MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true},
		}}),
		runtime.WithOutgoingHeaderMatcher(none),
		runtime.WithIncomingHeaderMatcher(none), // headers of clients must not become metadata, which only this package sets
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
			refuse(w, r, err)
		}),
		runtime.WithDisablePathLengthFallback(), // a POST is never a GET
	)
	err = pb.RegisterWitnessServiceHandlerClient(context.Background(), gateway, pb.NewWitnessServiceClient(direct{service, guard}))
	if err != nil {
		return nil, nil, fmt.Errorf("register REST routes: %w", err)
	}
	paths, err := newResources(pb.OpenAPI)
	if err != nil {
		return nil, nil, err
	}
	site, err := web.New()
	if err != nil {
		return nil, nil, err
	}
	compress, err := gzhttp.NewWrapper(gzhttp.EnableZstd(false), gzhttp.CompressionLevel(gzip.StatelessCompression))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare compression: %w", err)
	}

	probeMux := http.NewServeMux()
	probeMux.HandleFunc("GET /healthz", text("ok\n"))
	probeMux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !ready() {
			http.Error(w, "not running", http.StatusServiceUnavailable)
			return
		}
		text("ok\n")(w, r)
	})
	probeMux.Handle("GET /metrics", guard.Metrics(promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}), refuse))

	// A page of another site must not change anything through the browser of a user who can reach
	// this server.
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { refuse(w, r, errForeign) }))
	mux := http.NewServeMux()
	mux.Handle("/", foreign.Handler(guard.REST(paths.serve(gateway, mux), refuse)))
	for _, pattern := range []string{"GET /healthz", "GET /readyz", "GET /metrics"} {
		mux.Handle(pattern, probeMux)
	}
	mux.Handle("GET /{$}", site.Index(text(indexPage)))
	mux.Handle("GET /assets/", site)
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// It changes with the version of the program only, so that clients may keep it and ask whether it is still the same.
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("Etag", fmt.Sprintf(`W/"%x"`, sha256.Sum256(pb.OpenAPI))) // weak: it may be compressed
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(pb.OpenAPI))
	})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store") // what is true now
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// A writer that does not support deadlines is not a network connection.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin))
		lines := newLinesWriter(w, r)
		mux.ServeHTTP(lines, r.WithContext(context.WithValue(r.Context(), linesKey{}, lines)))
		lines.finish()
	})
	// These handlers are the outermost ones. They tell the server's own writer that the rest of a body is
	// not read. Otherwise a client that is still sending would be disconnected before it has read the
	// response.
	whole := compress(handler)
	usual, questions := http.MaxBytesHandler(whole, maxBody), http.MaxBytesHandler(whole, maxQuestionsBody)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == resolvePath {
			questions.ServeHTTP(w, r)
			return
		}
		usual.ServeHTTP(w, r)
	}), probeMux, nil
}

func none(string) (string, bool) { return "", false }

const (
	// readWithin is how long a client may take to read a part of a stream. It is longer than the
	// limit of a watch, so that a client that resumes reading in time learns why it was
	// disconnected.
	readWithin = 2 * sendWithin
	// answerPart is the size of such a part in bytes.
	answerPart = 64 << 10
	// answerWithin is how long a client may take to read a response that is not a stream. Until
	// then the response uses memory and counts as a call of the client's caller.
	answerWithin = 5 * time.Minute
)

var errForeign = status.Error(codes.PermissionDenied,
	"cross-origin browser request refused: changes are accepted only from other programs and from pages served by this aggregator")

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, body)
	}
}
