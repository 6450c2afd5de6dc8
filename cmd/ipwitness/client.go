package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

// answerTimeout is the timeout of a list, and of the beginning of a watch.
const answerTimeout = 30 * time.Second

// client queries the REST API of one server.
type client struct {
	base    string // http://HOST:PORT, without a slash at the end
	program string // used in advice
	http    http.Client
}

// newTransport returns the transport of a client, with timeouts that suit slow servers.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	t.ResponseHeaderTimeout = answerTimeout
	return t
}

// parseServer accepts http://HOST:PORT, also without http://, and with a path.
func parseServer(s string) (string, error) {
	full := s
	if !strings.Contains(s, "://") {
		full = "http://" + s
	}
	u, err := url.Parse(full)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is not the URL of a server: write it like http://127.0.0.1:9641", s)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// serverError is an error that the server returned.
type serverError struct {
	code    codes.Code
	message string
	// resume is the token to resume a watch that was disconnected because this client did not read.
	resume string
}

func (e *serverError) Error() string { return e.message }

// get requests one message.
func (c *client) get(ctx context.Context, path string, query url.Values, into proto.Message) error {
	return c.call(ctx, http.MethodGet, path, query, nil, into)
}

// call sends a request and reads the whole answer.
func (c *client) call(ctx context.Context, method, path string, query url.Values, ask, into proto.Message) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %s", answerTimeout))
	defer cancel()
	body, err := c.open(ctx, method, path, query, ask)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // opened for reading only
	raw, err := io.ReadAll(body)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if err := decode(raw, into); err != nil {
		return fmt.Errorf("%s did not answer %s as an ipwitness server does: check --server (%w)", c.base, path, err)
	}
	return nil
}

// next reads the next message of a stream: {"result":MESSAGE} or {"error":STATUS}.
func (c *client) next(ctx context.Context, lines *json.Decoder, into proto.Message) error {
	var line struct{ Result, Error json.RawMessage }
	err := lines.Decode(&line)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	if err != nil && !syntax && !kind {
		return c.unreachable(ctx, err)
	}
	if err == nil {
		if err := decodeStatus(line.Error); err != nil {
			return err
		}
		err = decode(line.Result, into)
	}
	if err != nil {
		return fmt.Errorf("%s sent a message that is not from an ipwitness server: check --server (%w)", c.base, err)
	}
	return nil
}

// paged is a list that may have more pages.
type paged interface {
	proto.Message
	GetNextPageToken() string
	GetCoverage() *pb.Coverage
}

// pages requests a list page by page until take, which gets each page, returns false. It returns the
// coverage of the first page.
func pages[P paged](ctx context.Context, c *client, path string, query url.Values, take func(P) bool) (coverage *pb.Coverage, err error) {
	q := url.Values{}
	maps.Copy(q, query)
	for {
		var page P
		page = page.ProtoReflect().New().Interface().(P)
		if err := c.get(ctx, path, q, page); err != nil {
			return nil, err
		}
		coverage = cmp.Or(coverage, page.GetCoverage())
		if !take(page) || page.GetNextPageToken() == "" {
			return coverage, nil
		}
		q.Set("page_token", page.GetNextPageToken())
	}
}

// open sends a request and returns the body of a successful response.
func (c *client) open(ctx context.Context, method, path string, query url.Values, ask proto.Message) (io.ReadCloser, error) {
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var content []byte
	if ask != nil {
		var err error
		if content, err = protojson.Marshal(ask); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if ask != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer func() { _ = res.Body.Close() }() // opened for reading only
	raw, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	var stream struct{ Error json.RawMessage } // of a stream that ends before its first message
	_ = json.Unmarshal(raw, &stream)           // or it is no stream
	if err := cmp.Or(decodeStatus(raw), decodeStatus(stream.Error)); err != nil {
		return nil, err
	}
	if strings.Contains(string(raw), "HTTP request to an HTTPS server") { // net/http
		return nil, secure.NewProblem(fmt.Errorf("%s uses TLS: use https:// in --server, and set --tls-ca to the CA of its certificate", c.base))
	}
	if port := c.otherPort(); port != "" {
		return nil, secure.NewProblem(fmt.Errorf("%s does not answer commands: %s", c.base, port))
	}
	code := codes.Unavailable
	if res.StatusCode < http.StatusInternalServerError {
		code = codes.InvalidArgument
	}
	return nil, &serverError{code: code, message: fmt.Sprintf("%s answered %s, but not as an ipwitness server does: check --server", target, res.Status)}
}

// otherPort says what the port of the server is for by default, if that is not for commands.
func (c *client) otherPort() string {
	at, err := url.Parse(c.base)
	switch {
	case err != nil:
	case at.Port() == "9640":
		return "port 9640 is that of gRPC, for agents; that for commands is 9641"
	case at.Port() == "9642":
		return "port 9642 is that of an agent; ask the aggregator, on port 9641"
	}
	return ""
}

// decode parses a message and ignores fields that a newer server adds.
func decode(raw []byte, into proto.Message) error {
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, into)
}

// decodeStatus returns the error in the body of a response, or nil if there is none.
func decodeStatus(raw []byte) error {
	var status struct {
		Code    uint32 `json:"code"` // codes.Code refuses numbers that it does not know
		Message string `json:"message"`
		Details []struct {
			Metadata struct {
				ResumeToken string `json:"resume_token"`
			} `json:"metadata"`
		} `json:"details"`
	}
	if json.Unmarshal(raw, &status) != nil || status.Message == "" {
		return nil
	}
	e := &serverError{code: codes.Code(status.Code), message: status.Message}
	for _, detail := range status.Details {
		e.resume = cmp.Or(e.resume, detail.Metadata.ResumeToken)
	}
	return e
}

// unreachableError is the error that a server could not be reached or closed the connection.
type unreachableError struct {
	base, program string
	reason        error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("cannot reach %s: %s: start it with '%s run', or select another server with --server or IPWITNESS_SERVER",
		e.base, e.reason, e.program)
}

func (e *unreachableError) Unwrap() error { return e.reason }

// unreachable returns the error of a connection, with what to do.
func (c *client) unreachable(ctx context.Context, err error) error {
	if problem, ok := errors.AsType[secure.Problem](err); ok {
		return problem
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return secure.NewProblem(fmt.Errorf("cannot verify the certificate of %s: %w: set --tls-ca to its CA, and use a server name that is in the certificate", c.base, bad.Err))
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return secure.NewProblem(fmt.Errorf("%s does not use TLS: use http:// in --server", c.base))
	}
	var op *net.OpError
	var call *os.SyscallError
	var asked *url.Error
	switch { // without what the user already knows
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &call):
		err = call.Err
	case errors.As(err, &op):
		err = op.Err
	case errors.As(err, &asked):
		err = asked.Err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the server closed the connection")
	}
	if port := c.otherPort(); port != "" && call == nil {
		return secure.NewProblem(fmt.Errorf("%s does not answer commands: %s", c.base, port))
	}
	return &unreachableError{c.base, c.program, err}
}
