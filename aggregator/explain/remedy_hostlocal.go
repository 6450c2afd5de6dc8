package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// hostLocal builds the remedies for addresses of host-local.
type hostLocal struct {
	*telling
	file hostLocalFile
}

// reserve advises to write the missing reservation.
func (t hostLocal) reserve() {
	node := t.node()
	t.cordon(node)
	if why := t.unwritable(); why != "" {
		t.act(say("The reservation cannot be written (%s). First make sure that the directory has reservations for all other addresses in use: otherwise, the restarted holder gets another duplicate.", why).by("", "ipwitness audit --kind "+verdict.FindingInUseUnallocated))
		t.byHand(node, "", "Reserve %s in %s for its holder. Do this by hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it requests a free address")
		t.uncordon(node)
		return
	}
	t.advise("On node %s, write the reservations of all addresses in use, in the format of host-local.", node)
	t.act(plan(node)...)
	t.uncordon(node)
	t.advise("Find out what deleted the records: a restore, a clean-up script, or a reboot that emptied a tmpfs while pods kept running. host-local needs %s as long as its pods exist.", t.pool.Name)
	t.fix(Fix{
		Node: node,
		What: fmt.Sprintf("Reserve %s for %s, which holds it: host-local then allocates it to no other container, and frees it when this one ends.", t.f.Address, OwnerName(t.owner)),
		Command: script(
			"if "+t.holds()+"; then",
			"  mkdir -p "+t.file.dir(),
			t.file.locked("  ",
				"if [ -e "+t.file.path()+" ]; then",
				"  echo "+quote(t.f.Address.String()+": its file exists: nothing to do"),
				"else",
				"  umask 077; set -C",
				"  "+t.reservation(),
				"fi"),
			"else",
			"  echo "+quote(fmt.Sprintf("%s: the network namespace of %s is gone: nothing to do", t.f.Address, OwnerName(t.owner))),
			"fi"),
	})
}

// reassign advises to change the reservation to the holder.
func (t hostLocal) reassign() {
	node := t.node()
	if why := t.unwritable(); why != "" || t.allocation.ContainerID == "" {
		why = cmp.Or(why, "it is not known which container it is for now")
		t.act(say("On node %s, check which container the reservation is for.", node).by(node, "cat "+t.file.path()))
		t.byHand(node, "", "Change the reservation of %s in %s to its holder. Do this by hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it requests a free address, and host-local does not free an address in use")
		return
	}
	other := t.allocation.ContainerID
	restart, _ := t.restarting("its successor gets its own address")
	t.act(
		say("On node %s, check whether container %s, for which the address is reserved, is running.", node, shortID(other)).by(node, "crictl pods --no-trunc --id "+quote(other)),
		say("Continue according to the result.").or(
			either("it is NotReady, or does not exist", plan(node)...),
			either("it is Ready", append([]Action{say("Leave its reservation as it is.")}, restart...)...),
		))
	t.fix(Fix{
		Node: node,
		What: fmt.Sprintf("Change the reservation of %s to %s, which holds it, unless container %s, to which it belongs now, is still running.", t.f.Address, OwnerName(t.owner), shortID(other)),
		Command: t.file.lockedIfThere(
			"if [ \"$(head -n 1 "+t.file.path()+" 2>/dev/null | tr -d '\\r')\" != "+quote(other)+" ]; then",
			"  echo "+quote(t.f.Address.String()+": its file has changed: nothing to do"),
			"elif "+runs(other)+"; then",
			"  echo "+quote(fmt.Sprintf("%s: container %s is running, or crictl cannot tell: check it first", t.f.Address, shortID(other))),
			"elif "+t.holds()+"; then",
			"  "+t.reservation(),
			"else",
			"  echo "+quote(t.f.Address.String()+": its holder is gone: nothing to do"),
			"fi"),
	})
}

