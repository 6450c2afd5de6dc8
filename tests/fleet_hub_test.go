package tests

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/stream"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// hubLab is a hub with two clusters on one host, each with a NATS server that is a leaf node of the hub, and
// an aggregator.
type hubLab struct {
	*netlab.Host
	t        *testing.T
	hub      *nats.Server
	clusters map[string]*hubCluster
}

type hubCluster struct {
	server     *nats.Server
	grpc       string
	aggregator *exec.Cmd
}

func newHubLab(t *testing.T) *hubLab {
	t.Helper()
	bin, err := nats.Binary("..")
	if err != nil {
		t.Fatal(err)
	}
	l := &hubLab{Host: newHost(t), t: t, clusters: make(map[string]*hubCluster)}
	start := func(cfg nats.Config) *nats.Server {
		s, err := nats.Start(l.Host, bin, t.TempDir(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		return s
	}
	l.hub = start(nats.Config{Name: "hub", Domain: "hub", Port: 4222, LeafPort: 7422})
	conn, err := nats.Connect(l.Host, "nats://127.0.0.1:4222")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for i, name := range []string{"west", "east"} {
		c := &hubCluster{
			server: start(nats.Config{Name: name, Domain: name, Port: 4223 + i, Hub: "nats://127.0.0.1:7422"}),
			grpc:   fmt.Sprintf("127.0.0.1:97%d0", i+1),
		}
		c.aggregator = l.Command(binary, "aggregator", "--cluster", name, "--grpc-listen", c.grpc, "--http-listen", fmt.Sprintf("127.0.0.1:97%d1", i+1),
			"--data-dir", filepath.Join(t.TempDir(), name), "--nats", fmt.Sprintf("nats://127.0.0.1:%d", 4223+i), "--nats-size", "256MiB")
		if err := l.Start(c.aggregator); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.aggregator.Process.Kill(); _ = c.aggregator.Wait() })
		l.clusters[name] = c
		wait.Until(t, "the mirror of "+name, func() bool {
			js, err := jetstream.NewWithDomain(conn, "hub")
			if err != nil {
				t.Fatal(err)
			}
			_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{
				Name: stream.Name(name), Mirror: &jetstream.StreamSource{Name: stream.Name(name), External: &jetstream.ExternalStream{APIPrefix: "$JS." + name + ".API"}},
				MaxBytes: 256 << 20,
			})
			return err == nil
		})
	}
	return l
}

// client returns a client of an aggregator, or of the fleet.
func (l *hubLab) client(at string) ipwitnessv1.WitnessServiceClient {
	l.t.Helper()
	conn, err := sim.Dial(l.Host, at)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = conn.Close() })
	return ipwitnessv1.NewWitnessServiceClient(conn)
}

// simulate starts simulated nodes of a cluster.
func (l *hubLab) simulate(name string, size sim.Size) {
	l.t.Helper()
	f, err := sim.Start(l.Host, l.clusters[name].grpc, size)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(f.Stop)
}

// says runs a command that asks the fleet, and returns its output and exit code.
func (l *hubLab) says(args ...string) (out string, code int) {
	l.t.Helper()
	out, err := l.Output(l.Command(binary, args...))
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		return out, exit.ExitCode()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return out, 0
}

// owners counts the owners of a cluster.
func owners(ctx context.Context, c ipwitnessv1.WitnessServiceClient, cluster string) (n int) {
	q := &ipwitnessv1.ListOwnersRequest{Cluster: []string{cluster}, PageSize: 500}
	for {
		page, err := c.ListOwners(ctx, q)
		if err != nil {
			return n // it starts, or does not know the cluster yet
		}
		n += len(page.GetOwners())
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			return n
		}
	}
}

// recorded returns the events of a cluster after a time.
func (l *hubLab) recorded(c ipwitnessv1.WitnessServiceClient, cluster string, after time.Time) map[streamed]int {
	l.t.Helper()
	all := make(map[streamed]int)
	q := &ipwitnessv1.ListEventsRequest{Cluster: []string{cluster}, PageSize: 10_000, Since: timestamppb.New(after.Add(time.Microsecond))}
	for {
		page, err := c.ListEvents(l.t.Context(), q)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, e := range page.GetEvents() {
			all[streamedOf(e)]++
		}
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			return all
		}
	}
}

