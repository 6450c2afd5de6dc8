package verdict_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const (
	calicoMAC = "\xee\xee\xee\xee\xee\xee"
	group     = "\x01\x00\x5e\x00\x00\x01"
)

// spoofWorld is a world with a pod that has 10.0.0.5 on a bridge, and a second pod through whose
// port a claim to that address enters.
type spoofWorld struct {
	*world
	bridge              *verdict.Link
	owner, inside, port *verdict.Interface // port is the second pod's port, inside is its eth0
	own, claim          *verdict.Claim
	victim, other       *verdict.Namespace
}

func newSpoofing(mac string) *spoofWorld {
	s := &spoofWorld{world: newWorld("10.0.0.5")}
	s.bridge = s.Link("n1", "cni0", verdict.Bridge, false)
	s.victim, s.other = s.Namespace("n1", 2, "102", verdicttest.Pod("a")), s.Namespace("n1", 3, "103", verdicttest.Pod("evil"))
	s.owner, _ = s.Veth(s.victim, "baaaaa", s.bridge)
	s.inside, s.port = s.Veth(s.other, "bbbbbb", s.bridge)
	s.own, s.claim = s.Assigned(s.owner), s.Wire(s.port, mac)
	s.claim.Kind = verdict.Answered
	return s
}

// nest makes an agent report from inside the second pod.
func (s *spoofWorld) nest() {
	n := s.Node("n2")
	n.Boot, n.Netns = s.Node("n1").Boot, s.other.Netns
	s.Host("n2")
}

