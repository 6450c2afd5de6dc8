package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// whereabouts (pkg/storage/kubernetes/ipam.go) keeps in each IPPool a map from the offset of an
// address in the range to {id, podref, ifname}. In addition, it keeps one
// OverlappingRangeIPReservation for each address across all ranges. It changes the map with JSON
// patches like the ones below; for the API server, a "test" against null succeeds if the entry does
// not exist.

const (
	ippools      = "ippools.whereabouts.cni.cncf.io"
	reservations = "overlappingrangeipreservations.whereabouts.cni.cncf.io"
)

// whereaboutsRemedies builds the remedies for addresses of whereabouts.
type whereaboutsRemedies struct{ *telling }

// reserve advises to write the missing allocation.
func (t whereaboutsRemedies) reserve() {
	t.advise("Start no pods of that network until this is repaired: scale their controllers to the number of pods that exist now, or cordon the nodes that run them.")
	entry, why := t.entry()
	if why != "" {
		t.byHand("", "", "Allocate %s in IPPool %s to its holder. Do this by hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it requests a free address from whereabouts")
		t.reconciled()
		return
	}
	t.advise("Write the allocation at offset %s of IPPool %s, in the format of whereabouts.", entry.offset, t.pool.Name)
	t.act(plan("")...)
	t.reconciled()
	t.fix(Fix{
		What: fmt.Sprintf("Allocate %s to pod %s, which holds it, at offset %s of IPPool %s.", t.f.Address, entry.podref, entry.offset, t.pool.Name),
		Command: script(
			"if "+entry.there("")+" && "+entry.podLives(t.owner.Workload().UID)+"; then",
			"  "+entry.patch(`{"op":"test","path":`+entry.path()+`,"value":null}`, `{"op":"add","path":`+entry.path()+`,"value":`+entry.value()+`}`),
			"else",
			"  echo "+quote(t.f.Address.String()+": the offset is in use, or the pod is gone: nothing to do"),
			"fi",
			entry.reserve()),
	})
}

// reassign advises to change the allocation to the holder.
func (t whereaboutsRemedies) reassign() {
	entry, why := t.entry()
	if why == "" && t.allocation.Pod == "" {
		why = "it is not known which pod has it now"
	}
	if why != "" {
		t.act(say("Check whether %s runs, and which addresses it has.", cmp.Or(after("pod ", t.allocation.Pod), "the pod of the allocation")).by("", "kubectl get pods -A -o wide"))
		t.byHand("", "", "Change the allocation of %s in IPPool %s to its holder. Do this by hand, because %s.", t.f.Address, t.pool.Name, why)
		t.restart("it requests a free address from whereabouts")
		return
	}
	other := entry
	other.podref, other.id = t.allocation.Namespace+"/"+t.allocation.Pod, t.allocation.ContainerID
	restart, _ := t.restarting("its successor gets its own address")
	t.act(
		say("Check whether pod %s exists, and which addresses it has (annotation k8s.v1.cni.cncf.io/network-status).", other.podref).
			by("", "kubectl get pod -n "+quote(t.allocation.Namespace)+" -o yaml --ignore-not-found "+argument(t.allocation.Pod)),
		say("Continue according to the result.").or(
			either("it does not exist", plan("")...),
			either("it exists", append([]Action{say("Leave its allocation as it is.")}, restart...)...),
		))
	tests := []string{`{"op":"test","path":` + jsonText(other.pointer()+"/podref") + `,"value":` + jsonText(other.podref) + `}`}
	if other.id != "" {
		tests = append(tests, `{"op":"test","path":`+jsonText(other.pointer()+"/id")+`,"value":`+jsonText(other.id)+`}`)
	}
	t.fix(Fix{
		What: fmt.Sprintf("Change the allocation of %s in IPPool %s to pod %s, which holds it, if pod %s is gone.", t.f.Address, t.pool.Name, entry.podref, other.podref),
		Command: script(
			"if "+other.there(other.podref)+" && "+other.podGone()+" && "+entry.podLives(t.owner.Workload().UID)+"; then",
			"  "+entry.patch(append(tests, `{"op":"replace","path":`+entry.path()+`,"value":`+entry.value()+`}`)...),
			"else",
			"  echo "+quote(fmt.Sprintf("%s: it is allocated to another pod now, or pod %s exists: check it first", t.f.Address, other.podref)),
			"fi",
			"if "+entry.there(entry.podref)+" && "+other.reserved(other.podref)+"; then",
			"  kubectl patch "+reservations+" "+quote(entry.reservation)+" -n "+quote(entry.namespace)+" --type=json -p "+
				quote(`[{"op":"test","path":"/spec/podref","value":`+jsonText(other.podref)+`},{"op":"replace","path":"/spec","value":`+entry.spec()+`}]`),
			"fi"),
	})
}

