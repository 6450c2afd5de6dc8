package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/files"
	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/proc"
	"github.com/ipwitness/ipwitness/agent/wake"
)

// The socket of the container runtime is found, or no runtime is asked.
const (
	CRIAuto = "auto"
	CRIOff  = "off"
)

// criSockets are where container runtimes offer CRI, in the order in which they
// are tried.
var criSockets = []string{
	"/run/containerd/containerd.sock",
	"/run/crio/crio.sock",
	"/run/k3s/containerd/containerd.sock", // rke2, too
	"/run/k0s/containerd.sock",
	"/var/snap/microk8s/common/run/containerd.sock",
	"/run/cri-dockerd.sock",
}

// sourceCRI is what a name by the runtime is from.
const sourceCRI = "cri"

const (
	// callTimeout is how long the runtime may take to answer. What it answers may
	// be as long as kubelet takes it.
	callTimeout = 2 * time.Second
	maxAnswer   = 16 << 20
	// maxSandboxes is more than any node has; only so many are asked for.
	maxSandboxes = 4096
	// askAtOnce is how many sandboxes are asked for side by side, askPerRound how
	// many before they are told.
	askAtOnce   = 4
	askPerRound = 64
	// listEvery is how often the sandboxes are listed without a reason: events can
	// be lost.
	listEvery = time.Minute
	// findEvery is how often the sockets are tried without a reason, findSoonest
	// after one came.
	findEvery   = 15 * time.Second
	findSoonest = 50 * time.Millisecond
	// awayAfter is how long a runtime may be away before that is a problem: it may
	// be restarted.
	awayAfter = 5 * time.Second
	// A namespace appears before the runtime lists its sandbox, which is tried
	// again, mostTries times: for 26 s. quickTries of them are in the first second,
	// as an aggregator calls a duplicate confirmed after that: it must know before
	// whether both are of one pod. After them each wait is twice the last. Where the
	// runtime tells of sandboxes by itself, that is given time first.
	firstTry    = 200 * time.Millisecond
	quickTries  = 5
	mostTries   = 11
	eventsFirst = 3 * time.Second
	// A list may take 1/listShare of the time.
	listShare = 20
)

// cri asks the container runtime which pods it runs. It has its own pace:
// nothing waits for the runtime but cri.
type cri struct {
	log     *slog.Logger
	sockets []string
	chosen  bool // the one socket was chosen: that it is missing is a problem
	procDir proc.Dir

	changed       func()        // the sandboxes are others now
	statusChanged func()        // there is another problem, or one less
	hurry         chan struct{} // holds one token while a socket may have come
	poked         chan struct{} // holds one token while there may be something to ask

	// sandboxes is what the runtime said, finished: nobody changes it.
	sandboxes atomic.Pointer[[]*sandbox]

	// Of run alone.
	known      map[string]*sandbox // by id
	unanswered map[string]*attempt // of the sandboxes whose status is not known, by id

	mu        sync.Mutex
	runtime   string // name and version
	socket    string // where it is, or was last
	connected bool
	away      time.Time // since when it does not answer
	fault     error     // why
	tooMany   int       // sandboxes that are not asked for
	calls     map[criCall]uint64
	unnamed   map[uint64]*attempt // namespaces that no sandbox is known for
	events    bool                // it tells of sandboxes by itself
	told      map[string]bool     // sandboxes that it told of: whether they are there
}

// criCall is a kind of call, and how it ended.
type criCall struct{ method, result string }

// attempt is something that the runtime does not know yet.
type attempt struct {
	last  time.Time
	tries int
}

// due is when to try again; zero: never.
func (a *attempt) due(first time.Duration) time.Time {
	if a.tries >= mostTries {
		return time.Time{}
	}
	return a.last.Add(max(first, firstTry<<max(0, a.tries-quickTries+1)))
}

func newCRI(log *slog.Logger, socket string, procDir proc.Dir) *cri {
	c := &cri{
		log:           log,
		sockets:       criSockets,
		procDir:       procDir,
		changed:       func() {},
		statusChanged: func() {},
		hurry:         make(chan struct{}, 1),
		poked:         make(chan struct{}, 1),
		known:         map[string]*sandbox{},
		unanswered:    map[string]*attempt{},
		calls:         map[criCall]uint64{},
		unnamed:       map[uint64]*attempt{},
		told:          map[string]bool{},
	}
	if socket == CRIOff {
		c.sockets = nil
	} else if socket != CRIAuto {
		c.sockets, c.chosen = []string{socket}, true
	}
	return c
}

