package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// The steps by which an owner gives the address up, and those that restart it.

func release(o *verdict.Owner, a netip.Addr) []advice.Action {
	w := o.Workload()
	key := ""
	switch {
	case o.Orphaned:
		return removal(o)
	case o.Guest() == verdict.TapGuest:
		key = "tap"
	case o.Outside() != nil:
		key = "outside"
	case o.Namespace == nil:
		key = "device"
	case shown(o) && o.Kind() == verdict.Host:
		key = "process"
	case shown(o) && o.Workload().OnlyNetns():
		key = "behind/netns"
	case shown(o):
		key = "behind"
	case w.Kind == verdict.Pod && w.Name == "":
		key = "unnamed"
	case w.Kind == verdict.Pod && static(o):
		key = "static"
	case w.Kind == verdict.Pod:
		return scope{o}.steps("delete-pod")
	case restartsByEngine(w):
		return append(ofEngine(o, "fixed"), ofEngine(o, "restart-container")...)
	case w.Kind == verdict.Container && !w.OnlyNetns():
		key = "container"
	case w.Kind == verdict.VM:
		key = "vm"
	default:
		var steps []advice.Action
		key := "unassign/namespace"
		switch {
		case w.Kind == verdict.Host:
			key = "unassign/host"
		case w.OnlyNetns():
			key = "unassign/netns"
		case w.Name == "" && w.Ended:
			key = "unassign/ended"
		case w.Name == "" && w.PID != 0:
			key = "unassign/process"
		}
		for _, c := range contested(o, a) {
			if c.Counts() && w.Kind == verdict.Host && c.Interface.WithoutNeighbours() {
				steps = append(steps, scope{o, "device", c.Interface.Name}.steps("unassign/tunnel")...)
				continue
			}
			if engine := engineOf(c.Interface.Name); engine != "" && w.Kind == verdict.Host && c.Counts() {
				steps = append(steps, scope{"node", o.Node.Name, "device", c.Interface.Name}.steps("answered/"+engine)...)
			} else if c.Counts() || c.Kind == verdict.DADFailed {
				steps = append(steps, scope{
					o, "device", c.Interface.Name, "del", deletionOf(c, a), "first", when(isFirst(c, a), "yes"), "kept", keptOn(o, c, a), "uplink", when(leadsOut(c.Interface), "yes"),
				}.steps(key)...)
			}
		}
		return steps
	}
	return scope{o, "address", a}.steps("release/" + key)
}

// contested returns the claims that an owner must give up. What it has on other links than that of the conflict stays, and a
// link-local address is another address there.
func contested(o *verdict.Owner, a netip.Addr) []*verdict.Claim {
	switch {
	case o.OnLink:
		return o.Here
	case !a.IsLinkLocalUnicast() || o.Interface == nil || o.Interface.Link == nil:
		return o.Claims
	}
	return those(o.Claims, func(c *verdict.Claim) bool { return c.Interface.Link.Is(o.Interface.Link) })
}

// keptOn returns another interface of an owner that keeps an IPv4 address when the owner gives a claim up. Linux goes on answering
// for it on the interface of the claim: see weakHost of package verdict. It is empty if there is none.
func keptOn(o *verdict.Owner, up *verdict.Claim, a netip.Addr) string {
	gone := contested(o, a)
	for _, c := range o.Claims {
		if a.Is4() && c.Kind == verdict.Assigned && !slices.Contains(gone, c) && c.Interface.VRF == up.Interface.VRF {
			return c.Interface.Name
		}
	}
	return ""
}

// engineOf returns what made a bridge, and sets its address again after it was deleted; empty if it is the node's.
func engineOf(device string) string {
	switch {
	case strings.HasPrefix(device, "virbr"):
		return "libvirt"
	case verdict.MadeByEngine(device):
		return "engine"
	}
	return ""
}

// shown reports whether an owner is known only from frames: its kernel does not report the address, and the address
// is not that of its pod or container.
func shown(o *verdict.Owner) bool {
	k := o.Kind()
	if o.Served != nil && (k == verdict.Pod || k == verdict.Container && !o.Workload().OnlyNetns()) {
		return false
	}
	return !slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Counts() || c.Kind == verdict.DADFailed })
}

// entering returns what stands before a command that is to run in the network namespace of an owner; nothing for
// a node itself. known is false if no way into the namespace is known.
func entering(o *verdict.Owner) (enter string, known bool) {
	switch w := o.Workload(); {
	case w.Kind == verdict.Host:
		return "", true
	case w.OnlyNetns():
		return "ip netns exec " + advice.Quote(w.Name) + " ", true
	case w.PID != 0 && !w.Ended:
		return fmt.Sprintf("nsenter --net=/proc/%d/ns/net ", w.PID), true
	}
	return "", false
}

// leadsOut reports whether people may reach a node by an address of an interface, because its link leads out of the node.
func leadsOut(i *verdict.Interface) bool {
	return i.Uplink || i.Link != nil && (i.Link.Kind == verdict.Uplink || i.Link.Domain != nil)
}

