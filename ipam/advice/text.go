package advice

import (
	_ "embed" // for the common texts
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
)

// Texts are texts by their keys. A text is on the line of its key, or on the lines below it, whose first character
// says what they are:
//
//   - = is a sentence of the summary, and . is a fact of the evidence.
//   - - is an action, and ~ is one that only checks whether the others have helped. Below it, @ is the node to run its command on, and $ is a line of the command.
//     ? is an alternative, with its actions below it.
//   - * is a step of the repair plan, with @ and $ like an action, and ! is one for a person.
//   - + stands for the lines of another key, or for actions, alternatives, advice or a function that the caller has
//     for this name. What follows a colon is the argument of a function.
//
// {name} stands for a value that the caller has for this name, or for the text of this key. {^name} begins with a
// capital letter. {sh name} and {arg name} are quoted for a shell, {path name} is a path, {literal name} is a literal
// word, {json name} is a JSON string, and {short name} is a container ID in its short form. In place of the name, they
// may have a text with names in braces. A line that begins with [name] is left out if the value is empty, and one that
// begins with [!name] if it is not.
type Texts map[string]*line

// A line is a line of a text, or a key with its text.
type line struct {
	kind  byte
	text  string
	below []*line
}

//go:embed common.txt
var common string

// ReadTexts returns the texts of the files that match patterns, and those of common.txt. Lines that begin with # are
// comments.
func ReadTexts(in fs.FS, patterns ...string) Texts {
	all := Texts{}
	all.read(common)
	for _, pattern := range patterns {
		names, _ := fs.Glob(in, pattern)
		for _, name := range names {
			file, _ := fs.ReadFile(in, name) // it is in the program
			all.read(string(file))
		}
	}
	return all
}

func (t Texts) read(file string) {
	var open []*line // the last line of each depth
	for raw := range strings.Lines(file) {
		raw = strings.TrimSuffix(raw, "\n")
		text := strings.TrimLeft(raw, " ")
		if depth := (len(raw) - len(text)) / 2; text == "" || text[0] == '#' {
			continue
		} else if depth == 0 {
			key, rest, _ := strings.Cut(text, ":")
			t[key] = &line{text: strings.TrimPrefix(rest, " ")}
			open = []*line{t[key]}
		} else {
			l := &line{kind: text[0], text: strings.TrimPrefix(text[1:], " ")}
			open = append(open[:depth], l)
			open[depth-1].below = append(open[depth-1].below, l)
		}
	}
}

// A Filler fills texts with values.
type Filler struct {
	Texts
	// Value returns the value of a name; nil if it has none.
	Value func(name string) any
}

// Text returns the text or the summary of a key; empty if there is no such key.
func (f Filler) Text(key string) string {
	l := f.Texts[key]
	if l == nil {
		return ""
	}
	return f.fill(l.text) + f.write(&Advice{}, l.below)
}

// Write adds the advice of a key, if there is such a key, and returns its summary.
func (f Filler) Write(a *Advice, key string) (summary string) {
	if l := f.Texts[key]; l != nil {
		return f.write(a, l.below)
	}
	return ""
}

// Steps returns the actions of a key.
func (f Filler) Steps(key string) []Action {
	var a Advice
	f.Write(&a, key)
	return a.Remedy
}

func (f Filler) word(name string) string {
	if v := f.Value(name); v != nil {
		return fmt.Sprint(v)
	} else if f.Texts[name] != nil {
		return f.Text(name)
	}
	return "{" + name + "}"
}

