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

// timesHelp describes the times that flags accept.
const timesHelp = `Write a TIME like 14:03, 14:03:20, "yesterday 14:03", -2h, 3d ago, 2026-11-20,
"2026-11-20 14:03" or in RFC 3339. A time of day without a date is the most recent one.
Times are in UTC, except in RFC 3339 with an offset: 2026-11-20T14:03:00+01:00.`

// timeFlag adds a flag for a time, which is not set by default.
func timeFlag(cmd *cobra.Command, sys system, to *time.Time, name, usage string, mayBeFuture bool) {
	cmd.Flags().Var(cli.NewValue(to, "TIME", func(s string) (time.Time, error) {
		now := sys.now()
		t, err := parseTime(s, now)
		if err == nil && !mayBeFuture && t.After(now) {
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
	// period matches a duration such as 2h, 1h30m or 2d3h; span matches one of its parts.
	period = regexp.MustCompile(`^(?:[0-9]+(?:\.[0-9]+)?[dhms])+$`)
	span   = regexp.MustCompile(`([0-9.]+)([dhms])`)
)

// layouts are the forms of a time with its date. Seconds may have a fraction.
var layouts = []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", time.DateOnly}

// parseTime parses a time as people write it. Without a time zone, it is in UTC, like all times in the output. A time
// of day without a date is the most recent one.
func parseTime(s string, now time.Time) (time.Time, error) {
	text := strings.ToLower(strings.Join(strings.Fields(s), " "))
	if ago, ok := parseAgo(text); ok {
		return now.Add(-ago), nil
	}
	now = now.UTC()
	for word, days := range map[string]int{"today": 0, "yesterday": -1} {
		if rest, ok := strings.CutPrefix(text, word); ok {
			text = now.AddDate(0, 0, days).Format(time.DateOnly) + rest
		}
	}
	text = strings.ToUpper(strings.TrimSuffix(text, " utc"))
	for _, day := range []string{"", now.Format(time.DateOnly) + " "} {
		for _, layout := range layouts {
			t, err := time.Parse(layout, day+text)
			switch {
			case err != nil:
			case day != "" && t.After(now):
				return t.AddDate(0, 0, -1), nil
			default:
				return t, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time: write it like 14:03, 14:03:20, \"yesterday 14:03\", -2h, 3d ago, 2026-11-20, "+
		"\"2026-11-20 14:03\" (in UTC) or 2026-11-20T14:03:00+01:00", s)
}

// parseAgo parses the time before now: -2h, 2h ago or 2h.
func parseAgo(text string) (time.Duration, bool) {
	text, minus := strings.CutPrefix(text, "-")
	if !minus {
		text = strings.TrimSuffix(text, " ago")
	}
	if !period.MatchString(text) {
		return 0, false
	}
	units := map[string]time.Duration{"d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second}
	const most = 100 * 366 * 24 * time.Hour
	var sum float64
	for _, part := range span.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(part[1], 64)
		if err != nil {
			return 0, false
		}
		sum += n * float64(units[part[2]])
	}
	return time.Duration(min(sum, float64(most))), sum <= float64(most)
}

// parseDays parses a duration that may be in days.
func parseDays(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(s)
}
