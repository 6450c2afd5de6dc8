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
	setBack := at("2026-10-25T03:00:00Z").In(berlin)
	between := at("2026-10-25T01:30:00Z").In(berlin) // 02:30 for the second time
	setForward := at("2026-03-29T12:00:00Z").In(berlin)
	for _, test := range []struct {
		text string
		now  time.Time
		want string
	}{
		{"now", noon, "2026-11-23T13:00:00Z"},
		{" NOW ", noon, "2026-11-23T13:00:00Z"},
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
		{"12:03 local", noon, "2026-11-23T11:03:00Z"},
		{"14:00 local", noon, "2026-11-23T13:00:00Z"},
		{"14:01 local", noon, "2026-11-22T13:01:00Z"},
		{"14:03+02:00", noon, "2026-11-23T12:03:00Z"},
		{"14:03 -05:00", noon, "2026-11-22T19:03:00Z"},
		{"00:30 +13:00", noon, "2026-11-23T11:30:00Z"}, // it is the 24th there
		{"yesterday 14:03", noon, "2026-11-22T14:03:00Z"},
		{"Yesterday  14:03:20", noon, "2026-11-22T14:03:20Z"},
		{"yesterday", noon, "2026-11-22T00:00:00Z"},
		{"yesterday local", noon, "2026-11-21T23:00:00Z"},
		{"today 9:00", noon, "2026-11-23T09:00:00Z"},
		{"today 18:00", noon, "2026-11-23T18:00:00Z"}, // in the future
		{"today", noon, "2026-11-23T00:00:00Z"},
		{"yesterday", at("2026-03-01T00:30:00Z"), "2026-02-28T00:00:00Z"},
		{"-2h", noon, "2026-11-23T11:00:00Z"},
		{"-0s", noon, "2026-11-23T13:00:00Z"},
		{"0m ago", noon, "2026-11-23T13:00:00Z"},
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
		{"2026-11-20 14:03 local", noon, "2026-11-20T13:03:00Z"},
		{"2026-11-20 local", noon, "2026-11-19T23:00:00Z"},
		{"2026-11-20T14:03", noon, "2026-11-20T14:03:00Z"},
		{"2026-11-20T14:03:05Z", noon, "2026-11-20T14:03:05Z"},
		{"2026-11-20t14:03:05.000000001z", noon, "2026-11-20T14:03:05.000000001Z"}, // of the API
		{"2026-11-20T14:03:05+01:00", noon, "2026-11-20T13:03:05Z"},
		{"2026-11-20 14:03:05-08:00", noon, "2026-11-20T22:03:05Z"},
		{"2028-02-29 1:00", noon, "2028-02-29T01:00:00Z"},
		// Clocks show 02:00 to 03:00 twice, at +02:00 and then at +01:00: the earlier one.
		{"02:30 local", setBack, "2026-10-25T00:30:00Z"},
		{"2026-10-25 02:00 local", noon, "2026-10-25T00:00:00Z"},
		{"2026-10-25 02:59:59 local", noon, "2026-10-25T00:59:59Z"},
		{"02:30 local", between, "2026-10-25T00:30:00Z"},
		{"2026-10-25 01:59 local", noon, "2026-10-24T23:59:00Z"},
		{"2026-10-25 03:00 local", noon, "2026-10-25T02:00:00Z"},
		{"2026-10-25 local", noon, "2026-10-24T22:00:00Z"},
		{"yesterday 02:30 local", at("2026-10-26T10:00:00Z").In(berlin), "2026-10-25T00:30:00Z"},
		// Clocks skip 02:00 to 03:00: as if they had not been set.
		{"2026-03-29 02:30 local", setForward, "2026-03-29T01:30:00Z"},
		{"2026-03-29 01:59 local", setForward, "2026-03-29T00:59:00Z"},
		{"2026-03-29 03:00 local", setForward, "2026-03-29T01:00:00Z"},
		{"today local", setForward, "2026-03-28T23:00:00Z"},
	} {
		got, err := parseTime(test.text, test.now, time.Time{})
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
		"99999999d ago", "2h-1h", "14:03 CET", "14:03 +99:00", "2026-11-20T", "yesterdayt14:03", "2026-11-20 14:03 2026-11-20", "noon",
	} {
		if got, err := parseTime(text, now, time.Time{}); err == nil {
			t.Errorf("%q: got %s, want an error", text, got)
		} else if !strings.Contains(err.Error(), `"yesterday 14:03"`) {
			t.Errorf("%q: got %v, want it to say what is accepted", text, err)
		}
	}
}

// A time of day in --until is the first one after --since, at most now, at every hour of the day.
func TestATimeOfDayAfterAnother(t *testing.T) {
	const day, clock = "2026-11-30 ", "2006-01-02 15:04"
	for _, test := range []struct{ now, since, text, want string }{
		{day + "15:00", "yesterday 22:00", "6:00", day + "06:00"},
		{day + "06:00", "yesterday 22:00", "6:00", day + "06:00"},
		{day + "00:30", "yesterday 22:00", "6:00", day + "00:30"}, // now
		{day + "23:59", "yesterday 22:00", "23:00", "2026-11-29 23:00"},
		{day + "23:59", "yesterday 22:00", "22:00", day + "22:00"}, // not an empty period
		{day + "15:09", "14:00", "16:00", day + "15:09"},
		{"2026-12-01 00:30", "23:00", "0:10", "2026-12-01 00:10"},
		{"2026-12-01 00:30", "2026-11-03", "6:00", "2026-11-03 06:00"},
		{"2026-12-01 00:30", "-1h", "00:15 +00:00", "2026-12-01 00:15"},
		{"2026-12-01 00:30", "yesterday 22:00", "today 6:00", "2026-12-01 06:00"}, // as it is written
	} {
		now, err := time.Parse(clock, test.now)
		if err != nil {
			t.Fatal(err)
		}
		since, err := parseTime(test.since, now, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseTime(test.text, now, since)
		if err != nil || got.Format(clock) != test.want {
			t.Errorf("at %s, since %s until %s: got %s, %v, want %s", test.now, test.since, test.text, got.Format(clock), err, test.want)
		}
	}
}
