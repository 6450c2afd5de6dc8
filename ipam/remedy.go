package ipam

import (
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Repair is how to repair the records and the pools of an IPAM. Fields that are nil or empty do not
// apply.
type Repair struct {
	// Remedies returns the remedies for one address. If it is nil, the remedy is to restart the
	// holder.
	Remedies func(Case, Advisor) Remedies
	// Exclude returns how to exclude an address from a pool. node is the node that the pool belongs
	// to; empty for a pool of the cluster.
	Exclude func(p *Pool, node string, a netip.Addr) Exclusion
	// Location returns where the record of an address is, if Allocation.Location does not say it.
	Location func(p *Pool, a netip.Addr) string
	// Enlarge returns how to give a pool that is nearly exhausted more addresses.
	Enlarge func(p *Pool) string
	// Access returns how to check whether ipwitness may read the records of a pool.
	Access func(p *Pool) string
	// Cooldown is how to have the IPAM wait for longer before it allocates a released address again; empty
	// if it has no setting for that.
	Cooldown advice.Action
	// Forget returns the step to take right before a pod is deleted for which the IPAM keeps its address
	// (Allocation.Kept). Without it, the successor of the pod gets the same address.
	Forget func(namespace, pod string) advice.Action
	// LeftOver returns the steps that remove the record of a pod that does not exist any more, for an
	// address that a running pod has, too.
	LeftOver func(Case) []advice.Action
	// GiveUp returns the steps by which the program of a controller with Traits.Assigns on a node gives
	// up the addresses that are assigned to other nodes. node is the name in Kubernetes.
	GiveUp func(node string) []advice.Action
	// RestartContainer returns the steps that restart a container of an engine, so that it gets an
	// address with a record and nothing is left that has the previous one.
	RestartContainer func(node, id string) []advice.Action
	// Check has the IPAM check its own records; empty if it cannot.
	Check advice.Action
	Effects
	Loss   Loss
	Daemon Daemon
	// NodeRanges is how the IPAM assigns ranges to nodes, and GrowingRanges is the same for pools that
	// grow.
	NodeRanges, GrowingRanges NodeRanges
	// DivideOthers returns the steps after which a pool that gives parts of its ranges to nodes no longer
	// contains common, which is in another such pool, too. config is the object that configures it.
	DivideOthers func(config, common string) []advice.Action
	// RightName returns the steps after which the IPAM uses the right name for a node, for an IPAM with
	// names of its own.
	RightName func(Place) []advice.Action
}

// MayList returns the Access of an IPAM whose pools are read from objects of the given kinds. all is the
// flag " -A" if they are in namespaces.
func MayList(all string, first Kind, others ...Kind) func(*Pool) string {
	var text strings.Builder
	text.WriteString("Check whether the aggregator may read it: kubectl auth can-i list " + first.String() + all + " --as=system:serviceaccount:NAMESPACE:NAME")
	for i, k := range others {
		text.WriteString([]string{"; the same for ", " and "}[i] + k.String())
	}
	return func(*Pool) string { return text.String() + "." }
}

// A Remedy has an address whose record is wrong, and collects the steps that repair it.
type Remedy struct {
	Case
	Advisor
}

// An Exclusion is how to exclude an address from a pool.
type Exclusion struct {
	// How is a clause, such as "add it to exclude in its configuration".
	How string
	// Step is the same as an action; empty if there is none for this pool.
	Step advice.Action
}

// Effects are the effects of wrong records, where they differ from those with other IPAMs.
type Effects struct {
	// Free says, as a clause and possibly more sentences, what a missing record of an address in use
	// means.
	Free string
	// Elsewhere is the effect of the record of another owner, and WrongNode that of a record of the
	// right pod on the wrong node.
	Elsewhere, WrongNode string
}

// Loss is what to do after a pool has lost all of its records.
type Loss struct {
	// Rebuild is set if the repair plan can write the records again.
	Rebuild bool
	// Backup names the objects to restore from a backup, for an IPAM without Rebuild.
	Backup string
	// Empty returns the steps that end all pods of the node that the pool belongs to, for an IPAM
	// without Rebuild that may give a restarted pod the address of another one. kubernetes is the
	// name of the node in Kubernetes.
	Empty func(node, kubernetes string) []advice.Action
	// Recreate returns the command that creates the object with the records again, without records;
	// false if the object is not known.
	Recreate func(p *Pool) (advice.Fix, bool)
	// Search returns how to find out what deleted the records.
	Search func(p *Pool) string
}

// Daemon is the program on each node that allocates addresses for devices of the node, such as
// tunnels.
type Daemon struct {
	// Name is the name of its DaemonSet, and Label the label of its pods.
	Name, Label string
}

// Restart returns the command that restarts the daemon on a node. node is the name in Kubernetes.
func (d Daemon) Restart(node string) string {
	return "kubectl delete pods -A -l " + d.Label + " --field-selector " + advice.Quote("spec.nodeName="+node)
}

// NodeRanges is how the IPAM assigns ranges to nodes, if it does so itself.
type NodeRanges struct {
	// Field is where the ranges of a node are, as a noun phrase.
	Field string
	// Check lists the ranges of all nodes.
	Check advice.Action
	// Renewed says, as a sentence, how a node that registers again gets another range.
	Renewed string
	// Reassign are the steps after which one of two nodes with the same range has another one instead.
	// If there are none, one of the nodes must register again.
	Reassign []advice.Action
}

// Remedies builds the steps that repair the record of one address.
type Remedies interface {
	// Reserve is for an address in use that the IPAM considers free.
	Reserve()
	// Reassign is for an address in use that the IPAM has allocated to another owner.
	Reassign()
	// Release is for an address that the IPAM has allocated to an owner that is gone.
	Release()
}

// An Advisor collects the steps of a remedy.
type Advisor interface {
	// State adds a fact to the evidence.
	State(format string, args ...any)
	// Advise adds an action without a command, and Act adds actions.
	Advise(format string, args ...any)
	Act(actions ...advice.Action)
	// Fix adds a command to the repair plan, and ByHand a step that a person must carry out, with its
	// command, if there is one.
	Fix(f advice.Fix)
	ByHand(node, command, format string, args ...any)
	// Restart adds the restart of the holder, which a person must carry out. The parameter then is
	// its effect, as a clause. RestartNow is the same, but adds a command to the repair plan if it is
	// safe to run. Restarting only returns the steps and the command; there are none if the holder
	// is not known.
	Restart(then string)
	RestartNow(then string)
	Restarting(then string) ([]advice.Action, advice.Fix)
}

// A Case is an address whose record is wrong.
type Case struct {
	Address netip.Addr
	Pool    *Pool
	// Node is the node that the pool belongs to; empty for a pool of the cluster.
	Node string
	// Allocation is the record of the address; empty if there is none.
	Allocation Allocation
	// Holder has the address; nil if no holder is known.
	Holder *Holder
}

// KubernetesNode returns the name in Kubernetes of the node that the pool belongs to, as far as it is
// known.
func (c *Case) KubernetesNode() string {
	if c.Holder != nil && c.Holder.KubernetesNode != "" {
		return c.Holder.KubernetesNode
	}
	name, _, _ := strings.Cut(c.Node, "@") // the agents of several nodes may have the same name
	return name
}

// Cordon advises to start no pods on the node of the pool for now, if the holder is a pod.
func (c *Case) Cordon(a Advisor) {
	if c.restartsPod() {
		a.Act(advice.Cordon(c.KubernetesNode()))
	}
}

// Uncordon adds the action that reverts Cordon.
func (c *Case) Uncordon(a Advisor) {
	if c.restartsPod() {
		a.Act(advice.Uncordon(c.KubernetesNode()))
	}
}

// RestartAlone advises to restart the holder if it is the only one of the node without a record, and to
// take other steps otherwise: its successor could get the address of another one. then is the effect of
// the restart, as a clause.
func (c *Case) RestartAlone(a Advisor, then string, others ...advice.Action) {
	restart, fix := a.Restarting(then)
	a.Act(
		advice.Say("Check which addresses of node %s have no record.", c.Node).By("", "ipwitness audit --kind in-use-unallocated "+advice.Argument(c.Node)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it is only "+c.Address.String(), restart...),
			advice.Either("there are others", others...),
		))
	if fix.What != "" {
		a.Fix(fix)
	}
}

// restartsPod reports whether the holder is a pod of a known node.
func (c *Case) restartsPod() bool { return c.Holder != nil && c.Holder.IsPod && c.Node != "" }

// A Holder is the workload that has an address according to a kernel.
type Holder struct {
	// Name is its name in a sentence.
	Name string
	// IsPod is set for pods, including pods whose names are not known.
	IsPod bool
	// Namespace and Pod are the name of a pod, and UID is its UID. Sandbox is the container ID that
	// the IPAM was given.
	Namespace, Pod, UID, Sandbox string
	// Interface is the interface with the address; empty if it is not known which interface of the
	// holder has it. Netns is the inode of the network namespace.
	Interface, Netns string
	Place
}

// Place is the node of a holder.
type Place struct {
	// Node is the name of the node, and KubernetesNode the name in Kubernetes; empty if it is not
	// known.
	Node, KubernetesNode string
	// OfAllocation is set if the allocation names this node.
	OfAllocation bool
	// WrongName is the name that the IPAM has for the node if it is the name of another node.
	WrongName NodeName
}
