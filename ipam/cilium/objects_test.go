package cilium

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestNodeObjects(t *testing.T) {
	for name, test := range map[string]struct {
		spec, status string
		want         string // prefixes, single addresses, allocated addresses, own and internal addresses
		grows        bool
		// problem is a part of the description of an inconsistency.
		problem string
	}{
		"ranges": {
			spec: `{"addresses":[{"type":"InternalIP","ip":"172.18.0.2"},{"type":"CiliumInternalIP","ip":"10.0.2.1"},{"type":"Other","ip":"1.1.1.1"}],
				"health":{"ipv4":"10.0.2.2"},"ingress":{"ipv6":"fd00::3"},"ipam":{"podCIDRs":["10.0.2.9/24"]}}`,
			want: "[10.0.2.0/24] [] [] [10.0.2.1 10.0.2.2 fd00::3] [172.18.0.2]",
		},
		"pools": {spec: `{"ipam":{"pools":{"allocated":[{"cidrs":["10.0.0.0/27"]},{"pool":"b","cidrs":["10.1.0.0/27"]}]}}}`, want: "[10.0.0.0/27 10.1.0.0/27] [] [] [] []", grows: true},
		"interfaces of a cloud": {
			spec: `{"ipam":{"pools":{"allocated":[{"pool":"default","allowFirstIP":true,"allowLastIP":true,"cidrs":["10.0.0.5/32","10.0.0.16/28","fd00::5/128"]}]}}}`,
			want: "[10.0.0.16/28] [10.0.0.5 fd00::5] [] [] []", grows: true,
		},
		"single addresses": {
			spec: `{"ipam":{"pool":{"10.0.0.2":{"resource":"eni"},"10.0.0.1":{},"x":{}}}}`, status: `{"ipam":{"used":{"10.0.0.2":{"owner":"n/p"},"y":{}}}}`,
			want: "[] [10.0.0.1 10.0.0.2] [10.0.0.2 n/p] [] []", grows: true,
		},
		"many single addresses": {
			spec: `{}`, status: `{"ipam":{"used":{"10.0.0.7":{},"10.0.0.3":{},"10.0.0.6":{},"10.0.0.1":{},"10.0.0.5":{},"10.0.0.2":{},"10.0.0.4":{}}}}`,
			want: "[] [] [10.0.0.1  10.0.0.2  10.0.0.3  10.0.0.4  10.0.0.5  10.0.0.6  10.0.0.7 ] [] []",
		},
		"fields that are missing or not known": {spec: `{"ipam":{"color":7}}`, status: `{"newer":[]}`, want: "[] [] [] [] []"},
		"an address that is none":              {spec: `{"addresses":[{"type":"InternalIP","ip":"x"}]}`, want: "[] [] [] [] []"},
		"an invalid range":                     {spec: `{"ipam":{"podCIDRs":["10.0.0.0"]}}`, want: "[] [] [] [] []", problem: `"10.0.0.0" is not a CIDR`},
		"no spec":                              {want: "[] [] [] [] []", problem: "it has no spec"},
		"ranges of another form":               {spec: `{"ipam":{"podCIDRs":"10.0.0.0/8"}}`, want: "[] [] [] [] []", problem: "/ipam/podCIDRs is a JSON string"},
		"a status of another form":             {spec: `{}`, status: `{"ipam":{"used":[]}}`, want: "[] [] [] [] []", problem: "its status has an unexpected format"},
	} {
		at, n := readNode(&ipam.Object{Name: "n1", Spec: []byte(test.spec), Status: []byte(test.status)})
		var used []string
		for _, u := range n.used {
			used = append(used, u.addr.String()+" "+u.owner)
		}
		if got := fmt.Sprint(n.prefixes, n.single, used, n.own, n.internal); at != (ipam.Key{Name: "n1"}) || got != test.want || n.grows != test.grows ||
			(n.problem == "") != (test.problem == "") || !strings.Contains(n.problem, test.problem) {
			t.Errorf("%s: got %s, %+v, want %s", name, got, n, test.want)
		}
	}
}

func TestEndpointObjects(t *testing.T) {
	created := time.Unix(1673147842, 0)
	for status, want := range map[string]string{
		`{"external-identifiers":{"container-id":"a"},"identity":{"id":23407,"labels":["k8s:app=a"]},"networking":{"addressing":[{"ipv4":"10.0.0.1","ipv6":"fd00::1"},{"ipv4":"x"}],"node":"172.18.0.2"},"newer":{}}`: "[10.0.0.1 fd00::1] 172.18.0.2 a 23407 !",
		`{"networking":{"addressing":[{"ipv4":"10.0.0.1"}],"node":"x"},"identity":{"id":8}}`:                                                                                                                          "[10.0.0.1] invalid IP  0 !",
		`{"networking":{"addressing":[]}}`: "", `{"networking":{"addressing":[{"ipv4":""}]}}`: "", `{"networking":{"addressing":{}}}`: " !", `{"networking":{"addressing":[{"ipv4":"10.0.0.1"}],"node":7}}`: " !", `{"id":1}`: "", ``: "",
	} {
		got := ""
		at, e, problem := readEndpoint(&ipam.Object{Namespace: "n", Name: "p", Created: created, Status: []byte(status)})
		if e != nil {
			got = fmt.Sprint(e.addrs, " ", e.node, " ", e.container, " ", e.identity)
			if e.at != created.UnixNano() || cap(e.addrs) != len(e.addrs) {
				t.Errorf("%s: got %+v", status, e)
			}
		}
		if problem != "" {
			got += " !"
		}
		if got != want || at != (ipam.Key{Namespace: "n", Name: "p"}) {
			t.Errorf("%s: got %q of %v, want %q", status, got, at, want)
		}
	}
}

func TestOwnersOfSingleAddresses(t *testing.T) {
	for owner, want := range map[string]string{
		"n/p": "n p  ", "n/p [restored]": "n p  ", "n/p:eth1": "n p eth1 ", "router": "   Cilium's router", "": "   Cilium's own", "\x1b[2J": "   Cilium's [2J",
	} {
		al := (&use{owner: owner}).allocation("n1")
		if got := strings.Join([]string{al.Namespace, al.Pod, al.Interface, al.Purpose}, " "); got != want || al.Node != "n1" {
			t.Errorf("%q: got %q, want %q", owner, got, want)
		}
	}
}

// Records of any object keep their invariants: addresses are valid, and single ones in order.
func FuzzObjects(f *testing.F) {
	f.Add(`{"addresses":[{"type":"InternalIP","ip":"172.18.0.2"}],"ipam":{"podCIDRs":["10.0.2.9/24"],"pool":{"10.0.0.2":{},"10.0.0.1":{}}}}`, `{"ipam":{"used":{"10.0.0.2":{"owner":"n/p"}}}}`)
	f.Add(`{}`, `{"networking":{"addressing":[{"ipv4":"10.0.0.1","ipv6":"fd00::1"}],"node":"172.18.0.2"}}`)
	f.Fuzz(func(t *testing.T, spec, status string) {
		o := &ipam.Object{Name: "n", Spec: []byte(spec), Status: []byte(status)}
		_, n := readNode(o)
		for i := range n.single {
			if !n.single[i].IsValid() || i > 0 && !n.single[i-1].Less(n.single[i]) && n.single[i-1] != n.single[i] {
				t.Errorf("%s: got %+v", spec, n)
			}
		}
		if _, e, _ := readEndpoint(o); e != nil && (len(e.addrs) == 0 || slices.ContainsFunc(n.own, func(a netip.Addr) bool { return !a.IsValid() })) {
			t.Errorf("%s: got %+v", status, e)
		}
	})
}
