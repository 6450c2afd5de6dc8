package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// whereabouts (pkg/storage/kubernetes/ipam.go) keeps in each IPPool a map from the
// offset of an address in the range to {id, podref, ifname}, and beside it, for all
// ranges together, one OverlappingRangeIPReservation for each address. It changes the
// map by JSON patches as these; for the API server a "test" against null says that
// nothing is there.

const (
	ippools      = "ippools.whereabouts.cni.cncf.io"
	reservations = "overlappingrangeipreservations.whereabouts.cni.cncf.io"
)

// whereabouts words the remedies for addresses of whereabouts.
type whereabouts struct{ *telling }

// reserve has the allocation written down.
func (t whereabouts) reserve() {
	t.advise("Start no pods of that network until this is put right: scale what makes them to what is there now, or cordon the nodes that run them.")
	entry, why := t.entry()
	if why != "" {
		t.byHand("", "", "Book %s in IPPool %s for its holder. By hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it asks whereabouts for an address that is free")
		t.reconciled()
		return
	}
	t.advise("The allocation is to be written as whereabouts does, at offset %s of IPPool %s.", entry.offset, t.pool.Name)
	t.act(plan("")...)
	t.reconciled()
	t.fix(Fix{
		What: fmt.Sprintf("Book %s for pod %s, which holds it, at offset %s of IPPool %s.", t.f.Address, entry.podref, entry.offset, t.pool.Name),
		Command: script(
			"if "+entry.there("")+" && "+entry.podLives(t.owner.Workload().UID)+"; then",
			"  "+entry.patch(`{"op":"test","path":`+entry.path()+`,"value":null}`, `{"op":"add","path":`+entry.path()+`,"value":`+entry.value()+`}`),
			"else",
			"  echo "+quote(t.f.Address.String()+": the offset is taken, or the pod is gone: nothing to do"),
			"fi",
			entry.reserve()),
	})
}

// rebook has the allocation put into the name of the holder.
func (t whereabouts) rebook() {
	entry, why := t.entry()
	if why == "" && t.booked.Pod == "" {
		why = "it is not known whose it is now"
	}
	if why != "" {
		t.act(say("See whether pod %s runs, and which addresses it has.", cmp.Or(t.booked.Pod, "of that name")).by("", "kubectl get pods -A -o wide"))
		t.byHand("", "", "Put the allocation of %s in IPPool %s into the name of its holder. By hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it asks whereabouts for an address that is free")
		return
	}
	other := entry
	other.podref, other.id = t.booked.Namespace+"/"+t.booked.Pod, t.booked.ContainerID
	restart, _ := t.restarting("its successor gets an address of its own")
	t.act(
		say("See whether pod %s is there, and which addresses it has (annotation k8s.v1.cni.cncf.io/network-status).", other.podref).
			by("", "kubectl get pod -n "+quote(t.booked.Namespace)+" -o yaml --ignore-not-found "+argument(t.booked.Pod)),
		say("What comes next depends on that.").or(
			either("it is not there", plan("")...),
			either("it is there", append([]Action{say("Leave its allocation.")}, restart...)...),
		))
	tests := []string{`{"op":"test","path":` + jsonText(other.pointer()+"/podref") + `,"value":` + jsonText(other.podref) + `}`}
	if other.id != "" {
		tests = append(tests, `{"op":"test","path":`+jsonText(other.pointer()+"/id")+`,"value":`+jsonText(other.id)+`}`)
	}
	t.fix(Fix{
		What: fmt.Sprintf("Put the allocation of %s in IPPool %s into the name of pod %s, which holds it, if pod %s is gone.", t.f.Address, t.pool.Name, entry.podref, other.podref),
		Command: script(
			"if "+other.there(other.podref)+" && "+other.podGone()+" && "+entry.podLives(t.owner.Workload().UID)+"; then",
			"  "+entry.patch(append(tests, `{"op":"replace","path":`+entry.path()+`,"value":`+entry.value()+`}`)...),
			"else",
			"  echo "+quote(fmt.Sprintf("%s: it is booked for somebody else now, or pod %s is there: look at it first", t.f.Address, other.podref)),
			"fi",
			"if "+entry.there(entry.podref)+" && "+other.reserved(other.podref)+"; then",
			"  kubectl patch "+reservations+" "+quote(entry.reservation)+" -n "+quote(entry.namespace)+" --type=json -p "+
				quote(`[{"op":"test","path":"/spec/podref","value":`+jsonText(other.podref)+`},{"op":"replace","path":"/spec","value":`+entry.spec()+`}]`),
			"fi"),
	})
}

