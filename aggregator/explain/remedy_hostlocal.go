package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// hostLocal words the remedies for addresses of host-local.
type hostLocal struct {
	*telling
	file hostLocalFile
}

// reserve has the address written down.
func (t hostLocal) reserve() {
	node := t.node()
	t.cordon(node)
	if why := t.unwritable(); why != "" {
		t.act(say("Its reservation cannot be written (%s). First see that the directory has all other addresses in use: what is restarted gets the next duplicate elsewhere.", why).by("", "ipwitness audit --kind "+verdict.FindingInUseUnallocated))
		t.byHand(node, "", "Reserve %s in %s for its holder. By hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it asks for an address that is free")
		t.uncordon(node)
		return
	}
	t.advise("On node %s, the reservations of all addresses in use are to be written as host-local does.", node)
	t.act(plan(node)...)
	t.uncordon(node)
	t.advise("Find out what deleted the records: a restore, a clean-up script, a tmpfs that a reboot empties while pods live on. host-local needs %s as long as pods live.", t.pool.Name)
	t.fix(Fix{
		Node: node,
		What: fmt.Sprintf("Reserve %s for %s, which holds it: then host-local gives it to nobody else, and frees it when that one ends.", t.f.Address, OwnerName(t.owner)),
		Command: script(
			"if "+t.holds()+"; then",
			"  mkdir -p "+t.file.dir(),
			t.file.locked("  ",
				"if [ -e "+t.file.path()+" ]; then",
				"  echo "+quote(t.f.Address.String()+": its file is there: nothing to do"),
				"else",
				"  umask 077; set -C",
				"  "+t.reservation(),
				"fi"),
			"else",
			"  echo "+quote(fmt.Sprintf("%s: the network namespace of %s is gone: nothing to do", t.f.Address, OwnerName(t.owner))),
			"fi"),
	})
}

// rebook has the reservation put into the name of the holder.
func (t hostLocal) rebook() {
	node := t.node()
	if why := t.unwritable(); why != "" || t.booked.ContainerID == "" {
		why = cmp.Or(why, "it is not known whose it is now")
		t.act(say("On node %s, see whose reservation it is.", node).by(node, "cat "+t.file.path()))
		t.byHand(node, "", "Put the reservation of %s in %s into the name of its holder. By hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it asks for an address that is free, and host-local does not free one in use")
		return
	}
	other := t.booked.ContainerID
	restart, _ := t.restarting("its successor gets an address of its own")
	t.act(
		say("On node %s, see whether container %s lives, for which the address is reserved.", node, shortID(other)).by(node, "crictl pods --no-trunc --id "+quote(other)),
		say("What comes next depends on that.").or(
			either("it is NotReady, or not there", plan(node)...),
			either("it is Ready", append([]Action{say("Leave its reservation.")}, restart...)...),
		))
	t.fix(Fix{
		Node: node,
		What: fmt.Sprintf("Put the reservation of %s into the name of %s, which holds it, unless container %s, whose name is in it, still runs.", t.f.Address, OwnerName(t.owner), shortID(other)),
		Command: t.file.lockedIfThere(
			"if [ \"$(head -n 1 "+t.file.path()+" 2>/dev/null | tr -d '\\r')\" != "+quote(other)+" ]; then",
			"  echo "+quote(t.f.Address.String()+": its file says something else now: nothing to do"),
			"elif "+runs(other)+"; then",
			"  echo "+quote(fmt.Sprintf("%s: container %s runs, or crictl cannot tell: look at it first", t.f.Address, shortID(other))),
			"elif "+t.holds()+"; then",
			"  "+t.reservation(),
			"else",
			"  echo "+quote(t.f.Address.String()+": its holder is gone: nothing to do"),
			"fi"),
	})
}