// release advises to remove the allocation of a pod that is gone.
func (t whereaboutsRemedies) release() {
	al := t.allocation
	var entry entry
	why := "it is not known which pod it is for"
	if al.Pod != "" {
		entry, why = entryOf(t.pool, t.f.Address)
		entry.podref, entry.id, entry.ifname = al.Namespace+"/"+al.Pod, al.ContainerID, al.Interface
		for place := range strings.SplitSeq(al.Location, "; ") {
			if _, offset, ok := strings.Cut(place, "/spec/allocations/"); ok {
				entry.offset = offset
				if offset == "" || strings.Trim(offset, "0123456789") != "" {
					why = "its location is not understood: " + al.Location
				} else if entry.name != "" {
					why = ""
				}
			} else if _, name, ok := strings.Cut(place, "overlappingrangeipreservations "+entry.namespace+"/"); ok {
				entry.reservation = name
			}
		}
	}
	t.act(say("Check that no owner has the address.").by("", "ipwitness owners "+t.f.Address.String()))
	if why != "" {
		t.byHand("", "", "Remove the allocation of %s from IPPool %s. Do this by hand, because %s.", t.f.Address, t.pool.Name, why)
		t.reconciled()
		return
	}
	t.advise("The repair plan removes the allocation at offset %s of IPPool %s and its reservation %s, unless the pod exists and has the address.",
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
		What: fmt.Sprintf("Free %s: pod %s, to which IPPool %s allocates it at offset %s, does not have it, and no other owner does.", t.f.Address, entry.podref, t.pool.Name, entry.offset),
		Command: script(
			"if "+found+" && "+entry.without(t.f.Address)+"; then",
			"  "+entry.patch(append(ops, `{"op":"remove","path":`+entry.path()+`}`)...),
			"else",
			"  echo "+quote(fmt.Sprintf("%s: offset %s is free or belongs to another pod now, or the pod has the address: nothing to do", t.f.Address, entry.offset)),
			"fi",
			"if "+entry.there("")+" && "+entry.reserved(entry.podref)+" && "+entry.without(t.f.Address)+"; then",
			"  kubectl delete "+reservations+" "+quote(entry.reservation)+" -n "+quote(entry.namespace),
			"fi"),
	})
}

// reconciled advises to check whereabouts' own reconciler.
func (t whereaboutsRemedies) reconciled() {
	t.advise("Check whereabouts' own reconciler: it should free the allocations of pods that are gone, but a faulty one frees addresses in use (see the log of the whereabouts pods or of the CronJob ip-reconciler; reconciler_cron_expression).")
}

// entry is one allocation of an IPPool, existing or intended.
type entry struct {
	namespace, name string // of the IPPool
	offset          string
	// reservation is the name of the address's OverlappingRangeIPReservation.
	reservation        string
	id, podref, ifname string
}

// entryOf returns the entry of an address in the pool. If it cannot be determined, why says what is
// missing.
func entryOf(p *verdict.Pool, a netip.Addr) (e entry, why string) {
	namespace, name, ok := strings.Cut(p.Name, "/")
	if !ok {
		return e, "the IPPool is not known"
	}
	e = entry{namespace: namespace, name: name, reservation: reservationOf(p, a)}
	if e.offset, ok = ipam.OffsetOf(p.Base, a); !ok {
		return e, "the offset of the address is not known"
	}
	return e, ""
}

// entry returns the entry that the holder should have.
func (t whereaboutsRemedies) entry() (e entry, why string) {
	if t.owner == nil || t.owner.Kind() != verdict.Pod || t.ownerName() == "" {
		return e, "it is not known which pod holds it"
	}
	if t.owner.Interface == nil || t.owner.Interface.Namespace.ID != t.owner.ID {
		return e, "it is not known which interface of the pod has it"
	}
	w := t.owner.Workload()
	if w.Sandbox() == "" {
		return e, "the id of its sandbox is not known, and whereabouts needs it to free the address"
	}
	e, why = entryOf(t.pool, t.f.Address)
	e.id, e.podref, e.ifname = w.Sandbox(), t.ownerName(), t.owner.Interface.Name
	return e, why
}

