package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// definition returns a NetworkAttachmentDefinition.
func testDefinition(namespace, name, config string) *object {
	o := &object{Spec: fmt.Appendf(nil, `{"config": %q}`, config)}
	o.Namespace, o.Name = namespace, name
	return o
}

// storeOf returns the store of a custom resource, which only one feed reads.
func storeOf(t *testing.T, c *Cluster, k ipam.Kind) ipam.Store {
	t.Helper()
	var stores []ipam.Store
	for _, f := range c.feeds {
		if f.source != nil && f.source.Kind == k {
			stores = append(stores, f.into)
		}
	}
	if len(stores) != 1 {
		t.Fatalf("got %d feeds of %s, want one", len(stores), k)
	}
	return stores[0]
}

// networksOf returns the memberships of a pod as ADDRESS[%INTERFACE] NETWORK [ovs] [per-node].
func networksOf(p *verdict.PodObject) (all []string) {
	for _, m := range p.Memberships {
		words := []string{m.Address.String()}
		if m.Interface != "" {
			words[0] += "%" + m.Interface
		}
		words = append(words, m.Network)
		if m.OVS {
			words = append(words, "ovs")
		}
		if m.PerNode {
			words = append(words, "per-node")
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

func TestNetworksOfPods(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) {
		for _, o := range []*object{
			testDefinition("blue", "primary", `{"name": "cluster_udn_blue", "type": "ovn-k8s-cni-overlay", "topology": "layer2", "netAttachDefName": "blue/primary", "role": "primary"}`),
			testDefinition("blue", "bare", `{"type": "bridge"}`),
			testDefinition("default", "lan", `{"cniVersion": "0.4.0", "name": "lan", "type": "ovs", "bridge": "br1", "vlan": 100, "ipam": {"type": "host-local", "subnet": "192.168.1.0/24"}}`),
			testDefinition("default", "wide", `{"name": "wide", "plugins": [{"type": "macvlan", "ipam": {"type": "whereabouts"}}, {"type": "tuning"}]}`),
			testDefinition("default", "fixed", `{"type": "macvlan", "ipam": {"type": "static"}}`),
			testDefinition("default", "junk", `{`),
		} {
			c.put(storeOf(t, c, whereabouts.Networks), o)
		}
	})
	for name, test := range map[string]struct {
		annotations map[string]string
		want        []string
		unread      string
	}{
		"OVN-Kubernetes":                    {annotations: map[string]string{ovn.Annotation: `{"default":{"ip_addresses":["10.244.1.5/24","fd00:10:244::5/64"],"mac_address":"0a:58:0a:f4:01:05","gateway_ips":["10.244.1.1"],"role":"primary"}}`}},
		"OVN-Kubernetes before version 1.0": {annotations: map[string]string{ovn.Annotation: `{"blue/primary":{"ip_address":"10.200.0.5/24"}}`}, want: []string{"10.200.0.5 udn/cluster_udn_blue ovs"}},
		"a primary user-defined network": {annotations: map[string]string{ovn.Annotation: `{"default":{"ip_addresses":["10.244.1.5/24"],"role":"infrastructure-locked"},
			"blue/primary":{"ip_addresses":["10.200.0.5/16"],"tunnel_id":3,"role":"primary"}}`}, want: []string{"10.200.0.5 udn/cluster_udn_blue ovs"}},
		"a network that is attached twice": {annotations: map[string]string{ovn.Annotation: `{"blue/primary/1":{"ip_addresses":["10.200.0.6/16"]}}`}, want: []string{"10.200.0.6 udn/cluster_udn_blue ovs"}},
		"an unknown user-defined network":  {annotations: map[string]string{ovn.Annotation: `{"blue/other":{"ip_addresses":["10.200.0.5/16"]}}`}, want: []string{"10.200.0.5  ovs"}},
		"a definition of another plugin":   {annotations: map[string]string{ovn.Annotation: `{"blue/bare":{"ip_addresses":["10.200.0.5/16"]}}`}, want: []string{"10.200.0.5  ovs"}},
		"a network without addresses":      {annotations: map[string]string{ovn.Annotation: `{"default":{"ip_addresses":null,"mac_address":""}}`}},
		"Kube-OVN":                         {annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "ovn-default", "ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/ip_address": "10.16.0.7,fd00:10:16::7"}, want: []string{"10.16.0.7 pods ovs", "fd00:10:16::7 pods ovs"}},
		"Kube-OVN before it has allocated": {annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "ovn-default", "ovn.kubernetes.io/logical_router": "ovn-cluster"}},
		"Kube-OVN with an address only":    {annotations: map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.7"}},
		"a VPC of Kube-OVN":                {annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "s1", "ovn.kubernetes.io/logical_router": "blue", "ovn.kubernetes.io/ip_address": "10.16.0.7"}, want: []string{"10.16.0.7 vpc/blue ovs"}},
		"a VLAN of Kube-OVN":               {annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "vlan7", "ovn.kubernetes.io/ip_address": "10.16.0.7"}, want: []string{"10.16.0.7 subnet/vlan7 ovs"}},
		"a further network of Kube-OVN":    {annotations: map[string]string{"net1.default.ovn.kubernetes.io/logical_switch": "s2", "net1.default.ovn.kubernetes.io/logical_router": "blue", "net1.default.ovn.kubernetes.io/ip_address": "10.17.0.7"}, want: []string{"10.17.0.7 vpc/blue ovs"}},
		"Multus": {
			annotations: map[string]string{multusStatus: `[{"name":"cbr0","interface":"eth0","ips":["10.244.1.5"],"default":true},
			{"name":"default/lan","interface":"net1","ips":["192.168.1.202"]},{"name":"default/wide","interface":"net2","ips":["192.168.2.1"]},{"name":"default/fixed","interface":"net3","ips":["192.168.3.1"]}]`},
			want: []string{"192.168.1.202%net1 nad/default/lan per-node", "192.168.2.1%net2 nad/default/wide", "192.168.3.1%net3 nad/default/fixed"},
		},
		"Multus before version 3.7":                {annotations: map[string]string{multusStatusOld: `[{"name":"default/wide","interface":"net1","ips":["192.168.2.1"]}]`}, want: []string{"192.168.2.1%net1 nad/default/wide"}},
		"Multus, a definition without an IPAM":     {annotations: map[string]string{multusStatus: `[{"name":"blue/bare","interface":"net1","ips":["192.168.2.1"]}]`}, want: []string{"192.168.2.1%net1 "}},
		"Multus, a definition that cannot be read": {annotations: map[string]string{multusStatus: `[{"name":"default/junk","interface":"net1","ips":["192.168.2.1"]}]`}, want: []string{"192.168.2.1%net1 "}},
		"no JSON":         {annotations: map[string]string{ovn.Annotation: `{"default":`}, unread: ovn.Annotation},
		"one bad network": {annotations: map[string]string{multusStatus: `[{"name":7},{"name":"blue/bare","interface":"net1","ips":["192.168.2.1"]}]`}, want: []string{"192.168.2.1%net1 "}, unread: multusStatus},
		"another JSON":    {annotations: map[string]string{multusStatus: `{"name":"default/lan"}`}, unread: multusStatus},
		"another type":    {annotations: map[string]string{ovn.Annotation: `{"default":{"ip_addresses":"10.244.1.5"}}`}, unread: ovn.Annotation},
		"one network of another type": {
			annotations: map[string]string{ovn.Annotation: `{"default":[],"blue/primary":{"ip_addresses":["10.200.0.5/24"]}}`},
			want:        []string{"10.200.0.5 udn/cluster_udn_blue ovs"}, unread: ovn.Annotation,
		},
		"no prefix length":        {annotations: map[string]string{ovn.Annotation: `{"default":{"ip_addresses":["10.244.1.5"]}}`}, unread: ovn.Annotation},
		"no address":              {annotations: map[string]string{ovn.Annotation: `{"blue/primary":{"ip_addresses":["\u001b[31m"]}}`}, unread: ovn.Annotation},
		"one address of two":      {annotations: map[string]string{ovn.Annotation: `{"blue/primary":{"ip_addresses":["10.200.0.5/24","?"]}}`}, want: []string{"10.200.0.5 udn/cluster_udn_blue ovs"}, unread: ovn.Annotation},
		"no name of a definition": {annotations: map[string]string{ovn.Annotation: `{"../..":{"ip_addresses":["10.244.1.5/24"]}}`}, unread: ovn.Annotation},
		"too long":                {annotations: map[string]string{ovn.Annotation: `{"default":{"ip_addresses":["10.244.1.5/24"]}}` + strings.Repeat(" ", longestAnnotation)}, unread: ovn.Annotation},
		"an empty annotation":     {annotations: map[string]string{ovn.Annotation: "", multusStatus: ""}},
		"other annotations":       {annotations: map[string]string{"example.com/logical_switch": "x", "note": "{"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod("one", "n1", "10.244.1.5")
			pod.Annotations = test.annotations
			c.put(&c.pods, pod)
			if got := networksOf(c.Pod("", "", "uid-one", "n1")); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			problems := c.Status().GetProblems()
			if test.unread == "" && len(problems) != 0 || test.unread != "" && (len(problems) != 1 || !strings.Contains(problems[0], test.unread) || !strings.Contains(problems[0], "default/one")) {
				t.Errorf("got problems %q, want one about %q", problems, test.unread)
			}
			c.drop(&c.pods, pod)
			if len(c.pods.unread)+len(c.pods.attached)+len(c.Status().GetProblems()) != 0 {
				t.Errorf("something is left: %v, %v, %q", c.pods.unread, slices.Collect(maps.Keys(c.pods.attached)), c.Status().GetProblems())
			}
		})
	}
}

