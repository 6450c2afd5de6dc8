package casefile

import (
	"errors"
	"net/netip"
	"path"
	"reflect"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Pseudonymise returns a copy of a file with pseudonyms. They replace the names of nodes, pods,
// namespaces, workloads, processes, interfaces and networks, as well as hardware addresses, UIDs
// and IDs. Texts are removed. Equal names stay equal, different names stay different, and parts of
// names that matter to the judgement are kept. Inodes, times and IP addresses are kept, except for
// IP addresses that are derived from hardware addresses.
func Pseudonymise(f *File) (*File, error) {
	out, err := pseudonymise(f, &pseudonyms{})
	if err == nil {
		out.Pseudonymous = true
	}
	return out, err
}

// PseudonymiseSome is like Pseudonymise, but replaces only the names that replace selects by class,
// such as names that differ from run to run. Inodes are names of the class "netns" here.
func PseudonymiseSome(f *File, replace func(class, name string) bool) (*File, error) {
	return pseudonymise(f, &pseudonyms{replace: replace})
}

func pseudonymise(f *File, p *pseudonyms) (*File, error) {
	p.from, p.about = f.Policy, f.Case.Address
	p.policy(f.Policy)
	p.copyOf(reflect.ValueOf(f.Case))
	p.settle()
	out := &File{Version: f.Version, Policy: p.policy(f.Policy)}
	out.Case = p.copyOf(reflect.ValueOf(f.Case)).Interface().(*verdict.Case)
	if outcome(f) != outcome(out) {
		return nil, errors.New("pseudonyms would change the judgement of this case: write it without pseudonyms, and report this as a bug")
	}
	return out, nil
}

// fieldClasses maps all string fields to their classes.
var fieldClasses = map[string]class{
	"Policy.Cluster": (*pseudonyms).cluster, "Former.Next": (*pseudonyms).owner, "Network.Name": (*pseudonyms).network, "Shared.Reason": noText, "Router.Who": derived, "Router.Reason": noText,

	"Node.Name": (*pseudonyms).node, "Node.Boot": (*pseudonyms).boot, "Node.Netns": (*pseudonyms).inode,
	"Node.Vouched": (*pseudonyms).agent, "NodeName.Name": (*pseudonyms).node, "NodeName.File": (*pseudonyms).place,
	"Node.VIPProgram": word("program"),
	"NodeKey.Name":    (*pseudonyms).node, "NodeKey.Boot": (*pseudonyms).boot, "NodeKey.Netns": (*pseudonyms).inode, "NodeKey.Vouched": (*pseudonyms).agent,
	"Namespace.Netns": (*pseudonyms).inode, "Namespace.ID": (*pseudonyms).owner, "Namespace.Intended": (*pseudonyms).intended,
	"Link.Name": (*pseudonyms).device, "LinkKey.Name": (*pseudonyms).device, "Domain.Name": (*pseudonyms).device,
	"Interface.Name": (*pseudonyms).device, "Interface.HostInterface": (*pseudonyms).device, "Interface.VRF": (*pseudonyms).device,
	"Interface.Kind": word("kind"),
	"Claim.Network":  (*pseudonyms).network,

	"Workload.Namespace": (*pseudonyms).namespace, "Workload.Name": derived, "Workload.UID": (*pseudonyms).uid,
	"Workload.ContainerID": (*pseudonyms).container, "Workload.Process": (*pseudonyms).process, "Workload.VirtualMachine": (*pseudonyms).name,
	"Workload.Source": word("source"), "Workload.Sources": (*pseudonyms).sources,

	"PodObject.Namespace": (*pseudonyms).namespace, "PodObject.Name": (*pseudonyms).name, "PodObject.UID": (*pseudonyms).uid,
	"PodObject.Node": (*pseudonyms).node, "PodObject.Phase": word("phase"), "PodObject.ControllerKind": word("kind"),
	"PodObject.Controller": (*pseudonyms).name, "PodObject.VirtualMachine": (*pseudonyms).name, "PodObject.MachineNode": (*pseudonyms).node,
	"Membership.Interface": (*pseudonyms).device, "Membership.Network": (*pseudonyms).network,

	"Pool.IPAM": word("ipam"), "Pool.Name": (*pseudonyms).place, "Served.Network": (*pseudonyms).network, "Served.Networks": (*pseudonyms).network,
	"Served.Realm": (*pseudonyms).network, "Pool.Problem": noText, "Wiring.Plugin": word("plugin"), "Wiring.Device": (*pseudonyms).device,
	"Pool.Config": (*pseudonyms).place, "Pool.Unread": word("kind"),

	"Allocation.Node": (*pseudonyms).node, "Allocation.Namespace": (*pseudonyms).namespace, "Allocation.Pod": (*pseudonyms).name,
	"Allocation.ContainerID": (*pseudonyms).container, "Allocation.Interface": (*pseudonyms).device, "Allocation.Purpose": word("purpose"),
	"Allocation.Location": (*pseudonyms).place, "Allocation.MAC": (*pseudonyms).macText, "Allocation.Hostname": (*pseudonyms).name,

	"Past.Owner": (*pseudonyms).owner, "Past.Kind": same,
	"Finding.ID": derived, "Finding.Kind": same, "Finding.Source": word("source"),
	"Owner.ID": (*pseudonyms).owner, "Member.ID": (*pseudonyms).owner, "Member.Node": (*pseudonyms).node,
	"Exclusion.Rule": same, "Exclusion.Port": (*pseudonyms).device, "Exclusion.Victims": (*pseudonyms).owner, "Exclusion.Reason": noText,
	"Scope.Node": (*pseudonyms).node, "Scope.Name": derived,
	"Identity.ID": derived, "Identity.Scope": derived, "Course.Rule": same,
}

// removed replaces a text that was removed.
const removed = "removed"

// noText removes a text. It remains visible that there was one, because that may matter.
func noText(*pseudonyms, string) string { return removed }

// same keeps a word that ipwitness defines.
func same(_ *pseudonyms, s string) string { return s }

// derived clears a field that finish derives from other fields.
func derived(*pseudonyms, string) string { return "" }

// copyOf returns a deep copy of a value with pseudonyms. No two references in it point to the same
// record.
func (p *pseudonyms) copyOf(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch {
	case v.Type() == reflect.TypeFor[verdict.Who]():
		if who := v.Interface().(verdict.Who); who != "" {
			w := p.copyOf(reflect.ValueOf(who.Workload())).Interface().(verdict.Workload)
			out.SetString(string(w.Who()))
		}
	case v.Type() == reflect.TypeFor[verdict.MAC]():
		out.SetString(string(p.mac(verdict.MAC(v.String()))))
	case v.Type() == reflect.TypeFor[netip.Addr]():
		out.Set(reflect.ValueOf(p.address(v.Interface().(netip.Addr))))
	case v.Type() == reflect.TypeFor[netip.Prefix]():
		prefix := v.Interface().(netip.Prefix)
		out.Set(reflect.ValueOf(netip.PrefixFrom(p.address(prefix.Addr()), prefix.Bits())))
	case v.Kind() == reflect.Pointer && !v.IsNil():
		out.Set(reflect.New(v.Type().Elem()))
		out.Elem().Set(p.copyOf(v.Elem()))
	case v.Kind() == reflect.Slice && !v.IsNil():
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(p.copyOf(v.Index(i)))
		}
	case v.Kind() == reflect.Struct && strings.HasPrefix(v.Type().PkgPath(), "github.com/ipwitness/ipwitness/"):
		for i := range v.NumField() {
			out.Field(i).Set(p.field(v.Type(), i, v.Field(i)))
		}
		p.finish(v, out)
	case v.Kind() == reflect.String && v.Len() > 0:
		out.SetString(removed) // a field without a class
	default:
		out.Set(v)
	}
	return out
}

