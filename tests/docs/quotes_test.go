package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign are messages in docs/troubleshooting.md that come from libraries, or that are made of parts.
var foreign = []string{
	"because nothing is audited: no agent has found records of host-local",
	"certificate has expired or is not yet valid",
	"certificate is valid for",
	"certificate signed by unknown authority",
	"first record does not look like a TLS handshake",
	"error reading server preface: EOF",
	"cannot get a token of service account",
}

// unquoted matches what a page has in place of the variable parts of a message.
var unquoted = regexp.MustCompile(`…|\b(?:IFACE|NAME|N)\b|\d+|https?://\S+`)

// quoted returns the constant parts of the messages in the first cells of the tables of a page.
func quoted(text string) (parts []string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cell, _, _ := strings.Cut(line[2:], " | ")
		for _, message := range code.FindAllString(cell, -1) {
			for _, part := range unquoted.Split(strings.Trim(message, "`"), -1) {
				if part = strings.Trim(part, " :;,()-"); len(strings.Fields(part)) >= 4 {
					parts = append(parts, part)
				}
			}
		}
	}
	return parts
}

// sources returns the text of the Go files of the program.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"agent", "aggregator", "bpf", "cmd", "ipam"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			all.Write(raw)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

func TestTroubleshootingQuotesMessagesOfTheProgram(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	all, parts := sources(t), quoted(string(page))
	for _, part := range parts {
		if !slices.Contains(foreign, part) && !strings.Contains(all, part) {
			t.Errorf("docs/troubleshooting.md quotes %q, which the program does not print", part)
		}
	}
	if len(parts) < 30 {
		t.Errorf("got %d messages, want all of the page: does the parser find them?", len(parts))
	}
}

func TestQuotesAreRead(t *testing.T) {
	got := quoted("| You see | Why |\n| `cannot reach it at http://x: … after 5 tries of the client` or `too short` | `this is not looked at` |\nno `table is here at all`\n")
	if want := []string{"cannot reach it at", "tries of the client"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
