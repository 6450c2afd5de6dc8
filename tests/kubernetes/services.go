package kubernetes

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
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Services take the place of kube-proxy, the cluster's DNS and a pod network between nodes. On
// every machine the addresses of Services lead to ready pods, and nodes can resolve their names.
// Connections go through this process, which opens the second half of each on the pod's node,
// because pods of two nodes may have the same address. For the same reason, the name of a headless
// Service resolves to loopback addresses, one for each pod.
type Services struct {
	cluster *Cluster
	client  *http.Client
	dns     net.PacketConn
	// ctx ends when the Services do, and working has the goroutines, which use the machines.
	ctx     context.Context
	end     context.CancelFunc
	working sync.WaitGroup

	mu        sync.Mutex
	addresses map[string]bool      // of Services that are served
	pods      map[types.UID]string // addresses that lead to one pod
	listeners []net.Listener
}

// Services starts Services. A Service works from the first DNS query for its name on;
// kubernetes.default works immediately.
func (c *Cluster) Services(ctx context.Context) (*Services, error) {
	cert, err := os.ReadFile(c.Path(apiCert))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	s := &Services{cluster: c, client: c.Client(), addresses: map[string]bool{}, pods: map[types.UID]string{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	err = c.Do(func() (err error) {
		s.dns, err = net.ListenPacket("udp4", Address+":53")
		return err
	})
	if err != nil {
		s.end()
		return nil, fmt.Errorf("offer DNS: %w", err)
	}
	s.working.Go(s.resolve)
	if _, err := s.Serve(ctx, "default", "kubernetes"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the Services.
func (s *Services) Close() {
	s.end()
	_ = s.dns.Close()
	s.mu.Lock()
	for _, l := range s.listeners {
		_ = l.Close()
	}
	s.mu.Unlock()
	s.working.Wait()
	for address := range s.addresses {
		for _, h := range s.cluster.machines() {
			_, _ = h.Run("ip addr del %s/32 dev lo", address)
		}
	}
	s.client.CloseIdleConnections()
}

// get sends a GET request to the API server.
func (s *Services) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+Address+":6443"+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer admin")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(to)
}

// Serve serves the address of a Service on all machines, and returns it.
func (s *Services) Serve(ctx context.Context, namespace, name string) (string, error) {
	addresses, err := s.serve(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	if len(addresses) != 1 {
		return "", fmt.Errorf("serve %s/%s: got addresses %v, want one", namespace, name, addresses)
	}
	return addresses[0], nil
}

// serve serves the addresses to which the name of a Service resolves.
func (s *Services) serve(ctx context.Context, namespace, name string) ([]string, error) {
	var service corev1.Service
	if err := s.get(ctx, "/api/v1/namespaces/"+namespace+"/services/"+name, &service); err != nil {
		return nil, err
	}
	headless := service.Spec.ClusterIP == corev1.ClusterIPNone
	pods := map[types.UID]bool{}
	for _, port := range service.Spec.Ports {
		if !headless {
			break
		}
		all, err := s.endpoints(ctx, namespace, name, port.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			pods[e.pod] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !headless {
		address := service.Spec.ClusterIP
		if s.addresses[address] {
			return []string{address}, nil
		}
		s.addresses[address] = true
		for _, h := range s.cluster.machines() {
			if _, err := h.Run("ip addr add %s/32 dev lo", address); err != nil {
				return nil, err
			}
		}
		return []string{address}, s.listen(&service, address, "")
	}
	var addresses []string
	for pod := range pods {
		if s.pods[pod] == "" {
			n := len(s.pods) + 1
			s.pods[pod] = fmt.Sprintf("127.97.%d.%d", n/256, n%256)
			if err := s.listen(&service, s.pods[pod], pod); err != nil {
				return nil, err
			}
		}
		addresses = append(addresses, s.pods[pod])
	}
	slices.Sort(addresses)
	return addresses, nil
}

// listen listens on all machines at an address that leads to a pod of a Service; empty for any. The caller
// holds mu.
func (s *Services) listen(service *corev1.Service, address string, pod types.UID) error {
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	for _, h := range s.cluster.machines() {
		for _, port := range service.Spec.Ports {
			var l net.Listener
			err := h.Do(func() (err error) {
				l, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", address, port.Port))
				return err
			})
			if err != nil {
				return fmt.Errorf("serve %s/%s: %w", service.Namespace, service.Name, err)
			}
			s.listeners = append(s.listeners, l)
			s.working.Go(func() {
				s.accept(l, func(ctx context.Context) (net.Conn, error) {
					return s.dial(ctx, service.Namespace, service.Name, port.Name, pod)
				})
			})
		}
	}
	return nil
}

func (s *Services) accept(l net.Listener, dial func(context.Context) (net.Conn, error)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		s.working.Go(func() {
			defer func() { _ = conn.Close() }()
			ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
			defer cancel()
			to, err := dial(ctx)
			if err != nil {
				return // without an endpoint, the connection is closed
			}
			defer func() { _ = to.Close() }()
			defer context.AfterFunc(s.ctx, func() { _ = to.Close() })()
			join(conn, to)
		})
	}
}

// join copies in both directions until one side ends.
func join(a, b net.Conn) {
	over := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			over <- struct{}{}
		}()
	}
	<-over
	_ = a.Close()
	_ = b.Close()
	<-over
}

// endpoint is a pod of a Service.
type endpoint struct {
	pod     types.UID
	node    *string
	address string // with the port
}

// endpoints returns the pods of a Service that are ready; with publishNotReadyAddresses, all.
func (s *Services) endpoints(ctx context.Context, namespace, name, port string) (all []endpoint, err error) {
	var slices discoveryv1.EndpointSliceList
	if err := s.get(ctx, "/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices?labelSelector=kubernetes.io/service-name="+name, &slices); err != nil {
		return nil, err
	}
	for _, slice := range slices.Items {
		for _, p := range slice.Ports {
			if p.Name == nil || *p.Name != port {
				continue
			}
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				of := endpoint{node: e.NodeName, address: fmt.Sprintf("%s:%d", e.Addresses[0], *p.Port)}
				if e.TargetRef != nil {
					of.pod = e.TargetRef.UID
				}
				all = append(all, of)
			}
		}
	}
	return all, nil
}

// dial connects to a pod of a Service, from the pod's node. An empty UID means any pod.
func (s *Services) dial(ctx context.Context, namespace, name, port string, pod types.UID) (conn net.Conn, err error) {
	all, err := s.endpoints(ctx, namespace, name, port)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if pod != "" && pod != e.pod {
			continue
		}
		if conn, err = s.connect(ctx, e.node, e.address); err == nil {
			return conn, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("no endpoint of %s/%s is ready", namespace, name), err)
}

// DialPod connects to a port of a pod, from the pod's node.
func (s *Services) DialPod(ctx context.Context, namespace, name string, port int) (net.Conn, error) {
	var pod corev1.Pod
	if err := s.get(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+name, &pod); err != nil {
		return nil, err
	}
	if pod.Status.PodIP == "" {
		return nil, fmt.Errorf("connect to %s/%s: it has no address", namespace, name)
	}
	return s.connect(ctx, &pod.Spec.NodeName, fmt.Sprintf("%s:%d", pod.Status.PodIP, port))
}

// connect connects to an address from a node.
func (s *Services) connect(ctx context.Context, node *string, address string) (conn net.Conn, err error) {
	err = s.machine(node).Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", address)
		return err
	})
	return conn, err
}

