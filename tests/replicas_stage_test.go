package tests

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/agent/report"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/apiserver"
	"github.com/ipwitness/ipwitness/tests/chaos"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

const (
	// The Kubernetes API has the first nodes of the stage. Their duplicates get Events.
	toldNodes, stageNodes = 4, 12
	// crowdSize is the number of addresses of each node that come and go.
	crowdSize = 500
	// The numbers of duplicates that last, and of those that come and go with and without Events, and the
	// longest times that these rest. An Event is repeated after 10 s at the earliest.
	steadyPairs, toldPairs, quickPairs = 6, 8, 16
	toldRest, quickRest                = 20 * time.Second, time.Second
	// apiAt is the address of the API server at each replica.
	apiAt = "127.0.0.1:6443"
	// mostBehind is how long replicas may take to know a duplicate before churn pauses.
	mostBehind = 500 * time.Millisecond
)

// A stage is several replicas with their agents, their API server and a receiver.
type stage struct {
	t        *testing.T
	api      *apiserver.Server
	replicas []*stagedReplica
	nodes    []*chaos.Node
	all      *chaos.Duplicates
	// steady duplicates last. Probes are on all nodes, and cycling are the others.
	steady, probes, cycling []*chaos.Duplicate
	disk                    *diskProbe
	secret                  string
	nats                    *stagedNATS
	began                   time.Time
	changes                 atomic.Int64
	// calm ends churn and cycles, and waits for them.
	calm func()

	mu           sync.Mutex
	notified     []chaos.Notification
	streamed     []chaos.Told      // conflicts in the stream of NATS
	acknowledged map[string]string // reasons by address
	slack        time.Duration
	faults       []stagedFault
	// unled are the times in which the leader was cut off from its agents.
	unled []chaos.Outage
	// complete is the longest time until the other replicas had the reports of all agents after one was
	// killed. moved is how long there was churn.
	complete, moved time.Duration
}

// A stagedFault is a time in which some replicas are untouched.
type stagedFault struct {
	what        string
	from, until time.Time
	untouched   []*stagedReplica
	// leads is how long it took until another replica led; 0 if that did not matter.
	leads time.Duration
}

func newStage(t *testing.T, replicas int) *stage {
	t.Helper()
	api, err := apiserver.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, api: api, all: chaos.NewDuplicates(), disk: startDiskProbe(t), secret: webhookSecret(t), acknowledged: make(map[string]string)}
	s.all.Appeared, s.all.Left = s.appeared, s.left
	s.nats = s.startNATS()
	for i := range stageNodes {
		n := chaos.NewNode(i, fmt.Sprintf("n%d", i+1), crowdSize)
		s.nodes = append(s.nodes, n)
		if i < toldNodes {
			if err := api.Put("nodes", &corev1.Node{TypeMeta: kindOf("Node"), ObjectMeta: metav1.ObjectMeta{Name: n.Name}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range replicas {
		s.replicas = append(s.replicas, s.newReplica(fmt.Sprintf("r%d", i+1)))
	}
	s.plant()
	for _, r := range s.replicas {
		r.start()
	}
	s.connectAgents()
	for _, r := range s.replicas {
		r.returns()
	}
	s.leader()
	wait.Until(t, "the receiver to be told of what there is", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.notified) >= steadyPairs
	})
	s.began = time.Now()
	s.move()
	return s
}

func kindOf(kind string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: "v1"} }

// appeared creates a pod in the API.
func (s *stage) appeared(pod, node, addr string) error {
	return s.api.Put("pods", runtime.Object(&corev1.Pod{
		TypeMeta:   kindOf("Pod"),
		ObjectMeta: metav1.ObjectMeta{Namespace: chaos.Namespace, Name: pod, UID: types.UID(chaos.UID(pod))},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr}}},
	}))
}

// left deletes a pod from the API.
func (s *stage) left(pod, _, _ string) error {
	s.api.Delete("pods", chaos.Namespace, pod)
	return nil
}

