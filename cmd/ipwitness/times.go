package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
)

// timeFlag adds a flag for a time, which is not set by default and must not be in the future.
func timeFlag(cmd *cobra.Command, sys system, to *time.Time, name, usage string) {
	cmd.Flags().Var(cli.NewValue(to, "TIME", func(s string) (time.Time, error) {
		now := sys.now()
		t, err := parseTime(s, now, time.Time{})
		if err == nil && t.After(now) {
			return t, fmt.Errorf("%q is in the future: it is %s now", s, utc(now))
		}
		return t, err
	}), name, usage)
	cmd.Flags().Lookup(name).DefValue = ""
	cli.CompleteFlagWith(cmd, name, cobra.NoFileCompletions)
}

// utc formats a time for people.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999 UTC") }

var (
	// rfc3339 matches the T between date and time.
	rfc3339 = regexp.MustCompile(`^([0-9-]{10})t([0-9])`)
	// dayAndClock matches a day, a time of day and a time zone, each of which may be missing.
	dayAndClock = regexp.MustCompile(`^(?:(today|yesterday|[0-9]{4}-[0-9]{2}-[0-9]{2})(?:$| ))?` +
		`(?:([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}(?:\.[0-9]{1,9})?))?(?:$| ?))?` +
		`(utc|z|local|[+-][0-9]{2}:[0-9]{2})?$`)
)

// parseTime parses a time as people write it. Without a time zone, it is in UTC, like all times in
// the output; local is the zone of now. A time of day without a date is the most recent one or, if
// since is set, the first one after since, but not later than now.
func parseTime(s string, now, since time.Time) (time.Time, error) {
	text := strings.ToLower(strings.Join(strings.Fields(s), " "))
	if text == "now" {
		return now, nil
	}
	if ago, ok := parseAgo(text); ok {
		return now.Add(-ago), nil
	}
	m := dayAndClock.FindStringSubmatch(rfc3339.ReplaceAllString(text, "$1 $2"))
	if m == nil || m[1] == "" && m[2] == "" {
		return time.Time{}, notTime(s)
	}
	day, hour, minute, second, zone := m[1], m[2], m[3], m[4], m[5]
	loc := time.UTC
	switch {
	case zone == "local":
		loc = now.Location()
	case strings.ContainsAny(zone, "+-"):
		offset, err := time.Parse("-07:00", zone)
		if err != nil {
			return time.Time{}, notTime(s)
		}
		loc = offset.Location()
	}
	clock, err := time.Parse("15:04:05", pad(hour)+":"+pad(minute)+":"+pad(second))
	if err != nil {
		return time.Time{}, notTime(s)
	}
	date := now.In(loc)
	switch day {
	case "":
		if !since.IsZero() {
			date = since.In(loc)
		}
	case "today":
	case "yesterday":
		date = date.AddDate(0, 0, -1)
	default:
		if date, err = time.Parse(time.DateOnly, day); err != nil {
			return time.Time{}, notTime(s)
		}
	}
	// A time that clocks skip when they are set is as if they had not been set.
	on := func(days int) time.Time {
		t := time.Date(date.Year(), date.Month(), date.Day()+days, clock.Hour(), clock.Minute(), clock.Second(), clock.Nanosecond(), loc)
		set, _ := t.ZoneBounds()
		_, before := set.Add(-1).Zone()
		_, after := t.Zone()
		if back := time.Duration(before-after) * time.Second; !set.IsZero() && t.Sub(set) < back {
			return t.Add(-back) // clocks show this time twice: the earlier one
		}
		return t
	}
	t := on(0)
	switch {
	case day != "":
	case since.IsZero() && t.After(now):
		t = on(-1)
	case !since.IsZero():
		if !t.After(since) {
			t = on(1)
		}
		if t.After(now) {
			t = now
		}
	}
	return t, nil
}

// pad completes a part of a time of day to two digits.
func pad(part string) string { return strings.Repeat("0", max(0, 2-len(part))) + part }

func notTime(s string) error {
	return fmt.Errorf("%q is not a time: write it like 14:03, 14:03:20, \"yesterday 14:03\", -2h, 3d ago, 2026-11-20, \"2026-11-20 14:03\" or "+
		"2026-11-20T14:03:00Z; times are in UTC unless an offset (+01:00) or the word local follows", s)
}

// parseAgo parses the time before now: -2h, 2h ago or 2h.
func parseAgo(text string) (time.Duration, bool) {
	text, minus := strings.CutPrefix(text, "-")
	if !minus {
		text = strings.TrimSuffix(text, " ago")
	}
	d, ok := parseDuration(text)
	return d, ok && text != "0"
}

// parsePeriod parses a duration greater than 0.
func parsePeriod(s string) (time.Duration, error) {
	d, ok := parseDuration(s)
	if !ok || d == 0 {
		return 0, fmt.Errorf("%q is not a duration greater than 0: write it like 500ms, 30m or 7d", s)
	}
	return d, nil
}

// parseDuration parses a duration of 0 or more that may be in days, or begin with them: 500ms, 30m, 7d, 2d3h.
func parseDuration(s string) (time.Duration, bool) {
	days, rest, has := strings.Cut(s, "d")
	if !has {
		days, rest = "0", s
	}
	n, err := strconv.ParseUint(days, 10, 16)
	d := time.Duration(n) * 24 * time.Hour
	if err == nil && rest != "" {
		var more time.Duration
		more, err = time.ParseDuration(rest)
		d += more
	}
	return d, err == nil && s != "" && d >= 0 && !strings.ContainsAny(rest, "+-")
}
