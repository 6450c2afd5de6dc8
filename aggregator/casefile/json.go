package casefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// A text is a value in JSON on one line, with the parts that it has if it is written on several.
type text struct {
	line     []byte
	members  []entry
	elements []text
}

// An entry is a member of an object to write.
type entry struct {
	key   string
	value text
}

// object returns an object with entries in their order.
func object(entries []entry) text {
	size := 2
	for _, e := range entries {
		size += len(e.key) + len(e.value.line) + 6
	}
	line := append(make([]byte, 0, size), '{')
	for i, e := range entries {
		if i > 0 {
			line = append(line, ", "...)
		}
		line = append(append(appendQuoted(line, e.key), ": "...), e.value.line...)
	}
	return text{line: append(line, '}'), members: entries}
}

// array returns an array of values.
func array(values []text) text {
	line := []byte{'['}
	for i, v := range values {
		if i > 0 {
			line = append(line, ", "...)
		}
		line = append(line, v.line...)
	}
	return text{line: append(line, ']'), elements: values}
}

// quoted returns a string.
func quoted(s string) text { return text{line: appendQuoted(nil, s)} }

// appendQuoted appends a string in quotes.
func appendQuoted(to []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			_ = enc.Encode(s) // a string in memory cannot fail
			return append(to, bytes.TrimSuffix(out.Bytes(), []byte{'\n'})...)
		}
	}
	return append(append(append(to, '"'), s...), '"')
}

// widest is the number of characters up to which a value is written on one line.
const widest = 160

// layOut writes a value so that people can read it: a value that is too wide for a line has a
// line for each of its members or elements.
func layOut(out *bytes.Buffer, v text, indent string) {
	within := indent + "  "
	separate := func(i int) {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString("\n" + within)
	}
	switch {
	case len(v.line) <= widest && indent != "" || v.members == nil && v.elements == nil:
		out.Write(v.line)
	case v.members != nil:
		out.WriteByte('{')
		for i, e := range v.members {
			separate(i)
			out.Write(append(appendQuoted(nil, e.key), ": "...))
			layOut(out, e.value, within)
		}
		out.WriteString("\n" + indent + "}")
	default:
		out.WriteByte('[')
		for i, e := range v.elements {
			separate(i)
			layOut(out, e, within)
		}
		out.WriteString("\n" + indent + "]")
	}
}

// A member is a key of an object that is read, with its value.
type member struct {
	key   string
	value json.RawMessage
}

// members has the members of one object that were not taken yet.
type members struct{ all []member }

// take returns the value of a key and removes it.
func (m *members) take(key string) (json.RawMessage, bool) {
	i := slices.IndexFunc(m.all, func(m member) bool { return m.key == key })
	if i < 0 {
		return nil, false
	}
	value := m.all[i].value
	m.all = slices.Delete(m.all, i, i+1)
	return value, true
}

// left returns the members that were not taken.
func (m *members) left() []member { return m.all }

// parse returns the members of the object that is the whole text.
func parse(data []byte) (*members, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		line := 1
		if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
			line += bytes.Count(data[:at.Offset], []byte{'\n'})
		}
		return nil, fmt.Errorf("line %d: it is no JSON: %w", line, err)
	}
	all, fault := membersOf(raw)
	if fault != nil {
		return nil, fault
	}
	return &members{all}, nil
}

// membersOf returns the members of an object, in their order.
func membersOf(raw json.RawMessage) ([]member, *fault) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, wrong("got %s, want an object", short(raw))
	}
	var all []member
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		m := member{key: fmt.Sprint(key)}
		if err == nil {
			err = dec.Decode(&m.value)
		}
		switch {
		case err != nil:
			return nil, wrong("%v", err)
		case seen[m.key]:
			return nil, wrong("it is there twice").in(m.key)
		}
		seen[m.key] = true
		all = append(all, m)
	}
	return all, nil
}

// elementsOf returns the elements of an array.
func elementsOf(raw json.RawMessage) ([]json.RawMessage, *fault) {
	var all []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &all) != nil {
		return nil, wrong("got %s, want a list", short(raw))
	}
	return all, nil
}
