package aggregator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

var policyForTests = verdict.Policy{
	Cluster: "test", Settle: DefaultSettle, StaleAfter: DefaultStaleAfter,
	NodeTimeout: DefaultNodeTimeout, HandoverGrace: DefaultHandoverGrace,
}

func (l *lab) serve() string {
	l.Helper()
	h, _, err := l.Handlers(l.registry)
	if err != nil {
		l.Fatal(err)
	}
	server := httptest.NewServer(h)
	l.Cleanup(server.Close)
	return server.URL
}

func get(t *testing.T, url string) (code int, contentType string, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header.Get("Content-Type"), string(raw)
}

// A client whose body is too large still receives the response, and learns that the connection will
// be closed. The server must not close it before the client has read the response.
func TestResponseToAnOversizedBodyArrives(t *testing.T) {
	l := newLab(t, Config{})
	r, err := http.Post(l.serve()+"/v1/conflicts/abc:acknowledge", "application/json", strings.NewReader(`{"reason":"`+strings.Repeat("x", maxBody)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusBadRequest || !r.Close {
		t.Errorf("got %d, connection ends: %t, want 400 and that it ends", r.StatusCode, r.Close)
	}
}

// compact removes the spaces that protojson inserts at random.
func compact(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	dec := json.NewDecoder(strings.NewReader(text))
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err := json.NewEncoder(&out).Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func TestRESTOfAnEmptyAggregator(t *testing.T) {
	url := newLab(t, Config{}).serve()
	for _, test := range []struct {
		path string
		code int
		body string
	}{
		{"/v1/owners", 200, `"nextPageToken":"","owners":[]}`},
		{"/v1/owners", 200, `{"coverage":{"awaited":[],"clusters":0,"expected":0,"heard":0,"incomplete":true,`},
		{"/v1/clusters", 200, `{"clusters":[{"coverage":{`},
		{"/v1/clusters?cluster=default&cluster=other", 200, `"name":"default"`},
		{"/v1/owners?cluster=other", 400, `the cluster \"other\" is not known: this aggregator is that of the cluster \"default\"`},
		{"/v1/conflicts?all=true", 200, `{"conflicts":[],"coverage":{`},
		{"/v1/nodes", 200, `"state":"OFF"},"nodes":[],"problems":[]}`},
		{"/v1/owners?address=10.1", 400, `"message":"\"10.1\" is not an address: give one like`},
		{"/v1/owners?address=::ffff:10.0.0.1", 400, "an IPv6 address of its own, whose owners are not compared: ask for 10.0.0.1"},
		{"/v1/owners?cidr=::ffff:10.0.0.0/112", 400, "ask for 10.0.0.0/16"},
		{"/v1/owners?cidr=10.1", 400, "is not a prefix"},
		{"/v1/owners?mac=zz", 400, "is not a hardware address"},
		{"/v1/owners?page_token=zz", 400, "page_token"},
		{"/v1/owners?nonsense=1", 400, `unknown parameter \"nonsense\"`},
		{"/v1/conflicts?state=BROKEN", 400, "state must be SUSPECTED, CONFIRMED or RESOLVED"},
		{"/v1/conflicts?state=257", 400, "state must be SUSPECTED, CONFIRMED or RESOLVED"},
		{"/v1/conflicts?state=confirmed", 200, `{"conflicts":[],"coverage":{`},
		{"/v1/conflicts?all=perhaps", 400, "all must be true or false"},
		{"/v1/owners?page_size=-1", 400, "page_size must be a number: 0 is 1000"},
		{"/v1/owners?pageSize=x", 400, "pageSize must be a number"},
		{"/v1/conflicts/abcdefgh", 404, `"message":"no conflict has the id`},
		{"/v1/findings", 200, `"findings":[],"nextPageToken":""}`},
		{"/v1/findings?page_token=zz", 400, "page_token"},
		{"/v1/nowhere", 404, "/v1/nowhere does not exist"},
		{"/nowhere", 404, "/nowhere does not exist"},
		{"/v1/explain?address=10.0.0.1", 200, "no owner of 10.0.0.1 is known"},
	} {
		code, contentType, body := get(t, url+test.path)
		if code != test.code || contentType != "application/json" || !strings.Contains(compact(t, body), test.body) {
			t.Errorf("%s: got %d %s %s, want %d and %s", test.path, code, contentType, body, test.code, test.body)
		}
	}
	wait.Until(t, "readiness", func() bool {
		code, _, _ := get(t, url+"/readyz")
		return code == 200
	})
	for path, want := range map[string]string{
		"/": "/v1/owners", "/healthz": "ok", "/readyz": "ok", "/openapi.json": `"openapi"`,
		"/metrics": `ipwitness_awaited{what="judgement"} 0`,
	} {
		if code, _, body := get(t, url+path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: got %d %s, want 200 and %s", path, code, body, want)
		}
	}
}

func TestRESTOfAConflict(t *testing.T) {
	l := newLab(t, Config{})
	url := l.serve()
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr), podVeth(4, "c", "fd00::4"))).sync()
	id := l.conflict(pb.Conflict_SUSPECTED).GetId()
	for _, test := range []struct{ path, want string }{
		{"/v1/conflicts/" + id, `"state":"SUSPECTED"`},
		{"/v1/conflicts/" + id, `"id":"` + id + `"`},
		{"/v1/conflicts?state=SUSPECTED&address=" + addr, `"rule":"assigned-twice"`},
		{"/v1/owners?address=" + addr, `"hostInterface":"veth2"`},
		{"/v1/owners?cidr=10.244.0.0/16", `"scope":{"kind":"NODE","name":"n1"}`},
		{"/v1/conflicts?state=suspected", id},
		{"/v1/owners?mac=02-00-00-00-00-04", `"address":"fd00::4"`},
		{"/v1/owners?namespace=default&pod=c", `"address":"fd00::4"`},
		{"/v1/explain?address=" + addr, `"applied":true`},
		{"/v1/nodes", `"state":"LIVE"`},
		{"/metrics", `ipwitness_owners{scope_kind="node"} 3`},
		{"/metrics", `ipwitness_conflict_info{address="10.244.0.5",cause="unknown",id="` + id + `",incident="`},
	} {
		code, contentType, body := get(t, url+test.path)
		if contentType == "application/json" {
			body = compact(t, body)
		}
		if code != 200 || !strings.Contains(body, test.want) {
			t.Errorf("%s: got %d %s, want %s", test.path, code, body, test.want)
		}
	}
	if _, _, body := get(t, url+"/v1/owners?node=n2"); !strings.HasSuffix(compact(t, body), `"nextPageToken":"","owners":[]}`) {
		t.Errorf("got %s, want no owner on n2", body)
	}
}

