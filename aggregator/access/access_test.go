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
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fakeAPI is a fake Kubernetes API server. A token has the form USER[@NODE][ AUDIENCE].
type fakeAPI struct {
	mu      sync.Mutex
	away    bool
	expired map[string]bool
	may     map[string]bool // USER VERB RESOURCE
	reviews int
}

func (f *fakeAPI) ReviewToken(_ context.Context, token, audience string) (Subject, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reviews++
	if f.away {
		return Subject{}, errors.New("connection refused")
	}
	name, meant, _ := strings.Cut(token, " ")
	name, node, _ := strings.Cut(name, "@")
	if meant != audience {
		return Subject{}, fmt.Errorf("%w: it is meant for %q", ErrRefused, meant)
	}
	if f.expired[token] {
		return Subject{}, fmt.Errorf("%w: service account token has expired", ErrRefused)
	}
	if !strings.HasPrefix(name, "system:") {
		return Subject{}, fmt.Errorf("%w: invalid bearer token", ErrRefused)
	}
	s := Subject{Name: name}
	if node != "" {
		s.Extra = map[string][]string{nodeName: {node}}
	}
	return s, nil
}

func (f *fakeAPI) ReviewAccess(_ context.Context, who Subject, what Action) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return false, errors.New("connection refused")
	}
	return f.may[who.Name+" "+what.String()], nil
}

func (f *fakeAPI) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

const (
	agentUser  = "system:serviceaccount:ipwitness:ipwitness-agent"
	readerUser = "system:serviceaccount:ipwitness:ipwitness-reader"
)

func reviewed(t *testing.T) (*Guard, *fakeAPI) {
	t.Helper()
	api := &fakeAPI{expired: map[string]bool{}, may: map[string]bool{
		readerUser + " list owners": true, readerUser + " watch owners": true, readerUser + " get /metrics": true,
	}}
	g, err := New(Config{TokenReview: true, AgentAccounts: []string{"ipwitness/ipwitness-agent"}}, api,
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return g, api
}

// from returns the context of a call with a token.
func from(ctx context.Context, token string) context.Context {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}})
	if token != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
	}
	return ctx
}

func TestAuthorization(t *testing.T) {
	g, _ := reviewed(t)
	for _, c := range []struct {
		token, method string
		want          codes.Code
		says          string
	}{
		{agentUser + "@node1 ipwitness", pb.ReportService_Report_FullMethodName, codes.OK, ""},
		{agentUser + "@node1", pb.ReportService_Report_FullMethodName, codes.Unauthenticated, "audience ipwitness"},
		{agentUser + " ipwitness", pb.ReportService_Report_FullMethodName, codes.PermissionDenied, "not bound to a node"},
		{readerUser + " ipwitness", pb.ReportService_Report_FullMethodName, codes.PermissionDenied, "not an agent"},
		{"", pb.ReportService_Report_FullMethodName, codes.Unauthenticated, "must authenticate"},
		{"nonsense", pb.ReportService_Report_FullMethodName, codes.Unauthenticated, "does not accept"},
		{readerUser + " ipwitness", pb.WitnessService_ListOwners_FullMethodName, codes.OK, ""},
		{readerUser, pb.WitnessService_ListOwners_FullMethodName, codes.OK, ""},
		{readerUser, pb.WitnessService_AcknowledgeConflict_FullMethodName, codes.PermissionDenied, "may not create conflicts/acknowledge"},
		{agentUser + "@node1 ipwitness", pb.WitnessService_ListOwners_FullMethodName, codes.PermissionDenied, "may not list owners"},
		{"", pb.WitnessService_ListOwners_FullMethodName, codes.Unauthenticated, "authentication is required"},
		{"", "/grpc.health.v1.Health/Check", codes.OK, ""},
		{readerUser, "/ipwitness.v1.WitnessService/Brandnew", codes.PermissionDenied, "cannot be called by anyone"},
	} {
		_, end, err := g.enter(from(t.Context(), c.token), c.method)
		if status.Code(err) != c.want || !strings.Contains(status.Convert(err).Message(), c.says) {
			t.Errorf("%s with %q: got %v, want %s %q", c.method, c.token, err, c.want, c.says)
		}
		if err == nil {
			end()
		}
	}
}

// Each method of the API has an action. A method without an action is refused for all callers.
func TestAllMethodsAreActions(t *testing.T) {
	for _, service := range []grpc.ServiceDesc{pb.WitnessService_ServiceDesc, pb.ReportService_ServiceDesc} {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		for _, name := range names {
			if what, err := action("/" + service.ServiceName + "/" + name); err != nil || what.open {
				t.Errorf("%s: got %v and error %v, want an action", name, what, err)
			}
		}
	}
}

