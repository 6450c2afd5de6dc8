package tests

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// awsVPC is the network of the AWS VPC CNI, as its DaemonSet configures it, without the plugins that
// call no IPAM.
const awsVPC = `{"cniVersion":"0.4.0","name":"aws-cni","plugins":[{"name":"aws-cni","type":"aws-cni","vethPrefix":"eni","mtu":"9001",
	"podSGEnforcingMode":"strict","pluginLogFile":"stderr","pluginLogLevel":"INFO"}]}`

// awsCheckpoint is the checkpoint of ipamd.
const awsCheckpoint = "/run/aws-node/ipam.json"

// ipamd is a running tools/awsvpc: the part of ipamd that allocates addresses.
type ipamd struct {
	t        *testing.T
	commands io.WriteCloser
	answers  *bufio.Scanner
	end      func()
}

// ipamd starts ipamd on the host. The node has one network interface with the given addresses.
func (l *lab) ipamd(addresses ...string) *ipamd {
	l.t.Helper()
	bin, err := netlab.Plugins()
	if err != nil {
		l.t.Fatal(err)
	}
	const dir = "/run/aws-node"
	l.sh("mkdir -p "+dir, "rm -f "+dir+"/ipamd.sock")
	cmd := l.Command(filepath.Join(bin, "ipamd"), "-checkpoint", awsCheckpoint, "-socket", dir+"/ipamd.sock")
	d := &ipamd{t: l.t}
	d.commands, err = cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	d.answers = bufio.NewScanner(out)
	if err := l.Start(cmd); err != nil {
		l.t.Fatal(err)
	}
	d.end = sync.OnceFunc(func() {
		_ = d.commands.Close()
		_ = cmd.Wait()
	})
	l.t.Cleanup(d.end)
	d.do("eni eni-1 0")
	for _, a := range addresses {
		d.do("cidr eni-1 " + a + "/32")
	}
	return d
}

// do carries out a command.
func (d *ipamd) do(command string) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.commands, command); err != nil {
		d.t.Fatal(err)
	}
	if !d.answers.Scan() || !strings.HasPrefix(d.answers.Text(), "ok") {
		d.t.Fatalf("%s: got %q, %v", command, d.answers.Text(), d.answers.Err())
	}
}

// In aws/amazon-vpc-cni-k8s issues 711 and 3824, ipamd forgot the allocations of running pods when it
// was started again.
func TestAllocationsThatIPAMDForgetsAreReported(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	daemon, cni := l.ipamd("198.18.81.5"), l.cni(awsVPC)
	add(t, cni, "web")
	daemon.do("cidr eni-1 198.18.81.6/32")
	add(t, cni, "db")
	l.awaitPod("198.18.81.5", "web")
	l.awaitPod("198.18.81.6", "db")
	l.awaitAllocations(2)
	l.awaitFindings()

	// The instance metadata does not list the address of web, so ipamd drops its allocation.
	daemon.end()
	daemon = l.ipamd("198.18.81.6")
	daemon.do("restore")
	found := l.awaitFindings("in-use-unallocated 198.18.81.5")[0]
	if found.GetSeverity() != ipwitnessv1.Finding_CRITICAL || found.GetPool().GetIpam() != "aws-vpc" || found.GetPool().GetName() != awsCheckpoint {
		t.Errorf("got %v, want it critical, of the pool of ipamd", found)
	}
	var commands []string
	for _, a := range found.GetRemedy() {
		commands = append(commands, a.GetCommand())
	}
	if i := slices.Index(commands, "kubectl delete pod -n default web"); i < 0 || slices.Index(commands, "kubectl cordon node1") > i || slices.Index(commands, "kubectl uncordon node1") < i {
		t.Errorf("commands: got %q, want the holder restarted while the node starts no other pods", commands)
	}

	// Once the metadata is complete again, ipamd gives the address to the next pod.
	daemon.do("cidr eni-1 198.18.81.5/32")
	add(t, cni, "new")
	l.wantConfirmed("198.18.81.5")
	if c := l.only("198.18.81.5"); c.GetCause() != "ipam-state-lost" {
		t.Errorf("got %v, want cause ipam-state-lost", c)
	}
	// The remedy is to restart the first pod, whose address is recorded for the other one.
	if err := cni.Delete("web"); err != nil {
		t.Fatal(err)
	}
	l.awaitOwners("198.18.81.5", 1)
	l.awaitFindings()
}

func TestChurnOfTheAWSVPCCNIIsSilent(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var addresses []string
	for i := range 40 { // ipamd does not reuse an address for 30 s
		addresses = append(addresses, fmt.Sprint("198.18.82.", i+1))
	}
	daemon, cni := l.ipamd(addresses...), l.cni(awsVPC)
	events := l.follow()
	for range 10 {
		for i := range 3 {
			add(t, cni, fmt.Sprint("pod", i))
		}
		for i := range 3 {
			if err := cni.Delete(fmt.Sprint("pod", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The control: an address that EC2 is said to have removed from the node (issue 3019).
	add(t, cni, "web", "db")
	l.awaitAllocations(2)
	address := ""
	wait.Until(t, "the address of web", func() bool {
		for _, o := range l.owners("") {
			if o.GetWorkload().GetName() == "web" && strings.HasPrefix(o.GetAddress(), "198.18.82.") {
				address = o.GetAddress()
			}
		}
		return address != ""
	})
	daemon.do("drop eni-1 " + address + "/32")
	l.awaitFindings("in-use-unallocated " + address)
	wait.Until(t, "the event of it", func() bool { return len(events.all()) > 0 })
	if got := events.all(); !slices.Equal(got, []string{"in-use-unallocated " + address}) {
		t.Errorf("findings: got %q, want only the control", got)
	}
	if got := l.watch.all(); len(got) != 0 {
		t.Errorf("conflicts: got %v, want none", got)
	}
}

func TestCheckpointThatDisappearsIsReportedUntilIPAMDWritesItAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	_, cni := l.ipamd("198.18.83.1", "198.18.83.2", "198.18.83.3"), l.cni(awsVPC)
	add(t, cni, "web", "db")
	l.awaitAllocations(2)
	if err := os.Remove(l.Path(awsCheckpoint)); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the loss", func() bool {
		lost := l.findings("?kind=ipam-state-lost")
		return len(lost) == 1 && len(lost[0].GetAddresses()) == 2 && len(l.findings("?kind=in-use-unallocated")) == 2
	})
	add(t, cni, "cache")
	l.awaitFindings()
}
