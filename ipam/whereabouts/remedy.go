package whereabouts

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// whereabouts (pkg/storage/kubernetes/ipam.go) keeps in each IPPool a map from the offset of an
// address in the range to {id, podref, ifname}. In addition, it keeps one
// OverlappingRangeIPReservation for each address across all ranges. It changes the map with JSON
// patches like the ones below; for the API server, a "test" against null succeeds if the entry does
// not exist.

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies { return remedies{c, a} },
	Exclude: func(p *ipam.Pool, _ string, a netip.Addr) ipam.Exclusion {
		where := ""
		if p.Config != "" {
			where = " in " + p.Config
		}
		return ipam.Exclusion{
			How:  "add it to exclude in its NetworkAttachmentDefinition",
			Step: advice.Say("Exclude %s from what whereabouts allocates: add it to exclude%s.", a, where),
		}
	},
	Enlarge: func(*ipam.Pool) string {
		return "Give the network a larger range in its NetworkAttachmentDefinition, or an additional range (ipRanges). A changed range creates a new IPPool: exclude from it the addresses that the old one has allocated."
	},
	Access: ipam.MayList(" -A", Pools, Reservations),
	Loss:   ipam.Loss{Rebuild: true, Recreate: recreate},
}

// recreate returns the command that creates an IPPool as whereabouts would, which names it after its
// range; false if the range is not known.
func recreate(p *ipam.Pool) (advice.Fix, bool) {
	namespace, name, _ := strings.Cut(p.Name, "/")
	bits, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil || !p.Base.IsValid() || bits < 0 || bits > p.Base.BitLen() {
		return advice.Fix{}, false
	}
	object := `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"IPPool","metadata":{"name":` + jsonText(name) + `,"namespace":` + jsonText(namespace) +
		`},"spec":{"range":` + jsonText(p.Base.String()+"/"+strconv.Itoa(bits)) + `,"allocations":{}}}`
	return advice.Fix{
		What: fmt.Sprintf("Recreate IPPool %s without allocations: the next steps write the allocations of the current holders.", p.Name),
		Command: advice.Script(
			"if pool=$(kubectl get "+Pools.String()+" "+advice.Quote(name)+" -n "+advice.Quote(namespace)+" --ignore-not-found -o name) && [ -z \"$pool\" ]; then",
			"  printf '%s\\n' "+advice.Quote(object)+" | kubectl create -f -",
			"fi"),
	}, true
}

// remedies builds the remedies for addresses of whereabouts.
type remedies ipam.Remedy

// Reserve advises to write the missing allocation.
func (t remedies) Reserve() {
	t.Advise("Start no pods of that network until this is repaired: scale their controllers to the number of pods that exist now, or cordon the nodes that run them.")
	entry, why := t.slot()
	if why != "" {
		t.ByHand("", "", "Allocate %s in IPPool %s to its holder. Do this by hand, because %s.", t.Address, t.Pool.Name, why)
		t.Restart("it requests a free address from whereabouts")
		t.reconciled()
		return
	}
	t.Advise("Write the allocation at offset %s of IPPool %s, in the format of whereabouts.", entry.offset, t.Pool.Name)
	t.Act(advice.Plan("")...)
	t.reconciled()
	t.Fix(advice.Fix{
		What: fmt.Sprintf("Allocate %s to pod %s, which holds it, at offset %s of IPPool %s.", t.Address, entry.podref, entry.offset, t.Pool.Name),
		Command: advice.Script(
			"if "+entry.there("")+" && "+entry.podLives(t.Holder.UID)+"; then",
			"  "+entry.patch(`{"op":"test","path":`+entry.path()+`,"value":null}`, `{"op":"add","path":`+entry.path()+`,"value":`+entry.value()+`}`),
			"else",
			"  echo "+advice.Quote(t.Address.String()+": the offset is in use, or the pod is gone: nothing to do"),
			"fi",
			entry.reserve()),
	})
}

