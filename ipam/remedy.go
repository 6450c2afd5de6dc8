package ipam

import (
	"cmp"
	"embed"
	"maps"
	"net/netip"
	"strings"
	"sync"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Repair is how to repair the records and the pools of an IPAM.
type Repair struct {
	// Texts returns the texts of the IPAM, which have these keys. The IPAM lacks what it has no key for.
	//
	//   - reserve, reassign and release are the remedies for one address: in use and considered free, allocated to
	//     another owner, and allocated to an owner that is gone. Without them, the remedy is to restart the holder.
	//   - exclude is the step that excludes an address from a pool, and how/exclude says the same as a clause.
	//   - location is where the record of an address is, if Allocation.Location does not say it.
	//   - enlarge says how to give a pool that is nearly exhausted more addresses, access how to check whether
	//     ipwitness may read the records of a pool, and search how to find out what deleted them.
	//   - cooldown has the IPAM wait for longer before it allocates a released address again.
	//   - forget is the step to take right before a pod is deleted for which the IPAM keeps its address
	//     (Allocation.Kept). Without it, the successor of the pod gets the same address.
	//   - identity corrects a record that gives the address of a running pod the security identity of another one, and
	//     identity/check has the network use the right one.
	//   - leftover removes the record of a pod that does not exist any more, for an address that a running pod has.
	//   - giveup has the program of a controller with Traits.Assigns on a node give up the addresses that are assigned
	//     to other nodes.
	//   - restart-container restarts a container of an engine, so that it gets an address with a record and nothing is
	//     left that has the previous one.
	//   - check/config is the command with which a DHCP server checks its configuration.
	//   - end-fixed stops a container of an engine whose configuration fixes the address of another one.
	//   - check has the IPAM check its own records.
	//   - effect/free is what a missing record of an address in use means, as a clause and possibly more sentences.
	//     effect/elsewhere is the effect of the record of another owner, and effect/wrongnode that of a record of the
	//     right pod on the wrong node.
	//   - backup names the objects to restore from a backup after a pool has lost its records. empty ends all pods of
	//     the node that the pool belongs to, for an IPAM that may give a restarted pod the address of another one.
	//     recreate has the step of the repair plan that creates the object with the records again, without records.
	//   - ranges/field is where the ranges are that the IPAM assigns to nodes, as a noun phrase; ranges/check lists
	//     them, and ranges/renewed says, as a sentence, how a node that registers again gets another range. After
	//     ranges/reassign, one of two nodes with the same range has another one; without it, one of the nodes must
	//     register again. The same with growing in place of ranges is for pools that grow.
	//   - divide has the steps after which a pool that gives parts of its ranges to nodes no longer contains {common},
	//     which is in another such pool, too.
	//   - rightname has the steps after which the IPAM uses the right name for a node.
	Texts func() advice.Texts
	// Words returns the values that only the texts of the IPAM name; nil if there are none.
	Words func(*Case) map[string]any
	// Rebuild is set if the repair plan can write the records of a pool that has lost them.
	Rebuild bool
	Daemon  Daemon
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

//go:embed */*.txt
var texts embed.FS

// ReadTexts returns the texts of files in the folders of IPAMs, which are read when they are first needed.
func ReadTexts(files ...string) func() advice.Texts {
	return sync.OnceValue(func() advice.Texts { return advice.ReadTexts(texts, files...) })
}

// Filler returns the texts of the IPAM with the values of a case. Names are followed by their values.
func (m *IPAM) Filler(c Case, values ...string) advice.Filler {
	c.Pool = cmp.Or(c.Pool, &Pool{})
	words := c.words()
	words["title"] = m.Title
	if m.Words != nil {
		maps.Copy(words, m.Words(&c))
	}
	for i := 0; i < len(values); i += 2 {
		words[values[i]] = values[i+1]
	}
	f := advice.Filler{Value: func(name string) any { return words[name] }}
	if m.Texts != nil {
		f.Texts = m.Texts()
	}
	return f
}

// Steps returns the steps of a key.
func (m *IPAM) Steps(key string, c Case) []advice.Action { return m.Filler(c).Steps(key) }

// Text returns the text of a key.
func (m *IPAM) Text(key string, c Case) string { return m.Filler(c).Text(key) }

// Has reports whether the IPAM has a text for a key.
func (m *IPAM) Has(key string) bool { return m.Texts != nil && m.Texts()[key] != nil }

// A Case is what a text is about: an address with a wrong record, a pool, or a node.
type Case struct {
	Address netip.Addr
	Pool    *Pool
	// Node is the node that the pool belongs to; empty for a pool of the cluster.
	Node string
	// Allocation is the record of the address; empty if there is none.
	Allocation Allocation
	// Holder has the address; nil if no holder is known.
	Holder *Holder
	// Restart returns the restart of the holder; nil if no holder is known. then is its effect, as a clause. The
	// command is for a person, unless now is set and it is safe to run.
	Restart func(then string, now bool) advice.Advice
}

// words returns the values that the texts of all IPAMs may name. Those of the holder begin with its.
func (c *Case) words() map[string]any {
	h, p := cmp.Or(c.Holder, &Holder{}), c.Pool
	yes := map[bool]string{true: "yes"}
	restart := func(now bool) func(string) advice.Advice {
		return func(then string) (a advice.Advice) {
			if c.Restart != nil {
				a = c.Restart(then, now)
			}
			return a
		}
	}
	knode, _, _ := strings.Cut(c.Node, "@") // the agents of several nodes may have the same name
	knode = cmp.Or(h.KubernetesNode, knode)
	words := map[string]any{
		"address": c.Address, "prefix": netip.PrefixFrom(c.Address, c.Address.BitLen()), "node": c.Node, "knode": knode,
		"pool": p.Name, "config": p.Config, "network": p.Network,
		"namespace": c.Allocation.Namespace, "pod": c.Allocation.Pod, "container": c.Allocation.ContainerID, "of.node": c.Allocation.Node,
		"fixed": c.Allocation.FixedIn, "mac": c.Allocation.MAC, "location": c.Allocation.Location,
		"holder": h.Name, "known": yes[c.Holder != nil], "its.namespace": h.Namespace, "its.pod": h.Pod, "ispod": yes[h.IsPod], "uid": h.UID, "sandbox": h.Sandbox,
		"other": h.Network, "interface": h.Interface, "netns": h.Netns, "its.node": h.Node, "its.knode": h.KubernetesNode,
		// restart restarts the holder, restartnow does so in the repair plan if that is safe, and restarting has the
		// steps only.
		"restart": restart(false), "restartnow": restart(true),
		"restarting": func(then string) advice.Advice { return advice.Advice{Remedy: restart(false)(then).Remedy} },
	}
	if !h.IsPod || c.Node == "" { // otherwise its successor must not start there before the records are repaired
		words["cordon"], words["uncordon"] = "", ""
	}
	return words
}

// A Holder is the workload that has an address according to a kernel.
type Holder struct {
	// Name is its name in a sentence.
	Name string
	// IsPod is set for pods, including pods whose names are not known.
	IsPod bool
	// Namespace and Pod are the name of a pod, and UID is its UID. Sandbox is the container ID that
	// the IPAM was given.
	Namespace, Pod, UID, Sandbox string
	// Network is the network that assigned the address to the holder if the pool serves another one; otherwise empty.
	Network string
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
