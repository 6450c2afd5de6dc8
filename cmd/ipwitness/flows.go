package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// flowColumns are the names of the columns of a file of flows. Names that are not given are guessed.
type flowColumns struct {
	addresses           []string
	time, node, network string
}

// The names by which columns are guessed, in lower case and without punctuation.
var (
	addressWords = []string{
		"address", "addr", "ip", "ipaddress", "src", "srcip", "srcaddr", "srcaddress", "source", "sourceip", "sourceaddress", "client", "clientip",
		"dst", "dstip", "dstaddr", "dstaddress", "destination", "destinationip", "destinationaddress", "server", "serverip",
	}
	timeWords = []string{"time", "ts", "timestamp", "datetime", "start", "starttime", "flowstart", "eventtime"}
	nodeWords = []string{"node", "nodename"}
)

// settle completes the names of columns with those of a file.
func (c *flowColumns) settle(names []string) error {
	like := func(known []string) (found []string) {
		for _, name := range names {
			plain := strings.Map(func(r rune) rune {
				if unicode.IsLetter(r) || unicode.IsDigit(r) {
					return unicode.ToLower(r)
				}
				return -1
			}, name)
			if slices.Contains(known, plain) {
				found = append(found, name)
			}
		}
		return found
	}
	if len(c.addresses) == 0 {
		if c.addresses = like(addressWords); len(c.addresses) == 0 {
			return fmt.Errorf("no column has the name of an address: name one of %s with --address-column", strings.Join(names, ", "))
		}
	}
	for _, one := range []struct {
		to    *string
		flag  string
		known []string
	}{{&c.time, "time-column", timeWords}, {&c.node, "node-column", nodeWords}} {
		found := like(one.known)
		switch {
		case *one.to != "" || len(found) == 0:
		case len(found) > 1:
			return fmt.Errorf("the columns %s may be meant: name one of them with --%s", strings.Join(found, " and "), one.flag)
		default:
			*one.to = found[0]
		}
	}
	for _, name := range slices.Concat(c.addresses, []string{c.time, c.node, c.network}) {
		if name == "" {
			continue
		}
		switch n := len(slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other != name })); n {
		case 0:
			return fmt.Errorf("there is no column %s: the columns are %s", name, strings.Join(names, ", "))
		case 1:
		default:
			return fmt.Errorf("%d columns have the name %s: rename all but one", n, name)
		}
	}
	for _, name := range c.added() {
		if slices.Contains(names, name) {
			return fmt.Errorf("there is a column %s already: rename it, or resolve the original file", name)
		}
	}
	return nil
}

// added returns the names of the columns that are added, those of an address after those of the one before.
func (c *flowColumns) added() (names []string) {
	for _, address := range c.addresses {
		for _, what := range []string{"_kind", "_owner", "_owner_node", "_certainty"} {
			names = append(names, address+what)
		}
	}
	return names
}

// A flow is a row of a file.
type flow struct {
	flowLine
	// cells are the values of the row by the names of its columns; nil if it is empty, or cannot be parsed.
	cells map[string]string
	// err is set if the row cannot be parsed.
	err error
}

// A flowFormat reads and writes the rows of a file.
type flowFormat interface {
	// read returns the next row, or io.EOF.
	read() (*flow, error)
	// header returns what precedes the rows, with the names of the added columns.
	header(names []string) string
	// with returns a row with values for the added columns; as it is if they are empty.
	with(f *flow, names, values []string) string
}

// maxFlow is the longest line in bytes.
const maxFlow = 1 << 20

// openFlows returns the format of a file, and the names of its columns.
func openFlows(from io.Reader) (format flowFormat, names []string, err error) {
	lines := &flowLines{from: bufio.NewReaderSize(from, maxFlow)}
	var first flowLine
	for strings.TrimSpace(first.text) == "" {
		if first, err = lines.next(); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the file is empty: it must be CSV with a header, or have a JSON object in each line")
			}
			return nil, nil, err
		}
	}
	lines.back = []flowLine{first}
	if !strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(first.text, byteOrderMark)), "{") {
		c := &csvFlows{lines: lines}
		if c.top, err = c.read(); err == nil {
			err = c.top.err
		}
		if err != nil {
			return nil, nil, fmt.Errorf("the header: %w", err)
		}
		return c, c.columns, nil
	}
	f, err := jsonFlows{lines}.read()
	if err == nil {
		err = f.err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the first line: %w", err)
	}
	lines.back = []flowLine{first}
	return jsonFlows{lines}, slices.Sorted(maps.Keys(f.cells)), nil
}

// byteOrderMark is at the beginning of files of some spreadsheets.
const byteOrderMark = "\ufeff"

// A flowLine is a line as it was read, and its line break.
type flowLine struct{ text, end string }

// flowLines reads lines.
type flowLines struct {
	from *bufio.Reader
	back []flowLine // read before
	n    int
}