// Reassign advises to change the allocation to the holder.
func (t remedies) Reassign() {
	entry, why := t.slot()
	if why == "" && t.Allocation.Pod == "" {
		why = "the pod that it is currently allocated to is unknown"
	}
	if why != "" {
		pod := "the pod of the allocation"
		if t.Allocation.Pod != "" {
			pod = "pod " + t.Allocation.Pod
		}
		t.Act(advice.Say("Check whether %s runs, and which addresses it has.", pod).By("", "kubectl get pods -A -o wide"))
		t.ByHand("", "", "Change the allocation of %s in IPPool %s to its holder. Do this by hand, because %s.", t.Address, t.Pool.Name, why)
		t.Restart("it requests a free address from whereabouts")
		return
	}
	other := entry
	other.podref, other.id = t.Allocation.Namespace+"/"+t.Allocation.Pod, t.Allocation.ContainerID
	restart, _ := t.Restarting("its successor gets its own address")
	t.Act(
		advice.Say("Check whether pod %s exists, and which addresses it has (annotation k8s.v1.cni.cncf.io/network-status).", other.podref).
			By("", "kubectl get pod -n "+advice.Quote(t.Allocation.Namespace)+" -o yaml --ignore-not-found "+advice.Argument(t.Allocation.Pod)),
		advice.Say("Continue according to the result.").Or(
			advice.Either("it does not exist", advice.Plan("")...),
			advice.Either("it exists", append([]advice.Action{advice.Say("Leave its allocation as it is.")}, restart...)...),
		))
	tests := []string{`{"op":"test","path":` + jsonText(other.pointer()+"/podref") + `,"value":` + jsonText(other.podref) + `}`}
	if other.id != "" {
		tests = append(tests, `{"op":"test","path":`+jsonText(other.pointer()+"/id")+`,"value":`+jsonText(other.id)+`}`)
	}
	t.Fix(advice.Fix{
		What: fmt.Sprintf("Change the allocation of %s in IPPool %s to pod %s, which holds it, if pod %s is gone.", t.Address, t.Pool.Name, entry.podref, other.podref),
		Command: advice.Script(
			"if "+other.there(other.podref)+" && "+other.podGone()+" && "+entry.podLives(t.Holder.UID)+"; then",
			"  "+entry.patch(append(tests, `{"op":"replace","path":`+entry.path()+`,"value":`+entry.value()+`}`)...),
			"else",
			"  echo "+advice.Quote(fmt.Sprintf("%s: it is allocated to another pod now, or pod %s exists: check it first", t.Address, other.podref)),
			"fi",
			"if "+entry.there(entry.podref)+" && "+other.reserved(other.podref)+"; then",
			"  kubectl patch "+Reservations.String()+" "+advice.Quote(entry.reservation)+" -n "+advice.Quote(entry.namespace)+" --type=json -p "+
				advice.Quote(`[{"op":"test","path":"/spec/podref","value":`+jsonText(other.podref)+`},{"op":"replace","path":"/spec","value":`+entry.spec()+`}]`),
			"fi"),
	})
}