// plant creates the duplicates. The steady ones begin.
func (s *stage) plant() {
	s.t.Helper()
	add := func(kind, i int, a, b *chaos.Node, told bool) *chaos.Duplicate {
		d, err := s.all.Add(netip.AddrFrom4([4]byte{10, byte(kind), 0, byte(1 + i)}), a, b, told) //nolint:gosec // few
		if err != nil {
			s.t.Fatal(err)
		}
		return d
	}
	few, many := s.nodes[:toldNodes], s.nodes[toldNodes:]
	for i := range steadyPairs {
		d := add(1, i, few[i%toldNodes], few[(i+1)%toldNodes], true)
		s.steady = append(s.steady, d)
		s.begin(d)
	}
	for i := range toldPairs {
		s.cycling = append(s.cycling, add(2, i, few[i%toldNodes], few[(i+1)%toldNodes], true))
	}
	for i := range quickPairs {
		s.cycling = append(s.cycling, add(3, i, many[i%len(many)], many[(i+1)%len(many)], false))
	}
	for i := range stageNodes / 2 {
		s.probes = append(s.probes, add(4, i, s.nodes[2*i], s.nodes[2*i+1], false))
	}
}

func (s *stage) begin(d *chaos.Duplicate) *chaos.Episode {
	s.t.Helper()
	e, err := d.Begin()
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// connectAgents makes all agents report to all replicas until the test ends.
func (s *stage) connectAgents() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var group sync.WaitGroup
	s.t.Cleanup(func() { cancel(); group.Wait() })
	byName := make(map[string]*stagedReplica)
	var names []string
	for _, r := range s.replicas {
		byName[r.Name] = r
		names = append(names, r.Name)
	}
	log := slog.New(slog.DiscardHandler)
	for _, n := range s.nodes {
		group.Go(func() {
			err := n.Report(ctx, log, names, func(name string) (report.Conn, error) { return byName[name].dial(byName[name].agents) })
			if err != nil {
				s.t.Error(err)
			}
		})
	}
}

// move starts churn, and lets duplicates come and go.
func (s *stage) move() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var group sync.WaitGroup
	begin := time.Now()
	s.calm = func() { cancel(); group.Wait(); s.moved = time.Since(begin) }
	s.t.Cleanup(func() { cancel(); group.Wait() })
	group.Go(func() {
		chaos.Churn(ctx, s.nodes, *stageRate, func() bool { return s.all.Behind(mostBehind) }, &s.changes)
	})
	for i, d := range s.cycling {
		rest := quickRest
		if i < toldPairs {
			rest = toldRest
		}
		group.Go(func() {
			if err := d.Cycle(ctx, s.seen, rest); err != nil {
				s.t.Error(err)
			}
		})
	}
}

// seen reports whether all replicas in service have told that the episode of a pod is in a state.
func (s *stage) seen(pod string, state pb.Conflict_State) bool {
	for _, r := range s.replicas {
		if !r.Knows(pod, state) {
			return false
		}
	}
	return true
}

// A stagedReplica is a replica of a stage.
type stagedReplica struct {
	*chaos.Replica
	stage   *stage
	host    *netlab.Host
	flags   []string
	program *netlab.Program
	// The links to the agents, and to the API server.
	agents, api *chaos.Link
	client      pb.WitnessServiceClient
	// unwatch ends the watch of the present process.
	unwatch func()
}

