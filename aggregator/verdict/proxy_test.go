package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// antrea is the hardware address with which Antrea answers for others.
const antrea = "\xaa\xbb\xcc\xdd\xee\xff"

func TestAProxyIsNoRival(t *testing.T) {
	for name, test := range map[string]struct {
		kind       verdict.Evidence
		mac        string
		uplink     bool // whether the frame enters through the uplink or a pod's port
		noOverride bool
		answers    int // number of addresses for which it answers
		owned      int // number of owners of these addresses
		announced  bool
		rivals     bool
	}{
		"a pod only answers":                                {kind: verdict.Answered, mac: "proxyp"},
		"a pod announces":                                   {kind: verdict.Announced, mac: "proxyp", rivals: true},
		"a pod uses it":                                     {kind: verdict.Used, mac: "proxyp", rivals: true},
		"a pod answers that may be overridden":              {kind: verdict.Answered, mac: "proxyp", noOverride: true},
		"a guest behind a pod answers":                      {kind: verdict.Answered, mac: "huestg", rivals: true},
		"a guest's answer may be overridden":                {kind: verdict.Answered, mac: "huestg", noOverride: true},
		"an external device answers":                        {kind: verdict.Answered, mac: "ttrang", uplink: true, answers: 1, rivals: true},
		"an external device answers for some":               {kind: verdict.Answered, mac: "ttrang", uplink: true, answers: verdict.ManyAnswers - 1, rivals: true},
		"an external device answers for two owners":         {kind: verdict.Answered, mac: "ttrang", uplink: true, answers: 2, owned: 2},
		"a sender that answers for two announced this one":  {kind: verdict.Answered, mac: "ttrang", uplink: true, answers: 2, owned: 2, announced: true, rivals: true},
		"a responder answers behind a pod":                  {kind: verdict.Answered, mac: antrea},
		"an external device answers for many":               {kind: verdict.Answered, mac: "ttrang", uplink: true, answers: verdict.ManyAnswers},
		"a sender that answers for many announces this one": {kind: verdict.Announced, mac: "ttrang", uplink: true, answers: verdict.ManyAnswers, rivals: true},
		"a sender that answers for many uses this one":      {kind: verdict.Used, mac: "ttrang", uplink: true, answers: verdict.ManyAnswers, rivals: true},
		"an external device's answer may be overridden":     {kind: verdict.Answered, mac: "ttrang", uplink: true, noOverride: true},
		"its announcement may be overridden":                {kind: verdict.Announced, mac: "ttrang", uplink: true, noOverride: true},
		"a network plugin's responder answers":              {kind: verdict.Answered, mac: antrea, uplink: true, answers: 1},
		"a namespace has the address of a responder":        {kind: verdict.Announced, mac: antrea, uplink: true, rivals: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("fd00::5")
			w.Answers = map[verdict.MAC][2]int{verdict.MAC(test.mac): {test.answers, test.owned}}
			l := w.Link("n1", "cni0", verdict.Bridge, false)
			owner, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
			_, port := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("proxy")), "proxyp", l)
			if test.uplink {
				port = w.Interface(w.Host("n1"), verdict.Interface{MAC: "hosthh", Attachment: verdict.Own, Link: l, Uplink: true})
			}
			if test.announced {
				w.Wire(port, test.mac)
				w.after(-w.Policy.StaleAfter)
			}
			own, other := w.Assigned(owner), w.Wire(port, test.mac)
			other.Kind, other.NoOverride = test.kind, test.noOverride
			if !test.uplink { // not trusted on a pod's port, because an attacker in the pod can send the same frame
				w.Policy.Routers = []verdict.Router{{Who: "default/prox*", Reason: "it routes"}}
			}
			if test.rivals {
				w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/cni0")
				return
			}
			for range 3 {
				out := w.wantNone(t)
				if len(out.Owners) != 2 || !out.Owners[0].ExcludedBy(verdict.RuleReachableVia) && !out.Owners[1].ExcludedBy(verdict.RuleReachableVia) {
					t.Fatalf("got owners %+v, want the proxy as excluded", out.Owners)
				}
				w.after(2 * time.Second).Read(own)
				w.Seen(other)
			}
			w.wantRule(t, verdict.RuleReachableVia)
		})
	}
}

