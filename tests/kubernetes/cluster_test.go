package kubernetes

import (
	"context"
	"testing"
)

func TestNodesWithRangesOfTheirOwn(t *testing.T) {
	needCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := New(ctx, Options{Nodes: 1, NodeRanges: "10.244.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.await(ctx, "the range of node1", func() error {
		_, err := c.Kubectl(ctx, "wait", "--for=jsonpath={.spec.podCIDRs[0]}=10.244.0.0/24", "node/node1", "--timeout=10s")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
