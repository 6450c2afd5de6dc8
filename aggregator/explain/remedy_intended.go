package explain

import (
	"cmp"
	"fmt"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// buildIntended builds the text of the finding that an owner lacks an address intended for it.
func buildIntended(t *findingBuilder) {
	t.Summary = fmt.Sprintf("%s should have %s, but none of its interfaces has it. Traffic to the address is lost or reaches another host.",
		capital(t.holder()), t.f.Address)
	if t.f.Source != "" {
		t.State("The address is intended for this owner according to %s.", intends(t.f.Source))
	}
	t.allocations()
	t.Act(advice.Say("Check which addresses it has instead.").By("", "ipwitness owners "+advice.Argument(cmp.Or(t.ownerName(), t.f.Address.String()))))
	t.Advise("Find out what removed the address: a script or a sidecar with NET_ADMIN, an interface that is down, or a CNI plugin that failed halfway (see the kubelet's log and the events of the pod).")
	t.Restart("its sandbox is set up again with all of its addresses")
	t.closing()
}

// intends names the source that intends an address for an owner.
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
