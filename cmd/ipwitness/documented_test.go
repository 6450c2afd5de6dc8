package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/tests/snippets"
)

// documentedBlocks returns the blocks of the documentation, and the alerts, whose texts have commands.
func documentedBlocks(t *testing.T) []snippets.Block {
	t.Helper()
	blocks, err := snippets.Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	const rules = "deploy/helm/ipwitness/files/rules.yaml"
	alerts, err := os.ReadFile("../../" + rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("`(ipwitness [^`\n]*)`").FindAllStringSubmatch(string(alerts), -1) {
		blocks = append(blocks, snippets.Block{Page: rules, Inline: true, Text: m[1]})
	}
	return blocks
}

// TestDocumentedCommandsAreTaken parses each ipwitness command in the documentation and in alerts,
// because users copy them in urgent situations.
func TestDocumentedCommandsAreTaken(t *testing.T) {
	quoted := regexp.MustCompile(`"[^"]*"`)
	ends := regexp.MustCompile(`(^|\s)(#|\||[12]?>|<|&|;)|\)`)
	start := regexp.MustCompile(`^.*-- /ipwitness |^(?:kubectl )?ipwitness `)
	// Replace placeholders by values that a user would insert.
	filled := strings.NewReplacer("NAMESPACE/POD", "default/web-1", "ADDRESS", "10.0.0.1", "RANGE", "10.0.0.0/24", "MAC", "02:00:00:00:00:01",
		"{{ $labels.id }}", "6frtk3pjavxaruax", "{{ $labels.address }}", "10.0.0.1")
	parsed := 0
	for _, b := range documentedBlocks(t) {
		for _, line := range b.Commands() {
			if !snippets.OfIpwitness(line) || strings.Contains(line, "ipwitness-agent ") { // that program has its own test
				continue
			}
			var texts []string
			command := quoted.ReplaceAllStringFunc(filled.Replace(start.ReplaceAllString(line, "")), func(text string) string {
				texts = append(texts, strings.Trim(text, `"`))
				return fmt.Sprintf("\x00%d\x00", len(texts)-1)
			})
			if end := ends.FindStringIndex(command); end != nil {
				command = command[:end[0]]
			}
			if strings.Contains(command, "[") && !strings.Contains(command, "jsonpath") {
				continue // the form of a command
			}
			parsed++
			args := strings.Fields(command)
			for i, text := range texts {
				for n := range args {
					args[n] = strings.ReplaceAll(args[n], fmt.Sprintf("\x00%d\x00", i), text)
				}
			}
			root := newRoot(system{program: "ipwitness", getenv: func(string) string { return "" }, now: time.Now})
			root.InitDefaultCompletionCmd(args...)
			root.InitDefaultHelpCmd()
			cmd, rest, err := root.Find(args)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if errors.Is(err, pflag.ErrHelp) {
				continue
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %s: %v", b.Page, line, err)
			}
		}
	}
	if parsed < 200 {
		t.Errorf("got only %d commands", parsed)
	}
}

// Each flag is in docs/reference.md, and a test uses it: on a command line, or as a key of a file of
// settings.
func TestEachFlagIsDocumentedAndTested(t *testing.T) {
	reference, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	var used strings.Builder
	for _, dir := range []string{".", "../../tests", "../../aggregator", "../../agent", "../../deploy"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".yaml") && !strings.HasPrefix(path, "../../tests/") {
				return err
			}
			text, err := os.ReadFile(path)
			used.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	flags := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden {
					flags[f.Name] = true
				}
			})
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" { // cobra's
				visit(sub)
			}
		}
	}
	visit(newRoot(system{program: "ipwitness", getenv: func(string) string { return "" }, now: time.Now}))
	for name := range flags {
		if !regexp.MustCompile("--" + name + `\b`).Match(reference) {
			t.Errorf("docs/reference.md lacks --%s", name)
		}
		if !regexp.MustCompile(`--` + name + `\b|(?m)^#?\s*` + name + `:|` + "[`\"\\n]" + name + `: `).MatchString(used.String()) {
			t.Errorf("no test uses --%s", name)
		}
	}
	if len(flags) < 60 {
		t.Errorf("got %d flags, want all", len(flags))
	}
}
