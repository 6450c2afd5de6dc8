package explain

import (
	"embed"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Each file in folder text has texts by their keys. A text is on the line of its key, or on the lines below
// it, whose first character says what they are:
//
//   - = is the summary of a finding, and . is a fact of its evidence.
//   - - is an action. Below it, @ is the node to run its command on, and $ is a line of the command.
//     ? is an alternative, with its actions below it.
//   - ! is a step of the repair plan for a person, with @ and $ like an action.
//   - + stands for actions, alternatives or a function that the caller has for this name.
//
// {name} stands for a value: a word of the owner (ownerWords), or what the caller has for this name. {^name} begins
// with a capital letter; {sh name} and {arg name} are quoted for a shell. A line that begins with [name] is
// left out if the value is empty, and one that begins with [!name] if it is not.
//
//go:embed text
var files embed.FS

// texts are the texts of all files.
var texts = readTexts()

// A line is a line of a text, or a key with its text.
type line struct {
	kind  byte
	text  string
	below []*line
}

func readTexts() map[string]*line {
	all := map[string]*line{}
	names, _ := files.ReadDir("text") // the files are in the program
	for _, name := range names {
		data, _ := files.ReadFile("text/" + name.Name())
		var open []*line // the last line of each depth
		for raw := range strings.Lines(string(data)) {
			raw = strings.TrimSuffix(raw, "\n")
			text := strings.TrimLeft(raw, " ")
			if depth := (len(raw) - len(text)) / 2; text == "" || text[0] == '#' {
				continue
			} else if depth == 0 {
				key, rest, _ := strings.Cut(text, ":")
				all[key] = &line{text: strings.TrimPrefix(rest, " ")}
				open = []*line{all[key]}
			} else {
				l := &line{kind: text[0], text: strings.TrimPrefix(text[1:], " ")}
				open = append(open[:depth], l)
				open[depth-1].below = append(open[depth-1].below, l)
			}
		}
	}
	return all
}

// has reports whether there is a text with a key.
func has(key string) bool { return texts[key] != nil }

// A source gives the values of names; nil for names that it does not have.
type source func(name string) any

// A scope has the values that a text may name: sources, owners, and names that are each followed by
// their values.
type scope []any

// value returns the value of a name. {was.node} is the node of the owner that the scope has as was.
func (s scope) value(name string) any {
	for i := 0; i < len(s); i++ {
		switch from := s[i].(type) {
		case source:
			if v := from(name); v != nil {
				return v
			}
		case *verdict.Owner:
			if word := ownerWords[name]; word != nil {
				return word(from)
			}
		case string:
			i++
			if from == name {
				return s[i]
			}
			if o, ok := s[i].(*verdict.Owner); ok && strings.HasPrefix(name, from+".") {
				return ownerWords[name[len(from)+1:]](o)
			}
		}
	}
	return nil
}

// word returns the value of a name as text.
func (s scope) word(name string) string {
	switch v := s.value(name).(type) {
	case nil:
		return "{" + name + "}"
	case verdict.Stamp:
		return stampText(v)
	case []string:
		return list(v)
	case []netip.Addr:
		return list(each(v, addrText))
	default:
		return fmt.Sprint(v)
	}
}

// fill replaces the names in a template by their values.
func (s scope) fill(template string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(template, "{")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, found := strings.Cut(rest, "}")
		how, of, quoted := strings.Cut(name, " ")
		switch {
		case !found || name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz. ^") != "" || name[0] == '.':
			out.WriteByte('{') // a brace of a command
			template = rest
			continue
		case name[0] == '^':
			out.WriteString(capital(s.word(name[1:])))
		case quoted && how == "sh":
			out.WriteString(advice.Quote(s.word(of)))
		case quoted && how == "arg":
			out.WriteString(advice.Argument(s.word(of)))
		default:
			out.WriteString(s.word(name))
		}
		template = after
	}
}

// text returns the text of a key.
func (s scope) text(key string) string { return s.fill(texts[key].text) }

// Text returns the text of a key. Names are followed by their values.
func Text(key string, values ...any) string { return scope(values).text(key) }

// steps returns the actions of a key.
func (s scope) steps(key string) []advice.Action {
	var t FindingText
	s.write(&t, texts[key].below)
	return t.Remedy
}

// applies reports whether a line is not left out, and returns its text without the condition.
func (s scope) applies(l *line) (string, bool) {
	if !strings.HasPrefix(l.text, "[") {
		return l.text, true
	}
	name, rest, _ := strings.Cut(l.text[1:], "] ")
	name, empty := strings.CutPrefix(name, "!")
	return rest, (s.word(name) == "") == empty
}

// write adds lines to a text.
func (s scope) write(t *FindingText, lines []*line) {
	for _, l := range lines {
		text, applies := s.applies(l)
		if !applies {
			continue
		}
		switch l.kind {
		case '=':
			t.Summary = strings.TrimPrefix(t.Summary+" "+s.fill(text), " ")
		case '.':
			t.Evidence = append(t.Evidence, s.fill(text))
		case '-':
			t.Act(s.action(text, l.below))
		case '!':
			a := s.action(text, l.below)
			t.Fix(advice.Fix{Node: a.Node, What: a.Text, Command: a.Command, Manual: true})
		case '+':
			switch v := s.value(text).(type) {
			case func():
				v()
			case advice.Action:
				t.Act(v)
			case []advice.Action:
				t.Act(v...)
			}
		}
	}
}

// action returns an action with a text, and the lines below it.
func (s scope) action(text string, below []*line) advice.Action {
	a := advice.Action{Text: s.fill(text)}
	for _, l := range below {
		text, applies := s.applies(l)
		if !applies {
			continue
		}
		switch l.kind {
		case '@':
			a.Node = s.fill(text)
		case '$':
			a.Command = strings.TrimPrefix(a.Command+"\n"+s.fill(text), "\n")
		case '?':
			var t FindingText
			s.write(&t, l.below)
			a.Choice = append(a.Choice, advice.Either(s.fill(text), t.Remedy...))
		case '+':
			a.Choice = append(a.Choice, s.value(text).([]advice.Alternative)...)
		}
	}
	return a
}
