package journal

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// TestAnEndedSegmentIsInTheLastLevel protects what docs/sizing.md says about the disk and the history: in
// several levels, a segment takes more space, and each level is read.
func TestAnEndedSegmentIsInTheLastLevel(t *testing.T) {
	b := newBench(t, t.TempDir())
	b.state(map[string]*pb.Owner{"old": pod("10.0.0.1", "old", "n1")})
	for i := range 3 {
		b.changed(pb.Watch_ADDED, fmt.Sprint(i), pod("10.0.0.2", fmt.Sprint(i), "n1"))
		b.flush()
		b.must(b.store.db.Flush())
	}
	b.add(24 * time.Hour)
	b.changed(pb.Watch_ADDED, "new", pod("10.0.0.3", "new", "n1"))
	b.flush()
	b.wholeSegments()
	wait.Until(b, "compactions", func() bool { return b.store.compacting.Load() == 0 })
	levels, err := b.store.db.SSTables()
	b.must(err)
	list := b.store.list()
	tables := 0
	for level, some := range levels {
		for _, one := range some {
			if bytes.Compare(one.Largest.UserKey, tablePrefix(list[0].number, 0)) < 0 || bytes.Compare(one.Smallest.UserKey, tablePrefix(list[1].number, 0)) >= 0 {
				continue
			}
			if tables++; level != len(levels)-1 {
				t.Errorf("got a table of the segment in level %d, want only the last level", level)
			}
		}
	}
	if len(list) != 2 || tables == 0 {
		t.Errorf("got %d segments and %d tables of the first one, want 2 and some", len(list), tables)
	}
}
