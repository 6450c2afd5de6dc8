// Package forwardtest has what tests of the port-forward need: a Kubernetes API server, and an
// aggregator behind it.
package forwardtest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

	"github.com/ipwitness/ipwitness/tests/pki"
)

// API is a Kubernetes API server with objects that a test adds. Its port-forward supports only
// SPDY, as that of old servers; tests/kubernetes has a real one.
type API struct {
	*httptest.Server
	sync.Mutex                // of the fields
	Objects    map[string]any // by path; other paths are not found
	Denied     []string       // METHOD PATH
	Backend    string         // address to which port-forwards connect
	Asked      []string       // METHOD PATH
	Lifetime   time.Duration  // of tokens
}

// New returns an API server without objects, as the only one of the kubeconfig of the test.
func New(t *testing.T) *API {
	t.Helper()
	a := &API{Objects: map[string]any{}, Lifetime: time.Hour}
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

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.Lock()
	asked := r.Method + " " + r.URL.Path
	a.Asked = append(a.Asked, asked)
	object, denied := a.Objects[r.URL.Path], slices.Contains(a.Denied, asked)
	a.Unlock()
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
		ask.Status = authenticationv1.TokenRequestStatus{Token: object.(string), ExpirationTimestamp: metav1.NewTime(time.Now().Add(a.Lifetime))}
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
func (a *API) forward(w http.ResponseWriter, r *http.Request) {
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
	backend, err := net.Dial("tcp", a.Backend)
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

// Put adds an aggregator to a namespace.
func (a *API) Put(namespace, appProtocol string, pods ...corev1.Pod) {
	s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ipwitness"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"a": "b"},
		Ports: []corev1.ServicePort{{Name: "grpc", Port: 9640}, {
			Name: "http", Port: 80, TargetPort: intstr.FromString("web"), AppProtocol: &appProtocol,
		}},
	}}
	a.Lock()
	defer a.Unlock()
	all, _ := a.Objects["/api/v1/services"].(corev1.ServiceList)
	all.Items = append(all.Items, s)
	a.Objects["/api/v1/services"] = all
	a.Objects["/api/v1/namespaces/"+namespace+"/services"] = corev1.ServiceList{Items: []corev1.Service{s}}
	a.Objects["/api/v1/namespaces/"+namespace+"/pods"] = corev1.PodList{Items: pods}
}

// Pod returns a pod of an aggregator. It is ready if waiting is empty.
func Pod(namespace, name, waiting string) corev1.Pod {
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

// Secured starts an aggregator with TLS, called ipwitness.net.svc, and returns it with the CA of
// its certificate.
func Secured(t *testing.T, answer http.HandlerFunc) (backend *httptest.Server, ca []byte, pool *x509.CertPool) {
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
