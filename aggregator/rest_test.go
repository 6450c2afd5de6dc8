package aggregator

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ask sends a request with headers (NAME, VALUE, …) and returns the response with its whole body.
func ask(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r := open(t, method, url, headers...)
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(raw)
}

// open sends a request and returns the response, whose body is closed at the end of the test.
func open(t *testing.T, method, url string, headers ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = r.Body.Close() })
	return r
}

// message returns the message of an error, which must be a google.rpc.Status.
func message(t *testing.T, body string) string {
	t.Helper()
	var s struct {
		Code    int
		Message string
		Details []any
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Code == 0 || s.Details == nil {
		t.Errorf("got %q, want a status: %v", body, err)
	}
	return s.Message
}

func TestParametersAreCheckedForEachPath(t *testing.T) {
	url := newLab(t, Config{}).serve()
	for _, test := range []struct{ path, want string }{
		{"/v1/owners?addrss=10.0.0.1", `unknown parameter "addrss": did you mean "address"?`},
		{"/v1/owners?namspace=a", `unknown parameter "namspace": did you mean "namespace"?`},
		{"/v1/owners?pagesize=1", `unknown parameter "pagesize": did you mean "pageSize"?`},
		{"/v1/owners?cause=unknown", `unknown parameter "cause": this call has address, cidr, node, namespace, pod, mac, page_size, page_token, state, at, scope`},
		{"/v1/conflicts?resume_token=x-1", `unknown parameter "resume_token": this call has`},
		{"/v1/conflicts:watch?all=true", `unknown parameter "all": this call has`},
		{"/v1/conflicts:watch?page_size=1", `unknown parameter "page_size": this call has`},
		{"/v1/owners:watch?at=2026-03-14T15:09:26Z", `unknown parameter "at": this call has`},
		{"/v1/conflicts/abc?id=abd", `unknown parameter "id": this call has no parameters in its query`},
		{"/v1/owners?node=a&node=b", "node is given 2 times: give it once"},
		{"/v1/owners?page_size=1&pageSize=2", "pageSize and page_size are the same parameter: use only one of them"},
		{"/v1/owners?at=yesterday", "at must be a time in RFC 3339, like 2026-03-14T15:09:26Z"},
		{"/v1/owners?node=%zz", "the query is malformed"},
		{"/v1/events?kind=pod", "kind must be OWNER, CONFLICT, FINDING or NODE"},
		{"/v1/explain?address=10.0.0.1&case=maybe", "case must be true or false"},
	} {
		r, body := ask(t, "GET", url+test.path)
		if got := message(t, body); r.StatusCode != 400 || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %d %q, want 400 and %q", test.path, r.StatusCode, got, test.want)
		}
	}
	if r, body := ask(t, "POST", url+"/v1/backup?name=x"); r.StatusCode != 400 || !strings.Contains(message(t, body), "no parameters in its query") {
		t.Errorf("got %d %s, want that a request with a body has no parameters", r.StatusCode, body)
	}
	for _, path := range []string{"/v1/owners?page_size=1", "/v1/owners?pageSize=1&pageToken=", "/v1/owners?state=live&node="} {
		if r, body := ask(t, "GET", url+path); r.StatusCode != 200 {
			t.Errorf("%s: got %d %s, want 200", path, r.StatusCode, body)
		}
	}
}

func TestMethodsArePartOfThePath(t *testing.T) {
	url := newLab(t, Config{}).serve()
	const reading = "GET, HEAD, OPTIONS"
	for path, allow := range map[string]string{
		"/v1/owners": reading, "/v1/owners:watch": reading, "/v1/conflicts/abc": reading, "/healthz": reading, "/metrics": reading,
		"/openapi.json": reading, "/": reading, "/v1/conflicts/abc:acknowledge": "OPTIONS, POST", "/v1/backup": "OPTIONS, POST",
	} {
		wrong := "DELETE"
		if path == "/v1/backup" {
			wrong = "GET"
		}
		r, body := ask(t, wrong, url+path)
		if got := r.Header.Get("Allow"); r.StatusCode != 405 || got != allow || !strings.Contains(message(t, body), "is not allowed") {
			t.Errorf("%s %s: got %d, Allow %q, %s, want 405 and %q", wrong, path, r.StatusCode, got, body, allow)
		}
		r, body = ask(t, "OPTIONS", url+path)
		if got := r.Header.Get("Allow"); r.StatusCode != 204 || got != allow || body != "" {
			t.Errorf("OPTIONS %s: got %d, Allow %q, %q, want 204 and %q", path, r.StatusCode, got, body, allow)
		}
	}
	for _, path := range []string{"/v1", "/v1/", "/v1/owners/", "/v1/conflicts/", "/v1/conflicts/a/b", "/v2/owners", "/v1/owners:list"} {
		for _, method := range []string{"GET", "POST", "OPTIONS"} {
			r, body := ask(t, method, url+path)
			if r.StatusCode != 404 || !strings.Contains(message(t, body), path+" does not exist") || r.Header.Get("Allow") != "" {
				t.Errorf("%s %s: got %d %s, want 404", method, path, r.StatusCode, body)
			}
		}
	}
}

