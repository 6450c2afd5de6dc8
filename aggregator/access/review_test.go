package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An agent whose certificate names no node would be one of all nodes.
func TestACertificateWithoutANameIsOfNobody(t *testing.T) {
	c, err := certified(&x509.Certificate{Subject: pkix.Name{Organization: []string{AgentsGroup}}})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %+v, %v, want Unauthenticated", c, err)
	}
}

// Whoever is called so is somebody.
func TestSomebodyMayBeCalledAnonymous(t *testing.T) {
	c, err := certified(&x509.Certificate{Subject: pkix.Name{CommonName: "anonymous", Organization: []string{OperatorsGroup}}})
	if err != nil || c.Name() != "anonymous" {
		t.Errorf("got %q, %v, want anonymous", c.Name(), err)
	}
}

func TestAStreamEndsWhenItsCertificateDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var over atomic.Bool
		g, err := New(Config{Certificates: func([]*x509.Certificate) error {
			if over.Load() {
				return errors.New("signed by unknown authority")
			}
			return nil
		}}, nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: "node1", Organization: []string{AgentsGroup}}}
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{}, AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}},
		}}})
		ctx, end, err := g.enter(ctx, pb.ReportService_Report_FullMethodName, true)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		time.Sleep(2 * recheckEvery)
		synctest.Wait()
		select {
		case <-Revoked(ctx):
			t.Fatal("the stream ended with a good certificate")
		default:
		}
		over.Store(true)
		time.Sleep(recheckEvery)
		synctest.Wait()
		select {
		case <-Revoked(ctx):
		default:
			t.Error("the stream goes on with a certificate whose authority was replaced")
		}
	})
}

// slowAPI takes its time.
type slowAPI struct {
	*fakeAPI
	takes time.Duration
}

func (s slowAPI) ReviewToken(ctx context.Context, token, audience string) (Subject, error) {
	time.Sleep(s.takes)
	return s.fakeAPI.ReviewToken(ctx, token, audience)
}

func TestWrongTokensAtOnceAskTheAPIServerFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		g, err := New(Config{TokenReview: true}, slowAPI{api, 100 * time.Millisecond}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for n := range 2000 {
			all.Go(func() {
				_, _, err := g.enter(from(t.Context(), fmt.Sprint("wrong", n)), pb.WitnessService_ListOwners_FullMethodName, false)
				if err == nil {
					t.Error("a wrong token was accepted")
				}
			})
		}
		all.Wait()
		if most := 2 * (failuresAtOnce + atOnce + failuresPerSecond); api.reviews > most {
			t.Errorf("the API server was asked %d times for 2000 wrong tokens at once, want %d at most", api.reviews, most)
		}
	})
}

func TestWithoutTheAPIServerItsOwnTokensAreGoodForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		enter := func() codes.Code {
			_, end, err := g.enter(from(t.Context(), readerUser), pb.WitnessService_ListOwners_FullMethodName, false)
			if err == nil {
				end()
			}
			return status.Code(err)
		}
		if got := enter(); got != codes.OK {
			t.Fatalf("got %s", got)
		}
		api.change(func() { api.away = true })
		time.Sleep(withoutAPI - time.Minute)
		if got := enter(); got != codes.OK {
			t.Errorf("a token of the API server's own audience: got %s, want OK", got)
		}
	})
}

// Who says nothing more after it has begun to call must not fill the memory: neither by
// calls that anybody may make, nor by a token that is not known yet.
func TestCallsThatDoNotComeAreFewAndEnd(t *testing.T) {
	for _, c := range []struct{ token, method string }{
		{"wrong", pb.WitnessService_ListOwners_FullMethodName},
		{"", healthpb.Health_Check_FullMethodName},
		{"", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"},
	} {
		t.Run(c.method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { callsThatDoNotCome(t, c.token, c.method) })
		})
	}
}

func callsThatDoNotCome(t *testing.T, token, method string) {
	g, _ := reviewed(t)
	s := grpc.NewServer(g.Outside()...)
	pb.RegisterWitnessServiceServer(s, pb.UnimplementedWitnessServiceServer{})
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	conn := connect(t, s)
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	const calls = 2 * incoming
	ended := make(chan codes.Code, calls)
	for range calls {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- status.Code(stream.RecvMsg(&healthpb.HealthCheckResponse{})) }()
	}
	synctest.Wait()
	if len(ended) != calls-incoming {
		t.Errorf("of %d calls %d were refused, want %d", calls, len(ended), calls-incoming)
	}
	for range len(ended) {
		if got := <-ended; got != codes.ResourceExhausted {
			t.Errorf("refused: got %s, want ResourceExhausted", got)
		}
	}
	time.Sleep(callWithin + time.Second)
	synctest.Wait()
	if len(ended) != incoming {
		t.Errorf("of %d calls %d have ended, want all", incoming, len(ended))
	}
	if len(g.limits.incoming) != 0 {
		t.Errorf("%d addresses are still counted", len(g.limits.incoming))
	}
}

// forever is a watch that says nothing.
type forever struct {
	pb.UnimplementedWitnessServiceServer
}

func (forever) WatchOwners(_ *pb.WatchOwnersRequest, stream pb.WitnessService_WatchOwnersServer) error {
	<-stream.Context().Done()
	return status.FromContextError(stream.Context().Err()).Err()
}

func TestAWatchOfRESTSaysThatItsTokenIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		s := grpc.NewServer(Inside()...)
		pb.RegisterWitnessServiceServer(s, forever{})
		conn := connect(t, s)
		c, err := g.authenticate(t.Context(), credential{token: readerUser}, false)
		if err != nil {
			t.Fatal(err)
		}
		watch, err := pb.NewWitnessServiceClient(g.Behind(conn)).WatchOwners(
			context.WithValue(t.Context(), callerKey{}, c), &pb.WatchOwnersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := watch.Recv()
			ended <- err
		}()
		time.Sleep(recheckEvery + time.Second)
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatalf("it ended with a good token: %v", <-ended)
		}
		api.change(func() { api.expired[readerUser] = true })
		time.Sleep(2 * recheckEvery)
		synctest.Wait()
		if len(ended) == 0 {
			t.Fatal("it goes on")
		}
		if err := <-ended; status.Code(err) != codes.Unauthenticated {
			t.Errorf("got %v, want %v", err, ErrRevoked)
		}
	})
}

// connect serves, and connects to it.
func connect(t *testing.T, s *grpc.Server) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
