package verdict

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/form"
)

// The commands that advice.go needs of those that are in aggregator/explain. They go when the
// advice goes there.

// telling is an address, its owner and the pool that may give it to somebody else.
type telling struct {
	f     *Finding
	pool  *Pool
	owner *Owner
}

// reserving returns the command that has an address in use written down.
func (t *telling) reserving() (what, node, command string) {
	switch {
	case t.owner.Kind() == Host && t.pool.IPAM != "":
	case t.pool.IPAM == HostLocal && t.unwritable() == "":
		return t.reserveHostLocal()
	case t.pool.IPAM == Whereabouts:
		return t.reserveWhereabouts()
	case t.pool.IPAM == Calico:
		return t.restartNow()
	}
	return "", "", ""
}

func (t *telling) reserveHostLocal() (what, node, command string) {
	what = fmt.Sprintf("Reserve %s for %s, which holds it: then host-local gives it to nobody else, and frees it when that one ends.", t.f.Address, t.owner.name())
	return what, t.node(), script(
		"if "+t.holds()+"; then",
		"  mkdir -p "+t.dir(),
		t.locked("  ",
			"if [ -e "+t.file()+" ]; then",
			"  echo "+quote(t.f.Address.String()+": its file is there: nothing to do"),
			"else",
			"  umask 077; set -C",
			"  "+t.reservation(),
			"fi"),
		"else",
		"  echo "+quote(fmt.Sprintf("%s: the network namespace of %s is gone: nothing to do", t.f.Address, t.owner.name())),
		"fi")
}

func (t *telling) reserveWhereabouts() (what, node, command string) {
	entry, why := t.entry()
	if why != "" {
		return "", "", ""
	}
	what = fmt.Sprintf("Book %s for pod %s, which holds it, at offset %s of IPPool %s.", t.f.Address, entry.podref, entry.offset, t.pool.Name)
	return what, "", script(
		"if "+entry.there("")+" && "+entry.podLives(t.owner.Workload().UID)+"; then",
		"  "+entry.patch(`{"op":"test","path":`+entry.path()+`,"value":null}`, `{"op":"add","path":`+entry.path()+`,"value":`+entry.value()+`}`),
		"else",
		"  echo "+quote(t.f.Address.String()+": the offset is taken, or the pod is gone: nothing to do"),
		"fi",
		entry.reserve())
}

func (t *telling) restartNow() (what, node, command string) {
	if t.owner.Pod == nil || t.owner.Workload().UID == "" {
		return "", "", ""
	}
	const then = "its successor gets an address that Calico has booked for it"
	w := t.owner.Workload()
	restart := "  " + deletePod(w.Namespace, w.Name)
	switch p := t.owner.Pod; p.ControllerKind {
	case "Deployment", "StatefulSet", "DaemonSet":
		restart = script(restart, "  kubectl rollout status -n "+quote(w.Namespace)+" "+quote(strings.ToLower(p.ControllerKind)+"/"+p.Controller)+" --timeout=5m")
	case "ReplicaSet":
	default:
		return "", "", ""
	}
	what = fmt.Sprintf("Restart pod %s/%s, which holds %s: %s.", w.Namespace, w.Name, t.f.Address, then)
	return what, "", script(
		"if uid=$(kubectl get pod -n "+quote(w.Namespace)+" "+quote(w.Name)+" --ignore-not-found -o 'jsonpath={.metadata.uid}') && [ \"$uid\" = "+quote(w.UID)+" ]; then",
		restart,
		"else",
		"  echo "+quote("pod "+w.Namespace+"/"+w.Name+" of then is gone: nothing to do"),
		"fi")
}