func (l *flowLines) next() (line flowLine, err error) {
	if len(l.back) > 0 {
		line, l.back = l.back[0], l.back[1:]
		return line, nil
	}
	raw, err := l.from.ReadSlice('\n')
	l.n++
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return line, fmt.Errorf("line %d is longer than %d bytes", l.n, maxFlow)
	case err != nil && (len(raw) == 0 || !errors.Is(err, io.EOF)):
		return line, err
	}
	line.text = strings.TrimRight(string(raw), "\r\n")
	line.end = string(raw[len(line.text):])
	return line, nil
}

// csvFlows reads CSV.
type csvFlows struct {
	lines   *flowLines
	columns []string
	top     *flow // the header
}

// read implements flowFormat. A row has several lines if a value has line breaks.
func (c *csvFlows) read() (*flow, error) {
	const most = 100 // lines of a row
	first, err := c.lines.next()
	f := &flow{flowLine: first}
	if err != nil || first.text == "" {
		return f, err
	}
	var rest []flowLine
	for strings.Count(f.text, `"`)%2 == 1 && len(rest) < most && len(f.text) < maxFlow {
		line, err := c.lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		rest = append(rest, line)
		f.text, f.end = f.text+f.end+line.text, line.end
	}
	cells, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(f.text, byteOrderMark))).Read()
	if err != nil { // a quote that does not end must not take the following rows along
		c.lines.back = append(rest, c.lines.back...)
		if parse := (*csv.ParseError)(nil); errors.As(err, &parse) {
			err = parse.Err
		}
		return &flow{flowLine: first, err: err}, nil
	}
	if c.columns == nil {
		c.columns = cells
	}
	f.cells = make(map[string]string, len(cells))
	for i, name := range c.columns[:min(len(cells), len(c.columns))] {
		f.cells[name] = cells[i]
	}
	if len(cells) != len(c.columns) {
		f.err = fmt.Errorf("it has %d values instead of %d", len(cells), len(c.columns))
		f.text += strings.Repeat(",", max(0, len(c.columns)-len(cells)))
	}
	return f, nil
}

func (c *csvFlows) header(names []string) string { return c.with(c.top, nil, names) }

func (c *csvFlows) with(f *flow, _, values []string) string {
	if len(values) == 0 {
		return f.text + f.end
	}
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	_ = w.Write(values) // writing to a buffer cannot fail
	w.Flush()
	return f.text + "," + strings.TrimSuffix(out.String(), "\n") + f.end
}

// jsonFlows reads a JSON object from each line.
type jsonFlows struct{ lines *flowLines }

func (j jsonFlows) read() (*flow, error) {
	line, err := j.lines.next()
	f := &flow{flowLine: line}
	if err != nil || strings.TrimSpace(line.text) == "" {
		return f, err
	}
	var fields map[string]json.RawMessage
	if f.err = json.Unmarshal([]byte(strings.TrimPrefix(line.text, byteOrderMark)), &fields); fields == nil {
		return f, nil
	}
	f.cells = make(map[string]string, len(fields))
	for name, raw := range fields {
		var word string
		if json.Unmarshal(raw, &word) != nil { // a number, or something that no question takes
			word = string(raw)
		}
		f.cells[name] = word
	}
	return f, nil
}

func (jsonFlows) header([]string) string { return "" }

func (jsonFlows) with(f *flow, names, values []string) string {
	open, object := strings.CutSuffix(strings.TrimRight(f.text, " \t"), "}")
	if f.cells == nil || !object {
		return f.text + f.end
	}
	var out strings.Builder
	out.WriteString(open)
	for i, name := range names {
		if i > 0 || len(f.cells) > 0 {
			out.WriteString(",")
		}
		key, _ := json.Marshal(name) // a text
		value, _ := json.Marshal(values[i])
		fmt.Fprintf(&out, "%s:%s", key, value)
	}
	return out.String() + "}" + f.end
}

// parseFlowTime parses a time in RFC 3339, or a number of seconds, milliseconds, microseconds or nanoseconds since 1970,
// which its digits tell. Seconds may have decimals.
func parseFlowTime(text string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	if text == "" {
		return time.Time{}, errors.New("there is no time")
	}
	n := new(big.Rat)
	approximate, err := strconv.ParseFloat(text, 64)
	known := err == nil && approximate >= 0 && approximate < 1e20 && len(text) < 40
	if known && strings.ContainsAny(text, "eE") { // so that an exponent cannot make a number of a million digits
		text = strconv.FormatFloat(approximate, 'f', -1, 64)
	}
	if known {
		_, known = n.SetString(text)
	}
	if !known {
		return time.Time{}, fmt.Errorf("%q is not a time in RFC 3339, nor a number of seconds, milliseconds, microseconds or nanoseconds since 1970", text)
	}
	unit := int64(time.Second)
	for limit := int64(1e11); unit > 1 && n.Cmp(new(big.Rat).SetInt64(limit)) >= 0; limit *= 1000 {
		unit /= 1000
	}
	n.Mul(n, new(big.Rat).SetInt64(unit))
	ns := new(big.Int).Quo(n.Num(), n.Denom())
	if !ns.IsInt64() {
		return time.Time{}, fmt.Errorf("%q is too far in the future", text)
	}
	return time.Unix(0, ns.Int64()), nil
}
