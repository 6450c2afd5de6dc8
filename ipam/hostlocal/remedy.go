package hostlocal

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies {
		return remedies{c, a, addressFile{c.Pool.Name, c.Address}}
	},
	Exclude:  exclude,
	Location: func(p *ipam.Pool, a netip.Addr) string { return strings.TrimSuffix(p.Name, "/") + "/" + a.String() },
	Enlarge: func(p *ipam.Pool) string {
		return "Give the network a larger range in " + cmp.Or(p.Config, "its CNI configuration") + ". It must contain the present range, so that pods keep their addresses. A range from Node.spec.podCIDR cannot be changed for a node: add nodes, or recreate them with a smaller --node-cidr-mask-size."
	},
	Access: func(p *ipam.Pool) string {
		return "Check whether the agent may read it: the agent needs " + p.Name + " of the node. In a container, mount its parent directory read-only with HostToContainer propagation, because a mount of the directory itself is lost when the directory is recreated."
	},
	Loss: ipam.Loss{
		Rebuild: true,
		Search: func(p *ipam.Pool) string {
			return "Find out what deleted " + p.Name + ": a restore, a clean-up script, or a reboot that pods survived (if it is on a tmpfs). It must exist as long as the pods of the node do."
		},
	},
}

// exclude returns how to exclude an address from a range. host-local skips an address for which
// there is a file, and frees only files that contain a container.
func exclude(p *ipam.Pool, node string, a netip.Addr) ipam.Exclusion {
	e := ipam.Exclusion{How: "set rangeStart and rangeEnd in " + cmp.Or(p.Config, "its CNI configuration") + " so that it is outside the range"}
	if node == "" || !strings.HasPrefix(p.Name, "/") {
		return e
	}
	where := ""
	if p.Config != "" {
		where = " in " + p.Config
	}
	f := addressFile{p.Name, a}
	e.Step = advice.Say("On node %s, have host-local skip %s: it never frees an empty file of that name. To exclude the address permanently, set rangeStart and rangeEnd%s so that it is outside the range.", node, a, where).
		By(node, advice.Script("mkdir -p "+f.dir(), f.locked("", ": > "+f.path())))
	return e
}

// remedies builds the remedies for addresses of host-local.
type remedies struct {
	ipam.Case
	ipam.Advisor
	file addressFile
}

// Reserve advises to write the missing reservation.
func (t remedies) Reserve() {
	node := t.Node
	t.Cordon(t.Advisor)
	if why := t.unwritable(); why != "" {
		t.Act(advice.Say("The reservation cannot be written (%s). First make sure that the directory has reservations for all other addresses in use: otherwise, the restarted holder gets another duplicate.", why).By("", "ipwitness audit --kind in-use-unallocated"))
		t.ByHand(node, "", "Reserve %s in %s for its holder. Do this by hand, because %s.", t.Address, t.Pool.Name, why)
		t.Restart("it requests a free address")
		t.Uncordon(t.Advisor)
		return
	}
	t.Advise("On node %s, write the reservations of all addresses in use, in the format of host-local.", node)
	t.Act(advice.Plan(node)...)
	t.Uncordon(t.Advisor)
	t.Advise("Find out what deleted the records: a restore, a clean-up script, or a reboot that emptied a tmpfs while pods kept running. host-local needs %s as long as its pods exist.", t.Pool.Name)
	t.Fix(advice.Fix{
		Node: node,
		What: fmt.Sprintf("Reserve %s for %s, which holds it: host-local then allocates it to no other container, and frees it when this one ends.", t.Address, t.Holder.Name),
		Command: advice.Script(
			"if "+t.holds()+"; then",
			"  mkdir -p "+t.file.dir(),
			t.file.locked("  ",
				"if [ -e "+t.file.path()+" ]; then",
				"  echo "+advice.Quote(t.Address.String()+": its file exists: nothing to do"),
				"else",
				"  umask 077; set -C",
				"  "+t.reservation(),
				"fi"),
			"else",
			"  echo "+advice.Quote(fmt.Sprintf("%s: the network namespace of %s is gone: nothing to do", t.Address, t.Holder.Name)),
			"fi"),
	})
}