// machine returns a node, or the control plane if node is nil.
func (s *Services) machine(node *string) *netlab.Host {
	i := slices.IndexFunc(s.cluster.Nodes, func(n *Node) bool { return node != nil && n.Name == *node })
	if i < 0 {
		return s.cluster.Host
	}
	return s.cluster.Nodes[i].Host
}

// Domain is the DNS domain of the Services.
const Domain = "cluster.local"

// resolve answers DNS queries for NAME.NAMESPACE.svc.cluster.local.
func (s *Services) resolve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := s.dns.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		s.answer(&m)
		if out, err := m.Pack(); err == nil {
			_, _ = s.dns.WriteTo(out, from)
		}
	}
}

func (s *Services) answer(m *dnsmessage.Message) {
	q := m.Questions[0]
	m.Response, m.Authoritative, m.RecursionAvailable, m.Additionals = true, true, true, nil
	name, ok := strings.CutSuffix(q.Name.String(), ".svc."+Domain+".")
	service, namespace, both := strings.Cut(name, ".")
	if !ok || !both || strings.Contains(namespace, ".") {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	addresses, err := s.serve(ctx, namespace, service)
	if err != nil {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	if q.Type != dnsmessage.TypeA {
		return // there are no records of other types
	}
	for _, a := range addresses {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
		})
	}
}