// A fleet answers for two clusters with simulated nodes. Although it is killed while thousands of addresses
// appear, it has recorded each change once. It says which cluster it does not see.
func TestAFleetThatIsKilledHasEachTransitionOnce(t *testing.T) {
	slow(t)
	l := newHubLab(t)
	l.simulate("west", sim.Size{Nodes: 3, Owners: 20})
	l.simulate("east", sim.Size{Nodes: 2, Owners: 10, First: 100})
	dir := filepath.Join(t.TempDir(), "data")
	begin := func() *netlab.Program {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		p, err := l.Aggregator(ctx, binary, "--fleet", "--nats", "nats://127.0.0.1:4222", "--data-dir", dir, "--network", "lan=172.16.0.0/12,clusters=*")
		if err != nil {
			t.Fatal(err)
		}
		killed(t, "the fleet", p)
		return p
	}
	program, c := begin(), l.client(grpcServer)
	count := func(cluster string, want int) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("%d owners in %s", want, cluster), func() bool { return owners(t.Context(), c, cluster) == want })
	}
	count("west", 3*20)
	count("east", 2*10)
	since := func(cluster string) time.Time {
		list, err := c.ListClusters(t.Context(), &ipwitnessv1.ListClustersRequest{Cluster: []string{cluster}})
		if err != nil {
			t.Fatal(err)
		}
		return list.GetClusters()[0].GetReachesBackTo().AsTime()
	}("west")
	for i := range 3 { // each time, it is killed while owners are being recorded
		before := owners(t.Context(), c, "west")
		l.simulate("west", sim.Size{Nodes: 15, Owners: 100, First: 10 + 20*i})
		wait.Until(t, "some of the owners", func() bool { return owners(t.Context(), c, "west") > before })
		program.Kill()
		program = begin()
	}
	count("west", 3*20+3*15*100)
	west := l.client(l.clusters["west"].grpc)
	wait.Until(t, "the same changes in the fleet as in the cluster", func() bool {
		want, got := l.recorded(west, "west", since), l.recorded(c, "west", since)
		for one, n := range got {
			if n != 1 || want[one] == 0 {
				for other := range want {
					if other.what == one.what && other.kind == one.kind {
						t.Logf("the cluster has %+v", other)
					}
				}
				t.Fatalf("got %+v %d times in the fleet, and %d times in the cluster", one, n, want[one])
			}
		}
		return len(want) == len(got)
	})

	wait.Until(t, "a complete answer", func() bool {
		out, code := l.says("conflicts", "--exit-code")
		return code == 0 && strings.Contains(out, "No conflicts.")
	})
	for _, test := range []struct {
		args string
		want []string
	}{
		{"clusters", []string{"west", "east", "LIVE", "48 of 48", "2 of 2"}},
		{"owners --cluster east", []string{"CLUSTER", "east", "172.16.0.101"}},
		{"nodes --cluster east", []string{"CLUSTER", "node-100", "node-101"}},
		{"audit", nil},
		{"explain 172.16.0.101", []string{"has one owner in the cluster east."}},
		{"history 172.16.0.101", []string{"CLUSTER", "east"}},
		{"owners --cluster east 172.16.0.101 -o csv", []string{"cluster,address", "east,172.16.0.101"}},
	} {
		out, code := l.says(strings.Fields(test.args)...)
		if code != 0 || slices.ContainsFunc(test.want, func(s string) bool { return !strings.Contains(out, s) }) || strings.Contains(test.args, "--cluster east") && strings.Contains(out, "west") {
			t.Errorf("%s: got %d and\n%s\nwant %q and no other cluster", test.args, code, out, test.want)
		}
	}
	for _, test := range []struct{ args, want string }{
		{"owners --cluster north", `the cluster "north" is not known: known are east, west`},
		{"audit --fix-plan", "a fleet knows no steps to repair IPAM"},
		{"explain 172.16.0.101 -o case", "a fleet has no cases"},
		{"aggregator --fleet --nats nats://127.0.0.1:4222 --cluster prod", "--cluster and --fleet cannot be combined"},
		{"aggregator --fleet --nats nats://127.0.0.1:4222 --network lan=10.0.0.0/8", "say which ones share the network"},
		{"aggregator --grpc-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --network lan=10.0.0.0/8,clusters=*", "only a fleet knows networks of several clusters"},
	} {
		if out, code := l.says(strings.Fields(test.args)...); code != 1 || !strings.Contains(out, test.want) {
			t.Errorf("%s: got %d and\n%s\nwant 1 and %q", test.args, code, out, test.want)
		}
	}

	const goesOn = 124 // the exit code of timeout
	out, err := l.Output(l.Command("timeout", "3", binary, "audit", "-w"))
	if exit, is := errors.AsType[*exec.ExitError](err); !is || exit.ExitCode() != goesOn {
		t.Errorf("audit -w: got %v and\n%s\nwant that it waits for findings", err, out)
	}

	_ = l.clusters["east"].aggregator.Process.Kill()
	wait.Until(t, "the fleet to say that it does not see east", func() bool {
		out, code := l.says("conflicts", "--exit-code")
		return code == 3 && strings.Contains(out, "1 of 2 clusters (east) cannot be seen now")
	})
	if out, code := l.says("conflicts", "--exit-code", "--cluster", "west"); code != 0 {
		t.Errorf("got %d and\n%s\nof the cluster that is seen, want 0", code, out)
	}
}
