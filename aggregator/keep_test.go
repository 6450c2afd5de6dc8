package aggregator

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// The files of a data directory.
const (
	acknowledgementsFile = "acknowledgements.json"
	temporaryFile        = acknowledgementsFile + ".tmp"
	lockFile             = "lock"
)

const (
	maxFile        = 32 << 20         // bytes of acknowledgementsFile
	saveAgainAfter = 10 * time.Second // delay before a failed write is repeated
)

// twoPods returns a node with a conflict. threePods returns the same node with one more owner.
func twoPods() *pb.ReportRequest {
	return snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))
}

func threePods() *pb.ReportRequest {
	return snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr), podVeth(4, "c", addr))
}

// killed returns a copy of a data directory as SIGKILL would leave it now.
func killed(t *testing.T, dir string) string {
	t.Helper()
	left := t.TempDir()
	for _, name := range []string{acknowledgementsFile, lockFile} { // the files of the journal change while they are copied
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(left, name), raw, 0o600)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return left
}

// keeps returns the number of acknowledgements in a data directory.
func keeps(t *testing.T, dir string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, acknowledgementsFile))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(raw), `"conflict"`)
}

func TestAnAcknowledgementOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := t.TempDir()
		l := newLab(t, Config{DataDir: first})
		l.dial().send(twoPods()).sync()
		before := l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Minute)

		next := newLab(t, Config{DataDir: killed(t, first)})
		w := next.watchConflicts()
		next.dial().send(twoPods()).sync()
		after := w.next(added)
		next.wantAcknowledged(after, true)
		if after.GetId() != before.GetId() || after.GetAcknowledgement().String() != before.GetAcknowledgement().String() {
			t.Errorf("got %v, want %v", after, before)
		}
		time.Sleep(time.Minute - 2*time.Second)
		next.wantAcknowledged(next.conflict(pb.Conflict_SUSPECTED), true)
		time.Sleep(3 * time.Second)
		next.wantAcknowledged(next.conflict(pb.Conflict_SUSPECTED), false)
	})
}

func TestRestoredAcknowledgementEndsLikeOthers(t *testing.T) {
	for name, test := range map[string]struct {
		after func(l *lab, a *agent)
		wait  time.Duration
	}{
		"an owner that was not there": {func(*lab, *agent) {}, 2 * time.Second},
		"the end of the conflict": {func(_ *lab, a *agent) {
			a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 3, Gone: true}, {Id: 4, Gone: true}}}).sync()
			a.send(podVeth(3, "b", addr)).sync()
		}, 0},
		"withdrawn": {func(l *lab, _ *agent) {
			q := &pb.AcknowledgeConflictRequest{Id: l.conflicts()[0].GetId(), Withdraw: true}
			if _, err := l.client.AcknowledgeConflict(l.ctx, q); err != nil {
				l.Fatal(err)
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				l := newLab(t, Config{DataDir: dir})
				l.dial().send(twoPods()).sync()
				l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
				dir = killed(t, dir)
				l = newLab(t, Config{DataDir: dir})
				a := l.dial().send(threePods()).sync()
				l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), true)
				test.after(l, a)
				time.Sleep(test.wait)
				synctest.Wait()
				l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), false)
				if n := keeps(t, dir); n != 0 {
					t.Errorf("got %d acknowledgements in the file, want none", n)
				}
			})
		})
	}
}

func TestAcknowledgementIsDroppedIfItsConflictIsNotDetectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := newLab(t, Config{DataDir: dir})
		a := l.dial().send(twoPods()).sync()
		l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
		dir = killed(t, dir)
		a.cancel()
		for range 3 { // an aggregator that is killed repeatedly does not lose it
			newLab(t, Config{DataDir: dir})
			time.Sleep(DefaultNodeTimeout - time.Second)
			dir = killed(t, dir)
		}
		if n := keeps(t, dir); n != 1 {
			t.Errorf("got %d acknowledgements in the file, want 1", n)
		}
		l = newLab(t, Config{DataDir: dir})
		time.Sleep(DefaultNodeTimeout + time.Second)
		if n := keeps(t, dir); n != 0 {
			t.Errorf("got %d acknowledgements in the file, want none", n)
		}
		l.dial().send(twoPods()).sync()
		l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), false)
	})
}

