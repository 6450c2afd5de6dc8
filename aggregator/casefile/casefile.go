// Package casefile writes cases to files and reads them. A file contains everything that the
// judgement of one address needs, so that the case can be judged again anywhere.
//
// The package makes no verdicts and no text for people, apart from errors.
package casefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// MaxSize is the largest size of a file in bytes.
const MaxSize = 64 << 20

// The keys at the top of a file, besides those of the tables.
const (
	keyFormat  = "ipwitnessCase"
	keyVersion = "ipwitnessVersion"
	keyPolicy  = "policy"
	keyCase    = "case"
)

// Encode returns the file as JSON. Equal files give equal bytes.
func Encode(f *File) ([]byte, error) {
	e := encoder{}
	policy, c := e.object(f.Policy), e.object(f.Case)
	entries := []entry{{keyFormat, text{line: fmt.Appendf(nil, "%d", Format)}}, {keyVersion, quoted(f.Version)}, {keyPolicy, policy}, {keyCase, c}}
	for i, t := range tables {
		if rows := e.tables[i].rows; len(rows) > 0 {
			entries = append(entries, entry{t.name, object(rows)})
		}
	}
	var out bytes.Buffer
	format(&out, object(entries), "")
	out.WriteByte('\n')
	if out.Len() > MaxSize {
		return nil, fmt.Errorf("write case of %s: %d bytes exceed the limit of %d", f.Case.Address, out.Len(), MaxSize)
	}
	return out.Bytes(), nil
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
	d := decoder{}
	f, err := d.file(data)
	if err != nil {
		return nil, fmt.Errorf("read case: %w", err)
	}
	return f, nil
}

// file decodes a whole file.
func (d *decoder) file(data []byte) (*File, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("more than %d bytes: this is not a case file", MaxSize)
	}
	members, err := parse(data)
	if err != nil {
		return nil, err
	}
	format := 0
	f := &File{Policy: &verdict.Policy{}, Case: &verdict.Case{}}
	for _, part := range []struct {
		key  string
		into any
	}{{keyFormat, &format}, {keyVersion, &f.Version}} {
		if raw, ok := members.take(part.key); ok && json.Unmarshal(raw, part.into) != nil {
			return nil, faultf("invalid value %s", short(raw)).in(part.key)
		}
	}
	switch format {
	case Format:
	case 0:
		return nil, fmt.Errorf("no %q: this is not a case file; write one with `ipwitness explain ADDRESS -o case`", keyFormat)
	default:
		return nil, fmt.Errorf("format %d is not supported, only format %d is: use ipwitness %s, which wrote the file", format, Format, f.Version)
	}
	if err := d.contents(f, members); err != nil {
		if err.newer {
			err.what += "; use ipwitness " + f.Version + ", which wrote the file"
		}
		return nil, err
	}
	return f, nil
}

// contents decodes the tables, the policy and the case.
func (d *decoder) contents(f *File, members *members) *fault {
	policy, hasPolicy := members.take(keyPolicy)
	c, hasCase := members.take(keyCase)
	for _, m := range members.left() {
		if err := d.addTable(m); err != nil {
			return err
		}
	}
	switch {
	case !hasPolicy:
		return faultf("missing").in(keyPolicy)
	case !hasCase:
		return faultf("missing").in(keyCase)
	}
	if err := d.object(policy, f.Policy); err != nil {
		return err.in(keyPolicy)
	}
	if err := d.object(c, f.Case); err != nil {
		return err.in(keyCase)
	}
	if err := consistent(f.Case); err != nil {
		return err.in(keyCase)
	}
	return d.unused()
}
