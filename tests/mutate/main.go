// Command mutate measures how many changes of a package its own tests notice. It changes one
// operator, condition or statement at random, runs the tests, and prints the changes that no
// test noticed. The compiler gets the changed file as an overlay, so the tree stays as it is.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func main() {
	s := sampling{out: os.Stdout, grace: 10 * time.Second}
	flag.StringVar(&s.pkg, "package", "", "package to change, as ./DIRECTORY")
	flag.IntVar(&s.n, "n", 40, "number of changes; 0 for all possible ones")
	flag.Uint64Var(&s.seed, "seed", 0, "seed of the random choice (default: another one each time)")
	flag.StringVar(&s.files, "files", ".", "regular expression for the names of the files to change")
	want := flag.Int("want", 0, "percentage of changes that the tests must notice, or the command fails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.main(ctx, *want); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1)
	}
}

// main runs the sampling with a build cache of its own: each change leaves megabytes in it that
// nobody needs again.
func (s *sampling) main(ctx context.Context, want int) error {
	cache, err := os.MkdirTemp("", "mutate-cache-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(cache) }()
	s.env = append(os.Environ(), "GOCACHE="+cache)
	if s.seed == 0 {
		s.seed = rand.Uint64N(1_000_000)
	}
	share, err := s.run(ctx)
	if err == nil && share < want {
		err = fmt.Errorf("the tests notice %d %% of the changes, want %d %%", share, want)
	}
	return err
}

// sampling is a choice of the mutants of one package.
type sampling struct {
	pkg   string
	n     int
	seed  uint64
	files string
	grace time.Duration // for tests, beside ten times what they need without a change
	env   []string      // of the go command
	out   io.Writer

	dir     string // of the package
	temp    string
	timeout time.Duration // of the tests
}

// maxMemory is the address space in KiB that the tests of a mutant may use: some changes make
// a loop endless that allocates.
const maxMemory = 4 << 20

// outcome is what became of a mutant.
type outcome int

const (
	invalid   outcome = iota // it does not compile
	noticed                  // a test failed, or did not end
	unnoticed                // all tests passed
)

// run prints the mutants that no test notices, and returns the percentage of noticed ones.
func (s *sampling) run(ctx context.Context) (share int, err error) {
	if s.temp, err = os.MkdirTemp("", "mutate-"); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(s.temp) }()
	mutants, err := s.mutants(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.baseline(ctx); err != nil {
		return 0, err
	}

	random := rand.New(rand.NewPCG(s.seed, 0))
	random.Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
	total, missed := 0, 0
	for next := 0; next < len(mutants) && (s.n == 0 || total < s.n); {
		batch := mutants[next:]
		if s.n > 0 {
			batch = batch[:min(len(batch), s.n-total)]
		}
		outcomes, err := s.try(ctx, batch)
		if err != nil {
			return 0, err
		}
		for i, o := range outcomes {
			switch o {
			case invalid:
				continue
			case unnoticed:
				missed++
				fmt.Fprintln(s.out, batch[i])
			}
			total++
		}
		next += len(batch)
	}
	if total == 0 {
		return 0, fmt.Errorf("package %s has nothing to change", s.pkg)
	}
	share = 100 * (total - missed) / total
	fmt.Fprintf(s.out, "%s: the tests notice %d of %d changes (%d %%), chosen from %d with seed %d\n",
		s.pkg, total-missed, total, share, len(mutants), s.seed)
	return share, nil
}

// mutants returns all mutants of the package.
func (s *sampling) mutants(ctx context.Context) (all []mutant, err error) {
	names, err := regexp.Compile(s.files)
	if err != nil {
		return nil, err
	}
	list, err := s.command(ctx, "go", "list", "-json=Dir,GoFiles", s.pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("list package %s: %w", s.pkg, said(err))
	}
	var pkg struct {
		Dir     string
		GoFiles []string
	}
	if err := json.Unmarshal(list, &pkg); err != nil {
		return nil, err
	}
	s.dir = pkg.Dir
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Rel(here, pkg.Dir) // shorter to print
	if err != nil {
		return nil, err
	}
	for _, name := range pkg.GoFiles {
		if !names.MatchString(name) {
			continue
		}
		found, err := mutantsOf(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// baseline runs the tests without a change: they must pass, and tell how long they may take.
func (s *sampling) baseline(ctx context.Context) error {
	program := filepath.Join(s.temp, "baseline")
	if err := s.compile(ctx, program); err != nil {
		return fmt.Errorf("compile tests of %s: %w", s.pkg, err)
	}
	s.timeout = 5 * time.Minute
	begin := time.Now()
	if out, err := s.test(ctx, program); err != nil {
		return fmt.Errorf("tests of %s fail without a change: %w\n%s", s.pkg, err, out)
	}
	s.timeout = s.grace + 10*time.Since(begin)
	return nil
}

// try tests mutants side by side.
func (s *sampling) try(ctx context.Context, batch []mutant) ([]outcome, error) {
	outcomes, errs := make([]outcome, len(batch)), make([]error, len(batch))
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range next {
				outcomes[i], errs[i] = s.one(ctx, i, batch[i])
			}
		})
	}
	for i := range batch {
		next <- i
	}
	close(next)
	workers.Wait()
	return outcomes, errors.Join(append(errs, ctx.Err())...)
}

// one tests one mutant.
func (s *sampling) one(ctx context.Context, number int, m mutant) (outcome, error) {
	if ctx.Err() != nil {
		return invalid, nil
	}
	prefix := filepath.Join(s.temp, strconv.Itoa(number))
	changed, overlay, program := prefix+".go", prefix+".json", prefix+".test"
	source, err := m.apply()
	if err != nil {
		return invalid, err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: changed}})
	if err != nil {
		return invalid, err
	}
	if err := errors.Join(os.WriteFile(changed, source, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return invalid, err
	}
	if s.compile(ctx, program, "-overlay", overlay) != nil {
		return invalid, nil
	}
	defer func() { _ = os.Remove(program) }()
	if _, err := s.test(ctx, program); err != nil {
		return noticed, nil
	}
	return unnoticed, nil
}

func (s *sampling) compile(ctx context.Context, program string, flags ...string) error {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", program}, flags...)
	_, err := s.command(ctx, "go", append(args, s.pkg)...).Output()
	return said(err)
}

// test runs a test program in the directory of the package.
func (s *sampling) test(ctx context.Context, program string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout+s.grace) // a program without memory may hang
	defer cancel()
	cmd := s.command(ctx, "sh", "-c", `ulimit -v "$1" && shift && exec "$@"`, "sh", strconv.Itoa(maxMemory),
		program, "-test.failfast", "-test.timeout", s.timeout.String())
	cmd.Dir = s.dir
	return cmd.CombinedOutput()
}

// command is a command that ends with the context, even if its children do not.
func (s *sampling) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// said adds what a command wrote to its standard error.
func said(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}
