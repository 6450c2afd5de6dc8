package top

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// hostile has what an attacker could put into a name, and characters that take no column, or two.
const hostile = "evil\x1b]0;x\a\x1b[2J\u202e日本語e\u0301\r\n"

func TestEveryScreenFitsEveryWindow(t *testing.T) {
	evil := conflictOf("evil", "fd00:1234:5678:9abc:def0:1234:5678:9abc", pb.Conflict_CONFIRMED, 48*time.Hour, hostile+strings.Repeat("long-", 30), hostile)
	evil.Cause, evil.Summary = hostile, strings.Repeat(hostile+" ", 40)
	unseen := &pb.Coverage{Expected: 9, Heard: 4, SilentNodes: []string{hostile, "node-2"}, WithoutFrames: 2, NodesWithoutFrames: []string{"a", "b"}, Incomplete: true}
	for _, size := range [][2]int{{60, 10}, {79, 23}, {80, 24}, {81, 25}, {120, 40}, {200, 50}, {500, 100}, {20, 3}, {1, 1}} {
		f := &fake{owners: 250, conflict: evil}
		p := play(t, f)
		p.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		s := connected(evil, conflictOf("b", "10.0.0.8", pb.Conflict_SUSPECTED, time.Minute, "web-3", "web-4"))
		s.health.coverage, s.health.problems = unseen, []string{hostile, "the disk is full"}
		s.links[1] = link{state: disconnected, since: noon, reason: "connection refused"}
		p.shows(s)
		p.press("s<down>r<up>2s3s4s5s<enter><esc>1<enter>x<pgdown><end><esc><esc>?<esc>/" + "web<enter><esc>3/10.0.0.0/8 node=x?<enter><esc>")
		screen := strings.Join(p.checked(), "\n")
		for _, c := range []string{"\x1b]", "\x1b[2J", "\u202e", "\r", "\a"} {
			if strings.Contains(screen, c) {
				t.Errorf("at %v: %q of a name reaches the terminal", size, c)
			}
		}
	}
}

func TestWhatIsNotSeenIsShown(t *testing.T) {
	p := play(t, &fake{})
	s := connected(conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "web-1", "web-2"))
	s.health.coverage = &pb.Coverage{Expected: 3, Heard: 2, SilentNodes: []string{"node-2"}, Incomplete: true}
	s.health.problems = []string{"the disk is full"}
	p.shows(s)
	for _, want := range []string{"LIVE", "1 of 3 nodes is disconnected (node-2)", "Problem of the aggregator: the disk is full"} {
		if !strings.Contains(p.text(), want) {
			t.Errorf("got\n%s\nwant %q", p.text(), want)
		}
	}
	s.health.problems = []string{"the disk is full", "the clock is wrong", "the journal is behind"}
	p.shows(s)
	p.send(tea.WindowSizeMsg{Width: 60, Height: 10})
	if want := "3 warnings are not shown: enlarge the window."; !strings.Contains(p.text(), want) {
		t.Errorf("got\n%s\nwant %q", p.text(), want)
	}
}

func TestTheStateOfTheConnectionIsShown(t *testing.T) {
	p := play(t, &fake{})
	want := func(words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(strings.Join(strings.Fields(p.text()), " "), w) {
				t.Errorf("got\n%s\nwant %q", p.text(), w)
			}
		}
	}
	want("CONNECTING", "Waiting for http://127.0.0.1:9641")
	p.shows(connected())
	want("LIVE", "No conflicts.", "7 claims on 3 of 3 nodes, and no address is held twice.")
	p.press("/x<enter>")
	want("Nothing matches the filter. Esc removes it.")
	p.press("<esc>")
	s := connected()
	s.links[0] = link{state: disconnected, since: noon.Add(-90 * time.Second), reason: "connection refused", caughtUp: noon.Add(-90 * time.Second)}
	p.shows(s)
	want("DISCONNECTED", "Disconnected for 1m30s (connection refused). Reconnecting. The lists show the state of", "11:58:30 UTC", "No conflicts are known.")
	s.links[0].state = catchingUp
	p.shows(s)
	want("CATCHING UP")
	s = connected()
	s.health.coverage.Incomplete = true
	p.shows(s)
	want("No conflicts are known.")
	s = connected()
	s.cut[0] = true
	p.shows(s)
	want(fmt.Sprintf("There are more than %d conflicts", mostRows))
}

func TestColoursAreOptional(t *testing.T) {
	const red, reverse = "\x1b[1;31m", "\x1b[7m"
	for _, color := range []bool{true, false} {
		p := play(t, &fake{})
		p.screen.paint = painter(color)
		p.shows(connected(conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "web-1", "web-2"), conflictOf("b", "10.0.0.8", pb.Conflict_CONFIRMED, time.Hour, "web-1", "web-2")))
		screen := strings.Join(p.checked(), "\n")
		if strings.Contains(screen, red) != color {
			t.Errorf("with colours %t: got %q", color, screen)
		}
		if !strings.Contains(screen, reverse+"> ") {
			t.Errorf("with colours %t: the cursor is not visible in %q", color, screen)
		}
	}
}
