package tests

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// demoProgram builds the demo into a directory in which it finds ipwitness, and returns a command
// that runs it there.
func demoProgram(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if err := netlab.Possible(); err != nil {
		missing(t, err)
	}
	plugins, err := netlab.Plugins()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "demo"), "./demo").CombinedOutput(); err != nil {
		t.Fatalf("build the demo: %v: %s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(dir, "bin/ipwitness")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "demo"), args...)
	cmd.Dir = dir
	cmd.Env = append(netlab.Environment(), "IPWITNESS_CNI_BIN="+plugins)
	return cmd
}

// lesson is one block of commands of the tutorial, and the output that the page shows after it.
type lesson struct{ commands, output string }

var lessonBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?")

func lessons(t *testing.T) (all []lesson) {
	t.Helper()
	page, err := os.ReadFile("../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range lessonBlock.FindAllStringSubmatch(string(page), -1) {
		all = append(all, lesson{m[1], m[2]})
	}
	if len(all) < 10 {
		t.Fatalf("got %d blocks of commands, want those of the tutorial", len(all))
	}
	return all
}

// hasAll reports whether a line has all words of another one. Pages show long lines in part.
func hasAll(line, other string) bool {
	words := strings.Fields(line)
	return !slices.ContainsFunc(strings.Fields(other), func(w string) bool { return !slices.Contains(words, w) })
}

// shell is a shell that reads commands from a pipe.
type shell struct {
	t       *testing.T
	in      io.Writer
	log     *netlab.Log
	ended   chan error
	counter int
}

// do runs commands and returns what they printed.
func (s *shell) do(commands string) string {
	s.t.Helper()
	s.counter++
	before := len(s.log.String())
	end := fmt.Sprintf("::%d ended::\n", s.counter)
	if _, err := fmt.Fprintf(s.in, "%s\necho '%s'\n", strings.TrimSpace(commands), strings.TrimSpace(end)); err != nil {
		s.t.Fatal(err)
	}
	var out string
	wait.Until(s.t, "the end of "+commands, func() bool {
		select {
		case err := <-s.ended:
			s.t.Fatalf("the shell ended: %v: %s", err, s.log)
		default:
		}
		var done bool
		out, done = strings.CutSuffix(s.log.String()[before:], end)
		return done
	})
	return out
}

// Every command of the tutorial works in the order of the page, and prints what the page shows. A
// block that only asks is repeated until it does, because a reader is not as fast as a test.
func TestTutorial(t *testing.T) {
	t.Parallel()
	cmd := demoProgram(t, "-shell")
	s := &shell{t: t, log: &netlab.Log{}, ended: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	var err error
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- cmd.Wait() }()
	all := lessons(t)
	for _, l := range all[:len(all)-1] {
		want := essentials(l.output)
		if l.output != "" && len(want) == 0 {
			want = []string{strings.TrimSpace(l.output)}
		}
		asks := !regexp.MustCompile(`(?m)^(?:pod|rm|sh|ip) |>`).MatchString(l.commands)
		out := s.do(l.commands)
		lacking := func() []string {
			got := essentials(out)
			return slices.DeleteFunc(slices.Clone(want), func(line string) bool {
				return strings.Contains(out, line) || slices.ContainsFunc(got, func(l string) bool { return hasAll(l, line) })
			})
		}
		if asks {
			wait.Until(t, fmt.Sprintf("%s to print %q", l.commands, want), func() bool {
				if len(lacking()) > 0 {
					out = s.do(l.commands)
				}
				return len(lacking()) == 0
			})
		}
		// The last command of a block may ask for what the ones before it have just caused.
		if m := lacking(); len(m) > 0 {
			last := l.commands[strings.LastIndex(strings.TrimSpace(l.commands), "\n")+1:]
			if !strings.HasPrefix(last, "ipwitness ") {
				t.Fatalf("%s\ngot %s\nwant %q", l.commands, out, m)
			}
			wait.Until(t, fmt.Sprintf("%s to print %q", last, m), func() bool {
				out += s.do(last)
				return len(lacking()) == 0
			})
		}
		if strings.Contains(out, "Usage:") || strings.Contains(out, "not found") {
			t.Errorf("%s\nfailed: %s", l.commands, out)
		}
	}
	if _, err := fmt.Fprint(s.in, all[len(all)-1].commands); err != nil {
		t.Fatal(err)
	}
	if err := <-s.ended; err != nil {
		t.Errorf("the playground ended with %v, want no error: %s", err, s.log)
	}
}
