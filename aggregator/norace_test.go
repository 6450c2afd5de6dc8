//go:build !race

package aggregator

import "testing"

func keepDetectorAlive(testing.TB) {}

func measuresHeap(testing.TB) {}
