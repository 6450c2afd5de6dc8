package registry_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/dra"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/vip"

	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// unreadable has objects of each kind.
var unreadable = map[ipam.Kind]struct {
	object string // with %s in place of a part
	// The object can be read with the part valid. In the others, a field has another type, or an address
	// cannot be parsed; the latter is empty if the object has none.
	valid, typed, address string
}{
	calico.Pools:  {"metadata: {name: bad}\nspec: {cidr: %s}", "10.9.0.0/16", "[]", "nowhere"},
	calico.Blocks: {"metadata: {name: bad}\nspec: {cidr: %s, allocations: [], attributes: []}", "10.9.0.0/26", "[]", "nowhere"},
	calico.Affinities: {
		"metadata: {name: bad}\nspec: {cidr: %s, node: n1, state: confirmed, deleted: 'false'}", "10.9.0.0/26", "[]", "nowhere",
	},
	calico.Reservations: {"metadata: {name: bad}\nspec: {reservedCIDRs: %s}", "[10.9.0.0/26]", "7", "[nowhere]"},

	cilium.Nodes:     {"metadata: {name: bad}\nspec: {ipam: {pool: %s}}", "{10.9.0.1: {}}", "7", "{nowhere: {}}"},
	cilium.Endpoints: {"metadata: {name: bad, namespace: n}\nstatus: {networking: {addressing: %s, node: 172.18.0.1}}", "[{ipv4: 10.0.0.9}]", "7", "[{ipv4: nowhere}]"},
	cilium.Slices: {
		"metadata: {name: bad}\nnamespace: n\nendpoints: [{name: p, networking: {addressing: %s, node: 172.18.0.1}}]", "[{ipv4: 10.0.0.9}]", "7", "[{ipv4: nowhere}]",
	},
	calico.Advertised: {"metadata: {name: bad}\nspec: {serviceLoadBalancerIPs: [{cidr: %s}]}", "10.9.0.0/24", "7", "nowhere"},
	cilium.Balancers:  {"metadata: {name: bad}\nspec: {blocks: [{cidr: %s}]}", "10.9.0.0/24", "7", "nowhere"},
	vip.IPAddresses:   {"metadata: {name: 10.9.0.1}", "", "", ""}, // the API server accepts no other name
	vip.ServiceCIDRs:  {"metadata: {name: bad}\nspec: {cidrs: [%s]}", "10.9.0.0/24", "7", "nowhere"},
	vip.IPAddressPools: {
		"metadata: {name: bad, namespace: n}\nspec: {addresses: [%s]}", "10.9.0.1-10.9.0.9", "7", "nowhere",
	},
	cilium.Pools: {"metadata: {name: bad}\nspec: {ipv4: {cidrs: %s}}", "[10.9.0.0/16]", "7", "[nowhere]"},

	ovn.Subnets: {"metadata: {name: bad}\nspec: {cidrBlock: %s}", "10.9.0.0/24", "[]", "nowhere"},
	ovn.IPs:     {"metadata: {name: bad}\nspec: {podName: p, namespace: n, subnet: ovn-default, v4IpAddress: %s}", "10.16.0.7", "[]", "nowhere"},
	ovn.VIPs:    {"metadata: {name: bad}\nspec: {subnet: ovn-default}\nstatus: {v4ip: %s}", "10.16.0.7", "[]", "nowhere"},

	spiderpool.Pools:     {"metadata: {name: bad}\nspec: {ips: %s}", "[10.9.0.1]", "7", "[nowhere]"},
	spiderpool.Endpoints: {"metadata: {name: bad, namespace: n}\nstatus: {current: {node: n1, ips: [{ipv4: %s, ipv4Pool: v4pool}]}}", "10.6.168.101/16", "7", "nowhere"},

	antrea.Pools: {"metadata: {name: bad}\nstatus: {ipAddresses: [{ipAddress: %s}]}\nspec: {ipRanges: [{cidr: 10.9.0.0/24}]}", "10.9.0.1", "7", "nowhere"},

	ovn.Claims: {"metadata: {name: bad, namespace: n}\nspec: {network: blue}\nstatus: {ips: [%s]}", "10.9.0.1/24", "7", "nowhere"},

	whereabouts.Pools:        {"metadata: {name: bad, namespace: n}\nspec: {range: %s, allocations: {}}", "10.9.0.0/24", "[]", "nowhere"},
	whereabouts.Reservations: {"metadata: {name: 10.9.0.1, namespace: n}\nspec: {podref: %s}", "n/p", "[]", ""},
	whereabouts.Networks: {
		"metadata: {name: bad, namespace: n}\nspec: {config: %s}", `'{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.9.0.0/24"}}'`, "'[]'",
		`'{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "nowhere"}}'`,
	},

	vip.EgressIPs:         {"metadata: {name: bad}\nstatus: {items: [{node: n1, egressIP: %s}]}", "10.9.0.1", "7", "nowhere"},
	vip.ServiceL2Statuses: {"metadata: {name: bad, namespace: n}\nstatus: {node: %s, serviceName: s, serviceNamespace: n}", "n1", "[]", ""},
	vip.EndpointSlices: {
		"metadata: {labels: {kubernetes.io/service-name: s}, name: bad, namespace: n}\naddressType: IPv4\nendpoints: [{addresses: [%s]}]", "10.9.0.1", "7", "nowhere",
	},
	dra.Claims: {
		"metadata: {name: bad, namespace: n}\nstatus: {reservedFor: [{resource: pods, uid: u}], devices: [{networkData: {ips: [%s]}}]}", "10.9.0.1/24", "7", "nowhere",
	},
	vip.Machines: {"metadata: {name: bad, namespace: n}\nstatus: {nodeName: %s}", "n1", "[]", ""},
}

