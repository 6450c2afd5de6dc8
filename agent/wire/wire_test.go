package wire

import (
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/bpf"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestTimeOfAFrameIsThatOfItsOwnClock(t *testing.T) {
	var c frameClock
	before := time.Now()
	at := monotonic(t)
	if got := c.at(at); got.Sub(before) < -time.Second || got.After(time.Now()) {
		t.Errorf("time of a frame that came now: got %v, want %v", got, before)
	}
	first, compared := c.at(at), c.now
	if got := c.at(at + 3*time.Millisecond).Sub(first); got != 3*time.Millisecond {
		t.Errorf("time between two frames: got %v, want 3ms", got)
	}
	if c.now != compared {
		t.Error("the clocks were compared again for a frame in the same second")
	}
	// Long after the last comparison, the two clocks are compared again.
	c.now = c.now.Add(-time.Hour)
	c.monotonic -= 2 * time.Second
	if got := c.at(at).Sub(first); got.Abs() > time.Minute {
		t.Errorf("time by a clock that was set: got a difference of %v", got)
	}
}

func TestAgeOfAFrameBeginsInTheKernel(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10))
	tab := table.New()
	k := testKernel(t, f, tab)
	const ago = 10 * time.Second
	begin := time.Now()
	ev := bpf.Event{Ktime: monotonic(t) - ago, Ifindex: 10, Kind: bpf.Used, Frames: 1, Addr: agenttest.Claim(1).Address}
	(&Wire{kernel: k}).frame(&ev)
	c := tab.Attach().Take(time.Now()).GetClaims()[0]
	// Allow twice the time, because the two clocks may be read far apart on a busy machine.
	if got, most := c.GetAge().AsDuration(), ago+2*time.Since(begin)+time.Millisecond; got < ago-time.Millisecond || got > most {
		t.Errorf("age of a frame of %s ago: got %s, want %s at most", ago, got, most)
	}
}

// BenchmarkFrame processes one reported frame: of a new binding, of a known one, and of one
// without room.
func BenchmarkFrame(b *testing.B) {
	const full = 65536 // the maximum number of claims of one port
	for _, c := range []struct {
		name        string
		begin, most int // bindings at the start, and at most
	}{{"new", 0, full}, {"known", 1000, 1000}, {"no room", full, 1 << 24}} {
		b.Run(c.name, func(b *testing.B) {
			f := agenttest.Fake{}
			f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
			f.Put(5, agenttest.PodVeth(10))
			tab := table.New()
			k := testKernel(b, f, tab)
			agenttest.Follow(tab)
			w := &Wire{kernel: k}
			ev := bpf.Event{Ktime: monotonic(b), Ifindex: 10, Kind: bpf.Used, Frames: 1}
			processFrame := func(i int) {
				ev.Addr = agenttest.Claim(i).Address
				ev.SHA = bpf.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
				ev.Source = ev.SHA
				ev.Ktime += time.Microsecond
				w.frame(&ev)
			}
			for i := range c.begin {
				processFrame(i)
			}
			b.ReportAllocs()
			i := c.begin
			for b.Loop() {
				if i == c.most {
					i = 0
					if c.name == "new" {
						b.StopTimer()
						k.Expire(time.Now().Add(time.Hour))
						b.StartTimer()
					}
				}
				processFrame(i)
				i++
			}
		})
	}
}

func monotonic(t testing.TB) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// testKernel returns a Mirror of a fake.
func testKernel(t testing.TB, f agenttest.Fake, tab *table.Table) *kernel.Mirror {
	t.Helper()
	f.Own()
	k := kernel.New(slog.New(slog.DiscardHandler), tab, f, agenttest.OwnNSID, 1, time.Unix(0, 0), "node1")
	if err := k.List(); err != nil {
		t.Fatal("list: ", err)
	}
	return k
}

func TestGlobsChooseThePortsThatAreWatched(t *testing.T) {
	for _, c := range []struct {
		include, exclude []string
		name             string
		want             bool
	}{
		{nil, nil, "eth0", true},
		{[]string{"veth*", "eth?"}, nil, "eth0", true},
		{[]string{"veth*"}, nil, "eth0", false},
		{nil, []string{"docker*"}, "docker0", false},
		{[]string{"*"}, []string{"eth0"}, "eth0", false},
	} {
		if got := (globs{c.include, c.exclude}).match(c.name); got != c.want {
			t.Errorf("%s with include %v and exclude %v: got %v, want %v", c.name, c.include, c.exclude, got, c.want)
		}
	}
}

func TestLossIsRecentUntilTheClaimsWouldHaveExpired(t *testing.T) {
	var r rising
	begin := time.Now()
	for _, c := range []struct {
		at    time.Duration
		count uint32
		want  bool
	}{
		{0, 0, false},
		{time.Hour, 3, true},
		{time.Hour + Kept - 1, 3, true},
		{time.Hour + Kept, 3, false},
		{2 * time.Hour, 4, true},
		{2*time.Hour + Kept, 4, false},
	} {
		if got := r.recent(c.count, begin.Add(c.at)); got != c.want {
			t.Errorf("%d lost after %s: got recent %v, want %v", c.count, c.at, got, c.want)
		}
	}
}
