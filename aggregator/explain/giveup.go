package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// The steps by which an owner gives the address up.

// listPods names pods with their UIDs; that of a static pod is the hash of its
// configuration.
const listPods = `kubectl get pods -A -o 'custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid,HASH:.metadata.annotations.kubernetes\.io/config\.hash'`

// giveUp returns the steps by which an owner gives an address up.
func giveUp(o *verdict.Owner, a netip.Addr) []Action {
	w := o.Workload()
	if o.Orphaned {
		return removal(o)
	}
	switch {
	case o.Namespace == nil && o.Claims[0].Interface.Tap:
		return []Action{say("Give what is behind %s of node %s another address, most likely a virtual machine (`virsh domiflist` names the interfaces of each).",
			o.Claims[0].Interface.Name, o.Node.Name)}
	case o.Namespace == nil:
		return []Action{say("Find the device with MAC %s, which is seen on %s, and give it another address: the switch's table of MAC addresses shows its port.",
			o.MAC, witness(o.Claims[0]))}
	case shown(o):
		if o.Kind() == verdict.Host {
			return []Action{say("Stop what answers for the address on node %s (MAC %s, seen on %s): its kernel does not have it.", o.Node.Name, o.MAC, witness(o.Claims[0]))}
		}
		return []Action{say("Find what uses the address behind %s, the port of %s on node %s (MAC %s), and give it another one: the kernel there does not have it.",
			o.Interface.Name, OwnerName(o), o.Node.Name, o.MAC)}
	case w.Kind == verdict.Pod && w.Name == "":
		return []Action{
			say("Find out what %s on node %s is called.", OwnerName(o), o.Node.Name).by("", listPods+" | grep "+argument(w.UID)),
			say("Delete that pod; its controller, if it has one, makes a new one, which asks for a new address."),
		}
	case w.Kind == verdict.Pod && static(o):
		return []Action{say("%s; it asks for a new address then.", again(o))}
	case w.Kind == verdict.Pod:
		return deletion(o)
	case w.Kind == verdict.Container && !w.OnlyNetns():
		return []Action{say("Stop %s on node %s and start it anew with its container runtime, so that it gets another address.", OwnerName(o), o.Node.Name)}
	case w.Kind == verdict.VM:
		return []Action{say("Give %s another address, or stop it.", OwnerName(o))}
	}
	var steps []Action
	for _, c := range o.Claims {
		if c.Counts() || c.Kind == verdict.DADFailed {
			steps = append(steps, unassign(o, c, a))
		}
	}
	return steps
}

// shown reports whether only frames show that an owner has the address, and no kernel does.
func shown(o *verdict.Owner) bool {
	return !slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Counts() || c.Kind == verdict.DADFailed })
}

// unassign returns the action that removes an address from one interface of an owner.
func unassign(o *verdict.Owner, c *verdict.Claim, a netip.Addr) Action {
	w, i := o.Workload(), c.Interface
	del := fmt.Sprintf("addr del %s/%d dev %s", a, c.PrefixLength, quote(i.Name))
	switch {
	case w.Kind == verdict.Host:
		return say("Take the address away from %s of node %s itself, and out of the configuration that sets it there.", i.Name, o.Node.Name).by(o.Node.Name, "ip "+del)
	case w.OnlyNetns():
		return say("Take the address away from network namespace %s on node %s, and see that what set it does not set it again.", w.Name, o.Node.Name).
			by(o.Node.Name, "ip -n "+quote(w.Name)+" "+del)
	case w.Name == "" && w.Ended:
		// Its PID may be another process's by now.
		return say("Nothing runs any more in the network namespace of %s on node %s: find what keeps it (`findmnt -t nsfs` and `ls -l /proc/[0-9]*/fd | grep 'net:\\['` there), and have it let go.",
			OwnerName(o), o.Node.Name)
	case w.Name == "" && w.PID != 0:
		return say("Take the address away from the network namespace of %s on node %s, and see that what set it does not set it again.", OwnerName(o), o.Node.Name).
			by(o.Node.Name, fmt.Sprintf("nsenter --net=/proc/%d/ns/net ip %s", w.PID, del))
	}
	return say("Take the address off %s of %s on node %s: `lsns -t net` lists the processes in there.", i.Name, OwnerName(o), o.Node.Name)
}

// removal returns the steps that remove a sandbox that was left behind.
func removal(o *verdict.Owner) []Action {
	const kubelet = "kubelet does so by itself where it runs: if it does not, find out why"
	w := o.Workload()
	remove := say("On node %s, remove the sandbox of %s; %s.", o.Node.Name, OwnerName(o), kubelet)
	if w.ContainerID != "" {
		id := argument(shortID(w.ContainerID))
		return []Action{remove.by(o.Node.Name, "crictl stopp "+id+" && crictl rmp "+id)}
	}
	of := "--label " + quote("io.kubernetes.pod.uid="+w.UID)
	if w.UID == "" {
		of = "--namespace " + quote(w.Namespace) + " --name " + quote(w.Name)
	}
	remove.Text = fmt.Sprintf("Remove that sandbox of %s (`crictl stopp ID && crictl rmp ID`); %s.", OwnerName(o), kubelet)
	return []Action{say("On node %s, find the id of the sandbox of %s that is in network namespace %s.", o.Node.Name, OwnerName(o), o.Namespace.Netns).by(o.Node.Name, "crictl pods "+of), remove}
}