func TestAcknowledgingIsTheOnlyChange(t *testing.T) {
	var changes []string
	for method, a := range actions {
		switch {
		case a.report || a.open:
		case a.changes():
			changes = append(changes, method)
		case a.Verb != "get" && a.Verb != "list" && a.Verb != "watch":
			t.Errorf("%s is %s: want it to read, or to count as a change", method, a)
		}
	}
	if want := []string{pb.WitnessService_AcknowledgeConflict_FullMethodName}; !slices.Equal(changes, want) {
		t.Errorf("got %q, want %q", changes, want)
	}
}

func TestAgentBelongsToTheNodeOfItsToken(t *testing.T) {
	g, _ := reviewed(t)
	ctx, end, err := g.enter(from(t.Context(), agentUser+"@node1 ipwitness"), pb.ReportService_Report_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if err := Of(ctx).Reports("node1"); err != nil {
		t.Errorf("for its own node: %v", err)
	}
	if err := Of(ctx).Reports("node2"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("for another node: got %v, want PermissionDenied", err)
	}
	if got := Of(ctx).Vouched("node1"); got != "node1" {
		t.Errorf("vouched: got %q", got)
	}
}

func TestAStreamEndsWhenItsTokenDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		token := agentUser + "@node1 ipwitness"
		ctx, end, err := g.enter(from(t.Context(), token), pb.ReportService_Report_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		ended := func() bool {
			select {
			case <-Revoked(ctx):
				return true
			default:
				return false
			}
		}
		// While the API server is unavailable, the credential stays valid.
		api.change(func() { api.away = true })
		time.Sleep(10 * recheckEvery)
		synctest.Wait()
		if ended() {
			t.Error("the stream ended while the API server was away")
		}
		api.change(func() { api.away, api.expired[token] = false, true })
		time.Sleep(3 * recheckEvery)
		synctest.Wait()
		if !ended() {
			t.Error("the stream goes on with a token that has expired")
		}
		if _, _, err := g.enter(from(t.Context(), token), pb.ReportService_Report_FullMethodName); status.Code(err) != codes.Unauthenticated {
			t.Errorf("with an expired token: got %v, want Unauthenticated", err)
		}
	})
}

func TestKnownTokensStayValidWithoutTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		enter := func(token string) codes.Code {
			_, end, err := g.enter(from(t.Context(), token), pb.ReportService_Report_FullMethodName)
			if err == nil {
				end()
			}
			return status.Code(err)
		}
		known := agentUser + "@node1 ipwitness"
		if got := enter(known); got != codes.OK {
			t.Fatalf("got %s", got)
		}
		api.change(func() { api.away = true })
		time.Sleep(withoutAPI - time.Minute)
		if got := enter(known); got != codes.OK {
			t.Errorf("a known token: got %s, want OK", got)
		}
		if got := enter(agentUser + "@node2 ipwitness"); got != codes.Unavailable {
			t.Errorf("an unknown token: got %s, want Unavailable", got)
		}
		time.Sleep(2 * time.Minute)
		if got := enter(known); got != codes.Unavailable {
			t.Errorf("a known token after a long time: got %s, want Unavailable", got)
		}
	})
}

func TestReviewsOfWrongTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		good := agentUser + "@node1 ipwitness"
		enter := func(token string) codes.Code {
			_, _, err := g.enter(from(t.Context(), token), pb.ReportService_Report_FullMethodName)
			return status.Code(err)
		}
		enter(good)
		for n := range 1000 {
			enter(fmt.Sprint("wrong", n))
		}
		if api.reviews > callsAtOnce/wrongToken+2 {
			t.Errorf("the API server was asked %d times for 1000 wrong tokens", api.reviews)
		}
		if got := enter("wrong"); got != codes.ResourceExhausted {
			t.Errorf("one more: got %s, want ResourceExhausted", got)
		}
		if got := enter(good); got != codes.OK {
			t.Errorf("a valid token from the same address: got %s, want OK", got)
		}
	})
}

func TestCallsOfOneCallerAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // synthetic time: only the test makes time pass
		const other = "system:serviceaccount:shop:dashboard"
		g, api := reviewed(t)
		api.may[other+" list owners"] = true
		call := func(token string) codes.Code {
			_, end, err := g.enter(from(t.Context(), token), pb.WitnessService_ListOwners_FullMethodName)
			if err == nil {
				end()
			}
			return status.Code(err)
		}
		spend := func(calls int) {
			t.Helper()
			for n := range calls {
				if got := call(readerUser); got != codes.OK {
					t.Fatalf("call %d of %d: got %s, want OK", n+1, calls, got)
				}
			}
			if got := call(readerUser); got != codes.ResourceExhausted {
				t.Errorf("one more than %d: got %s, want ResourceExhausted", calls, got)
			}
		}
		spend(callsAtOnce)
		if got := call(other); got != codes.OK {
			t.Errorf("another caller: got %s, want OK", got)
		}
		time.Sleep(time.Second)
		spend(callsPerSecond)
	})
}

func TestQuestionsOfOneCallerAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := reviewed(t)
		ask := func() bool {
			ctx, end, err := g.enter(from(t.Context(), readerUser), pb.WitnessService_ListOwners_FullMethodName)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			return Of(ctx).MayAsk()
		}
		for range questionsAtOnce {
			if !ask() {
				t.Fatal("got a refusal, want none")
			}
		}
		if ask() {
			t.Errorf("one more than %d: got no refusal", questionsAtOnce)
		}
		time.Sleep(time.Second)
		if !ask() {
			t.Error("after a second: got a refusal, want none")
		}
		if !(*Caller)(nil).MayAsk() {
			t.Error("within the process: got a refusal, want no limit")
		}
	})
}

// Each caller has its own quota of calls in progress. An agent's is that of its node.
func TestCallsInProgressOfOneCallerAreLimited(t *testing.T) {
	const other = "system:serviceaccount:shop:dashboard"
	for method, c := range map[string]struct {
		caller, other string
		most          int
	}{
		pb.WitnessService_WatchOwners_FullMethodName:   {readerUser, other, roomOfOne},
		pb.WitnessService_ListOwners_FullMethodName:    {readerUser, other, roomOfOne / roomOfAnswer},
		pb.WitnessService_ResolveOwners_FullMethodName: {readerUser, other, roomOfOne / roomOfMany},
		pb.ReportService_Report_FullMethodName:         {agentUser + "@node1 ipwitness", agentUser + "@node2 ipwitness", roomOfOne / roomOfReport},
	} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, api := reviewed(t)
				api.may[other+" list owners"], api.may[other+" watch owners"] = true, true
				call := func(token string) (func(), codes.Code) {
					_, end, err := g.enter(from(t.Context(), token), method)
					return end, status.Code(err)
				}
				var ends []func()
				for n := range c.most {
					end, code := call(c.caller)
					if code != codes.OK {
						t.Fatalf("call %d of %d: got %s, want OK", n+1, c.most, code)
					}
					ends = append(ends, end)
				}
				if _, code := call(c.caller); code != codes.ResourceExhausted {
					t.Errorf("one more than %d: got %s, want ResourceExhausted", c.most, code)
				}
				end, code := call(c.other)
				if code != codes.OK {
					t.Fatalf("another caller: got %s, want OK", code)
				}
				ends = append(ends, end)
				time.AfterFunc(roomWithin/2, ends[0])
				if end, code = call(c.caller); code != codes.OK {
					t.Fatalf("when one of them ends: got %s, want OK", code)
				}
				for _, end := range append(ends[1:], end) {
					end()
				}
			})
		})
	}
}

// Only callers with calls in progress are remembered for sure.
func TestManyCallersAreForgotten(t *testing.T) {
	l := newLimits()
	busy := l.of("busy")
	if err := busy.room.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for n := range 2 * maxCallers {
		l.of(fmt.Sprint(n))
	}
	if len(l.callers) > maxCallers {
		t.Errorf("got %d callers, want at most %d", len(l.callers), maxCallers)
	}
	if l.of("busy") != busy {
		t.Error("a caller with a call in progress was forgotten")
	}
}

func TestCertificatesIdentifyCallers(t *testing.T) {
	for _, c := range []struct {
		groups                  []string
		agent, reader, operator bool
	}{
		{nil, false, false, false},
		{[]string{AgentsGroup}, true, false, false},
		{[]string{ReadersGroup}, false, true, false},
		{[]string{"others", OperatorsGroup}, false, true, true},
	} {
		got, err := certified(&x509.Certificate{Subject: pkix.Name{CommonName: "x", Organization: c.groups}})
		if err != nil || got.agent != c.agent || got.reader != c.reader || got.operator != c.operator {
			t.Errorf("%q: got %+v, %v", c.groups, got, err)
		}
	}
}

func TestFilesOfTokens(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens")
	for _, c := range []struct {
		text string
		says string
	}{
		{"\n# nobody\n\n", ""},
		{"0123456789abcdef agent node1\n", ""},
		{"0123456789abcdef agent\n", "line 1: want TOKEN ROLE NAME"},
		{"# x\nshort agent node1\n", "line 2: the token has fewer than 16 characters"},
		{"0123456789abcdef king node1\n", `unknown role "king"`},
		{"0123456789abcdef agent a\n0123456789abcdef agent b\n", "line 2: duplicate token"},
	} {
		if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openTokens(name, slog.New(slog.DiscardHandler))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: got %v, want %q", c.text, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "0123456789") {
			t.Errorf("%q: the error has the token: %v", c.text, err)
		}
	}
}

