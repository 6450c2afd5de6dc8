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
	d := l.ipamdOf()
	for _, a := range addresses {
		d.do("cidr eni-1 " + a + "/32")
	}
	return d
}

// ipamdOf starts ipamd with flags. The node has one network interface without addresses.
func (l *lab) ipamdOf(flags ...string) *ipamd {
	l.t.Helper()
	bin, err := netlab.AWSVPC()
	if err != nil {
		l.t.Fatal(err)
	}
	const dir = "/run/aws-node"
	l.sh("mkdir -p "+dir, "rm -f "+dir+"/ipamd.sock")
	cmd := l.Command(filepath.Join(bin, "ipamd"), append(flags, "-checkpoint", awsCheckpoint, "-socket", dir+"/ipamd.sock")...)
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

func TestAgentReportsAllocationsOfTheAWSVPCCNI(t *testing.T) {
	slow(t)
	t.Parallel()
	for name, c := range map[string]struct{ flag, cidr, first string }{
		"secondary addresses": {"-prefixes=false", "198.18.85.5/32", "198.18.85.5"},
		"prefixes":            {"-prefixes", "198.18.85.16/28", "198.18.85.16"},
		"IPv6":                {"-ipv6", "2001:db8:85::/80", "2001:db8:85::"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, reported := newListener(t)
			cni := l.cni(awsVPC)
			l.ipamdOf(c.flag).do("cidr eni-1 " + c.cidr)
			add(t, cni, "web")
			p := reported.awaitPool(awsCheckpoint, ipwitnessv1.Pool_KNOWN, 1)
			if p.GetIpam() != "aws-vpc" || p.GetNetwork() != "aws-cni" || p.GetPlugin() != "aws-cni" || !p.GetRouted() || len(p.GetRanges()) != 0 {
				t.Errorf("got %v", p)
			}
			reported.await("the pod of the address", func() bool {
				a := reported.allocations[awsCheckpoint][c.first]
				return a.GetNamespace() == "default" && a.GetPod() == "web" && strings.HasPrefix(a.GetContainerId(), "cnitool-") && a.GetInterface() == "eth0" && a.GetAllocatedAt().IsValid()
			})
			if err := cni.Delete("web"); err != nil {
				t.Fatal(err)
			}
			reported.awaitPool(awsCheckpoint, ipwitnessv1.Pool_KNOWN, 0)
			write(t, l.Path(awsCheckpoint), `{"version":"vpc-cni-ipam/2"}`)
			reported.awaitPool(awsCheckpoint, ipwitnessv1.Pool_UNREADABLE, 0)
			reported.await("the problem", func() bool {
				return strings.Contains(strings.Join(reported.status.GetProblems(), "\n"), `its version is "vpc-cni-ipam/2"`)
			})
		})
	}
}

// In aws/amazon-vpc-cni-k8s issues 711 and 3824, ipamd forgot the allocations of running pods when it
// was started again.
func TestAllocationsThatIPAMDForgetsAreReported(t *testing.T) {
	slow(t)
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
	// Once the metadata is complete again, ipamd gives the address to the next pod.
	daemon.do("cidr eni-1 198.18.81.5/32")
	add(t, cni, "new")
	l.wantConfirmed("198.18.81.5")
	wait.Until(t, "the cause", func() bool {
		all := l.watch.find("198.18.81.5")
		return len(all) == 1 && all[0].GetCause() == "ipam-state-lost"
	})
	// The remedy is to restart the first pod, whose address is recorded for the other one.
	if err := cni.Delete("web"); err != nil {
		t.Fatal(err)
	}
	l.awaitOwners("198.18.81.5", 1)
	l.awaitFindings()
}

