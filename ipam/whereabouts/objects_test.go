package whereabouts

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestPoolObjects(t *testing.T) {
	for name, test := range map[string]struct {
		spec string
		base string
		want []allocation
		// problem is a part of the description of an inconsistency.
		problem string
		bad     bool
	}{
		"allocations": {
			spec: `{"range":"10.0.0.4/24","allocations":{"2":{"id":"a","podref":"n/p","ifname":"net1"},"1":{"id":"b","podref":"n/q"}}}`, base: "10.0.0.4",
			want: []allocation{{addr: netip.MustParseAddr("10.0.0.5"), pod: "n/q", container: "b"}, {addr: netip.MustParseAddr("10.0.0.6"), pod: "n/p", container: "a", iface: "net1"}},
		},
		"an address of an IPAMClaim": {
			spec: `{"range":"10.0.0.0/24","allocations":{"1":{"id":"a","podref":"n/p","ipamclaimref":"n/c"}}}`, base: "10.0.0.0",
			want: []allocation{{addr: netip.MustParseAddr("10.0.0.1")}},
		},
		"fields that are missing or not known": {
			spec: `{"range":"10.0.0.0/24","color":7,"allocations":{"1":{"since":{}}}}`, base: "10.0.0.0", want: []allocation{{addr: netip.MustParseAddr("10.0.0.1")}},
		},
		"no allocations":            {spec: `{"range":"fd00::/64"}`, base: "fd00::"},
		"an offset below the range": {spec: `{"range":"10.0.0.0/24","allocations":{"-1":{}}}`, base: "10.0.0.0", problem: "/spec/allocations/-1 is not an offset in 10.0.0.0/24"},
		"an offset above the range": {spec: `{"range":"10.0.0.0/24","allocations":{"256":{}}}`, base: "10.0.0.0", problem: "/spec/allocations/256 is not an offset"},
		"the last offset that is read": {
			spec: `{"range":"fd00::/64","allocations":{"9223372036854775807":{"podref":"n/p"}}}`, base: "fd00::",
			want: []allocation{{addr: netip.MustParseAddr("fd00::7fff:ffff:ffff:ffff"), pod: "n/p"}},
		},
		"an offset that is not read back": {
			spec: `{"range":"fd00::/64","allocations":{"9223372036854775813":{"podref":"n/p"}}}`, base: "fd00::", problem: "does not read it back",
		},
		"no range":                   {spec: `{"allocations":{}}`, problem: `its range "" is not a CIDR`, bad: true},
		"an address without length":  {spec: `{"range":"10.0.0.0"}`, problem: `its range "10.0.0.0" is not a CIDR`, bad: true},
		"a range that is none":       {spec: `{"range":"here","allocations":{"1":{}}}`, problem: `its range "here" is not a CIDR`, bad: true},
		"a list of allocations":      {spec: `{"range":"10.0.0.0/24","allocations":[]}`, problem: "/allocations is a JSON array", bad: true},
		"a pod reference of numbers": {spec: `{"range":"10.0.0.0/24","allocations":{"1":{"podref":7}}}`, problem: "/podref is a JSON number", bad: true},
		"no spec":                    {problem: "it has no spec", bad: true},
		"a spec that is a list":      {spec: `[]`, problem: "is a JSON array", bad: true},
		"a long range of junk":       {spec: `{"range":"` + strings.Repeat("x", 10000) + `"}`, problem: "its range", bad: true},
	} {
		got := readPool(&ipam.Object{Namespace: "w", Name: "p", Spec: []byte(test.spec)})
		if !slices.Equal(got.allocations, test.want) || got.bad != test.bad || (got.problem == "") != (test.problem == "") || !strings.Contains(got.problem, test.problem) ||
			test.base != "" && got.base.String() != test.base || len(got.problem) > 2*ipam.MaxMessage {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestReservationObjects(t *testing.T) {
	for spec, want := range map[string]reservation{
		`{"podref":"n/p","ifname":"net1","containerid":"a","more":[]}`: {pod: "n/p", container: "a", iface: "net1"},
		`{"podref":"n/p"}`: {pod: "n/p"}, `{"podref":{}}`: {}, `{"podref":"n/p","ifname":7}`: {}, ``: {}, `7`: {},
	} {
		at, got, problem := readReservation(&ipam.Object{Namespace: "w", Name: "10.0.0.1", Spec: []byte(spec)})
		if (problem == "") != (want != reservation{}) {
			t.Errorf("%s: got problem %v", spec, problem)
		}
		if *got != want || at != (ipam.Key{Namespace: "w", Name: "10.0.0.1"}) {
			t.Errorf("%s: got %+v of %v, want %+v", spec, got, at, want)
		}
	}
}

// Records of any object keep their invariants: allocations are in the range and in order.
func FuzzObjects(f *testing.F) {
	f.Add(`{"range":"10.0.0.4/24","allocations":{"2":{"id":"a","podref":"n/p","ifname":"net1"},"900":{}}}`)
	f.Add(`{"config":"{\"name\":\"n\",\"plugins\":[null,{\"type\":\"macvlan\",\"ipam\":{\"type\":\"whereabouts\",\"range\":\"10.0.0.3-10.0.0.5/29\",\"exclude\":[\"10.0.0.4\"]}}]}"}`)
	f.Fuzz(func(t *testing.T, spec string) {
		o := &ipam.Object{Name: "p", Spec: []byte(spec)}
		p := readPool(o)
		for i, al := range p.allocations {
			if !p.prefix.Contains(al.addr) || i > 0 && al.addr.Less(p.allocations[i-1].addr) {
				t.Errorf("%s: got %+v", spec, p)
			}
		}
		readReservation(o)
		if _, n, _ := readNetwork(o); n != nil {
			for i := range n.ranges {
				for _, r := range n.ranges[i].given(n.ranges[i].prefix) {
					if !n.ranges[i].prefix.Contains(r.First) || !n.ranges[i].prefix.Contains(r.Last) {
						t.Errorf("%s: got %v", spec, r)
					}
				}
			}
		}
	})
}