// An object of any kind in an unexpected format is a problem of its own: one pool has it, and all others
// are as before.
func TestObjectsInAnUnexpectedFormatAreProblems(t *testing.T) {
	for _, m := range registry.All {
		if m.Objects == nil {
			continue
		}
		var kinds []ipam.Kind
		for _, r := range m.Objects(nil).Resources {
			kinds = append(kinds, r.Kind)
		}
		for _, k := range kinds {
			o, known := unreadable[k]
			if !known {
				t.Errorf("there are no objects of %s", k)
				continue
			}
			for what, part := range map[string]string{"a field of another type": o.typed, "an address that is none": o.address} {
				if part == "" {
					continue
				}
				c := ipamtest.New(t, m, kinds...)
				for k, text := range map[ipam.Kind]string{
					calico.Pools: ipamtest.CalicoPool, cilium.Nodes: ipamtest.CiliumNode("n1", "172.18.0.1", "10.0.0.0/24", "10.0.0.1", ""),
					ovn.Subnets: ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"), spiderpool.Pools: ipamtest.SpiderPool, antrea.Pools: ipamtest.AntreaPool,
					whereabouts.Pools: ipamtest.WhereaboutsPool,
				} {
					if k.Group == kinds[0].Group {
						c.Apply(k, text)
					}
				}
				good := strings.Replace(o.object, "%s", o.valid, 1)
				bad := strings.Replace(o.object, "%s", part, 1)
				c.Apply(k, bad)
				if all := c.Problems(); len(all) != 1 || !strings.Contains(all[0], k.Name+" ") {
					t.Errorf("%s: %s: got %q, want the problem of the object", k, what, all)
				}
				c.Apply(k, good)
				if all := c.Problems(); len(all) != 0 {
					t.Errorf("%s: got %q of a valid object, want none", k, all)
				}
				c.Apply(k, bad)
				if all := c.Problems(); len(all) != 1 {
					t.Errorf("%s: %s: got %q, want the problem of the changed object", k, what, all)
				}
				at := ipam.Key{Name: "bad"}
				if strings.Contains(o.object, "namespace: n}\n") {
					at.Namespace = "n"
				}
				if k == whereabouts.Reservations {
					at.Name = "10.9.0.1"
				}
				c.Remove(k, at)
				c.List(k)
				if all := c.Problems(); len(all) != 0 {
					t.Errorf("%s: got %q after the object was deleted, want none", k, all)
				}
			}
		}
	}
}
