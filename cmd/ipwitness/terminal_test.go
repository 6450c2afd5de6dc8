package main

import (
	"net/http"
	"strings"
	"testing"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestColours(t *testing.T) {
	for _, test := range []struct {
		terminal bool
		args     string
		env      string
		want     bool
	}{
		{false, "", "", false},
		{true, "", "", true},
		{true, "", "TERM=dumb", false},
		{true, "", "NO_COLOR=1", false},
		{true, "", "CLICOLOR=0", false},
		{true, "--color never", "", false},
		{true, "", "IPWITNESS_COLOR=never", false},
		{false, "--color always", "", true},
		{false, "--color always", "NO_COLOR=1", true},
		{false, "", "CLICOLOR_FORCE=1", true},
		{false, "", "CLICOLOR_FORCE=0", false},
		{false, "", "CLICOLOR_FORCE=1 NO_COLOR=1", false},
		{false, "--color never", "CLICOLOR_FORCE=1", false},
	} {
		c := serve(t, withItems(everything))
		c.terminal = test.terminal
		for variable := range strings.FieldsSeq(test.env) {
			name, value, _ := strings.Cut(variable, "=")
			c.env[name] = value
		}
		for _, command := range []string{"conflicts", "conflicts abc", "owners", "audit"} {
			c.stdout.Reset()
			c.run(t, 0, strings.Fields(command+" "+test.args)...)
			if got := strings.Contains(c.stdout.String(), "\x1b["); got != test.want {
				t.Errorf("%s, terminal %t, %q, %q: got colours %t, want %t", command, test.terminal, test.args, test.env, got, test.want)
			}
		}
	}
}

func TestProgramsGetNoColours(t *testing.T) {
	c := serve(t, withItems(everything))
	for _, format := range []string{"json", "yaml", "name", "csv", "jsonpath={.conflicts[*].id}"} {
		c.stdout.Reset()
		c.run(t, 0, "conflicts", "--color", "always", "-o", format)
		if strings.Contains(c.stdout.String(), "\x1b[") {
			t.Errorf("%s: got %q, want no colours", format, &c.stdout)
		}
	}
}

func TestWidthOfTheTerminal(t *testing.T) {
	for _, test := range []struct {
		terminal bool
		width    int
		columns  string
		all      bool // all columns are shown
	}{
		{true, 60, "", false},
		{true, 200, "", true},
		{true, 200, "60", false},
		{true, 60, "200", true},
		{true, 60, "many", false},
		{true, 0, "", true}, // not known
		{false, 60, "60", true},
	} {
		c := serve(t, withItems(everything))
		c.terminal, c.width = test.terminal, func() int { return test.width }
		c.env["COLUMNS"], c.env["NO_COLOR"] = test.columns, "1"
		c.run(t, 0, "owners")
		header, _, _ := strings.Cut(c.stdout.String(), "\n")
		if got := strings.Contains(header, "INTERFACE"); got != test.all {
			t.Errorf("%+v: got the header %q", test, header)
		}
	}
}

func TestOwnersAreMarkedAndLinkLocalOnesLeftOut(t *testing.T) {
	h := withItems(everything)
	of := conflict("abc", pb.Conflict_CONFIRMED)
	of.Owners[0].Node = "n1"
	local := &pb.Owner{Address: "fe80::1", Node: "n1"}
	h["/v1/owners"] = ok(&pb.ListOwnersResponse{Coverage: everything, Owners: []*pb.Owner{of.Owners[0], {Address: "10.0.0.8", Node: "n1"}, local}})
	h["/v1/conflicts"] = ok(&pb.ListConflictsResponse{Coverage: everything, Conflicts: []*pb.Conflict{of}})
	const note = "1 link-local address is left out: --link-local shows them.\n"
	for _, test := range []struct {
		args          string
		shown, noted  bool
		wantConfirmed bool
	}{
		{args: "owners", noted: true, wantConfirmed: true},
		{args: "owners -o wide", noted: true, wantConfirmed: true},
		{args: "owners -n a", noted: true, wantConfirmed: true},
		{args: "owners --link-local", shown: true, wantConfirmed: true},
		{args: "owners fe80::1", shown: true},
		{args: "owners --cidr ::/0", shown: true, wantConfirmed: true},
		{args: "owners -o json", shown: true},
		{args: "owners -o name", shown: true},
		{args: "owners -o csv", shown: true, wantConfirmed: true},
	} {
		c := serve(t, h)
		c.run(t, 0, strings.Fields(test.args)...)
		out := c.stdout.String()
		if strings.Contains(out, "fe80::1") != test.shown || (c.stderr.String() == note) != test.noted || strings.Contains(out, "CONFIRMED") != test.wantConfirmed {
			t.Errorf("%s: got\n%s%s", test.args, out, &c.stderr)
		}
	}
}

func TestOwnersAreListedWithoutPermissionForConflicts(t *testing.T) {
	h := withItems(everything)
	h["/v1/conflicts"] = func(*http.Request) (int, string) { return http.StatusForbidden, `{"code":7,"message":"no permission"}` }
	c := serve(t, h)
	c.run(t, 0, "owners")
	if !strings.Contains(c.stdout.String(), "10.0.0.8") || strings.Contains(c.stdout.String(), "CONFLICT") || !strings.Contains(c.stderr.String(), "not marked, because the conflicts cannot be listed: no") {
		t.Errorf("got\n%s%s\nwant the owners without marks, and the reason", &c.stdout, &c.stderr)
	}
}

func TestGroupsAreAnnounced(t *testing.T) {
	var all []*pb.Conflict
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		c := conflict("id"+address[7:], pb.Conflict_CONFIRMED)
		c.Address, c.Incident = address, "abcd"
		all = append(all, c)
	}
	c := serve(t, handler{"/v1/conflicts": ok(&pb.ListConflictsResponse{Coverage: everything, Conflicts: all})})
	c.run(t, 0, "conflicts")
	c.wantStderr(t, "4 addresses of one incident share a line: 'ipwitness incidents abcd' shows the steps to take, and --ungrouped lists each.\n")
	if got := strings.Count(c.stdout.String(), "\n"); got != 2 {
		t.Errorf("got %d lines, want 2:\n%s", got, &c.stdout)
	}
	c.stdout.Reset()
	c.run(t, 0, "conflicts", "--ungrouped")
	if got := strings.Count(c.stdout.String(), "\n"); got != 5 {
		t.Errorf("got %d lines, want 5:\n%s", got, &c.stdout)
	}
}

func TestFiltersAreOnlyTakenFromTheCommandLine(t *testing.T) {
	c := serve(t, withItems(everything))
	for _, name := range []string{"NODE", "NAMESPACE", "CIDR", "STATE", "SCOPE"} {
		c.env["IPWITNESS_"+name] = "nothing"
	}
	c.run(t, 0, "owners")
	c.wantStderr(t, "")
	if !strings.Contains(c.stdout.String(), "10.0.0.8") {
		t.Errorf("got\n%s\nwant all owners", &c.stdout)
	}
}
