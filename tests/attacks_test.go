package tests

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The hosts in the lab of attacks. The host parts of addresses are those in attacks.
var (
	victimMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 7}
	attackerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x66}
	askerMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	randomMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0x99}
	groupMAC    = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
	calicoMAC   = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
)

// spoofs are attacks on the neighbour table of a pod by another pod on the same bridge.
// Each frame is sent once, and makes the asker believe that the victim's address is
// elsewhere.
var spoofs = []struct {
	id     string
	ipv6   bool
	change func(f *netlab.Forged)
	// incomplete is set if only a host that is resolving the address at that moment
	// believes the frame.
	incomplete bool
	// loopback is set if no frame is forged, because the attacker's kernel answers.
	loopback bool
}{
	{id: "arp-reply"},
	{id: "arp-other-source", change: func(f *netlab.Forged) { f.Source = randomMAC }},
	{id: "arp-hardware-type", change: func(f *netlab.Forged) { f.HardwareType = 6 }},
	{id: "arp-group-mac", change: func(f *netlab.Forged) { f.SHA = groupMAC }},
	{id: "arp-responder-mac", change: func(f *netlab.Forged) { f.SHA = calicoMAC }},
	{id: "arp-priority-tags", change: func(f *netlab.Forged) { f.PriorityTags = 300 }},
	{id: "arp-loopback", incomplete: true, loopback: true},
	{id: "ndp-advertisement", ipv6: true},
	{id: "ndp-options", ipv6: true, change: func(f *netlab.Forged) { f.Options = 150 }},
	{id: "ndp-extensions", ipv6: true, change: func(f *netlab.Forged) { f.Extensions = 150 }},
	{id: "ndp-group-mac", ipv6: true, change: func(f *netlab.Forged) { f.SHA = groupMAC }},
	{id: "ndp-no-override", ipv6: true, change: func(f *netlab.Forged) { f.NoOverride = true }, incomplete: true},
}

// spoofing makes the test expect a workload that answers for another one.
func spoofing(t *testing.T) {
	test, _, _ := strings.Cut(t.Name(), "/")
	spoofers.Store(test, true)
}

// attackLab creates a bridge with the victim, the attacker and the host that resolves
// the victim's address.
func attackLab(t *testing.T, wire string) *lab {
	t.Helper()
	l := newLab(t, "--wire", wire)
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
	for pod, mac := range map[string]net.HardwareAddr{"victim": victimMAC, "attacker": attackerMAC, "asker": askerMAC} {
		l.pod(pod)
		host := mac[5]
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod), fmt.Sprintf("ip -n %s link set lo up", pod),
			fmt.Sprintf("ip -n %s link set eth0 address %s", pod, mac))
		l.assign(pod, fmt.Sprintf("10.244.0.%d/24", host), fmt.Sprintf("fd00:10:244::%x/64", host))
		l.sysctl(pod, "net/ipv4/neigh/eth0/locktime=0", "net/ipv6/neigh/eth0/locktime=0")
	}
	for i, a := range spoofs {
		if a.ipv6 {
			l.assign("victim", fmt.Sprintf("fd00:10:244::%x/64", 32+i))
		} else {
			l.assign("victim", fmt.Sprintf("10.244.0.%d/24", 32+i))
		}
	}
	l.bridged(3)
	return l
}

func TestAttacksOnTheNeighboursOfAPod(t *testing.T) {
	t.Parallel()
	spoofing(t)
	for _, wire := range []string{"tcx", "clsact"} {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			l := attackLab(t, wire)
			for i, a := range spoofs {
				addr, asker := netip.AddrFrom4([4]byte{10, 244, 0, byte(32 + i)}), netip.AddrFrom4([4]byte{10, 244, 0, 9})
				if a.ipv6 {
					addr, asker = netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", 32+i)), netip.MustParseAddr("fd00:10:244::9")
				}
				forged := netlab.Forged{To: askerMAC, Source: attackerMAC, SHA: attackerMAC, Addr: addr, Asker: asker}
				if a.change != nil {
					a.change(&forged)
				}
				effect := "the neighbour's entry for the victim gets the MAC that the attacker chose"
				if a.incomplete {
					// Port isolation keeps the victim from answering in time.
					l.sh("ip link set vvictim type bridge_slave isolated on", "ip link set vasker type bridge_slave isolated on")
					effect = "the neighbour asks, and accepts the first answer"
				}
				switch {
				case a.loopback:
					l.sh(fmt.Sprintf("ip -n attacker addr add %s/32 dev lo", addr))
					l.resolve("asker", "eth0", addr.String())
				case a.incomplete:
					l.resolve("asker", "eth0", addr.String())
				default:
					l.resolve("asker", "eth0", addr.String())
					l.knows("asker", addr.String(), victimMAC.String())
				}
				l.knowsAfter(func() {
					if !a.loopback { // repeatedly, because a late answer of the victim may undo it
						l.in("attacker", func() error { return netlab.Send("eth0", forged.Frame()) })
					}
				}, "asker", addr.String(), forged.SHA.String())
				if a.incomplete {
					l.sh("ip link set vvictim type bridge_slave isolated off", "ip link set vasker type bridge_slave isolated off")
				}
				l.attacked(a.id, "address-spoofed", addr.String(), effect)
			}
			l.wantOnlyPlanted()

			// The bridge now forwards frames for the victim to the attacker.
			l.sh("ip -n asker neigh flush all")
			l.arp("attacker", 1, victimMAC.String(), "10.244.0.7", "10.244.0.7")
			wait.Until(t, "the bridge to take the attacker's port for the victim's", func() bool {
				out, err := l.Run("bridge fdb show br cni0")
				return err == nil && strings.Contains(out, victimMAC.String()+" dev vattacker")
			})
			l.attacked("arp-victim-mac", "mac-cloned", "10.244.0.7", "the bridge sends the victim's frames to the attacker's port")
			for _, o := range l.awaitOwners("10.244.0.7", 1) {
				for _, e := range o.GetEvidence() {
					if strings.HasSuffix(e.GetWitness(), "/vattacker") {
						t.Errorf("evidence of the victim: got %v, want none from the attacker's port", e)
					}
				}
			}
			if problems := l.node().GetProblems(); len(problems) != 0 {
				t.Errorf("problems of the node: got %q, want none", problems)
			}
		})
	}
}

