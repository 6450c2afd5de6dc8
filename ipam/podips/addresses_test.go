package podips

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// record is the record of a pod.
type record struct{ is Pod }

func (r *record) Pod() Pod {
	if r == nil {
		return Pod{}
	}
	return r.is
}

// published is a publisher that has what is published: the nodes of pods by address and pod.
type published struct {
	ipam.Publisher
	used, pool bool
	pods       map[string]string
	changes    int
}

func (p *published) Use() { p.used = true }

func (p *published) Put(_ ipam.Pool, problem string, unreadable bool) {
	p.pool = problem == "" && !unreadable
}

func (p *published) Drop(string) { p.pool = false }

func (p *published) Allocate(_ string, al ipam.Allocation, _ int64) {
	p.pods[fmt.Sprint(al.Address, " ", al.Pod)] = al.Node
	p.changes++
}

func (p *published) Release(_ string, al ipam.Allocation) {
	delete(p.pods, fmt.Sprint(al.Address, " ", al.Pod))
	p.changes++
}

func TestAddresses(t *testing.T) {
	p := &published{pods: make(map[string]string)}
	s := NewAddresses[*record](p, Pool, Status)
	pod := func(name, machine string, ips ...string) *record {
		r := &record{Pod{Namespace: "n", Name: name, Node: "n1", VirtualMachine: machine, Exclusive: true}}
		for _, ip := range ips {
			r.is.IPs = append(r.is.IPs, netip.MustParseAddr(ip))
		}
		return r
	}
	one, two, three := pod("one", "", "10.0.0.1", "fd00::1"), pod("two", "", "10.0.0.1"), pod("three", "", "fd00::1")
	over := pod("one", "", "10.0.0.1")
	over.is.Exclusive = false
	host := pod("host", "", "10.0.0.1")
	host.is.Exclusive = false
	vm, moved, other := pod("vm-1", "vm", "10.0.0.9"), pod("vm-2", "vm", "10.0.0.9"), pod("vm-3", "other", "10.0.0.9")
	again, elsewhere := pod("two", "", "10.0.0.1"), pod("two", "", "10.0.0.1")
	elsewhere.is.Node = "n2"
	running := make(map[*record]bool)
	for _, step := range []struct {
		name          string
		before, after *record
		want          string
		changes       int
	}{
		{"one pod", nil, one, "", 0},
		{"a pod in the host network", nil, host, "", 0},
		{"two pods", nil, two, "10.0.0.1 one on n1, 10.0.0.1 two on n1", 2},
		{"another address", nil, three, "10.0.0.1 one on n1, 10.0.0.1 two on n1, fd00::1 one on n1, fd00::1 three on n1", 2},
		{"a changed record", two, again, "10.0.0.1 one on n1, 10.0.0.1 two on n1, fd00::1 one on n1, fd00::1 three on n1", 0},
		{"a pod of that name on another node", again, elsewhere, "10.0.0.1 one on n1, 10.0.0.1 two on n2, fd00::1 one on n1, fd00::1 three on n1", 1},
		{"one pod is over", one, over, "", 4},
		{"it is deleted", over, nil, "", 0},
		{"a virtual machine", nil, vm, "", 0},
		{"it migrates", nil, moved, "", 0},
		{"another machine", nil, other, "10.0.0.9 vm-1 on n1, 10.0.0.9 vm-2 on n1, 10.0.0.9 vm-3 on n1", 3},
		{"the migration is over", vm, nil, "10.0.0.9 vm-2 on n1, 10.0.0.9 vm-3 on n1", 1},
		{"one machine is left", other, nil, "", 2},
		{"the pod that was left has an address again", nil, one, "10.0.0.1 one on n1, 10.0.0.1 two on n2, fd00::1 one on n1, fd00::1 three on n1", 4},
		{"one pod of an address is left", one, nil, "", 4},
		{"none is left", elsewhere, nil, "", 0},
		{"another pod gets its address", nil, two, "", 0},
	} {
		p.changes = 0
		s.Changed(step.before, step.after)
		var got []string
		for at, node := range p.pods {
			got = append(got, at+" on "+node)
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != step.want || p.pool != (step.want != "") || p.pool && !p.used || p.changes != step.changes {
			t.Errorf("%s: got %q, pool %t, %d changes, want %q, %d changes", step.name, got, p.pool, p.changes, step.want, step.changes)
		}
		// Each address is held once.
		delete(running, step.before)
		if step.after != nil {
			running[step.after] = true
		}
		held := make(map[netip.Addr]bool)
		for r := range running {
			for _, a := range r.is.exclusive() {
				held[a] = true
			}
		}
		if len(s.one)+len(s.several) != len(held) {
			t.Errorf("%s: got %d addresses of one pod and %d of several, want %d together", step.name, len(s.one), len(s.several), len(held))
		}
	}
}

func TestTraits(t *testing.T) {
	if got, want := IPAM.Traits, (ipam.Traits{Status: true, EndDelay: 30 * time.Second}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
