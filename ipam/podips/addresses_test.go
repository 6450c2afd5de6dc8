package podips

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

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

// published is a publisher that has what is published: pods by address.
type published struct {
	ipam.Publisher
	used, pool bool
	pods       map[string]bool
}

func (p *published) Use() { p.used = true }

func (p *published) Put(ipam.Pool, string, bool) { p.pool = true }

func (p *published) Drop(string) { p.pool = false }

func (p *published) Allocate(_ string, al ipam.Allocation, _ int64) {
	p.pods[fmt.Sprint(al.Address, " ", al.Pod)] = true
}

func (p *published) Release(_ string, al ipam.Allocation) {
	delete(p.pods, fmt.Sprint(al.Address, " ", al.Pod))
}

func TestAddresses(t *testing.T) {
	p := &published{pods: make(map[string]bool)}
	s := NewAddresses[*record](p)
	pod := func(name, machine string, ips ...string) *record {
		r := &record{Pod{Namespace: "n", Name: name, VirtualMachine: machine, Exclusive: true}}
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
	again := pod("two", "", "10.0.0.1")
	for _, step := range []struct {
		name          string
		before, after *record
		want          string
	}{
		{"one pod", nil, one, ""},
		{"a pod in the host network", nil, host, ""},
		{"two pods", nil, two, "10.0.0.1 one, 10.0.0.1 two"},
		{"another address", nil, three, "10.0.0.1 one, 10.0.0.1 two, fd00::1 one, fd00::1 three"},
		{"a changed record", two, again, "10.0.0.1 one, 10.0.0.1 two, fd00::1 one, fd00::1 three"},
		{"one pod is over", one, over, ""},
		{"it is deleted", over, nil, ""},
		{"a virtual machine", nil, vm, ""},
		{"it migrates", nil, moved, ""},
		{"another machine", nil, other, "10.0.0.9 vm-1, 10.0.0.9 vm-2, 10.0.0.9 vm-3"},
		{"the migration is over", vm, nil, "10.0.0.9 vm-2, 10.0.0.9 vm-3"},
		{"one machine is left", other, nil, ""},
		{"the pod that was left has an address again", nil, one, "10.0.0.1 one, 10.0.0.1 two, fd00::1 one, fd00::1 three"},
	} {
		s.Changed(step.before, step.after)
		if got := strings.Join(slices.Sorted(maps.Keys(p.pods)), ", "); got != step.want || p.pool != (step.want != "") || p.pool && !p.used {
			t.Errorf("%s: got %q, pool %t, want %q", step.name, got, p.pool, step.want)
		}
	}
}
