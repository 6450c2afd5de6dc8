package show

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/template"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"

	"github.com/ipwitness/ipwitness/proto/form"
)

// The formats that contain a template, as in kubectl.
const (
	JSONPath   = "jsonpath="
	GoTemplate = "go-template="
)

// isTemplate reports whether the format contains a template.
func (f Format) isTemplate() bool {
	return strings.HasPrefix(string(f), JSONPath) || strings.HasPrefix(string(f), GoTemplate)
}

// executor is a parsed template.
type executor interface {
	Execute(w io.Writer, data any) error
}

// parseTemplate parses the template of a format. Fields that do not exist are empty, as in kubectl.
func (f Format) parseTemplate() (executor, error) {
	if text, is := strings.CutPrefix(string(f), JSONPath); is {
		path := jsonpath.New("output").AllowMissingKeys(true)
		if err := path.Parse(text); err != nil {
			return nil, fmt.Errorf("%q is not a JSONPath template: %w: write it like {.owners[*].address}", text, err)
		}
		return path, nil
	}
	text := strings.TrimPrefix(string(f), GoTemplate)
	parsed, err := template.New("output").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a Go template: %w: write it like {{range .owners}}{{.address}} {{end}}", text, err)
	}
	return parsed, nil
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
