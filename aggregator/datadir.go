package aggregator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Files of a data directory.
const (
	acknowledgementsFile = "acknowledgements.json"
	temporaryFile        = acknowledgementsFile + ".tmp"
	lockFile             = "lock"
)

// fileVersion is that of the format of acknowledgementsFile.
const fileVersion = 1

// dataDir is where an aggregator keeps what agents cannot tell it again. One
// without a path keeps nothing.
type dataDir struct {
	path string
	lock *os.File
	// mu is held while something is written, and taken before the store's.
	mu     sync.Mutex
	closed bool
}

// openDataDir takes a directory for this process, and makes it where there is none.
// Nobody else may use it until it is closed.
func openDataDir(path string) (*dataDir, error) {
	if path == "" {
		return &dataDir{}, nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w: name one that can be written with --data-dir", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w: name one that can be written with --data-dir", err)
	}
	d := &dataDir{path: path, lock: lock}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("lock data directory %s: another ipwitness uses it: stop that one, or give each a --data-dir of its own", path)
		return nil, errors.Join(err, d.close())
	} else if err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w: name one on a file system that has locks", path, err), d.close())
	}
	if err := d.writable(); err != nil {
		return nil, errors.Join(fmt.Errorf("write to data directory: %w: make room, or name another one with --data-dir", err), d.close())
	}
	return d, nil
}

// writable tries whether a file can be written and renamed.
func (d *dataDir) writable() error {
	probe := filepath.Join(d.path, lockFile+".tmp")
	if err := writeFile(probe, []byte("ipwitness\n")); err != nil {
		return err
	}
	return os.Remove(probe)
}

// close gives the directory up; nothing is written any more.
func (d *dataDir) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.path == "" {
		return nil
	}
	d.closed = true
	return d.lock.Close()
}

// keptFile is acknowledgementsFile.
type keptFile struct {
	Version          int    `json:"version"`
	Acknowledgements []kept `json:"acknowledgements"`
}

// kept is one acknowledgement.
type kept struct {
	Conflict       string     `json:"conflict"`
	Address        netip.Addr `json:"address"`
	Reason         string     `json:"reason"`
	AcknowledgedAt time.Time  `json:"acknowledgedAt"`
	AcknowledgedBy string     `json:"acknowledgedBy,omitempty"`
	ExpiresAt      time.Time  `json:"expiresAt"`
	// Owners are those that it was given for.
	Owners []string `json:"owners"`
}

// load reads the acknowledgements, by the ids of their conflicts.
func (d *dataDir) load() (map[string]*acknowledgement, error) {
	if d.path == "" {
		return nil, nil
	}
	name := filepath.Join(d.path, acknowledgementsFile)
	raw, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read acknowledgements: %w", err)
	}
	damaged := func(err error) error {
		return fmt.Errorf("read acknowledgements: %s is damaged (%w): mend it, or move it away to begin without acknowledgements", name, err)
	}
	var file keptFile
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, damaged(err)
	}
	switch {
	case file.Version < 1:
		return nil, damaged(errors.New("it has no version"))
	case file.Version > fileVersion:
		return nil, fmt.Errorf("read acknowledgements: %s is of version %d, of a newer ipwitness: run that one, or move the file away",
			name, file.Version)
	}
	found := make(map[string]*acknowledgement)
	for _, k := range file.Acknowledgements {
		if k.Conflict == "" || k.Reason == "" || k.ExpiresAt.IsZero() || !k.Address.IsValid() {
			return nil, damaged(errors.New("an entry is not complete"))
		}
		found[k.Conflict] = &acknowledgement{
			proto: &pb.Acknowledgement{
				Reason: k.Reason, AcknowledgedAt: timestamppb.New(k.AcknowledgedAt), AcknowledgedBy: k.AcknowledgedBy, ExpiresAt: timestamppb.New(k.ExpiresAt),
			},
			address: k.Address, until: verdict.At(k.ExpiresAt), owners: k.Owners,
		}
	}
	return found, nil
}

// save replaces what is kept. It is called with mu held. When it gives nil, a
// power failure changes nothing any more.
func (d *dataDir) save(acknowledged map[string]*acknowledgement) error {
	if d.path == "" {
		return nil
	}
	if d.closed {
		return errors.New("the aggregator is stopping")
	}
	file := keptFile{Version: fileVersion, Acknowledgements: make([]kept, 0, len(acknowledged))}
	for id, ack := range acknowledged {
		file.Acknowledgements = append(file.Acknowledgements, kept{
			Conflict: id, Address: ack.address, Reason: ack.proto.GetReason(), AcknowledgedAt: ack.proto.GetAcknowledgedAt().AsTime(),
			AcknowledgedBy: ack.proto.GetAcknowledgedBy(),
			ExpiresAt:      ack.proto.GetExpiresAt().AsTime(), Owners: ack.owners,
		})
	}
	slices.SortFunc(file.Acknowledgements, func(a, b kept) int { return strings.Compare(a.Conflict, b.Conflict) })
	raw, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(d.path, temporaryFile)
	if err := writeFile(temporary, append(raw, '\n')); err != nil {
		return err
	}
	if err := os.Rename(temporary, filepath.Join(d.path, acknowledgementsFile)); err != nil {
		return err
	}
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// writeFile writes a file that is on the disk when it gives nil.
func writeFile(name string, raw []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
