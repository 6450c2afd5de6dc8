package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// printed returns what a command line prints.
func printed(t *testing.T, wantCode int, args ...string) string {
	t.Helper()
	c := serve(t, handler{})
	c.run(t, wantCode, args...)
	return c.stdout.String() + c.stderr.String()
}

// Each flag is in the help of its command, or in a topic that this help names; --all shows the flags of all topics.
func TestTheHelpHasEachFlagOnceAndFewAtATime(t *testing.T) {
	for _, name := range []string{"run", "aggregator", "conflicts", "backup", "replay"} {
		help := printed(t, 0, name, "--help")
		cmd, _, err := newRoot(system{program: "ipwitness"}).Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			where := f.Annotations["topic"]
			inHelp := regexp.MustCompile(`(?m)^ +(-., )?--` + f.Name + `[ \[]`).MatchString(help)
			if inHelp {
				shown++
			}
			switch {
			case where == nil && !inHelp:
				t.Errorf("%s --help lacks --%s, which is in no topic", name, f.Name)
			case where != nil && (inHelp || !strings.Contains(help, "ipwitness help "+where[0])):
				t.Errorf("%s --help: got\n%s\nwant --%s only in the topic %s, which it names", name, help, f.Name, where[0])
			case where != nil:
				if page := printed(t, 0, "help", where[0]); !strings.Contains(page, " --"+f.Name) || !strings.Contains(page, name) {
					t.Errorf("help %s: got\n%s\nwant --%s of %s in it", where[0], page, f.Name, name)
				}
			}
		})
		if shown > 24 {
			t.Errorf("%s --help shows %d flags, want about twenty", name, shown)
		}
	}
	all := printed(t, 0, "run", "--help", "--all")
	for _, want := range []string{"--nats-retention", "--token-review", "--wire"} {
		if !strings.Contains(all, want) {
			t.Errorf("run --help --all: got\n%s\nwant %s in it", all, want)
		}
	}
	if got := printed(t, 1, "run", "--all"); !strings.Contains(got, "--all is for --help") {
		t.Errorf("run --all: got %q, want that it is for the help", got)
	}
}
