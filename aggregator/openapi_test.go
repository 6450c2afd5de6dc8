package aggregator

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A described is a client that compares each response with the description of the REST interface.
type described struct {
	t    *testing.T
	doc  *openapi3.T
	seen map[string]bool // METHOD PATH STATUS
}

// newDescribed reads the description. Fields that it does not have are errors.
func newDescribed(t *testing.T) *described {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(pb.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("got version %s, want OpenAPI 3.1", doc.OpenAPI)
	}
	for _, s := range doc.Components.Schemas {
		if len(s.Value.Properties) > 0 && s.Value.AdditionalProperties.Schema == nil {
			s.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: new(false)}
		}
	}
	return &described{t, doc, make(map[string]bool)}
}

// operation returns the described operation for a request.
func (d *described) operation(method, path string) *routers.Route {
	d.t.Helper()
	parts := strings.Split(path, "/")
	for template, item := range d.doc.Paths.Map() {
		wanted := strings.Split(template, "/")
		fits := len(wanted) == len(parts) && item.GetOperation(method) != nil
		for i := 0; fits && i < len(parts); i++ {
			before, after, variable := strings.Cut(wanted[i], "{")
			_, after, _ = strings.Cut(after, "}")
			fits = wanted[i] == parts[i] || variable && strings.HasPrefix(parts[i], before) && strings.HasSuffix(parts[i], after) &&
				strings.Contains(parts[i], ":") == strings.Contains(after, ":")
		}
		if fits {
			return &routers.Route{Spec: d.doc, Path: template, PathItem: item, Method: method, Operation: item.GetOperation(method)}
		}
	}
	d.t.Fatalf("%s %s is not described", method, path)
	return nil
}

// ask sends a request, and checks its response.
func (d *described) ask(method, url, body, token string) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		d.t.Fatal(err)
	}
	defer r.Body.Close()
	route := d.operation(method, q.URL.Path)
	what := method + " " + route.Path + " " + r.Status[:3]
	d.seen[what] = true
	if r.StatusCode == 200 && r.Header.Get("Content-Type") == "application/x-ndjson" {
		d.lines(what, route.Operation, r.Body)
		return
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	if route.Operation.Responses.Value(r.Status[:3]) == nil {
		d.t.Errorf("%s: got %s, which is not described", what, raw)
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: q, Route: route},
		Status:                 r.StatusCode, Header: r.Header, Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), in.SetBodyBytes(raw)); err != nil {
		d.t.Errorf("%s: %v", what, err)
	}
}

// lines checks the lines of a stream up to the end of the present state.
func (d *described) lines(what string, op *openapi3.Operation, body io.Reader) {
	d.t.Helper()
	schema := op.Responses.Value("200").Value.Content["application/x-ndjson"].Schema.Value
	lines := bufio.NewScanner(body)
	for lines.Buffer(nil, 8<<20); lines.Scan(); {
		var line any
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			d.t.Fatal(err)
		}
		if err := schema.VisitJSON(line, openapi3.EnableJSONSchema2020()); err != nil {
			d.t.Errorf("%s: %s: %v", what, lines.Text(), err)
		}
		if result, _ := line.(map[string]any)["result"].(map[string]any); result["type"] == "BOOKMARK" {
			return
		}
	}
	if err := lines.Err(); err != nil {
		d.t.Errorf("%s: %v", what, err)
	}
}