// release has the reservation of a container that is no more taken away.
func (t hostLocal) release() {
	node := t.node()
	if t.booked.ContainerID == "" {
		t.act(say("On node %s, see whose reservation it is, and whether that lives.", node).by(node, "cat "+t.file.path()),
			say("What comes next depends on that.").or(
				either("nobody of that name is left", say("On node %s, remove the file.", node).by(node, "rm "+t.file.path())),
				either("it lives", say("Leave the file."))))
		t.byHand(node, "", "Remove %s/%s, if nobody has the address. By hand, because it is not known whose it is.", t.pool.Name, t.f.Address)
		return
	}
	id := t.booked.ContainerID
	t.act(
		say("On node %s, see whether container %s is there, for which the address is reserved.", node, shortID(id)).by(node, "crictl pods --no-trunc --id "+quote(id)),
		say("What comes next depends on that.").or(
			either("it is not there", plan(node)...),
			either("it is there, and NotReady", say("Have the runtime remove it, which frees the address.").by(node, "crictl rmp "+argument(shortID(id)))),
			either("it is there, and Ready", say("Leave its reservation: it lives.")),
		))
	t.advise("Addresses leak where a node or its runtime dies before CNI DEL ran. If it happens again and again, look for errors of CNI DEL in the log of the runtime.")
	t.fix(Fix{
		Node: node,
		What: fmt.Sprintf("Free %s: container %s, for which host-local reserves it, is gone, and nobody has the address.", t.f.Address, shortID(id)),
		Command: t.file.lockedIfThere(
			"if [ \"$(head -n 1 "+t.file.path()+" 2>/dev/null | tr -d '\\r')\" != "+quote(id)+" ]; then",
			"  echo "+quote(t.f.Address.String()+": its file is gone, or says something else now: nothing to do"),
			"elif "+runs(id)+"; then",
			"  echo "+quote(fmt.Sprintf("%s: container %s runs, or crictl cannot tell: look at it first", t.f.Address, shortID(id))),
			"elif ! command -v nsenter >/dev/null 2>&1 || ! command -v ip >/dev/null 2>&1; then",
			"  echo "+quote(t.f.Address.String()+": without nsenter and ip nobody can tell whether somebody has it: left as it is"),
			"elif "+inUse(t.f.Address.String())+"; then",
			"  echo "+quote(t.f.Address.String()+": somebody has it: left as it is"),
			"else",
			"  rm -f "+t.file.path(),
			"fi"),
	})
}

// unwritable says why no reservation can be written for the holder; empty if it can.
func (t hostLocal) unwritable() string {
	switch {
	case t.owner == nil || t.owner.Namespace == nil:
		return "its holder is not known"
	case t.owner.Kind() == verdict.Host:
		return "its holder is the node itself, not a container"
	case t.owner.Workload().Sandbox() == "":
		return "the id of its container is not known, and host-local frees an address by that"
	case t.owner.Interface == nil || t.owner.Interface.Namespace.ID != t.owner.ID:
		return "it is not known on which interface of the container it is"
	case !strings.HasPrefix(t.pool.Name, "/"):
		return "the directory is not known"
	}
	return ""
}

// reservation is the command that writes the address's file.
func (t hostLocal) reservation() string {
	return `printf '%s\r\n%s' ` + quote(t.owner.Workload().Sandbox()) + " " + quote(t.owner.Interface.Name) + " > " + t.file.path()
}

// namespaces lists all network namespaces of a node that something runs in or that
// have a name: inode and path.
const namespaces = "ls -diL /proc/[0-9]*/ns/net /run/netns/* /run/docker/netns/* 2>/dev/null"

// holds is a condition: the network namespace that had the address is still there.
func (t hostLocal) holds() string {
	if ns := t.owner.Namespace.Netns; ns != "" {
		return namespaces + " | grep -q " + quote("^ *"+ns+" ")
	}
	return "true" // its inode is not known
}

// runs is a condition: the container runtime says that a sandbox is up, or it does not
// answer.
func runs(id string) string {
	return "command -v crictl >/dev/null 2>&1 && { ! up=$(crictl pods -q --no-trunc --state ready --id " + quote(id) + " 2>/dev/null) || [ -n \"$up\" ]; }"
}

// inUse is a condition: some network namespace of the node has the address, or they
// cannot be listed.
func inUse(address string) string {
	return "! " + namespaces + " | grep -q . || for ns in $(" + namespaces + " | sort -un -k1,1 | sed 's/^ *[0-9]* //'); do nsenter --net=\"$ns\" ip -o addr show to " + address + " 2>/dev/null || :; done | grep -q ."
}

// cordon advises to have no pods started on a node for now.
func (t hostLocal) cordon(node string) {
	if t.owner == nil || t.owner.Kind() != verdict.Pod || node == "" {
		return
	}
	t.act(cordoning(node))
}

// cordoning returns the action that stops new pods from starting on a node; uncordoning reverts
// it.
func cordoning(node string) Action {
	return say("Start no pods on node %s until this is put right. Pods of DaemonSets start all the same.", node).by("", "kubectl cordon "+argument(node))
}

func uncordoning(node string) Action {
	return say("Let pods start on node %s again.", node).by("", "kubectl uncordon "+argument(node))
}

// uncordon adds the action that reverts cordon.
func (t hostLocal) uncordon(node string) {
	if t.owner == nil || t.owner.Kind() != verdict.Pod || node == "" {
		return
	}
	t.act(uncordoning(node))
}
