package explain

import (
	"cmp"
	"fmt"
)

// tellIntended words the finding that an owner does not have what it was meant to have.
func tellIntended(t *telling) {
	t.told.Summary = fmt.Sprintf("%s was meant to have %s, and no interface in it has it. Who reaches for it there reaches nobody, or somebody else.",
		capital(t.holder()), t.f.Address)
	if t.f.Source != "" {
		t.evidence("It was to have the address: %s says so.", intends(t.f.Source))
	}
	t.bookings()
	t.act(say("See what it has instead.").by("", "ipwitness owners "+argument(cmp.Or(t.ownerName(), t.f.Address.String()))))
	t.advise("Look for what took the address away: a script or a sidecar with NET_ADMIN, an interface that is down, a CNI plugin that failed half-way (the kubelet's log and the events of the pod say so).")
	t.restart("its sandbox is set up anew, with all of its addresses")
	t.closing()
}

// intends names who means an owner to have an address.
func intends(source string) string {
	switch source {
	case "cri":
		return "the container runtime (CRI)"
	case "cni-result":
		return "the result of its CNI plugin (/var/lib/cni/results)"
	case "kubernetes":
		return "the Kubernetes API (Pod.status.podIPs)"
	}
	return source
}
