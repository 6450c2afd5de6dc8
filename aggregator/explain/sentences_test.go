package explain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// assignedInNamespaces has the address in namespaces of one name on two nodes.
func assignedInNamespaces(w *verdicttest.World, name, program string) {
	for _, u := range verdicttest.OnLAN(w, "n1", "n2") {
		n := u.Link.Node.Name
		ns := w.Namespace(n, 5, "105", verdict.Workload{Kind: verdict.Unknown, Name: name, Source: "netns", PID: 1, VIPProgram: program})
		w.Assigned(w.Interface(ns, verdict.Interface{Name: "tap-1", MAC: verdict.MAC("dhcp" + n), Attachment: verdict.Lower, Link: u.Link, HostInterface: "eth0"}))
	}
}

// answeringInNamespaces has namespaces of one name on two nodes that claim the address by turns, without having it.
func answeringInNamespaces(w *verdicttest.World) {
	var claims []*verdict.Claim
	for _, u := range verdicttest.OnLAN(w, "n1", "n2") {
		n := u.Link.Node.Name
		ns := w.Namespace(n, 5, "105", verdict.Workload{Kind: verdict.Unknown, Name: "fip-N", Source: "netns", PID: 1})
		_, port := w.Veth(ns, "fgns"+n, u.Link)
		claims = append(claims, w.Wire(port, "fgns"+n))
		w.After(time.Second)
	}
	w.Seen(claims[0])
}

// No sentence says more than is known, and none gives advice that cannot be followed.
func TestSentences(t *testing.T) {
	for _, test := range []struct {
		name, addr  string
		build       func(w *verdicttest.World)
		want, never []string // parts that the text must have, and must not have
	}{
		{"a DHCP server of OpenStack", "192.168.1.200", func(w *verdicttest.World) { assignedInNamespaces(w, "qdhcp-1", "") }, []string{"agent list --network ID"}, []string{"--router"}},
		{"a router of OpenStack", "192.168.1.200", func(w *verdicttest.World) { assignedInNamespaces(w, "qrouter-1", "") }, []string{"agent list --router ID"}, []string{"--network"}},
		{"routers with one name", "192.168.1.200", func(w *verdicttest.World) { assignedInNamespaces(w, "qrouter-1", "keepalived") }, []string{
			"Network namespace qrouter-1 on n1 and network namespace qrouter-1 on n2 are on one link",
		}, nil},
		{"namespaces that answer by a proxy", "203.0.113.50", answeringInNamespaces, []string{"by 2 owners", "proxy_arp", "ip -n fip-N route get 203.0.113.50"}, []string{"devices"}},
		{"devices that take turns", "192.168.1.20", func(w *verdicttest.World) {
			eth0 := w.Uplink("n1")
			a := w.Wire(eth0, "\x02\x00\x00\x00\x00\x98")
			w.After(time.Second)
			w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
			w.After(time.Second)
			w.Seen(a)
		}, []string{"by 2 devices"}, []string{"proxy_arp"}},
		{"a peer outside", "192.168.1.200", func(w *verdicttest.World) {
			eth0 := w.Uplink("n1")
			w.Node("n1").VIPProgram = "keepalived"
			w.Virtual(eth0)
			w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
		}, []string{"Find the device with MAC 02:00:00:00:00:99, which is seen on n1/eth0, and remove the address from it."}, nil},
		{"a machine outside", "192.168.1.200", func(w *verdicttest.World) {
			eth0 := w.Uplink("n1")
			w.Assigned(eth0)
			w.Wire(eth0, "\x02\x00\x00\x00\x00\x99")
		}, []string{"which is seen on n1/eth0, and give it a different address"}, []string{"remove the address from it"}},
	} {
		situation := verdicttest.Situation{Name: test.name, Addr: test.addr, Build: test.build}
		w, c := situation.Judge()
		if c == nil {
			t.Errorf("%s: got no conflict, or several", test.name)
			continue
		}
		what := explain.Conflict(&w.Policy, c)
		text := what.Summary + "\n" + strings.Join(what.Because, "\n") + "\n" + strings.Join(remedyOf(w, c), "\n")
		for _, part := range test.want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: got\n%s\nwant %q in it", test.name, text, part)
			}
		}
		for _, part := range test.never {
			if strings.Contains(text, part) {
				t.Errorf("%s: got\n%s\nwant no %q in it", test.name, text, part)
			}
		}
	}
}

// An address without a conflict may have a finding.
func TestExplanationNamesFindings(t *testing.T) {
	const sentence = " But there is a finding about it (answered-by-another), which ipwitness audit 10.0.0.5 shows."
	found := verdict.Finding{Kind: verdict.FindingAnsweredByAnother, Severity: verdict.Critical}
	waiting, info := found, found
	waiting.Waiting, info.Severity = true, verdict.Info
	for name, test := range map[string]struct {
		found []verdict.Finding
		twice bool
		want  bool
	}{
		"a finding":                  {[]verdict.Finding{found, found}, false, true},
		"none":                       {nil, false, false},
		"one that may end by itself": {[]verdict.Finding{waiting}, false, false},
		"one without urgency":        {[]verdict.Finding{info}, false, false},
		"a conflict, too":            {[]verdict.Finding{found}, true, false},
	} {
		w := verdicttest.New("10.0.0.5")
		for _, i := range verdicttest.OnLAN(w, "n1", "n2") {
			w.Assigned(i)
			if !test.twice {
				break
			}
		}
		c := w.Case()
		c.Before = test.found
		e := w.Policy.Explain(c)
		if got := explain.Address(&w.Policy, &e).Summary; strings.HasSuffix(got, sentence) != test.want {
			t.Errorf("%s: got %q, want the finding named: %t", name, got, test.want)
		}
	}
}

// The only known owner of a refused address never used it, so nobody "held" it.
func TestResolvedRefusalOfOneOwner(t *testing.T) {
	w := verdicttest.New("fd00::5")
	refused := w.Claim(verdict.Claim{Kind: verdict.DADFailed, Flags: verdict.FlagDADFailed | verdict.FlagPermanent, Interface: w.Uplink("n1"), PrefixLength: 64})
	w.Judge()
	w.After(time.Minute).Drop(refused)
	out := w.Judge()
	if len(out.Ended) != 1 {
		t.Fatalf("got %+v, want one conflict that has ended", out)
	}
	c := w.Conflict(out.Ended[0].ID)
	const want = "Resolved: when fd00::5 was configured in node n1 itself, it was found in use by another host on n1. It is no longer configured there."
	if got := explain.Conflict(&w.Policy, c).Summary; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
