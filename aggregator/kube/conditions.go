package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	conflictCondition corev1.NodeConditionType = "AddressConflict"
	// Reasons of the condition.
	heldTwice, heldOnce = "AddressHeldTwice", "NoAddressConflict"
	// conditionProblem is the key of the problem that it cannot be written.
	conditionProblem = "write conditions"
)

type nodeCondition struct {
	status  corev1.ConditionStatus
	message string
}

// SetConditions makes the condition AddressConflict of each Node what a function says about it, as far as this replica leads
// and the API is live. It is true with a message; without one, it becomes false on a Node that has the condition, if that is
// known, and is left as it is otherwise. What cannot be written is written by the next call.
func (c *Cluster) SetConditions(ctx context.Context, of func(node string) (message string, known bool)) {
	c.mu.RLock()
	all := slices.SortedFunc(maps.Values(c.nodes.Records), func(a, b *nodeRecord) int { return cmp.Compare(a.name, b.name) })
	live := c.health.state == pb.Kubernetes_LIVE
	c.mu.RUnlock()
	problem := ""
	for _, node := range all {
		message, known := of(node.name)
		next := nodeCondition{corev1.ConditionTrue, ipam.Cut(ipam.Plain(message), maxText)}
		if message == "" {
			if !known || node.conflict == nil {
				continue
			}
			next = nodeCondition{corev1.ConditionFalse, "no address of this node or of its pods is in a confirmed conflict"}
		}
		if node.conflict != nil && *node.conflict == next {
			continue
		}
		if !live || !c.election.leads() || ctx.Err() != nil {
			return
		}
		err := c.setCondition(ctx, node, next)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone, or replaced
			continue
		}
		problem = fmt.Sprintf("cannot write the condition AddressConflict of Node %s: %s", node.name, ipam.Shorten(err.Error()))
		if apierrors.IsForbidden(err) {
			problem = "no permission to write the condition AddressConflict of Nodes: grant ipwitness's ClusterRole patch of nodes/status, or omit --node-condition"
		}
		break
	}
	c.setProblem(conditionProblem, problem)
}

// setCondition writes the condition of a node. The patch leaves other conditions as they are, and fails for another Node with
// the name.
func (c *Cluster) setCondition(ctx context.Context, node *nodeRecord, next nodeCondition) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	now := time.Now().UTC().Format(time.RFC3339)
	condition := map[string]any{"type": conflictCondition, "status": next.status, "reason": heldTwice, "message": next.message, "lastHeartbeatTime": now}
	if next.status != corev1.ConditionTrue {
		condition["reason"] = heldOnce
	}
	if node.conflict == nil || node.conflict.status != next.status {
		condition["lastTransitionTime"] = now
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.uid}, "status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return err
	}
	return c.clients.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(node.name).SubResource("status").Body(patch).Do(ctx).Error()
}