// Reassign advises to change the reservation to the holder.
func (t remedies) Reassign() {
	node := t.Node
	if why := t.unwritable(); why != "" || t.Allocation.ContainerID == "" {
		why = cmp.Or(why, "the container that it is currently reserved for is unknown")
		t.Act(advice.Say("On node %s, check which container the reservation is for.", node).By(node, "cat "+t.file.path()))
		t.ByHand(node, "", "Change the reservation of %s in %s to its holder. Do this by hand, because %s.", t.Address, t.Pool.Name, why)
		t.Restart("it requests a free address, and host-local does not free an address in use")
		return
	}
	other := t.Allocation.ContainerID
	restart, _ := t.Restarting("its successor gets its own address")
	t.Act(
		advice.Say("On node %s, check whether container %s, for which the address is reserved, is running.", node, advice.ShortID(other)).By(node, "crictl pods --no-trunc --id "+advice.Quote(other)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it is NotReady, or does not exist", advice.Plan(node)...),
			advice.Either("it is Ready", append([]advice.Action{advice.Say("Leave its reservation as it is.")}, restart...)...),
		))
	t.Fix(advice.Fix{
		Node: node,
		What: fmt.Sprintf("Change the reservation of %s to %s, which holds it, unless container %s, to which it belongs now, is still running.", t.Address, t.Holder.Name, advice.ShortID(other)),
		Command: t.file.lockedIfThere(
			"if [ \"$(head -n 1 "+t.file.path()+" 2>/dev/null | tr -d '\\r')\" != "+advice.Quote(other)+" ]; then",
			"  echo "+advice.Quote(t.Address.String()+": its file has changed: nothing to do"),
			"elif "+runs(other)+"; then",
			"  echo "+advice.Quote(fmt.Sprintf("%s: container %s is running, or crictl cannot tell: check it first", t.Address, advice.ShortID(other))),
			"elif "+t.holds()+"; then",
			"  "+t.reservation(),
			"else",
			"  echo "+advice.Quote(t.Address.String()+": its holder is gone: nothing to do"),
			"fi"),
	})
}

// Release advises to remove the reservation of a container that is gone.
func (t remedies) Release() {
	node := t.Node
	if t.Allocation.ContainerID == "" {
		t.Act(advice.Say("On node %s, check which container the reservation is for, and whether it still exists.", node).By(node, "cat "+t.file.path()),
			advice.Say("Continue according to the result.").Or(
				advice.Either("that container does not exist", advice.Say("On node %s, remove the file.", node).By(node, "rm "+t.file.path())),
				advice.Either("that container exists", advice.Say("Leave the file as it is."))))
		t.ByHand(node, "", "Remove %s/%s if no interface has the address. Do this by hand, because the container that it is reserved for is unknown.", t.Pool.Name, t.Address)
		return
	}
	id := t.Allocation.ContainerID
	t.Act(
		advice.Say("On node %s, check whether container %s, for which the address is reserved, exists.", node, advice.ShortID(id)).By(node, "crictl pods --no-trunc --id "+advice.Quote(id)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it does not exist", advice.Plan(node)...),
			advice.Either("it exists and is NotReady", advice.Say("Have the runtime remove it, which frees the address.").By(node, "crictl rmp "+advice.Argument(advice.ShortID(id)))),
			advice.Either("it exists and is Ready", advice.Say("Leave its reservation as it is: the container is running.")),
		))
	t.Advise("Addresses leak if a node or its runtime fails before CNI DEL has run. If this happens repeatedly, look for errors of CNI DEL in the log of the runtime.")
	t.Fix(advice.Fix{
		Node: node,
		What: fmt.Sprintf("Free %s: container %s, for which host-local reserves it, is gone, and no interface has the address.", t.Address, advice.ShortID(id)),
		Command: t.file.lockedIfThere(
			"if [ \"$(head -n 1 "+t.file.path()+" 2>/dev/null | tr -d '\\r')\" != "+advice.Quote(id)+" ]; then",
			"  echo "+advice.Quote(t.Address.String()+": its file is gone or has changed: nothing to do"),
			"elif "+runs(id)+"; then",
			"  echo "+advice.Quote(fmt.Sprintf("%s: container %s is running, or crictl cannot tell: check it first", t.Address, advice.ShortID(id))),
			"elif ! command -v nsenter >/dev/null 2>&1 || ! command -v ip >/dev/null 2>&1; then",
			"  echo "+advice.Quote(t.Address.String()+": nsenter and ip are needed to check whether it is in use: left unchanged"),
			"elif "+inUse(t.Address.String())+"; then",
			"  echo "+advice.Quote(t.Address.String()+": it is in use: left unchanged"),
			"else",
			"  rm -f "+t.file.path(),
			"fi"),
	})
}