func TestAClaimByThePortOfAnotherIsASpoof(t *testing.T) {
	for name, test := range map[string]struct {
		mac    string
		change func(s *spoofWorld)
		spoof  bool
	}{
		"a unicast reply with its own MAC":      {mac: "bbbbbb", spoof: true},
		"with a MAC that it makes up":           {mac: "dddddd", change: func(s *spoofWorld) { s.claim.NoOverride = true }, spoof: true},
		"without the Override flag":             {mac: "bbbbbb", change: func(s *spoofWorld) { s.claim.NoOverride = true }, spoof: true},
		"in a frame from another MAC":           {mac: "dddddd", change: func(s *spoofWorld) { s.claim.Source = "bbbbbb" }, spoof: true},
		"announced in a frame from another MAC": {mac: "dddddd", change: func(s *spoofWorld) { s.claim.Kind, s.claim.Source = verdict.Announced, "bbbbbb" }, spoof: true},
		"with a MAC that no host can have":      {mac: group, change: func(s *spoofWorld) { s.claim.Kind = verdict.Announced }, spoof: true},
		"with the MAC that Calico answers with": {mac: calicoMAC, spoof: true},
		"with that of the node's own end": {mac: calicoMAC, change: func(s *spoofWorld) {
			s.Interface(s.Host("n1"), verdict.Interface{MAC: calicoMAC, Attachment: verdict.Own})
		}, spoof: true},
		"it has the address on its loopback": {mac: "bbbbbb", change: func(s *spoofWorld) {
			s.Assigned(s.Interface(s.other, verdict.Interface{Name: "lo", Attachment: verdict.Local}))
		}, spoof: true},
		"the owner is on another node of this LAN": {mac: "bbbbbb", change: func(s *spoofWorld) {
			s.bridge.Domain = &verdict.Domain{Node: s.Node("n1"), Name: "cni0"}
			s.victim = s.Namespace("n2", 2, "202", verdicttest.Pod("a"))
			lan := s.Link("n2", "eth0", verdict.Uplink, false)
			lan.Domain = s.bridge.Domain
			s.own.Interface = s.Interface(s.victim, verdict.Interface{MAC: "fmacvl", Attachment: verdict.Lower, Link: lan})
		}, spoof: true},
		"a MAC is declared that another one has": {mac: "dddddd", change: func(s *spoofWorld) {
			s.Policy.Routers = []verdict.Router{{MAC: "dddddd", Reason: "x"}}
			s.claim.Source = "bbbbbb"
		}, spoof: true},
		"another router is declared":          {mac: "bbbbbb", change: func(s *spoofWorld) { s.Policy.Routers = []verdict.Router{{Who: "default/e", Reason: "x"}} }, spoof: true},
		"it announces: that makes it a rival": {mac: "bbbbbb", change: func(s *spoofWorld) { s.claim.Kind = verdict.Announced }},
		"it has the address itself":           {mac: "bbbbbb", change: func(s *spoofWorld) { s.Assigned(s.inside) }},
		"it names the MAC of the owner":       {mac: "baaaaa", change: func(s *spoofWorld) { s.claim.Source = "bbbbbb" }},
		"it names the MAC of the node that hosts the owner": {mac: "dnodes", change: func(s *spoofWorld) {
			s.Interface(s.Host("n1"), verdict.Interface{MAC: "dnodes", Attachment: verdict.Own})
		}},
		"the node routes to it": {mac: "bbbbbb", change: func(s *spoofWorld) { s.claim.Routed = true }},
		"it is declared":        {mac: "bbbbbb", change: func(s *spoofWorld) { s.Policy.Routers = []verdict.Router{{Who: "default/e*", Reason: "x"}} }},
		"its MAC is declared":   {mac: "bbbbbb", change: func(s *spoofWorld) { s.Policy.Routers = []verdict.Router{{MAC: "bbbbbb", Reason: "x"}} }},
		"the address is declared as shared": {mac: "bbbbbb", change: func(s *spoofWorld) {
			s.Policy.Shared = []verdict.Shared{{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Reason: "x"}}
		}},
		"it enters by an uplink":                    {mac: "bbbbbb", change: func(s *spoofWorld) { s.port.Uplink = true }},
		"it is a node of its own":                   {mac: "bbbbbb", change: func(s *spoofWorld) { s.nest() }},
		"it is on another link":                     {mac: "bbbbbb", change: func(s *spoofWorld) { s.claim.Link = s.Link("n1", "cni1", verdict.Bridge, false) }},
		"the holder is another sandbox of this pod": {mac: "bbbbbb", change: func(s *spoofWorld) { s.other.Who = verdicttest.Pod("a").Who() }},
		"no kernel has the address":                 {mac: "bbbbbb", change: func(s *spoofWorld) { s.own.Kind = verdict.Believed }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpoofing(test.mac)
			if test.change != nil {
				test.change(s)
			}
			out := s.judge()
			if got := len(out.Spoofs) == 1; got != test.spoof || len(out.Spoofs) > 1 {
				t.Fatalf("got %+v of %+v, want one: %t", out.Spoofs, out.Owners, test.spoof)
			}
			if !test.spoof {
				return
			}
			sp := out.Spoofs[0]
			if sp.Sender != s.other || sp.Port != s.port || len(sp.Victims) != 1 || sp.Victims[0].Namespace != s.victim || sp.MACs[0] != verdict.MAC(test.mac) {
				t.Errorf("got %+v, want evil's for a's address", sp)
			}
			s.wantAudited(t, out)
		})
	}
}

// wantAudited checks that the finding exists after the settle time, always with the same ID.
func (s *spoofWorld) wantAudited(t *testing.T, out verdict.Judgement) {
	t.Helper()
	in := s.Case()
	first := audit.Address(&s.Policy, in, &out)
	if len(first.Findings) != 1 || !first.Findings[0].Waiting || first.Again == 0 {
		t.Fatalf("got %+v at once, want a waiting finding", first.Findings)
	}
	in.Before, in.Now = first.Findings, first.Again
	out.Conflicts = append(out.Conflicts, verdict.Conflict{Course: verdict.Course{Phase: verdict.Confirmed}}) // a conflict does not hide the finding
	after := audit.Address(&s.Policy, in, &out)
	if len(after.Findings) != 1 || after.Findings[0].Waiting || after.Findings[0].ID != first.Findings[0].ID ||
		after.Findings[0].Kind != verdict.FindingAddressSpoofed || after.Findings[0].Severity != verdict.Critical {
		t.Fatalf("got %+v after the settle time, want it", after.Findings)
	}
}

