package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/forwardtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// get requests a path and returns the response.
func get(t *testing.T, transport *Transport) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+Host+"/v1/nodes", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return strings.TrimSpace(fmt.Sprintf("%d %s", res.StatusCode, raw)), err
}

func TestRequestsReachAPodThatIsReady(t *testing.T) {
	a := forwardtest.New(t)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Host, " ", r.URL.Path, " ", r.Header.Get("Authorization"), strings.Repeat(".", 1<<20))
	}))
	defer backend.Close()
	a.Backend = backend.Listener.Addr().String()
	a.Put("net", "http", forwardtest.Pod("net", "a", "ImagePullBackOff"), forwardtest.Pod("net", "b", ""))
	transport := New(Config{})
	for range 2 {
		got, err := get(t, transport)
		if want := "200 localhost /v1/nodes " + strings.Repeat(".", 1<<20); err != nil || got != want {
			t.Fatalf("got %.80q… and error %v, want %.80q…", got, err, want)
		}
	}
	if got := strings.Count(strings.Join(a.Asked, "\n"), "POST /api/v1/namespaces/net/pods/b/portforward"); got != 1 {
		t.Errorf("got %q, want one port-forward, to pod b, for two requests", a.Asked)
	}
}

// bearer answers with the token of the request.
func bearer(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Authorization")) }

func TestWithTLSTheAggregatorIsVerifiedAndGetsAToken(t *testing.T) {
	backend, ca, pool := forwardtest.Secured(t, bearer)
	for name, test := range map[string]struct {
		namespace string
		config    Config
		objects   map[string]any
		want      string
		wantErr   string
	}{
		"as the chart installs it": {
			objects: map[string]any{"configmaps/ipwitness-ca": corev1.ConfigMap{Data: map[string]string{"ca.crt": string(ca)}}, "serviceaccounts/ipwitness-reader/token": "secret"},
			want:    "200 Bearer secret",
		},
		"a CA and a token of the user's": {
			config:  Config{TLS: &tls.Config{RootCAs: pool}, Verified: true, Token: func(next http.RoundTripper) http.RoundTripper { return own{next} }},
			objects: map[string]any{"serviceaccounts/ipwitness-reader/token": "secret"},
			want:    "200 https ipwitness.net.svc",
		},
		"a certificate of the user's": {
			config:  Config{TLS: &tls.Config{Certificates: backend.TLS.Certificates}},
			objects: map[string]any{"configmaps/ipwitness-ca": corev1.ConfigMap{Data: map[string]string{"ca.crt": string(ca)}}, "serviceaccounts/ipwitness-reader/token": "secret"},
			want:    "200",
		},
		"no account, but it may not be needed": {
			objects: map[string]any{"configmaps/ipwitness-ca": corev1.ConfigMap{Data: map[string]string{"ca.crt": string(ca)}}},
			want:    "200",
		},
		"no CA":        {wantErr: "there is no ConfigMap net/ipwitness-ca with the CA of the aggregator's certificate: set --tls-ca to the CA"},
		"an empty CA":  {objects: map[string]any{"configmaps/ipwitness-ca": corev1.ConfigMap{}}, wantErr: "ConfigMap net/ipwitness-ca has no certificate in ca.crt"},
		"another CA":   {config: Config{TLS: &tls.Config{RootCAs: x509.NewCertPool()}, Verified: true}, wantErr: "certificate signed by unknown authority"},
		"another name": {namespace: "other", config: Config{TLS: &tls.Config{RootCAs: pool}, Verified: true}, wantErr: "certificate is valid for ipwitness.net.svc, not ipwitness.other.svc"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := test.namespace
			if namespace == "" {
				namespace = "net"
			}
			a := forwardtest.New(t)
			a.Backend = backend.Listener.Addr().String()
			a.Put(namespace, "https", forwardtest.Pod(namespace, "b", ""))
			for path, object := range test.objects {
				a.Objects["/api/v1/namespaces/"+namespace+"/"+path] = object
			}
			got, err := get(t, New(test.config))
			if got != test.want || (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %q and error %v, want %q and %q", got, err, test.want, test.wantErr)
			}
			if got := strings.Contains(strings.Join(a.Asked, "\n"), "/token"); test.config.Token != nil && got {
				t.Errorf("got %q, want no token request in addition to the user's own token", a.Asked)
			}
		})
	}
}

