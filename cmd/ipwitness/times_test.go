package main

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the test does not depend on the zones of the machine
)

func TestTimesAreParsedAsPeopleWriteThem(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at := func(s string) time.Time {
		t.Helper()
		x, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	noon := at("2026-11-23T13:00:00Z").In(berlin) // 14:00 there
	for _, test := range []struct {
		text string
		now  time.Time
		want string
	}{
		{"12:03", noon, "2026-11-23T12:03:00Z"},
		{"13:00", noon, "2026-11-23T13:00:00Z"},
		{"13:00:01", noon, "2026-11-22T13:00:01Z"}, // later today: yesterday
		{"14:03", noon, "2026-11-22T14:03:00Z"},
		{"9:05", noon, "2026-11-23T09:05:00Z"},
		{"09:05:20", noon, "2026-11-23T09:05:20Z"},
		{"09:05:20.125", noon, "2026-11-23T09:05:20.125Z"},
		{"0:00", noon, "2026-11-23T00:00:00Z"},
		{"23:59:59", noon, "2026-11-22T23:59:59Z"},
		{"12:03 UTC", noon, "2026-11-23T12:03:00Z"},
		{"yesterday 14:03", noon, "2026-11-22T14:03:00Z"},
		{"Yesterday  14:03:20", noon, "2026-11-22T14:03:20Z"},
		{"yesterday", noon, "2026-11-22T00:00:00Z"},
		{"today 9:00", noon, "2026-11-23T09:00:00Z"},
		{"today 18:00", noon, "2026-11-23T18:00:00Z"}, // in the future
		{"today", noon, "2026-11-23T00:00:00Z"},
		{"yesterday", at("2026-03-01T00:30:00Z"), "2026-02-28T00:00:00Z"},
		{"-2h", noon, "2026-11-23T11:00:00Z"},
		{"-1h30m", noon, "2026-11-23T11:30:00Z"},
		{"-3d", noon, "2026-11-20T13:00:00Z"},
		{"2h ago", noon, "2026-11-23T11:00:00Z"},
		{"2d3h ago", noon, "2026-11-21T10:00:00Z"}, // as ages are printed
		{"1.5h ago", noon, "2026-11-23T11:30:00Z"},
		{"90s", noon, "2026-11-23T12:58:30Z"},
		{"2026-11-20", noon, "2026-11-20T00:00:00Z"},
		{"2026-11-20 14:03", noon, "2026-11-20T14:03:00Z"},
		{"2026-11-20 14:03:05", noon, "2026-11-20T14:03:05Z"},
		{"2026-11-20 14:03:05.123", noon, "2026-11-20T14:03:05.123Z"}, // as tables print it
		{"2026-11-20 14:03:05 UTC", noon, "2026-11-20T14:03:05Z"},     // as notes print it
		{"2026-11-20T14:03:05Z", noon, "2026-11-20T14:03:05Z"},
		{"2026-11-20t14:03:05.000000001z", noon, "2026-11-20T14:03:05.000000001Z"}, // of the API
		{"2026-11-20T14:03:05+01:00", noon, "2026-11-20T13:03:05Z"},
		{"2028-02-29 1:00", noon, "2028-02-29T01:00:00Z"},
	} {
		got, err := parseTime(test.text, test.now)
		if err != nil {
			t.Errorf("%q: %v", test.text, err)
		} else if !got.Equal(at(test.want)) {
			t.Errorf("%q at %s: got %s, want %s", test.text, test.now, got.UTC().Format(time.RFC3339Nano), test.want)
		}
	}
}

func TestOtherTimesAreRefused(t *testing.T) {
	for _, text := range []string{
		"", " ", "14", "14:3", "24:00", "14:60", "14:03:60", "1403", "14.03", "2026-13-01", "2026-02-30", "2026-11-20 25:00", "2026-11", "11/20/2026",
		"tomorrow", "yesterday yesterday", "local", "utc", "-14:03", "+2h", "-2h ago", "--2h", "2h30", "-", "ago", "-2", "2 ago", "0", "1e3s", "-2y",
		"99999999d ago", "2h-1h", "14:03 CET", "14:03 local", "14:03 +01:00", "now", "14:03 +99:00", "2026-11-20T", "yesterdayt14:03", "2026-11-20 14:03 2026-11-20", "noon",
	} {
		if got, err := parseTime(text, now); err == nil {
			t.Errorf("%q: got %s, want an error", text, got)
		} else if !strings.Contains(err.Error(), `"yesterday 14:03"`) {
			t.Errorf("%q: got %v, want it to say what is accepted", text, err)
		}
	}
}