// release has the allocation of a pod that is no more taken away.
func (t whereabouts) release() {
	al := t.booked
	var entry entry
	why := "it is not known which pod it is for"
	if al.Pod != "" {
		entry, why = entryOf(t.pool, t.f.Address)
		entry.podref, entry.id, entry.ifname = al.Namespace+"/"+al.Pod, al.ContainerID, al.Interface
		for place := range strings.SplitSeq(al.Location, "; ") {
			if _, offset, ok := strings.Cut(place, "/spec/allocations/"); ok {
				entry.offset = offset
				if offset == "" || strings.Trim(offset, "0123456789") != "" {
					why = "its place is not understood: " + al.Location
				} else if entry.name != "" {
					why = ""
				}
			} else if _, name, ok := strings.Cut(place, "overlappingrangeipreservations "+entry.namespace+"/"); ok {
				entry.reservation = name
			}
		}
	}
	t.act(say("See that nobody has the address.").by("", "ipwitness owners "+t.f.Address.String()))
	if why != "" {
		t.byHand("", "", "Take the allocation of %s out of IPPool %s. By hand, because %s.", t.f.Address, t.pool.Name, why)
		t.reconciled()
		return
	}
	t.advise("The allocation at offset %s of IPPool %s is to be taken out, and its reservation %s: the plan leaves both where the pod is there and has the address.",
		entry.offset, t.pool.Name, entry.reservation)
	t.act(plan("")...)
	t.reconciled()
	ops := []string{`{"op":"test","path":` + jsonText(entry.pointer()+"/podref") + `,"value":` + jsonText(entry.podref) + `}`}
	found := entry.there(entry.podref)
	if entry.id != "" {
		ops = append(ops, `{"op":"test","path":`+jsonText(entry.pointer()+"/id")+`,"value":`+jsonText(entry.id)+`}`)
		found += " && " + entry.says("id", entry.id)
	}
	t.fix(Fix{
		What: fmt.Sprintf("Free %s: pod %s, for which IPPool %s has it at offset %s, does not have it, and nobody else has.", t.f.Address, entry.podref, t.pool.Name, entry.offset),
		Command: script(
			"if "+found+" && "+entry.without(t.f.Address)+"; then",
			"  "+entry.patch(append(ops, `{"op":"remove","path":`+entry.path()+`}`)...),
			"else",
			"  echo "+quote(fmt.Sprintf("%s: offset %s is free, or somebody else's now, or the pod has it: nothing to do", t.f.Address, entry.offset)),
			"fi",
			"if "+entry.there("")+" && "+entry.reserved(entry.podref)+" && "+entry.without(t.f.Address)+"; then",
			"  kubectl delete "+reservations+" "+quote(entry.reservation)+" -n "+quote(entry.namespace),
			"fi"),
	})
}

// reconciled advises to look at whereabouts' own reconciler.
func (t whereabouts) reconciled() {
	t.advise("See how whereabouts' own reconciler does: it frees what pods that are gone left behind, and a wrong one frees what pods have (the log of the whereabouts pods or of the CronJob ip-reconciler; reconciler_cron_expression).")
}

// entry is one allocation of an IPPool, as it is or is to be.
type entry struct {
	namespace, name string // of the IPPool
	offset          string
	// reservation is the name of the address's OverlappingRangeIPReservation.
	reservation        string
	id, podref, ifname string
}

// entryOf returns the place of an address in the pool; why says what is missing.
func entryOf(p *verdict.Pool, a netip.Addr) (e entry, why string) {
	namespace, name, ok := strings.Cut(p.Name, "/")
	if !ok {
		return e, "the IPPool is not known"
	}
	e = entry{namespace: namespace, name: name, reservation: reservationOf(p, a)}
	if e.offset, ok = verdict.OffsetOf(p.Base, a); !ok {
		return e, "the offset of the address is not known"
	}
	return e, ""
}

// entry is the one that the holder should have.
func (t whereabouts) entry() (e entry, why string) {
	if t.owner == nil || t.owner.Kind() != verdict.Pod || t.ownerName() == "" {
		return e, "it is not known which pod holds it"
	}
	if t.owner.Interface == nil || t.owner.Interface.Namespace.ID != t.owner.ID {
		return e, "it is not known on which interface of the pod it is"
	}
	w := t.owner.Workload()
	if w.Sandbox() == "" {
		return e, "the id of its sandbox is not known, and whereabouts frees an address by that"
	}
	e, why = entryOf(t.pool, t.f.Address)
	e.id, e.podref, e.ifname = w.Sandbox(), t.ownerName(), t.owner.Interface.Name
	return e, why
}

// reservationOf returns what whereabouts calls the reservation of an address: the address,
// with - for :, after the network_name, if the pool has one.
func reservationOf(p *verdict.Pool, a netip.Addr) string {
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

// podGone is a condition: there is no such pod.
func (e entry) podGone() string {
	namespace, name, _ := strings.Cut(e.podref, "/")
	return "pod=$(kubectl get pod -n " + quote(namespace) + " " + quote(name) + " --ignore-not-found -o name) && [ -z \"$pod\" ]"
}

// without is a condition: there is no such pod, or Multus has not given it the address.
// Who has a device in user space (DPDK) has an address that no kernel knows.
func (e entry) without(a netip.Addr) string {
	namespace, name, _ := strings.Cut(e.podref, "/")
	return "has=$(kubectl get pod -n " + quote(namespace) + " " + quote(name) +
		` --ignore-not-found -o 'jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status} {.status.podIPs}') && ` +
		"! printf '%s' \"$has\" | grep -qF " + quote(`"`+a.String()+`"`)
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
