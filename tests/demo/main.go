// Command demo shows the accident that ipwitness detects, with the real ptp and host-local plugins:
// pods start, the IPAM directory is deleted, and more pods start with the same addresses.
// Everything happens in the demo's own namespaces, which end with it. With -pace, it waits after
// each output, so that one can read it. With -shell, it opens a shell on such a node instead.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

func main() {
	pace := flag.Duration("pace", 0, "how long to wait after each output")
	shell := flag.Bool("shell", false, "open a shell on a node, to try ipwitness")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var err error
	if *shell {
		// A shell interrupts its own commands.
		err = playground(context.WithoutCancel(ctx))
	} else {
		limited, end := context.WithTimeout(ctx, 5*time.Minute)
		defer end()
		err = demo(limited, *pace)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		cancel()
		os.Exit(1)
	}
}

func demo(ctx context.Context, pace time.Duration) error {
	step("A node comes up, with ipwitness on it. The network is kindnet's: ptp and host-local.")
	host, cni, bin, err := node()
	if err != nil {
		return err
	}
	defer host.Close()
	command("ipwitness run &")
	program, err := host.Launch(ctx, host.Command(bin, "run", "--node", "node-1"))
	if err != nil {
		return err
	}
	conflicts, failed := watch(ctx, program)
	// show runs ipwitness as a user does, in the terminal of the demo if it has one.
	show := func(args ...string) error {
		fmt.Println()
		command("ipwitness " + strings.Join(args, " "))
		cmd := host.Command(bin, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := host.Start(cmd); err != nil {
			return err
		}
		return errors.Join(cmd.Wait(), pause(ctx, pace))
	}

	step("Three pods start.")
	for _, pod := range []string{"web-1", "web-2", "web-3"} {
		if err := cni.Add(pod); err != nil {
			return err
		}
	}
	if err := show("owners", "10.244.0.0/16"); err != nil {
		return err
	}

	step("host-local's records are deleted, as by a restore, a cleanup script, or a tmpfs after a reboot.")
	command("rm -rf /run/cni-ipam-state")
	if err := cni.Forget(); err != nil {
		return err
	}
	if err := predicted(ctx, program, 3); err != nil {
		return err
	}
	if err := show("audit"); err != nil {
		return err
	}

	step("Three more pods start. CNI gives them the addresses of the first three, and reports success.")
	for _, pod := range []string{"api-1", "api-2", "api-3"} {
		if err := cni.Add(pod); err != nil {
			return err
		}
	}
	if err := await(ctx, conflicts, failed, 3, ipwitnessv1.Conflict_CONFIRMED); err != nil {
		return err
	}
	if err := show("conflicts"); err != nil {
		return err
	}
	if err := show("conflicts", "10.244.0.2"); err != nil {
		return err
	}

	step("The older pods are deleted, as by the remedy or by a rollout.")
	for _, pod := range []string{"web-1", "web-2", "web-3"} {
		if err := cni.Delete(pod); err != nil {
			return err
		}
	}
	if err := await(ctx, conflicts, failed, 3, ipwitnessv1.Conflict_RESOLVED); err != nil {
		return err
	}
	if err := show("conflicts"); err != nil {
		return err
	}
	if _, err := program.Stop(); err != nil {
		return fmt.Errorf("stop ipwitness: %w", err)
	}
	step("Done. The namespaces and everything in them are removed.")
	return nil
}

// pause waits so that the output before it can be read.
func pause(ctx context.Context, pace time.Duration) error {
	select {
	case <-time.After(pace):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// node creates a host with the network of kindnet, and returns the path of ipwitness.
func node() (host *netlab.Host, cni *netlab.CNI, bin string, err error) {
	if err := netlab.Possible(); errors.Is(err, netlab.ErrNoRoot) {
		return nil, nil, "", errors.New("needs root to make namespaces: run it with sudo")
	} else if err != nil {
		return nil, nil, "", err
	}
	if bin, err = filepath.Abs("bin/ipwitness"); err != nil {
		return nil, nil, "", err
	}
	if _, err := os.Stat(bin); err != nil {
		return nil, nil, "", fmt.Errorf("%w: run 'make build' first", err)
	}
	if host, err = netlab.New(); err != nil {
		return nil, nil, "", err
	}
	if cni, err = host.CNI(netlab.PTP); err != nil {
		host.Close()
		return nil, nil, "", err
	}
	return host, cni, bin, nil
}

// predicted prints the findings about addresses that are in use without an allocation as they
// arrive, until there are n of them.
func predicted(ctx context.Context, p *netlab.Program, n int) error {
	found := map[string]bool{}
	return p.WatchFindings(ctx, func(e netlab.FindingEvent) bool {
		if f := e.GetFinding(); f.GetKind() == "in-use-unallocated" && !found[f.GetAddress()] {
			event(e.Read, f.GetSeverity().String(), f.GetAddress(), f.GetKind())
			found[f.GetAddress()] = true
		}
		return len(found) < n
	})
}

// watch follows the conflicts in the background.
func watch(ctx context.Context, p *netlab.Program) (<-chan netlab.Event, <-chan error) {
	conflicts := make(chan netlab.Event, 1024)
	failed := make(chan error, 1)
	go func() {
		failed <- p.WatchConflicts(ctx, func(e netlab.Event) bool {
			if e.GetConflict() != nil {
				conflicts <- e
			}
			return true
		})
	}()
	return conflicts, failed
}

// await prints changes of conflicts until n of them are in a state.
func await(ctx context.Context, conflicts <-chan netlab.Event, failed <-chan error, n int, state ipwitnessv1.Conflict_State) error {
	states := map[string]ipwitnessv1.Conflict_State{}
	for {
		reached := 0
		for _, s := range states {
			if s == state {
				reached++
			}
		}
		if reached == n {
			return nil
		}
		select {
		case e := <-conflicts:
			c := e.GetConflict()
			if states[c.GetId()] != c.GetState() {
				states[c.GetId()] = c.GetState()
				event(e.Read, c.GetState().String(), c.GetAddress(), names(c))
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("wait for %d conflicts to be %s, saw %v: %w", n, state, states, ctx.Err())
		}
	}
}

func names(c *ipwitnessv1.Conflict) string {
	var out []string
	for _, o := range c.GetOwners() {
		w := o.GetWorkload()
		switch {
		case w.GetNamespace() != "":
			out = append(out, w.GetNamespace()+"/"+w.GetName())
		case w.GetName() != "":
			out = append(out, w.GetName())
		default:
			out = append(out, "a pod not named yet")
		}
	}
	slices.Sort(out)
	return strings.Join(out, " | ")
}

// colours are the escape sequences (SGR) of the states and severities that the demo prints.
var colours = map[string]string{"CRITICAL": "1;31", "CONFIRMED": "1;31", "SUSPECTED": "33", "RESOLVED": "32"}

// coloured returns a text in a colour if the output is a terminal that wants colours.
func coloured(colour, text string) string {
	if os.Getenv("NO_COLOR") != "" || !term.IsTerminal(int(os.Stdout.Fd())) {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// event prints what a watch reported, at the time when it was read.
func event(at time.Time, state, address, about string) {
	fmt.Printf("%s  %s  %-10s  %s\n", at.UTC().Format("15:04:05.000"), coloured(colours[state], fmt.Sprintf("%-9s", state)), address, about)
}

func step(text string) { fmt.Println("\n" + coloured("1;36", "-- "+text)) }

func command(line string) { fmt.Println(coloured("1", "$ "+line)) }
