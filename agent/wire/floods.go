package wire

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// lookForFloodsEvery is how often the observer's counters are read.
	lookForFloodsEvery = time.Second
	// floodOver is how long a port must leave out nothing before its flood counts as over. By
	// then the observer has reported every binding that is still in use.
	floodOver = 30 * time.Second
	// maxFloods limits the flooding ports that are reported at the same time.
	maxFloods = 64
)

// floods has the ports on which more new bindings arrive than the agent accepts.
type floods struct {
	log  *slog.Logger
	mu   sync.Mutex
	last time.Time // time of the last look
	// limited is the observer's counter of all ports at the last look, and byTable has those of the table.
	limited uint64
	byTable map[int32]uint64
	by      map[int32]*flood
}

// A flood is the state of one port and the counts of what was left out: frames that the
// observer did not report, and claims that the table refused or evicted.
type flood struct {
	name    string
	gen     uint64
	limited uint64 // the observer's counter of the port at the last look
	leftOut uint64 // the table's counter at the last look

	since, until time.Time // the first and last time that a counter rose; zero if it never did
	total, rate  uint64
}

// counted is a port with its counters. unread is set if limited was not read, because that of all ports has not risen.
type counted struct {
	index            int32
	gen              uint64
	name             string
	limited, leftOut uint64
	unread           bool
}

// readCounters reads the counters once.
func (w *Wire) readCounters(now time.Time) {
	byTable := w.table.LeftOut()
	limited := w.frames(bpf.ResultLimited) // before those of the ports, which may rise meanwhile
	if !w.floods.rest(limited, byTable, now) && w.floods.look(w.leftOut(limited, byTable), now) {
		w.StatusChanged()
	}
}

// rest reports whether no port floods and no counter has changed since the last look, so that another one would find nothing.
func (f *floods) rest(limited uint64, byTable map[int32]uint64, now time.Time) bool {
	if limited != f.limited || !maps.Equal(byTable, f.byTable) || f.count() > 0 {
		f.byTable = byTable
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = now
	return true
}

// leftOut returns the counters of each port.
func (w *Wire) leftOut(limited uint64, byTable map[int32]uint64) (out []counted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rose := limited != w.floods.limited
	w.floods.limited = limited
	for index, p := range w.attached {
		c := counted{index: index, gen: p.gen, name: p.name, leftOut: byTable[index], unread: !rose}
		if rose && p.att != nil {
			var err error
			if c.limited, err = w.obs.Limited(int(index)); err != nil {
				c.unread = true
				w.log.Debug("cannot read the observer's counters", "error", err)
			}
		}
		out = append(out, c)
	}
	return out
}

// look processes the counters of all ports, and reports whether the record of any flooding
// port changed.
func (f *floods) look(ports []counted, now time.Time) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seconds := lookForFloodsEvery.Seconds()
	if !f.last.IsZero() {
		seconds = max(now.Sub(f.last).Seconds(), seconds/2)
	}
	f.last = now
	by := make(map[int32]*flood, len(ports))
	for _, c := range ports {
		was := f.by[c.index]
		if was == nil || was.gen != c.gen {
			was = &flood{gen: c.gen}
		}
		is := *was
		if c.unread {
			c.limited = was.limited
		}
		is.name, is.limited, is.leftOut = c.name, c.limited, c.leftOut
		more := risen(was.limited, c.limited) + risen(was.leftOut, c.leftOut)
		switch {
		case more > 0:
			if is.since.IsZero() {
				is.since = now
				f.log.Warn("interface floods the agent with new bindings", "interface", c.name)
			}
			is.until = now
			is.total += more
			is.rate = uint64(float64(more) / seconds)
		case !is.since.IsZero() && now.Sub(is.until) >= floodOver:
			f.log.Info("interface has stopped flooding", "interface", c.name, "left_out", is.total)
			is.since, is.total, is.rate = time.Time{}, 0, 0
		default:
			is.rate = 0
		}
		news = news || is.since != was.since || is.total != was.total || is.rate != was.rate
		by[c.index] = &is
	}
	for index, was := range f.by {
		news = news || by[index] == nil && !was.since.IsZero()
	}
	f.by = by
	return news
}

// risen returns the increase of a counter. A counter that fell was reset.
func risen(was, is uint64) uint64 {
	if is < was {
		return is
	}
	return is - was
}

// count returns the number of flooding ports.
func (f *floods) count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.by {
		if !p.since.IsZero() {
			n++
		}
	}
	return n
}

// records returns the flooding ports, ordered by what was left out, the most first.
func (f *floods) records() (out []*ipwitnessv1.FloodingRecord) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for index, p := range f.by {
		if !p.since.IsZero() {
			out = append(out, &ipwitnessv1.FloodingRecord{
				Index: uint32(index), Interface: p.name, LeftOut: p.total, Rate: p.rate, Since: timestamppb.New(p.since),
			})
		}
	}
	slices.SortFunc(out, func(a, b *ipwitnessv1.FloodingRecord) int { return cmp.Compare(b.GetLeftOut(), a.GetLeftOut()) })
	return out[:min(len(out), maxFloods)]
}