// quotes are the forms of a value in a command.
var quotes = map[string]func(string) string{
	"sh": Quote, "arg": Argument, "path": File, "literal": Literal, "json": jsonText, "short": ShortID,
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyz."

// fill replaces the names in a template by their values.
func (f Filler) fill(template string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(template, "{")
		if out.WriteString(before); !found {
			return out.String()
		}
		inner, after := cutBrace(rest)
		how, of, quoted := strings.Cut(inner, " ")
		name := strings.TrimPrefix(inner, "^")
		switch quote := quotes[how]; {
		case quoted && quote != nil && strings.Trim(of, nameCharacters) == "":
			out.WriteString(quote(f.word(of)))
		case quoted && quote != nil:
			out.WriteString(quote(f.fill(of)))
		case name == "" || name[0] == '.' || strings.Trim(name, nameCharacters) != "":
			out.WriteByte('{') // a brace of a command
			template = rest
			continue
		case name != inner:
			out.WriteString(Capital(f.word(name)))
		default:
			out.WriteString(f.word(name))
		}
		template = after
	}
}

// cutBrace cuts a text at the brace that closes the one before it. Both parts are empty if no brace is closed.
func cutBrace(text string) (before, after string) {
	depth := 1
	for i := range len(text) {
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return text[:i], text[i+1:]
			}
		}
	}
	return "", ""
}

// Capital returns a text with a capital letter at its beginning.
func Capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}

func jsonText(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string can always be encoded
	return strings.TrimSuffix(b.String(), "\n")
}

// applies reports whether a line is not left out, and returns its text without the conditions.
func (f Filler) applies(text string) (string, bool) {
	for strings.HasPrefix(text, "[") {
		condition, rest, found := strings.Cut(text[1:], "] ")
		name, empty := strings.CutPrefix(condition, "!")
		if !found || name == "" || strings.Trim(name, nameCharacters) != "" {
			break // a command
		}
		if (f.word(name) == "") != empty {
			return "", false
		}
		text = rest
	}
	return text, true
}

func (f Filler) write(a *Advice, lines []*line) (summary string) {
	for _, l := range lines {
		text, applies := f.applies(l.text)
		if !applies {
			continue
		}
		switch l.kind {
		case '=':
			summary = strings.TrimPrefix(summary+" "+f.fill(text), " ")
		case '.':
			a.Evidence = append(a.Evidence, f.fill(text))
		case '-':
			a.Act(f.action(a, text, l.below))
		case '~':
			step := f.action(a, text, l.below)
			step.Verify = true
			a.Act(step)
		case '!', '*':
			step := f.action(a, text, l.below)
			a.Fix(Fix{Node: step.Node, What: step.Text, Command: step.Command, Manual: l.kind == '!'})
		case '+':
			name, argument, _ := strings.Cut(text, ": ")
			switch v := f.Value(name).(type) {
			case nil:
				if more := f.Write(a, name); more != "" {
					summary = strings.TrimPrefix(summary+" "+more, " ")
				}
			case func():
				v()
			case func(string) Advice:
				a.Add(v(f.fill(argument)))
			case Advice:
				a.Add(v)
			case Action:
				a.Act(v)
			case []Action:
				a.Act(v...)
			}
		}
	}
	return summary
}

// action returns an action with a text, and the lines below it. The steps of the repair plan in its alternatives are
// added to advice.
func (f Filler) action(to *Advice, text string, below []*line) Action {
	a := Action{Text: f.fill(text)}
	for _, l := range below {
		text, applies := f.applies(l.text)
		if !applies {
			continue
		}
		switch l.kind {
		case '@':
			a.Node = f.fill(text)
		case '$':
			a.Command = strings.TrimPrefix(a.Command+"\n"+f.fill(text), "\n")
		case '?':
			var alternative Advice
			f.write(&alternative, l.below)
			a.Choice = append(a.Choice, Either(f.fill(text), alternative.Remedy...))
			to.Fixes = append(to.Fixes, alternative.Fixes...)
		case '+':
			if alternatives, ok := f.Value(text).([]Alternative); ok {
				a.Choice = append(a.Choice, alternatives...)
				continue
			}
			if key := f.Texts[text]; key != nil {
				a.Choice = append(a.Choice, f.action(to, "", key.below).Choice...)
			}
		}
	}
	return a
}
