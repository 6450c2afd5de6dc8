package tests

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// grpcServer is the gRPC address of an aggregator inside its host.
const grpcServer = "127.0.0.1:9640"

// dialTCP opens a connection inside a host.
func dialTCP(t *testing.T, h *netlab.Host, address string) net.Conn {
	t.Helper()
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// dialGRPC creates a client connection inside a host. It is closed when the test ends.
func dialGRPC(t *testing.T, h *netlab.Host, address string, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := sim.Dial(h, address, more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// rawCodec sends and receives raw bytes in place of messages.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)     { return v.([]byte), nil }
func (rawCodec) Unmarshal(raw []byte, v any) error { *v.(*[]byte) = raw; return nil }
func (rawCodec) Name() string                      { return "proto" }

// noise returns random bytes, which are the same each time.
func noise(n int) []byte {
	var seed [32]byte
	bytes := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(bytes) // never fails
	return bytes
}

// descriptors returns the number of open files of a program.
func descriptors(t *testing.T, p *netlab.Program) int {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}

func TestInvalidDataOnTheGRPCPortIsHarmless(t *testing.T) {
	t.Parallel()
	c := newAggregator(t)
	quiet := descriptors(t, c.program)
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113, section 3.4
	var open []net.Conn
	for range 20 {
		for _, junk := range []string{
			"",
			"GET /v1/owners HTTP/1.1\r\nHost: ipwitness\r\n\r\n",
			preface[:10],
			preface,
			preface + string(noise(1000)),
			// The header of a SETTINGS frame of the greatest length, without the frame itself.
			preface + "\xff\xff\xff\x04\x00\x00\x00\x00\x00",
			string(noise(1000)),
		} {
			conn := dialTCP(t, c.Host, grpcServer)
			open = append(open, conn)
			_, _ = conn.Write([]byte(junk)) // the connection may be closed already
		}
		conn := dialTCP(t, c.Host, grpcServer)
		open = append(open, conn)
		if err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context()); err == nil {
			t.Error("a TLS handshake: got no error")
		}
	}

	conn := dialGRPC(t, c.Host, grpcServer)
	call := func(method string, body []byte, want codes.Code) {
		t.Helper()
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodec(rawCodec{}), grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(body) // RecvMsg returns the error of the aggregator
		_ = stream.CloseSend()
		for err == nil { // the aggregator identifies itself first in a report
			var answer []byte
			err = stream.RecvMsg(&answer)
		}
		if status.Code(err) != want {
			t.Errorf("%s with %d bytes: got %v, want %s", method, len(body), err, want)
		}
	}
	call("/ipwitness.v1.Nothing/Nothing", nil, codes.Unimplemented)
	call("/ipwitness.v1.WitnessService/ListOwners", noise(1000), codes.Internal)
	call(ipwitnessv1.ReportService_Report_FullMethodName, noise(1000), codes.Internal)
	call(ipwitnessv1.ReportService_Report_FullMethodName, noise(5<<20), codes.ResourceExhausted)
	report, err := ipwitnessv1.NewReportServiceClient(conn).Report(t.Context())
	if err == nil {
		err = report.Send(&ipwitnessv1.ReportRequest{})
	}
	for err == nil {
		_, err = report.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an empty report: got %v, want %s", err, codes.InvalidArgument)
	}
	wait.Until(t, "the log to say why", func() bool { return strings.Contains(c.program.Log.String(), `msg="report stream ended"`) })
	wantWords(t, c.program.Log.String(), "from=127.0.0.1:", "this is not an ipwitness agent")

	fleet, err := sim.Start(c.Host, grpcServer, sim.Size{Nodes: 5, Owners: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Stop()
	c.wantFleet(fleet)
	for _, conn := range open {
		_ = conn.Close()
	}
	wait.Until(t, "the invalid nodes to be forgotten", func() bool { return descriptors(t, c.program) < quiet+30 })
	c.wantFleet(fleet)
}

func TestAnAgentThatClaimsAMillionAddressesIsRefused(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newAggregator(t)
	fleet, err := sim.Start(c.Host, grpcServer, sim.Size{Nodes: 5, Owners: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Stop()
	c.wantFleet(fleet)

	client := ipwitnessv1.NewReportServiceClient(dialGRPC(t, c.Host, grpcServer))
	for range 5 { // it reconnects, as agents do
		stream, err := client.Report(t.Context(), grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		const million, atOnce = 1_000_000, 4000
		for n := 0; n < million && err == nil; n += atOnce {
			err = stream.Send(greedy(n, atOnce, n+atOnce >= million))
		}
		for err = nil; err == nil; {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too many claims: the limit is 250000 for one node") {
			t.Fatalf("got %v, want RESOURCE_EXHAUSTED with the limit", err)
		}
		c.wantFleet(fleet)
	}
	if peak := c.peak(); peak > 512 {
		t.Errorf("got a peak of %d MiB, want 512 at most", peak)
	}
}

// greedy returns one message of a snapshot in which a node claims many addresses.
func greedy(from, claims int, last bool) *ipwitnessv1.ReportRequest {
	m := &ipwitnessv1.ReportRequest{Sequence: uint64(from/claims) + 1, SnapshotEnd: last}
	if from == 0 {
		m.Hello = &ipwitnessv1.Hello{Node: "greedy", BootId: "b0070000-0000-4000-8000-000000000000", Netns: "4026531840", Epoch: 1}
		m.SnapshotBegin = true
		m.Namespaces = []*ipwitnessv1.NamespaceRecord{{Id: 1, Netns: "4026531840"}}
		m.Interfaces = []*ipwitnessv1.InterfaceRecord{{Namespace: 1, Index: 2, Name: "eth0", Attachment: ipwitnessv1.InterfaceRecord_OWN}}
	}
	for n := range claims {
		addr, _ := binding(from + n)
		m.Claims = append(m.Claims, &ipwitnessv1.ClaimRecord{
			Address: addr.AsSlice(), Kind: ipwitnessv1.Evidence_ASSIGNED, Namespace: 1, Index: 2, PrefixLength: 32,
		})
	}
	return m
}

// peak returns the greatest amount of memory that the aggregator has used, in MiB.
func (c *cluster) peak() (mib int) {
	c.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.program.Cmd.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	_, size, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(size, &mib); err != nil {
		c.t.Fatal("parse VmHWM: ", err)
	}
	return mib / 1024
}
