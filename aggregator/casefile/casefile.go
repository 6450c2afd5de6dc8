// Package casefile writes cases to files and reads them. A file contains everything that the
// judgement of one address needs, so that the case can be judged again anywhere. It is the JSON of the
// case without the fields that are not set. A record that several others refer to is written several
// times, because records are identified by their keys.
//
// The package makes no verdicts and no text for people, apart from errors.
package casefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Format is the version of the file format. It is raised whenever a program for the previous
// version would misread a file.
const Format = 2

// MaxSize is the largest size of a file in bytes.
const MaxSize = 64 << 20

// mostObjects and mostValues limit what takes more memory than it takes in a file.
const mostObjects, mostValues = 1 << 18, 1 << 20

// bounded returns an error for a file that is too large, or that has too many values.
func bounded(data []byte) error {
	if len(data) > MaxSize {
		return fmt.Errorf("more than %d bytes", MaxSize)
	}
	if bytes.Count(data, []byte{'{'}) > mostObjects || bytes.Count(data, []byte{','}) > mostValues {
		return fmt.Errorf("more than %d objects, or %d values", mostObjects, mostValues)
	}
	return nil
}

// A File is a case with everything that is needed to judge it again.
type File struct {
	// Version is the version of ipwitness that wrote the case.
	Version string `json:"ipwitnessVersion"`
	// Policy is the policy by which the case was judged.
	Policy *verdict.Policy `json:"policy"`
	Case   *verdict.Case   `json:"case"`
	// Judged is the judgement by that version: values by names in words. It is empty in files of versions that did not
	// write it.
	Judged map[string]string `json:"judged"`
}

// format begins each file.
type format struct {
	Format int `json:"ipwitnessCase"`
}

// Encode returns the file as JSON. Equal files give equal bytes.
func Encode(f *File) ([]byte, error) {
	data, err := json.Marshal(struct {
		format
		*File
	}{format{Format}, f})
	if err != nil {
		return nil, fmt.Errorf("write case of %s: %w", f.Case.Address, err)
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("write case of %s: %w", f.Case.Address, err)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(prune(tree)); err != nil {
		return nil, fmt.Errorf("write case of %s: %w", f.Case.Address, err)
	}
	if err := bounded(out.Bytes()); err != nil {
		return nil, fmt.Errorf("write case of %s: it would have %w", f.Case.Address, err)
	}
	return out.Bytes(), nil
}

// prune removes the members of objects that are not set. Most fields of a case are not.
func prune(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	case map[string]any:
		maps.DeleteFunc(v, func(key string, member any) bool {
			switch m := prune(member).(type) {
			case []any:
				return len(m) == 0
			case map[string]any:
				return len(m) == 0
			default:
				return m == nil || m == false || m == "" || m == json.Number("0")
			}
		})
	}
	return value
}

// Read reads a file.
func Read(r io.Reader) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read case: %w", err)
	}
	return Decode(data)
}

// Decode decodes a file that Encode wrote.
func Decode(data []byte) (*File, error) {
	if err := bounded(data); err != nil {
		return nil, fmt.Errorf("read case: %w: this is not a case file", err)
	}
	var begin struct {
		format
		Version string `json:"ipwitnessVersion"`
	}
	switch err := json.Unmarshal(data, &begin); {
	case err != nil:
		return nil, fmt.Errorf("read case: %w", err)
	case begin.Format == 0:
		return nil, fmt.Errorf("read case: no \"ipwitnessCase\": this is not a case file; write one with `ipwitness explain ADDRESS -o case`")
	case begin.Format != Format:
		return nil, fmt.Errorf("read case: format %d is not supported, only format %d is: use ipwitness %s, which wrote the file", begin.Format, Format, begin.Version)
	}
	f := struct {
		format
		File
	}{File: File{Policy: &verdict.Policy{}, Case: &verdict.Case{}}}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("read case: %w; use ipwitness %s, which wrote the file", err, begin.Version)
	}
	if path := missing(reflect.ValueOf(f.File), ""); path != "" {
		return nil, fmt.Errorf("read case: %s: missing", strings.TrimPrefix(path, "."))
	}
	return &f.File, nil
}

// required are the fields without which a case cannot be judged, by type.
var required = map[string]string{
	"casefile.File": "Policy Case", "verdict.Case": "Address Now", "verdict.Claim": "Interface Kind",
	"verdict.Interface": "Namespace", "verdict.Namespace": "Node", "verdict.Link": "Node", "verdict.Domain": "Node",
	"verdict.Allocation": "Pool", "verdict.AllocationFacts": "Allocation", "verdict.NamespaceFacts": "Namespace",
	"verdict.Stitch": "Entered Home", "verdict.Subnet": "Interface",
	"verdict.Identity": "ID", "verdict.Memory": "Owners", "verdict.Course": "Phase", "verdict.Member": "ID", "verdict.Exclusion": "Rule",
	"verdict.Owner": "ID Node Interface", "verdict.Spoof": "Port Sender MACs", "ipam.Range": "First Last",
}

// missing returns the path of a required field that is not set; empty if there is none.
func missing(v reflect.Value, path string) string {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return missing(v.Elem(), path)
		}
	case reflect.Slice:
		for i := range v.Len() {
			at := fmt.Sprintf("%s[%d]", path, i)
			if v.Index(i).Kind() == reflect.Pointer && v.Index(i).IsNil() {
				return at
			}
			if found := missing(v.Index(i), at); found != "" {
				return found
			}
		}
	case reflect.Struct:
		for name := range strings.FieldsSeq(required[v.Type().String()]) {
			if f := v.FieldByName(name); f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
				return path + "." + name
			}
		}
		if f, ok := reflect.TypeAssert[verdict.Finding](v); ok && f.Spoof == nil && (f.Kind == verdict.FindingAddressSpoofed || f.Kind == verdict.FindingMACCloned) {
			return path + ".Spoof"
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				if found := missing(v.Field(i), path+"."+f.Name); found != "" {
					return found
				}
			}
		}
	default: // plain values
	}
	return ""
}
