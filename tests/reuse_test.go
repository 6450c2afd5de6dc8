package tests

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// wantReused waits until the reuse of an address is reported, and checks both owners.
func (l *lab) wantReused(addr, was, is string) {
	l.t.Helper()
	var f *ipwitnessv1.Finding
	wait.Until(l.t, "the reuse of "+addr, func() bool {
		for _, one := range l.findings("?kind=reused-too-soon&address=" + addr) {
			f = one
		}
		return f != nil
	})
	name := func(node string, w *ipwitnessv1.Workload) string { return node + "/" + w.GetName() }
	if p := f.GetPrevious(); name(p.GetNode(), p.GetWorkload()) != was || name(f.GetOwners()[0].GetNode(), f.GetOwners()[0].GetWorkload()) != is || p.GetUntil() == nil {
		l.t.Errorf("got %v, want %s after %s", f, is, was)
	}
}

// Incident 5, amazon-vpc-cni-k8s#3628: an address is reused on another node, and a neighbour, on a third one, has the MAC of its
// former owner.
func TestIncidentANeighbourHasTheMACOfTheFormerOwner(t *testing.T) {
	t.Parallel()
	const addr = "192.0.2.100"
	c := newCluster(t, 3)
	i := c.incident(5)
	c.shared()
	start := func(n *lab, name, addr string) {
		n.sh("ip netns add "+name, "ip link add link eth0 name m"+name+" type macvlan mode bridge", "ip link set m"+name+" name eth0 netns "+name, "ip -n "+name+" link set eth0 up")
		n.assign(name, addr+"/24")
	}
	there := c.nodes[2]
	start(there, "client", "192.0.2.20")
	pings := func() bool {
		_, err := there.Run("ip netns exec client busybox ping -c 1 -W 1 %s", addr)
		return err == nil
	}
	start(c.nodes[0], "web", addr)
	c.awaitOwner(addr, "web")
	there.sysctl("client", "net/ipv4/neigh/eth0/base_reachable_time_ms=3600000") // as traffic that is confirmed does
	wait.Until(t, "an answer of web", pings)
	c.awaitFindings()

	c.nodes[0].sh("ip netns del web")
	c.awaitOwners(addr, 0)
	start(c.nodes[1], "db", addr)
	c.awaitOwner(addr, "db")
	i.foretold("stale-belief", addr) // before the client sends a packet
	if pings() {
		t.Fatal("the client reaches db at once: the kernel of db has announced its address")
	}
	i.found("stale-belief", addr)
	var carried []string
	for _, action := range i.finding.GetRemedy() {
		if strings.Contains(action.GetCommand(), "neigh del") {
			there.sh(action.GetCommand())
			carried = append(carried, action.GetCommand())
		}
	}
	wait.Until(t, "an answer of db", pings)
	i.remedied(carried...)
	c.wantOnlyPlanted()
}

