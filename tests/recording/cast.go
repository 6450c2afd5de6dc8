// Package recording records what a program prints in a terminal, as an asciicast, and renders it as
// an animated SVG for the README.
package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Cast is a recording in the format asciicast v2:
// https://docs.asciinema.org/manual/asciicast/v2/
type Cast struct {
	Columns, Rows int
	Title         string
	Outputs       []Output
}

// Output is what a program printed at a time after its start.
type Output struct {
	At   time.Duration
	Text string
}

// header is the first line of an asciicast.
type header struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title"`
}

// Encode returns the recording as a file.
func (c Cast) Encode() ([]byte, error) {
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(header{2, c.Columns, c.Rows, c.Title}); err != nil {
		return nil, err
	}
	for _, o := range c.Outputs {
		if err := lines.Encode([]any{o.At.Round(time.Millisecond).Seconds(), "o", o.Text}); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// Decode reads a file.
func Decode(file []byte) (Cast, error) {
	lines := bufio.NewScanner(bytes.NewReader(file))
	lines.Buffer(nil, 1<<20)
	var h header
	if !lines.Scan() {
		return Cast{}, errors.New("read asciicast: the file is empty")
	}
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
		return Cast{}, fmt.Errorf("read the header of an asciicast: %w", err)
	}
	if h.Version != 2 || h.Width < 1 || h.Height < 1 {
		return Cast{}, fmt.Errorf("read asciicast: got version %d and a terminal of %d×%d, want version 2", h.Version, h.Width, h.Height)
	}
	c := Cast{Columns: h.Width, Rows: h.Height, Title: h.Title}
	for lines.Scan() {
		var at float64
		var kind, text string
		if err := json.Unmarshal(lines.Bytes(), &[]any{&at, &kind, &text}); err != nil {
			return Cast{}, fmt.Errorf("read an event of an asciicast: %w", err)
		}
		if kind == "o" {
			c.Outputs = append(c.Outputs, Output{time.Duration(at * float64(time.Second)), text})
		}
	}
	return c, lines.Err()
}

// Text returns everything that was printed, as lines without colours.
func (c Cast) Text() (string, error) {
	wide := c
	wide.Columns = 1 << 20 // so that no line is wrapped
	lines, err := wide.lines()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.text() + "\n")
	}
	return b.String(), nil
}

// Record runs a command in a terminal of the given size, and returns what it printed.
func Record(cmd *exec.Cmd, columns, rows int) (Cast, error) {
	terminal, inside, err := Terminal(columns, rows)
	if err != nil {
		return Cast{}, fmt.Errorf("open terminal: %w", err)
	}
	defer func() { _ = terminal.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inside, inside, inside
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	start := time.Now()
	err = cmd.Start()
	_ = inside.Close()
	if err != nil {
		return Cast{}, err
	}
	c := Cast{Columns: columns, Rows: rows}
	c.Outputs, err = outputs(terminal, func() time.Duration { return time.Since(start) })
	return c, errors.Join(err, cmd.Wait())
}

// unfinished is the beginning of a sequence at the end of a text: of a colour, or of the end of a line.
var unfinished = regexp.MustCompile(`(\x1b(\[[0-9;]*)?|\r)$`)

// outputs reads until the last program has closed the terminal.
func outputs(terminal io.Reader, elapsed func() time.Duration) (all []Output, err error) {
	var rest []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := terminal.Read(buf)
		rest = append(rest, buf[:n]...)
		whole := len(rest) - len(unfinished.Find(rest)) // the rest of a sequence comes with the next read
		for whole > 0 && whole > len(rest)-utf8.UTFMax && !utf8.Valid(rest[:whole]) {
			whole-- // or that of a character
		}
		if whole > 0 {
			all = append(all, Output{elapsed(), string(rest[:whole])})
			rest = rest[whole:]
		}
		if errors.Is(err, syscall.EIO) || errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read terminal: %w", err)
		}
	}
}

// Terminal returns both ends of a pseudoterminal (pts(4)): what a program prints into inside can be
// read from terminal, and what is written to terminal is typed.
func Terminal(columns, rows int) (terminal, inside *os.File, err error) {
	if terminal, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(terminal.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
	}
	if err == nil {
		inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		_ = terminal.Close()
		return nil, nil, err
	}
	return terminal, inside, nil
}
