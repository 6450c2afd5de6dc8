package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestConsoleOfAGuestIsFollowed(t *testing.T) {
	const booted = "[    1.2] SeaBIOS says something\r\nipwitness-guest: begin bpf\r\n"
	ok := result{suite: "bpf", verdict: "ok", passed: 1, skipped: 1, seconds: "7"}
	for _, tt := range []struct {
		name, console string
		want          result
		done          bool
	}{
		{"to its end", booted + "--- PASS: TestA (0.1s)\r\n    --- PASS: TestA/b (0.1s)\r\n--- SKIP: TestC (0s)\r\n" +
			"[    9.1] kernel: a word ipwitness-guest: end bpf 0 7\r\nipwitness-guest: done\r\n", ok, true},
		{
			"with a failure", booted + "--- PASS: TestA (0.1s)\n--- FAIL: TestB (0s)\nipwitness-guest: end bpf 1 7\nipwitness-guest: done\n",
			result{suite: "bpf", verdict: "FAILED: exit 1", passed: 1, failed: 1, seconds: "7"},
			true,
		},
		{
			"with no test at all", booted + "PASS\nipwitness-guest: end bpf 0 0\nipwitness-guest: done\n",
			result{suite: "bpf", verdict: "FAILED: no test passed", seconds: "0"},
			true,
		},
		{
			"into a panic", booted + "--- PASS: TestA (0.1s)\n[    4.8] Kernel panic - not syncing\n",
			result{suite: "bpf", verdict: "no end", passed: 1},
			false,
		},
		{"that says nothing", "[    1.2] Kernel panic\n", result{suite: "bpf", verdict: "not run"}, false},
	} {
		results := []result{{suite: "bpf", verdict: "not run"}}
		done := follow(strings.NewReader(tt.console), results, io.Discard)
		if done != tt.done || !slices.Equal(results, []result{tt.want}) {
			t.Errorf("console %s: got %+v, done %v, want %+v, done %v", tt.name, results, done, tt.want, tt.done)
		}
	}
}
