package whereabouts

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// words returns the values that the texts of remedies name: the entry of an address in its IPPool.
func words(c *ipam.Case) map[string]any {
	p, al, h := c.Pool, c.Allocation, cmp.Or(c.Holder, &ipam.Holder{})
	namespace, name, named := strings.Cut(p.Name, "/")
	w := map[string]any{"pool.namespace": namespace, "pool.name": name, "podref": h.Namespace + "/" + h.Pod, "former": al.Namespace + "/" + al.Pod, "range": "", "far": ""}
	if bits, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]); err == nil && p.Base.IsValid() && bits >= 0 && bits <= p.Base.BitLen() {
		w["range"] = p.Base.String() + "/" + strconv.Itoa(bits)
	}
	// The reservation of an address is named after it, and the network_name of the pool, if it has one.
	reservation := normalized(c.Address.String())
	if p.Realm != "" {
		reservation = p.Realm + "-" + reservation
	}
	offset, known := ipam.OffsetOf(p.Base, c.Address)
	missing := ""
	switch {
	case !named:
		missing = "the IPPool is unknown"
	case !p.Base.IsValid():
		missing = "the offset of the address is unknown"
	case !known:
		missing = "whereabouts does not read back a record so far above the start of the range"
		w["far"] = "yes"
	}
	// why says why the entry that the holder should have is not known.
	switch {
	case h.Pod == "":
		w["why"] = "the pod that holds it is unknown"
	case h.Interface == "":
		w["why"] = "the pod's interface with the address is unknown"
	case h.Sandbox == "":
		w["why"] = "the id of its sandbox, which whereabouts needs to free the address, is unknown"
	default:
		w["why"] = missing
	}
	// unclear says why the entry of the allocation is not known. Its location has the offset and the reservation.
	if al.Pod == "" {
		missing = "the pod that it is allocated to is unknown"
	}
	for place := range strings.SplitSeq(al.Location, "; ") {
		if _, at, ok := strings.Cut(place, "/spec/allocations/"); ok {
			offset = at
			if at == "" || strings.Trim(at, "0123456789") != "" {
				missing = "its location cannot be parsed: " + al.Location
			} else if named && al.Pod != "" {
				missing = ""
			}
		} else if _, name, ok := strings.Cut(place, Reservations.Resource+" "+namespace+"/"); ok {
			reservation = name
		}
	}
	w["unclear"], w["offset"], w["reservation"] = missing, offset, reservation
	return w
}
