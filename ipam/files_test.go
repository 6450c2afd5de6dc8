package ipam_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestYoungFilesMayBeIncomplete(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for age, want := range map[time.Duration]bool{-1: false, 0: true, ipam.Settled - 1: true, ipam.Settled: false, time.Hour: false} {
		if got := ipam.BeingWritten(now.Add(-age), now); got != want {
			t.Errorf("a file of age %s: got being written %t, want %t", age, got, want)
		}
	}
}

func TestErrorsAreShortSingleLines(t *testing.T) {
	for text, want := range map[string]string{"a\nb": "a; b", "a\xff": "a\uFFFD", "": ""} {
		if got := ipam.OneLine(errors.New(text)); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := ipam.OneLine(errors.New(strings.Repeat("x", 2*ipam.MaxText))); len(got) != ipam.MaxText || !utf8.ValidString(got) {
		t.Errorf("got %d bytes, want %d", len(got), ipam.MaxText)
	}
}

func TestPathsAreComparedCleanAndWithoutTheLinkToRun(t *testing.T) {
	for path, want := range map[string]string{
		"/var/run/netns/a": "/run/netns/a", "/var//run/./x/": "/run/x", "/run/netns/": "/run/netns", "/var/running": "/var/running", "/var/run": "/var/run",
	} {
		if got := ipam.CleanPath(path); got != want {
			t.Errorf("clean %s: got %s, want %s", path, got, want)
		}
	}
}
