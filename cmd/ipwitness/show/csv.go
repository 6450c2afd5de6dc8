package show

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// writeNames writes the address of each owner, or the id of each other item, once and on its own line.
// The commands accept these as arguments.
func writeNames[T proto.Message](w io.Writer, items []T) error {
	var out strings.Builder
	written := map[string]bool{}
	for _, item := range items {
		name := ""
		switch one := any(item).(type) {
		case *pb.Owner:
			name = one.GetAddress()
		case interface{ GetId() string }:
			name = one.GetId()
		}
		if !written[name] {
			written[name] = true
			out.WriteString(clean(name) + "\n")
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// writeCSV writes items as comma-separated values (RFC 4180), with all columns of their table.
func writeCSV(w io.Writer, items any, marks *Marks) error {
	switch items := items.(type) {
	case []*pb.Owner:
		return csvOf(w, clustered(marked(OwnerColumns(), marks), items), items)
	case []*pb.Conflict:
		return csvOf(w, clustered(ConflictColumns(), items), items)
	case []*pb.Finding:
		return csvOf(w, clustered(FindingColumns(), items), items)
	}
	return fmt.Errorf("there is no table of %T", items)
}

func csvOf[T any](w io.Writer, columns []Column[T], items []T) error {
	var out bytes.Buffer
	lines := csv.NewWriter(&out)
	record := make([]string, len(columns))
	write := func(cell func(c Column[T]) string) {
		for i, c := range columns {
			record[i] = clean(cell(c))
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