// run keeps asking until ctx ends.
func (c *cri) run(ctx context.Context) error {
	if len(c.sockets) == 0 {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.watchSockets(ctx) })
	g.Go(func() error {
		wait := time.NewTimer(0)
		defer wait.Stop()
		backoff := findSoonest
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-c.hurry:
				backoff = findSoonest
			case <-wait.C:
			}
			conn, found := c.find(ctx)
			if conn != nil {
				c.serve(ctx, conn)
				_ = conn.Close()
				backoff, found = findSoonest, true
			}
			if backoff = min(2*backoff, findEvery); !found {
				backoff = findEvery // there is no socket: its coming is told
			}
			wait.Reset(backoff)
		}
	})
	return g.Wait()
}

// watchSockets has the sockets tried whenever one comes.
func (c *cri) watchSockets(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		c.log.Warn("cannot watch for the container runtime: it is found late", "error", err)
		return nil
	}
	defer func() { _ = w.Close() }()
	for _, s := range c.sockets {
		files.WatchUp(w, s)
	}
	wake.Poke(c.hurry)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			for _, s := range c.sockets {
				if files.Within(s, e.Name) {
					files.WatchUp(w, s) // its directory may be another one now
					wake.Poke(c.hurry)
				}
			}
		case err := <-w.Errors:
			c.log.Debug("events about sockets were lost", "error", err)
			wake.Poke(c.hurry)
		}
	}
}

// find connects to the first runtime that has sandboxes, or else to the first
// that answers: beside kubelet's there may be docker's containerd, which offers
// CRI in some distributions and has none. While the last one is away, none without
// sandboxes takes its place. found says that there was a socket at all.
func (c *cri) find(ctx context.Context) (conn *grpc.ClientConn, found bool) {
	var fault error
	type candidate struct {
		conn            *grpc.ClientConn
		runtime, socket string
	}
	var best candidate
	for _, s := range c.sockets {
		conn, runtime, err := c.connect(ctx, s)
		if err == nil {
			found = true
			has := c.chosen || c.hasSandboxes(ctx, conn)
			if has || best.conn == nil && c.mayBeIdle(s) {
				best.conn, conn = conn, best.conn
				best.runtime, best.socket = runtime, s
			}
			if conn != nil {
				_ = conn.Close()
			}
			if has {
				break
			}
			continue
		}
		if !errors.Is(err, os.ErrNotExist) {
			found = true
		}
		// Sockets that nobody listens on are often left behind, and dockerd has a
		// containerd that does not offer CRI.
		if c.chosen || c.isLast(s) || errors.Is(err, os.ErrPermission) && fault == nil {
			fault = fmt.Errorf("%s: %w", s, err)
		}
	}
	if best.conn != nil {
		if c.socketIs(best.runtime, best.socket) {
			clear(c.known) // of another runtime
			c.publish()
		}
		return best.conn, true
	}
	if ctx.Err() == nil && fault != nil {
		c.failed(fault)
	}
	return nil, found
}

// hasSandboxes says whether a runtime lists a sandbox that is ready.
func (c *cri) hasSandboxes(ctx context.Context, conn *grpc.ClientConn) bool {
	r, err := call(ctx, c, "ListPodSandbox", runtimev1.NewRuntimeServiceClient(conn).ListPodSandbox, readySandboxes())
	return err == nil && len(r.GetItems()) > 0
}

// mayBeIdle says whether a runtime without sandboxes will do: the last one, or
// any where there was none.
func (c *cri) mayBeIdle(socket string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.socket == "" || c.socket == socket
}

// socketIs notes which runtime answers, and says whether it is another one.
func (c *cri) socketIs(runtime, socket string) (other bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	other = c.socket != "" && c.socket != socket
	c.runtime, c.socket = runtime, socket
	return other
}

// isLast says whether a socket is that of the runtime that answered last.
func (c *cri) isLast(socket string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.socket == socket
}

