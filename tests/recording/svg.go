package recording

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Picture says how a recording is shown.
type Picture struct {
	Title       string // what a screen reader says first
	Description string
	// Still reports whether a line is the last one of the picture that people see who prefer no
	// motion; the last such line counts.
	Still func(line string) bool
}

// Sizes in pixels.
const (
	fontSize   = 14
	charWidth  = 8.45 // the widest of the usual monospaced fonts
	lineHeight = 19
	margin     = 16
	bar        = 34 // the title bar
)

// lastPause is how long the last line stays before the animation begins again.
const lastPause = 6 * time.Second

// The colours have a contrast of at least 4.5:1 to the background (WCAG 2, AA).
const sheet = `
svg{--bg:#0d1117;--fg:#d1d7e0;--dim:#9198a1;--edge:#3d444d;--red:#ff7b72;--green:#56d364;--yellow:#e3b341;--blue:#79c0ff;--magenta:#d2a8ff;--cyan:#76e3ea}
@media(prefers-color-scheme:light){svg{--bg:#ffffff;--fg:#1f2328;--dim:#59636e;--edge:#d1d9e0;--red:#cf222e;--green:#116329;--yellow:#7d4e00;--blue:#0550ae;--magenta:#8250df;--cyan:#1b7c83}}
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;fill:var(--fg);white-space:pre}
.bold{font-weight:700}.dim{fill:var(--dim)}.red{fill:var(--red)}.green{fill:var(--green)}.yellow{fill:var(--yellow)}.blue{fill:var(--blue)}.magenta{fill:var(--magenta)}.cyan{fill:var(--cyan)}
#lines{animation:scroll %.2fs step-end infinite}
@media(prefers-reduced-motion:reduce){#lines{animation:none;transform:translateY(%dpx)}}
`

// SVG renders the recording as a terminal that scrolls. It has no script: one animation moves the
// lines upwards, as they were printed.
func (c Cast) SVG(p Picture) ([]byte, error) {
	lines, err := c.lines()
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("render %s: the recording is empty", c.Title)
	}
	lines = paced(lines)
	total := lines[len(lines)-1].at + lastPause
	// offset moves the lines so that the n-th is the last one of the screen.
	offset := func(n int) int { return (c.Rows - n) * lineHeight }
	still := len(lines)
	for i, l := range lines {
		if p.Still != nil && p.Still(l.text()) {
			still = i + 1
		}
	}
	width, height := int(float64(c.Columns)*charWidth)+2*margin, bar+c.Rows*lineHeight+margin

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title desc">`+"\n", width, height)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n<style>", escape(p.Title), escape(p.Description))
	fmt.Fprintf(&b, sheet, fontSize, total.Seconds(), offset(still))
	fmt.Fprintf(&b, "@keyframes scroll{0%%{transform:translateY(%dpx)}", offset(0))
	for i, l := range lines {
		if i+1 < len(lines) && lines[i+1].at == l.at {
			continue
		}
		fmt.Fprintf(&b, "%.3f%%{transform:translateY(%dpx)}", 100*l.at.Seconds()/total.Seconds(), offset(i+1))
	}
	fmt.Fprintf(&b, "100%%{transform:translateY(%dpx)}}\n</style>\n", offset(len(lines)))
	fmt.Fprintf(&b, `<rect x=".5" y=".5" width="%d" height="%d" rx="8" style="fill:var(--bg);stroke:var(--edge)"/>`+"\n", width-1, height-1)
	for i, colour := range []string{"red", "yellow", "green"} {
		fmt.Fprintf(&b, `<circle class="%s" cx="%d" cy="%d" r="5.5"/>`, colour, margin+6+i*20, bar/2)
	}
	fmt.Fprintf(&b, `<text class="dim" x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", width/2, bar/2+5, escape(c.Title))
	// The inner svg clips the lines that are above or below the screen.
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%d" height="%d"><g id="lines">`+"\n", margin, bar, width-2*margin, c.Rows*lineHeight)
	for i, l := range lines {
		if strings.TrimSpace(l.text()) == "" {
			continue
		}
		fmt.Fprintf(&b, `<text y="%d">`, i*lineHeight+fontSize)
		for _, s := range l.spans {
			b.WriteString(s.svg())
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</g></svg>\n</svg>\n")
	return []byte(b.String()), nil
}

func (s span) svg() string {
	var classes []string
	if s.style.bold {
		classes = append(classes, "bold")
	}
	if s.style.dim {
		classes = append(classes, "dim")
	}
	if s.style.colour != "" {
		classes = append(classes, s.style.colour)
	}
	if len(classes) == 0 {
		return escape(s.text)
	}
	return fmt.Sprintf(`<tspan class="%s">%s</tspan>`, strings.Join(classes, " "), escape(s.text))
}

func escape(text string) string {
	var b strings.Builder
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\ufffd")
	}
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder does not fail
	return b.String()
}