// Annotations with thousands of addresses cost little memory.
func TestAPodHasFewNetworks(t *testing.T) {
	var addresses []string
	for i := range 2000 {
		addresses = append(addresses, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))
	}
	pod := testPod("one", "n1", "10.244.1.5")
	pod.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "s", "ovn.kubernetes.io/ip_address": strings.Join(addresses, ",")}
	c := liveMirror(t, func(c *Cluster) { c.put(&c.pods, pod) })
	if n := len(c.Pod("", "", "uid-one", "n1").Memberships); n != mostMemberships {
		t.Errorf("got %d, want %d", n, mostMemberships)
	}
}

// A definition may be read later than the pods that use it, and may change.
func TestNetworksFollowTheirDefinitions(t *testing.T) {
	f := newFakeAPI(t)
	pod := testPod("one", "n1", "10.244.1.5")
	pod.Annotations = map[string]string{multusStatus: `[{"name":"default/lan","interface":"net1","ips":["192.168.2.1"]}]`}
	f.put(pod)
	c := f.open()
	c.discovery.every = 10 * time.Millisecond
	start(t, c)
	live(t, c)
	await := func(what string, want ...string) {
		t.Helper()
		wait.Until(t, what, func() bool {
			p := c.Pod("", "", "uid-one", "n1")
			return p != nil && slices.Equal(networksOf(p), want)
		})
	}
	await("the pod is known", "192.168.2.1%net1 ")
	f.install(whereabouts.Networks)
	apply := func(kind string) {
		f.apply(whereabouts.Networks, `
metadata: {name: lan, namespace: default}
spec: {config: '{"name": "lan", "type": "macvlan", "ipam": {"type": "`+kind+`"}}'}`)
	}
	apply("whereabouts")
	await("the definition is read", "192.168.2.1%net1 nad/default/lan")
	apply("host-local")
	await("it has another IPAM", "192.168.2.1%net1 nad/default/lan per-node")
	f.uninstall(whereabouts.Networks)
	await("there are no definitions any more", "192.168.2.1%net1 ")
	if got := c.Pod("", "", "uid-one", "n1").IPs; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.244.1.5")}) {
		t.Errorf("got addresses %v", got)
	}
	if c.pods.Records[ipam.Key{Namespace: "default", Name: "one"}] == nil {
		t.Error("the pod is lost")
	}
}