func TestAddressesOfCallers(t *testing.T) {
	for in, want := range map[string]string{"192.0.2.1:9": "192.0.2.1", "[::ffff:192.0.2.1]:9": "192.0.2.1", "[fe80::1%eth0]:9": "fe80::1", "@": ""} {
		got := address(in)
		if want == "" && got.IsValid() || want != "" && got != netip.MustParseAddr(want) {
			t.Errorf("%q: got %s, want %q", in, got, want)
		}
	}
}

// A certificate of an agent without a name would be valid for all nodes.
func TestCertificateWithoutANameIsRefused(t *testing.T) {
	c, err := certified(&x509.Certificate{Subject: pkix.Name{Organization: []string{AgentsGroup}}})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %+v, %v, want Unauthenticated", c, err)
	}
}

// A certificate with the name "anonymous" is an authenticated caller.
func TestCallerMayBeNamedAnonymous(t *testing.T) {
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
		ctx, end, err := g.enter(ctx, pb.ReportService_Report_FullMethodName)
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

// slowAPI is a fake API server that answers slowly.
type slowAPI struct {
	*fakeAPI
	takes time.Duration
}

func (s slowAPI) ReviewToken(ctx context.Context, token, audience string) (Subject, error) {
	time.Sleep(s.takes)
	return s.fakeAPI.ReviewToken(ctx, token, audience)
}

func TestConcurrentReviewsOfWrongTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		g, err := New(Config{TokenReview: true}, slowAPI{api, 100 * time.Millisecond}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for n := range 2000 {
			all.Go(func() {
				_, _, err := g.enter(from(t.Context(), fmt.Sprint("wrong", n)), pb.WitnessService_ListOwners_FullMethodName)
				if err == nil {
					t.Error("a wrong token was accepted")
				}
			})
		}
		all.Wait()
		if most := (callsAtOnce+int(reviewWithin.Seconds())*callsPerSecond)/wrongToken + atOnce; api.reviews > most {
			t.Errorf("the API server was asked %d times for 2000 wrong tokens at once, want %d at most", api.reviews, most)
		}
	})
}

func TestTokensOfTheAPIServerStayValidWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		enter := func() codes.Code {
			_, end, err := g.enter(from(t.Context(), readerUser), pb.WitnessService_ListOwners_FullMethodName)
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

// A client that starts a call and sends nothing more must not use up memory, neither with
// calls that need no authentication nor with an unknown token.
func TestIncompleteCallsAreLimitedAndEnd(t *testing.T) {
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
	s := grpc.NewServer(g.Outside(encoding.GetCodecV2("proto"))...)
	pb.RegisterWitnessServiceServer(s, pb.UnimplementedWitnessServiceServer{})
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	conn := connect(t, s)
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	const calls = 2 * roomOfOne
	ended := make(chan codes.Code, calls)
	for range calls {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- status.Code(stream.RecvMsg(&healthpb.HealthCheckResponse{})) }()
	}
	synctest.Wait()
	if len(ended) != calls-roomOfOne {
		t.Errorf("of %d calls, %d were refused, want %d", calls, len(ended), calls-roomOfOne)
	}
	for range len(ended) {
		if got := <-ended; got != codes.ResourceExhausted {
			t.Errorf("refused: got %s, want ResourceExhausted", got)
		}
	}
	time.Sleep(callWithin + time.Second)
	synctest.Wait()
	if len(ended) != roomOfOne {
		t.Errorf("of %d calls %d have ended, want all", roomOfOne, len(ended))
	}
}

func TestRESTWatchEndsWhenItsTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := reviewed(t)
		c, err := g.authenticate(t.Context(), credential{token: readerUser}, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end, err := g.EnterREST(context.WithValue(t.Context(), callerKey{}, c), pb.WitnessService_WatchOwners_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		revoked := func() bool {
			synctest.Wait()
			select {
			case <-Revoked(ctx):
				return true
			default:
				return false
			}
		}
		time.Sleep(recheckEvery + time.Second)
		if revoked() {
			t.Fatal("it is revoked with a good token")
		}
		api.change(func() { api.expired[readerUser] = true })
		time.Sleep(2 * recheckEvery)
		if !revoked() {
			t.Error("it goes on")
		}
	})
}

// connect serves s and returns a connection to it.
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
