// Package web drives the web page of a real aggregator in a real Chromium.
package web

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// binary is the path of ipwitness: IPWITNESS_BIN, or one built once for all tests.
var binary = os.Getenv("IPWITNESS_BIN")

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		if binary != "" {
			return m.Run(), nil
		}
		dir, err := os.MkdirTemp("", "ipwitness-web")
		if err != nil {
			return 1, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if binary, err = netlab.Build(dir); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// pictures is the directory to which the tests write the pictures for docs/web.md.
var pictures = flag.String("pictures", "", "`DIR` to write the pictures of the docs to")

// host is a host of a test, and the program on it that serves the web page.
type host struct {
	*netlab.Host
	t       *testing.T
	program *netlab.Program
	// url is where a browser outside the host reaches the page.
	url string
}

// requireHost skips a test in short mode, and where hosts cannot be created.
func requireHost(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: run make test-all")
	}
	if err := netlab.Possible(); err != nil {
		if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
			t.Fatal("IPWITNESS_ROOT_TESTS is set: ", err)
		}
		t.Skip(err, ": run make test-all")
	}
}

// newHost creates a host, which is removed when the test ends. It skips the test in short mode.
func newHost(t *testing.T) *host {
	t.Helper()
	requireHost(t)
	h, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return &host{Host: h, t: t}
}

// serve starts a command of ipwitness that serves the page: run or aggregator.
func (h *host) serve(args ...string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), wait.Patience())
	defer cancel()
	start := h.Aggregator
	if args[0] == "run" {
		start = h.Ipwitness
	}
	p, err := start(ctx, binary, args[1:]...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(p.Kill)
	h.program = p
	if h.url == "" {
		h.url = "http://" + h.proxy("127.0.0.1:0", "127.0.0.1:9641")
	}
}

// proxy makes an address inside the host reachable at a loopback address of the machine, and returns
// that one: a browser in the host could not be driven from outside.
func (h *host) proxy(near, far string) string {
	h.t.Helper()
	l, err := net.Listen("tcp", near)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go h.join(conn, far)
		}
	}()
	return l.Addr().String()
}

// join connects a connection to an address inside the host.
func (h *host) join(near net.Conn, address string) {
	var far net.Conn
	err := h.Do(func() (err error) {
		far, err = net.Dial("tcp", address)
		return err
	})
	if err != nil {
		_ = near.Close()
		return
	}
	go func() {
		_, _ = io.Copy(far, near) // ends with either connection
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
	_ = near.Close()
}

// serveRestricted starts an aggregator that requires a token, so that the test cannot query it as serve
// does, and waits until it serves.
func (h *host) serveRestricted(args ...string) {
	h.t.Helper()
	cmd := h.Command(binary, append([]string{"aggregator"}, args...)...)
	if err := h.Start(cmd); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it was killed
	h.url = "http://" + h.proxy("127.0.0.1:0", "127.0.0.1:9641")
	wait.Until(h.t, "the aggregator", func() bool {
		res, err := http.Get(h.url + "/healthz")
		if err != nil {
			return false
		}
		return res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
}

// ui runs `ipwitness ui` on the host, and returns the address that it prints. The browser finds it at
// the same port of the machine.
func (h *host) ui() string {
	h.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free on the machine is free on the host
	if err != nil {
		h.t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		h.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address) // it is the address of a listener
	h.url = "http://" + h.proxy(address, address)
	cmd := h.Command(binary, "ui", "--port", port)
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.Start(cmd); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it was killed
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		h.t.Fatal("ipwitness ui printed no address: ", err)
	}
	return strings.TrimSpace(line)
}

// sh runs command lines inside the host.
func (h *host) sh(lines ...string) {
	h.t.Helper()
	for _, line := range lines {
		if _, err := h.Run("%s", line); err != nil {
			h.t.Fatal(err)
		}
	}
}

// bridged creates pods on one bridge, each with an address.
func (h *host) bridged(pods ...string) {
	h.t.Helper()
	h.sh("ip link add br0 type bridge", "ip link set br0 up")
	for _, name := range pods {
		if err := h.Namespace(name); err != nil {
			h.t.Fatal(err)
		}
		h.sh(
			fmt.Sprintf("ip link add v%s type veth peer name eth0 netns %s", name, name),
			fmt.Sprintf("ip link set v%s up master br0", name),
			fmt.Sprintf("ip -n %s link set eth0 up", name))
	}
}

// modules returns the directory of the npm packages of the web page, which has axe-core.
func modules() (string, error) {
	dir, err := filepath.Abs("../../aggregator/web/ui/node_modules")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err != nil {
		return "", errors.New("the npm packages of the web page are not installed: run 'make web-modules'")
	}
	return dir, nil
}
