package explain

import (
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// restart advises to restart the holder, and says what that is good for. The command
// is to be run by hand.
func (t *telling) restart(then string) {
	actions, fix := t.restarting(then)
	t.act(actions...)
	if fix.What != "" {
		t.fix(fix)
	}
}

// restarting returns the steps that restart the holder; none if the holder is not known.
func (t *telling) restarting(then string) ([]Action, Fix) {
	if t.owner == nil {
		return nil, Fix{}
	}
	w := t.owner.Workload()
	switch {
	case static(t.owner):
		s := say("%s, so that %s.", again(t.owner), then)
		return []Action{s}, Fix{Node: t.owner.Node.Name, What: s.Text, Manual: true}
	case w.OnlyNetns():
		del := fmt.Sprintf("ip -n %s addr del %s/%d dev %s", quote(w.Name), t.f.Address, prefixLength(t.owner), quote(t.owner.Interface.Name))
		have := say("See whether %s can have another address: whoever made it can tell.", placed(t.owner)).or(
			either("it can", say("Take the address away from it, and see that what set it does not set it again.").by(t.owner.Node.Name, del)),
			either("it cannot do without this very address", outOfRange([]*verdict.Pool{t.pool}, t.f.Address)...))
		return []Action{have}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Give %s another address than %s, or have %s leave that out: ipwitness audit %[2]s says how.", OwnerName(t.owner), t.f.Address, poolName(t.pool)), Manual: true}
	case w.Kind != verdict.Pod || w.Name == "" || w.Namespace == "":
		return []Action{say("Restart %s, so that %s.", placed(t.owner), then)}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Restart %s, so that %s.", OwnerName(t.owner), then), Manual: true}
	}
	return deletion(t.owner), Fix{Command: deletePod(w.Namespace, w.Name), What: fmt.Sprintf("Restart pod %s/%s: %s.", w.Namespace, w.Name, then), Manual: true}
}

// restartNow is restart with a command that may be run as it is, where something makes
// a new pod: it waits for that, so that of several not all are gone at once. A Job's pod,
// or that of a virtual machine, is for a person to end.
func (t *telling) restartNow(then string) {
	t.restart(then)
	if t.owner == nil || t.owner.Pod == nil || t.owner.Workload().UID == "" {
		return
	}
	w := t.owner.Workload()
	restart := "  " + deletePod(w.Namespace, w.Name)
	switch p := t.owner.Pod; p.ControllerKind {
	case "Deployment", "StatefulSet", "DaemonSet":
		restart = script(restart, "  kubectl rollout status -n "+quote(w.Namespace)+" "+quote(strings.ToLower(p.ControllerKind)+"/"+p.Controller)+" --timeout=5m")
	case "ReplicaSet":
	default:
		return
	}
	t.told.Fixes[len(t.told.Fixes)-1] = Fix{
		What: fmt.Sprintf("Restart pod %s/%s, which holds %s: %s.", w.Namespace, w.Name, t.f.Address, then),
		Command: script(
			"if uid=$(kubectl get pod -n "+quote(w.Namespace)+" "+quote(w.Name)+" --ignore-not-found -o 'jsonpath={.metadata.uid}') && [ \"$uid\" = "+quote(w.UID)+" ]; then",
			restart,
			"else",
			"  echo "+quote("pod "+w.Namespace+"/"+w.Name+" of then is gone: nothing to do"),
			"fi"),
	}
}