// newReplica returns a replica that does not run yet, with a host of its own on which it reaches the API server
// and the receiver.
func (s *stage) newReplica(name string) *stagedReplica {
	s.t.Helper()
	r := &stagedReplica{
		Replica: chaos.NewReplica(name), stage: s, host: newHost(s.t), agents: chaos.NewLink(), api: chaos.NewLink(), unwatch: func() {},
	}
	config := filepath.Join(s.t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "http://%s"}}], users: [{name: u, user: {}}]}`, apiAt)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	r.serve(apiAt, r.api, s.api)
	r.serve(hookAt, chaos.NewLink(), http.HandlerFunc(s.hook))
	s.nats.serve(r)
	if out, err := r.host.Run("mount -t tmpfs -o size=%d -m none %s", dataSize, dataDir); err != nil {
		s.t.Fatal(err, out)
	}
	r.flags = []string{
		"--kubeconfig", config, "--lease", "witness/aggregator", "--data-dir", dataDir, "--cluster", stageCluster, "--nats", natsAt, "--nats-size", "1GiB",
		"--settle", "100ms", "--network", "pods=10.0.0.0/8", "--webhook", "http://" + hookAt, "--webhook-secret-file", s.secret,
	}
	conn, err := r.dial(chaos.NewLink())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	r.client = pb.NewWitnessServiceClient(conn)
	return r
}

// serve serves at an address of the host, through a link.
func (r *stagedReplica) serve(at string, link *chaos.Link, handler http.Handler) {
	r.stage.t.Helper()
	var l net.Listener
	if err := r.host.Do(func() (err error) { l, err = net.Listen("tcp", at); return err }); err != nil {
		r.stage.t.Fatal(err)
	}
	server := &httptest.Server{Listener: link.Listener(l), Config: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}}
	server.Start()
	r.stage.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
}

// dial returns a connection from the host to the replica, through a link.
func (r *stagedReplica) dial(link *chaos.Link) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+grpcServer, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, at string) (conn net.Conn, err error) {
			if !link.Wait(ctx.Done()) {
				return nil, ctx.Err()
			}
			err = r.host.Do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at); return err })
			if err != nil {
				return nil, err
			}
			return link.Conn(conn), nil
		}))
}

// start starts the process, and watches conflicts.
func (r *stagedReplica) start() {
	t := r.stage.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := r.host.Aggregator(ctx, binary, r.flags...)
	if err != nil {
		t.Fatal(err)
	}
	killed(t, r.Name, p)
	r.program = p
	watching, end := context.WithCancel(context.WithoutCancel(t.Context()))
	var group sync.WaitGroup
	r.unwatch = sync.OnceFunc(func() { end(); group.Wait() })
	t.Cleanup(r.unwatch)
	group.Go(func() { r.watch(watching) })
}

// watch notes what the replica tells of conflicts, until ctx or the process ends.
func (r *stagedReplica) watch(ctx context.Context) {
	stream, err := r.client.WatchConflicts(ctx, &pb.WatchConflictsRequest{}, grpc.WaitForReady(true))
	for present := true; err == nil; {
		var m *pb.WatchConflictsResponse
		if m, err = stream.Recv(); err != nil {
			return
		}
		switch m.GetType() {
		case pb.Watch_BOOKMARK:
			present = false
		case pb.Watch_LOST:
			present = true
		default:
			if m.GetConflict() != nil { // otherwise a node's connection has changed
				r.Deliver(m.GetConflict(), time.Now(), present)
			}
		}
	}
}

// nodesList returns what the replica says about nodes.
func (r *stagedReplica) nodesList() (*pb.ListNodesResponse, error) {
	ctx, cancel := context.WithTimeout(r.stage.t.Context(), 2*time.Second)
	defer cancel()
	return r.client.ListNodes(ctx, &pb.ListNodesRequest{})
}

// complete reports whether the agents of all nodes report to the replica.
func (r *stagedReplica) complete() bool {
	m, err := r.nodesList()
	live := 0
	for _, n := range m.GetNodes() {
		if n.GetState() == pb.Node_LIVE {
			live++
		}
	}
	return err == nil && live == stageNodes
}

// leads reports whether the replica says that it leads.
func (r *stagedReplica) leads() bool {
	m, err := r.nodesList()
	return err == nil && m.GetElection().GetLeads()
}

// returns waits until the replica is ready, and has been sent everything: duplicates on all nodes show that.
func (r *stagedReplica) returns() {
	s := r.stage
	s.t.Helper()
	wait.Until(s.t, r.Name+" to be ready, with all agents", func() bool {
		status, err := r.program.Status(s.t.Context(), "/readyz")
		if err != nil || status != http.StatusOK {
			return false
		}
		return r.complete()
	})
	var probing []*chaos.Episode
	for _, d := range s.probes {
		probing = append(probing, s.begin(d))
	}
	for _, e := range probing {
		wait.Until(s.t, r.Name+" to know "+e.Pod, func() bool { return r.Latest(e.Address).Pod == e.Pod })
	}
	r.Return(time.Now())
	for i, d := range s.probes {
		if err := d.End(); err != nil {
			s.t.Fatal(err)
		}
		for _, other := range s.replicas {
			wait.Until(s.t, other.Name+" to know the end of "+probing[i].Pod, func() bool { return other.Knows(probing[i].Pod, pb.Conflict_RESOLVED) })
		}
	}
}

// leader waits until exactly one replica says that it leads.
func (s *stage) leader() (leader *stagedReplica) {
	s.t.Helper()
	wait.Until(s.t, "one leader", func() bool {
		leader = nil
		for _, r := range s.replicas {
			if r.leads() {
				if leader != nil {
					return false
				}
				leader = r
			}
		}
		return leader != nil
	})
	return leader
}

// except returns the replicas other than one.
func (s *stage) except(one *stagedReplica) (others []*stagedReplica) {
	for _, r := range s.replicas {
		if r != one {
			others = append(others, r)
		}
	}
	return others
}

// hook is the webhook.
func (s *stage) hook(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	n, err := readNotification(body)
	if err != nil {
		s.t.Error(err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if n.Told.ID == "" {
		return // of a finding
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notified = append(s.notified, n)
}
