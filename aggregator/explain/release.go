package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// The steps by which an owner gives the address up.

// listPods is the command that lists pods with their UIDs. For a static pod, the container runtime
// has the hash of its configuration as the UID.
const listPods = `kubectl get pods -A -o 'custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid,HASH:.metadata.annotations.kubernetes\.io/config\.hash'`

// release returns the steps by which an owner gives an address up.
func release(o *verdict.Owner, a netip.Addr) []advice.Action {
	w := o.Workload()
	if o.Orphaned {
		return removal(o)
	}
	switch {
	case o.Namespace == nil && o.Claims[0].Interface.Tap:
		return []advice.Action{advice.Say("Give the device behind %s of node %s a different address. It is most likely a virtual machine (`virsh domiflist` lists the interfaces of each).",
			o.Claims[0].Interface.Name, o.Node.Name)}
	case o.Namespace == nil:
		return []advice.Action{advice.Say("Find the device with MAC %s, which is seen on %s, and give it a different address. The MAC address table of the switch shows its port.",
			o.MAC, witness(o.Claims[0]))}
	case shown(o):
		if o.Kind() == verdict.Host {
			return []advice.Action{advice.Say("Find and stop the process that answers for the address on node %s (MAC %s, seen on %s): the kernel there does not have the address.", o.Node.Name, o.MAC, witness(o.Claims[0]))}
		}
		return []advice.Action{advice.Say("Find the process or machine that uses the address behind %s, the port of %s on node %s (MAC %s), and give it a different address: the kernel there does not have the address.",
			o.Interface.Name, OwnerName(o), o.Node.Name, o.MAC)}
	case w.Kind == verdict.Pod && w.Name == "":
		return []advice.Action{
			advice.Say("Find out the name of %s on node %s.", OwnerName(o), o.Node.Name).By("", listPods+" | grep "+advice.Argument(w.UID)),
			advice.Say("Delete that pod; its controller, if it has one, creates a new one, which requests a new address."),
		}
	case w.Kind == verdict.Pod && static(o):
		return []advice.Action{advice.Say("%s; it then requests a new address.", again(o))}
	case w.Kind == verdict.Pod:
		return deletion(o)
	case restartsByEngine(w):
		return registry.Of(w.Source).RestartContainer(o.Node.Name, w.ContainerID)
	case w.Kind == verdict.Container && !w.OnlyNetns():
		return []advice.Action{advice.Say("Stop %s on node %s and start it again with its container runtime, so that it gets a different address.", OwnerName(o), o.Node.Name)}
	case w.Kind == verdict.VM:
		return []advice.Action{advice.Say("Give %s a different address, or stop it.", OwnerName(o))}
	}
	var steps []advice.Action
	for _, c := range o.Claims {
		if c.Counts() || c.Kind == verdict.DADFailed {
			steps = append(steps, unassign(o, c, a))
		}
	}
	return steps
}

// shown reports whether an owner is known only from frames, and its kernel does not report the
// address.
func shown(o *verdict.Owner) bool {
	return !slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Counts() || c.Kind == verdict.DADFailed })
}

// unassign returns the action that removes an address from one interface of an owner.
func unassign(o *verdict.Owner, c *verdict.Claim, a netip.Addr) advice.Action {
	w, i := o.Workload(), c.Interface
	del := fmt.Sprintf("addr del %s/%d dev %s", a, c.PrefixLength, advice.Quote(i.Name))
	switch {
	case w.Kind == verdict.Host:
		return advice.Say("Remove the address from %s of node %s itself, and from the configuration that sets it there.", i.Name, o.Node.Name).By(o.Node.Name, "ip "+del)
	case w.OnlyNetns():
		return advice.Say("Remove the address from network namespace %s on node %s, and make sure that the software that set it does not set it again.", w.Name, o.Node.Name).
			By(o.Node.Name, "ip -n "+advice.Quote(w.Name)+" "+del)
	case w.Name == "" && w.Ended:
		// The PID may belong to another process by now.
		return advice.Say("No process runs any more in the network namespace of %s on node %s: find the mount or file descriptor that keeps it (`findmnt -t nsfs` and `ls -l /proc/[0-9]*/fd | grep 'net:\\['` there), and release it.",
			OwnerName(o), o.Node.Name)
	case w.Name == "" && w.PID != 0:
		return advice.Say("Remove the address from the network namespace of %s on node %s, and make sure that the software that set it does not set it again.", OwnerName(o), o.Node.Name).
			By(o.Node.Name, fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip %s", w.PID, del))
	}
	return advice.Say("Remove the address from %s of %s on node %s: `lsns -t net` lists the processes in that namespace.", i.Name, OwnerName(o), o.Node.Name)
}

// removal returns the steps that remove a sandbox that was left behind.
func removal(o *verdict.Owner) []advice.Action {
	const kubelet = "a running kubelet does so by itself: if it does not, find out why"
	w := o.Workload()
	remove := advice.Say("On node %s, remove the sandbox of %s; %s.", o.Node.Name, OwnerName(o), kubelet)
	if w.ContainerID != "" {
		id := advice.Argument(advice.ShortID(w.ContainerID))
		return []advice.Action{remove.By(o.Node.Name, "crictl stopp "+id+" && crictl rmp "+id)}
	}
	of := "--label " + advice.Quote("io.kubernetes.pod.uid="+w.UID)
	if w.UID == "" {
		of = "--namespace " + advice.Quote(w.Namespace) + " --name " + advice.Quote(w.Name)
	}
	remove.Text = fmt.Sprintf("Remove that sandbox of %s (`crictl stopp ID && crictl rmp ID`); %s.", OwnerName(o), kubelet)
	return []advice.Action{advice.Say("On node %s, find the id of the sandbox of %s in network namespace %s.", o.Node.Name, OwnerName(o), o.Namespace.Netns).By(o.Node.Name, "crictl pods "+of), remove}
}