func TestResponsesAreAsDescribed(t *testing.T) {
	d := newDescribed(t)
	l := newLab(t, Config{DataDir: t.TempDir(), Settle: time.Millisecond})
	url := l.serve()
	l.dial().send(everything(1)).sync()
	l.settled()
	findings, err := l.client.WatchFindings(l.ctx, &pb.WatchFindingsRequest{Kind: "ipam-unreadable"})
	if err != nil {
		t.Fatal(err)
	}
	var finding string
	for finding == "" { // it may be found a moment later
		m, err := findings.Recv()
		if err != nil {
			t.Fatal(err)
		}
		finding = m.GetFinding().GetId()
	}
	conflict, incident := l.conflicts()[0].GetId(), l.conflicts()[0].GetIncident()
	at := "?at=" + time.Now().UTC().Format(time.RFC3339Nano)
	for _, path := range []string{
		"/v1/owners", "/v1/owners" + at, "/v1/owners:watch", "/v1/conflicts", "/v1/conflicts" + at, "/v1/conflicts:watch", "/v1/conflicts/" + conflict,
		"/v1/incidents", "/v1/incidents" + at, "/v1/incidents:watch", "/v1/incidents/" + incident,
		"/v1/findings", "/v1/findings" + at, "/v1/findings:watch", "/v1/findings/" + finding, "/v1/pools", "/v1/clusters", "/v1/nodes", "/v1/nodes:watch", "/v1/nodes/n1",
		"/v1/explain?case=true&address=10.1.0.5", "/v1/explain" + at + "&address=10.1.0.5", "/v1/events", "/v1/events:watch?since=2026-01-01T00:00:00Z",
	} {
		d.ask("GET", url+path, "", "")
		bare, _, _ := strings.Cut(path, "?")
		d.ask("GET", url+bare+"?nonsense=1", "", "")
	}
	for _, path := range []string{"/v1/conflicts/nope", "/v1/findings/nope", "/v1/incidents/nope", "/v1/nodes/nope", "/v1/explain"} {
		d.ask("GET", url+path, "", "")
	}
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	d.ask("POST", url+"/v1/conflicts/"+conflict+":acknowledge", `{"reason":"known","expiresAt":"`+expires+`"}`, "")
	d.ask("POST", url+"/v1/conflicts/"+conflict+":acknowledge", `{"nonsense":1}`, "")
	d.ask("POST", url+"/v1/conflicts/nope:acknowledge", `{"reason":"known","expiresAt":"`+expires+`"}`, "")
	d.ask("POST", url+"/v1/owners:resolve", `{"questions":[{"address":"10.1.0.5"},{"address":"10.1.0.5","time":"2026-01-01T00:00:00Z"},{"address":"x"}]}`, "")
	d.ask("POST", url+"/v1/owners:resolve", `{"nonsense":1}`, "")
	d.ask("POST", url+"/v1/backup", "{}", "")
	d.ask("POST", url+"/v1/backup", "[]", "")

	file := filepath.Join(t.TempDir(), "tokens")
	const reader = "reader-token-0123456789abcdef"
	if err := os.WriteFile(file, []byte(reader+" reader bob\nagent-token-0123456789abcdef agent n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guarded := newLab(t, Config{Access: access.Config{Tokens: file}}).serve()
	for path, item := range d.doc.Paths.Map() {
		for method := range item.Operations() {
			path := strings.NewReplacer("{id}", "x", "{name}", "x").Replace(path)
			d.ask(method, guarded+path, "", "")
			d.ask(method, guarded+path, "", "agent-token-0123456789abcdef")
		}
	}

	// Each operation was called, and failed in each of the usual ways.
	for path, item := range d.doc.Paths.Map() {
		for method, op := range item.Operations() {
			want := []string{"200", "400", "401", "403"}
			if op.Responses.Value("404") != nil {
				want = append(want, "404")
			}
			for _, status := range want {
				if !d.seen[method+" "+path+" "+status] {
					t.Errorf("%s %s never answered with %s: got %v", method, path, status, slices.Sorted(maps.Keys(d.seen)))
				}
			}
		}
	}
}

// What the description says of parameters is what the server accepts.
func TestParametersAreAsDescribed(t *testing.T) {
	d := newDescribed(t)
	url := newLab(t, Config{}).serve()
	for path, item := range d.doc.Paths.Map() {
		op := item.Get
		if op == nil {
			continue
		}
		path = strings.NewReplacer("{id}", "x", "{name}", "x").Replace(path)
		for _, ref := range op.Parameters {
			p := ref.Value
			if p.In != "query" {
				continue
			}
			for _, word := range p.Schema.Value.Enum {
				t.Run(path+"?"+p.Name+"="+word.(string), func(t *testing.T) { // a watch ends with it
					if r := open(t, "GET", url+path+"?"+p.Name+"="+word.(string)); r.StatusCode != 200 && !strings.HasPrefix(path, "/v1/events") {
						t.Errorf("got %d, want that it is accepted", r.StatusCode)
					}
				})
			}
			if len(p.Schema.Value.Enum)+len(p.Schema.Value.Format) > 0 || p.Schema.Value.Type.Is("integer") || p.Schema.Value.Type.Is("boolean") {
				if r, body := ask(t, "GET", url+path+"?"+p.Name+"=nonsense"); r.StatusCode != 400 || message(t, body) == "" {
					t.Errorf("%s?%s=nonsense: got %d %s, want 400", path, p.Name, r.StatusCode, body)
				}
			}
			if p.Required {
				if r, body := ask(t, "GET", url+path); r.StatusCode != 400 {
					t.Errorf("%s without %s: got %d %s, want 400", path, p.Name, r.StatusCode, body)
				}
			}
		}
	}
}
