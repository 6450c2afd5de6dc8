package verdict

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/form"
)

// advice says what to do about a conflict, in order.
func (j *judging) advice(c *Conflict, why *reason) []string {
	if c.Rule == RuleSamePod && c.Phase == Suspected {
		return []string{fmt.Sprintf("Wait %s: a sandbox that is made anew takes over its address. Act only if the conflict is confirmed.",
			j.policy.HandoverGrace)}
	}
	if c.Rule == RuleSameVM && c.Phase == Suspected {
		return []string{fmt.Sprintf("Wait %s: while a virtual machine is migrated, the pods that it comes from and goes to may both have its address. Act only if the conflict is confirmed.",
			j.policy.MigrationGrace)}
	}
	var steps []string
	if c.Rule == RuleSameVM {
		steps = append(steps, "See whether the migration is stuck (kubectl get vmim -A), and which of the two runs the virtual machine (kubectl get vmi -A -o wide); the other one must go.")
	}
	if left := orphans(c.Owners); len(left) > 0 && len(left) < len(c.Owners) {
		for _, o := range left {
			steps = append(steps, o.removal())
		}
		return append(steps, c.closing())
	}
	if c.Rule == RuleSplitBrain {
		if c.Phase == Suspected {
			return []string{fmt.Sprintf("Wait %s: nodes that hand an address over may both have it for a moment. Act only if the conflict is confirmed.",
				j.policy.HandoverGrace)}
		}
		steps = append(steps, "If the address is a virtual one, find out why each of the nodes takes itself for the active one (keepalived: VRRP advertisements that do not get through; kube-vip: its lease; MetalLB: what its speakers know of each other). While that is so, no other remedy lasts.")
	}
	if cure := j.remedies(c, why); len(cure) > 0 {
		return append(append(steps, cure...), c.closing())
	}
	second := newcomer(c.Owners)
	if second != nil {
		steps = append(steps, second.cameSecond())
	}
	if pooled(c.Owners) {
		steps = append(steps, "Before anything is restarted, look at the IPAM that gave out the address: while its records miss addresses in use, it gives out the next duplicate.")
	}
	if second != nil {
		steps = append(steps, j.remedy(second))
	} else {
		steps = append(steps, j.choose(c)...)
	}
	return append(steps, c.closing())
}

// closing says how the conflict ends.
func (c *Conflict) closing() string {
	return "The conflict resolves by itself when one owner is left; `ipwitness explain " + c.Address.String() + "` shows how it was judged."
}

// clocksDiffer is how well clocks of nodes can be compared by their skew: that is
// measured to within milliseconds, and kernels stamp addresses by the tick.
const clocksDiffer = 200 * time.Millisecond

// newcomer is the owner that was given the address last; nil where that is not
// known of all, or not one. Clocks of several nodes are compared by their skew.
func newcomer(owners []Owner) *Owner {
	if len(owners) < 2 {
		return nil
	}
	var last *Owner
	var latest, before Stamp
	many := false
	for i := range owners {
		o := &owners[i]
		at := o.AssignedAt()
		if at == 0 {
			return nil
		}
		many = many || o.Node != owners[0].Node
		at = at.Add(-o.Node.Skew)
		if last == nil || at > latest {
			before, last, latest = latest, o, at
		} else {
			before = max(before, at)
		}
	}
	if many && (latest.Sub(before) < clocksDiffer || slices.ContainsFunc(owners, func(o Owner) bool { return !o.Node.SkewKnown })) {
		return nil
	}
	if latest == before {
		return nil
	}
	return last
}

// pooled tells whether an IPAM may have given out the address: to a pod or container.
func pooled(owners []Owner) bool {
	return slices.ContainsFunc(owners, func(o Owner) bool {
		w := o.Workload()
		return w.Kind == Pod || w.Kind == Container && !w.named()
	})
}

// listPods names pods with their UIDs; that of a static pod is the hash of its
// configuration.
const listPods = `kubectl get pods -A -o 'custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid,HASH:.metadata.annotations.kubernetes\.io/config\.hash'`

// remedy is how an owner gives the address up.
func (j *judging) remedy(o *Owner) string {
	w := o.Workload()
	if o.Orphaned {
		return o.removal()
	}
	switch {
	case o.Namespace == nil && o.Claims[0].Interface.Tap:
		return fmt.Sprintf("Find what is behind %s of node %s, most likely a virtual machine (`virsh domiflist` names the interfaces of each), and give it another address.",
			o.Claims[0].Interface.Name, o.Node.Name)
	case o.Namespace == nil:
		return fmt.Sprintf("Find the device with MAC %s, which is seen on %s: the switch's table of MAC addresses shows its port. Give it another address.",
			o.MAC, witness(o.Claims[0]))
	case w.Kind == Pod && w.Name == "":
		return fmt.Sprintf("Find out what %s on node %s is called, and delete it: %s | grep %s", o.name(), o.Node.Name, listPods, argument(w.UID))
	case w.Kind == Pod && o.static():
		return o.again() + "; it asks for a new address then."
	case w.Kind == Pod:
		return fmt.Sprintf("Delete pod %s/%s; %s: kubectl delete pod -n %s %s", w.Namespace, w.Name, o.successor(), quote(w.Namespace), argument(w.Name))
	case w.Kind == Container && !w.named():
		return fmt.Sprintf("Stop %s on node %s and start it anew with its container runtime, so that it gets another address.", o.name(), o.Node.Name)
	case w.Kind == VM:
		return fmt.Sprintf("Give %s another address, or stop it.", o.name())
	}
	c := o.Claims[0]
	if !c.counts() && c.Kind != DADFailed {
		return fmt.Sprintf("Find what uses the address behind %s of node %s (MAC %s) and give it another one.", o.Interface.Name, o.Node.Name, o.MAC)
	}
	del := fmt.Sprintf("addr del %s/%d dev %s", j.in.Address, c.PrefixLength, quote(o.Interface.Name))
	switch {
	case w.Kind == Host:
		return fmt.Sprintf("If node %s itself is not to have the address, take it away there: ip %s", o.Node.Name, del)
	case w.named():
		return fmt.Sprintf("Take the address away from network namespace %s on node %s: ip -n %s %s", w.Name, o.Node.Name, quote(w.Name), del)
	case w.Name == "" && strings.HasSuffix(w.Process, ", ended)"):
		// Its PID may be another process's by now.
		return fmt.Sprintf("Nothing runs any more in the network namespace of %s on node %s: find what keeps it (`findmnt -t nsfs` and `ls -l /proc/[0-9]*/fd | grep 'net:\\['` there), and have it let go.",
			o.name(), o.Node.Name)
	case w.Name == "" && form.PID(w.Process) != "":
		pid := form.PID(w.Process)
		return fmt.Sprintf("Find what %s on node %s is for and stop it, or take the address away from its network namespace: nsenter --net=/proc/%s/ns/net ip %s",
			o.name(), o.Node.Name, quote(pid), del)
	}
	return fmt.Sprintf("Find what runs in %s on node %s (`lsns -t net` lists its processes) and stop it, or take the address off its %s.",
		o.name(), o.Node.Name, o.Interface.Name)
}

func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
