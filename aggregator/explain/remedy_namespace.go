package explain

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// oneNamespace returns the steps that leave one of several network namespaces of a container that is no
// pod. A runtime other than the kubelet's, such as Nomad, ends none of them by itself.
func (a *remedyBuilder) oneNamespace(owners []*verdict.Owner) []advice.Action {
	if keep, right := a.c.Rightful(owners); keep != nil {
		return a.oneNamespaceLeft(keep, owners, fmt.Sprintf(": %s", a.because(keep, right)))
	}
	s := advice.Say("Find out which network namespace %s uses now. Its CNI result in /var/lib/cni/results contains the path (netns); `stat -L -c %%i PATH` on the node prints the number of the namespace.", OwnerName(owners[0]))
	for _, o := range owners[:min(len(owners), mostKept)] {
		s.Choice = append(s.Choice, advice.Either("it uses "+placedNetns(o), a.oneNamespaceLeft(o, owners, "")...))
	}
	return []advice.Action{s}
}

// oneNamespaceLeft returns the steps that end all network namespaces of a container but one.
func (a *remedyBuilder) oneNamespaceLeft(keep *verdict.Owner, owners []*verdict.Owner, because string) []advice.Action {
	steps := []advice.Action{advice.Say("Leave %s of %s as it is. It keeps the address%s. Do not call the CNI plugins to delete another one (DEL): IPAM would free the address of the container.", placedNetns(keep), OwnerName(keep), because)}
	for _, o := range except(owners, keep) {
		steps = append(steps, a.endNamespace(o)...)
	}
	return steps
}

// endNamespace returns the steps that end a network namespace that its container does not use any
// more. The kernel ends a namespace as soon as no process, mount or file descriptor keeps it.
func (a *remedyBuilder) endNamespace(o *verdict.Owner) []advice.Action {
	const look = "On node %s, list the processes in %s."
	restart := []advice.Action{
		advice.Say("Restart what these processes belong to with the program that started it, so that it uses the current network namespace. If that is Nomad, the id of the container is that of the allocation: `nomad alloc restart ALLOCATION TASK` restarts one task of it."),
		advice.Say("The namespace ends with its last process. If it still has the address then, list its processes again, and continue according to the result."),
	}
	if o.Namespace.Netns == "" {
		return []advice.Action{advice.Say(look+" `lsns -t net` lists the namespaces.", o.Node.Name, netnsName(o)).Or(
			advice.Either("it has processes", restart...),
			advice.Either("it has none", advice.Say("Find the mount or file descriptor that keeps it (`findmnt -t nsfs` and `ls -l /proc/[0-9]*/fd | grep 'net:\\['` there), and release it.")),
		)}
	}
	return []advice.Action{
		advice.Say(look, o.Node.Name, netnsName(o)).By(o.Node.Name, processesIn(o.Namespace.Netns)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it lists processes", restart...),
			advice.Either("it lists none",
				advice.Say("On node %s, remove the files that keep %s. The command does nothing if a process runs in it, or if it does not have the address any more.", o.Node.Name, netnsName(o)).
					By(o.Node.Name, advice.Script(
						"if [ -z \"$("+processesIn(o.Namespace.Netns)+")\" ]; then",
						"  findmnt -rn -t nsfs -o TARGET,FSROOT | while read -r file netns; do",
						"    if [ \"$netns\" = 'net:["+o.Namespace.Netns+"]' ] && nsenter --net=\"$file\" ip -o addr show to "+a.address.String()+" | grep -q .; then",
						"      umount \"$file\" && rm -f \"$file\"",
						"    fi",
						"  done",
						"fi")),
				advice.Say("If it still has the address then, a file descriptor keeps it: `ls -l /proc/[0-9]*/fd | grep 'net:\\[%s\\]'` on the node shows the process, which must close it.", o.Namespace.Netns)),
		),
	}
}

// processesIn returns the command that lists the processes in a network namespace, which is identified
// by its inode.
func processesIn(netns string) string {
	return "find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/net' -lname 'net:\\[" + netns + "\\]' 2>/dev/null"
}
