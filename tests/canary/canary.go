// Package canary runs the commands that ipwitness prints in a sandbox, the cage, to check that no
// external text is executed as code. Names in the commands are Payloads: an unquoted one creates a
// file, the canary.
package canary

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Payloads are names of three kinds: names that run a command in a shell unless they are quoted and
// escaped, names that a program takes for an option, and names that control a terminal. They are
// short, because an interface name has at most 15 bytes.
var Payloads = []string{
	"$(:>c)", "`:>c`", ";:>c;", "';:>c;'", "\";:>c;\"", "x\n:>c\n", "x\r\n:>c #", "|:>c", "x&&:>c", ">c", option,
	"x\x1b[2J", "x\u202ex", "x\u009b1m", "x\u200bx",
}

// option is the payload that a program takes for an option.
const option = "--evil=1"

// Runs reports whether a payload runs a command in a shell. The others only control a
// terminal.
func Runs(payload string) bool { return strings.Contains(payload, ">c") }

// commands are the programs that appear in printed commands. In the cage they do nothing,
// unless they get a payload as an option.
var commands = []string{
	"kubectl", "calicoctl", "crictl", "ip", "nsenter", "cat", "rm", "mkdir", "grep", "head", "tr", "ls", "sort", "sed", "id", "readlink", "flock",
	"systemctl", "hostnamectl", "sysctl", "virsh", "findmnt", "lsns", "ipwitness", "sh", "docker", "jq",
}

// A Cage runs commands in isolation.
type Cage struct {
	testing.TB
	dir string
	// Boot and Netns are the boot ID and the inode of the network namespace that the cage
	// reports for its machine.
	Boot, Netns string
	seen        map[string]bool
	scripts     []string
}

// New returns an empty cage.
func New(t testing.TB) *Cage {
	t.Helper()
	dir, err := os.MkdirTemp("", "canary")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // the shell is nobody's
		t.Fatal(err)
	}
	return &Cage{TB: t, dir: dir, Boot: "4203561e-1821-45b6-a68a-d4619be90320", Netns: "4026531840", seen: map[string]bool{}}
}

// Add adds a script to run later, once, if it contains a payload.
func (c *Cage) Add(script string) {
	if !c.seen[script] && (Runs(script) || strings.Contains(script, option)) {
		c.seen[script] = true
		c.scripts = append(c.scripts, script)
	}
}

// Advice adds each command that a sentence may contain. A command begins at the name of a
// program. It may end at several places, at the latest with its sentence, because
// ordinary words follow after that.
func (c *Cage) Advice(text string) {
	if !Runs(text) && !strings.Contains(text, option) {
		return
	}
	for _, command := range slices.Concat(commands, []string{"printf", "echo", "if", "elif"}) {
		for at := 0; ; {
			i := strings.Index(text[at:], command+" ")
			if i < 0 {
				break
			}
			at += i
			if rest, _, _ := strings.Cut(text[at:], ". "); at == 0 || strings.ContainsRune(" `(;\n!", rune(text[at-1])) {
				c.Add(rest)
				for _, end := range []string{"\n", "; ", " (", ": ", ", ", "`", ")", " | ", " && ", " then", "]"} {
					for before := range ends(rest, end) {
						c.Add(before)
					}
				}
			}
			at += len(command)
		}
	}
}

// Script adds a script and each of its commands, because it is unknown which branches the
// script takes.
func (c *Cage) Script(script string) {
	c.Add(script)
	for line := range strings.SplitSeq(script, "\n") {
		for i := range line {
			if i == 0 || line[i-1] == ' ' && strings.Count(line[:i], "'")%2 == 0 && beginsCommand(line[:i], line[i:]) {
				c.Add(line[i:])
			}
		}
	}
}

