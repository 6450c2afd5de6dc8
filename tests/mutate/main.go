// Command mutate measures how many mutations of a package its own tests detect. It changes one
// operator, condition or statement at random, runs the tests, and prints the changes that no test
// detected. All changes are compiled into one test program, and an environment variable enables one
// of them. The compiler gets the changed files as an overlay, so the source tree stays unchanged.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func main() {
	s := sampling{out: os.Stdout, grace: 10 * time.Second}
	flag.StringVar(&s.pkg, "package", "", "package to mutate, like ./DIRECTORY")
	flag.IntVar(&s.n, "n", 40, "number of mutations; 0 for all possible ones")
	flag.Uint64Var(&s.seed, "seed", 0, "seed of the random selection (default: a new one for each run)")
	flag.StringVar(&s.files, "files", ".", "regular expression for the names of the files to mutate")
	flag.StringVar(&s.exec, "exec", "", "command to run the test program with, like 'sudo -E'")
	want := flag.Int("want", 0, "minimum percentage of detected mutations; the command fails below it")
	flag.Parse()
	if s.seed == 0 {
		s.seed = rand.Uint64N(1_000_000)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	share, err := s.run(ctx)
	if err == nil && share < *want {
		err = fmt.Errorf("the tests detected %d %% of the mutations, want %d %%", share, *want)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

// sampling is a sample of the mutants of one package.
type sampling struct {
	pkg   string
	n     int
	seed  uint64
	files string
	exec  string
	grace time.Duration // added to ten times the duration of the tests without a change
	out   io.Writer

	dir     string // of the package
	temp    string
	timeout time.Duration // of the tests
}

// maxMemory is the address space in KiB that the tests of a mutant may use, because a mutant may
// allocate in an endless loop.
const maxMemory = 4 << 20

// run prints the mutants that no test detects, and returns the percentage of those that are
// detected.
func (s *sampling) run(ctx context.Context) (share int, err error) {
	if s.temp, err = os.MkdirTemp("", "mutate-"); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(s.temp) }()
	mutants, err := s.build(ctx)
	if err != nil {
		return 0, err
	}
	s.timeout = 5 * time.Minute
	begin := time.Now()
	if out, err := s.test(ctx, 0); err != nil {
		return 0, fmt.Errorf("tests of %s fail without a mutation: %w\n%s", s.pkg, err, out)
	}
	s.timeout = s.grace + 10*time.Since(begin)

	random := rand.New(rand.NewPCG(s.seed, 0))
	random.Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
	all := len(mutants)
	if s.n > 0 {
		mutants = mutants[:min(all, s.n)]
	}
	slices.SortFunc(mutants, func(a, b mutant) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line)) })
	noticed := s.try(ctx, mutants)
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	count := 0
	for i, m := range mutants {
		if noticed[i] {
			count++
		} else {
			fmt.Fprintln(s.out, m)
		}
	}
	share = 100 * count / len(mutants)
	fmt.Fprintf(s.out, "%s: the tests detected %d of %d mutations (%d %%), selected from %d with seed %d\n",
		s.pkg, count, len(mutants), share, all, s.seed)
	return share, nil
}