func TestAcknowledgementIdentifiesAnExternalDeviceByItsMAC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		external := []byte{6, 6, 6, 6, 6, 6}
		uplinked := func(link string) *pb.ReportRequest {
			m := snapshot(hello("n1", 1), podVeth(2, "a", addr))
			m.Links = append(m.Links, &pb.LinkRecord{Name: link, Kind: pb.LinkRecord_UPLINK})
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
				Namespace: 1, Index: 2, Name: "eth0", Mac: records.MAC(1), Attachment: pb.InterfaceRecord_OWN, Link: link, Uplink: true,
			})
			own := assigned(1, "192.0.2.1")
			seen := &pb.ClaimRecord{
				Address: own.GetAddress(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 2, Mac: external, Link: link,
				FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
			}
			m.Claims = append(m.Claims, own, seen)
			return m
		}
		l := newLab(t, Config{DataDir: dir})
		l.dial().send(uplinked("eth0")).sync()
		time.Sleep(time.Second) // until it is known that no other node was connected before
		l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
		raw, err := os.ReadFile(filepath.Join(dir, acknowledgementsFile))
		if err != nil || !strings.Contains(string(raw), `"06:06:06:06:06:06"`) {
			t.Errorf("got %s, %v, want the owner by its MAC", raw, err)
		}
	})
}

// opened tries to create an aggregator.
func opened(cfg Config) error {
	a, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil {
		err = a.core.acknowledgements.Close()
	}
	return err
}

// wantProblem checks that the aggregator has exactly one problem with these words, or none if
// words is empty.
func (l *lab) wantProblem(words ...string) {
	l.Helper()
	out, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	if err != nil {
		l.Fatal(err)
	}
	got := strings.Join(out.GetProblems(), "\n")
	if len(out.GetProblems()) != min(len(words), 1) {
		l.Errorf("got problems %q, want %q", got, words)
	}
	for _, want := range words {
		if !strings.Contains(got, want) {
			l.Errorf("got problems %q, want %q in them", got, want)
		}
	}
	if got := l.metric("ipwitness_aggregator_problems", ""); got != float64(min(len(words), 1)) {
		l.Errorf("got %v problems in the metrics, want %d", got, min(len(words), 1))
	}
}

func TestAWrongAcknowledgementDoesNotHideTheOthers(t *testing.T) {
	dir := t.TempDir()
	l := newLab(t, Config{DataDir: dir})
	l.dial().send(twoPods()).sync()
	l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
	l.stop()
	at := filepath.Join(dir, acknowledgementsFile)
	raw, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(raw), `"acknowledgements": [`, `"acknowledgements": [{"conflict":7},`, 1)
	if err := os.WriteFile(at, []byte(wrong), 0o600); err != nil || wrong == string(raw) {
		t.Fatalf("got %v, %s", err, raw)
	}
	l = newLab(t, Config{DataDir: dir})
	l.wantProblem("some acknowledgements from before the start are not known", "entry 0", "the file is now "+at+".unusable-", "copy the missing entries into "+at)
	l.dial().send(twoPods()).sync()
	l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), true)
	wait.Until(t, "the others to be saved again", func() bool { _, err := os.Stat(at); return err == nil })
}

