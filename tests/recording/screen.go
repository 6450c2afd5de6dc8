package recording

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// line is one line of the terminal, and when it was begun.
type line struct {
	at    time.Duration
	spans []span
}

// span is a text in one style.
type span struct {
	style style
	text  string
}

// style is the set of attributes that an escape sequence (SGR, ECMA-48) has set.
type style struct {
	bold, dim bool
	colour    string // class of the SVG, or empty
}

func (l line) text() string {
	var b strings.Builder
	for _, s := range l.spans {
		b.WriteString(s.text)
	}
	return b.String()
}

// colours are the classes of the foreground colours that programs use. Bright colours are shown
// like the others.
var colours = map[string]string{
	"31": "red", "32": "green", "33": "yellow", "34": "blue", "35": "magenta", "36": "cyan",
	"91": "red", "92": "green", "93": "yellow", "94": "blue", "95": "magenta", "96": "cyan",
}

// apply returns the style after a sequence with the given parameters.
func (s style) apply(parameters string) (style, error) {
	for p := range strings.SplitSeq(parameters, ";") {
		switch {
		case p == "" || p == "0":
			s = style{}
		case p == "1":
			s.bold = true
		case p == "2" || p == "90":
			s.dim = true
		case p == "22":
			s.bold, s.dim = false, false
		case p == "39" || p == "37":
			s.colour = ""
		case colours[p] != "":
			s.colour = colours[p]
		default:
			return s, fmt.Errorf("attribute %s is not supported", p)
		}
	}
	return s, nil
}

var sgr = regexp.MustCompile(`^\x1b\[([0-9;]*)m`)

// lines returns what the terminal shows, with lines that are wrapped at its width. It understands
// lines and their colours; a program that moves the cursor is an error.
func (c Cast) lines() ([]line, error) {
	var all []line
	var now line
	var current style
	width, open := 0, false
	end := func() {
		all, now, width, open = append(all, now), line{}, 0, false
	}
	for _, o := range c.Outputs {
		for text := strings.ReplaceAll(o.Text, "\r\n", "\n"); text != ""; {
			if !open {
				now.at, open = o.At, true
			}
			if m := sgr.FindStringSubmatch(text); m != nil {
				var err error
				if current, err = current.apply(m[1]); err != nil {
					return nil, fmt.Errorf("show recording: %w", err)
				}
				text = text[len(m[0]):]
				continue
			}
			r, size := utf8.DecodeRuneInString(text)
			switch {
			case r == '\n':
				end()
			case r < ' ' || r == utf8.RuneError:
				return nil, fmt.Errorf("show recording: %.20q is not supported: only lines and colours are", text)
			default:
				if width == c.Columns {
					end()
					now.at, open = o.At, true
				}
				if n := len(now.spans); n == 0 || now.spans[n-1].style != current {
					now.spans = append(now.spans, span{style: current})
				}
				now.spans[len(now.spans)-1].text += string(r)
				width++
			}
			text = text[size:]
		}
	}
	if len(now.spans) > 0 {
		end()
	}
	return all, nil
}

// The pace of the animation: a line at a time, so that eyes can follow, and no longer pauses than
// one needs to read.
const (
	lineTime = 80 * time.Millisecond
	maxPause = 4 * time.Second
)

// paced returns the lines with the times at which they are shown.
func paced(lines []line) []line {
	out := make([]line, len(lines))
	var before, shown time.Duration
	for i, l := range lines {
		shown += min(max(l.at-before, lineTime), maxPause)
		before = l.at
		out[i] = line{shown, l.spans}
	}
	return out
}
