package share

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// A relay passes connections on to a server, until it is cut.
type relay struct {
	*testing.T
	at, to string

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func newRelay(t *testing.T, url string) *relay {
	t.Helper()
	r := &relay{T: t, at: "127.0.0.1:0", to: strings.TrimPrefix(url, "nats://")}
	r.mend()
	t.Cleanup(r.cut)
	return r
}

// mend accepts connections.
func (r *relay) mend() {
	r.Helper()
	l, err := net.Listen("tcp", r.at)
	if err != nil {
		r.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener, r.at = l, l.Addr().String()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", r.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					_ = in.Close()
					_ = out.Close()
				}()
			}
		}
	}()
}

// cut ends all connections, and accepts no more.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.listener.Close()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// A replica that cannot reach NATS goes on detecting what it serves, while others take over. When it can again,
// all have the same conflicts, and each began once.
func TestAReplicaIsCutOffFromNATS(t *testing.T) {
	w := &world{lab: newLab(t)}
	r := newRelay(t, w.url)
	a, b, c := w.start("a", t.TempDir()), w.start("b", t.TempDir()), w.startAt("nats://"+r.at, "c", t.TempDir())
	w.wantDivided("three replicas", a, b, c)
	first, second := w.join("n0"), w.join("n1")
	const pods = 24
	for i := range uint32(pods) {
		first.pod(i+2, fmt.Sprintf("10.244.0.%d", i+1))
	}
	w.wantOwners("at the start", pods, a, b, c)
	stop := w.churn()
	defer stop()
	r.cut()
	var planted, want []string
	for i := range uint32(pods) {
		planted = append(planted, fmt.Sprintf("10.244.0.%d", i+1))
		want = append(want, planted[i]+" CONFIRMED 1")
		second.pod(i+2, planted[i])
	}
	wait.Until(t, "c to detect its duplicates, and to say that others do not answer", func() bool {
		p, err := c.client.ListConflicts(t.Context(), &pb.ListConflictsRequest{})
		some := len(p.GetConflicts())
		return err == nil && some > 0 && some < pods && p.GetCoverage().GetSilentReplicas() > 0
	})
	w.wantConflicts("the others take over", want, a, b)
	w.wantOnce("the others take over", planted, false, a, b)
	r.mend()
	w.wantDivided("c is back", a, b, c)
	w.wantConflicts("c is back", want, a, b, c)
	w.wantOnce("c is back", planted, false, a, b, c)
	for i := range uint32(pods) {
		second.lose(i+2, planted[i])
	}
	w.wantConflicts("all are resolved", nil, a, b, c)
	w.wantOnce("all are resolved", planted, true, a, b, c)
	t.Logf("%d changes of pods", stop())
}
