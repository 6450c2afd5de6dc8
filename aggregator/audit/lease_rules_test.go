package audit_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// lan returns a world with a DHCP server on eth0 of node n1, and its pool.
func lan() (*world, *verdict.Interface, *verdict.Pool) {
	w := newWorld("10.9.0.15")
	i := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", Attachment: verdict.Own, Uplink: true, Link: w.Link("n1", "eth0", verdict.Uplink, false), MAC: "node-1"})
	p := w.Pool(dhcp.DnsmasqName, "n1", "", "10.9.0.10-10.9.0.20")
	p.Name, p.Routed, p.Device = "p", false, "eth0"
	return w, i, p
}

// lease adds a lease for a hardware address of six bytes.
func (w *world) lease(p *verdict.Pool, mac string) *verdict.Allocation {
	al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC(mac).String()}}
	w.Allocations = append(w.Allocations, al)
	return al
}

const one, two = "\x02one_1", "\x02two_2"

func TestMachinesOnTheWireAreComparedWithLeases(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, i *verdict.Interface, p *verdict.Pool)
		want  []string
	}{
		{"no lease", func(w *world, i *verdict.Interface, _ *verdict.Pool) { w.Wire(i, one) }, []string{verdict.FindingInUseUnallocated + " p"}},
		{"its lease", func(w *world, i *verdict.Interface, p *verdict.Pool) { w.Wire(i, one); w.lease(p, one) }, nil},
		{"the lease of another machine", func(w *world, i *verdict.Interface, p *verdict.Pool) { w.Wire(i, one); w.lease(p, two) }, []string{verdict.FindingBookedElsewhere + " p"}},
		{"a reservation for nobody", func(w *world, i *verdict.Interface, p *verdict.Pool) { w.Wire(i, one); w.lease(p, "") }, nil},
		{"the server serves another link", func(w *world, i *verdict.Interface, p *verdict.Pool) { w.Wire(i, one); p.Device = "eth1" }, nil},
		{"it is not in the range", func(w *world, i *verdict.Interface, p *verdict.Pool) { w.Wire(i, one); p.Ranges = p.Ranges[:0] }, nil},
		{"the server is on another node", func(w *world, i *verdict.Interface, p *verdict.Pool) { w.Wire(i, one); p.Node = w.Node("n2") }, nil},
		{"a lease of nobody", func(w *world, _ *verdict.Interface, p *verdict.Pool) { w.lease(p, one) }, nil},
		{"the node itself has it", func(w *world, i *verdict.Interface, _ *verdict.Pool) { w.Assigned(i) }, []string{verdict.FindingInUseUnallocated + " p"}},
		{"the address is reserved twice", func(w *world, i *verdict.Interface, p *verdict.Pool) {
			w.Wire(i, one)
			w.lease(p, one)
			other := *p
			other.Name, other.Ranges = p.Name+"#2", nil
			w.Pools = append(w.Pools, &other)
			w.lease(&other, two)
		}, []string{verdict.FindingDoubleAllocated + " p"}},
	} {
		w, i, p := lan()
		test.build(w, i, p)
		before := w.auditAll()
		if got := reported(before.Findings); len(got) != 0 {
			t.Errorf("%s: got %q at once, want to wait", test.name, got)
		}
		w.after(11 * time.Second)
		for _, c := range w.Claims {
			w.Seen(c)
		}
		if got := reported(w.auditAll(before.Findings...).Findings); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A client declines an address, which its server then keeps back for a time.
func TestAnAddressThatAClientHasDeclinedStaysReported(t *testing.T) {
	w, i, p := lan()
	c := w.Wire(i, one)
	audited := func() []verdict.Finding {
		w.after(11 * time.Second).Seen(c)
		return w.auditAll(w.auditAll().Findings...).Findings
	}
	found := w.auditAll().Findings
	w.after(11 * time.Second).Seen(c)
	found = w.auditAll(found...).Findings
	if len(found) != 1 || found[0].Waiting || found[0].Severity != verdict.Critical {
		t.Fatalf("got %+v, want it critical", found)
	}
	kept := w.lease(p, "")
	kept.KeptUntil = w.Now.Add(time.Hour)
	next := w.auditAll(found...).Findings
	if len(next) != 1 || next[0].ID != found[0].ID || next[0].Waiting || next[0].Severity != verdict.Warning || len(next[0].Allocations) != 1 || next[0].Allocations[0] != kept {
		t.Errorf("declined: got %+v, want the same finding as a warning with the record", next)
	}
	w.lease(p, one)
	if got := audited(); len(got) != 0 {
		t.Errorf("it is reserved for the machine now: got %+v, want none", got)
	}
	w.Allocations = nil
	if again := w.auditAll(next...).Findings; len(again) != 1 || again[0].ID != found[0].ID || again[0].Waiting || again[0].Severity != verdict.Critical {
		t.Errorf("no longer kept back: got %+v, want the same finding, critical again", again)
	}
}

// A machine that has released its lease sends no frame that says so.
func TestMachineThatIsSilentIsNotReported(t *testing.T) {
	w, i, _ := lan()
	c := w.Wire(i, one)
	found := w.auditAll().Findings
	for range 3 {
		out := w.after(10 * time.Second).auditAll(found...)
		if found = out.Findings; len(reported(found)) != 0 || out.Again != w.Now.Add(10*time.Second) {
			t.Fatalf("got %+v, again %d, want to wait for a frame", found, out.Again)
		}
	}
	w.Seen(c)
	found = w.auditAll(found...).Findings
	if got := reported(found); len(got) != 1 {
		t.Errorf("got %q after a frame, want it reported", got)
	}
	if got := reported(w.after(time.Minute).auditAll(found...).Findings); len(got) != 1 {
		t.Errorf("got %q when it is silent again, want it to stay reported", got)
	}
}

// The lease of a machine ends, and the address is leased to another one.
func TestEndOfALeaseIsRemembered(t *testing.T) {
	w, i, p := lan()
	w.Wire(i, one)
	al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC(one).String()}}
	w.lease(p, two)
	in := w.Case()
	in.Vanished = []*verdict.Allocation{al}
	judged := w.Policy.Judge(in)
	past := audit.Address(&w.Policy, in, &judged).Past
	if len(past) != 1 || past[0].Kind != verdict.FindingInUseUnallocated || past[0].Allocation != al {
		t.Errorf("got %+v, want that the lease of the owner has vanished", past)
	}
}