// A page ends when its items exceed maxPageBytes, whatever page size is requested.
func TestPagesAreBoundedInBytes(t *testing.T) {
	l := newLab(t, Config{})
	a, b := chatty(), podVeth(3, "b", "10.0.0.1")
	b.Namespaces[0].Workload.Process = strings.Repeat("y", 500)
	const n = 2000
	for i := range n {
		addr := fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)
		a.Claims, b.Claims = append(a.Claims, assigned(2, addr)), append(b.Claims, assigned(3, addr))
	}
	l.dial().send(snapshot(hello("n1", 1), a, b)).sync()
	type answer interface {
		proto.Message
		GetNextPageToken() string
	}
	for name, list := range map[string]func(token string) (answer, []string, error){
		"owners": func(token string) (answer, []string, error) {
			got, err := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{PageSize: maxPage, PageToken: token, Cidr: "10.1.0.0/16"})
			var ids []string
			for _, o := range got.GetOwners() {
				ids = append(ids, o.GetAddress()+" "+o.GetNetns())
			}
			return got, ids, err
		},
		"conflicts": func(token string) (answer, []string, error) {
			got, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{PageSize: maxPage, PageToken: token})
			var ids []string
			for _, c := range got.GetConflicts() {
				ids = append(ids, c.GetId())
			}
			return got, ids, err
		},
	} {
		seen, pages := map[string]bool{}, 0
		for token := ""; pages == 0 || token != ""; pages++ {
			page, ids, err := list(token)
			if err != nil {
				t.Fatal(err)
			}
			if size := proto.Size(page); size > maxPageBytes*5/4 {
				t.Errorf("%s: got a page of %d bytes, want no more than about %d", name, size, maxPageBytes)
			}
			for _, id := range ids {
				if seen[id] {
					t.Errorf("%s: got %s twice", name, id)
				}
				seen[id] = true
			}
			token = page.GetNextPageToken()
		}
		if want := map[string]int{"owners": 2 * n, "conflicts": n}[name]; len(seen) != want || pages < 2 {
			t.Errorf("%s: got %d items on %d pages, want %d on more than one page", name, len(seen), pages, want)
		}
	}
}

