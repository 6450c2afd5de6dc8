package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// The guest of a virtual machine has an address, which the kernel of its pod does not have, on a bridge.
func TestGuestsAreComparedWithRecords(t *testing.T) {
	const free, booked = verdict.FindingInUseUnallocated + " p", verdict.FindingBookedElsewhere + " p"
	for _, test := range []struct {
		name  string
		build func(w *world, p *verdict.Pool, pod *verdict.PodObject)
		want  []string
	}{
		{"no record", func(*world, *verdict.Pool, *verdict.PodObject) {}, []string{free}},
		{"the record of its pod", func(w *world, p *verdict.Pool, _ *verdict.PodObject) { w.of(p, "launcher") }, nil},
		{"the record of its former pod", func(w *world, p *verdict.Pool, _ *verdict.PodObject) { w.of(p, "before") }, []string{booked}},
		{"it is migrated", func(w *world, p *verdict.Pool, pod *verdict.PodObject) { w.of(p, "before"); pod.Migrating = true }, nil},
		{"its pod runs no machine", func(_ *world, _ *verdict.Pool, pod *verdict.PodObject) { pod.VirtualMachine = "" }, nil},
		{"it is on another bridge", func(_ *world, p *verdict.Pool, _ *verdict.PodObject) { p.Device = "br2" }, nil},
		{"the address is excluded", func(_ *world, p *verdict.Pool, _ *verdict.PodObject) { p.Ranges[0].Last = p.Ranges[0].First }, nil},
		{"the IPAM is not for further interfaces", func(_ *world, p *verdict.Pool, _ *verdict.PodObject) {
			p.IPAM, p.Traits = calico.IPAM.Name, registry.Traits(calico.IPAM.Name)
		}, nil},
	} {
		w := newWorld("192.0.2.100")
		l := w.Link("n1", "br1", verdict.Bridge, false)
		w.Namespace("n1", 9, "109", verdicttest.Who("launcher"))
		pod := &verdict.PodObject{Namespace: "default", Name: "launcher", Phase: "Running", VirtualMachine: "vm", Heard: w.Now}
		p := w.Pool(whereabouts.Name, "", "vms", "192.0.2.1-192.0.2.200")
		p.Name, p.Device, p.Routed = "p", "br1", false
		test.build(w, p, pod)
		w.Says("uid-launcher", *pod)
		c := w.Wire(w.Interface(w.Host("n1"), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: l, Peer: 9}), one)
		before := w.auditAll()
		if got := reported(before.Findings); len(got) != 0 {
			t.Errorf("%s: got %q at once, want to wait", test.name, got)
		}
		w.after(6 * time.Second)
		w.Seen(c)
		if got := reported(w.auditAll(before.Findings...).Findings); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// of adds an allocation for a pod.
func (w *world) of(p *verdict.Pool, pod string) {
	w.Allocations = append(w.Allocations, &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Namespace: "default", Pod: pod, Location: "p/" + pod}})
}
