package agent

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/bpf"
)

func TestTimeOfAFrameIsThatOfItsOwnClock(t *testing.T) {
	var c frameClock
	before := time.Now()
	at := monotonic(t)
	if got := c.at(at); got.Sub(before) < -time.Second || got.After(time.Now()) {
		t.Errorf("time of a frame that came now: got %v, want %v", got, before)
	}
	first := c.at(at)
	if got := c.at(at + 3*time.Millisecond).Sub(first); got != 3*time.Millisecond {
		t.Errorf("time between two frames: got %v, want 3ms", got)
	}
	// Long after the two clocks were compared, they are compared again.
	c.now = c.now.Add(-time.Hour)
	c.monotonic -= 2 * time.Second
	if got := c.at(at).Sub(first); got.Abs() > time.Minute {
		t.Errorf("time by a clock that was set: got %v off", got)
	}
}

func TestAgeOfAFrameIsFromWhenTheKernelSawIt(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	const ago = 10 * time.Second
	begin := time.Now()
	ev := bpf.Event{Ktime: monotonic(t) - ago, Ifindex: 10, Kind: bpf.Used, Frames: 1, Addr: testClaim(1).addr}
	k.frame(&ev)
	c := k.table.attach().take(time.Now()).GetClaims()[0]
	// Twice: on a busy machine the two clocks may be read far apart.
	if got, most := c.GetAge().AsDuration(), ago+2*time.Since(begin)+time.Millisecond; got < ago-time.Millisecond || got > most {
		t.Errorf("age of a frame of %s ago: got %s, want %s at most", ago, got, most)
	}
}

// BenchmarkFrame is one frame that is told: of a binding that is new, of one
// that is known, and of one for which there is no room.
func BenchmarkFrame(b *testing.B) {
	for _, c := range []struct {
		name        string
		begin, most int // bindings before, and at most
	}{{"new", 0, maxPerPort}, {"known", 1000, 1000}, {"no room", maxPerPort, 1 << 24}} {
		b.Run(c.name, func(b *testing.B) {
			f := fakeKernel{}
			f.put(noNSID, hostVeth(10, 5))
			f.put(5, podVeth(10))
			k := newTestKernel(b, f)
			follow(k.table)
			ev := bpf.Event{Ktime: monotonic(b), Ifindex: 10, Kind: bpf.Used, Frames: 1}
			tell := func(i int) {
				ev.Addr = testClaim(i).addr
				ev.SHA = bpf.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
				ev.Source = ev.SHA
				ev.Ktime += time.Microsecond
				k.frame(&ev)
			}
			for i := range c.begin {
				tell(i)
			}
			b.ReportAllocs()
			i := c.begin
			for b.Loop() {
				if i == c.most {
					i = 0
					if c.name == "new" {
						b.StopTimer()
						k.expire(time.Now().Add(time.Hour))
						b.StartTimer()
					}
				}
				tell(i)
				i++
			}
		})
	}
}