func TestHolderWhoseAnswersMayBeOverriddenIsAnOwner(t *testing.T) {
	w := newWorld("fd00::5")
	l := w.Link("n1", "cni0", verdict.Bridge, false)
	one, port := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
	two, _ := w.Veth(w.Namespace("n1", 3, "103", verdicttest.Pod("b")), "bbbbbb", l)
	w.Assigned(one)
	c := w.Wire(port, "baaaaa")
	c.Kind, c.NoOverride = verdict.Answered, true // the address is still optimistic (RFC 4429)
	w.Assigned(two)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0")
}

func TestVirtualMachineOnABridgeOfTheNodeIsComparedOnTheNode(t *testing.T) {
	w := newWorld("10.244.0.5")
	inside, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
	w.Assigned(inside)
	virbr0 := w.Link("n1", "virbr0", verdict.Bridge, true)
	tap := w.Interface(w.Host("n1"), verdict.Interface{Name: "vnet0", Tap: true, MAC: "taptap", Attachment: verdict.Own, Link: virbr0})
	w.Wire(tap, "vmvmvm")
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.NodeScope, "n1")

	// The same answer through an uplink in the bridge is from a device on that link only.
	w = newWorld("10.244.0.5")
	inside, _ = w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", w.Link("n1", "v1", verdict.PointToPoint, false))
	w.Assigned(inside)
	virbr0 = w.Link("n1", "virbr0", verdict.Bridge, true)
	w.Wire(w.Interface(w.Host("n1"), verdict.Interface{MAC: "vplink", Attachment: verdict.Own, Link: virbr0, Uplink: true}), "vmvmvm")
	// A veth pair inside of the host shows the frame once more.
	w.Wire(w.Interface(w.Host("n1"), verdict.Interface{Name: "p1", MAC: "patchp", Attachment: verdict.Own, Link: virbr0}), "vmvmvm")
	w.wantNone(t)
	w.wantRule(t, verdict.RuleDifferentLinks)
}

// A gVisor sandbox has a network stack of its own that no kernel knows. It answers for its address
// with the hardware address of its interface.
func TestASandboxThatAnswersForItsAddressIsNoProxy(t *testing.T) {
	for intended, rivals := range map[string]bool{"10.0.0.5 cri eth0": true, "10.0.0.6 cri eth0": false} {
		w := newWorld("10.0.0.5")
		l := w.Link("n1", "cni0", verdict.Bridge, false)
		owner, _ := w.Veth(w.Namespace("n1", 2, "102", verdicttest.Pod("a")), "baaaaa", l)
		ns := w.Namespace("n1", 3, "103", verdicttest.Pod("sandboxed"))
		ns.Intended = intended
		_, port := w.Veth(ns, "tandbo", l)
		w.Assigned(owner)
		w.Wire(port, "tandbo").Kind = verdict.Answered
		if rivals {
			w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/cni0")
		} else {
			w.wantNone(t)
		}
	}
}

// A program on n2 answers for the address of n1 and does not announce it again. Its kernel does not have the address.
func TestASpeakerThatHasAnnouncedGoesOnToAnswer(t *testing.T) {
	for _, test := range []struct {
		name      string
		announced bool
		answers   bool // the kernel of the speaker's node answers as a proxy
		rivals    bool
	}{
		{"it announced the address", true, false, true},
		{"it only answers", false, false, false},
		{"its kernel answers, also to announcements", true, true, false},
	} {
		w := newWorld("192.0.2.50")
		lan := verdicttest.OnLAN(w.World, "n1", "n2")
		w.Assigned(lan[0])
		if test.announced {
			w.Wire(lan[0], string(lan[1].MAC))
		}
		if test.answers {
			w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: lan[1], Answer: verdict.KernelAnswer{By: verdict.ByProxyARP}})
		}
		answer := w.Wire(lan[0], string(lan[1].MAC))
		answer.Kind = verdict.Answered
		w.after(w.Policy.StaleAfter)
		w.Seen(answer)
		if test.rivals {
			w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
		} else if w.wantNone(t); t.Failed() {
			t.Error(test.name)
		}
	}
}