// connect asks the runtime at a socket what it is.
func (c *cri) connect(ctx context.Context, socket string) (conn *grpc.ClientConn, runtime string, err error) {
	info, err := os.Stat(socket)
	if err != nil {
		return nil, "", err
	}
	if info.Mode().Type() != os.ModeSocket {
		return nil, "", errors.New("it is not a socket")
	}
	var refused atomic.Pointer[error] // gRPC tells it as a text only
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
			return nil, "", errors.New("whoever listens there does not offer CRI v1")
		}
		return nil, "", errors.New(status.Convert(err).Message())
	}
	name := strings.TrimSpace(v.GetRuntimeName() + " " + strings.TrimPrefix(v.GetRuntimeVersion(), "v"))
	if len(name) > form.MaxLength {
		name = "a runtime whose name has no end"
	}
	return conn, name, nil
}

// call makes one call, and counts it.
func call[Q, A any](ctx context.Context, c *cri, method string, to func(context.Context, *Q, ...grpc.CallOption) (*A, error), q *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	a, err := to(ctx, q)
	c.count(method, err)
	return a, err
}

func (c *cri) count(method string, err error) {
	result := "ok"
	switch status.Code(err) {
	case codes.OK:
	case codes.DeadlineExceeded:
		result = "timeout"
	case codes.Unimplemented:
		result = "unimplemented"
	default:
		result = "error"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[criCall{method, result}]++
}

// failed notes that the runtime does not answer.
func (c *cri) failed(err error) {
	c.mu.Lock()
	first := c.away.IsZero()
	if first {
		c.away = time.Now()
	}
	other := c.fault == nil || c.fault.Error() != err.Error()
	c.connected, c.fault = false, err
	c.mu.Unlock()
	if first {
		c.log.Warn("the container runtime does not answer", "error", err)
		time.AfterFunc(awayAfter, c.statusChanged)
	}
	if other {
		c.statusChanged()
	}
}

// answers notes that the runtime does.
func (c *cri) answers() {
	c.mu.Lock()
	was := c.connected
	c.connected, c.away, c.fault = true, time.Time{}, nil
	runtime, socket := c.runtime, c.socket
	c.mu.Unlock()
	if !was {
		c.log.Info("the container runtime answers", "runtime", runtime, "socket", socket)
		c.statusChanged()
	}
}

// health gives the runtime's name, and what does not work.
func (c *cri) health(now time.Time) (runtime string, problems []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const lost = "names of new pods come from CNI results and processes"
	switch {
	case c.fault == nil:
	case c.runtime != "":
		if now.Sub(c.away) >= awayAfter {
			problems = append(problems, fmt.Sprintf("the container runtime at %s does not answer since %s: %s (%s)",
				c.socket, c.away.UTC().Format(time.RFC3339), lost, form.Short(c.fault)))
		}
	case errors.Is(c.fault, os.ErrPermission):
		problems = append(problems, fmt.Sprintf("the container runtime may not be asked (%s): %s; "+
			"let the agent's user write to that socket, or set --cri-socket off", form.Short(c.fault), lost))
	default:
		problems = append(problems, fmt.Sprintf("there is no container runtime to ask (%s): %s; "+
			"correct --cri-socket, or start the runtime: it is found when it comes", form.Short(c.fault), lost))
	}
	if c.tooMany > 0 {
		problems = append(problems, fmt.Sprintf("the container runtime lists %d sandboxes more than the %d that are asked for: their names come from CNI results and processes",
			c.tooMany, maxSandboxes))
	}
	return c.runtime, problems
}

// counters gives how many calls were made, and 1 while the runtime answers.
func (c *cri) counters() (calls map[criCall]uint64, answers float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected {
		answers = 1
	}
	return maps.Clone(c.calls), answers
}

// criSocket reads the flag: a path may be that of a URL.
func criSocket(flag string) (string, error) {
	path := strings.TrimPrefix(flag, "unix://")
	switch {
	case flag == "":
		return CRIAuto, nil
	case flag == CRIAuto, flag == CRIOff:
		return flag, nil
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("socket of the container runtime %q is no absolute path: use auto, off, or a path such as %s", flag, criSockets[0])
	case len(path) >= len(unix.RawSockaddrUnix{}.Path):
		return "", fmt.Errorf("path of the container runtime's socket has %d bytes, %d are possible", len(path), len(unix.RawSockaddrUnix{}.Path)-1)
	}
	return filepath.Clean(path), nil
}
