package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// ipamPages are the pages that have texts about single IPAMs.
var ipamPages = []string{
	"README.md", "docs/tour.md", "docs/supported.md", "docs/permissions.md", "docs/reference.md", "docs/glossary.md", "docs/runbooks/*.md",
}

// writeIPAMs writes what the folders of the IPAMs say into the pages of the repository.
func writeIPAMs() error {
	written := newIPAMTexts(registry.All)
	var faults []error
	for _, pattern := range ipamPages {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range paths {
			page, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text, err := written.fill(string(page))
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", path, err))
				continue
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return errors.Join(append(faults, written.unused())...)
}

// ipamTexts are the texts about the IPAMs.
type ipamTexts struct {
	all []*ipam.IPAM
	// paragraphs are those of the runbooks, by their heading and by the index of their IPAM.
	paragraphs map[string]map[int]string
	used       map[string]bool
}

func newIPAMTexts(all []*ipam.IPAM) *ipamTexts {
	t := &ipamTexts{all: all, paragraphs: map[string]map[int]string{}, used: map[string]bool{}}
	// Links in the folder of an IPAM lead to the pages from there.
	links := strings.NewReplacer("](../../docs/runbooks/", "](", "](../../docs/", "](../")
	for i, m := range all {
		for _, section := range strings.Split("\n"+m.Docs.Runbooks, "\n## ")[1:] {
			heading, text, _ := strings.Cut(section, "\n")
			if t.paragraphs[heading] == nil {
				t.paragraphs[heading] = map[int]string{}
			}
			t.paragraphs[heading][i] = links.Replace(strings.TrimSpace(text))
		}
	}
	return t
}

// marked matches a text in a page that is generated: the indentation of its marker, its name, and
// the text. The text is a block if its marker is followed by a new line.
var marked = regexp.MustCompile(`(?s)( *)<!-- ipam: ([^>]+) -->(.*?)<!-- end of ipam -->`)

// fill returns a page with the texts that its markers ask for.
func (t *ipamTexts) fill(page string) (string, error) {
	var faults []error
	filled := marked.ReplaceAllStringFunc(page, func(was string) string {
		m := marked.FindStringSubmatch(was)
		indent, name := m[1], m[2]
		text, err := t.text(name)
		if err != nil {
			faults = append(faults, err)
		}
		begin, end := indent+"<!-- ipam: "+name+" -->", "<!-- end of ipam -->"
		if !strings.HasPrefix(m[3], "\n") {
			return begin + text + end
		}
		return begin + "\n" + indented(text, indent) + indent + end
	})
	return filled, errors.Join(faults...)
}

// indented returns a text with an indentation of each line that is not empty.
func indented(text, by string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(by)
		}
		b.WriteString(line)
	}
	return b.String()
}

// text returns the text of a marker: a list, a table, or the paragraphs of the runbooks with that
// heading.
func (t *ipamTexts) text(name string) (string, error) {
	switch name {
	case "names":
		return t.names(), nil
	case "titles":
		return registry.Titles("and", registry.Any), nil
	case "titles of the cluster":
		return registry.Titles("and", registry.OfCluster), nil
	case "supported":
		return t.supported(), nil
	case "mounts":
		return t.mounts(), nil
	case "permissions":
		return t.permissions(), nil
	case "may list":
		return t.mayList(), nil
	case "plan":
		return t.plan(), nil
	}
	if t.paragraphs[name] == nil {
		return "", fmt.Errorf("no IPAM has a paragraph %q in its runbooks.md", name)
	}
	t.used[name] = true
	var b strings.Builder
	for i, m := range t.all {
		if text, has := t.paragraphs[name][i]; has {
			item(&b, m, text)
		}
	}
	return b.String(), nil
}

// item writes an item of a list: the title of an IPAM and a text about it.
func item(b *strings.Builder, m *ipam.IPAM, text string) {
	rest := strings.TrimPrefix(indented(text, "  "), "  ")
	fmt.Fprintf(b, "- %s: %s\n", strings.TrimPrefix(m.Title, "the "), rest)
}

// unused returns an error if a paragraph is in no page.
func (t *ipamTexts) unused() error {
	var missing []string
	for heading := range t.paragraphs {
		if !t.used[heading] {
			missing = append(missing, heading)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		return fmt.Errorf("no page asks for these paragraphs of runbooks.md: %q", missing)
	}
	return nil
}

// names returns the names in the API of the IPAMs and the controllers of virtual addresses.
func (t *ipamTexts) names() string {
	var names []string
	for _, m := range t.all {
		if !m.Status {
			names = append(names, "`"+m.Name+"`")
		}
	}
	return strings.Join(names, ", ")
}

// supported returns the table of docs/supported.md.
func (t *ipamTexts) supported() string {
	var b strings.Builder
	b.WriteString("| IPAM | State | Evidence |\n|---|---|---|\n")
	for _, m := range t.all {
		for _, row := range m.Docs.Supported {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", row.What, row.State, row.Evidence)
		}
	}
	return b.String()
}

// mounts returns the table of files in docs/permissions.md.
func (t *ipamTexts) mounts() string {
	var b strings.Builder
	b.WriteString("| IPAM | Files | Mount | Without it |\n|---|---|---|---|\n")
	for _, m := range t.all {
		for _, row := range m.Docs.Mounts {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.Title, row.Files, row.Mount, row.Without)
		}
	}
	return b.String()
}

// plan returns the table of the repair plan in docs/reference.md.
func (t *ipamTexts) plan() string {
	var b strings.Builder
	b.WriteString("| IPAM | `in-use-unallocated` | `booked-elsewhere` | `leaked` |\n|---|---|---|---|\n")
	for _, m := range t.all {
		if p := m.Docs.Plan; p != nil {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.Title, p.InUseUnallocated, p.BookedElsewhere, p.Leaked)
		}
	}
	return b.String()
}

// permissions returns the table of custom resources in docs/reference.md.
func (t *ipamTexts) permissions() string {
	var b strings.Builder
	b.WriteString("| IPAM | Resource | Without list and watch |\n|---|---|---|\n")
	for _, m := range t.all {
		for _, r := range resources(m) {
			of, lost := "`"+r.Kind.String()+"`", r.Lost
			if r.Alternative != (ipam.Kind{}) {
				of += ", or `" + r.Alternative.String() + "`"
			}
			if r.Role != ipam.Extra {
				lost += "; its pools are `UNREADABLE`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", m.Title, of, lost)
		}
	}
	return b.String()
}

// mayList returns the commands that check the permissions for custom resources.
func (t *ipamTexts) mayList() string {
	var b strings.Builder
	for _, m := range t.all {
		text, alternative := "", ""
		for i, r := range resources(m) {
			switch i {
			case 0:
				text = fmt.Sprintf("`kubectl auth can-i list %s -A --as=system:serviceaccount:NAMESPACE:NAME`", r.Kind)
			case 1:
				text += fmt.Sprintf(", and the same for `%s`", r.Kind)
			default:
				text += fmt.Sprintf(", `%s`", r.Kind)
			}
			if r.Alternative != (ipam.Kind{}) {
				alternative = fmt.Sprintf(" Where `%s` is not served, it is `%s` instead.", r.Kind.Group, r.Alternative.Group)
			}
		}
		if text != "" {
			item(&b, m, text+"."+alternative)
		}
	}
	return b.String()
}

// resources returns the custom resources that an IPAM is read from.
func resources(m *ipam.IPAM) []*ipam.Resource {
	if m.Objects == nil {
		return nil
	}
	return m.Objects(nil).Resources
}