// release advises to remove the reservation of a container that is gone.
func (t hostLocal) release() {
	node := t.node()
	if t.allocation.ContainerID == "" {
		t.act(say("On node %s, check which container the reservation is for, and whether it still exists.", node).by(node, "cat "+t.file.path()),
			say("Continue according to the result.").or(
				either("that container does not exist", say("On node %s, remove the file.", node).by(node, "rm "+t.file.path())),
				either("that container exists", say("Leave the file as it is."))))
		t.byHand(node, "", "Remove %s/%s if no interface has the address. Do this by hand, because it is not known which container it is for.", t.pool.Name, t.f.Address)
		return
	}
	id := t.allocation.ContainerID
	t.act(
		say("On node %s, check whether container %s, for which the address is reserved, exists.", node, shortID(id)).by(node, "crictl pods --no-trunc --id "+quote(id)),
		say("Continue according to the result.").or(
			either("it does not exist", plan(node)...),
			either("it exists and is NotReady", say("Have the runtime remove it, which frees the address.").by(node, "crictl rmp "+argument(shortID(id)))),
			either("it exists and is Ready", say("Leave its reservation as it is: the container is running.")),
		))
	t.advise("Addresses leak if a node or its runtime fails before CNI DEL has run. If this happens repeatedly, look for errors of CNI DEL in the log of the runtime.")
	t.fix(Fix{
		Node: node,
		What: fmt.Sprintf("Free %s: container %s, for which host-local reserves it, is gone, and no interface has the address.", t.f.Address, shortID(id)),
		Command: t.file.lockedIfThere(
			"if [ \"$(head -n 1 "+t.file.path()+" 2>/dev/null | tr -d '\\r')\" != "+quote(id)+" ]; then",
			"  echo "+quote(t.f.Address.String()+": its file is gone or has changed: nothing to do"),
			"elif "+runs(id)+"; then",
			"  echo "+quote(fmt.Sprintf("%s: container %s is running, or crictl cannot tell: check it first", t.f.Address, shortID(id))),
			"elif ! command -v nsenter >/dev/null 2>&1 || ! command -v ip >/dev/null 2>&1; then",
			"  echo "+quote(t.f.Address.String()+": nsenter and ip are needed to check whether it is in use: left unchanged"),
			"elif "+inUse(t.f.Address.String())+"; then",
			"  echo "+quote(t.f.Address.String()+": it is in use: left unchanged"),
			"else",
			"  rm -f "+t.file.path(),
			"fi"),
	})
}

// unwritable says why no reservation can be written for the holder. It is empty if one can be
// written.
func (t hostLocal) unwritable() string {
	switch {
	case t.owner == nil || t.owner.Namespace == nil:
		return "its holder is not known"
	case t.owner.Kind() == verdict.Host:
		return "its holder is the node itself, not a container"
	case t.owner.Workload().Sandbox() == "":
		return "the id of its container is not known, and host-local needs it to free the address"
	case t.owner.Interface == nil || t.owner.Interface.Namespace.ID != t.owner.ID:
		return "it is not known which interface of the container has it"
	case !strings.HasPrefix(t.pool.Name, "/"):
		return "the directory is not known"
	}
	return ""
}

// reservation returns the command that writes the address's file.
func (t hostLocal) reservation() string {
	return `printf '%s\r\n%s' ` + quote(t.owner.Workload().Sandbox()) + " " + quote(t.owner.Interface.Name) + " > " + t.file.path()
}

// namespaces is the command that lists the inodes and paths of all network namespaces of a node that
// have a process or a name.
const namespaces = "ls -diL /proc/[0-9]*/ns/net /run/netns/* /run/docker/netns/* 2>/dev/null"

// holds returns the condition that the network namespace that had the address still exists.
func (t hostLocal) holds() string {
	if ns := t.owner.Namespace.Netns; ns != "" {
		return namespaces + " | grep -q " + quote("^ *"+ns+" ")
	}
	return "true" // the inode is not known
}

// runs returns the condition that a sandbox is ready, or that the container runtime does not answer.
func runs(id string) string {
	return "command -v crictl >/dev/null 2>&1 && { ! up=$(crictl pods -q --no-trunc --state ready --id " + quote(id) + " 2>/dev/null) || [ -n \"$up\" ]; }"
}

// inUse returns the condition that some network namespace of the node has the address, or that the
// namespaces cannot be listed.
func inUse(address string) string {
	return "! " + namespaces + " | grep -q . || for ns in $(" + namespaces + " | sort -un -k1,1 | sed 's/^ *[0-9]* //'); do nsenter --net=\"$ns\" ip -o addr show to " + address + " 2>/dev/null || :; done | grep -q ."
}

// cordon advises to start no pods on a node for now.
func (t hostLocal) cordon(node string) {
	if t.owner == nil || t.owner.Kind() != verdict.Pod || node == "" {
		return
	}
	t.act(cordoning(node))
}

// cordoning returns the action that stops new pods from starting on a node; uncordoning returns the
// action that reverts it.
func cordoning(node string) Action {
	return say("Start no pods on node %s until this is repaired. DaemonSet pods still start on a cordoned node.", node).by("", "kubectl cordon "+argument(node))
}

func uncordoning(node string) Action {
	return say("Allow pods on node %s again.", node).by("", "kubectl uncordon "+argument(node))
}

// uncordon adds the action that reverts cordon.
func (t hostLocal) uncordon(node string) {
	if t.owner == nil || t.owner.Kind() != verdict.Pod || node == "" {
		return
	}
	t.act(uncordoning(node))
}
