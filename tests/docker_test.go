package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// engineHost is a host with a container engine.
type engineHost struct {
	*lab
	engine string // its command
}

// newEngineHost creates a host for a container engine, on which ipwitness runs.
func newEngineHost(t *testing.T, engine string) *engineHost {
	t.Helper()
	possible(t)
	h, err := netlab.NewMachine("engine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	e := &engineHost{startLab(t, h), engine}
	// The image has nothing but busybox.
	e.shell("mkdir -p /run/image/bin", "cp /bin/busybox /run/image/bin/", "ln -s busybox /run/image/bin/sleep", "ln -s busybox /run/image/bin/ip",
		"tar -C /run/image -cf /run/image.tar .")
	return e
}

// run starts a container that does nothing, and returns its ID and its address.
func (e *engineHost) run(name string, options ...string) (id, addr string) {
	e.t.Helper()
	id = e.said("%s run -d --stop-signal KILL --cgroup-parent %s --name %s %s img /bin/sleep 1000", e.engine, e.Cgroup(), name, strings.Join(options, " "))
	return id, e.address(name)
}

// address returns the first address of a container according to its engine.
func (e *engineHost) address(name string) string {
	e.t.Helper()
	addrs := strings.Fields(e.said("%s inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}' %s", e.engine, name))
	if len(addrs) == 0 {
		e.t.Fatalf("container %s has no address", name)
	}
	return addrs[0]
}

// shell runs command lines of a shell.
func (e *engineHost) shell(lines ...string) {
	e.t.Helper()
	for _, line := range lines {
		if _, err := e.Output(e.Command("sh", "-euc", line)); err != nil {
			e.t.Fatal(err)
		}
	}
}

// said runs a command line of a shell and returns the last line of its output.
func (e *engineHost) said(format string, args ...any) string {
	e.t.Helper()
	out, err := e.Stdout(e.Command("sh", "-euc", fmt.Sprintf(format, args...)))
	if err != nil {
		e.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// inside runs `ip` in the network namespace of a container.
func (e *engineHost) inside(name, args string) {
	e.t.Helper()
	pid := e.said("%s inspect --format '{{.State.Pid}}' %s", e.engine, name)
	e.shell("nsenter --net=/proc/" + pid + "/ns/net ip " + args)
}

// awaitContainer waits until an address has exactly one owner, the container of this name and ID.
func (e *engineHost) awaitContainer(addr, name, id string) {
	e.t.Helper()
	wait.Until(e.t, fmt.Sprintf("container %s to be the owner of %s", name, addr), func() bool {
		w := e.awaitOwners(addr, 1)[0].GetWorkload()
		return w.GetKind() == ipwitnessv1.Workload_CONTAINER && w.GetName() == name && w.GetContainerId() == id && w.GetSource() == e.engine
	})
}

// awaitCause waits until the conflict about an address is confirmed and has a cause, and returns it.
func (e *engineHost) awaitCause(addr, cause string) *ipwitnessv1.Conflict {
	e.t.Helper()
	e.watch.await("the conflict about "+addr, inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	var got *ipwitnessv1.Conflict
	wait.Until(e.t, "the cause of the conflict about "+addr, func() bool {
		all := e.watch.find(addr)
		got = all[len(all)-1]
		return got.GetCause() == cause
	})
	return got
}

// carryOut runs the commands of a remedy in order, and returns them.
func (e *engineHost) carryOut(actions []*ipwitnessv1.Action) (carried []string) {
	e.t.Helper()
	for _, a := range actions {
		if len(a.GetChoice()) > 0 {
			e.t.Fatalf("got a choice %v, want steps", a)
		}
		if c := a.GetCommand(); c != "" && !strings.HasPrefix(c, "ipwitness") {
			e.shell(c)
			carried = append(carried, c)
		}
	}
	return carried
}

// restartWithoutRecord waits for the conflict about the address of a container that the engine has no
// record of, which it has given to the next container. It carries out the remedy, after which each
// container has an address of its own.
func (e *engineHost) restartWithoutRecord(i *incident, addr, name, id, next, nextID string) {
	e.t.Helper()
	e.watch.await("the names of both", between(addr, ipwitnessv1.Conflict_CONFIRMED, name+" | "+next))
	var c *ipwitnessv1.Conflict
	wait.Until(e.t, "the remedy for the container without a record", func() bool {
		all := e.watch.find(addr)
		c = all[len(all)-1]
		return slices.ContainsFunc(c.GetRemedy(), func(a *ipwitnessv1.Action) bool {
			return strings.Contains(a.GetCommand(), e.engine+" stop "+id[:12])
		})
	})
	i.conflicted(addr, "ipam-state-lost")
	i.remedied(e.carryOut(c.GetRemedy())...)
	e.awaitContainer(addr, next, nextID)
	e.awaitContainer(e.address(name), name, id)
}

// newDockerHost returns a host with a dockerd whose containers outlive it.
func newDockerHost(t *testing.T) *engineHost {
	t.Helper()
	e := newEngineHost(t, "docker")
	e.startDockerd()
	e.shell("docker import /run/image.tar img")
	return e
}

// startDockerd starts dockerd.
func (e *engineHost) startDockerd() {
	e.t.Helper()
	var said netlab.Log
	cmd := e.Command("dockerd", "--live-restore", "--storage-driver", "vfs", "--iptables=false", "--ip6tables=false", "--ip-masq=false",
		"--log-level", "warn", "--bip", "172.29.0.1/24")
	cmd.Stderr = &said
	if err := e.Start(cmd); err != nil {
		e.t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("dockerd said:\n%s", said.String())
		}
	})
	wait.Until(e.t, "dockerd to answer", func() bool { return e.runs("docker version") })
}

// stopDockerd stops dockerd and leaves its containers running.
func (e *engineHost) stopDockerd() {
	e.t.Helper()
	e.shell("kill $(cat /run/docker.pid)")
	wait.Until(e.t, "dockerd to end", func() bool { return !e.runs("test -e /run/docker.pid") })
}

// runs reports whether a command line succeeds.
func (e *engineHost) runs(line string) bool {
	return e.Command("sh", "-c", line).Run() == nil
}

// reconnect connects containers to a network of docker and disconnects them again, so that addresses
// come and go n times. That takes less time than to start as many containers.
func (e *engineHost) reconnect(network string, n int) {
	e.t.Helper()
	const atOnce = 4
	if n < atOnce {
		return
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.Path("/run/docker.sock"))
	}}}
	defer client.CloseIdleConnections()
	call := func(what, container string) error {
		r, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, "http://docker/networks/"+network+"/"+what, strings.NewReader(fmt.Sprintf(`{"Container":%q}`, container)))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			said, _ := io.ReadAll(answer.Body)
			return fmt.Errorf("%s %s: %s %s", what, container, answer.Status, said)
		}
		return nil
	}
	var workers errgroup.Group
	for w := range atOnce {
		name := fmt.Sprint("mover", w)
		e.run(name)
		workers.Go(func() error {
			for range (n + atOnce - 1) / atOnce {
				for _, what := range []string{"connect", "disconnect"} {
					if err := call(what, name); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := workers.Wait(); err != nil {
		e.t.Fatal(err)
	}
	for w := range atOnce {
		e.shell(fmt.Sprint("docker rm -f mover", w))
	}
}

func TestDockerContainersAreNamedAndAddressesSetByHandAreForetold(t *testing.T) {
	t.Parallel()
	e := newDockerHost(t)
	found := e.follow()
	id, web := e.run("web")
	e.awaitContainer(web, "web", id)
	e.shell("docker network create --subnet 172.30.5.0/24 --ip-range 172.30.5.128/25 --aux-address router=172.30.5.130 apps")
	id, app := e.run("app", "--network apps")
	e.awaitContainer(app, "app", id)
	e.shell("docker rename app shop")
	e.awaitContainer(app, "shop", id)
	const jobs = 3
	for i := range jobs { // churn: the next container gets the address
		name := fmt.Sprint("job", i)
		id, addr := e.run(name)
		e.awaitContainer(addr, name, id)
		e.shell("docker rm -f " + name)
	}
	e.reconnect("apps", churned(jobs)-jobs)
	e.awaitAllocations(2)
	if got := found.all(); len(got) > 0 {
		t.Errorf("got findings %q of the churn, want none", got)
	}

	// Addresses that docker never gives are no finding.
	e.inside("shop", "addr add 172.30.5.130/24 dev eth0")
	e.inside("shop", "addr add 172.30.5.7/24 dev eth0")
	e.awaitOwners("172.30.5.7", 1)
	// Other addresses are.
	const free = "172.29.0.77"
	e.inside("web", "addr add "+free+"/24 dev eth0")
	e.awaitFindings("in-use-unallocated " + free)

	id, db := e.run("db")
	e.awaitContainer(db, "db", id)
	e.inside("web", "addr add "+db+"/24 dev eth0")
	e.awaitCause(db, "static-address")
	e.watch.await("the names of both", between(db, ipwitnessv1.Conflict_CONFIRMED, "db | web"))
	if got, want := found.all(), []string{"in-use-unallocated " + free}; !slices.Equal(got, want) {
		t.Errorf("got findings %q, want only %q", got, want)
	}
}

func TestDockerThatLostARecordIsForetoldAndItsRemedyLeavesOneOwner(t *testing.T) {
	t.Parallel()
	e := newDockerHost(t)
	_, web := e.run("web")
	e.stopDockerd()
	const database = "/var/lib/docker/network/files/local-kv.db"
	e.shell("cp " + database + " /run/backup")
	e.startDockerd()
	id, db := e.run("db")
	e.awaitContainer(db, "db", id)
	e.awaitAllocations(2)
	e.stopDockerd()
	e.shell("cp /run/backup " + database)
	e.startDockerd()
	i := e.incident(31)
	i.foretold("in-use-unallocated", db)
	f := e.awaitFindings("in-use-unallocated " + db)[0]
	if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || f.GetPool().GetIpam() != "docker" || f.GetPool().GetName() != database+"#bridge" {
		t.Errorf("got %v, want it critical, of docker's network bridge", f)
	}

	third, addr := e.run("third")
	if addr != db {
		t.Fatalf("docker gave %s, want %s again", addr, db)
	}
	e.restartWithoutRecord(i, db, "db", id, "third", third)
	e.awaitContainer(web, "web", e.said("docker inspect --format '{{.Id}}' web"))
	e.awaitFindings()
}
