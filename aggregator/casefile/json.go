package casefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// A text is a JSON value on one line. For objects and arrays it also has the parts, so that the
// value can be split over several lines.
type text struct {
	line     []byte
	members  []entry
	elements []text
}

// An entry is a member of an object to be written.
type entry struct {
	key   string
	value text
}

// object returns an object with its entries in the given order.
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

// quoted returns a JSON string.
func quoted(s string) text { return text{line: appendQuoted(nil, s)} }

// appendQuoted appends a JSON string.
func appendQuoted(to []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			_ = enc.Encode(s) // encoding a string cannot fail
			return append(to, bytes.TrimSuffix(out.Bytes(), []byte{'\n'})...)
		}
	}
	return append(append(append(to, '"'), s...), '"')
}

// maxWidth is the largest width in characters of a value on one line.
const maxWidth = 160

// format writes a value in readable form: if it is too wide for a line, each of its members or
// elements is on a line of its own.
func format(out *bytes.Buffer, v text, indent string) {
	within := indent + "  "
	separate := func(i int) {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString("\n" + within)
	}
	switch {
	case len(v.line) <= maxWidth && indent != "" || v.members == nil && v.elements == nil:
		out.Write(v.line)
	case v.members != nil:
		out.WriteByte('{')
		for i, e := range v.members {
			separate(i)
			out.Write(append(appendQuoted(nil, e.key), ": "...))
			format(out, e.value, within)
		}
		out.WriteString("\n" + indent + "}")
	default:
		out.WriteByte('[')
		for i, e := range v.elements {
			separate(i)
			format(out, e, within)
		}
		out.WriteString("\n" + indent + "]")
	}
}

// A member is a key of a decoded object with its value.
type member struct {
	key   string
	value json.RawMessage
}

// members are the members of an object that were not taken yet.
type members struct{ all []member }

// take removes and returns the value of a key.
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

// parse decodes a text that is one object, and returns its members.
func parse(data []byte) (*members, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		line := 1
		if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
			line += bytes.Count(data[:at.Offset], []byte{'\n'})
		}
		return nil, fmt.Errorf("line %d: invalid JSON: %w", line, err)
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
		return nil, faultf("got %s, expected an object", short(raw))
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
			return nil, faultf("%v", err)
		case seen[m.key]:
			return nil, faultf("duplicate key").in(m.key)
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
		return nil, faultf("got %s, expected a list", short(raw))
	}
	return all, nil
}