// field returns the copy of a field of a struct with pseudonyms.
func (p *pseudonyms) field(of reflect.Type, i int, v reflect.Value) reflect.Value {
	replace := fieldClasses[of.Name()+"."+of.Field(i).Name]
	if replace == nil {
		return p.copyOf(v)
	}
	out := reflect.New(v.Type()).Elem()
	switch {
	case v.Kind() == reflect.String && v.Len() > 0:
		out.SetString(replace(p, v.String()))
	case v.Kind() == reflect.Slice && v.Len() > 0:
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).SetString(replace(p, v.Index(i).String()))
		}
	}
	return out
}

// finish sets the fields of a copy that depend on several fields.
func (p *pseudonyms) finish(v, out reflect.Value) {
	switch to := out.Addr().Interface().(type) {
	case *verdict.Workload:
		from := v.Interface().(verdict.Workload)
		if from.Kind == verdict.Host {
			to.Name = p.node(from.Name)
		} else {
			to.Name = p.name(from.Name)
		}
		p.noteWorkload(from)
	case *verdict.PodObject:
		if from := v.Interface().(verdict.PodObject); from.ControllerKind == "Node" {
			to.Controller = p.node(from.Controller)
		}
	case *verdict.Scope:
		from := v.Interface().(verdict.Scope)
		to.Name = p.inScope(from.Kind, from.Name)
	case *verdict.Memory:
		from := v.Interface().(verdict.Memory)
		to.Scope = p.scope(from.Kind, from.Scope)
		to.ID = p.id(from.ID,
			verdict.ID(p.from.Cluster, from.Kind, from.Scope, p.about), verdict.ID(p.cluster(p.from.Cluster), to.Kind, to.Scope, p.address(p.about)))
	case *verdict.Finding:
		from := v.Interface().(verdict.Finding)
		to.ID = p.id(from.ID, findingID(p.from.Cluster, &from), findingID(p.cluster(p.from.Cluster), to))
	}
}