// Incident 6, amazon-vpc-cni-k8s#3634: a half-open connection to a Service is translated to a reused
// address, which belongs to another service now.
func TestIncidentAReusedAddressMeetsAnOldDNATEntry(t *testing.T) {
	t.Parallel()
	const (
		addr    = "10.244.0.2"
		another = "10.244.0.3"
		service = "10.96.0.10"
	)
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Fatal("this test needs iptables: apt-get install iptables")
	}
	if _, err := exec.LookPath("conntrack"); err != nil {
		t.Fatal("this test needs conntrack: apt-get install conntrack")
	}
	l := newLab(t, "--reused-within", "2m")
	i := l.incident(6)
	l.sh("sysctl -qw net.ipv4.ip_forward=1")
	routed := func(name, addr string) {
		l.pod(name, addr+"/32")
		l.sh("ip addr add 169.254.1.1/32 dev v"+name, "ip route add "+addr+" dev v"+name, "ip -n "+name+" route add default via 169.254.1.1 dev eth0 onlink")
	}
	serves := func(name string) {
		server := l.Command("ip", "netns", "exec", name, "busybox", "nc", "-ll", "-p", "80", "-e", "echo", name)
		if err := l.Start(server); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = server.Process.Kill()
			_ = server.Wait()
		})
	}
	endpoint := func(addr string) {
		l.sh("iptables -t nat -F PREROUTING", "iptables -t nat -A PREROUTING -p tcp -d "+service+" --dport 80 -j DNAT --to-destination "+addr)
	}
	asks := func(port int) (answer string) {
		client, err := l.Pod("client")
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Do(func() error {
			from := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Timeout: time.Second}
			conn, err := from.Dial("tcp", service+":80")
			if err != nil {
				return nil // there is no answer
			}
			said, err := io.ReadAll(conn)
			answer = strings.TrimSpace(string(said))
			return errors.Join(err, conn.Close())
		}); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	routed("client", "10.244.0.9")
	routed("web", addr)
	routed("web2", another)
	serves("web2")
	l.awaitOwner(addr, "web")
	endpoint(addr)
	l.sh("ip netns exec web iptables -A INPUT -p tcp -j DROP") // it is ending
	for _, port := range []int{4000, 4002} {
		if got := asks(port); got != "" {
			t.Fatalf("got answer %q of web, want none", got)
		}
	}
	l.sh("ip netns del web")
	l.awaitOwners(addr, 0)
	endpoint(another)
	routed("db", addr)
	serves("db")
	wait.Until(t, "an answer of db", func() bool {
		answer, _ := l.Stdout(l.Command("ip", "netns", "exec", "client", "busybox", "nc", "-w", "1", addr, "80"))
		return strings.TrimSpace(answer) == "db"
	})
	i.foretold("reused-too-soon", addr)
	if got := asks(4001); got != "web2" {
		t.Errorf("got answer %q to a new connection, want that of web2", got)
	}
	if got := asks(4000); got != "db" {
		t.Errorf("got answer %q to the repeated one, want that of db, because of the old entry", got)
	}
	l.wantReused(addr, "node1/web", "node1/db")

	// The commands of the finding that explain has for the other entry delete exactly that one.
	var nat *ipwitnessv1.Finding
	explained := func() bool {
		var e ipwitnessv1.ExplainResponse
		if err := l.program.Get(t.Context(), "/v1/explain?senders=true&address="+addr, &e); err != nil {
			if strings.Contains(err.Error(), "429") { // limited by questionsPerSecond
				return false
			}
			t.Fatal(err)
		}
		if nat = nil; len(e.GetFindings()) > 0 {
			nat = e.GetFindings()[0]
		}
		return len(nat.GetTranslations()) == 1
	}
	wait.Until(t, "the entry is known to be older than db", explained)
	one := nat.GetTranslations()[0]
	if one.GetNode() != "node1" || one.GetSource() != "10.244.0.9:4002" || one.GetWorkload().GetName() != "client" || one.GetDestination() != service+":80" || nat.GetPrevious().GetWorkload().GetName() != "web" {
		t.Errorf("got %v, want the connection of client to the Service, from the time of web", nat)
	}
	i.Found(nat, "nat-to-former-owner", func(args ...string) (out string) {
		wait.Until(t, "an answer with the finding", func() bool {
			out = i.run(args...)
			return strings.Contains(out, nat.GetId()) // questions are limited
		})
		return out
	})
	remedy, carried := nat.GetRemedy(), []string(nil)
	for _, action := range remedy {
		if strings.HasPrefix(action.GetCommand(), "conntrack -D ") {
			l.sh(action.GetCommand())
			carried = append(carried, action.GetCommand())
		}
	}
	if explained(); nat != nil {
		t.Errorf("got %v after %q", nat, carried)
	}
	if got := asks(4002); got != "web2" {
		t.Errorf("got answer %q to the other connection, want that of web2", got)
	}
	i.Remedied(remedy, carried...)
	l.wantOnlyPlanted()
}
