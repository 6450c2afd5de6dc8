package explain

import (
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// restart adds the advice to restart the holder; then says what that achieves. The command must be
// run by hand.
func (t *telling) restart(then string) {
	actions, fix := t.restarting(then)
	t.act(actions...)
	if fix.What != "" {
		t.fix(fix)
	}
}

// restarting returns the steps that restart the holder. There are none if the holder is not known.
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
		have := say("Decide whether %s can have a different address. Ask the person who created it.", placed(t.owner)).or(
			either("it can", say("Remove the address from it, and make sure that the software that set it does not set it again.").by(t.owner.Node.Name, del)),
			either("it must keep this address", outOfRange([]*verdict.Pool{t.pool}, t.f.Address)...))
		return []Action{have}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Give %s a different address than %s, or exclude that address from %s: ipwitness audit %[2]s says how.", OwnerName(t.owner), t.f.Address, poolName(t.pool)), Manual: true}
	case w.Kind != verdict.Pod || w.Name == "" || w.Namespace == "":
		return []Action{say("Restart %s, so that %s.", placed(t.owner), then)}, Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Restart %s, so that %s.", OwnerName(t.owner), then), Manual: true}
	}
	return deletion(t.owner), Fix{Command: deletePod(w.Namespace, w.Name), What: fmt.Sprintf("Restart pod %s/%s: %s.", w.Namespace, w.Name, then), Manual: true}
}

// restartNow adds the advice to restart the holder. If a controller replaces the pod, the command
// is safe to run as it is: it waits for the new pod, so that several pods are not gone at once. A
// person must decide when to end the pod of a Job or of a virtual machine.
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
			"  echo "+quote("the original pod "+w.Namespace+"/"+w.Name+" is gone: nothing to do"),
			"fi"),
	}
}