// policy returns a copy of a policy with pseudonyms.
func (p *pseudonyms) policy(from *verdict.Policy) *verdict.Policy {
	to := p.copyOf(reflect.ValueOf(from)).Interface().(*verdict.Policy)
	to.Routers = nil
	for _, r := range from.Routers {
		if r.Who == "" {
			to.Routers = append(to.Routers, verdict.Router{MAC: p.mac(r.MAC), Reason: removed})
		}
		for _, name := range p.workloads {
			if matches, _ := path.Match(r.Who, name); matches {
				to.Routers = append(to.Routers, verdict.Router{Who: p.workload(name), Reason: removed})
			}
		}
	}
	return to
}

// noteWorkload records the name of a workload, which the policy may declare as a router.
func (p *pseudonyms) noteWorkload(w verdict.Workload) {
	name := w.Name
	if w.Namespace != "" {
		name = w.Namespace + "/" + name
	}
	if p.given == nil && name != "" {
		p.workloads = append(p.workloads, name)
	}
}

// id returns a new ID. If the old ID was computed from names, it is computed from the pseudonyms.
func (p *pseudonyms) id(old, computed, anew string) string {
	if old == computed {
		return anew
	}
	return p.numbered("id", old)
}

// findingID returns the ID that the audit computes for a finding.
func findingID(cluster string, f *verdict.Finding) string {
	subject := ""
	switch {
	case f.Spoof != nil:
		subject = f.Spoof.Port.Namespace.Node.Name + " " + f.Spoof.Port.Name + " "
	case f.Pool != nil:
		subject = f.Pool.Subject() + " "
	}
	return verdict.FindingID(cluster, f.Kind, subject+f.Address.String())
}

// scope replaces the names in the text of a scope.
func (p *pseudonyms) scope(kind verdict.ScopeKind, s string) string {
	if kind == verdict.NetworkScope {
		return p.network(s)
	}
	node, name, ok := strings.Cut(s, "/")
	if !ok {
		return p.node(node)
	}
	return p.node(node) + "/" + p.device(name)
}

// inScope replaces the name of a network, link or VRF in a scope.
func (p *pseudonyms) inScope(kind verdict.ScopeKind, name string) string {
	if kind == verdict.NetworkScope {
		return p.network(name)
	}
	return p.device(name)
}