// unwritable says why no reservation can be written for the holder. It is empty if one can be
// written.
func (t remedies) unwritable() string {
	switch {
	case t.Holder == nil:
		return "its holder is unknown"
	case t.Holder.Sandbox == "":
		return "the id of its container, which host-local needs to free the address, is unknown"
	case t.Holder.Interface == "":
		return "the container's interface with the address is unknown"
	case !strings.HasPrefix(t.Pool.Name, "/"):
		return "the directory is unknown"
	}
	return ""
}

// reservation returns the command that writes the address's file.
func (t remedies) reservation() string {
	return `printf '%s\r\n%s' ` + advice.Quote(t.Holder.Sandbox) + " " + advice.Quote(t.Holder.Interface) + " > " + t.file.path()
}

// namespaces is the command that lists the inodes and paths of all network namespaces of a node that
// have a process or a name.
const namespaces = "ls -diL /proc/[0-9]*/ns/net /run/netns/* /run/docker/netns/* 2>/dev/null"

// holds returns the condition that the network namespace that had the address still exists.
func (t remedies) holds() string {
	if ns := t.Holder.Netns; ns != "" {
		return namespaces + " | grep -q " + advice.Quote("^ *"+ns+" ")
	}
	return "true" // the inode is not known
}

// runs returns the condition that a sandbox is ready, or that the container runtime does not answer.
func runs(id string) string {
	return "command -v crictl >/dev/null 2>&1 && { ! up=$(crictl pods -q --no-trunc --state ready --id " + advice.Quote(id) + " 2>/dev/null) || [ -n \"$up\" ]; }"
}

// inUse returns the condition that some network namespace of the node has the address, or that the
// namespaces cannot be listed.
func inUse(address string) string {
	return "! " + namespaces + " | grep -q . || for ns in $(" + namespaces + " | sort -un -k1,1 | sed 's/^ *[0-9]* //'); do nsenter --net=\"$ns\" ip -o addr show to " + address + " 2>/dev/null || :; done | grep -q ."
}

// host-local (plugins/ipam/host-local/backend/disk) keeps one file for each allocated address in
// its directory, named after the address. The file contains the id of the container, CR LF, and
// the interface. host-local does not allocate an address whose file exists, and DEL removes only
// files with exactly the container and interface that it is called with. Both hold a lock on
// DIR/lock (flock). last_reserved_ip.N only says where the search for a free address
// begins and may be missing.

// addressFile is the file of an address, in shell commands.
type addressFile struct {
	directory string
	address   netip.Addr
}

// path returns the path of the file, quoted.
func (f addressFile) path() string {
	return advice.File(strings.TrimSuffix(f.directory, "/") + "/" + f.address.String())
}

// dir returns the directory, quoted.
func (f addressFile) dir() string { return advice.File(strings.TrimSuffix(f.directory, "/")) }

// locked returns a command that runs under host-local's lock, in its own subshell.
func (f addressFile) locked(indent string, command ...string) string {
	text := []string{
		indent + "(",
		indent + "  if command -v flock >/dev/null 2>&1; then exec 9>>" + f.dir() + "/lock; flock 9; fi",
	}
	for _, c := range command {
		text = append(text, indent+"  "+c)
	}
	return advice.Script(append(text, indent+")")...)
}

// lockedIfThere returns a command that runs under host-local's lock if host-local's directory
// exists.
func (f addressFile) lockedIfThere(command ...string) string {
	return advice.Script(
		"if [ -d "+f.dir()+" ]; then",
		f.locked("  ", command...),
		"else",
		"  echo "+advice.Quote(f.directory+" does not exist: nothing to do"),
		"fi")
}
