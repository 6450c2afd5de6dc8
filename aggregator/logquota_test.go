package aggregator

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// linesAtOnce is the largest burst of log lines about one node.
const linesAtOnce = 1000

// One node with many conflicts, some of them for addresses of other nodes, does not fill the
// log. Lines about other nodes are still logged.
func TestOneNodeDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLoggingLab(t, Config{}, slog.New(slog.NewTextHandler(&out, nil)))
		synctest.Wait()
		const many = 500
		bad := l.dial().send(snapshot(hello("bad", 1), podVeth(2, "a", "10.200.0.1"), podVeth(3, "b", "10.200.0.2"))).sync()
		for n := range 8 {
			m := &pb.ReportRequest{}
			for i := range many {
				m.Claims = append(m.Claims, kernelClaim(2, n<<16+i), kernelClaim(3, n<<16+i))
			}
			bad.send(m).sync()
			synctest.Wait() // the events of this message are logged
		}
		if got := strings.Count(out.String(), `conflicts" nodes=[bad]`); got != 1 {
			t.Errorf("the log reports %d times that lines of the node are suppressed, want once", got)
		}
		if got := strings.Count(out.String(), "conflict changed"); got != linesAtOnce-1 && got != linesAtOnce {
			t.Errorf("got %d lines of %d conflicts of one node, want %d", got, 8*many, linesAtOnce)
		}
		l.dial().send(snapshot(hello("good", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		synctest.Wait()
		if !strings.Contains(out.String(), "address="+addr) {
			t.Error("the log has not the conflict of another node")
		}
	})
}
