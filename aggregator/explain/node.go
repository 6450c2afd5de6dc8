package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// tellNamesakes puts the finding that several nodes have one name into words.
func tellNamesakes(n *verdict.Namesakes) Told {
	boots := each(n.Machines, func(m *verdict.Machine) string { return fmt.Sprintf("%s (boot id %s)", m.Name, m.Boot) })
	machines := each(n.Machines, func(m *verdict.Machine) string {
		return fmt.Sprintf("%s: boot id %s, network namespace %s, Linux %s, agent %s, reporting since %s",
			m.Name, m.Boot, m.Netns, m.Kernel, m.Version, m.Since.Time().Format("2006-01-02 15:04:05"))
	})
	told := Told{Summary: fmt.Sprintf("%d nodes that report now call themselves %s: they are shown as %s. "+
		"What they hold is kept apart, but the name alone does not say which of them is meant, "+
		"and Kubernetes knows one node of that name at most.",
		len(n.Machines), n.Name, all(boots))}
	give := say("Have one of them alone go by that name.").or(
		either("they are several machines",
			say("Give all but one of them a hostname of its own (`hostnamectl set-hostname NAME`), and restart its agent."),
			say("Of machines cloned from one image, make sure that they share no more than the hostname: /etc/machine-id, from which DHCP identities and derived hardware addresses come, is to be removed on the clone and made anew with `systemd-machine-id-setup`.")),
		either("the hostname is to stay as it is, or they are agents in several network namespaces of one machine",
			say("Start the agent of all but one of them with a name of its own: --node NAME.")),
	)
	if n.Machines[0].Boot == n.Machines[len(n.Machines)-1].Boot {
		give = say("Some run on one kernel, in several network namespaces, and have its hostname: start each agent with a --node of its own.")
	}
	told.Remedy = []Action{
		say("Find out which they are: `cat /proc/sys/kernel/random/boot_id` on a machine gives its boot id. %s.", strings.Join(machines, "; ")),
		give,
		say("The finding is over as soon as one of them has another name, or is not heard from."),
	}
	return told
}

// all lists all words: a, b and c.
func all(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// SharedName describes that a node has the name of other nodes, for which there is a finding.
func SharedName(name string, others []string, finding string) string {
	return fmt.Sprintf("it calls itself %s, as does %s: give each a hostname of its own, or name it with --node (finding %s)",
		name, all(others), finding)
}

// SharedPlace describes that a node says that it has the boot id and network namespace of other
// nodes.
func SharedPlace(others []string) string {
	return fmt.Sprintf("it says that it has the boot id and network namespace of %s: one of them is not what it says. "+
		"A virtual machine that was cloned with its memory must be booted, and of two agents on one host one must go; "+
		"where it is neither, an agent lies: find out who has its credential", all(others))
}

// Flood describes a port that floods its agent. The namespace behind it may be nil.
func Flood(port string, behind *verdict.Namespace, leftOut uint64, since verdict.Stamp, rate uint64) string {
	if behind != nil {
		port += " (" + NamespaceName(behind) + ")"
	}
	return fmt.Sprintf(
		"%s floods the agent with new bindings: %d frames and claims were left out since %s, %d a second now. "+
			"Claims to addresses that this node or its IPAM knows are still taken, others by this port may be missing: "+
			"look for a scanner, a loop or an attack behind it",
		port, leftOut, stampText(since), rate)
}

// Unparsed describes the frames that a node's observer could not parse: those with too many VLAN
// tags, IPv6 extension headers and NDP options. It is empty if there were none.
func Unparsed(tags, extensions, options uint64) string {
	var kinds []string
	for _, one := range []struct {
		frames uint64
		what   string
	}{
		{tags, "under more VLAN tags than are read"},
		{extensions, "with more IPv6 extension headers than are read"},
		{options, "with more NDP options than are read"},
	} {
		if one.frames > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", one.frames, one.what))
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	return fmt.Sprintf("since the agent started, some frames were not read to the end (%s): their sender can hide claims to addresses in them; "+
		"ordinary hosts do not send such frames: capture them on the node's ports to find the sender", all(kinds))
}

// NoMemory describes that records and sightings of a node are left out. The node uses used bytes
// of the limit that all nodes share.
func NoMemory(records, sightings int, used, limit int64) string {
	return fmt.Sprintf(
		"the aggregator has no memory for all that this node reports: %d records of its kernel and IPAM and %d sightings on the wire are left out, "+
			"so that duplicates of them are not seen. The node uses %d MiB of the %d MiB that all nodes share: "+
			"find out why it reports so much (a port that floods, interfaces that are not to be watched), or give the aggregator more memory",
		records, sightings, used>>20, limit>>20)
}

// TooManyClaims describes that claims of a node beyond a limit were left out.
func TooManyClaims(leftOut, limit int) string {
	return fmt.Sprintf(
		"the aggregator left out %d reports of the wire: it takes %d claims of one node at most; exclude interfaces that are not to be watched",
		leftOut, limit)
}

// Fields lists the fields of records with how often a text in them was corrected.
func Fields(corrected map[string]int) string {
	var fields []string
	for _, field := range slices.Sorted(maps.Keys(corrected)) {
		fields = append(fields, fmt.Sprintf("%s (%d)", field, corrected[field]))
	}
	return strings.Join(fields, ", ")
}

// Corrected describes that texts of a node were not what they were said to be, by their fields.
func Corrected(fields map[string]int) string {
	return "some texts that it reported cannot be what they were said to be: " + Fields(fields) +
		"; what does not belong in them is shown as \uFFFD, or left out: see whether something on the node has such a name, or whether the agent's credentials were stolen"
}

// Unjudged describes that addresses could not be judged.
func Unjudged(addresses int) string {
	return fmt.Sprintf("%d addresses could not be judged because of a defect: conflicts of them are not found; please report what the log says", addresses)
}
