package casefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A member is a key of an object with its value.
type member struct {
	key   string
	value json.RawMessage
}

// object returns an object with members in their order.
func object(members []member) json.RawMessage {
	out := []byte{'{'}
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted(m.key)...), ':'), m.value...)
	}
	return append(out, '}')
}

// array returns an array of values.
func array(values []json.RawMessage) json.RawMessage {
	return slices.Concat([]byte{'['}, bytes.Join(asBytes(values), []byte{','}), []byte{']'})
}

func asBytes(values []json.RawMessage) [][]byte {
	out := make([][]byte, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// quoted returns a string in JSON.
func quoted(s string) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string in memory cannot fail
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// members are those of one object that are not taken yet.
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

// widest is the number of characters up to which a value is written on one line.
const widest = 160

// layOut writes a value so that people can read it: a value that is too wide for a line has a
// line for each of its members or elements.
func layOut(out *bytes.Buffer, raw json.RawMessage, indent string) {
	within := indent + "  "
	separate := func(i int) {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString("\n" + within)
	}
	switch all, err := elementsOf(raw); {
	case len(raw) <= widest && indent != "":
		out.WriteString(spaced(raw))
	case raw[0] == '{':
		members, _ := membersOf(raw) // of our own making
		out.WriteByte('{')
		for i, m := range members {
			separate(i)
			out.Write(append(quoted(m.key), ": "...))
			layOut(out, m.value, within)
		}
		out.WriteString("\n" + indent + "}")
	case err == nil:
		out.WriteByte('[')
		for i, v := range all {
			separate(i)
			layOut(out, v, within)
		}
		out.WriteString("\n" + indent + "]")
	default:
		out.Write(raw)
	}
}

// spaced puts a space after each comma and colon that is not in a string.
func spaced(raw json.RawMessage) string {
	var out strings.Builder
	inside, escaped := false, false
	for _, c := range string(raw) {
		out.WriteRune(c)
		switch {
		case escaped:
			escaped = false
		case inside && c == '\\':
			escaped = true
		case c == '"':
			inside = !inside
		case !inside && (c == ',' || c == ':'):
			out.WriteByte(' ')
		}
	}
	return out.String()
}