// unwritable says why no reservation can be written for the holder; empty if it can.
func (t *telling) unwritable() string {
	switch {
	case t.owner == nil || t.owner.Namespace == nil:
		return "its holder is not known"
	case t.owner.Kind() == Host:
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

// file is the path of the address's file, quoted.
func (t *telling) file() string {
	return form.File(strings.TrimSuffix(t.pool.Name, "/") + "/" + t.f.Address.String())
}

// reservation is the command that writes the address's file.
func (t *telling) reservation() string {
	return `printf '%s\r\n%s' ` + quote(t.owner.Workload().Sandbox()) + " " + quote(t.owner.Interface.Name) + " > " + t.file()
}

// dir is host-local's directory, quoted.
func (t *telling) dir() string { return form.File(strings.TrimSuffix(t.pool.Name, "/")) }

// locked is a command that runs under host-local's lock, in a shell of its own.
func (t *telling) locked(indent string, command ...string) string {
	text := []string{
		indent + "(",
		indent + "  if command -v flock >/dev/null 2>&1; then exec 9>>" + t.dir() + "/lock; flock 9; fi",
	}
	for _, c := range command {
		text = append(text, indent+"  "+c)
	}
	return script(append(text, indent+")")...)
}

// holds is a condition: the network namespace that had the address is still there.
func (t *telling) holds() string {
	if ns := t.owner.Namespace.Netns; ns != "" {
		return namespaces + " | grep -q " + quote("^ *"+ns+" ")
	}
	return "true" // its inode is not known
}

// namespaces lists all network namespaces of a node that something runs in or that
// have a name: inode and path.
const namespaces = "ls -diL /proc/[0-9]*/ns/net /run/netns/* /run/docker/netns/* 2>/dev/null"

const (
	ippools      = "ippools.whereabouts.cni.cncf.io"
	reservations = "overlappingrangeipreservations.whereabouts.cni.cncf.io"
)

// entry is one allocation of an IPPool, as it is or is to be.
type entry struct {
	namespace, name string // of the IPPool
	offset          string
	// reservation is the name of the address's OverlappingRangeIPReservation.
	reservation        string
	id, podref, ifname string
}

// entry is the place of an address in the pool; why says what is missing.
func (p *Pool) entry(a netip.Addr) (e entry, why string) {
	namespace, name, ok := strings.Cut(p.Name, "/")
	if !ok {
		return e, "the IPPool is not known"
	}
	e = entry{namespace: namespace, name: name, reservation: p.reservation(a)}
	if e.offset, ok = OffsetOf(p.Base, a); !ok {
		return e, "the offset of the address is not known"
	}
	return e, ""
}

// entry is the one that the holder should have.
func (t *telling) entry() (e entry, why string) {
	if t.owner == nil || t.owner.Kind() != Pod || t.ownerName() == "" {
		return e, "it is not known which pod holds it"
	}
	if t.owner.Interface == nil || t.owner.Interface.Namespace.ID != t.owner.ID {
		return e, "it is not known on which interface of the pod it is"
	}
	w := t.owner.Workload()
	if w.Sandbox() == "" {
		return e, "the id of its sandbox is not known, and whereabouts frees an address by that"
	}
	e, why = t.pool.entry(t.f.Address)
	e.id, e.podref, e.ifname = w.Sandbox(), t.ownerName(), t.owner.Interface.Name
	return e, why
}

// reservation is what whereabouts calls the reservation of an address: the address,
// with - for :, after the network_name, if the pool has one.
func (p *Pool) reservation(a netip.Addr) string {
	if p.Realm != "" {
		return p.Realm + "-" + normalized(a)
	}
	return normalized(a)
}

// normalized is an address in the names of whereabouts' objects.
func normalized(a netip.Addr) string {
	s := a.String()
	if strings.HasSuffix(s, ":") {
		s += "0"
	}
	return strings.ReplaceAll(s, ":", "-")
}

// pointer is where the entry is in the IPPool (RFC 6901).
func (e entry) pointer() string { return "/spec/allocations/" + e.offset }

// path is the pointer as JSON.
func (e entry) path() string { return jsonText(e.pointer()) }

// value is the entry as JSON.
func (e entry) value() string {
	return `{"id":` + jsonText(e.id) + `,"podref":` + jsonText(e.podref) + `,"ifname":` + jsonText(e.ifname) + `}`
}

// spec is the reservation's spec as JSON.
func (e entry) spec() string {
	return `{"containerid":` + jsonText(e.id) + `,"podref":` + jsonText(e.podref) + `,"ifname":` + jsonText(e.ifname) + `}`
}

// patch is the command that patches the IPPool: all operations, or none.
func (e entry) patch(operations ...string) string {
	return "kubectl patch " + ippools + " " + quote(e.name) + " -n " + quote(e.namespace) +
		" --type=json -p " + quote("["+strings.Join(operations, ",")+"]")
}

// there is a condition: the offset is booked for a pod; for nobody, if podref is empty.
// It is false, too, where the IPPool cannot be read.
func (e entry) there(podref string) string { return e.says("podref", podref) }

// says is a condition: a field of the entry says something.
func (e entry) says(field, value string) string {
	return "at=$(kubectl get " + ippools + " " + quote(e.name) + " -n " + quote(e.namespace) +
		" -o 'jsonpath={.spec.allocations." + e.offset + "." + field + "}') && [ \"$at\" = " + quote(value) + " ]"
}

// reserved is a condition: the reservation is for a pod.
func (e entry) reserved(podref string) string {
	return "at=$(kubectl get " + reservations + " " + quote(e.reservation) + " -n " + quote(e.namespace) +
		" --ignore-not-found -o 'jsonpath={.spec.podref}') && [ \"$at\" = " + quote(podref) + " ]"
}

// reserve is the command that makes the reservation, where the entry is there and
// whereabouts keeps such (enable_overlapping_ranges).
func (e entry) reserve() string {
	object := `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"OverlappingRangeIPReservation","metadata":{"name":` + jsonText(e.reservation) +
		`,"namespace":` + jsonText(e.namespace) + `},"spec":` + e.spec() + `}`
	return script(
		"if "+e.there(e.podref)+" && "+e.reserved("")+" &&",
		"  [ -n \"$(kubectl get "+reservations+" -n "+quote(e.namespace)+" -o name)\" ]; then",
		"  printf '%s\\n' "+quote(object)+" | kubectl create -f -",
		"fi")
}

// podLives is a condition: the pod is there, and is the one of then.
func (e entry) podLives(uid string) string {
	namespace, name, _ := strings.Cut(e.podref, "/")
	get := "pod=$(kubectl get pod -n " + quote(namespace) + " " + quote(name) + " --ignore-not-found -o 'jsonpath={.metadata.uid}') && "
	if uid == "" {
		return get + "[ -n \"$pod\" ]"
	}
	return get + "[ \"$pod\" = " + quote(uid) + " ]"
}

// jsonText is a text in JSON.
func jsonText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ':
			const digits = "0123456789abcdef"
			b.WriteString(`\u00` + string(digits[r>>4]) + string(digits[r&15]))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// restartCalicoNode is the command that restarts calico-node on one node.
func restartCalicoNode(node string) string {
	return "kubectl delete pods -A -l k8s-app=calico-node --field-selector " + quote("spec.nodeName="+node)
}

// calicoNodename is where Calico keeps the name of a node on it.
const calicoNodename = "/var/lib/calico/nodename"

// node is the one that a node's own pool is of; empty for a pool of the whole cluster.
func (t *telling) node() string {
	if t.pool.Node == nil {
		return ""
	}
	return t.pool.Node.Name
}

// ownerName is the owner as NAMESPACE/POD, empty where it is no pod.
func (t *telling) ownerName() string {
	if t.owner == nil || t.owner.Kind() != Pod {
		return ""
	}
	namespace, name := t.owner.Named()
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// deletePod is the command that deletes a pod.
func deletePod(namespace, name string) string {
	return "kubectl delete pod -n " + quote(namespace) + " " + argument(name)
}

// script joins the lines of a command.
func script(text ...string) string { return strings.Join(text, "\n") }