// An unusable file does not prevent the start. It is set aside, and duplicates are found and
// acknowledged.
func TestAFileThatCannotBeUsedIsSetAside(t *testing.T) {
	file := func(text string) func(name string) error {
		return func(name string) error { return os.WriteFile(name, []byte(text), 0o600) }
	}
	for name, test := range map[string]struct {
		before func(name string) error
		words  string
	}{
		"half a file":   {file(`{"version":1,"acknowledgements":[{"conf`), "unexpected end"},
		"an empty file": {file(""), "unexpected end"},
		"another file":  {file(`{"colour":"green"}`), "version 0"},
		"half an entry": {file(`{"version":1,"acknowledgements":[{"conflict":"abc"}]}`), "incomplete"},
		"a newer file":  {file(`{"version":2}`), "version 2"},
		"a large file": {func(name string) error {
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, maxFile+1))
		}, "the limit is 33554432"},
		"a FIFO":           {func(name string) error { return unix.Mkfifo(name, 0o600) }, "not a regular file"},
		"a directory":      {func(name string) error { return os.MkdirAll(filepath.Join(name, "inside"), 0o700) }, "not a regular file"},
		"a link to a FIFO": {func(name string) error { return errors.Join(unix.Mkfifo(name+"1", 0o600), os.Symlink(name+"1", name)) }, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := filepath.Join(dir, acknowledgementsFile)
			if err := test.before(at); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(at)
			if err != nil {
				t.Fatal(err)
			}
			// The temporary file of an interrupted write does not prevent it either.
			if err := unix.Mkfifo(filepath.Join(dir, temporaryFile), 0o600); err != nil {
				t.Fatal(err)
			}
			l := newLab(t, Config{DataDir: dir})
			l.wantProblem(at+" is unusable", test.words, "the file is now "+at+".unusable-", "move it back")
			aside, err := filepath.Glob(at + ".unusable-*Z")
			if err != nil || len(aside) != 1 {
				t.Fatalf("got %q, %v, want one file that is set aside", aside, err)
			}
			if after, err := os.Lstat(aside[0]); err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
				t.Errorf("got %v, %v, want it unchanged", after, err)
			}
			a := l.dial().send(twoPods()).sync()
			l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
			l.wantProblem(aside[0])
			if err := os.RemoveAll(aside[0]); err != nil {
				t.Fatal(err)
			}
			l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
			l.wantProblem()
			a.cancel()
			l.stop()
			next := newLab(t, Config{DataDir: dir})
			next.wantProblem()
			next.dial().send(twoPods()).sync()
			next.wantAcknowledged(next.conflict(pb.Conflict_SUSPECTED), true)
		})
	}
}

// An unusable directory does not prevent the start either. Nothing can be acknowledged until it
// is usable.
func TestUnusableDirectoryIsRetried(t *testing.T) {
	for name, test := range map[string]struct {
		before, after func(dir string) error
		words         string
	}{
		"a file in its place": {func(dir string) error {
			return errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600))
		}, os.Remove, "not a directory"},
		"a directory in place of the lock": {func(dir string) error {
			return os.Mkdir(filepath.Join(dir, lockFile), 0o700)
		}, func(dir string) error { return os.Remove(filepath.Join(dir, lockFile)) }, "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				if err := errors.Join(os.Mkdir(dir, 0o700), test.before(dir)); err != nil {
					t.Fatal(err)
				}
				l := newLab(t, Config{DataDir: dir})
				l.dial().send(twoPods()).sync()
				c := l.conflict(pb.Conflict_SUSPECTED)
				q := &pb.AcknowledgeConflictRequest{Id: c.GetId(), Reason: "NET-1", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))}
				if _, err := l.client.AcknowledgeConflict(l.ctx, q); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), test.words) {
					t.Errorf("got %v, want UNAVAILABLE", err)
				}
				problems := func() []string {
					out, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
					if err != nil {
						t.Fatal(err)
					}
					return out.GetProblems()
				}
				if got := problems(); len(got) == 0 || !strings.Contains(got[0], test.words) || !strings.Contains(got[0], dir) {
					t.Errorf("got problems %q, want %q", got, test.words)
				}
				if err := test.after(dir); err != nil {
					t.Fatal(err)
				}
				time.Sleep(saveAgainAfter + time.Second)
				if got := problems(); len(got) != 0 {
					t.Errorf("got problems %q, want none", got)
				}
				l.acknowledge(c.GetId(), time.Hour)
				if n := keeps(t, dir); n != 1 {
					t.Errorf("got %d acknowledgements in the file, want 1", n)
				}
			})
		})
	}
}

