package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/pki"
)

// api is a Kubernetes API server with objects that a test adds. Its port-forward supports only
// SPDY, as that of old servers; tests/kubernetes has a real one.
type api struct {
	*httptest.Server
	mu       sync.Mutex
	objects  map[string]any // by path; other paths are not found
	denied   []string       // METHOD PATH
	backend  string         // address to which port-forwards connect
	asked    []string       // METHOD PATH
	lifetime time.Duration  // of tokens
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{objects: map[string]any{}, lifetime: tokenLife}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.CloseClientConnections) // Close does not wait for upgraded connections
	t.Cleanup(a.Close)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}],
		contexts: [{name: here, context: {cluster: c}}], current-context: here}`, a.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	asked := r.Method + " " + r.URL.Path
	a.asked = append(a.asked, asked)
	object, denied := a.objects[r.URL.Path], slices.Contains(a.denied, asked)
	a.mu.Unlock()
	switch {
	case denied:
		answer(w, http.StatusForbidden, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403, Message: "the user cannot"})
	case strings.HasSuffix(r.URL.Path, "/portforward"):
		a.forward(w, r)
	case strings.HasSuffix(r.URL.Path, "/token") && object != nil:
		var ask authenticationv1.TokenRequest
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || fmt.Sprint(ask.Spec.Audiences) != "[ipwitness]" {
			answer(w, http.StatusBadRequest, metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: fmt.Sprint(err, ask)})
			return
		}
		ask.Status = authenticationv1.TokenRequestStatus{Token: object.(string), ExpirationTimestamp: metav1.NewTime(time.Now().Add(a.lifetime))}
		answer(w, http.StatusCreated, ask)
	case object == nil:
		answer(w, http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: 404, Message: "not found"})
	default:
		answer(w, http.StatusOK, object)
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	kind := map[string]string{"v1.Status": "Status", "v1.TokenRequest": "TokenRequest", "v1.ServiceList": "ServiceList", "v1.PodList": "PodList", "v1.ConfigMap": "ConfigMap"}
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	version := "v1"
	if _, ok := object.(authenticationv1.TokenRequest); ok {
		version = "authentication.k8s.io/v1"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,%s`, kind[fmt.Sprintf("%T", object)], version, raw[1:])
}

// forward acts as the API server and the kubelet do for a port-forward.
func (a *api) forward(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "no WebSocket here", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	defer func() { _ = conn.Close() }()
	fault, data := <-streams, <-streams
	backend, err := net.Dial("tcp", a.backend)
	if err != nil {
		fmt.Fprintf(fault, "container is not listening on %s", data.Headers().Get(corev1.PortHeader))
		_, _ = fault.Close(), data.Close()
		<-conn.CloseChan()
		return
	}
	go func() {
		_, _ = io.Copy(data, backend)
		_, _ = fault.Close(), data.Close()
	}()
	go func() { _, _ = io.Copy(backend, data) }()
	<-conn.CloseChan()
	_ = backend.Close()
}

// put adds an aggregator to a namespace.
func (a *api) put(namespace, appProtocol string, pods ...corev1.Pod) {
	s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ipwitness"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"a": "b"},
		Ports: []corev1.ServicePort{{Name: "grpc", Port: 9640}, {
			Name: "http", Port: 80, TargetPort: intstr.FromString("web"), AppProtocol: &appProtocol,
		}},
	}}
	a.mu.Lock()
	defer a.mu.Unlock()
	all, _ := a.objects["/api/v1/services"].(corev1.ServiceList)
	all.Items = append(all.Items, s)
	a.objects["/api/v1/services"] = all
	a.objects["/api/v1/namespaces/"+namespace+"/services"] = corev1.ServiceList{Items: []corev1.Service{s}}
	a.objects["/api/v1/namespaces/"+namespace+"/pods"] = corev1.PodList{Items: pods}
}

// aPod returns a pod of an aggregator. It is ready if waiting is empty.
func aPod(namespace, name, waiting string) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 9641}}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if waiting != "" {
		p.Status.Conditions = nil
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting}}}}
	}
	return p
}

// get requests a path and returns the response.
func get(t *testing.T, transport *Transport) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
	a := newAPI(t)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Host, " ", r.URL.Path, " ", r.Header.Get("Authorization"), strings.Repeat(".", 1<<20))
	}))
	defer backend.Close()
	a.backend = backend.Listener.Addr().String()
	a.put("net", "http", aPod("net", "a", "ImagePullBackOff"), aPod("net", "b", ""))
	transport := New(Config{})
	for range 2 {
		got, err := get(t, transport)
		if want := "200 localhost /v1/nodes " + strings.Repeat(".", 1<<20); err != nil || got != want {
			t.Fatalf("got %.80q… and error %v, want %.80q…", got, err, want)
		}
	}
	if got := strings.Count(strings.Join(a.asked, "\n"), "POST /api/v1/namespaces/net/pods/b/portforward"); got != 1 {
		t.Errorf("got %q, want one port-forward, to pod b, for two requests", a.asked)
	}
}

// secured starts an aggregator with TLS, called ipwitness.net.svc, and returns it with the CA of
// its certificate.
func secured(t *testing.T, answer http.HandlerFunc) (backend *httptest.Server, ca []byte, pool *x509.CertPool) {
	t.Helper()
	authority, err := pki.New(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Want{File: "server", Hosts: []string{"ipwitness.net.svc"}})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = os.ReadFile(authority.File); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	backend = httptest.NewUnstartedServer(answer)
	backend.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	backend.StartTLS()
	t.Cleanup(backend.Close)
	return backend, ca, pool
}