// own adds a token of the user to requests.
type own struct{ http.RoundTripper }

func (o own) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", r.URL.Scheme+" "+r.URL.Host)
	return o.RoundTripper.RoundTrip(r)
}

func TestATokenIsRenewedBeforeItEnds(t *testing.T) {
	backend, _, pool := forwardtest.Secured(t, bearer)
	a := forwardtest.New(t)
	a.Backend = backend.Listener.Addr().String()
	a.Put("net", "https", forwardtest.Pod("net", "b", ""))
	const path = "/api/v1/namespaces/net/serviceaccounts/ipwitness-reader/token"
	transport := New(Config{TLS: &tls.Config{RootCAs: pool}, Verified: true})
	for _, step := range []struct {
		lifetime    time.Duration
		token, want string
	}{{time.Second, "first", "first"}, {time.Hour, "second", "second"}, {time.Hour, "third", "second"}} {
		a.Lock()
		a.Lifetime, a.Objects[path] = step.lifetime, step.token
		a.Unlock()
		if got, err := get(t, transport); err != nil || got != "200 Bearer "+step.want {
			t.Fatalf("got %q and error %v, want the token %q", got, err, step.want)
		}
		if step.token == "first" {
			transport.mu.Lock()
			if left := time.Until(transport.route.token.until); left > time.Second {
				t.Errorf("got %s until a token with a lifetime of one second is renewed", left)
			}
			transport.route.token.until = time.Now() // expire it
			transport.mu.Unlock()
		}
	}
}

