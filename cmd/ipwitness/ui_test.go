package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
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
