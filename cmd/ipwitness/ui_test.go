package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/tests/forwardtest"
)

func TestTheProxyOfThePageNeedsItsKeyAndItsHost(t *testing.T) {
	const host, key = "127.0.0.1:4711", "secret"
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization")+r.Header.Get("Cookie"))
		_, _ = io.WriteString(w, "answer")
	}))
	defer server.Close()
	target, err := url.Parse(server.URL + "/prefix")
	if err != nil {
		t.Fatal(err)
	}
	proxy := newUIProxy(target, withToken{http.DefaultTransport}, key, host)
	for _, c := range []struct {
		method, host, path, site string
		code                     int
		asked                    string
	}{
		{"GET", host, "/secret/", "", 200, "GET /prefix/ Bearer of the user"},
		{"GET", host, "/secret/v1/owners?cidr=10.0.0.0%2F8", "", 200, "GET /prefix/v1/owners?cidr=10.0.0.0%2F8 Bearer of the user"},
		{"GET", host, "/v1/owners", "", 404, ""},
		{"GET", host, "/secre/v1/owners", "", 404, ""},
		{"GET", host, "/secret", "", 404, ""},
		{"GET", "rebound.example:4711", "/secret/v1/owners", "", 404, ""},
		{"POST", host, "/secret/v1/conflicts/a:acknowledge", "cross-site", 403, ""},
		{"POST", host, "/secret/v1/conflicts/a:acknowledge", "same-origin", 200, "POST /prefix/v1/conflicts/a:acknowledge Bearer of the user"},
	} {
		asked = nil
		r := httptest.NewRequest(c.method, "http://"+c.host+c.path, nil)
		r.Header.Set("Cookie", "session=other")
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, r)
		got := ""
		if len(asked) > 0 {
			got = asked[0]
		}
		if w.Code != c.code || got != c.asked {
			t.Errorf("%s %s%s (%s): got %d and the request %q, want %d and %q", c.method, c.host, c.path, c.site, w.Code, got, c.code, c.asked)
		}
	}
}

// withToken adds the credentials of the user, as the transport of the commands does.
type withToken struct{ http.RoundTripper }

func (t withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer of the user")
	return t.RoundTripper.RoundTrip(r)
}

// Through the port-forward, the browser needs no token, although the aggregator wants one.
func TestKubectlIpwitnessUIUsesTheRightsOfTheUser(t *testing.T) {
	const token, account = "issued-for-the-reader", "/api/v1/namespaces/net/serviceaccounts/ipwitness-reader/token"
	aggregator, ca, _ := forwardtest.Secured(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, `{"code":16,"message":"who are you?"}`, http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"nodes":[]}`)
	})
	a := forwardtest.New(t)
	a.Backend = aggregator.Listener.Addr().String()
	a.Put("net", "https", forwardtest.Pod("net", "b", ""))
	a.Objects["/api/v1/namespaces/net/configmaps/ipwitness-ca"] = corev1.ConfigMap{Data: map[string]string{"ca.crt": string(ca)}}
	a.Objects[account] = token

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, printed := newConsole(), make(chan string, 1)
	out, in := io.Pipe()
	c.plugin, c.system.stdout = true, in
	code := make(chan int, 1)
	go func() {
		code <- execute(ctx, c.system, []string{"ui"})
		_ = in.Close()
	}()
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n') // empty if the command fails
		printed <- strings.TrimSpace(line)
	}()
	page := <-printed
	if page == "" {
		t.Fatalf("got exit code %d and no address: %s", <-code, &c.stderr)
	}
	res, err := http.Get(page + "v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("got %s and %v without a token, want the nodes", res.Status, err)
	}
	for name, values := range res.Header {
		if strings.Contains(strings.Join(values, " "), token) {
			t.Errorf("the header %s has the token", name)
		}
	}
	if strings.Contains(page+c.stderr.String(), token) {
		t.Error("the command prints the token")
	}
	a.Lock()
	if asked := strings.Join(a.Asked, "\n"); !strings.Contains(asked, "POST "+account) {
		t.Errorf("got the requests\n%s\nwant one for a token", asked)
	}
	a.Unlock()
	cancel()
	if got := <-code; got != 0 {
		t.Errorf("got exit code %d after Ctrl-C, want 0", got)
	}
}