// That the link of a client is the server's may become known only after its lease has vanished.
func TestEndOfALeaseIsRememberedBeforeItsLinkIsKnown(t *testing.T) {
	for mac, want := range map[string]int{one: 1, two: 0} {
		w, _, p := lan()
		w.Assigned(w.Interface(w.Host("n2"), verdict.Interface{Name: "eth0", Attachment: verdict.Own, Uplink: true, Link: w.Link("n2", "eth0", verdict.Uplink, false), MAC: verdict.MAC(mac)}))
		in := w.Case()
		in.Vanished = []*verdict.Allocation{{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC(one).String()}}}
		judged := w.Policy.Judge(in)
		if past := audit.Address(&w.Policy, in, &judged).Past; len(past) != want {
			t.Errorf("got %+v of the lease of %q, want %d", past, mac, want)
		}
	}
}

// A lease that vanishes at its end was not renewed. One that vanishes earlier was lost, or released. The clock of the server
// counts.
func TestALeaseEndsByItsOwnTime(t *testing.T) {
	w, i, p := lan()
	w.Wire(i, one)
	end := w.Now.Add(time.Minute)
	for _, test := range []struct {
		name  string
		ends  verdict.Stamp
		ahead time.Duration
		ended bool
	}{
		{"it has no end", 0, 0, false},
		{"it has ended", w.Now, 0, true},
		{"it had not ended", end, 0, false},
		{"it has ended by the clock of the server, which is ahead", end, time.Minute, true},
		{"it had not ended by the clock of the server, which is behind", w.Now, -time.Minute, false},
	} {
		w.Node("n1").Skew, w.Node("n1").SkewKnown = test.ahead, true
		in := w.Case()
		al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, MAC: verdict.MAC(one).String()}, Expires: test.ends}
		in.Vanished = []*verdict.Allocation{al}
		judged := w.Policy.Judge(in)
		w.Past = audit.Address(&w.Policy, in, &judged).Past // which has the former lease
		var want verdict.Stamp
		if test.ended {
			want = test.ends
		}
		if len(w.Past) != 1 || w.Past[0].Ended != want || w.Past[0].Allocation != al {
			t.Errorf("%s: got %+v, want this lease, ended at %v", test.name, w.Past, want)
		}
	}
}

// A server's reservations are outside of its ranges, too.
func TestFullPoolOfADHCPServerIsNoFinding(t *testing.T) {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: dhcp.DnsmasqName, Traits: registry.Traits(dhcp.DnsmasqName), State: ipam.Known, Ranges: []ipam.Range{{First: netip.MustParseAddr("10.9.0.1"), Last: netip.MustParseAddr("10.9.0.1")}}}}
	if got := audit.Pool(&verdict.Policy{}, audit.Given{Pool: p, Use: verdict.PoolUse{Size: 1, Allocated: 1}}); len(got) != 0 {
		t.Errorf("got %+v, want none", got)
	}
}