func TestAMACByThePortOfAnotherIsCloned(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *spoofWorld)
		clone  bool
	}{
		"a gratuitous ARP with the holder's MAC": {change: func(s *spoofWorld) { s.claim.Kind = verdict.Announced }, clone: true},
		"an answer with the holder's MAC":        {clone: true},
		"a frame of it that claims its own":      {change: func(s *spoofWorld) { s.claim.MAC, s.claim.Source = "bbbbbb", "baaaaa" }, clone: true},
		"the node's own MAC": {change: func(s *spoofWorld) {
			s.Interface(s.Host("n1"), verdict.Interface{Name: "cni0", MAC: "dnodes", Attachment: verdict.Own, Link: s.bridge})
			s.claim.MAC = "dnodes"
		}, clone: true},
		"a MAC made by docker":                    {change: func(s *spoofWorld) { s.owner.MAC, s.claim.MAC = "\x02\x42\x0a\x00\x00\x05", "\x02\x42\x0a\x00\x00\x05" }, clone: true},
		"a virtual router's":                      {change: func(s *spoofWorld) { s.owner.MAC, s.claim.MAC = "\x00\x00\x5e\x00\x01\x07", "\x00\x00\x5e\x00\x01\x07" }},
		"it has that MAC, too":                    {change: func(s *spoofWorld) { s.inside.MAC = "baaaaa" }},
		"the holder is on another link":           {change: func(s *spoofWorld) { s.owner.Link = s.Link("n1", "cni1", verdict.Bridge, false) }},
		"it enters by an uplink":                  {change: func(s *spoofWorld) { s.port.Uplink = true }},
		"it is a node of its own":                 {change: func(s *spoofWorld) { s.nest() }},
		"they are two sandboxes of one pod":       {change: func(s *spoofWorld) { s.other.Who = verdicttest.Pod("a").Who() }},
		"an unknown MAC of a guest":               {change: func(s *spoofWorld) { s.claim.MAC = "fguest" }},
		"its own end of the pair has it, as here": {change: func(s *spoofWorld) { s.port.MAC, s.claim.MAC = "dhport", "dhport"; s.claim.Kind = verdict.Used }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpoofing("baaaaa")
			if test.change != nil {
				test.change(s)
			}
			if out := s.judge(); len(out.Clones) != 0 || test.clone && out.Again == 0 {
				t.Fatalf("got %+v at once and %d as the next time, want it only after the settle time", out.Clones, out.Again)
			}
			s.after(2 * time.Second).Read(s.own)
			out := s.judge()
			if got := len(out.Clones) == 1; got != test.clone || len(out.Clones) > 1 {
				t.Fatalf("got %+v, want one: %t", out.Clones, test.clone)
			}
			if !test.clone {
				return
			}
			for i := range out.Owners {
				if o := &out.Owners[i]; o.Namespace == s.victim && len(o.Claims) != 1 {
					t.Errorf("got %d claims of the victim, want its own only", len(o.Claims))
				}
			}
			f := audit.Clone(&s.Policy, &out.Clones[0])
			if f.Kind != verdict.FindingMACCloned || len(f.Owners) != 2 || f.Owners[0].Namespace != s.other || f.Owners[1].MAC != f.Spoof.MACs[0] {
				t.Errorf("got %+v, want the sender and the victim", f)
			}
			s.after(time.Second)
			if again := audit.Clone(&s.Policy, &s.judge().Clones[0]); again.ID != f.ID {
				t.Errorf("got id %s and then %s, want one", f.ID, again.ID)
			}
		})
	}
}
