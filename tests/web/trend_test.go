package web

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// fakePools returns pools with the use of a day: one that fills up, one of which the use follows the
// day, one that is steady, and one that is new. A test cannot wait for a real day.
func fakePools(history bool) []*pb.Pool {
	pool := func(node string, size uint64, used func(hour float64) float64) *pb.Pool {
		n := func(ago time.Duration) uint64 { return uint64(math.Round(used(24 - ago.Hours()))) }
		p := &pb.Pool{Ipam: "host-local", Name: "/var/lib/cni/networks/pods", Node: node, State: pb.Pool_KNOWN, Size: size, Allocated: n(0), Ranges: []string{"10.244.0.0/24"}}
		if grown := n(0) - n(time.Hour); grown > 0 && grown < size {
			p.ExhaustedIn = durationpb.New(time.Duration(float64(size-n(0)) / float64(grown) * float64(time.Hour)))
		}
		if !history {
			return p
		}
		for ago := 24 * time.Hour; ago >= 0; ago -= time.Minute {
			if ago > 61*time.Minute && ago%(30*time.Minute) != 0 {
				continue
			}
			if last := len(p.GetHistory()) - 1; last < 0 || p.GetHistory()[last].GetAllocated() != n(ago) {
				p.History = append(p.History, &pb.Pool_Sample{At: timestamppb.New(time.Now().Add(-ago)), Allocated: n(ago)})
			}
		}
		return p
	}
	young := pool("node-4", 253, func(float64) float64 { return 12 })
	if history {
		young.History = []*pb.Pool_Sample{{At: timestamppb.New(time.Now().Add(-450 * time.Second)), Allocated: 3}, {At: timestamppb.New(time.Now().Add(-3 * time.Minute)), Allocated: 12}}
	}
	return []*pb.Pool{
		pool("node-1", 253, func(hour float64) float64 { return 60 + 5*math.Max(0, hour-8) + math.Pow(math.Max(0, hour-17), 2) }),
		pool("node-2", 253, func(hour float64) float64 { return 90 + 70*math.Sin((hour-8)/24*2*math.Pi) }),
		pool("node-3", 253, func(float64) float64 { return 28 }),
		young,
	}
}

func TestTheTrendOfEachPool(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := newTab(t, f.url, "/#/ipam")
	b.await("the pools without their trend", `[...document.querySelectorAll('.pools tbody tr')].filter(r => r.innerText.endsWith('–')).length === 4 && !document.querySelector('.trend')`)
	close(f.histories)
	trend := func(node string) string {
		return fmt.Sprintf(`[...document.querySelectorAll('tr')].find(r => r.innerText.includes(%q))?.querySelector('button.trend')`, node)
	}
	b.await("a pool that fills up", trend("node-1")+`?.innerText.startsWith('full in ')`)
	b.await("a pool with less than before", trend("node-2")+`?.innerText.startsWith('−')`)
	b.await("a steady pool", trend("node-3")+`?.innerText.startsWith('steady for 1h')`)
	b.await("a new pool", trend("node-4")+`?.innerText.startsWith('+9 in 7m')`)
	vertices := func(node string) int {
		return len(strings.Split(eval[string](b, trend(node)+`.querySelector('.line').getAttribute('d')`), "V")) - 1
	}
	if filling, steady := vertices("node-1"), vertices("node-3"); filling < 20 || steady != 1 {
		t.Errorf("got lines with %d and %d steps, want one for each sample", filling, steady)
	}

	b.do(chromedp.Evaluate(trend("node-1")+`.focus()`, nil), chromedp.KeyEvent("\r"))
	chart := `document.querySelector('[data-chart]')`
	b.await("the chart", `!!`+chart)
	for _, again := range []string{"the page", "a reload"} {
		b.await("the forecast after "+again, chart+`?.innerText.includes('At this rate, the pool is full in ') && `+chart+`.querySelectorAll('.forecast').length === 1`)
		if got := eval[string](b, chart+`.querySelector('svg').getAttribute('aria-label')`); !strings.HasPrefix(got, "60 at ") {
			t.Errorf("after %s, got %q, want the number of a day ago", again, got)
		}
		b.do(chromedp.Reload())
	}
	b.do(chromedp.Evaluate(`document.querySelector('main').scrollIntoView()`, nil))
	b.await("the chart of the link", `!!`+chart)
	b.do(chromedp.Evaluate(`(s => { const r = s.getBoundingClientRect(); s.dispatchEvent(new PointerEvent('pointermove', {clientX: r.left + 5, clientY: r.top + 5, bubbles: true})) })(document.querySelector('[data-chart] svg'))`, nil))
	b.await("the number at the pointer", chart+`.innerText.includes(': 60 allocated')`)
	b.do(chromedp.Evaluate(trend("node-1")+`.click()`, nil))
	b.await("no chart", `!`+chart)
	if *pictures != "" {
		b.do(chromedp.Evaluate(trend("node-1")+`.click()`, nil))
		b.await("the chart of the picture", `!!`+chart)
		for _, look := range looks {
			b.resize(look.size)
			b.colours(look.scheme)
			b.do(chromedp.Evaluate(`document.querySelector('[aria-label=Pools]').scrollIntoView()`, nil))
			b.picture(filepath.Join(*pictures, "web-trend"+look.name+".png"))
		}
	}
}

func TestWindowsDoNotUseUpTheConnections(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	b := newTab(t, f.url, "/#/map")
	b.await("the node", `!!document.querySelector('[data-node=node1]')`)
	if f.watches.Load() != 1 || f.reads.Load() != 0 {
		t.Errorf("got %d watches and %d lists of nodes, want one watch", f.watches.Load(), f.reads.Load())
	}
	other := b.window("/#/map")
	other.await("the node in another window", `!!document.querySelector('[data-node=node1]')`)
	for _, one := range []*tab{b, other} {
		one.await("that the window is shown", `!document.hidden`)
	}
	wait.Until(t, "both windows to read the nodes", func() bool { return f.watches.Load() == 0 && f.reads.Load() > 2 })
	other.do(chromedp.Navigate("about:blank"))
	wait.Until(t, "the window to watch again", func() bool { return f.watches.Load() == 1 })
}
