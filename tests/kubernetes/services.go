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

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// Services take the place of kube-proxy, the cluster's DNS and a pod network between nodes. On
// every machine the addresses of Services lead to ready pods, and nodes can resolve their names.
// Connections go through this process, which opens the second half of each on the pod's node,
// because pods of two nodes may have the same address.
type Services struct {
	cluster *Cluster
	client  *http.Client
	dns     net.PacketConn

	mu        sync.Mutex
	addresses map[string]bool // of Services that are served
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
	s := &Services{cluster: c, client: c.Client(), addresses: map[string]bool{}}
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	err = c.Do(func() (err error) {
		s.dns, err = net.ListenPacket("udp4", Address+":53")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("offer DNS: %w", err)
	}
	go s.resolve()
	if _, err := s.Serve(ctx, "default", "kubernetes"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the Services.
func (s *Services) Close() {
	_ = s.dns.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		_ = l.Close()
	}
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
	var service corev1.Service
	if err := s.get(ctx, "/api/v1/namespaces/"+namespace+"/services/"+name, &service); err != nil {
		return "", err
	}
	address := service.Spec.ClusterIP
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses[address] {
		return address, nil
	}
	s.addresses[address] = true
	for _, h := range s.cluster.machines() {
		if _, err := h.Run("ip addr add %s/32 dev lo", address); err != nil {
			return "", err
		}
		for _, port := range service.Spec.Ports {
			var l net.Listener
			err := h.Do(func() (err error) {
				l, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", address, port.Port))
				return err
			})
			if err != nil {
				return "", fmt.Errorf("serve %s/%s: %w", namespace, name, err)
			}
			s.listeners = append(s.listeners, l)
			go s.accept(l, namespace, name, port.Name)
		}
	}
	return address, nil
}

func (s *Services) accept(l net.Listener, namespace, name, port string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			to, err := s.dial(ctx, namespace, name, port)
			if err != nil {
				return // without an endpoint, the connection is closed
			}
			defer func() { _ = to.Close() }()
			join(conn, to)
		}()
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

// dial connects to a ready pod of a Service, from the pod's node.
func (s *Services) dial(ctx context.Context, namespace, name, port string) (conn net.Conn, err error) {
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
				err = s.machine(e.NodeName).Do(func() error {
					conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", fmt.Sprintf("%s:%d", e.Addresses[0], *p.Port))
					return err
				})
				if err == nil {
					return conn, nil
				}
			}
		}
	}
	return nil, errors.Join(fmt.Errorf("no endpoint of %s/%s is ready", namespace, name), err)
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
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	address, err := s.Serve(ctx, namespace, service)
	if err != nil {
		m.RCode = dnsmessage.RCodeNameError
		return
	}
	if q.Type != dnsmessage.TypeA {
		return // there are no records of other types
	}
	m.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5},
		Body:   &dnsmessage.AResource{A: netip.MustParseAddr(address).As4()},
	}}
}
