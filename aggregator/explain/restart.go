package explain

import (
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// Restart adds the advice to restart the holder. then is the effect of the restart, as a
// clause. The command must be run by hand.
func (t *findingBuilder) Restart(then string) {
	actions, fix := t.Restarting(then)
	t.Act(actions...)
	if fix.What != "" {
		t.Fix(fix)
	}
}

// Restarting returns the steps that restart the holder. There are none if the holder is not known.
func (t *findingBuilder) Restarting(then string) ([]advice.Action, advice.Fix) {
	if t.owner == nil {
		return nil, advice.Fix{}
	}
	w := t.owner.Workload()
	switch {
	case static(t.owner):
		s := advice.Say("%s, so that %s.", again(t.owner), then)
		return []advice.Action{s}, advice.Fix{Node: t.owner.Node.Name, What: s.Text, Manual: true}
	case w.OnlyNetns():
		del := fmt.Sprintf("ip -n %s addr del %s/%d dev %s", advice.Quote(w.Name), t.f.Address, prefixLength(t.owner), advice.Quote(t.owner.Interface.Name))
		have := advice.Say("Decide whether %s can have a different address. Ask the person who created it.", placed(t.owner)).Or(
			advice.Either("it can", advice.Say("Remove the address from it, and make sure that the software that set it does not set it again.").By(t.owner.Node.Name, del)),
			advice.Either("it must keep this address", outOfRange([]*verdict.Pool{t.pool}, t.f.Address)...))
		return []advice.Action{have}, advice.Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Give %s a different address than %s, or exclude that address from %s: ipwitness audit %[2]s says how.", OwnerName(t.owner), t.f.Address, poolName(t.pool)), Manual: true}
	case restartsByEngine(w):
		steps := registry.Of(w.Source).RestartContainer(t.owner.Node.Name, w.ContainerID)
		last := steps[len(steps)-1]
		return steps, advice.Fix{Node: last.Node, Command: last.Command, What: fmt.Sprintf("Restart %s, so that %s.", OwnerName(t.owner), then), Manual: true}
	case w.Kind != verdict.Pod || w.Name == "" || w.Namespace == "":
		return []advice.Action{advice.Say("Restart %s, so that %s.", placed(t.owner), then)}, advice.Fix{Node: t.owner.Node.Name, What: fmt.Sprintf("Restart %s, so that %s.", OwnerName(t.owner), then), Manual: true}
	}
	return deletion(t.owner), advice.Fix{Command: deletePod(w.Namespace, w.Name), What: fmt.Sprintf("Restart pod %s/%s: %s.", w.Namespace, w.Name, then), Manual: true}
}

// restartsByEngine reports whether a workload is a container that its engine restarts.
func restartsByEngine(w verdict.Workload) bool {
	return w.ContainerID != "" && registry.Of(w.Source).RestartContainer != nil
}

// RestartNow adds the advice to restart the holder. If a controller replaces the pod, the command
// is safe to run as it is: it waits for the new pod, so that several pods are not gone at once. A
// person must decide when to end the pod of a Job or of a virtual machine.
func (t *findingBuilder) RestartNow(then string) {
	t.Restart(then)
	if t.owner == nil || t.owner.Pod == nil || t.owner.Workload().UID == "" {
		return
	}
	w := t.owner.Workload()
	restart := "  " + deletePod(w.Namespace, w.Name)
	switch p := t.owner.Pod; p.ControllerKind {
	case "Deployment", "StatefulSet", "DaemonSet":
		restart = advice.Script(restart, "  kubectl rollout status -n "+advice.Quote(w.Namespace)+" "+advice.Quote(strings.ToLower(p.ControllerKind)+"/"+p.Controller)+" --timeout=5m")
	case "ReplicaSet":
	default:
		return
	}
	t.Fixes[len(t.Fixes)-1] = advice.Fix{
		What: fmt.Sprintf("Restart pod %s/%s, which holds %s: %s.", w.Namespace, w.Name, t.f.Address, then),
		Command: advice.Script(
			"if uid=$(kubectl get pod -n "+advice.Quote(w.Namespace)+" "+advice.Quote(w.Name)+" --ignore-not-found -o 'jsonpath={.metadata.uid}') && [ \"$uid\" = "+advice.Quote(w.UID)+" ]; then",
			restart,
			"else",
			"  echo "+advice.Quote("the original pod "+w.Namespace+"/"+w.Name+" is gone: nothing to do"),
			"fi"),
	}
}
