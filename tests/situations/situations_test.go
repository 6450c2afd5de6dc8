package situations

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestStableTextHasNothingThatDiffersFromRunToRun(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 7e6, time.UTC)
	one := fmt.Sprintf("netns 4026532001 a6:9f:e1:00:00:01 and 02:00:00:00:00:01, last %s (0.4s ago), for 3m5s  x, ANNOUNCED 3 times: seen on node1/veth0a1b2c3d",
		now.Format("15:04:05.000"))
	two := fmt.Sprintf("netns 4026532007 12:34:56:10:00:77 and 02:00:00:00:00:01, last %s (12s ago), for 2s  x, ANNOUNCED: seen on node1/vethffffffff",
		now.Format("2006-01-02 15:04:05.000"))
	one, two = one+" since "+Day+" 12:00:00.000", two+" since "+Day+" 12:00:00.000"
	if Stable(one) != Stable(two) || !strings.HasSuffix(Stable(one), Day+" 12:00:00.000") || !strings.Contains(Stable(one), "02:00:00:00:00:01") {
		t.Errorf("got %q and %q, want one text", Stable(one), Stable(two))
	}
}

func TestATextWithTheDayBeforeIsKnown(t *testing.T) {
	const (
		today     = "default/p1  since 00:00:01.000  host-local\ndefault/p2  -                   host-local\n"
		yesterday = "default/p1  since 2026-02-02 23:59:59.000  host-local\ndefault/p2  -                              host-local\n"
	)
	for text, want := range map[string]bool{
		today: false, yesterday: true, "all of " + Day + " 12:00:00.000": false, "lost at 2026-02-03 23:59:59.000\n  (there were 3)": false,
	} {
		if got := beforeMidnight(text, "2026-02-03"); got != want {
			t.Errorf("%q: got %t, want %t", text, got, want)
		}
	}
	if one, two := Stable(today), Stable(yesterday); one == two || words(one) != words(two) {
		t.Errorf("got %q and %q, want the same words", one, two)
	}
}

func TestACommandOfTheTestIsNoneThatLivesThere(t *testing.T) {
	const text = "    container     c0ffee000001\n%s    evidence      ASSIGNED\n"
	if got, want := Stable(fmt.Sprintf(text, "    process       ip (4711)\n")), fmt.Sprintf(text, ""); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Stable(fmt.Sprintf(text, "    process       pause (4711)\n")), fmt.Sprintf(text, "    process       pause (42)\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