// bearer answers with the token of the request.
func bearer(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Authorization")) }

func TestWithTLSTheAggregatorIsVerifiedAndGetsAToken(t *testing.T) {
	backend, ca, pool := secured(t, bearer)
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
			a := newAPI(t)
			a.backend = backend.Listener.Addr().String()
			a.put(namespace, "https", aPod(namespace, "b", ""))
			for path, object := range test.objects {
				a.objects["/api/v1/namespaces/"+namespace+"/"+path] = object
			}
			got, err := get(t, New(test.config))
			if got != test.want || (err == nil) != (test.wantErr == "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("got %q and error %v, want %q and %q", got, err, test.want, test.wantErr)
			}
			if got := strings.Contains(strings.Join(a.asked, "\n"), "/token"); test.config.Token != nil && got {
				t.Errorf("got %q, want no token request in addition to the user's own token", a.asked)
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
	backend, _, pool := secured(t, bearer)
	a := newAPI(t)
	a.backend = backend.Listener.Addr().String()
	a.put("net", "https", aPod("net", "b", ""))
	const path = "/api/v1/namespaces/net/serviceaccounts/ipwitness-reader/token"
	transport := New(Config{TLS: &tls.Config{RootCAs: pool}, Verified: true})
	for _, step := range []struct {
		lifetime    time.Duration
		token, want string
	}{{time.Second, "first", "first"}, {time.Hour, "second", "second"}, {time.Hour, "third", "second"}} {
		a.mu.Lock()
		a.lifetime, a.objects[path] = step.lifetime, step.token
		a.mu.Unlock()
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
	refuse, _, pool := secured(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no token", http.StatusUnauthorized) })
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
			a := newAPI(t)
			a.backend = refuse.Listener.Addr().String()
			a.put("net", "https", aPod("net", "b", ""))
			a.denied = test.denied
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
		put    func(a *api)
		config Config
		want   string
	}{
		"no Service":        {put: func(a *api) { a.objects["/api/v1/services"] = corev1.ServiceList{} }, want: "no Service in any namespace of"},
		"not in this place": {put: func(a *api) { a.objects["/api/v1/namespaces/x/services"] = corev1.ServiceList{} }, config: Config{Namespace: "x"}, want: "no Service in namespace x of"},
		"two": {
			put: func(a *api) {
				a.put("net", "http", aPod("net", "b", ""))
				a.put("test", "http", aPod("test", "b", ""))
			},
			want: "there are 2 aggregators, with the Services net/ipwitness, test/ipwitness: select one with --aggregator-namespace",
		},
		"no pod": {put: func(a *api) { a.put("net", "http") }, want: "Service net/ipwitness has no pod (no pod in this namespace has the labels a=b)"},
		"no pod that is ready": {
			put:  func(a *api) { a.put("net", "http", aPod("net", "b", "CrashLoopBackOff")) },
			want: "no pod of Service net/ipwitness is ready: b is CrashLoopBackOff; 'kubectl --namespace net describe pod' shows why",
		},
		"nobody listens": {put: func(a *api) { a.put("net", "http", aPod("net", "b", "")) }, want: "pod net/b does not answer on port 9641: container is not listening on 9641"},
		"no context":     {put: func(*api) {}, config: Config{Context: "there"}, want: `read the kubeconfig: context "there" does not exist`},
		"no API server":  {put: func(a *api) { a.Close() }, want: "cannot reach the Kubernetes API server http://127.0.0.1:"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.backend = "127.0.0.1:1"
			test.put(a)
			_, err := get(t, New(test.config))
			if e, ok := errors.AsType[secure.Problem](err); !ok || !strings.Contains(e.Error(), test.want) {
				t.Errorf("got %v, want a Problem with %q", err, test.want)
			}
		})
	}
	t.Run("no kubeconfig", func(t *testing.T) {
		t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
		t.Setenv("KUBERNETES_SERVICE_HOST", "") // not in a pod
		_, err := get(t, New(Config{}))
		if err == nil || !strings.Contains(err.Error(), "no kubeconfig found") {
			t.Errorf("got %v, want an error about the missing kubeconfig", err)
		}
	})
}

func TestAggregatorIsFoundAgainAfterAFailure(t *testing.T) {
	a := newAPI(t)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }))
	defer backend.Close()
	a.backend = "127.0.0.1:1"
	a.put("net", "http", aPod("net", "b", ""))
	transport := New(Config{})
	if got, err := get(t, transport); err == nil {
		t.Fatalf("got %q, want an error", got)
	}
	a.mu.Lock()
	a.backend = backend.Listener.Addr().String()
	delete(a.objects, "/api/v1/services")
	a.mu.Unlock()
	a.put("elsewhere", "http", aPod("elsewhere", "c", ""))
	const forwarded = "POST /api/v1/namespaces/elsewhere/pods/c/portforward"
	if got, err := get(t, transport); err != nil || got != "200 localhost" || !slices.Contains(a.asked, forwarded) {
		t.Errorf("got %q and error %v after %q, want the answer of the new aggregator", got, err, a.asked)
	}
}

func TestCancelledRequestEnds(t *testing.T) {
	a := newAPI(t)
	hang := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(hang)
		<-r.Context().Done()
	}))
	defer backend.Close()
	a.backend = backend.Listener.Addr().String()
	a.put("net", "http", aPod("net", "b", ""))
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
