package show

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/ipwitness/ipwitness/proto/form"
)

// JSONPath begins a format that contains a template, as in kubectl. There is no go-template: text/template calls
// methods by name, so the linker would keep all methods of all types, which are 8 MB.
const JSONPath = "jsonpath="

// isTemplate reports whether the format contains a template.
func (f Format) isTemplate() bool {
	return strings.HasPrefix(string(f), JSONPath)
}

// parseTemplate parses the template of a format. Fields that do not exist are empty, as in kubectl.
func (f Format) parseTemplate() (*jsonpath.JSONPath, error) {
	text := strings.TrimPrefix(string(f), JSONPath)
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(text); err != nil {
		return nil, fmt.Errorf("%q is not a JSONPath template: %w: write it like {.owners[*].address}", text, err)
	}
	return path, nil
}

// ParseTemplate accepts a format with a template.
func ParseTemplate(s string) (f Format, is bool, err error) {
	if f = Format(s); !f.isTemplate() {
		return f, false, nil
	}
	_, err = f.parseTemplate()
	return f, true, err
}

// execute writes JSON through the template of the format.
func (f Format) execute(w io.Writer, raw []byte) error {
	t, err := f.parseTemplate()
	if err != nil {
		return err
	}
	var data any
	if err := utiljson.Unmarshal(raw, &data); err != nil { // whole numbers stay whole
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return fmt.Errorf("execute the template of --output: %w", err)
	}
	_, err = io.WriteString(w, form.VisibleLines(out.String()))
	return err
}