func TestListsArePagedInOrder(t *testing.T) {
	l := newLab(t, Config{})
	parts := []*pb.ReportRequest{}
	for i := range uint32(50) {
		parts = append(parts, podVeth(2+i, fmt.Sprintf("p%d", i), fmt.Sprintf("10.244.0.%d", 100-i/2)))
	}
	l.dial().send(snapshot(hello("n1", 1), parts...)).sync()
	all := l.owners(&pb.ListOwnersRequest{})
	for size := uint32(1); size < 60; size += 7 {
		var got []string
		q := &pb.ListOwnersRequest{PageSize: size}
		for {
			page, err := l.client.ListOwners(l.ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page.GetOwners() {
				got = append(got, o.GetWorkload().GetName())
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				break
			}
		}
		if len(got) != 50 || len(all) != 50 {
			t.Fatalf("page size %d: got %d owners, want 50", size, len(got))
		}
		for i := range all {
			if all[i].GetWorkload().GetName() != got[i] {
				t.Errorf("page size %d: got %s at %d, want %s", size, got[i], i, all[i].GetWorkload().GetName())
			}
		}
	}
	q := &pb.ListConflictsRequest{PageSize: 10}
	n := 0
	for {
		page, err := l.client.ListConflicts(l.ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		n += len(page.GetConflicts())
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			break
		}
	}
	if n != 25 {
		t.Errorf("got %d conflicts, want 25", n)
	}
}

// A page is filled completely although owners leave while it is created.
func TestAPageEndsOnlyWhereTheListEnds(t *testing.T) {
	s := newTestCore(t)
	r := s.filled(t, hello("n1", 1), podVeth(2, "a", "10.9.0.1"), podVeth(3, "b", "10.0.0.1"))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for is := false; ; is = !is {
			select {
			case <-stop:
				return
			default:
			}
			m := &pb.ReportRequest{}
			for i := range 5 {
				c := assigned(3, fmt.Sprintf("10.0.0.%d", 1+i))
				c.Gone = !is
				m.Claims = append(m.Claims, c)
			}
			if err := r.send(m); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	defer func() { close(stop); <-done }()
	for began := time.Now(); time.Since(began) < 500*time.Millisecond; {
		seen := false
		for q := (&pb.ListOwnersRequest{PageSize: 1}); !seen; {
			page := s.page(t, q)
			seen = len(page.GetOwners()) > 0 && page.GetOwners()[0].GetAddress() == "10.9.0.1"
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				break
			}
		}
		if !seen {
			t.Fatal("got a list without 10.9.0.1, which was never removed")
		}
	}
}

func TestHealthOfEachService(t *testing.T) {
	l := newLab(t, Config{})
	client := healthpb.NewHealthClient(l.conn)
	for _, service := range []string{"", "ipwitness.v1.WitnessService", "ipwitness.v1.ReportService"} {
		<-l.complete
		for { // it may not have started yet
			got, err := client.Check(l.ctx, &healthpb.HealthCheckRequest{Service: service})
			if err != nil {
				t.Fatal(err)
			}
			if got.GetStatus() == healthpb.HealthCheckResponse_SERVING {
				break
			}
		}
	}
}

func TestWatchConflictsOverHTTP(t *testing.T) {
	l := newLab(t, Config{Settle: time.Millisecond})
	url := l.serve()
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	r, err := http.Get(url + "/v1/conflicts:watch")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if got := r.Header.Get("Content-Type"); r.StatusCode != 200 || got != "application/x-ndjson" {
		t.Fatalf("got %d %s, want 200 application/x-ndjson", r.StatusCode, got)
	}
	lines := bufio.NewScanner(r.Body)
	type line struct {
		Result struct {
			Type        string
			ResumeToken string
			Conflict    struct {
				State  string
				Owners []struct{ Workload struct{ Name string } }
			}
		}
	}
	next := func(typ, state string) {
		t.Helper()
		var l line
		for {
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			if l.Result.Type != "BOOKMARK" || typ == "BOOKMARK" { // there is another one when the coverage changes
				break
			}
		}
		if l.Result.Type != typ || l.Result.Conflict.State != state {
			t.Fatalf("got %s, want %s %s", lines.Text(), typ, state)
		}
	}
	next("BOOKMARK", "")
	a.send(podVeth(3, "b", addr)).sync()
	next("ADDED", "SUSPECTED")
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	next("UPDATED", "CONFIRMED")
	a.send(gone(assigned(2, addr))).sync()
	next("UPDATED", "RESOLVED")
	l.stop()
	ended := lines.Scan()
	for ended && !strings.Contains(lines.Text(), "stopping") { // the node's stream ends too, which may be told first
		ended = lines.Scan()
	}
	if !ended || lines.Scan() {
		t.Errorf("got %q, want the reason for the end of the stream", lines.Text())
	}
	if code, _, _ := get(t, url+"/readyz"); code != 503 {
		t.Errorf("got %d from /readyz of a stopped aggregator, want 503", code)
	}
}
