package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upgraded "k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // spdy.Upgrader returns its Connection
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// dial connects to a ready pod of the service. The dialers of client-go do not support contexts, but http.Transport
// waits for a connection only as long as the request.
func (c *cluster) dial(ctx context.Context, s service) (net.Conn, error) {
	p, err := c.pod(ctx, s)
	if err != nil {
		return nil, err
	}
	dialer, err := c.dialer(p)
	if err != nil {
		return nil, failed("prepare port-forward to pod %s/%s: %w", p.namespace, p.name, err)
	}
	opened, err := open(dialer, p)
	if err != nil {
		return nil, c.refused(err, "create", "pods/portforward", p.namespace, "reach pod "+p.namespace+"/"+p.name)
	}
	return opened, nil
}

// dialer returns a dialer of streams to a pod. It uses a WebSocket, or SPDY if the API server or a
// proxy in front of it does not support WebSockets.
func (c *cluster) dialer(p pod) (httpstream.Dialer, error) {
	where := c.core.Get().Namespace(p.namespace).Resource("pods").Name(p.name).SubResource("portforward").URL()
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(where, c.config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(typed{upgrader}, &http.Client{Transport: transport}, http.MethodPost, where)
	return portforward.NewFallbackDialerForStreaming(websocket, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// typed keeps the status code of a refused upgrade. client-go keeps only the text.
type typed struct{ spdy.Upgrader }

// NewConnection implements spdy.Upgrader.
func (u typed) NewConnection(r *http.Response) (upgraded.Connection, error) {
	conn, err := u.Upgrader.NewConnection(r)
	if err != nil {
		err = &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(r.StatusCode), Message: err.Error()}} //nolint:gosec // three digits
	}
	return conn, err
}

// open opens one connection to a port of a pod.
func open(dialer httpstream.Dialer, p pod) (*conn, error) {
	streams, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	stream := func(kind string) (httpstream.Stream, error) {
		return streams.CreateStream(http.Header{
			http.CanonicalHeaderKey(corev1.StreamType):                 {kind},
			http.CanonicalHeaderKey(corev1.PortHeader):                 {strconv.Itoa(p.port)},
			http.CanonicalHeaderKey(corev1.PortForwardRequestIDHeader): {"0"},
		})
	}
	faults, err := stream(corev1.StreamTypeError)
	if err == nil {
		_ = faults.Close() // nothing is written to it
	}
	var data httpstream.Stream
	if err == nil {
		data, err = stream(corev1.StreamTypeData)
	}
	if err != nil {
		_ = streams.Close() // the error is of the stream
		return nil, err
	}
	c := &conn{Stream: data, streams: streams, pod: p, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		text, _ := io.ReadAll(io.LimitReader(faults, 4<<10)) // it ends with the connection
		c.fault = strings.TrimSpace(string(text))
	}()
	return c, nil
}

// conn is a connection to a port of a pod.
type conn struct {
	httpstream.Stream
	streams httpstream.Connection
	pod     pod

	ended chan struct{} // closed when fault is known
	fault string        // the kubelet's error message
}

// Read implements net.Conn. At the end of a connection, it returns the kubelet's error, if there is
// one.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	select {
	case <-c.ended:
	case <-c.streams.CloseChan():
		<-c.ended
	}
	if c.fault != "" {
		return n, failed("pod %s/%s does not answer on port %d: %s", c.pod.namespace, c.pod.name, c.pod.port, c.fault)
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error { return c.streams.Close() }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return address{} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return address(c.pod) }

// SetDeadline implements net.Conn. It has no effect, because callers use contexts.
func (c *conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// address is the address of an end of a connection.
type address pod

// Network implements net.Addr.
func (address) Network() string { return "port-forward" }

// String implements net.Addr.
func (a address) String() string { return a.namespace + "/" + a.name }