// Release advises to remove the allocation of a pod that is gone.
func (t remedies) Release() {
	al := t.Allocation
	var entry slot
	why := "the pod that it is allocated to is unknown"
	if al.Pod != "" {
		entry, why = slotOf(t.Pool, t.Address)
		entry.podref, entry.id, entry.ifname = al.Namespace+"/"+al.Pod, al.ContainerID, al.Interface
		for place := range strings.SplitSeq(al.Location, "; ") {
			if _, offset, ok := strings.Cut(place, "/spec/allocations/"); ok {
				entry.offset = offset
				if offset == "" || strings.Trim(offset, "0123456789") != "" {
					why = "its location cannot be parsed: " + al.Location
				} else if entry.name != "" {
					why = ""
				}
			} else if _, name, ok := strings.Cut(place, Reservations.Resource+" "+entry.namespace+"/"); ok {
				entry.reservation = name
			}
		}
	}
	t.Act(advice.Say("Check that no owner has the address.").By("", "ipwitness owners "+t.Address.String()))
	if why != "" {
		t.ByHand("", "", "Remove the allocation of %s from IPPool %s. Do this by hand, because %s.", t.Address, t.Pool.Name, why)
		t.reconciled()
		return
	}
	t.Advise("The repair plan removes the allocation at offset %s of IPPool %s and its reservation %s, unless the pod exists and has the address.",
		entry.offset, t.Pool.Name, entry.reservation)
	t.Act(advice.Plan("")...)
	t.reconciled()
	ops := []string{`{"op":"test","path":` + jsonText(entry.pointer()+"/podref") + `,"value":` + jsonText(entry.podref) + `}`}
	found := entry.there(entry.podref)
	if entry.id != "" {
		ops = append(ops, `{"op":"test","path":`+jsonText(entry.pointer()+"/id")+`,"value":`+jsonText(entry.id)+`}`)
		found += " && " + entry.says("id", entry.id)
	}
	t.Fix(advice.Fix{
		What: fmt.Sprintf("Free %s: pod %s, to which IPPool %s allocates it at offset %s, does not have it, and no other owner does.", t.Address, entry.podref, t.Pool.Name, entry.offset),
		Command: advice.Script(
			"if "+found+" && "+entry.without(t.Address)+"; then",
			"  "+entry.patch(append(ops, `{"op":"remove","path":`+entry.path()+`}`)...),
			"else",
			"  echo "+advice.Quote(fmt.Sprintf("%s: offset %s is free or belongs to another pod now, or the pod has the address: nothing to do", t.Address, entry.offset)),
			"fi",
			"if "+entry.there("")+" && "+entry.reserved(entry.podref)+" && "+entry.without(t.Address)+"; then",
			"  kubectl delete "+Reservations.String()+" "+advice.Quote(entry.reservation)+" -n "+advice.Quote(entry.namespace),
			"fi"),
	})
}

// reconciled advises to check whereabouts' own reconciler.
func (t remedies) reconciled() {
	t.Advise("Check whereabouts' own reconciler: it should free the allocations of pods that are gone, but a faulty one frees addresses in use (see the log of the whereabouts pods or of the CronJob ip-reconciler; reconciler_cron_expression).")
}

// A slot is one entry of an IPPool, existing or intended.
type slot struct {
	namespace, name string // of the IPPool
	offset          string
	// reservation is the name of the address's OverlappingRangeIPReservation.
	reservation        string
	id, podref, ifname string
}

// slotOf returns the entry of an address in the pool. If it cannot be determined, why says what is
// missing.
func slotOf(p *ipam.Pool, a netip.Addr) (s slot, why string) {
	namespace, name, ok := strings.Cut(p.Name, "/")
	if !ok {
		return s, "the IPPool is unknown"
	}
	s = slot{namespace: namespace, name: name, reservation: reservationOf(p, a)}
	if s.offset, ok = ipam.OffsetOf(p.Base, a); !ok {
		return s, "the offset of the address is unknown"
	}
	return s, ""
}

// slot returns the entry that the holder should have.
func (t remedies) slot() (s slot, why string) {
	h := t.Holder
	switch {
	case h == nil || h.Pod == "":
		return s, "the pod that holds it is unknown"
	case h.Interface == "":
		return s, "the pod's interface with the address is unknown"
	case h.Sandbox == "":
		return s, "the id of its sandbox, which whereabouts needs to free the address, is unknown"
	}
	s, why = slotOf(t.Pool, t.Address)
	s.id, s.podref, s.ifname = h.Sandbox, h.Namespace+"/"+h.Pod, h.Interface
	return s, why
}

// reservationOf returns the name of the reservation of an address in whereabouts: the network_name,
// if the pool has one, and the address with - in place of :.
func reservationOf(p *ipam.Pool, a netip.Addr) string {
	if p.Realm != "" {
		return p.Realm + "-" + normalized(a.String())
	}
	return normalized(a.String())
}

// pointer returns the JSON pointer of the entry in the IPPool (RFC 6901).
func (s slot) pointer() string { return "/spec/allocations/" + s.offset }

// path returns the pointer as JSON.
func (s slot) path() string { return jsonText(s.pointer()) }

