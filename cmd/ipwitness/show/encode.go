package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Format is an output format (-o).
type Format string

// The formats.
const (
	FormatTable Format = "table" // for people
	FormatWide  Format = "wide"  // for people, with more columns
	FormatJSON  Format = "json"  // for programs
	FormatYAML  Format = "yaml"  // for programs
	FormatName  Format = "name"  // addresses of owners, and ids of other items
	FormatCSV   Format = "csv"   // all columns, with the times of ages
)

// ForPrograms reports whether the format is not a table or a page for people.
func (f Format) ForPrograms() bool {
	return f.Whole() || f == FormatName || f == FormatCSV || f.isTemplate()
}

// Whole reports whether the output contains the whole answer of the server, with its coverage.
func (f Format) Whole() bool { return f == FormatJSON || f == FormatYAML }

// Message writes one message.
func Message(w io.Writer, f Format, m proto.Message) error {
	if c, is := m.(*pb.Conflict); is && (f == FormatName || f == FormatCSV) {
		return List(w, f, "conflicts", []*pb.Conflict{c}, Basis{})
	}
	raw, err := messageJSON(m)
	if err != nil {
		return err
	}
	return encode(w, f, raw)
}

// Basis is what a list is based on. Fields that are not set are not written.
type Basis struct {
	At       *timestamppb.Timestamp // time of the state; not set for the current state
	Gap      *pb.Gap                // gap in the journal that contains this time
	Coverage *pb.Coverage
	// Marks are the marks of owners, for CSV: in the other formats, conflicts are a list of their own.
	Marks *Marks
}

// List writes one object with all messages under name and the basis of the list.
func List[T proto.Message](w io.Writer, f Format, name string, items []T, basis Basis) error {
	switch f {
	case FormatName:
		return writeNames(w, items)
	case FormatCSV:
		return writeCSV(w, items, basis.Marks)
	}
	raw := make([]json.RawMessage, len(items)) // not nil: no items are [], not null
	for i, item := range items {
		var err error
		if raw[i], err = messageJSON(item); err != nil {
			return err
		}
	}
	all, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	fields, err := fieldsJSON(field{"at", basis.At}, field{"gap", basis.Gap}, field{"coverage", basis.Coverage})
	if err != nil {
		return err
	}
	return encode(w, f, fmt.Appendf(nil, "{%q:%s%s}", name, all, fields))
}

// field is a field of a JSON object.
type field struct {
	name  string
	value proto.Message
}

// fieldsJSON encodes the fields that are set, each with a comma before it.
func fieldsJSON(fields ...field) (out []byte, err error) {
	for _, f := range fields {
		if !f.value.ProtoReflect().IsValid() { // nil
			continue
		}
		raw, err := messageJSON(f.value)
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, ",%q:%s", f.name, raw)
	}
	return out, nil
}

// Value writes a value that is not a message.
func Value(w io.Writer, f Format, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return encode(w, f, raw)
}

// Event writes one event of a watch with the message under name: in JSON on one line, in YAML as one
// document.
func Event(w io.Writer, f Format, kind, name string, m proto.Message) error {
	if f == FormatName {
		return writeNames(w, []proto.Message{m})
	}
	raw, err := messageJSON(m)
	if err != nil {
		return err
	}
	return writeEvent(w, f, fmt.Sprintf(`{"type":%q,%q:%s}`, kind, name, raw))
}

// Lost writes the event with the number of lost events.
func Lost(w io.Writer, f Format, kind string, lost uint32) error {
	return writeEvent(w, f, fmt.Sprintf(`{"type":%q,"lost":%d}`, kind, lost))
}

func writeEvent(w io.Writer, f Format, raw string) error {
	if f == FormatYAML {
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		return encode(w, f, []byte(raw))
	}
	if f.isTemplate() {
		return encode(w, f, []byte(raw))
	}
	var line bytes.Buffer // written at once, so that a reader never gets half a line
	if err := json.Compact(&line, []byte(raw)); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err := w.Write(escaped(line.Bytes()))
	return err
}

// messageJSON encodes a message like the REST API: with zeros and empty lists.
func messageJSON(m proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
}

// encode writes JSON, indented, as YAML with the fields in the same order, or through a template.
func encode(w io.Writer, f Format, raw []byte) error {
	if f.isTemplate() {
		return f.execute(w, raw)
	}
	var out bytes.Buffer
	if f == FormatYAML {
		var doc yaml.Node // JSON is YAML
		if err := yaml.Unmarshal([]byte(form.VisibleLines(string(raw))), &doc); err != nil {
			return err
		}
		readableYAML(&doc)
		enc := yaml.NewEncoder(&out)
		enc.SetIndent(2)
		if err := enc.Encode(&doc); err != nil {
			return err
		}
	} else {
		if err := json.Indent(&out, raw, "", "  "); err != nil {
			return err
		}
		out.WriteByte('\n')
		out = *bytes.NewBuffer(escaped(out.Bytes()))
	}
	_, err := w.Write(out.Bytes())
	return err
}

// escaped replaces unprintable characters in JSON with escapes. Programs that parse
// the JSON still get the characters, and a terminal does not.
func escaped(raw []byte) []byte {
	if advice.Printable(strings.ReplaceAll(string(raw), "\n", "")) {
		return raw
	}
	var out []byte
	for _, r := range string(raw) {
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}

// readableYAML removes the braces and quotes of JSON from a YAML document, except for empty lists and maps, and
// replaces unprintable characters, because YAML has escapes for only some of them.
func readableYAML(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode || len(n.Content) > 0 {
		n.Style = 0
	}
	n.Value = form.VisibleLines(n.Value)
	for _, c := range n.Content {
		readableYAML(c)
	}
}