// Frames that the observer does not parse to the end are reported: an attack could hide
// in them.
func TestAttackByUnparsedFramesIsAProblem(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod("victim", "10.244.0.7/24")
	l.pod("attacker")
	l.sh("ip link set vattacker mtu 9000", "ip -n attacker link set eth0 mtu 9000")
	l.ports(2)
	var want []string
	for _, of := range []struct {
		series, problem string
		change          func(f *netlab.Forged)
	}{
		{`{protocol="arp",result="unparsed_tags"}`, "1 with too many VLAN tags", func(f *netlab.Forged) { f.VLANs = []uint16{1, 2, 3} }},
		{`{protocol="ndp",result="unparsed_extensions"}`, "1 with too many IPv6 extension headers", func(f *netlab.Forged) {
			f.Addr, f.Asker, f.Extensions = netip.MustParseAddr("fd00::7"), netip.MustParseAddr("fd00::9"), 300
		}},
		{`{protocol="ndp",result="unparsed_options"}`, "1 with too many NDP options", func(f *netlab.Forged) {
			f.Addr, f.Asker, f.Options = netip.MustParseAddr("fd00::7"), netip.MustParseAddr("fd00::9"), 300
		}},
	} {
		f := netlab.Forged{To: askerMAC, Source: attackerMAC, SHA: attackerMAC, Addr: netip.MustParseAddr("10.244.0.7"), Asker: netip.MustParseAddr("10.244.0.9")}
		of.change(&f)
		l.in("attacker", func() error { return netlab.Send("eth0", f.Frame()) })
		wait.Until(t, of.series, func() bool { return l.metric("ipwitness_agent_frames_total"+of.series) == 1 })
		want = append(want, of.problem)
	}
	wait.Until(t, fmt.Sprintf("a problem of the node: %q", want), func() bool {
		return slices.ContainsFunc(l.node().GetProblems(), func(p string) bool {
			return !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(p, w) })
		})
	})
	wantAttack(t, "unread-tags", "a receiver with an interface for all three VLANs accepts it",
		"a problem of the node, which names no sender: "+l.node().GetProblems()[0])
}

// An attacker in a pod can make the pod's kernel answer for others, too. Such answers
// are legitimate only if the operator declares the pod a router, or if the node's own
// routes lead to it.
func TestPodThatAnswersForOthersSpoofsUnlessTheNodeRoutesToIt(t *testing.T) {
	t.Parallel()
	spoofing(t)
	l := newLab(t, "--router", "02:00:00:00:00:07=a MAC that the proxy does not have", "--router", "default/proxy=a pod of that name, which it is not")
	l.sh("ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.244.0.1/24 dev cni0", "ip addr add fd00:10:244::1/64 dev cni0 nodad")
	for i, pod := range []string{"holder", "proxy", "asker"} {
		l.pod(pod, fmt.Sprintf("10.244.0.%d/24", 7+i), fmt.Sprintf("fd00:10:244::%d/64", 7+i))
		l.sh(fmt.Sprintf("ip link set v%s master cni0", pod))
	}
	l.assign("holder", "10.244.0.17/24", "10.244.0.18/24", "fd00:10:244::17/64")
	l.sh("ip -n proxy link add in0 type veth peer name in1", "ip -n proxy link set in0 up", "ip -n proxy link set in1 up",
		"ip -n proxy neigh add proxy fd00:10:244::7 dev eth0", "ip -n proxy neigh add proxy fd00:10:244::17 dev eth0",
		"ip route add 10.244.0.17/32 via 10.244.0.8 dev cni0", "ip route add fd00:10:244::17/128 via fd00:10:244::8 dev cni0",
		// By this route, the node does not send the address to the proxy.
		"ip route add 10.244.0.18/32 via 10.244.0.9 dev cni0")
	for _, addr := range []string{"10.244.0.7", "10.244.0.17", "10.244.0.18"} {
		l.sh("ip -n proxy route add " + addr + "/32 dev in0")
	}
	l.sysctl("proxy", "net/ipv4/ip_forward=1", "net/ipv4/conf/eth0/proxy_arp=1", "net/ipv4/neigh/eth0/proxy_delay=0",
		"net/ipv6/conf/all/forwarding=1", "net/ipv6/conf/eth0/proxy_ndp=1", "net/ipv6/neigh/eth0/proxy_delay=0")
	l.bridged(3)
	for _, addr := range []string{"10.244.0.7", "10.244.0.17", "10.244.0.18", "fd00:10:244::7", "fd00:10:244::17"} {
		l.resolve("asker", "eth0", addr)
		l.evidence(addr, "proxy", "ANSWERED vproxy")
	}
	l.wantOnlyPlanted()
	for _, f := range l.awaitFindings("address-spoofed 10.244.0.7", "address-spoofed 10.244.0.18", "address-spoofed fd00:10:244::7") {
		wantWords(t, f.GetSummary(), "proxy", "holder", "vproxy")
	}
	for addr, rule := range map[string]string{"10.244.0.7": "address-spoofed", "10.244.0.17": "reachable-via"} {
		situations.WantApplied(t, l.explain(addr), rule)
	}

	// The conflict ends when the address is removed, because no host is deceived any more.
	l.sh("ip -n holder addr del 10.244.0.18/24 dev eth0")
	l.awaitFindings("address-spoofed 10.244.0.7", "address-spoofed fd00:10:244::7")
	// When the pod stops, the conflict ends with the pod's port.
	l.sh("ip link del vproxy")
	l.awaitFindings()
}

