package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/table"
)

// Values of --cri-socket besides a path: search for the socket, or ask no runtime.
const (
	RuntimeAuto = "auto"
	RuntimeOff  = "off"
)

// sockets are the usual CRI sockets of container runtimes, in the order in which they are
// tried.
var sockets = []string{
	"/run/containerd/containerd.sock",
	"/run/crio/crio.sock",
	"/run/k3s/containerd/containerd.sock", // also used by rke2
	"/run/k0s/containerd.sock",
	"/var/snap/microk8s/common/run/containerd.sock",
	"/run/cri-dockerd.sock",
}

// Source is the source of names that the runtime gives.
const Source = "cri"

const (
	// callTimeout is how long the runtime may take to answer. maxAnswer is the size limit of
	// an answer, which is the same as kubelet's.
	callTimeout = 2 * time.Second
	maxAnswer   = 16 << 20
	// askAtOnce is the number of concurrent status requests, and askPerRound the number of
	// requests after which the results are published.
	askAtOnce   = 4
	askPerRound = 64
	// listEvery is how often the sandboxes are listed without a reason.
	listEvery = time.Minute
	// findEvery is how often the sockets are tried. findSoonest is the first wait after a connection was lost.
	findEvery   = 5 * time.Second
	findSoonest = 50 * time.Millisecond
	// awayAfter is how long a runtime may be unavailable before that is reported as a problem.
	// It may be restarting.
	awayAfter = 5 * time.Second
	// A namespace appears before the runtime lists its sandbox. The list is repeated mostTries
	// times, within 26 s. quickTries of them are in the first second, because an aggregator
	// confirms a duplicate after that time, and must know by then whether both addresses
	// belong to one pod. After them, each wait is twice the previous one.
	firstTry   = 200 * time.Millisecond
	quickTries = 5
	mostTries  = 11
	// longestTry is the longest wait after a list has failed.
	longestTry = 15 * time.Second
	// Lists take at most 1/listShare of the time.
	listShare = 20
)

// A Runtime asks the container runtime which pods it runs, at its own pace: nothing else waits
// for the runtime.
type Runtime struct {
	condition
	log     *slog.Logger
	sockets []string
	chosen  bool // the socket was configured: it is a problem if it is missing
	procDir ProcDir
	// Lacks is also that of the Names with this Runtime.
	Lacks Lacks

	Changed func()        // called when the sandboxes have changed; set before run
	poked   chan struct{} // holds one token while there may be something to ask

	// published is the latest complete list of sandboxes. It is never changed in place.
	published atomic.Pointer[[]*Sandbox]

	// Only the goroutine of Run uses these.
	known      map[string]*Sandbox // by id
	unanswered map[string]*attempt // sandboxes whose status is not known, by id

	wanting sync.Mutex
	unnamed map[uint64]*attempt // namespaces that other goroutines know no sandbox for
}

// attempt counts the attempts to learn something that the runtime does not know yet.
type attempt struct {
	last  time.Time
	tries int
}

// due returns when to try again, zero for never.
func (a *attempt) due() time.Time {
	if a.tries >= mostTries {
		return time.Time{}
	}
	return a.last.Add(firstTry << max(0, a.tries-quickTries+1))
}

// NewRuntime returns a client of the runtime at a socket.
func NewRuntime(log *slog.Logger, socket string, procDir ProcDir) *Runtime {
	c := &Runtime{
		log: log, sockets: sockets, procDir: procDir, Changed: func() {}, poked: make(chan struct{}, 1),
		known: map[string]*Sandbox{}, unanswered: map[string]*attempt{}, unnamed: map[uint64]*attempt{},
		condition: condition{log: log, StatusChanged: func() {}, calls: map[Call]uint64{}},
	}
	if socket == RuntimeOff {
		c.sockets = nil
	} else if socket != RuntimeAuto {
		c.sockets, c.chosen = []string{socket}, true
	}
	return c
}

// Probe looks for the runtime once. It returns an error if there is a socket but no runtime,
// and an empty name if there is neither.
func (c *Runtime) Probe(ctx context.Context) (name, socket string, err error) {
	conn := c.find(ctx)
	if conn == nil {
		return "", "", c.fault
	}
	_ = conn.Close()
	return c.runtime, c.socket, nil
}

