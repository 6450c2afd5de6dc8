package tests

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/recording"
)

var recordInto = flag.String("recording", "", "record the demo of the README into this directory, which takes half a minute")

// The size of the terminal of the recording: its text must be legible in a README.
const (
	recordedColumns = 100
	recordedRows    = 30
)

// essential matches the parts of the demo's output that are the same in every run: its steps and
// commands, addresses, states, severities, kinds and causes.
var essential = regexp.MustCompile(`^(?:-- |\$ ).*|\b10\.244\.0\.\d+\b|\b(?:CRITICAL|SUSPECTED|CONFIRMED|RESOLVED)\b|\b(?:ipam-state-lost|in-use-unallocated|assigned-twice)\b|No conflicts`)

// essentials returns the different lines of a text, reduced to their essential parts.
func essentials(text string) (all []string) {
	for l := range strings.Lines(text) {
		l = strings.Join(essential.FindAllString(strings.TrimSpace(l), -1), " ")
		if l != "" && !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	slices.Sort(all) // two events at nearly the same time may come in either order
	return all
}

// TestTheRecordingShowsTheDemo runs the demo in a terminal and compares what it prints with the
// recording in the README. With -recording it writes the recording instead.
func TestTheRecordingShowsTheDemo(t *testing.T) {
	pace := "0s"
	if *recordInto != "" {
		pace = "2.5s"
	}
	cmd := demoProgram(t, "-pace", pace)
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", "NO_COLOR=")
	cast, err := recording.Record(cmd, recordedColumns, recordedRows)
	if err != nil {
		text, _ := cast.Text()
		t.Fatalf("%v: %s", err, text)
	}
	cast.Title = "make demo"
	if *recordInto != "" {
		keepRecording(t, cast)
		return
	}
	file, err := os.ReadFile("../docs/images/demo.cast")
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := recording.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	var got [2][]string
	for i, c := range []recording.Cast{cast, recorded} {
		text, err := c.Text()
		if err != nil {
			t.Fatal(err)
		}
		got[i] = essentials(text)
	}
	if !slices.Equal(got[0], got[1]) || len(got[0]) < 20 {
		t.Errorf("the demo prints\n%s\nand the recording in the README has\n%s\nRun make update-recording.", strings.Join(got[0], "\n"), strings.Join(got[1], "\n"))
	}
}

// keepRecording writes the recording and its picture.
func keepRecording(t *testing.T, cast recording.Cast) {
	t.Helper()
	file, err := cast.Encode()
	if err != nil {
		t.Fatal(err)
	}
	// From the file, so that times are rounded as in it.
	if cast, err = recording.Decode(file); err != nil {
		t.Fatal(err)
	}
	picture, err := cast.SVG(recording.Demo)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"demo.cast": file, "demo.svg": picture} {
		if err := os.WriteFile(filepath.Join(*recordInto, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