func TestChurnOfTheAWSVPCCNIIsSilent(t *testing.T) {
	slow(t)
	t.Parallel()
	l := newLab(t)
	// ipamd does not reuse an address for 30 s.
	daemon, cni := l.ipamdOf(), l.cni(awsVPC)
	pods := churned(30)
	for i := range pods + 10 {
		daemon.do(fmt.Sprintf("cidr eni-1 198.18.%d.%d/32", 86+i/250, i%250+1))
	}
	events := l.follow()
	cycle(t, cni, pods, 0)
	// The control: an address that EC2 is said to have removed from the node (issue 3019).
	add(t, cni, "web", "db")
	l.awaitAllocations(2)
	address := ""
	wait.Until(t, "the address of web", func() bool {
		for _, o := range l.owners("") {
			if o.GetWorkload().GetName() == "web" && strings.HasPrefix(o.GetAddress(), "198.18.") {
				address = o.GetAddress()
			}
		}
		return address != ""
	})
	daemon.do("drop eni-1 " + address + "/32")
	l.awaitFindings("in-use-unallocated " + address)
	wait.Until(t, "the event of it", func() bool { return len(events.all()) > 0 })
	wait.Until(t, "the finding as the first one of the watch", func() bool { return len(events.all()) > 0 })
	if got := events.all(); !slices.Equal(got, []string{"in-use-unallocated " + address}) {
		t.Errorf("findings: got %q, want only the control", got)
	}
	if got := l.watch.all(); len(got) != 0 {
		t.Errorf("conflicts: got %v, want none", got)
	}
}

