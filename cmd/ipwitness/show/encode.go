package show

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

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

// JSONPath begins a format that contains a template, as in kubectl. There is no go-template: text/template calls
// methods by name, so the linker would keep all methods of all types, which are 8 MB.
const JSONPath = "jsonpath="

// ForPrograms reports whether the format is not a table or a page for people.
func (f Format) ForPrograms() bool {
	return f.Whole() || f == FormatName || f == FormatCSV || f.isTemplate()
}

// Whole reports whether the output contains the whole answer of the server, with its coverage.
func (f Format) Whole() bool { return f == FormatJSON || f == FormatYAML }

func (f Format) isTemplate() bool { return strings.HasPrefix(string(f), JSONPath) }

// Template returns the template of a format, or nil if it has none. Fields that do not exist are empty, as in kubectl.
func (f Format) Template() (*jsonpath.JSONPath, error) {
	text, is := strings.CutPrefix(string(f), JSONPath)
	if !is {
		return nil, nil
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(text); err != nil {
		return nil, fmt.Errorf("%q is not a JSONPath template: %w: write it like {.owners[*].address}", text, err)
	}
	return path, nil
}

// Message writes one message, or another value.
func Message(w io.Writer, f Format, m any) error {
	raw, err := valueJSON(m)
	if err != nil {
		return err
	}
	return encode(w, f, raw)
}

// List writes one object with all items under their plural and what the list is based on or, as CSV, only their
// columns and, as names, only what commands accept as an argument.
func List[T proto.Message](w io.Writer, f Format, kind Kind[T], items []T, basis ...Field) error {
	switch f {
	case FormatName:
		return kind.writeNames(w, items)
	case FormatCSV:
		return kind.writeCSV(w, items)
	}
	raw := make([]json.RawMessage, len(items)) // not nil: no items are [], not null
	for i, item := range items {
		var err error
		if raw[i], err = valueJSON(item); err != nil {
			return err
		}
	}
	all, err := object(append([]Field{{kind.Plural(), raw}}, basis...)...)
	if err != nil {
		return err
	}
	return encode(w, f, all)
}

// A Field is a field of a JSON object.
type Field struct {
	Name  string
	Value any
}

// object encodes fields in their order, without messages that are nil.
func object(fields ...Field) ([]byte, error) {
	var out []byte
	for _, f := range fields {
		if m, is := f.Value.(proto.Message); is && !m.ProtoReflect().IsValid() {
			continue
		}
		raw, err := valueJSON(f.Value)
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, ",%q:%s", f.Name, raw)
	}
	out[0] = '{'
	return append(out, '}'), nil
}

// writeNames writes the id of each item once and on its own line.
func (k Kind[T]) writeNames(w io.Writer, items []T) error {
	var out strings.Builder
	written := map[string]bool{}
	for _, item := range items {
		if id := k.ID(item); !written[id] {
			written[id] = true
			out.WriteString(clean(id) + "\n")
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// formula matches what a spreadsheet takes for the beginning of a formula (it has no line breaks or tabs left). One
// that separates cells by semicolons takes the text after each of them for a cell.
var formula = regexp.MustCompile(`(^|; *)([=+\-@＝＋－＠])`)

// CSVCell returns a text as a cell of comma-separated values, which is no formula. Processes and pods name themselves,
// so an apostrophe before a formula makes it a text.
func CSVCell(text string) string { return formula.ReplaceAllString(clean(text), "$1'$2") }

// writeCSV writes items as comma-separated values (RFC 4180), with all columns of their table.
func (k Kind[T]) writeCSV(w io.Writer, items []T) error {
	columns := clustered(k.columns(), items)
	var out bytes.Buffer
	lines := csv.NewWriter(&out)
	record := make([]string, len(columns))
	write := func(cell func(c Column[T]) string) {
		for i, c := range columns {
			record[i] = CSVCell(cell(c))
		}
		_ = lines.Write(record) // writing to a buffer cannot fail
	}
	write(func(c Column[T]) string {
		if c.Header == "AGE" { // the time since which it counts
			return "since"
		}
		return strings.ToLower(strings.ReplaceAll(c.Header, " ", "-"))
	})
	for _, item := range items {
		write(func(c Column[T]) string {
			switch {
			case c.at == nil:
				return c.cell(item, time.Time{})
			case c.at(item) == nil:
				return ""
			}
			return c.at(item).AsTime().Format(time.RFC3339Nano)
		})
	}
	lines.Flush()
	_, err := w.Write(out.Bytes())
	return err
}

// ItemEvent writes one event of a watch of items.
func ItemEvent[T proto.Message](w io.Writer, f Format, event pb.Watch_Type, kind Kind[T], item T) error {
	if f == FormatName {
		return kind.writeNames(w, []T{item})
	}
	return Event(w, f, event.String(), Field{kind.Name, item})
}

// Event writes one event of a watch with fields: in JSON on one line, in YAML as one document.
func Event(w io.Writer, f Format, event string, fields ...Field) error {
	raw, err := object(append([]Field{{"type", event}}, fields...)...)
	if err != nil {
		return err
	}
	return writeEvent(w, f, raw)
}

func writeEvent(w io.Writer, f Format, raw []byte) error {
	if f == FormatYAML {
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
	}
	if f == FormatYAML || f.isTemplate() {
		return encode(w, f, raw)
	}
	var line bytes.Buffer // written at once, so that a reader never gets half a line
	if err := json.Compact(&line, raw); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err := w.Write(escaped(line.Bytes()))
	return err
}

// valueJSON encodes a value: a message like the REST API, with zeros and empty lists.
func valueJSON(v any) (json.RawMessage, error) {
	if m, is := v.(proto.Message); is {
		return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	}
	return json.Marshal(v)
}

// encode writes JSON, indented, as YAML with the fields in the same order, or through a template.
func encode(w io.Writer, f Format, raw []byte) error {
	var out bytes.Buffer
	switch {
	case f.isTemplate():
		path, err := f.Template()
		if err != nil {
			return err
		}
		var data any
		if err := utiljson.Unmarshal(raw, &data); err != nil { // whole numbers stay whole
			return err
		}
		if err := path.Execute(&out, data); err != nil {
			return fmt.Errorf("execute the template of --output: %w", err)
		}
		_, err = io.WriteString(w, form.VisibleLines(out.String()))
		return err
	case f == FormatYAML:
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
		_, err := w.Write(out.Bytes())
		return err
	default:
		if err := json.Indent(&out, raw, "", "  "); err != nil {
			return err
		}
		out.WriteByte('\n')
		_, err := w.Write(escaped(out.Bytes()))
		return err
	}
}

// escaped replaces unprintable characters in JSON with escapes. Programs that parse
// the JSON still get the characters, and a terminal does not.
func escaped(raw []byte) []byte {
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
