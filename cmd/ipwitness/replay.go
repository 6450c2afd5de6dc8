//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/agent/capture"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/cli"
)

// replayCommand contains the flags of replay.
type replayCommand struct {
	sys        system
	aggregator aggregator.Config
	links      []string
	logging    cli.Logging
}

func newReplay(sys system) *cobra.Command {
	r := &replayCommand{sys: sys}
	cmd := &cobra.Command{
		Use:   "replay FILE... [flags] [-- COMMAND]",
		Short: "Judge captures of tcpdump or Wireshark, offline",
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) == 0 || at == 0 {
				return errors.New("replay needs a FILE that tcpdump or Wireshark wrote, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			files, command := args, []string{"status"}
			if at := cmd.ArgsLenAtDash(); at > 0 && at < len(args) {
				files, command = args[:at], args[at:]
			}
			return r.run(cmd, files, command)
		},
	}
	judgementFlags(cmd, &r.aggregator)
	cmd.Flags().StringArrayVar(&r.links, "interface", nil, "`NAME=LINK`: the interface of this name in the captures is on this link; repeatable (default: each is on a link of its own)")
	r.logging.AddFlags(cmd)
	return cmd
}

// onLinks returns the links of interfaces, by name.
func (r *replayCommand) onLinks() (map[string]string, error) {
	links := make(map[string]string)
	for _, one := range r.links {
		name, link, ok := strings.Cut(one, "=")
		if !ok || name == "" || link == "" {
			return nil, fmt.Errorf("--interface %q: write it as NAME=LINK, such as eth0=lan", one)
		}
		links[name] = link
	}
	return links, nil
}

// run replays files, and then runs a command that asks the aggregator of the replay.
func (r *replayCommand) run(cmd *cobra.Command, names, command []string) error {
	links, err := r.onLinks()
	if err != nil {
		return err
	}
	frames, err := openCaptures(cmd.InOrStdin(), names)
	if err != nil {
		return err
	}
	defer frames.close()
	at := frames.earliest()
	if at < 0 {
		return errors.Join(append(frames.failed, frames.silent())...)
	}
	begin := frames.next[at].At
	p := cli.NewProcess(r.sys.stderr, r.logging)
	r.aggregator.Version, r.aggregator.Kubeconfig = p.Build.Version, "off"
	agg, err := aggregator.NewReplay(r.aggregator, begin, p.Log, p.Registry)
	if err != nil {
		return err
	}
	defer agg.Close()
	agent, err := capture.NewAgent("capture", links, begin, agg.Report)
	for ; at >= 0 && err == nil; at = frames.earliest() {
		err = agent.Add(*frames.next[at])
		frames.read(at)
	}
	_, end := frames.span()
	if err := errors.Join(err, agent.End(end)); err != nil {
		return err
	}
	agg.Advance(end)
	if left := agent.LeftOut(); left > 0 {
		frames.failed = append(frames.failed, fmt.Errorf("%d claims are left out: an interface has more than an agent remembers", left))
	}
	frames.report(r.sys.stderr)
	return r.ask(context.WithoutCancel(cmd.Context()), agg, p, end, command) // Ctrl-C ends what writes the capture, such as tcpdump
}

// ask runs a command that asks an aggregator of this process, at the end of a replay.
func (r *replayCommand) ask(ctx context.Context, agg *aggregator.Replay, p cli.Process, end time.Time, command []string) error {
	rest, _, err := agg.Handlers(p.Registry)
	if err != nil {
		return err
	}
	pipe := bufconn.Listen(pipeBuffer)
	server := cli.NewHTTPServer(rest, nil, p.Log)
	go func() { _ = server.Serve(pipe) }() // until it is closed
	defer func() { _ = server.Close() }()  // which closes nothing but the pipe
	transport := newTransport()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }
	asking := r.sys
	asking.now, asking.transport, asking.getenv = func() time.Time { return end }, transport, func(string) string { return "" }
	if code := execute(ctx, asking, command); code != 0 {
		return cli.ExitCode(code)
	}
	return nil
}

// captures are files that are read side by side, in the order of the times of their frames.
type captures struct {
	files  []*capture.File
	next   []*capture.Frame // of each file; nil at its end
	opened []io.Closer
	failed []error
}

// openCaptures opens files.
func openCaptures(stdin io.Reader, names []string) (*captures, error) {
	c := &captures{}
	for _, name := range names {
		from, called := stdin, name
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				c.close()
				return nil, err
			}
			c.opened, from = append(c.opened, file), file
		} else {
			called = "standard input"
		}
		base, _, _ := strings.Cut(filepath.Base(called), ".")
		f, err := capture.Open(called, from, func(inside string) string {
			switch {
			case inside == "":
				return base
			case len(names) > 1: // each file may be of another host
				return base + ":" + inside
			}
			return inside
		})
		if err != nil {
			c.close()
			return nil, err
		}
		c.files, c.next = append(c.files, f), append(c.next, nil)
		c.read(len(c.files) - 1)
	}
	return c, nil
}

func (c *captures) close() {
	for _, f := range c.opened {
		_ = f.Close() // opened for reading only
	}
}

// read reads the next frame of a file.
func (c *captures) read(i int) {
	f, err := c.files[i].Next()
	switch {
	case err == nil:
		c.next[i] = &f
		return
	case !errors.Is(err, io.EOF):
		c.failed = append(c.failed, err)
	}
	c.next[i] = nil
}

// earliest returns the file whose next frame is the earliest one; -1 at the end of all.
func (c *captures) earliest() int {
	at := -1
	for i, f := range c.next {
		if f != nil && (at < 0 || f.At.Before(c.next[at].At)) {
			at = i
		}
	}
	return at
}

// span returns the times of the first and of the last frame.
func (c *captures) span() (first, last time.Time) {
	for _, f := range c.files {
		if f.Frames > 0 && (first.IsZero() || f.First.Before(first)) {
			first = f.First
		}
		if f.Last.After(last) {
			last = f.Last
		}
	}
	return first, last
}

// silent is the error of captures in which nobody claims an address.
func (c *captures) silent() error {
	total, other := 0, 0
	for _, f := range c.files {
		total, other = total+f.Frames, other+f.Other
	}
	if total > 0 && other == total {
		return errors.New("the captures have no Ethernet frames, so nothing says who claims an address: capture on an interface with ARP, such as eth0")
	}
	return fmt.Errorf("none of the %d frames claims an address: capture ARP and neighbour discovery, with tcpdump -w FILE 'arp or icmp6'", total)
}

// report writes what was read, and what could not be read.
func (c *captures) report(w io.Writer) {
	first, last := c.span()
	for _, f := range c.files {
		text := fmt.Sprintf("%s: %d frames", f.Name, f.Frames)
		if f.Other > 0 {
			text += fmt.Sprintf(", of which %d are no Ethernet frames", f.Other)
		}
		if f.Cut > 0 {
			text += fmt.Sprintf("; of %d with ARP or neighbour discovery the file has only a part (see tcpdump -s)", f.Cut)
		}
		_, _ = fmt.Fprintln(w, text+".") // stderr
	}
	for _, err := range c.failed {
		_, _ = fmt.Fprintf(w, "Warning: %v. Everything else is judged.\n", err)
	}
	_, _ = fmt.Fprintf(w, "Judged as of %s, after %s. Kernels and IPAM were not asked: a capture shows only who claims an address by frames.\n", last.UTC().Format(time.RFC3339), last.Sub(first).Round(time.Millisecond))
}