func FuzzMemberships(f *testing.F) {
	f.Add(ovn.Annotation, `{"default":{"ip_addresses":["10.244.1.5/24"]}}`)
	f.Add(multusStatus, `[{"name":"default/lan","interface":"net1","ips":["192.168.1.202"]}]`)
	f.Add("ovn.kubernetes.io/ip_address", "10.16.0.7,fd00::1")
	f.Fuzz(func(t *testing.T, name, value string) {
		p := newPods(nil)
		pod := testPod("one", "n1", "10.0.0.1")
		pod.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": value, name: value}
		all, _ := p.readMemberships(pod)
		if len(all) > mostMemberships {
			t.Errorf("got %d", len(all))
		}
		for _, m := range all {
			if !m.Address.IsValid() || len(m.Network) > 253 {
				t.Errorf("got %+v", m)
			}
		}
	})
}

// When the first pod of a tenant comes or the last one goes, all pods are judged again.
func TestTenantsOfTheCluster(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	pod := func(name, router string) *corev1.Pod {
		p := testPod(name, "n1", "10.16.0.7")
		p.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "s", "ovn.kubernetes.io/logical_router": router, "ovn.kubernetes.io/ip_address": "10.16.0.7"}
		return p
	}
	want := func(when string, one, news bool) {
		t.Helper()
		changes, _ := c.take()
		if c.OneTenant() != one || changes.State != news {
			t.Errorf("%s: got one tenant %t, all judged again %t, want %t, %t", when, c.OneTenant(), changes.State, one, news)
		}
	}
	_, _ = c.take()
	c.put(&c.pods, pod("default", kubeOVNDefault))
	want("the default VPC", true, false)
	c.put(&c.pods, pod("blue1", "blue"))
	want("a VPC", false, true)
	c.put(&c.pods, pod("blue2", "blue"))
	want("another pod of it", false, false)
	c.drop(&c.pods, pod("blue1", "blue"))
	want("one of two is left", false, false)
	c.put(&c.pods, pod("blue2", kubeOVNDefault))
	want("the last one moves", true, true)
	c.health.state = pb.Kubernetes_SYNCING
	want("the pods are not known", false, false)
	if none := (*Cluster)(nil); none.OneTenant() {
		t.Error("got one tenant without a cluster")
	}
}
