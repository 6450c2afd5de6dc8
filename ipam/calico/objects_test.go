package calico

import (
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

// During a live migration, an address belongs to either of two pods.
func TestCalicoOfAMachineThatMoves(t *testing.T) {
	_, block := readBlock(&ipam.Object{Spec: []byte(`{"cidr":"10.0.0.0/30","allocations":[null,0,1,2],"attributes":[
		{"handle_id":"k8s-pod-network.default-vm","secondary":{"namespace":"default","pod":"virt-launcher-vm-1","node":"n1"},"alternate":{"namespace":"default","pod":"virt-launcher-vm-2","node":"n2"}},
		{"handle_id":"k8s-pod-network.default-vm","secondary":{"namespace":"default","pod":"virt-launcher-vm-1","node":"n1"}},
		{"handle_id":"k8s-pod-network.default-vm","alternate":{"namespace":"default","pod":"virt-launcher-vm-2","node":"n2"}}]}`)})
	var got []string
	for _, b := range block.allocations {
		got = append(got, b.pod+" on "+b.node)
	}
	if want := []string{" on ", "virt-launcher-vm-1 on n1", " on "}; !slices.Equal(got, want) || block.problem != "" {
		t.Errorf("got %q, %s, want %q", got, block.problem, want)
	}
}

// Some IPPools are only for pods that name them, for example for a node's network, so that
// their traffic is not masqueraded.
func TestCalicoPoolsUsedOnlyOnRequest(t *testing.T) {
	for spec, want := range map[string]bool{
		`{"cidr":"10.250.0.0/16","nodeSelector":"!all()"}`: true, `{"cidr":"10.250.0.0/16","nodeSelector":"! all( )"}`: true,
		`{"cidr":"10.250.0.0/16","assignmentMode":"Manual"}`: true, `{"cidr":"10.250.0.0/16","nodeSelector":"all()","assignmentMode":"Automatic"}`: false,
		`{"cidr":"10.250.0.0/16"}`: false, `{"cidr":"10.250.0.0/16","nodeSelector":"!has(edge)"}`: false,
	} {
		if _, p := readPool(&ipam.Object{Spec: []byte(spec)}); p.problem != "" || p.asked != want {
			t.Errorf("%s: got %+v, want asked %v", spec, p, want)
		}
	}
}

func TestBlockObjects(t *testing.T) {
	for name, test := range map[string]struct {
		spec string
		want []allocation
		// problem is a part of the description of an inconsistency.
		problem    string
		bad, gone  bool
		wantPrefix string
	}{
		"a pod": {
			spec: `{"cidr":"10.0.0.0/30","allocations":[null,0],"attributes":[{"handle_id":"k8s-pod-network.abcdef012345","secondary":
				{"namespace":"n","pod":"p","node":"n1","timestamp":"2023-09-26 17:11:53.5 +0000 UTC m=+0.1"}}]}`,
			want: []allocation{{ordinal: 1, at: 1695748313500000000, node: "n1", namespace: "n", pod: "p", container: "abcdef012345"}},
		},
		"a virtual machine has no container":  {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"handle_id":"k8s-pod-network.namespace-machine","secondary":{"pod":"p"}}]}`, want: []allocation{{pod: "p"}}},
		"a machine with a hexadecimal name":   {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"handle_id":"k8s-pod-network.beef","secondary":{"pod":"p"}}]}`, want: []allocation{{pod: "p"}}},
		"a time that was never set":           {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"secondary":{"pod":"p","timestamp":"0001-01-01 00:00:00 +0000 UTC"}}]}`, want: []allocation{{pod: "p"}}},
		"a tunnel":                            {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"secondary":{"node":"n1","type":"wireguardTunnelAddress"}}]}`, want: []allocation{{node: "n1", purpose: "WireGuard tunnel"}}},
		"a purpose that is not known":         {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"secondary":{"type":"new\nthing"}}]}`, want: []allocation{{purpose: "new thing"}}},
		"fields that are not known":           {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"tertiary":{}}],"color":{}}`, want: []allocation{{}}},
		"a handle with a carriage return":     {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"handle_id":"Windows-Reserved-IPAM-Handle\rmore"}]}`},
		"a time that is none":                 {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"secondary":{"pod":"p","timestamp":"yesterday"}}]}`, want: []allocation{{pod: "p"}}},
		"a deleted block":                     {spec: `{"cidr":"10.0.0.0/30","deleted":true}`, gone: true},
		"attributes that are missing":         {spec: `{"cidr":"10.0.0.0/30","allocations":[-1,0]}`, want: []allocation{{}, {ordinal: 1}}, problem: "/spec/allocations/0 refers to attributes -1 of 0"},
		"more allocations than addresses":     {spec: `{"cidr":"10.0.0.0/31","allocations":[0,null,0],"attributes":[{}]}`, want: []allocation{{}}, problem: "it has 2 addresses, and /spec/allocations has 3"},
		"no cidr":                             {spec: `{"allocations":[]}`, problem: `its cidr "" is not a CIDR`, bad: true, wantPrefix: "10.0.0.0/30"},
		"allocations that are no numbers":     {spec: `{"cidr":"10.0.0.0/30","allocations":["x"]}`, problem: "is a JSON string", bad: true, wantPrefix: "10.0.0.0/30"},
		"no spec":                             {problem: "it has no spec", bad: true, wantPrefix: "10.0.0.0/30"},
		"attributes of a newer form of owner": {spec: `{"cidr":"10.0.0.0/30","allocations":[0],"attributes":[{"secondary":{"pod":{"name":"p"}}}]}`, problem: "is a JSON object", bad: true, wantPrefix: "10.0.0.0/30"},
	} {
		_, got := readBlock(&ipam.Object{Name: "10-0-0-0-30", Spec: []byte(test.spec)})
		switch {
		case test.gone || got == nil:
			if !test.gone || got != nil {
				t.Errorf("%s: got %+v", name, got)
			}
		case !slices.Equal(got.allocations, test.want) || got.bad != test.bad || (got.problem == "") != (test.problem == "") || !strings.Contains(got.problem, test.problem) ||
			test.wantPrefix != "" && got.prefix.String() != test.wantPrefix:
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestPoolObjects(t *testing.T) {
	for spec, want := range map[string]string{
		``: "it has no spec", `{}`: `its cidr "" is not a CIDR`, `{"cidr":7}`: "/cidr is a JSON number", `{"cidr":"10.0.0.0/8","disabled":"yes"}`: "/disabled is a JSON string",
		`{"cidr":"10.1.2.3/8","disabled":true,"newer":[]}`: "",
	} {
		_, p := readPool(&ipam.Object{Name: "p", Spec: []byte(spec)})
		if (p.problem == "") != (want == "") || !strings.Contains(p.problem, want) || want == "" && (p.prefix.String() != "10.0.0.0/8" || !p.disabled) {
			t.Errorf("%s: got %+v, want %q", spec, p, want)
		}
	}
}

func TestAffinityAndReservationObjects(t *testing.T) {
	for spec, want := range map[string]string{
		`{"node":"n1","cidr":"10.0.0.0/26","deleted":"false","state":"confirmed"}`: "n1 10.0.0.0/26", `{"node":"n1","cidr":"10.0.0.0/26","deleted":false,"type":"host"}`: "n1 10.0.0.0/26",
		`{"node":"n1","cidr":"10.0.0.0/26","deleted":"true"}`: "", `{"node":"n1","cidr":"10.0.0.0/26","deleted":true}`: "", `{"node":"n1","cidr":"10.0.0.0/26","type":"virtual"}`: "",
		`{"cidr":"10.0.0.0/26"}`: "", `{"node":"n1"}`: "", ``: "", `[]`: "",
	} {
		got := ""
		if _, a, problem := readAffinity(&ipam.Object{Name: "a", Spec: []byte(spec)}); a != nil && problem == "" {
			got = a.node + " " + a.prefix.String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", spec, got, want)
		}
	}
	for spec, want := range map[string]int{`{"reservedCIDRs":["10.0.0.0/8","fd00::1","x",""]}`: 2, `{}`: 0, `{"reservedCIDRs":"10.0.0.0/8"}`: 0, ``: 0} {
		got := -1
		if _, r, _ := readReservation(&ipam.Object{Name: "r", Spec: []byte(spec)}); r != nil {
			got = len(r.prefixes)
		}
		if got != want {
			t.Errorf("%s: got %d prefixes, want %d", spec, got, want)
		}
	}
}

// Records of any object keep their invariants: allocations are in the block and in order.
func FuzzObjects(f *testing.F) {
	f.Add("10-0-0-0-30", `{"cidr":"10.0.0.0/30","allocations":[null,0,0],"attributes":[{"handle_id":"k8s-pod-network.abcdef012345","secondary":{"namespace":"n","pod":"p"}}]}`)
	f.Add("fd00---126", `{"cidr":7}`)
	f.Add("-", `{"node":"n1","cidr":"10.0.0.0/26","deleted":"false","reservedCIDRs":["10.0.0.1"]}`)
	f.Fuzz(func(t *testing.T, name, spec string) {
		o := &ipam.Object{Name: name, Spec: []byte(spec)}
		if at, b := readBlock(o); b != nil {
			for i, al := range b.allocations {
				if got := al.published(at, b.prefix).Address; !b.prefix.Contains(got) || i > 0 && al.ordinal <= b.allocations[i-1].ordinal {
					t.Errorf("%s: got %v of %+v", spec, got, b)
				}
			}
		}
		readPool(o)
		readAffinity(o)
		readReservation(o)
	})
}

// Each kind has an alternative in the group of newer versions.
func TestAlternatives(t *testing.T) {
	for _, r := range newObjects(nil).Resources {
		if want := (ipam.Kind{Group: "projectcalico.org", Version: "v3", Resource: r.Kind.Resource, Name: r.Kind.Name}); r.Alternative != want {
			t.Errorf("%s: got %+v", r.Kind, r.Alternative)
		}
	}
}

func TestRangesInNamesOfBlocks(t *testing.T) {
	for name, want := range map[string]string{"10-244-0-64-26": "10.244.0.64/26", "fd00---122": "fd00::/122", "10-244-0-64": "invalid Prefix", "block": "invalid Prefix", "": "invalid Prefix", "-26": "invalid Prefix"} {
		if got := prefixOf(name).String(); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}
