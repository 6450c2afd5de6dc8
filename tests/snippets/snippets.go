// Package snippets finds the commands in the documentation, for the tests that run them.
package snippets

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Block is a block of code of a page, or a command within its text.
type Block struct {
	Page     string // path in the repository
	Language string // after the backticks, or empty
	Inline   bool   // a command in a sentence
	Text     string
}

// patterns are the pages whose commands people copy, in urgent situations, too.
var patterns = []string{"*.md", "docs/*.md", "docs/*/*.md", "deploy/*/README.md", "deploy/helm/ipwitness/README.md"}

var (
	fenced = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	// A single word may be a name, and not a command.
	inline = regexp.MustCompile("`((?:kubectl )?ipwitness(?:-agent)? +[^`\n]* [^`\n]*)`")
	prompt = regexp.MustCompile(`^\s*\$ (.*)$`)
	// ours matches a command of ipwitness, also one in a container.
	ours = regexp.MustCompile(`^\s*(?:kubectl )?ipwitness(?:-agent)? +\S|-- /ipwitness(?:-agent)? +\S`)
)

// Blocks returns the blocks of all pages of the repository in root.
func Blocks(root string) (all []Block, err error) {
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			return nil, fmt.Errorf("got %d pages of %s (%w), want some", len(paths), pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			page, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
				all = append(all, Block{Page: page, Language: m[1], Text: m[2]})
			}
			for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
				all = append(all, Block{Page: page, Inline: true, Text: m[1]})
			}
		}
	}
	return all, nil
}

// Commands returns the command lines of a block, with continued lines joined: all lines of a block
// of shell, and otherwise the lines after a prompt, or those that begin with a command of ipwitness.
// Lines with an ellipsis are incomplete commands, or output.
func (b Block) Commands() (all []string) {
	prompted := strings.Contains("\n"+b.Text, "\n$ ")
	text := strings.ReplaceAll(b.Text, "\\\n", "")
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch m := prompt.FindStringSubmatch(line); {
		case m != nil:
			line = m[1]
		case prompted:
			continue
		case !ours.MatchString(line) && !b.Shell():
			continue
		}
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !strings.Contains(line, "…") {
			all = append(all, line)
		}
	}
	return all
}

// OfIpwitness reports whether a command line runs ipwitness.
func OfIpwitness(command string) bool { return ours.MatchString(command) }

// programs are the programs that commands of the pages begin with.
var programs = regexp.MustCompile(`^(?:ipwitness|ipwitness-agent|bin/ipwitness|kubectl|helm|git|make|curl|sh|docker|podman|openssl|cp|less|oc|crictl|skopeo|gh|source|timedatectl|chronyc|deploy/\S+\.sh) `)

// Shell reports whether each line of the block is a command.
func (b Block) Shell() bool {
	return b.Language == "sh" || b.Language == "" && !b.Inline && programs.MatchString(b.Text)
}