// Routers answer for the first address of each prefix that is neither a /127 nor a /128, also for hosts that try to use it.
func TestAHostUsesTheAnycastAddressOfItsRouters(t *testing.T) {
	refused := func(bits uint8, by ...int) func(w *world, lan []*verdict.Interface) {
		return func(w *world, lan []*verdict.Interface) {
			for _, i := range by {
				c := w.Assigned(lan[i])
				c.Kind, c.PrefixLength, c.Flags = verdict.DADFailed, bits, verdict.FlagDADFailed|verdict.FlagPermanent
			}
		}
	}
	for _, test := range []struct {
		name, addr string
		build      func(w *world, lan []*verdict.Interface)
		prefix     string
		owners     int
	}{
		{"/64", "2001:db8:1::", refused(64, 2), "2001:db8:1::/64", 1},
		{"/126", "2001:db8:1::4", refused(126, 2), "2001:db8:1::4/126", 1},
		{"link-local", "fe80::", refused(64, 2), "fe80::/64", 1},
		{"/127", "2001:db8:1::", refused(127, 2), "", 1},
		{"/128", "2001:db8:1::", refused(128, 2), "", 1},
		{"/128 beside an address with the prefix of the link", "2001:db8:1::", func(w *world, lan []*verdict.Interface) {
			refused(128, 2)(w, lan)
			w.Subnet(lan[2], "2001:db8:1::3/64")
		}, "2001:db8:1::/64", 1},
		{"/128 beside a subnet of another card", "2001:db8:1::", func(w *world, lan []*verdict.Interface) {
			refused(128, 2)(w, lan)
			w.Subnet(w.Device("n3", "br0", "bridge"), "2001:db8:1::3/64")
		}, "", 1},
		{"an ordinary address", "2001:db8:1::5", refused(64, 2), "", 1},
		{"a host has it", "2001:db8:1::", func(w *world, lan []*verdict.Interface) {
			refused(64, 2)(w, lan)
			w.Assigned(lan[0]).PrefixLength = 64
		}, "", 2},
		{"two hosts try it", "2001:db8:1::", refused(64, 1, 2), "2001:db8:1::/64", 2},
	} {
		w := newWorld(test.addr)
		lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
		test.build(w, lan)
		lan[0].MAC = "\x02\x00\x00\x00\x00\x01"
		router := w.Wire(lan[2], string(lan[0].MAC))
		router.NoOverride = true
		out := w.checked(t)
		if len(out.Conflicts) != 1 || len(out.Conflicts[0].Owners) != test.owners {
			t.Errorf("%s: got %+v, want one conflict of %d owners", test.name, out.Conflicts, test.owners)
			continue
		}
		c, prefix := out.Conflicts[0], ""
		if c.Headline != nil && c.Headline.Kind == verdict.HeadAnycast {
			prefix = c.Headline.Text
		}
		if prefix != test.prefix || c.Rule != verdict.RuleDADFailed || c.Cause != verdict.CauseUnknown {
			t.Errorf("%s: got rule %s, cause %s, prefix %q, want %q", test.name, c.Rule, c.Cause, prefix, test.prefix)
		}
		for _, o := range c.Bystanders {
			if o.Kind() != verdict.Host || o.Node.Name != "n1" {
				t.Errorf("%s: got %+v, want node n1 to be named", test.name, o)
			}
		}
	}
}
