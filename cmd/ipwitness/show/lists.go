package show

import (
	"cmp"
	"slices"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Column is a column of a table, for the lists of top: its cells may have several lines, and items
// can be sorted by it.
type Column[T any] struct {
	Header  string
	Lines   func(item T, now time.Time) []string
	Tone    func(item T) Tone // nil for plain text
	Compare func(a, b T) int
}

// OwnerColumns returns the columns of owners.
func OwnerColumns() []Column[*pb.Owner] { return exported(ownerColumns()) }

// ConflictColumns returns the columns of conflicts.
func ConflictColumns() []Column[*pb.Conflict] { return exported(conflictColumns()) }

// FindingColumns returns the columns of findings.
func FindingColumns() []Column[*pb.Finding] { return exported(findingColumns()) }

// NodeColumns returns the columns of nodes.
func NodeColumns() []Column[*pb.Node] { return exported(append(nodeColumns(), nodeProblems)) }

func exported[T any](columns []column[T]) (out []Column[T]) {
	for _, c := range columns {
		lines := func(item T, now time.Time) []string {
			switch {
			case c.lines != nil:
				return c.lines(item)
			case c.at == nil:
				return []string{c.cell(item, now)}
			case now.IsZero():
				return nil
			}
			return []string{age(c.at(item), now)}
		}
		compare := func(a, b T) int {
			switch {
			case c.header == addressHeader:
				return CompareAddresses(c.cell(a, time.Time{}), c.cell(b, time.Time{}))
			case c.at != nil:
				return CompareTimes(c.at(a), c.at(b))
			}
			return slices.Compare(lines(a, time.Time{}), lines(b, time.Time{}))
		}
		out = append(out, Column[T]{c.header, lines, c.tone, compare})
	}
	return out
}

// CompareUrgency compares conflicts by how urgent they are, and by when they began, the newest first.
func CompareUrgency(a, b *pb.Conflict) int {
	rank := func(c *pb.Conflict) int { return slices.Index(urgency, conflictTone(c)) }
	return cmp.Or(cmp.Compare(rank(a), rank(b)), CompareTimes(b.GetDetectedAt(), a.GetDetectedAt()))
}

// urgency has the tones of conflicts, the most urgent first.
var urgency = []Tone{BadTone, WarnTone, DimTone, GoodTone}
