package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestDocumentedCommandsAreTaken parses each ipwitness command in the documentation and in alerts,
// because users copy them in urgent situations.
func TestDocumentedCommandsAreTaken(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "deploy/*/README.md", "deploy/helm/ipwitness/README.md", "deploy/helm/ipwitness/files/rules.yaml"} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("got %d files of %s (%v), want some", len(found), pattern, err)
		}
		files = append(files, found...)
	}
	block := regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$")
	line := regexp.MustCompile(`(?m)^\s*(?:\$ )?(?:kubectl )?ipwitness +(.*)$|-- /ipwitness +(.*)$`)
	inline := regexp.MustCompile("`(?:kubectl )?ipwitness +([^`\n]* [^`\n]*)`") // a single word may be a name
	quoted := regexp.MustCompile(`"[^"]*"`)
	ends := regexp.MustCompile(`(^|\s)(#|\||[12]?>|<|&|;)|\)`)
	// Replace placeholders by values that a user would insert.
	filled := strings.NewReplacer("NAMESPACE/POD", "default/web-1", "ADDRESS", "10.0.0.1", "RANGE", "10.0.0.0/24", "MAC", "02:00:00:00:00:01",
		"{{ $labels.id }}", "6frtk3pjavxaruax", "{{ $labels.address }}", "10.0.0.1")
	parsed := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var commands [][]string
		for _, b := range block.FindAllStringSubmatch(string(text), -1) {
			commands = append(commands, line.FindAllStringSubmatch(b[1], -1)...)
		}
		commands = append(commands, inline.FindAllStringSubmatch(block.ReplaceAllString(string(text), ""), -1)...)
		for _, m := range commands {
			line := strings.Join(m[1:], "")
			var texts []string
			command := quoted.ReplaceAllStringFunc(filled.Replace(line), func(text string) string {
				texts = append(texts, strings.Trim(text, `"`))
				return fmt.Sprintf("\x00%d\x00", len(texts)-1)
			})
			if end := ends.FindStringIndex(command); end != nil {
				command = command[:end[0]]
			}
			if strings.ContainsAny(command, "…[") {
				continue // an incomplete command
			}
			parsed++
			args := strings.Fields(command)
			for i, text := range texts {
				for n := range args {
					args[n] = strings.ReplaceAll(args[n], fmt.Sprintf("\x00%d\x00", i), text)
				}
			}
			root := newRoot(system{program: "ipwitness", getenv: func(string) string { return "" }, now: time.Now}, func() {})
			root.InitDefaultCompletionCmd(args...)
			cmd, rest, err := root.Find(args)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: ipwitness %s: %v", strings.TrimPrefix(file, "../../"), line, err)
			}
		}
	}
	if parsed < 150 {
		t.Errorf("got only %d commands", parsed)
	}
}
