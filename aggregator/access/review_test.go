package access

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An agent whose certificate names no node would be one of all nodes.
func TestACertificateWithoutANameIsOfNobody(t *testing.T) {
	c, err := certified(&x509.Certificate{Subject: pkix.Name{Organization: []string{AgentsGroup}}, NotAfter: time.Now().Add(time.Hour)})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %+v, %v, want Unauthenticated", c, err)
	}
}

// Whoever is called so is somebody.
func TestSomebodyMayBeCalledAnonymous(t *testing.T) {
	c, err := certified(&x509.Certificate{Subject: pkix.Name{CommonName: "anonymous", Organization: []string{OperatorsGroup}}, NotAfter: time.Now().Add(time.Hour)})
	if err != nil || c.Name() != "anonymous" {
		t.Errorf("got %q, %v, want anonymous", c.Name(), err)
	}
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
