package table

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

func TestTextOfAnErrorIsShortAndPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                          "plain",
		"two\nlines":                     "two\nlines",
		"name \xff":                      "name \uFFFD",
		strings.Repeat("x", MaxLength):   strings.Repeat("x", MaxLength),
		strings.Repeat("y", 2*MaxLength): strings.Repeat("y", MaxLength),
		strings.Repeat("z", MaxLength-1) + "\u00e9": strings.Repeat("z", MaxLength-1) + "\uFFFD", // cut within a character
	} {
		if got := Short(errors.New(text)); got != want || !utf8.ValidString(got) {
			t.Errorf("short form of %.20q: got %q, want %q", text, got, want)
		}
	}
	if got := Printable("eth\xff0"); got != "eth\uFFFD0" {
		t.Errorf("printable form: got %q", got)
	}
}

func TestSeveralPokesAreOneUntilItIsTaken(t *testing.T) {
	ch := make(chan struct{}, 1)
	for range 3 {
		Poke(ch)
	}
	<-ch
	if len(ch) != 0 {
		t.Errorf("tokens after one was taken: got %d, want none", len(ch))
	}
	Poke(ch)
	if len(ch) != 1 {
		t.Errorf("tokens after the next poke: got %d, want one", len(ch))
	}
}

func TestErrorsOfAWatcherNeedNoReceiver(t *testing.T) {
	w, lost, err := NewWatcher(0)
	if err != nil {
		t.Fatal(err)
	}
	w.Errors <- unix.EINVAL
	for range 3 {
		w.Errors <- fsnotify.ErrEventOverflow
	}
	if err := <-lost; !errors.Is(err, fsnotify.ErrEventOverflow) {
		t.Errorf("got %v, want the error after which events were lost", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestRegularFileIsReadUpToItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	written := time.Unix(1_000_000_000, 0)
	for _, err := range []error{os.WriteFile(path, []byte("12345"), 0o600), os.Chtimes(path, written, written)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if data, at, err := ReadRegular(path, 0, 5); err != nil || string(data) != "12345" || !at.Equal(written) {
		t.Errorf("file of the largest size: got %q of %s and error %v", data, at, err)
	}
	if data, _, err := ReadRegular(path, 0, 4); err == nil {
		t.Errorf("file that is larger: got %q and no error", data)
	}
	if _, _, err := ReadRegular(path+".missing", 0, 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: got error %v, want that it does not exist", err)
	}
}

func TestOnlySmallRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	fifo, link, large, fine := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "large"), filepath.Join(dir, "fine")
	for _, err := range []error{
		unix.Mkfifo(fifo, 0o600),
		os.Symlink("/dev/zero", link),
		os.WriteFile(large, nil, 0o600),
		os.Truncate(large, 2<<20),
		os.WriteFile(fine, []byte("{}"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, readable := range map[string]bool{fifo: false, link: false, large: false, fine: true} {
		if _, _, err := ReadRegular(path, unix.O_NOFOLLOW, 1<<20); (err == nil) != readable {
			t.Errorf("read %s: got %v", filepath.Base(path), err)
		}
	}
}