// Off reports whether the client is turned off.
func (c *Runtime) Off() bool { return len(c.sockets) == 0 }

// Run keeps the list of sandboxes up to date until ctx ends.
func (c *Runtime) Run(ctx context.Context) error {
	if len(c.sockets) == 0 {
		return nil
	}
	for backoff := findSoonest; ; backoff = min(2*backoff, findEvery) {
		if conn := c.find(ctx); conn != nil {
			c.serve(ctx, conn)
			_ = conn.Close()
			backoff = findSoonest
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
	}
}

// find connects to the first runtime that has sandboxes. If none has, it connects to the first
// one that answers. On some distributions docker's containerd also offers CRI, and has no
// sandboxes. While the last runtime is unavailable, only a runtime with sandboxes replaces it.
func (c *Runtime) find(ctx context.Context) (conn *grpc.ClientConn) {
	var fault error
	var name, at string // of the runtime that conn leads to
	for _, s := range c.sockets {
		next, runtime, err := c.connect(ctx, s)
		if err != nil {
			// Stale sockets are common, and dockerd has a containerd that does not offer CRI.
			if c.chosen || c.socket == s || errors.Is(err, os.ErrPermission) && fault == nil {
				fault = fmt.Errorf("%s: %w", s, err)
			}
			continue
		}
		has := c.chosen
		if !has {
			r, err := call(ctx, c, "ListPodSandbox", runtimev1.NewRuntimeServiceClient(next).ListPodSandbox, readySandboxes())
			has = err == nil && len(r.GetItems()) > 0
		}
		if has || conn == nil && (c.socket == "" || c.socket == s) {
			conn, next = next, conn
			name, at = runtime, s
		}
		if next != nil {
			_ = next.Close()
		}
		if has {
			break
		}
	}
	if conn != nil {
		if c.socketIs(name, at) {
			clear(c.known) // they belong to another runtime
			c.publish()
		}
		return conn
	}
	if ctx.Err() == nil && fault != nil {
		c.failed(fault)
	}
	return nil
}

func (c *Runtime) connect(ctx context.Context, socket string) (conn *grpc.ClientConn, runtime string, err error) {
	info, err := os.Stat(socket)
	if err != nil {
		return nil, "", err
	}
	if info.Mode().Type() != os.ModeSocket {
		return nil, "", errors.New("it is not a socket")
	}
	var refused atomic.Pointer[error] // gRPC only returns its text
	conn, err = grpc.NewClient("passthrough:///"+filepath.Base(socket),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err != nil {
				refused.Store(&err)
			}
			return conn, err
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, "", err
	}
	v, err := call(ctx, c, "Version", runtimev1.NewRuntimeServiceClient(conn).Version, &runtimev1.VersionRequest{Version: "0.1.0"})
	if err != nil {
		_ = conn.Close()
		if why := refused.Load(); why != nil {
			return nil, "", *why
		}
		if status.Code(err) == codes.Unimplemented {
			return nil, "", errors.New("the process that listens there does not implement CRI v1")
		}
		return nil, "", errors.New(status.Convert(err).Message())
	}
	name := strings.TrimSpace(v.GetRuntimeName() + " " + strings.TrimPrefix(v.GetRuntimeVersion(), "v"))
	if len(name) > table.MaxLength {
		name = "a runtime with an overlong name"
	}
	return conn, name, nil
}

func call[Q, A any](ctx context.Context, c *Runtime, method string, to func(context.Context, *Q, ...grpc.CallOption) (*A, error), q *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	a, err := to(ctx, q)
	c.count(method, err)
	return a, err
}

// ParseRuntimeSocket parses the flag. A path may be a unix:// URL.
func ParseRuntimeSocket(flag string) (string, error) {
	path := strings.TrimPrefix(flag, "unix://")
	switch {
	case flag == "":
		return RuntimeAuto, nil
	case flag == RuntimeAuto, flag == RuntimeOff:
		return flag, nil
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("socket of the container runtime %q is not an absolute path: use auto, off, or a path such as %s", flag, sockets[0])
	case len(path) >= len(unix.RawSockaddrUnix{}.Path):
		return "", fmt.Errorf("path of the container runtime's socket has %d bytes, but the limit is %d", len(path), len(unix.RawSockaddrUnix{}.Path)-1)
	}
	return filepath.Clean(path), nil
}