// beginsCommand reports whether a command begins between the two parts of a line: after an operator or a reserved
// word, or with the name of a program.
func beginsCommand(before, rest string) bool {
	words := strings.Fields(before)
	if len(words) == 0 {
		return true
	}
	last := words[len(words)-1]
	program, _, _ := strings.Cut(rest, " ")
	return strings.ContainsRune(";|&({!", rune(last[len(last)-1])) || slices.Contains(reserved, last) || slices.Contains(commands, program)
}

// reserved are the words of the shell after which a command begins.
var reserved = []string{"if", "then", "elif", "else", "do", "while", "until", "exec", "eval"}

// ends yields the text before each of the first three occurrences of place.
func ends(text, place string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for at, n := 0, 0; n < 3; n++ {
			i := strings.Index(text[at:], place)
			if i < 0 || !yield(text[:at+i]) {
				return
			}
			at += i + len(place)
		}
	}
}

// cage is the script that runs the others: it hides all programs and defines functions in
// their place.
const cage = `for f in s*; do
	(
		set -- $ARGUMENTS
		. "./$f"
	) </dev/null >/dev/null 2>&1
	if [ -e c ]; then
		echo "$f"
		exit 0
	fi
done
`

// Sings runs all added scripts with the given arguments. It returns the first script that
// leaves a canary, or an empty string if none does.
func (c *Cage) Sings(arguments ...string) string {
	c.Helper()
	scripts := c.scripts
	c.scripts = nil
	clear(c.seen)
	for _, status := range []int{0, 1} {
		if script := c.run(scripts, status, arguments); script != "" {
			return script
		}
	}
	return ""
}

func (c *Cage) run(scripts []string, status int, arguments []string) string {
	c.Helper()
	if err := errors.Join(c.clear(), c.write(scripts)); err != nil {
		c.Fatal(err)
	}
	var functions strings.Builder
	for _, name := range commands {
		answer := ":"
		switch name {
		case "kubectl", "calicoctl", "crictl", "ipwitness":
			answer = `value=; for a; do case $value$a in --) break ;; --evil*) : >c ;; esac; case $a in -n | -l | -o | -p | --name | --namespace | --label | --id | --field-selector) value=x ;; *) value= ;; esac; done`
		case "id":
			answer = "echo 0"
		case "cat":
			answer = "echo " + advice.Quote(c.Boot)
		case "readlink":
			answer = "echo " + advice.Quote("net:["+c.Netns+"]")
		}
		if name == "id" || name == "cat" || name == "readlink" {
			fmt.Fprintf(&functions, "%s() { %s; }\n", name, answer)
		} else {
			fmt.Fprintf(&functions, "%s() { %s; return %d; }\n", name, answer, status)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", functions.String()+cage)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + filepath.Join(c.dir, "none"), "ARGUMENTS=" + strings.Join(arguments, " ")}
	if os.Geteuid() == 0 { // keeps scripts from writing files elsewhere
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("the restricted shell does not work: %v: %s", err, out)
	}
	name := strings.TrimSpace(string(out))
	if name == "" {
		return ""
	}
	raw, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.Fatal(err)
	}
	return string(raw)
}

func (c *Cage) clear() error {
	files, err := filepath.Glob(filepath.Join(c.dir, "*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

func (c *Cage) write(scripts []string) error {
	for i, s := range scripts {
		if err := os.WriteFile(filepath.Join(c.dir, fmt.Sprintf("s%06d", i)), []byte(s), 0o644); err != nil { //nolint:gosec // nobody's shell reads it
			return err
		}
	}
	return nil
}

// Parses fails the test if a shell cannot parse a script.
func (c *Cage) Parses(script string) {
	c.Helper()
	cmd := exec.Command("/bin/sh", "-n")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Errorf("%v: %s\n%s", err, out, script)
	}
}

// Readable fails the test if a text has an invisible character, or one that controls a
// terminal.
func (c *Cage) Readable(what, text string) {
	c.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		if !advice.Printable(strings.TrimLeft(line, "\t")) {
			c.Errorf("%s: got %q, want nothing that cannot be printed", what, line)
			return
		}
	}
}