func TestCheckpointThatDisappearsIsReportedUntilIPAMDWritesItAgain(t *testing.T) {
	slow(t)
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

// awsScenes are problems with the AWS VPC CNI, whose remedies are carried out literally.
var awsScenes = map[string]func(t *testing.T, b block) *scene{
	"in-use-unallocated": func(t *testing.T, b block) *scene {
		l, s, daemon := forgetful(t, b)
		s.incident(3)
		daemon.do("cidr eni-1 " + b.address(7) + "/32")
		l.sh("mount -t tmpfs tmpfs /var/log", "mkdir /var/log/aws-routed-eni")
		write(t, l.Path("/var/log/aws-routed-eni/ipamd.log"), "datastore: Sandbox aws-cni/c1/eth0 uses unknown IP Address "+b.address(5)+" - presuming stale/dead\n")
		s.keeper = "-"
		return s.found("in-use-unallocated", b.address(5))
	},
	"booked-elsewhere": func(t *testing.T, b block) *scene {
		_, s, daemon := forgetful(t, b)
		daemon.do("cidr eni-1 " + b.address(5) + "/32")
		daemon.do("add another default gone")
		daemon.do("cidr eni-1 " + b.address(7) + "/32")
		s.keeper = "-"
		return s.found("booked-elsewhere", b.address(5))
	},
	"leaked": func(t *testing.T, b block) *scene {
		l := newLab(t, "--leaked-after", "1s")
		s := newScene(t, l)
		daemon := l.ipamd(b.address(5))
		daemon.do("add another default gone")
		daemon.do("cidr eni-1 " + b.address(6) + "/32")
		s.place(l, l.cni(awsVPC), "web")
		l.awaitAllocations(2)
		s.effects["crictl rmp"] = func() { daemon.do("del another") } // the runtime calls CNI DEL
		s.byHand["Leave the record as it is"] = func() {              // until ipamd is started the next time
			daemon.end()
			l.ipamd(b.address(5), b.address(6)).do("restore")
		}
		s.keeper, s.unreal = "-", []string{"it exists and is Ready"}
		return s.found("leaked", b.address(5))
	},
	"ipam-state-lost": func(t *testing.T, b block) *scene {
		l := newLab(t)
		s := newScene(t, l)
		s.reboots(l.ipamd(b.address(5), b.address(6)), b)
		s.place(l, l.cni(awsVPC), "web", "db")
		l.awaitAllocations(2)
		if err := os.Remove(l.Path(awsCheckpoint)); err != nil {
			t.Fatal(err)
		}
		return s.found("ipam-state-lost", "")
	},
	"outdated instance metadata, and a conflict": func(t *testing.T, b block) *scene {
		l, s, daemon := forgetful(t, b)
		s.incident(2)
		s.foretold("in-use-unallocated", b.address(5))
		daemon.do("cidr eni-1 " + b.address(5) + "/32")
		s.place(l, l.cni(awsVPC), "new")
		daemon.do("cidr eni-1 " + b.address(7) + "/32")
		s.keeper = "new"
		return s.conflicted(b.address(5), "default/new | default/web", "ipam-state-lost")
	},
	"a restart that finds no pods, and a conflict": func(t *testing.T, b block) *scene {
		l, s, daemon, cni := withWeb(t, b)
		s.incident(1)
		daemon.end()
		if err := os.Remove(l.Path(awsCheckpoint)); err != nil {
			t.Fatal(err)
		}
		s.foretold("in-use-unallocated", b.address(5))
		daemon = l.ipamd(b.address(5)) // does not restore the checkpoint
		s.place(l, cni, "new")
		daemon.do("cidr eni-1 " + b.address(7) + "/32")
		s.reboots(daemon, b)
		s.keeper = "new"
		return s.conflicted(b.address(5), "default/new | default/web", "ipam-state-lost")
	},
	"a pod that is terminating, and a conflict": func(t *testing.T, b block) *scene {
		l, s, daemon, cni := withWeb(t, b)
		s.incident(7)
		// ipamd gets the DEL of the pod, whose containers keep running.
		daemon.do("del " + l.awaitOwners(b.address(5), 1)[0].GetWorkload().GetContainerId())
		s.foretold("in-use-unallocated", b.address(5))
		daemon.end()
		daemon = l.ipamd(b.address(5)) // would not reuse the address for 30 s otherwise
		daemon.do("restore")
		s.place(l, cni, "new")
		daemon.do("cidr eni-1 " + b.address(7) + "/32")
		s.reboots(daemon, b)
		s.keeper = "new"
		return s.conflicted(b.address(5), "default/new | default/web", "ipam-state-lost")
	},
}

// withWeb returns a scene with the pod web.
func withWeb(t *testing.T, b block) (*lab, *scene, *ipamd, *netlab.CNI) {
	t.Helper()
	l := newLab(t)
	s := newScene(t, l)
	for _, text := range []string{"Do not edit", "Restart the holder in both cases"} {
		s.byHand[text] = func() {}
	}
	daemon, cni := l.ipamd(b.address(5)), l.cni(awsVPC)
	s.place(l, cni, "web")
	l.awaitPod(b.address(5), "web")
	l.awaitAllocations(1)
	return l, s, daemon, cni
}

// forgetful returns a scene with the pods web and db, after ipamd has dropped the allocation of web.
func forgetful(t *testing.T, b block) (*lab, *scene, *ipamd) {
	t.Helper()
	l, s, daemon, cni := withWeb(t, b)
	daemon.do("cidr eni-1 " + b.address(6) + "/32")
	s.place(l, cni, "db")
	l.awaitAllocations(2)
	daemon.end()
	daemon = l.ipamd(b.address(6))
	daemon.do("restore")
	l.awaitAllocations(1)
	s.reboots(daemon, b)
	return l, s, daemon
}

// reboots lets the node have an empty /run/aws-node after a reboot, and other addresses than before.
func (s *scene) reboots(daemon *ipamd, b block) {
	s.effects["systemctl reboot"] = func() {
		daemon.end()
		if err := os.Remove(s.Path(awsCheckpoint)); err != nil {
			s.t.Fatal(err)
		}
		s.ipamd(b.address(6), b.address(7), b.address(8))
	}
}

func TestRemediesForTheAWSVPCCNILeaveTheRightOwner(t *testing.T) {
	slow(t)
	t.Parallel()
	for name, build := range awsScenes {
		t.Run(name, func(t *testing.T) { t.Parallel(); carriedOut(t, build) })
	}
}

// Security groups for pods give a pod the address of a branch ENI, which ipamd does not record. There
// are no VLAN devices here: the pods and the results of the plugin are made by hand.
func TestPodWithABranchENIIsNotExpectedInTheCheckpoint(t *testing.T) {
	slow(t)
	t.Parallel()
	l := newLab(t)
	daemon := l.ipamd("198.18.84.5")
	daemon.do("add c0 default gone") // the node has a checkpoint
	const branch, plain = "198.18.84.7", "198.18.84.8"
	l.sh("mkdir -p /var/lib/cni/results")
	for _, p := range []struct{ name, address, vlan string }{{"branch", branch, "7"}, {"plain", plain, "0"}} {
		l.pod(p.name, p.address+"/32")
		write(t, l.Path("/var/lib/cni/results/aws-cni-c"+p.name+"-eth0"), strings.NewReplacer("$pod", p.name, "$address", p.address, "$vlan", p.vlan).Replace(
			`{"kind":"cniCacheV1","containerId":"c$pod","ifName":"eth0","networkName":"aws-cni","netns":"/run/netns/$pod",
			"cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","$pod"]],"result":{"cniVersion":"0.4.0","interfaces":[{"name":"v$pod"},
			{"mac":"1","name":"eth0","sandbox":"/run/netns/$pod"},{"mac":"$vlan","name":"dummy1"}],"ips":[{"address":"$address/32","interface":1}]}}`))
		l.awaitPod(p.address, p.name)
	}
	l.awaitFindings("in-use-unallocated " + plain)
}
