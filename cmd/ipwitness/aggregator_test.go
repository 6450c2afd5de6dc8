package main

import (
	"context"
	"strings"
	"testing"
)

func TestAggregatorRunsUntilItIsAskedToStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newConsole()
	log := &lineWriter{text: "starting", end: cancel}
	c.system.stderr = log
	code := execute(ctx, c.system, []string{"aggregator", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--network", "pods=10.0.0.0/8"})
	if code != 0 || !strings.Contains(log.String(), "msg=stopped") {
		t.Errorf("got exit code %d and %s, want 0 and that it stopped", code, log)
	}
}