// build compiles the test program with all mutants that compile, and returns these.
func (s *sampling) build(ctx context.Context) ([]mutant, error) {
	names, err := regexp.Compile(s.files)
	if err != nil {
		return nil, err
	}
	list, err := s.command(ctx, "go", "list", "-json=Dir,Name,GoFiles", s.pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("list package %s: %w", s.pkg, withStderr(err))
	}
	var pkg struct {
		Dir, Name string
		GoFiles   []string
	}
	if err := json.Unmarshal(list, &pkg); err != nil {
		return nil, err
	}
	s.dir = pkg.Dir
	sources, mutants := map[string][]byte{}, map[string][]mutant{}
	for _, name := range pkg.GoFiles {
		if !names.MatchString(name) {
			continue
		}
		if sources[name], err = os.ReadFile(filepath.Join(pkg.Dir, name)); err != nil {
			return nil, err
		}
		if mutants[name], err = mutantsOf(filepath.Join(s.pkg, name), sources[name]); err != nil {
			return nil, err
		}
	}
	for {
		overlay := map[string][]byte{"mutant_on.go": fmt.Appendf(nil, helper, pkg.Name)}
		number := 0
		for name := range sources {
			for i := range mutants[name] {
				number++
				mutants[name][i].number = number
			}
			overlay[name] = instrument(sources[name], mutants[name])
		}
		if number == 0 {
			return nil, fmt.Errorf("package %s has nothing to mutate", s.pkg)
		}
		output, err := s.compile(ctx, overlay)
		if err == nil {
			break
		}
		if !dropInvalid(mutants, output) {
			return nil, fmt.Errorf("compile tests of %s: %w\n%s", s.pkg, err, output)
		}
	}
	var all []mutant
	for _, name := range slices.Sorted(maps.Keys(mutants)) {
		all = append(all, mutants[name]...)
	}
	return all, nil
}

// errorLine matches an error message of the compiler.
var errorLine = regexp.MustCompile(`(?m)^(?:.*/)?([^/:]+\.go):(\d+):(?:\d+:)? `)

// dropInvalid drops the mutants on lines that do not compile. On each line it drops those whose
// operands may have a wrong type, or all if there are none of these. It reports whether it dropped
// any.
func dropInvalid(mutants map[string][]mutant, output []byte) (dropped bool) {
	for _, m := range errorLine.FindAllSubmatch(output, -1) {
		name := string(m[1])
		line, _ := strconv.Atoi(string(m[2]))
		on := func(m mutant) bool { return m.first <= line && line <= m.last }
		doubtful := slices.ContainsFunc(mutants[name], func(m mutant) bool { return on(m) && m.doubtful })
		before := len(mutants[name])
		mutants[name] = slices.DeleteFunc(mutants[name], func(m mutant) bool { return on(m) && m.doubtful == doubtful })
		dropped = dropped || len(mutants[name]) < before
	}
	return dropped
}

// compile compiles the tests with replaced files of the package, and returns the output of the
// compiler.
func (s *sampling) compile(ctx context.Context, files map[string][]byte) ([]byte, error) {
	replace := map[string]string{}
	for name, source := range files {
		replace[filepath.Join(s.dir, name)] = filepath.Join(s.temp, name)
		if err := os.WriteFile(filepath.Join(s.temp, name), source, 0o600); err != nil {
			return nil, err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.temp, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		return nil, err
	}
	return s.command(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", path, "-o", s.program(), s.pkg).CombinedOutput()
}

func (s *sampling) program() string { return filepath.Join(s.temp, "tests") }

// try tests mutants in parallel, and reports which of them are detected.
func (s *sampling) try(ctx context.Context, mutants []mutant) []bool {
	noticed := make([]bool, len(mutants))
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				_, err := s.test(ctx, mutants[i].number)
				noticed[i] = err != nil
			}
		})
	}
	for i := range mutants {
		next <- i
	}
	close(next)
	workers.Wait()
	return noticed
}

// test runs the tests in the directory of the package, with one mutant enabled, or none for 0.
func (s *sampling) test(ctx context.Context, number int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout+s.grace) // a program without memory may hang
	defer cancel()
	cmd := s.command(ctx, "sh", "-c", `ulimit -v "$1" && shift && exec `+s.exec+` "$@"`, "sh", strconv.Itoa(maxMemory),
		s.program(), "-test.failfast", "-test.timeout", s.timeout.String())
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "MUTANT="+strconv.Itoa(number))
	return cmd.CombinedOutput()
}

// command returns a command that ends with the context, including all its children.
func (s *sampling) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// withStderr adds the standard error of a command to its error.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}
