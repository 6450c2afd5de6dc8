package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/tests/situations/record"
)

const (
	incidentPage  = "docs/incidents.md"
	incidentTexts = "tests/testdata/incidents"
)

// incident is an incident that users of other projects reported. Its number is its position in the
// list. How ipwitness reports it is in the files that begin with the number, each written by a test
// that plays it (situations.Incident).
type incident struct {
	// sources are its reports on GitHub, as OWNER/REPOSITORY#NUMBER.
	sources []string
	what    string
	// unknowable says why ipwitness cannot detect it; empty if it can, or if it is not known yet.
	unknowable string
}

var incidents = []incident{
	{[]string{"aws/amazon-vpc-cni-k8s#711"}, "ipamd restarts, finds no pods, and gives their addresses to new pods.", ""},
	{[]string{"aws/amazon-vpc-cni-k8s#3019"}, "Outdated instance metadata makes ipamd free an address in use, which the next pod gets.", ""},
	{[]string{"aws/amazon-vpc-cni-k8s#3824", "aws/amazon-vpc-cni-k8s#3876"}, "ipamd erases running pods from its checkpoint and gives up the prefix of their addresses.", ""},
	{[]string{"aws/amazon-vpc-cni-k8s#3887"}, "A pod gets an address that its ENI no longer has.", "One pod has the address, and ipamd's checkpoint agrees with its kernel. Only EC2 knows that the address is no longer assigned to the ENI, and ipwitness does not read EC2."},
	{[]string{"aws/amazon-vpc-cni-k8s#3628", "aws/amazon-vpc-cni-k8s#3774"}, "An address is reused on another node, and neighbours keep the MAC of the old one.", ""},
	{[]string{"aws/amazon-vpc-cni-k8s#3634"}, "A reused address meets an old DNAT entry, and traffic reaches the wrong service.", ""},
	{[]string{"aws/amazon-vpc-cni-k8s#1091"}, "The address of a pod that is still terminating is given to another pod.", ""},
	{[]string{"Azure/azure-container-networking#1259"}, "azure-cns restarts and gives addresses in use to new pods, in 8 clusters.", ""},
	{[]string{"Azure/azure-container-networking#885"}, "A DEL by the name of a pod frees the address of its successor.", ""},
	{[]string{"Azure/azure-container-networking#4829"}, "The memory of azure-cns says that an address is free, and its state file says that a pod has it.", ""},
	{[]string{"cilium/cilium#14655"}, "Cilium gives an address again that azure-vnet has given to a running pod.", ""},
	{[]string{"cilium/cilium#17277", "cilium/cilium#22770"}, "Two Cilium nodes have one podCIDR.", ""},
	{[]string{"cilium/cilium#41986"}, "Cilium's multi-pool IPAM gives one CIDR to several nodes.", ""},
	{[]string{"cozystack/cozystack#3615", "cozystack/cozystack#3740"}, "A pod of Kube-OVN gets the address of the node's `cilium_host`.", ""},
	{[]string{"projectcalico/calico#12257"}, "A node cloned from a template allocates under the name of the template, and the garbage collection frees the addresses of its running pods.", ""},
	{[]string{"projectcalico/calico#13858"}, "After a restart, two pods claim one route.", ""},
	{[]string{"projectcalico/calico#4374"}, "etcd is restored from a backup: allocations of running pods are missing, and addresses are given twice.", ""},
	{[]string{"projectcalico/calico#5044"}, "The garbage collection frees addresses of running dual-stack pods.", ""},
	{[]string{"projectcalico/calico#3589", "projectcalico/calico#2887"}, "`tunl0` of a node has the address of a pod.", ""},
	{[]string{"antrea-io/antrea#8239"}, "The garbage collection at the start frees an address of host-local that is in use.", ""},
	{[]string{"antrea-io/antrea#7893"}, "Two nodes have one podCIDR.", ""},
	{[]string{"k8snetworkplumbingwg/whereabouts#207", "k8snetworkplumbingwg/whereabouts#176"}, "The reconciler frees addresses of running pods, which new pods get.", ""},
	{[]string{"kubevirt/kubevirt#13709"}, "A migrated guest keeps its address, and IPAM records another one.", ""},
	{[]string{"kube-vip/kube-vip#996", "kube-vip/kube-vip#1385", "kube-vip/kube-vip#1418", "kube-vip/kube-vip#1579", "kube-vip/kube-vip#1775"}, "A virtual IP stays on the old leader.", ""},
	{[]string{"metallb/metallb#2838", "metallb/metallb#589", "metallb/metallb#740"}, "Two speakers answer for one address that no kernel has.", ""},
	{[]string{"metallb/metallb#1890"}, "The fabric blocks a virtual IP after a failover.", "One node holds the address and announces it. That switches drop its frames shows on no node."},
	{[]string{"ovn-kubernetes/ovn-kubernetes#6553"}, "The old node answers for an EgressIP for 4 hours.", ""},
	{[]string{"openshift/ovn-kubernetes#1132"}, "A retry overwrites the addresses that a node has allocated.", ""},
	{[]string{"kubeovn/kube-ovn#3181", "kubeovn/kube-ovn#4304", "kubeovn/kube-ovn#1840"}, "After an upgrade or a restart, two ports have one address.", ""},
	{[]string{"spidernet-io/spiderpool#2526"}, "The garbage collection frees the address of a running StatefulSet pod.", ""},
	{[]string{"moby/moby#27404", "moby/moby#22334", "moby/moby#33795"}, "Docker restarts, or Swarm reschedules, and addresses of running containers are given again.", ""},
	{[]string{"containers/netavark#302", "containers/podman#24432"}, "Two containers on a macvlan network have one address; neighbours keep the MAC of the old one.", ""},
	{[]string{"hashicorp/nomad#26562"}, "A restarted task has a second network namespace with its address.", ""},
	{[]string{"flannel-io/flannel#1437", "containernetworking/plugins#629"}, "Every node has the default configuration of the container runtime, with one range of addresses.", ""},
	{[]string{"k8snetworkplumbingwg/ovs-cni#222"}, "A NetworkAttachmentDefinition with host-local has one range on two nodes.", ""},
	{[]string{"canonical/lxd#3721", "lxc/incus#1265"}, "dnsmasq leases an address that a container has as a fixed one.", ""},
	{[]string{"apache/cloudstack#11710"}, "Two routers are keepalived masters.", ""},
	{[]string{"systemd/systemd#39460", "systemd/systemd#43721"}, "systemd-networkd detects a duplicate of its leased address and sends no DHCPDECLINE.", ""},
	{[]string{"weaveworks/scope#2198"}, "The bridge of a node has the address of a pod, which took three days to find.", ""},
	{[]string{"kubernetes/kubernetes#109414", "kubernetes/kubernetes#135593"}, "An address is reused while the object of its former pod exists, and an endpoint leads to the wrong pod.", ""},
	{[]string{"kubernetes/kubernetes#127410", "kubernetes/kubernetes#75290", "kubernetes/kubernetes#93175"}, "A Service has the address of a node as its external IP, and the other nodes answer for it.", ""},
	{[]string{"threefoldtech/zos#544", "acassen/keepalived#1507"}, "A host with proxy_arp answers for all hosts of a LAN that it has no route to.", ""},
	{[]string{"cilium/cilium#36817"}, "The guest agent of a cloud adds a local route for the range of the pods, and the node keeps their packets.", ""},
	{[]string{"kubernetes/dns#273"}, "A pod gets an address that is the cluster IP of a Service.", ""},
	{[]string{"kubernetes/kubernetes#97076", "kubernetes/kubernetes#22650"}, "A Service has the address of a pod in externalIPs, and takes its packets.", ""},
	{[]string{"sassoftware/viya4-iac-k8s#192"}, "The range of a load balancer overlaps with that of the pods.", ""},
	{[]string{"moby/moby#40989", "moby/moby#41576"}, "An overlay network of Docker Swarm gives the address of an endpoint or of a task to another task.", ""},
	{[]string{"kubernetes/kubernetes#113073", "kubernetes/kubernetes#107730"}, "Sandboxes of deleted pods stay on their node.", ""},
	{[]string{"k3s-io/k3s#10109", "k3s-io/k3s#14682", "kubernetes/kubernetes#30984"}, "Two nodes have one InternalIP.", ""},
	{[]string{"metallb/metallb#1397", "metallb/metallb#364", "metallb/metallb#2700"}, "The pool of MetalLB has the address of a node, and a Service gets it.", ""},
	{[]string{"cloudnativelabs/kube-router#689", "cloudnativelabs/kube-router#496", "lf-edge/eve#6614"}, "A node gets another podCIDR, and its bridge and a pod keep addresses of the former one, which is another node's now.", ""},
	{[]string{"openwrt/odhcpd#48"}, "The routes to hosts behind a proxy stay on a node after the hosts have moved, and the node goes on answering for them.", ""},
	{[]string{"k3s-io/k3s#588", "k3s-io/k3s#179", "canonical/microk8s#429"}, "The range of the pods is that of a LAN of their node, and a host there has the address of a pod.", ""},
	{[]string{"aws/eks-anywhere#940", "openSUSE/wicked#929"}, "Machines were cloned with their machine-id, and a DHCP server takes them for one client.", ""},
	{[]string{"AdaptiveScale/lxdui#266", "AdaptiveScale/lxdui#329"}, "A container was copied with its MAC, and gets the lease of its original.", ""},
	{[]string{"kubernetes/kubernetes#32291"}, "A bridge port in hairpin mode returns the solicitations of a pod, and all of its IPv6 addresses fail.", ""},
	{[]string{"containernetworking/plugins#718"}, "The DEL of a sandbox failed, and its network namespace keeps the address that a new pod gets.", ""},
	{[]string{"containernetworking/plugins#250", "kubevirt/kubevirt#17195"}, "Two machines on one LAN have one MAC and different addresses.", ""},
	{[]string{"linuxkit/linuxkit#1800", "rhoat/ansibleRole-proxmox-templates#1"}, "A machine was cloned with its address and its MAC.", ""},
	{[]string{"BeryJu/gravity#871"}, "Several DHCP servers, which do not know the leases of each other, have one range.", ""},
	{[]string{"k8snetworkplumbingwg/multus-cni#1150", "moby/moby#49921"}, "The macvlan network of each node assigns addresses from one range of the LAN.", ""},
	{[]string{"canonical/lxd#15117", "canonical/lxd#7180", "harvester/harvester#4224"}, "A virtual machine was copied, and both have one address behind the taps of a bridge.", ""},
	{[]string{"cilium/cilium#12953"}, "Cilium takes the address of a pod for that of a Job's pod that has ended, and drops its packets by the wrong policy.", ""},
	{[]string{"acassen/keepalived#2091", "acassen/keepalived#2219", "acassen/keepalived#353"}, "The virtual address of keepalived is the only one of a node: it is in state FAULT there, and the other router takes the address.", ""},
}

