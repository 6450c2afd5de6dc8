// Command chart writes the permissions for the IPAMs of the cluster into the Helm chart, and
// generates files from the chart: the list of values in its README, and the manifests for users
// without Helm (deploy/manifests). It needs Helm: `make helm`. Its tests are the tests of the chart.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	chart     = "deploy/helm/ipwitness"
	manifests = "deploy/manifests"
	// definitions is the file with the definition of the chart's custom resource.
	definitions = "addressconflictacknowledgements.yaml"
)

func main() {
	if err := errors.Join(writeIPAMs(), writeReadme(), writeManifests()); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// The list of values is between these lines of README.md.
const (
	listBegins = "<!-- values: generated from values.yaml by `make generate` -->\n"
	listEnds   = "<!-- end of values -->\n"
)

func writeReadme() error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	list, err := valueList(values)
	if err != nil {
		return err
	}
	path := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(readme), listBegins)
	_, after, ends := strings.Cut(rest, listEnds)
	if !begins || !ends {
		return fmt.Errorf("%s lacks the lines %q and %q", path, listBegins, listEnds)
	}
	return os.WriteFile(path, []byte(before+listBegins+list+listEnds+after), 0o644)
}

// valueList returns tables of the values and their comments. Every value must have a comment.
func valueList(values []byte) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return "", fmt.Errorf("parse values.yaml: %w", err)
	}
	const head = "\n| Value | Default | What |\n|---|---|---|\n"
	var b strings.Builder
	b.WriteString(head)
	var errs []error
	for pair := range slices.Chunk(doc.Content[0].Content, 2) {
		key, value := pair[0], pair[1]
		if isGroup(value) {
			fmt.Fprintf(&b, "\n### %s\n\n%s\n%s", key.Value, comment(key), head)
		}
		errs = append(errs, rows(&b, key, value, ""))
	}
	return b.String() + "\n", errors.Join(errs...)
}

// rows writes the rows of a value, or of all values in a group.
func rows(b *strings.Builder, key, value *yaml.Node, in string) error {
	name := in + key.Value
	what := comment(key)
	if what == "" {
		return fmt.Errorf("values.yaml, line %d: %s has no comment", key.Line, name)
	}
	if !isGroup(value) {
		text, err := flow(value)
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, text, strings.ReplaceAll(what, "|", `\|`))
		return err
	}
	if in != "" {
		fmt.Fprintf(b, "| `%s` | | %s |\n", name, what)
	}
	var errs []error
	for pair := range slices.Chunk(value.Content, 2) {
		errs = append(errs, rows(b, pair[0], pair[1], name+"."))
	}
	return errors.Join(errs...)
}

// comment returns the comment directly above a key.
func comment(key *yaml.Node) string {
	paragraphs := strings.Split(key.HeadComment, "\n\n")
	lines := strings.Split(paragraphs[len(paragraphs)-1], "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(strings.TrimPrefix(lines[i], "#"))
	}
	return strings.Join(lines, " ")
}

// isGroup reports whether a mapping only groups values that are set individually, because each of
// them has a comment.
func isGroup(value *yaml.Node) bool {
	return value.Kind == yaml.MappingNode && slices.ContainsFunc(value.Content, func(n *yaml.Node) bool { return n.HeadComment != "" })
}

// flow formats a value on one line.
func flow(value *yaml.Node) (string, error) {
	copied := *value
	copied.HeadComment, copied.LineComment, copied.FootComment = "", "", ""
	inline(&copied)
	text, err := yaml.Marshal(&copied)
	if err != nil {
		return "", fmt.Errorf("write values.yaml, line %d: %w", value.Line, err)
	}
	return strings.Join(strings.Fields(string(text)), " "), nil
}

func inline(n *yaml.Node) {
	n.Style |= yaml.FlowStyle
	for _, c := range n.Content {
		if c.Kind != yaml.ScalarNode {
			inline(c)
		}
	}
}

// manifest is a file of deploy/manifests, generated from some templates of the chart.
type manifest struct {
	path      string
	templates []string
	set       []string
}

// Certificates come from the user or from cert-manager, because kubectl cannot generate them.
var rendered = []manifest{
	{"base/agent.yaml", []string{"agent"}, []string{"tls.mode=existing"}},
	{"base/aggregator.yaml", []string{"aggregator", "service", "policies"}, []string{"tls.mode=existing", "aggregator.persistence.enabled=false"}},
	{"base/config.yaml", []string{"config"}, []string{"tls.mode=existing"}},
	{"base/rbac.yaml", []string{"rbac"}, []string{"tls.mode=existing"}},
	{"components/cert-manager/certificates.yaml", []string{"certificates-cert-manager"}, []string{"tls.mode=cert-manager"}},
}

func writeManifests() error {
	// Helm renders no definitions of custom resources.
	definition, err := os.ReadFile(filepath.Join(chart, "crds", definitions))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(manifests, "base", definitions), definition, 0o644); err != nil {
		return err
	}
	for _, m := range rendered {
		text, err := m.render()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(manifests, m.path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ofHelm matches the lines that only concern Helm.
var ofHelm = regexp.MustCompile(`(?m)^(# Source: .*| +(app\.kubernetes\.io/managed-by|helm\.sh/chart|checksum/config): .*)\n`)

func (m manifest) render() (string, error) {
	args := []string{"template", "ipwitness", chart, "--namespace", "ipwitness", "--api-versions", "cert-manager.io/v1/Certificate"}
	for _, t := range m.templates {
		args = append(args, "--show-only", "templates/"+t+".yaml")
	}
	for _, s := range m.set {
		args = append(args, "--set", s)
	}
	out, err := helm(args...)
	if err != nil {
		return "", err
	}
	text := strings.TrimPrefix(ofHelm.ReplaceAllString(out, ""), "---\n")
	return "# Generated from the Helm chart by `make generate`.\n" + text, nil
}

// helm runs Helm and returns its output.
func helm(args ...string) (string, error) {
	program, err := helmProgram()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, args...)
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &fault
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(fault.String()))
	}
	return out.String(), nil
}

// helmProgram returns the path of Helm: from IPWITNESS_KUBERNETES_BIN, or in bin/kubernetes of the
// repository.
func helmProgram() (string, error) {
	dir := os.Getenv("IPWITNESS_KUBERNETES_BIN")
	if dir == "" {
		dir = "bin/kubernetes"
	}
	program, err := filepath.Abs(filepath.Join(dir, "helm"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("no Helm: run 'make helm', or set IPWITNESS_KUBERNETES_BIN: %w", err)
	}
	return program, nil
}
