package workload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestStatusOfAProcessWithAnyName(t *testing.T) {
	const rest = " S 7 1 1 0 -1 4194304 84 0 0 0 0 0 0 0 20 0 1 0 12345 2314240 128 18446744073709551615\n"
	for _, name := range []string{"nginx", "a b", "a) S 99 (b", "(sd-pam)", ")", "", "a\nb", "runc:[2:INIT]"} {
		got, err := parseStat("42 (" + name + ")" + rest)
		if want := (Process{PID: 42, Parent: 7, Name: name, Start: 12345}); err != nil || got != want {
			t.Errorf("status of %q: got %+v and error %v, want %+v", name, got, err, want)
		}
	}
	if got, err := parseStat("42 (nginx)" + strings.Replace(rest, "S", "Z", 1)); err != nil || !got.Ended {
		t.Errorf("zombie: got %+v and error %v, want that it has ended", got, err)
	}
	for _, junk := range []string{"", "42", "42 (", "42 )(" + rest, "42 (a) S 7", "(a)" + rest, "x (a)" + rest, "42 (a) S x" + rest} {
		if got, err := parseStat(junk); err == nil {
			t.Errorf("status %q: got %+v, want an error", junk, got)
		}
	}
	fields := strings.Fields(rest)
	if got, err := parseStat("42 (a) " + strings.Join(fields[:20], " ")); err != nil || got.Start != 12345 {
		t.Errorf("status that ends with the start time: got %+v and error %v", got, err)
	}
	if got, err := parseStat("42 (a) " + strings.Join(fields[:19], " ")); err == nil {
		t.Errorf("status without the start time: got %+v, want an error", got)
	}
	if got, err := parseStat("42 (\xff)" + rest); err != nil || got.Name != "\uFFFD" {
		t.Errorf("name that is not UTF-8: got %q and error %v", got.Name, err)
	}
}

func TestProcessesAreReadFromTheirDirectories(t *testing.T) {
	p := agenttest.NewTree(t)
	p.Put(7, 1, "nginx", 99, 4026531840, "/docker/"+agenttest.InnerID)
	d := ProcDir(p.Dir)
	if got, err := d.Process(7); err != nil || got != (Process{PID: 7, Parent: 1, Name: "nginx", Start: 99}) {
		t.Errorf("process: got %+v and error %v", got, err)
	}
	if got, err := d.Netns(7); err != nil || got != 4026531840 {
		t.Errorf("network namespace: got %d and error %v", got, err)
	}
	if got := d.Container(7); got.ID != agenttest.InnerID {
		t.Errorf("container: got %+v", got)
	}
	p.End(7)
	if got, err := d.Process(7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process that is gone: got %+v and error %v", got, err)
	}
	if got, err := d.Netns(7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("network namespace of a process that is gone: got %d and error %v", got, err)
	}
	if got := d.Container(7); got != (Container{}) {
		t.Errorf("container of a process that is gone: got %+v, want none", got)
	}
}

func TestTimeSinceBootIsTheUptime(t *testing.T) {
	uptime := func() uint64 {
		data, err := os.ReadFile("/proc/uptime")
		if err != nil {
			t.Fatal(err)
		}
		var seconds, hundredths uint64
		if _, err := fmt.Sscanf(string(data), "%d.%d", &seconds, &hundredths); err != nil {
			t.Fatal(err)
		}
		return seconds*TicksPerSecond + hundredths
	}
	before := uptime()
	got := BootTicks()
	if after := uptime(); got < before || got > after+1 {
		t.Errorf("ticks since boot: got %d, want %d to %d", got, before, after)
	}
}
