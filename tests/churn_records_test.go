package tests

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/churn"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// apiObjects are the custom resources of an api.
type apiObjects struct {
	t *testing.T
	*api
}

// name returns the name of a kind in apiKinds.
func (o apiObjects) name(k ipam.Kind) string {
	if apiKinds[k.String()] != "" {
		return k.String()
	}
	return k.Resource
}

// Apply implements churn.Objects.
func (o apiObjects) Apply(k ipam.Kind, text string) { o.t.Helper(); o.apply(o.t, o.name(k), text) }

// Remove implements churn.Objects.
func (o apiObjects) Remove(k ipam.Kind, at ipam.Key) { o.drop(o.name(k), at.Name) }

// azureNetworks are networks of Azure CNI, by the name of the plugin. Their records are files, which the
// test writes in the order of the programs.
var azureNetworks = map[string]func(n *azureNode, live map[int]churn.Pod, freed bool){
	"azure-cns": func(n *azureNode, live map[int]churn.Pod, _ bool) {
		n.save("azure-cns/azure-endpoints.json", ipamtest.AzureEndpoints(azurePods(live)...))
	},
	"azure-vnet-ipam": func(n *azureNode, live map[int]churn.Pod, freed bool) {
		addresses := make(map[string]string)
		for i := range 200 { // many more than are used at a time, because a pool that fills up is a finding
			addresses[fmt.Sprint("10.240.0.", i+1)] = live[i+1].Container
		}
		vnet := func() { n.save("azure-vnet.json", ipamtest.AzureVnet(azurePods(live)...)) }
		if freed {
			vnet()
		}
		n.save("azure-vnet-ipam.json", ipamtest.AzureIPAM(addresses))
		if !freed {
			vnet()
		}
	},
}

// azurePods returns pods in Azure's format.
func azurePods(live map[int]churn.Pod) (pods []ipamtest.AzurePod) {
	for _, i := range slices.Sorted(maps.Keys(live)) {
		pods = append(pods, ipamtest.AzurePod{
			Namespace: "default", Name: live[i].Name, Container: live[i].Container, Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.240.0.", i))}, NICType: "InfraNIC",
		})
	}
	return pods
}

// Pods come and go, and IPAMs whose programs do not run here write their records before or after the
// pods have their addresses.
func TestChurnOfRecordsIsSilent(t *testing.T) {
	t.Parallel()
	for _, k := range churn.Networks {
		t.Run(k.IPAM.Name, func(t *testing.T) {
			t.Parallel()
			l := &lab{Host: newHost(t), t: t}
			if k.Underlay {
				l.lan(k.Address(254) + "/24")
			}
			api, kubeconfig := serveAPI(t, l.Host)
			api.put(t, "nodes", "", "node1", "{}")
			o := apiObjects{t, api}
			k.Begin(o)
			l.start("--node", "node1", "--kubeconfig", kubeconfig, "--leaked-after", "20s")
			running := func(pod string) {
				api.put(t, "pods", "default", pod, `{"spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}`)
			}
			l.churnOfRecords(k.Name, k.IPAM.StartDelay > time.Minute, k.Address, func(live map[int]churn.Pod, i int, pod churn.Pod, freed bool) {
				if !freed {
					running(pod.Name)
				}
				k.Write(o, live, i, pod, freed)
				if freed {
					api.drop("pods", pod.Name)
				}
			}, func(pod, address string) {
				running(pod)
				if !k.Underlay {
					l.played(k.Name, pod, address)
					return
				}
				l.pod(pod)
				l.sh("ip link del v"+pod, "ip link add link eth0 name m"+pod+" type macvlan mode bridge", "ip link set m"+pod+" name eth0 netns "+pod, "ip -n "+pod+" link set eth0 up")
				l.assign(pod, address+"/24")
				l.named(k.Name, pod, address+"/24")
			})
		})
	}
	for plugin, save := range azureNetworks {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			n := newAzureNode(t, plugin, "--leaked-after", "20s")
			n.churnOfRecords("azure", false, func(i int) string { return fmt.Sprint("10.240.0.", i) }, func(live map[int]churn.Pod, _ int, _ churn.Pod, freed bool) {
				save(n, live, freed)
			}, func(pod, address string) { n.played("azure", pod, address) })
		})
	}
}

// churnOfRecords lets pods of a network come and go. write writes the records after one of them changed, and start starts a
// pod with an address. At the end, an address is found that a pod has without a record, and a record of
// a pod that does not exist. The former is not awaited for an IPAM that may write its records late.
func (l *lab) churnOfRecords(network string, late bool, address func(i int) string, write func(live map[int]churn.Pod, i int, pod churn.Pod, freed bool), start func(pod, address string)) {
	l.t.Helper()
	const seed, addresses, stay, thief, leak = 17, 40, 5, 51, 52
	l.t.Logf("seed %d", seed)
	found := l.follow()
	live := make(map[int]churn.Pod)
	record := func(name string, i int, comes bool) {
		pod := churn.Pod{Name: name, Container: sandbox(name)}
		if live[i] = pod; !comes {
			delete(live, i)
		}
		write(live, i, pod, !comes)
	}
	for _, s := range churn.Steps(rand.New(rand.NewPCG(seed, 0)), churned(12), addresses, stay, 50*time.Millisecond) { //nolint:gosec // for a test
		switch name := fmt.Sprint("p", s.Pod); {
		case s.Record:
			record(name, s.Address+1, s.Comes)
		case s.Comes:
			start(name, address(s.Address+1))
		default:
			l.sh("ip netns del "+name, "rm /var/lib/cni/results/"+network+"-"+sandbox(name)+"-eth0")
		}
	}
	l.plant()
	l.awaitFindings()
	if got := found.all(); len(got) != 0 {
		l.t.Errorf("findings: got %q, want none", got)
	}
	l.wantConfirmed()
	start("thief", address(thief))
	record("gone", leak, true)
	want := []string{"in-use-unallocated " + address(thief), "leaked " + address(leak)}
	if late {
		want = want[1:]
	}
	wait.Until(l.t, fmt.Sprintf("findings %q", want), func() bool {
		all := found.all()
		slices.Sort(all)
		return slices.Equal(all, want)
	})
}
