// Package record reads files that tests write for pages of the documentation.
package record

import (
	"fmt"
	"os"
	"strings"
)

// A Record is the content of a file: lines of values, each with its name, an empty line, and a text.
type Record struct {
	Values map[string]string
	Text   string
}

// Read reads the file of a record.
func Read(file string) (Record, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Record{}, err
	}
	head, text, ok := strings.Cut(string(data), "\n\n")
	if !ok {
		return Record{}, fmt.Errorf("%s has no empty line", file)
	}
	r := Record{Values: map[string]string{}, Text: text}
	for line := range strings.Lines(head) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		r.Values[name] = value
	}
	return r, nil
}