// deletionOf returns the arguments of ip that remove an address from an interface.
func deletionOf(c *verdict.Claim, a netip.Addr) string {
	if c.Peer { // with a length and without the peer, the kernel finds no such address
		return fmt.Sprintf("addr del %s dev %s", a, advice.Quote(c.Interface.Name))
	}
	return fmt.Sprintf("addr del %s/%d dev %s", a, c.PrefixLength, advice.Quote(c.Interface.Name))
}

// isFirst reports whether an address may be the first of several in its subnet on its interface. Unless
// promote_secondaries is set, the kernel removes the others with it (inet_del_ifa).
func isFirst(c *verdict.Claim, a netip.Addr) bool {
	return a.Is4() && int(c.PrefixLength) < a.BitLen() && c.Flags&verdict.FlagSecondary == 0
}

// removal returns the steps that remove a sandbox that was left behind.
func removal(o *verdict.Owner) []advice.Action {
	w := o.Workload()
	if w.ContainerID != "" {
		return scope{o}.steps("remove-sandbox")
	}
	filter := "--label " + advice.Quote("io.kubernetes.pod.uid="+w.UID)
	if w.UID == "" {
		filter = "--namespace " + advice.Quote(w.Namespace) + " --name " + advice.Quote(w.Name)
	}
	return scope{o, "filter", filter}.steps("remove-sandbox/unknown")
}

// static reports whether an owner is a static pod. The kubelet runs static pods from files,
// whatever happens to the pod object in the API.
func static(o *verdict.Owner) bool { return o.Pod != nil && o.Pod.ControllerKind == "Node" }

func restartsByEngine(w verdict.Workload) bool {
	return w.ContainerID != "" && registry.Of(w.Source).Has("restart-container")
}

func ofEngine(o *verdict.Owner, key string) []advice.Action {
	w := o.Workload()
	return registry.Of(w.Source).Steps(key, ipam.Case{Node: o.Node.Name, Allocation: ipam.Allocation{ContainerID: w.ContainerID}})
}

// restart returns the steps that restart the holder, and the command in the repair plan. There are none if the holder is
// not known. then is the effect of the restart, as a clause. If now is set and a controller replaces the pod, the command
// is safe to run as it is; otherwise it must be run by hand. A person must decide when to end the pod of a Job or of a
// virtual machine.
func (t *findingBuilder) restart(then string, now bool) advice.Advice {
	o := t.owner
	if o == nil {
		return advice.Advice{}
	}
	w, key := o.Workload(), "restart/pod"
	s := scope{o, "then", then, source(t.word)}
	switch {
	case static(o):
		key = "restart/static"
	case w.OnlyNetns():
		bits := o.Claims[0].PrefixLength
		if i := slices.IndexFunc(o.Claims, func(c *verdict.Claim) bool { return c.Counts() && c.Interface.Is(o.Interface) }); i >= 0 {
			bits = o.Claims[i].PrefixLength
		}
		key, s = "restart/netns", append(s, "bits", bits, "exclude", outOfRange([]*verdict.Pool{t.pool}, t.f.Address, t.f.Allocations))
	case restartsByEngine(w):
		steps := ofEngine(o, "restart-container")
		last := steps[len(steps)-1]
		key, s = "restart/engine", append(s, "steps", steps, "last", last.Node, "command", last.Command)
	case w.Kind != verdict.Pod || w.Name == "" || w.Namespace == "":
		key = "restart/other"
	default:
		s = append(s, "delete", scope{o}.steps("delete-pod"))
	}
	var text FindingText
	s.write(&text, key)
	if now && o.Pod != nil && w.UID != "" {
		rollout, p := "", o.Pod
		switch p.ControllerKind {
		case "Deployment", "StatefulSet", "DaemonSet":
			rollout = strings.ToLower(p.ControllerKind) + "/" + p.Controller
		case "ReplicaSet":
		default:
			return text.Advice
		}
		var safe FindingText
		append(s, "rollout", rollout, "gone", "the original pod "+w.Namespace+"/"+w.Name+" is gone: nothing to do").write(&safe, "restart-now")
		safe.Fixes[0].Manual = false
		text.Fixes = safe.Fixes
	}
	return text.Advice
}

func outOfRange(pools []*verdict.Pool, a netip.Addr, allocations []*verdict.Allocation) (steps []advice.Action) {
	for _, p := range pools {
		_, more := exclusion(p, a, allocations)
		steps = append(steps, more...)
	}
	if len(pools) == 0 {
		steps = []advice.Action{{Text: Text("exclude/address", "address", a)}}
	}
	return steps
}

func exclusion(p *verdict.Pool, a netip.Addr, allocations []*verdict.Allocation) (how string, steps []advice.Action) {
	c := ipam.Case{Pool: &p.Pool, Node: nodeOf(p), Address: a}
	if i := slices.IndexFunc(allocations, func(al *verdict.Allocation) bool { return al.Pool.Is(p) }); i >= 0 {
		c.Allocation = allocations[i].Allocation
	}
	texts := ipamOf(p).Filler(c)
	how = cmp.Or(texts.Text("how/exclude"), "configure a range without it"+after(" in ", p.Config))
	if steps := texts.Steps("exclude"); len(steps) > 0 {
		return how, steps
	}
	return how, []advice.Action{{Text: Text("exclude/pool", "address", a, "pool", poolTitle(p.Label()), "how", how)}}
}