// attacked waits for the finding about an attack by the attacker on the victim, and
// checks the row of the attack in docs/attacks.md.
func (l *lab) attacked(id, kind, addr, effect string) {
	l.t.Helper()
	var f *ipwitnessv1.Finding
	wait.Until(l.t, fmt.Sprintf("finding %s of %s (%s)", kind, addr, id), func() bool {
		for _, f = range l.findings("?address=" + addr) {
			if f.GetKind() == kind {
				return true
			}
		}
		return false
	})
	if f.GetSeverity() != ipwitnessv1.Finding_CRITICAL || f.GetSummary() == "" || len(f.GetFixes()) != 1 || len(f.GetRemedy()) == 0 {
		l.t.Errorf("%s: got %v, want a critical finding with a summary and a remedy", id, f)
	}
	var names []string
	for _, o := range f.GetOwners() {
		names = append(names, o.GetWorkload().GetName())
	}
	if !slices.Equal(names, []string{"attacker", "victim"}) {
		l.t.Errorf("%s: got owners %q, want the attacker and the victim", id, names)
	}
	if c := l.watch.find(addr); len(c) != 0 {
		l.t.Errorf("%s: got conflicts %v, want none: the attacker does not have the address", id, c)
	}
	wantAttack(l.t, id, effect, fmt.Sprintf("finding `%s`: %s", kind, f.GetSummary()))
}

// wantAttack checks a row of docs/attacks.md.
func wantAttack(t *testing.T, id, effect, seen string) {
	t.Helper()
	situations.CheckAttack(t, "testdata/attacks", id, situations.Attack{Effect: effect, Seen: seen})
}

// masked replaces the parts of a text that differ between runs.
func masked(text string, differs ...string) string {
	for _, d := range differs {
		text = regexp.MustCompile(d).ReplaceAllStringFunc(text, func(s string) string {
			return numbersOrTime.ReplaceAllString(s, "…")
		})
	}
	return text
}

var numbersOrTime = regexp.MustCompile(`\d+(([-:.TZ ]+\d+)+Z?)?`)

// A copied container keeps the MAC of its original. A container behind another bridge may have the same MAC.
func TestOneMACAtTwoPorts(t *testing.T) {
	t.Parallel()
	spoofers.Store(t.Name(), true)
	l := newLab(t)
	l.sh("ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.9.0.1/24 dev br0", "ip link add br1 type bridge", "ip link set br1 up")
	for name, bridge := range map[string]string{"web": "br0", "copy": "br0", "far": "br1"} {
		l.pod(name)
		l.sh(fmt.Sprintf("ip -n %s link set eth0 address 00:16:3e:aa:bb:01", name), fmt.Sprintf("ip link set v%s master %s", name, bridge))
	}
	l.assign("web", "10.9.0.11/24")
	l.assign("far", "10.8.0.11/24")
	l.awaitOwners("10.8.0.11", 1)
	l.assign("copy", "10.9.0.12/24")
	f := l.awaitFindings("mac-cloned")[0]
	if got := f.GetAddresses(); !slices.Equal(got, []string{"10.9.0.11", "10.9.0.12"}) || !strings.Contains(f.GetSummary(), "00:16:3e:aa:bb:01") {
		t.Errorf("got %v, want the addresses of the original and its copy, and their MAC", f)
	}
	l.sh("ip -n copy link set eth0 address 00:16:3e:aa:bb:02")
	l.awaitFindings()
}