// ratings are the properties of the table, in the order of its columns, and the names of their values
// in the files.
var ratings = []struct{ value, title, what string }{
	{"detected", "a: detected", "a conflict is CONFIRMED, or a finding is reported, with nothing configured but the option that the cell names"},
	{"cause", "b: cause", "the cause is named"},
	{"remedy", "c: remedy", "the test carried out the steps that ipwitness prints, or what they do in a cluster, and this ended the conflict or the finding. The cell has the commands among these steps"},
	{"foretold", "d: foretold", "a finding was reported before the duplicate existed or, without a duplicate, before a packet went astray"},
}

// incidentTable adds the page of incidents.
func (c *catalogue) incidentTable() error {
	shown := make([][]record.Record, len(incidents))
	files, err := filepath.Glob(incidentTexts + "/*.txt")
	if err != nil {
		return err
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	recorded := map[played]bool{}
	for _, file := range files {
		r, err := record.Read(file)
		if err != nil {
			return err
		}
		test := r.Values["test"]
		number, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".txt"), "-")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > len(incidents) || name != test {
			fault("%s is of no incident and test", file)
			continue
		}
		at := played{n, c.tests[test]}
		if recorded[at] = true; !c.plays[at] {
			fault("%s: no test %s plays incident %d", file, test, n)
		}
		if incidents[n-1].unknowable != "" {
			fault("%s detects incident %d, which is said to be unknowable", file, n)
		}
		shown[n-1] = append(shown[n-1], r)
	}
	for at := range c.plays {
		if !recorded[at] {
			fault("%s plays incident %d, but %s has no file of it: run the test with -args -update", at.file, at.number, incidentTexts)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	c.pages[incidentPage] = c.incidentPage(shown)
	return nil
}

// incidentPage returns the text of the page. shown are the records of each incident.
func (c *catalogue) incidentPage(shown [][]record.Record) string {
	var b strings.Builder
	b.WriteString(incidentIntro)
	for _, r := range ratings {
		fmt.Fprintf(&b, "- **%s**: %s.\n", r.title, r.what)
	}
	b.WriteString("\n| | Incident |")
	for _, r := range ratings {
		fmt.Fprintf(&b, " %s |", r.title)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(ratings)) + "\n")
	sums := make([]int, len(ratings))
	for i, in := range incidents {
		fmt.Fprintf(&b, "| [%d](#%d) | %s |", i+1, i+1, in.what)
		for k, r := range ratings {
			values := valuesOf(shown[i], r.value)
			if len(values) > 0 {
				sums[k]++
			}
			fmt.Fprintf(&b, " %s |", strings.Join(values, "; "))
		}
		b.WriteString("\n")
	}
	b.WriteString("| | **Sum** |")
	for _, sum := range sums {
		fmt.Fprintf(&b, " **%d of %d** |", sum, len(incidents))
	}
	b.WriteString("\n")
	for i, in := range incidents {
		fmt.Fprintf(&b, "\n## %d\n\n%s Reported in %s.\n", i+1, in.what, links(in.sources))
		for _, r := range shown[i] {
			fmt.Fprintf(&b, "\nPlayed by %s:\n\n```\n%s```\n", c.proof(r.Values["test"], "../"), r.Text)
		}
		switch {
		case in.unknowable != "":
			fmt.Fprintf(&b, "\nipwitness cannot know it. %s\n", in.unknowable)
		case len(shown[i]) == 0:
			b.WriteString("\n*Not yet: no test plays it.*\n")
		}
	}
	return b.String()
}

// valuesOf returns the values with a name in the records of an incident, each once.
func valuesOf(shown []record.Record, name string) (values []string) {
	for _, r := range shown {
		v := "`" + r.Values[name] + "`"
		if name == "remedy" { // a list of commands
			v = strings.ReplaceAll(v, ", ", "`, `")
		}
		if r.Values[name] != "" && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// links returns links to issues.
func links(sources []string) string {
	var all []string
	for _, s := range sources {
		all = append(all, fmt.Sprintf("[%s](https://github.com/%s)", s, strings.Replace(s, "#", "/issues/", 1)))
	}
	return strings.Join(all, ", ")
}

const incidentIntro = `<!-- Made by make generate from the texts of the tests: do not edit. -->

# Incidents

Incidents with duplicate, stolen or stale addresses that users of other projects reported, and how ipwitness reports them. Each text below is what ` + "`ipwitness explain` or `ipwitness audit`" + ` printed in the test that is named with it. The test plays the incident with real network namespaces, with the real plugins and programs where they run there, and otherwise with the files or objects that they write. Values that vary between runs are replaced by fixed ones, as in [situations.md](situations.md).

The table shows what these tests prove. An empty cell means that no test proves it.

`