func TestHEADHasTheHeaderOfGET(t *testing.T) {
	l := newLab(t, Config{})
	url := l.serve()
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	for path, contentType := range map[string]string{
		"/v1/owners": "application/json", "/v1/nodes": "application/json", "/v1/explain?address=" + addr: "application/json",
		"/v1/owners:watch": "application/x-ndjson", "/v1/conflicts:watch": "application/x-ndjson", "/v1/findings:watch": "application/x-ndjson",
		"/healthz": "text/plain; charset=utf-8", "/openapi.json": "application/json", "/": "text/plain; charset=utf-8",
	} {
		r, body := ask(t, "HEAD", url+path) // a watch ends, too
		if got := r.Header.Get("Content-Type"); r.StatusCode != 200 || got != contentType || body != "" {
			t.Errorf("HEAD %s: got %d %s %q, want 200 %s", path, r.StatusCode, got, body, contentType)
		}
	}
	for path, code := range map[string]int{
		"/v1/conflicts/abc": 404, "/v1/owners?addrss=1": 400, "/v1/owners:watch?address=1": 400, "/v1/nowhere": 404, "/v1/backup": 405,
	} {
		if r, body := ask(t, "HEAD", url+path); r.StatusCode != code || body != "" {
			t.Errorf("HEAD %s: got %d %q, want %d", path, r.StatusCode, body, code)
		}
	}
}

func TestUnauthenticatedCallersLearnHowToAuthenticate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	const token = "reader-token-0123456789abcdef"
	if err := os.WriteFile(file, []byte(token+" reader bob\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := newLab(t, Config{Access: access.Config{Tokens: file}}).serve()
	for _, path := range []string{"/v1/owners", "/v1/owners:watch", "/metrics"} {
		for given, want := range map[string]string{
			"":                    `Bearer realm="ipwitness"`,
			"Basic YTpi":          `Bearer realm="ipwitness"`,
			"Bearer wrong-token1": `Bearer realm="ipwitness", error="invalid_token"`,
		} {
			r, body := ask(t, "GET", url+path, "Authorization", given)
			if got := r.Header.Values("WWW-Authenticate"); r.StatusCode != 401 || len(got) != 1 || got[0] != want || message(t, body) == "" {
				t.Errorf("%s with %q: got %d %q %s, want 401 and %q", path, given, r.StatusCode, got, body, want)
			}
		}
		if r := open(t, "GET", url+path, "Authorization", "Bearer "+token); r.StatusCode != 200 || r.Header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: got %d, %q, want 200", path, r.StatusCode, r.Header)
		}
	}
	if r, _ := ask(t, "POST", url+"/v1/backup", "Authorization", "Bearer "+token); r.StatusCode != 403 || r.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("got %d, %q, want 403 without a challenge", r.StatusCode, r.Header)
	}
}

func TestResponsesAreNotCachedButTheDescriptionIs(t *testing.T) {
	url := newLab(t, Config{}).serve()
	for _, path := range []string{"/v1/owners", "/v1/conflicts/abc", "/v1/owners:watch", "/healthz", "/metrics", "/nowhere"} {
		if r := open(t, "GET", url+path); r.Header.Get("Cache-Control") != "no-store" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: got %q, want that nothing keeps or reinterprets it", path, r.Header)
		}
	}
	r, _ := ask(t, "GET", url+"/openapi.json")
	tag := r.Header.Get("Etag")
	again, body := ask(t, "GET", url+"/openapi.json", "If-None-Match", tag)
	if tag == "" || again.StatusCode != 304 || body != "" {
		t.Errorf("got %d with %q, want 304", again.StatusCode, tag)
	}
}

func TestResponsesAreCompressedForClientsThatAcceptIt(t *testing.T) {
	l := newLab(t, Config{})
	url := l.serve()
	var parts []*pb.ReportRequest
	for i := range uint32(20) {
		parts = append(parts, podVeth(2+i, "pod", addr))
	}
	agent := l.dial().send(snapshot(hello("n1", 1), parts...))
	agent.sync()
	plain, body := ask(t, "GET", url+"/v1/owners", "Accept-Encoding", "identity")
	if plain.Header.Get("Content-Encoding") != "" || len(body) < 4096 {
		t.Fatalf("got %q and %d bytes, want a plain response of some length", plain.Header, len(body))
	}
	packed, small := ask(t, "GET", url+"/v1/owners", "Accept-Encoding", "gzip")
	if packed.Header.Get("Content-Encoding") != "gzip" || packed.Header.Get("Vary") == "" || len(small) > len(body)/2 {
		t.Errorf("got %q and %d bytes of %d, want them compressed", packed.Header, len(small), len(body))
	}
	unpack, err := gzip.NewReader(strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(unpack); err != nil || len(got) != len(body) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(body))
	}

	// The lines of a watch arrive at once, although it does not end.
	watch := open(t, "GET", url+"/v1/owners:watch", "Accept-Encoding", "gzip")
	if unpack, err = gzip.NewReader(watch.Body); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(unpack)
	await := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("the watch ended before %q: %v", want, lines.Err())
	}
	await(`"type":"BOOKMARK"`)
	agent.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(2, "10.244.0.9")}})
	await(`"address":"10.244.0.9"`)
}