// Acknowledgements that cannot be read at the start are used, and kept, as soon as they can be.
func TestAcknowledgementsThatAreReadLater(t *testing.T) {
	file := func(dir string) string { return filepath.Join(dir, acknowledgementsFile) }
	for name, test := range map[string]struct {
		path  func(dir string) string // what cannot be read
		block func(path string) error
		words string
	}{
		"a file in place of the directory": {func(dir string) string { return dir }, func(path string) error { return os.WriteFile(path, nil, 0o600) }, "not a directory"},
		"a directory that is a loop":       {func(dir string) string { return dir }, func(path string) error { return os.Symlink(path, path) }, "file exists"},
		"a file that is a loop":            {file, func(path string) error { return os.Symlink(path, path) }, "too many levels"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				l := newLab(t, Config{DataDir: dir})
				l.dial().send(twoPods()).sync()
				l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
				l.stop()
				path := test.path(dir)
				if err := errors.Join(os.Rename(path, path+"-away"), test.block(path)); err != nil {
					t.Fatal(err)
				}
				l = newLab(t, Config{DataDir: dir})
				l.dial().send(twoPods()).sync()
				time.Sleep(saveAgainAfter + time.Second)
				l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), false)
				out, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
				if got := strings.Join(out.GetProblems(), "\n"); err != nil || !strings.Contains(got, "acknowledgements cannot be saved") || !strings.Contains(got, test.words) {
					t.Errorf("got problems %q, %v, want %q", got, err, test.words)
				}
				if err := errors.Join(os.Remove(path), os.Rename(path+"-away", path)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(saveAgainAfter + time.Second)
				l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), true)
				l.wantProblem()
				if n := keeps(t, dir); n != 1 {
					t.Errorf("got %d acknowledgements in the file, want 1", n)
				}
			})
		})
	}
}

// The default directory is left only if it is not for this process: the causes of other errors end.
func TestTheDefaultDirectoryIsKeptIfItsErrorMayEnd(t *testing.T) {
	for errno, kept := range map[unix.Errno]bool{
		unix.ENOSPC: true, unix.EDQUOT: true, unix.EMFILE: true, unix.ENFILE: true, unix.EIO: true, unix.EINTR: true, unix.ENOMEM: true, unix.ESTALE: true,
		unix.EACCES: false, unix.EPERM: false, unix.EROFS: false, unix.ENOTDIR: false, unix.ENOENT: false,
	} {
		if got := !notForUs(&fs.PathError{Op: "open", Path: DefaultDataDir, Err: errno}); got != kept {
			t.Errorf("%v: got the directory kept %t, want %t", errno, got, kept)
		}
	}
	if notForUs(nil) {
		t.Error("got the directory left without an error")
	}
}

func TestADataDirectoryIsForOneAggregator(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	l := newLab(t, Config{DataDir: dir})
	if err := opened(Config{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "another ipwitness process uses it") {
		t.Errorf("got %v, want that another process uses it", err)
	}
	l.stop()
	if err := opened(Config{DataDir: dir}); err != nil {
		t.Errorf("got %v, want the directory unlocked", err)
	}
}

func TestAcknowledgementThatCannotBeSavedIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		var log bytes.Buffer
		l := newLoggingLab(t, Config{DataDir: dir}, slog.New(slog.NewTextHandler(&log, nil)))
		<-l.core.journal.Opened() // Pebble leaves a goroutine if its directory vanishes meanwhile
		a := l.dial().send(twoPods()).sync()
		c := l.conflict(pb.Conflict_SUSPECTED)
		q := &pb.AcknowledgeConflictRequest{Id: c.GetId(), Reason: "NET-1", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))}
		away := dir + "-away"
		rename := func(from, to string) {
			t.Helper()
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}

		rename(dir, away)
		if _, err := l.client.AcknowledgeConflict(l.ctx, q); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		l.wantAcknowledged(c, false)
		rename(away, dir)
		time.Sleep(saveAgainAfter + time.Second)
		l.wantProblem() // also if nobody tries again
		if _, err := l.client.AcknowledgeConflict(l.ctx, q); err != nil {
			t.Fatal(err)
		}

		rename(dir, away)
		if _, err := l.client.AcknowledgeConflict(l.ctx, &pb.AcknowledgeConflictRequest{Id: c.GetId(), Withdraw: true}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), true)

		a.send(gone(assigned(3, addr))).sync() // resolving ends it even if the disk fails
		synctest.Wait()
		if !strings.Contains(log.String(), "cannot save acknowledgements") {
			t.Errorf("got log %q, want it to report that the end could not be saved", &log)
		}
		rename(away, dir)
		if n := keeps(t, dir); n != 1 {
			t.Fatalf("got %d acknowledgements in the file, want the one that could not be removed", n)
		}
		time.Sleep(saveAgainAfter + time.Second)
		if n := keeps(t, dir); n != 0 {
			t.Errorf("got %d acknowledgements in the file, want none", n)
		}
		if _, err := os.Stat(filepath.Join(dir, temporaryFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v for the temporary file, want that it does not exist", err)
		}
	})
}
