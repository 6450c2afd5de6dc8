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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// twoPods is a node with a conflict; threePods has one owner of it more.
func twoPods() *pb.ReportRequest {
	return snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))
}

func threePods() *pb.ReportRequest {
	return snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr), podVeth(4, "c", addr))
}

// killed is a data directory as SIGKILL leaves it at this moment.
func killed(t *testing.T, dir string) string {
	t.Helper()
	left := t.TempDir()
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return left
}

// keeps is how many acknowledgements a data directory has.
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

func TestAnAcknowledgementFromBeforeEndsAsOthersDo(t *testing.T) {
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

func TestAnAcknowledgementIsDroppedWhenItsConflictDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := newLab(t, Config{DataDir: dir})
		a := l.dial().send(twoPods()).sync()
		l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
		dir = killed(t, dir)
		a.cancel()
		for range 3 { // it is not forgotten by an aggregator that is killed again and again
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

func TestAnAcknowledgementKnowsADeviceOutsideByItsMAC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		stranger := []byte{6, 6, 6, 6, 6, 6}
		uplinked := func(link string) *pb.ReportRequest {
			m := snapshot(hello("n1", 1), podVeth(2, "a", addr))
			m.Links = append(m.Links, &pb.LinkRecord{Name: link, Kind: pb.LinkRecord_UPLINK})
			m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{
				Namespace: 1, Index: 2, Name: "eth0", Mac: podMAC(1), Attachment: pb.InterfaceRecord_OWN, Link: link, Uplink: true,
			})
			own := assigned(1, "192.0.2.1")
			seen := &pb.ClaimRecord{
				Address: own.GetAddress(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 2, Mac: stranger, Link: link,
				FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
			}
			m.Claims = append(m.Claims, own, seen)
			return m
		}
		l := newLab(t, Config{DataDir: dir})
		l.dial().send(uplinked("eth0")).sync()
		l.acknowledge(l.conflict(pb.Conflict_SUSPECTED).GetId(), time.Hour)
		raw, err := os.ReadFile(filepath.Join(dir, acknowledgementsFile))
		if err != nil || !strings.Contains(string(raw), `"06:06:06:06:06:06"`) {
			t.Errorf("got %s, %v, want the owner by its MAC", raw, err)
		}
	})
}

// opened tries to make an aggregator.
func opened(cfg Config) error {
	a, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil {
		err = a.store.archive.dir.close()
	}
	return err
}

func TestADataDirectoryThatCannotBeUsed(t *testing.T) {
	file := func(text string) func(dir string) error {
		return func(dir string) error {
			return os.WriteFile(filepath.Join(dir, acknowledgementsFile), []byte(text), 0o600)
		}
	}
	for name, test := range map[string]struct {
		before func(dir string) error
		words  []string
	}{
		"half a file":   {file(`{"version":1,"acknowledgements":[{"conf`), []string{"acknowledgements.json is damaged", "unexpected end", "move it away"}},
		"an empty file": {file(""), []string{"is damaged", "move it away"}},
		"another file":  {file(`{"colour":"green"}`), []string{"is damaged", "no version"}},
		"half an entry": {file(`{"version":1,"acknowledgements":[{"conflict":"abc"}]}`), []string{"is damaged", "not complete"}},
		"a newer file":  {file(`{"version":2}`), []string{"version 2", "newer ipwitness"}},
		"a file in its place": {func(dir string) error {
			if err := os.Remove(dir); err != nil {
				return err
			}
			return os.WriteFile(dir, nil, 0o600)
		}, []string{"make data directory", "not a directory", "--data-dir"}},
		"no room for files": {func(dir string) error { return os.Mkdir(filepath.Join(dir, lockFile+".tmp"), 0o700) }, []string{"write to data directory", "--data-dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := test.before(dir); err != nil {
				t.Fatal(err)
			}
			kept, _ := os.ReadFile(filepath.Join(dir, acknowledgementsFile))
			err := opened(Config{DataDir: dir})
			if err == nil {
				t.Fatal("got no error")
			}
			for _, want := range append(test.words, dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			if now, _ := os.ReadFile(filepath.Join(dir, acknowledgementsFile)); !bytes.Equal(now, kept) {
				t.Errorf("got the file changed to %q, want %q", now, kept)
			}
		})
	}
}

func TestADataDirectoryIsForOneAggregator(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	l := newLab(t, Config{DataDir: dir})
	if err := opened(Config{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "another ipwitness uses it") {
		t.Errorf("got %v, want that another one uses it", err)
	}
	l.stop()
	if err := opened(Config{DataDir: dir}); err != nil {
		t.Errorf("got %v, want it free again", err)
	}
}

func TestWhatCannotBeKeptIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		l := newLab(t, Config{DataDir: dir})
		var log bytes.Buffer
		l.store.log = slog.New(slog.NewTextHandler(&log, nil))
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
		if _, err := l.client.AcknowledgeConflict(l.ctx, q); err != nil {
			t.Fatal(err)
		}

		rename(dir, away)
		if _, err := l.client.AcknowledgeConflict(l.ctx, &pb.AcknowledgeConflictRequest{Id: c.GetId(), Withdraw: true}); status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), true)

		a.send(gone(assigned(3, addr))).sync() // that ends it, whatever the disk says
		synctest.Wait()
		if !strings.Contains(log.String(), "cannot keep acknowledgements") {
			t.Errorf("got log %q, want it to say that the end could not be kept", &log)
		}
		rename(away, dir)
		if n := keeps(t, dir); n != 1 {
			t.Fatalf("got %d acknowledgements in the file, want the one that could not be taken out", n)
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
