package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// An unknown version of whereabouts is reported. A known version that is installed later is
// read. Multus without IPAMClaims, which are in another version of its group, is no problem.
func TestVersionsOfWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	odd := whereabouts.Pools
	odd.Version = "v1beta1"
	f.install(odd, ipam.Kind{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"})
	c := f.open()
	l := keep(t, c)
	live(t, c)
	problem := "ippools.whereabouts.cni.cncf.io is served only as [v1beta1], but ipwitness supports only v1alpha1: the allocations of whereabouts are unknown; use a version of ipwitness that supports it"
	l.await("the unsupported version is reported", "whereabouts whereabouts.cni.cncf.io unreadable: "+problem)
	problems := c.Status().GetProblems()
	if !slices.Contains(problems, problem) || slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "k8s.cni.cncf.io ") }) {
		t.Errorf("got problems %q", problems)
	}
	f.uninstall(odd)
	f.install(whereabouts.Pools)
	f.apply(whereabouts.Pools, ipamtest.WhereaboutsPool)
	wait.Until(t, "the supported version is read", func() bool { return strings.HasPrefix(l.text(), "whereabouts kube-system/192.168.2.0-24 known") })
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
	f.uninstall(whereabouts.Pools)
	l.await("whereabouts is removed", "")
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
}

// Pools of Cilium are read in an older version until the API server serves the present one, in which they have fields that an
// API server that serves both removes from the older one.
func TestVersionsOfCilium(t *testing.T) {
	f := newFakeAPI(t)
	older := cilium.Pools.In("v2alpha1")
	f.install(older)
	f.apply(older, "metadata: {name: blue}\nspec: {ipv4: {cidrs: [10.10.0.0/16], maskSize: 24}}")
	c := f.open()
	l := keep(t, c)
	wait.Until(t, "the older version is read", func() bool {
		return strings.HasSuffix(l.text(), "CiliumPodIPPool blue reading 10.10.0.0-10.10.255.255")
	})
	f.install(cilium.Pools)
	f.apply(cilium.Pools, "metadata: {name: blue}\nspec: {ipv4: {cidrs: [{cidr: 10.11.0.0/16}], maskSize: 24}}")
	f.apply(older, "metadata: {name: blue}\nspec: {ipv4: {cidrs: [{}], maskSize: 24}}")
	wait.Until(t, "the present version is read", func() bool {
		f.cut() // its watches end
		return strings.HasSuffix(l.text(), "CiliumPodIPPool blue reading 10.11.0.0-10.11.255.255")
	})
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
}

// BenchmarkWhereabouts reads 10,000 addresses of a network that is divided among 1,000 nodes,
// and then adds a node.
func BenchmarkWhereabouts(b *testing.B) {
	const nodes, pods = 1000, 10
	f := newFakeAPI(b)
	f.install(whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	f.apply(whereabouts.Networks, `
metadata: {name: big, namespace: default}
spec: {config: '{"name": "big", "type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/8", "node_slice_size": "/24"}}'}`)
	slice := func(node int) {
		var given []string
		for i := range pods {
			pod := fmt.Sprintf("default/pod-%d-%d", node, i)
			given = append(given, fmt.Sprintf(`"%d": {id: %064x, podref: %s, ifname: net1}`, i+1, node*pods+i, pod))
			f.apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation(fmt.Sprintf("10.%d.%d.%d", node/256, node%256, i+1), pod))
		}
		f.apply(whereabouts.Pools, fmt.Sprintf("metadata: {name: node-%d-10.%d.%d.0-24, namespace: kube-system}\nspec: {range: 10.%d.%d.0/24, allocations: {%s}}",
			node, node/256, node%256, node/256, node%256, strings.Join(given, ", ")))
	}
	for node := range nodes {
		slice(node)
	}
	var listed, added time.Duration
	for b.Loop() {
		c := f.open()
		c.discovery.every = 20 * time.Millisecond
		known := func(pools int) func() bool {
			return func() bool {
				c.mu.RLock()
				defer c.mu.RUnlock()
				return len(c.ipams[0].pools) == pools && c.ipams[0].state == ipam.Known
			}
		}
		begin := time.Now()
		stop := run(c)
		wait.Until(b, "all is listed", known(nodes))
		listed += time.Since(begin)
		begin = time.Now()
		slice(nodes)
		wait.Until(b, "the added node is known", known(nodes+1))
		added += time.Since(begin)
		stop()
		f.remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: fmt.Sprintf("node-%d-10.%d.%d.0-24", nodes, nodes/256, nodes%256)})
	}
	b.ReportMetric(listed.Seconds()/float64(b.N), "sync-s")
	b.ReportMetric(added.Seconds()/float64(b.N), "another-s")
}
