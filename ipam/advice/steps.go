package advice

// MakePlan is the command that writes the script that repairs IPAM.
const MakePlan = "ipwitness audit --fix-plan > plan.sh"

// RunPlan returns the command that runs the part of the repair plan for a node, or for the cluster
// if node is empty.
func RunPlan(node string) string {
	if node == "" {
		return "sh plan.sh cluster"
	}
	return "sh plan.sh node " + Quote(node)
}

// Plan returns the steps that write the script that repairs IPAM and run its part for a node.
// An empty node means the part for the cluster.
func Plan(node string) []Action {
	part := "the cluster"
	if node != "" {
		part = "node " + node
	}
	return []Action{
		Say("Generate the repair plan.").By("", MakePlan),
		Say("Read plan.sh, and run its part for %s.", part).By(node, RunPlan(node)),
	}
}

// Cordon returns the action that stops new pods from starting on a node.
func Cordon(node string) Action {
	return Say("Start no pods on node %s until this is repaired. DaemonSet pods still start on a cordoned node.", node).By("", "kubectl cordon "+Argument(node))
}

// Uncordon returns the action that reverts Cordon.
func Uncordon(node string) Action {
	return Say("Allow pods on node %s again.", node).By("", "kubectl uncordon "+Argument(node))
}

// Drain returns the action that moves the pods of a node to other nodes.
func Drain(node string) Action {
	return Say("Move the pods of node %s to other nodes.", node).By("", "kubectl drain --ignore-daemonsets --delete-emptydir-data "+Argument(node))
}

// ShortID returns a container ID in its usual short form.
func ShortID(id string) string { return id[:min(len(id), 12)] }
