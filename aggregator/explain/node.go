package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// namesakesFinding returns the text of the finding that several nodes have the same name.
func namesakesFinding(n *verdict.Namesakes) FindingText {
	boots := each(n.Machines, func(m *verdict.Machine) string { return fmt.Sprintf("%s (boot id %s)", m.Name, m.Boot) })
	machines := each(n.Machines, func(m *verdict.Machine) string {
		return fmt.Sprintf("%s: boot id %s, network namespace %s, Linux %s, agent %s, reporting since %s",
			m.Name, m.Boot, m.Netns, m.Kernel, m.Version, m.Since.Time().Format("2006-01-02 15:04:05"))
	})
	text := FindingText{Summary: fmt.Sprintf("%d connected nodes have the name %s; they are shown as %s. "+
		"Their owners are kept separate, but the name alone does not identify one of them, "+
		"and Kubernetes has at most one node of that name.",
		len(n.Machines), n.Name, all(boots))}
	give := advice.Say("Make sure that only one of them uses the name.").Or(
		advice.Either("they are different machines",
			advice.Say("Give all but one of them a unique hostname (`hostnamectl set-hostname NAME`), and restart its agent."),
			advice.Say("If the machines were cloned from one image, make sure that they share nothing but the hostname: on each clone, remove /etc/machine-id, from which DHCP identities and hardware addresses are derived, and recreate it with `systemd-machine-id-setup`.")),
		advice.Either("the hostname must stay as it is, or they are agents in several network namespaces of one machine",
			advice.Say("Start all but one of the agents with a unique name: --node NAME.")),
	)
	if n.Machines[0].Boot == n.Machines[len(n.Machines)-1].Boot {
		give = advice.Say("Some agents run on one kernel, in different network namespaces, and use its hostname: start each agent with a unique --node NAME.")
	}
	text.Remedy = []advice.Action{
		advice.Say("Identify the machines: `cat /proc/sys/kernel/random/boot_id` prints the boot id of a machine. %s.", strings.Join(machines, "; ")),
		give,
		advice.Say("The finding ends when only one connected node has the name."),
	}
	return text
}

// all joins all words: "a, b and c". Unlike list, it does not shorten the list.
func all(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// SharedName returns the problem that a node has the same name as other nodes. The id of the
// finding about that name is finding.
func SharedName(name string, others []string, finding string) string {
	return fmt.Sprintf("it has the same name (%s) as %s: give each a unique hostname, or a unique name with --node (finding %s)",
		name, all(others), finding)
}

// SharedPlace returns the problem that a node reports the boot id and network namespace of other
// nodes.
func SharedPlace(others []string) string {
	return fmt.Sprintf("it reports the same boot id and network namespace as %s, which cannot both be true. "+
		"Reboot a virtual machine that was cloned with its memory, or stop one of two agents on the same host. "+
		"If it is neither of these, an agent sends false reports: find out who has its credentials", all(others))
}

// TenantsUnknown returns the problem that the tenants of pods on ports of Kube-OVN are not known.
// followed is set if the aggregator follows a Kubernetes API.
func TenantsUnknown(pods int, followed bool) string {
	text := fmt.Sprintf("%d interfaces of pods are on ports of Kube-OVN, whose tenants (VPCs) may use the same addresses, and it is not known which tenant they belong to: "+
		"duplicates among them are not detected. Kube-OVN writes the tenant into annotations of the pods. ", pods)
	if followed {
		return text + "The Kubernetes API has no such annotations of these pods: check that the agent knows their names, and that their objects exist (kubectl get pods -A -o yaml)"
	}
	return text + "Let the aggregator follow the Kubernetes API (--kubeconfig)"
}

// Flood returns the problem of a port that floods its agent. The namespace behind the port may be
// nil.
func Flood(port string, behind *verdict.Namespace, leftOut uint64, since verdict.Stamp, rate uint64) string {
	if behind != nil {
		port += " (" + NamespaceName(behind) + ")"
	}
	return fmt.Sprintf(
		"%s floods the agent with new bindings: %d frames and claims were dropped since %s, currently %d per second. "+
			"Claims to addresses that this node or its IPAM knows are still processed, but other claims from this port may be missing. "+
			"Look for a scanner, a loop or an attack behind the port",
		port, leftOut, stampText(since), rate)
}

// Unparsed returns the problem of frames that a node's observer could not parse because they had
// too many VLAN tags, IPv6 extension headers or NDP options. It is empty if there were no such
// frames.
func Unparsed(tags, extensions, options uint64) string {
	var kinds []string
	for _, one := range []struct {
		frames uint64
		what   string
	}{
		{tags, "with too many VLAN tags"},
		{extensions, "with too many IPv6 extension headers"},
		{options, "with too many NDP options"},
	} {
		if one.frames > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", one.frames, one.what))
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	return fmt.Sprintf("since the agent started, some frames could not be parsed completely (%s), so their sender can hide claims to addresses in them. "+
		"Ordinary hosts do not send such frames: capture them on the node's ports to find the sender", all(kinds))
}

// NoMemory returns the problem that the aggregator dropped records and sightings of a node. The
// node uses used bytes of the limit that all nodes share.
func NoMemory(records, sightings int, used, limit int64) string {
	return fmt.Sprintf(
		"the aggregator lacks memory for this node's reports: it dropped %d records of the node's kernel and IPAM and %d sightings on the wire, "+
			"so duplicates of these addresses go undetected. The node uses %d MiB of the %d MiB that all nodes share. "+
			"Find out why it reports so much (a port that floods, interfaces that should not be watched), or give the aggregator more memory",
		records, sightings, used>>20, limit>>20)
}

// TooManyClaims returns the problem that the aggregator dropped claims of a node above a limit.
func TooManyClaims(leftOut, limit int) string {
	return fmt.Sprintf(
		"the aggregator dropped %d sightings on the wire: it accepts at most %d claims per node. Exclude interfaces that should not be watched",
		leftOut, limit)
}

// Fields lists fields of records, each with the number of corrected texts.
func Fields(corrected map[string]int) string {
	var fields []string
	for _, field := range slices.Sorted(maps.Keys(corrected)) {
		fields = append(fields, fmt.Sprintf("%s (%d)", field, corrected[field]))
	}
	return strings.Join(fields, ", ")
}

// Corrected returns the problem that texts reported by a node were invalid, by field.
func Corrected(fields map[string]int) string {
	return "it reported invalid texts: " + Fields(fields) +
		". Invalid characters are shown as \uFFFD or dropped. Check whether something on the node has such a name, or whether the agent's credentials were stolen"
}

// NothingSaved returns the problem that the default data directory cannot be used.
func NothingSaved(dir string, err error) string {
	return fmt.Sprintf("the history and acknowledgements are in memory only and end with this process: %s: make %s writable, or use another --data-dir", err, dir)
}

// Unjudged returns the problem that addresses could not be judged.
func Unjudged(addresses int) string {
	return fmt.Sprintf("%d addresses could not be judged because of a bug, so their conflicts are not detected. Please report the error in the aggregator's log", addresses)
}