// value returns the entry as JSON.
func (s slot) value() string {
	return `{"id":` + jsonText(s.id) + `,"podref":` + jsonText(s.podref) + `,"ifname":` + jsonText(s.ifname) + `}`
}

// spec returns the reservation's spec as JSON.
func (s slot) spec() string {
	return `{"containerid":` + jsonText(s.id) + `,"podref":` + jsonText(s.podref) + `,"ifname":` + jsonText(s.ifname) + `}`
}

// patch returns the command that patches the IPPool. It applies all operations or none.
func (s slot) patch(operations ...string) string {
	return "kubectl patch " + Pools.String() + " " + advice.Quote(s.name) + " -n " + advice.Quote(s.namespace) +
		" --type=json -p " + advice.Quote("["+strings.Join(operations, ",")+"]")
}

// there returns the condition that the offset is allocated to a pod, or that it is free if podref is
// empty. The condition is also false if the IPPool cannot be read.
func (s slot) there(podref string) string { return s.says("podref", podref) }

// says returns the condition that a field of the entry has a value.
func (s slot) says(field, value string) string {
	return "at=$(kubectl get " + Pools.String() + " " + advice.Quote(s.name) + " -n " + advice.Quote(s.namespace) +
		" -o 'jsonpath={.spec.allocations." + s.offset + "." + field + "}') && [ \"$at\" = " + advice.Quote(value) + " ]"
}

// reserved returns the condition that the reservation is for a pod.
func (s slot) reserved(podref string) string {
	return "at=$(kubectl get " + Reservations.String() + " " + advice.Quote(s.reservation) + " -n " + advice.Quote(s.namespace) +
		" --ignore-not-found -o 'jsonpath={.spec.podref}') && [ \"$at\" = " + advice.Quote(podref) + " ]"
}

// reserve returns the command that creates the reservation if the entry exists and whereabouts uses
// reservations (enable_overlapping_ranges).
func (s slot) reserve() string {
	object := `{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"OverlappingRangeIPReservation","metadata":{"name":` + jsonText(s.reservation) +
		`,"namespace":` + jsonText(s.namespace) + `},"spec":` + s.spec() + `}`
	return advice.Script(
		"if "+s.there(s.podref)+" && "+s.reserved("")+" &&",
		"  [ -n \"$(kubectl get "+Reservations.String()+" -n "+advice.Quote(s.namespace)+" -o name)\" ]; then",
		"  printf '%s\\n' "+advice.Quote(object)+" | kubectl create -f -",
		"fi")
}

// podLives returns the condition that the pod exists and has the given uid, if it is known.
func (s slot) podLives(uid string) string {
	namespace, name, _ := strings.Cut(s.podref, "/")
	get := "pod=$(kubectl get pod -n " + advice.Quote(namespace) + " " + advice.Quote(name) + " --ignore-not-found -o 'jsonpath={.metadata.uid}') && "
	if uid == "" {
		return get + "[ -n \"$pod\" ]"
	}
	return get + "[ \"$pod\" = " + advice.Quote(uid) + " ]"
}

// podGone returns the condition that the pod does not exist.
func (s slot) podGone() string {
	namespace, name, _ := strings.Cut(s.podref, "/")
	return "pod=$(kubectl get pod -n " + advice.Quote(namespace) + " " + advice.Quote(name) + " --ignore-not-found -o name) && [ -z \"$pod\" ]"
}

// without returns the condition that the pod does not exist, or that neither Multus nor the pod
// status has the address. The kernel does not know the address of a user-space device (DPDK).
func (s slot) without(a netip.Addr) string {
	namespace, name, _ := strings.Cut(s.podref, "/")
	return "has=$(kubectl get pod -n " + advice.Quote(namespace) + " " + advice.Quote(name) +
		` --ignore-not-found -o 'jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status} {.status.podIPs}') && ` +
		"! printf '%s' \"$has\" | grep -qF " + advice.Quote(`"`+a.String()+`"`)
}

// jsonText returns a text as a JSON string.
func jsonText(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can always be encoded
	return strings.TrimSuffix(b.String(), "\n")
}
