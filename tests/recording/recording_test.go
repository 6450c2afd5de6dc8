package recording

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestAProgramSeesATerminal(t *testing.T) {
	cast, err := Record(exec.Command("sh", "-c", `test -t 1 && stty size && printf '\033[1;31mä\033[0m\n'`), 87, 23)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cast.Text()
	if want := "23 87\nä\n"; err != nil || text != want {
		t.Errorf("got %q (%v), want %q", text, err, want)
	}
}

func TestTheFailureOfAProgramIsAnError(t *testing.T) {
	cast, err := Record(exec.Command("sh", "-c", "echo before; exit 3"), 80, 24)
	if _, is := errors.AsType[*exec.ExitError](err); !is {
		t.Errorf("got %v, want the exit code", err)
	}
	if text, _ := cast.Text(); text != "before\n" {
		t.Errorf("got %q, want what was printed before", text)
	}
}

func TestWhatIsReadInPartsIsJoined(t *testing.T) {
	all, err := outputs(iotest.OneByteReader(strings.NewReader("a€b\x1b[1;31mc\r\n")), func() time.Duration { return 0 })
	want := []Output{{0, "a"}, {0, "€"}, {0, "b"}, {0, "\x1b[1;31m"}, {0, "c"}, {0, "\r\n"}}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Errorf("got %q (%v), want %q", all, err, want)
	}
}

func TestARecordingIsReadAsItWasWritten(t *testing.T) {
	want := Cast{Columns: 80, Rows: 24, Title: "a <b>", Outputs: []Output{{0, "x\r\n"}, {1500 * time.Millisecond, "\x1b[1my"}}}
	file, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(file); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	for _, bad := range []string{"", "{", `{"version":1,"width":80,"height":24}`, `{"version":2}`, string(file) + "[1]x"} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("got no error for %q", bad)
		}
	}
}

func TestLinesAreWrappedAndColoured(t *testing.T) {
	c := Cast{Columns: 4, Rows: 2, Outputs: []Output{{time.Second, "abcdef\r\n\x1b[1;33mg"}, {2 * time.Second, "h\x1b[0mi\n\nend"}}}
	got, err := c.lines()
	want := []line{
		{time.Second, []span{{style{}, "abcd"}}},
		{time.Second, []span{{style{}, "ef"}}},
		{time.Second, []span{{style{bold: true, colour: "yellow"}, "gh"}, {style{}, "i"}}},
		{2 * time.Second, nil},
		{2 * time.Second, []span{{style{}, "end"}}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	for _, bad := range []string{"\x1b[2J", "\x1b[48m", "a\rb", "\x07"} {
		if _, err := (Cast{Columns: 80, Outputs: []Output{{0, bad}}}).lines(); err == nil {
			t.Errorf("got no error for %q", bad)
		}
	}
}

func TestLinesAreShownOneAfterTheOtherWithoutLongPauses(t *testing.T) {
	got := paced([]line{{at: 0}, {at: 0}, {at: time.Second}, {at: time.Hour}})
	for i, want := range []time.Duration{lineTime, 2 * lineTime, 2*lineTime + time.Second, 2*lineTime + time.Second + maxPause} {
		if got[i].at != want {
			t.Errorf("line %d: got %s, want %s", i, got[i].at, want)
		}
	}
}

// contents returns the text of an SVG without its markup and style, and the names of its elements.
func contents(t *testing.T, svg []byte) (text string, elements map[string]bool) {
	t.Helper()
	elements = map[string]bool{}
	var b strings.Builder
	inside := ""
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String(), elements
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inside = token.Name.Local
			elements[inside] = true
		case xml.CharData:
			if inside != "style" {
				b.Write(token)
			}
		}
	}
}

func TestAPictureHasTheLinesAsText(t *testing.T) {
	c := Cast{Columns: 20, Rows: 3, Title: "make <demo>", Outputs: []Output{{0, "$ a & b\n\x1b[31m<CONFIRMED>\x1b[0m x\n\nend\n"}}}
	svg, err := c.SVG(Picture{Title: "T", Description: "D", Still: func(l string) bool { return strings.Contains(l, "CONFIRMED") }})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := contents(t, svg)
	for _, want := range []string{"make <demo>", "$ a & b\n", "<CONFIRMED> x\n", "end\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, want %q in it", text, want)
		}
	}
	for _, want := range []string{`<tspan class="red">`, "animation:none;transform:translateY(19px)"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("got %s, want %s in it", svg, want)
		}
	}
	if _, err := (Cast{Columns: 20, Rows: 3}).SVG(Picture{}); err == nil {
		t.Error("got no error for an empty recording")
	}
}

// The picture of the README is that of its recording, and GitHub shows it: it is small, and has no
// script and nothing from elsewhere.
func TestThePictureOfTheDemoIsThatOfItsRecording(t *testing.T) {
	file, err := os.ReadFile("../../docs/images/demo.cast")
	if err != nil {
		t.Fatal(err)
	}
	cast, err := Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := cast.SVG(Demo)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/images/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("docs/images/demo.svg is not the picture of demo.cast: run make update-recording")
	}
	text, elements := contents(t, got)
	if len(got) > 200<<10 {
		t.Errorf("got %d bytes, want 200 KiB at most", len(got))
	}
	for _, name := range []string{"script", "image", "foreignObject", "a", "use"} {
		if elements[name] {
			t.Errorf("got an element %s, which GitHub does not show", name)
		}
	}
	if strings.Contains(string(got), "url(") || strings.Contains(string(got), "@import") {
		t.Error("the picture loads something from elsewhere")
	}
	for _, want := range []string{"ipam-state-lost", "CONFIRMED", "RESOLVED", "What to do:"} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture has no %q", want)
		}
	}
}