// reservationOf returns the name of the reservation of an address in whereabouts: the network_name,
// if the pool has one, and the address with - in place of :.
func reservationOf(p *verdict.Pool, a netip.Addr) string {
	if p.Realm != "" {
		return p.Realm + "-" + normalized(a)
	}
	return normalized(a)
}

// normalized formats an address as in the names of whereabouts' objects.
func normalized(a netip.Addr) string {
	s := a.String()
	if strings.HasSuffix(s, ":") {
		s += "0"
	}
	return strings.ReplaceAll(s, ":", "-")
}

// pointer returns the JSON pointer of the entry in the IPPool (RFC 6901).
func (e entry) pointer() string { return "/spec/allocations/" + e.offset }

// path returns the pointer as JSON.
func (e entry) path() string { return jsonText(e.pointer()) }

// value returns the entry as JSON.
func (e entry) value() string {
	return `{"id":` + jsonText(e.id) + `,"podref":` + jsonText(e.podref) + `,"ifname":` + jsonText(e.ifname) + `}`
}

// spec returns the reservation's spec as JSON.
func (e entry) spec() string {
	return `{"containerid":` + jsonText(e.id) + `,"podref":` + jsonText(e.podref) + `,"ifname":` + jsonText(e.ifname) + `}`
}

// patch returns the command that patches the IPPool. It applies all operations or none.
func (e entry) patch(operations ...string) string {
	return "kubectl patch " + ippools + " " + quote(e.name) + " -n " + quote(e.namespace) +
		" --type=json -p " + quote("["+strings.Join(operations, ",")+"]")
}

// there returns the condition that the offset is allocated to a pod, or that it is free if podref is
// empty. The condition is also false if the IPPool cannot be read.
func (e entry) there(podref string) string { return e.says("podref", podref) }

// says returns the condition that a field of the entry has a value.
func (e entry) says(field, value string) string {
	return "at=$(kubectl get " + ippools + " " + quote(e.name) + " -n " + quote(e.namespace) +
		" -o 'jsonpath={.spec.allocations." + e.offset + "." + field + "}') && [ \"$at\" = " + quote(value) + " ]"
}

// reserved returns the condition that the reservation is for a pod.
func (e entry) reserved(podref string) string {
	return "at=$(kubectl get " + reservations + " " + quote(e.reservation) + " -n " + quote(e.namespace) +
		" --ignore-not-found -o 'jsonpath={.spec.podref}') && [ \"$at\" = " + quote(podref) + " ]"
}

// reserve returns the command that creates the reservation if the entry exists and whereabouts uses
// reservations (enable_overlapping_ranges).
func (e entry) reserve() string {
	object := `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"OverlappingRangeIPReservation","metadata":{"name":` + jsonText(e.reservation) +
		`,"namespace":` + jsonText(e.namespace) + `},"spec":` + e.spec() + `}`
	return script(
		"if "+e.there(e.podref)+" && "+e.reserved("")+" &&",
		"  [ -n \"$(kubectl get "+reservations+" -n "+quote(e.namespace)+" -o name)\" ]; then",
		"  printf '%s\\n' "+quote(object)+" | kubectl create -f -",
		"fi")
}

// podLives returns the condition that the pod exists and has the given uid, if it is known.
func (e entry) podLives(uid string) string {
	namespace, name, _ := strings.Cut(e.podref, "/")
	get := "pod=$(kubectl get pod -n " + quote(namespace) + " " + quote(name) + " --ignore-not-found -o 'jsonpath={.metadata.uid}') && "
	if uid == "" {
		return get + "[ -n \"$pod\" ]"
	}
	return get + "[ \"$pod\" = " + quote(uid) + " ]"
}

// podGone returns the condition that the pod does not exist.
func (e entry) podGone() string {
	namespace, name, _ := strings.Cut(e.podref, "/")
	return "pod=$(kubectl get pod -n " + quote(namespace) + " " + quote(name) + " --ignore-not-found -o name) && [ -z \"$pod\" ]"
}

// without returns the condition that the pod does not exist, or that neither Multus nor the pod
// status has the address. The kernel does not know the address of a user-space device (DPDK).
func (e entry) without(a netip.Addr) string {
	namespace, name, _ := strings.Cut(e.podref, "/")
	return "has=$(kubectl get pod -n " + quote(namespace) + " " + quote(name) +
		` --ignore-not-found -o 'jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status} {.status.podIPs}') && ` +
		"! printf '%s' \"$has\" | grep -qF " + quote(`"`+a.String()+`"`)
}

// jsonText returns a text as a JSON string.
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
