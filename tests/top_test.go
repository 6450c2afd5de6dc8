package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ipwitness/ipwitness/tests/wait"
)

// A screen is a real terminal of the host, in which a shell runs: a window of tmux.
type screen struct {
	*lab
	socket string
}

// screen opens a terminal that ends with the test.
func (l *lab) screen(columns, lines int) *screen {
	l.t.Helper()
	s := &screen{l, filepath.Join(l.t.TempDir(), "tmux")}
	server := l.Command("tmux", "-D", "-S", s.socket, "-f", "/dev/null")
	if err := l.Start(server); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // killed
	})
	wait.Until(l.t, "the terminal to open", func() bool {
		// -N: without the server above, this would start one that nobody ends.
		return s.tmux("-N", "new-session", "-d", "-x", fmt.Sprint(columns), "-y", fmt.Sprint(lines), "env PS1='$ ' sh").Run() == nil
	})
	return s
}

func (s *screen) tmux(args ...string) *exec.Cmd {
	return s.Command("tmux", append([]string{"-S", s.socket}, args...)...)
}

// ask returns the output of a command of tmux.
func (s *screen) ask(args ...string) string {
	s.t.Helper()
	out, err := s.Output(s.tmux(args...))
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// press presses keys, by the names that tmux has for them.
func (s *screen) press(keys ...string) {
	s.t.Helper()
	s.ask(append([]string{"send-keys"}, keys...)...)
}

// enter types a text and presses Enter.
func (s *screen) enter(text string) {
	s.t.Helper()
	s.press("-l", text)
	s.press("Enter")
}

// shows waits until the screen has all texts, and none of those that begin with "!".
func (s *screen) shows(texts ...string) {
	s.t.Helper()
	var now string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen is\n%s", now)
		}
	}()
	wait.Until(s.t, fmt.Sprintf("the screen to show %q", texts), func() bool {
		now = s.ask("capture-pane", "-p")
		for _, text := range texts {
			text, not := strings.CutPrefix(text, "!")
			if strings.Contains(now, text) == not {
				return false
			}
		}
		return true
	})
}

// modes returns the settings of the terminal that a program may change.
func (s *screen) modes() string {
	s.t.Helper()
	tty := strings.TrimSpace(s.ask("display-message", "-p", "#{pane_tty}"))
	out, err := s.Run("stty -a -F %s", tty)
	if err != nil {
		s.t.Fatal(err)
	}
	return out + s.ask("display-message", "-p", "alternate #{alternate_on} cursor #{cursor_flag} keypad #{keypad_flag} mouse #{mouse_any_flag}")
}

func TestTopShowsADuplicateAsItAppears(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.screen(80, 24)
	s.shows("$")
	before := s.modes()
	s.enter(binary + ` top; echo "code $?"`)
	s.shows("LIVE", "[1 Conflicts 0]", "No conflicts.", "no address is held twice")

	l.seed("web", "10.244.0.7")
	s.shows("[1 Conflicts 1]", "CONFIRMED", "10.244.0.7", "netns/web1", "netns/web2")
	l.seed("db", "10.244.0.8")
	s.shows("[1 Conflicts 2]", "10.244.0.7", "10.244.0.8", "!SUSPECTED")

	s.press("-l", "/db1")
	s.shows("db1", "10.244.0.7")
	s.press("Enter")
	s.shows("Filter: db1", "Esc removes it", "10.244.0.8", "!10.244.0.7")
	s.press("Enter")
	s.shows("Conflict of 10.244.0.8", "10.244.0.8 is held twice", "netns/db1")
	s.press("x")
	s.shows("Explanation of 10.244.0.8", "Held by:")
	s.ask("resize-window", "-x", "120", "-y", "60")
	s.shows("Explanation of 10.244.0.8", "Rules that applied:")
	s.press("Escape")
	s.shows("Conflict of 10.244.0.8")
	s.press("Escape")
	s.shows("Filter: db1")
	s.press("Escape")
	s.shows("10.244.0.7", "10.244.0.8")

	s.press("3")
	s.shows("[3 Owners]", "WORKLOAD")
	s.press("/")
	s.shows("Filter (address")
	s.enter("10.244.0.7")
	s.shows("2 owners, as of", "netns/web1", "netns/web2", "CONFIRMED", "!netns/db1")
	s.press("4")
	s.shows("[4 Nodes 1]", "node1", "LIVE", "tcx")
	s.press("1")
	l.sh("ip netns del web2")
	s.shows("[1 Conflicts 1]", "RESOLVED", "10.244.0.8")

	l.agent.Kill()
	s.shows("DISCONNECTED", "Reconnecting. The lists show the state of", "10.244.0.8")
	l.start("--node", "node1")
	s.shows("LIVE", "!DISCONNECTED", "10.244.0.8", "CONFIRMED", "!RESOLVED")

	s.ask("resize-window", "-x", "80", "-y", "24")
	s.press("q")
	s.shows("code 0", "!Conflicts")
	if after := s.modes(); after != before {
		t.Errorf("after q: got the terminal\n%s\nwant it as before\n%s", after, before)
	}
}

func TestTopRestoresTheTerminalWhenItIsTerminated(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.screen(80, 24)
	s.shows("$")
	before := s.modes()
	file := filepath.Join(t.TempDir(), "pid")
	s.enter(fmt.Sprintf(`sh -c 'echo $$ >%s; exec %s top'; echo "code $?"`, file, binary))
	s.shows("LIVE", "Conflicts")
	if s.modes() == before {
		t.Fatal("top does not change the terminal, so this test shows nothing")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.shows("code 0", "!Conflicts")
	if after := s.modes(); after != before {
		t.Errorf("after SIGTERM: got the terminal\n%s\nwant it as before\n%s", after, before)
	}
}