func TestRefusalNamesTheMissingPermission(t *testing.T) {
	refuse, _, pool := forwardtest.Secured(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no token", http.StatusUnauthorized) })
	for name, test := range map[string]struct {
		denied []string
		config Config
		want   string
	}{
		"services": {
			denied: []string{"GET /api/v1/services", "GET /api/v1/namespaces/ipwitness/services"},
			want:   "cannot look for the Service of ipwitness: you lack the permission to list services in namespace ipwitness; the Role ipwitness-port-forward of the chart grants it",
		},
		"pods": {denied: []string{"GET /api/v1/namespaces/net/pods"}, want: "you lack the permission to list pods in namespace net;"},
		"port-forward": {
			denied: []string{"GET /api/v1/namespaces/net/pods/b/portforward", "POST /api/v1/namespaces/net/pods/b/portforward"},
			want:   "cannot reach pod net/b: you lack the permission to create pods/portforward in namespace net;",
		},
		"the CA":  {denied: []string{"GET /api/v1/namespaces/net/configmaps/ipwitness-ca"}, config: Config{TLS: &tls.Config{}}, want: "you lack the permission to get configmaps in namespace net;"},
		"a token": {denied: []string{"POST /api/v1/namespaces/net/serviceaccounts/ipwitness-reader/token"}, want: "(or set one with --token-file): you lack the permission to create serviceaccounts/token in namespace net;"},
	} {
		t.Run(name, func(t *testing.T) {
			a := forwardtest.New(t)
			a.Backend = refuse.Listener.Addr().String()
			a.Put("net", "https", forwardtest.Pod("net", "b", ""))
			a.Denied = test.denied
			if test.config.TLS == nil {
				test.config.TLS, test.config.Verified = &tls.Config{RootCAs: pool}, true
			}
			_, err := get(t, New(test.config))
			if e, ok := errors.AsType[secure.Problem](err); !ok || !strings.Contains(e.Error(), test.want) {
				t.Errorf("got %v, want a Problem with %q", err, test.want)
			}
		})
	}
}

func TestMissingObjectsAreExplained(t *testing.T) {
	for name, test := range map[string]struct {
		put    func(a *forwardtest.API)
		config Config
		want   string
	}{
		"no Service":        {put: func(a *forwardtest.API) { a.Objects["/api/v1/services"] = corev1.ServiceList{} }, want: "no Service in any namespace of"},
		"not in this place": {put: func(a *forwardtest.API) { a.Objects["/api/v1/namespaces/x/services"] = corev1.ServiceList{} }, config: Config{Namespace: "x"}, want: "no Service in namespace x of"},
		"two": {
			put: func(a *forwardtest.API) {
				a.Put("net", "http", forwardtest.Pod("net", "b", ""))
				a.Put("test", "http", forwardtest.Pod("test", "b", ""))
			},
			want: "there are 2 aggregators, with the Services net/ipwitness, test/ipwitness: select one with --aggregator-namespace",
		},
		"no pod": {put: func(a *forwardtest.API) { a.Put("net", "http") }, want: "Service net/ipwitness has no pod (no pod in this namespace has the labels a=b)"},
		"no pod that is ready": {
			put:  func(a *forwardtest.API) { a.Put("net", "http", forwardtest.Pod("net", "b", "CrashLoopBackOff")) },
			want: "no pod of Service net/ipwitness is ready: b is CrashLoopBackOff; 'kubectl --namespace net describe pod' shows why",
		},
		"nobody listens": {put: func(a *forwardtest.API) { a.Put("net", "http", forwardtest.Pod("net", "b", "")) }, want: "pod net/b does not answer on port 9641: container is not listening on 9641"},
		"no context":     {put: func(*forwardtest.API) {}, config: Config{Context: "there"}, want: `read the kubeconfig: context "there" does not exist`},
		"no API server":  {put: func(a *forwardtest.API) { a.Close() }, want: "cannot reach the Kubernetes API server http://127.0.0.1:"},
	} {
		t.Run(name, func(t *testing.T) {
			a := forwardtest.New(t)
			a.Backend = "127.0.0.1:1"
			test.put(a)
			_, err := get(t, New(test.config))
			if e, ok := errors.AsType[secure.Problem](err); !ok || !strings.Contains(e.Error(), test.want) {
				t.Errorf("got %v, want a Problem with %q", err, test.want)
			}
		})
	}
	t.Run("no kubeconfig", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "none")
		t.Setenv("KUBECONFIG", missing)
		t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
		_, err := get(t, New(Config{}))
		if err == nil || !strings.Contains(err.Error(), "KUBECONFIG="+missing+" has no cluster: the file does not exist") {
			t.Errorf("got %v, want an error about the missing kubeconfig", err)
		}
	})
}

func TestAggregatorIsFoundAgainAfterAFailure(t *testing.T) {
	a := forwardtest.New(t)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }))
	defer backend.Close()
	a.Backend = "127.0.0.1:1"
	a.Put("net", "http", forwardtest.Pod("net", "b", ""))
	transport := New(Config{})
	if got, err := get(t, transport); err == nil {
		t.Fatalf("got %q, want an error", got)
	}
	a.Lock()
	a.Backend = backend.Listener.Addr().String()
	delete(a.Objects, "/api/v1/services")
	a.Unlock()
	a.Put("elsewhere", "http", forwardtest.Pod("elsewhere", "c", ""))
	const forwarded = "POST /api/v1/namespaces/elsewhere/pods/c/portforward"
	if got, err := get(t, transport); err != nil || got != "200 localhost" || !slices.Contains(a.Asked, forwarded) {
		t.Errorf("got %q and error %v after %q, want the answer of the new aggregator", got, err, a.Asked)
	}
}

func TestCancelledRequestEnds(t *testing.T) {
	a := forwardtest.New(t)
	hang := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(hang)
		<-r.Context().Done()
	}))
	defer backend.Close()
	a.Backend = backend.Listener.Addr().String()
	a.Put("net", "http", forwardtest.Pod("net", "b", ""))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hang
		cancel()
	}()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+Host+"/", nil)
	_, err := New(Config{}).RoundTrip(req)
	var asked *url.Error
	if !errors.Is(err, context.Canceled) || errors.As(err, &asked) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
}
