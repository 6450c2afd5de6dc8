package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func newBackup(sys system) *cobra.Command {
	q := &query{sys: sys}
	cmd := &cobra.Command{
		Use:   "backup DIR [flags]",
		Short: "Copy the history and the acknowledgements of a running aggregator",
		Long: `Copy the data directory of a running aggregator to DIR on this host: the history and
the acknowledgements, as they are at one moment. DIR must be empty or not exist; it
gets this name when the copy is complete.

To restore it, stop the aggregator, and start it with a copy of DIR as --data-dir.`,
		Example: `
  ipwitness backup /backup/ipwitness-$(date +%F)`,
		Args: oneArgument("the DIR to write to", "backup needs the DIR to write to, which must be empty or not exist"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := q.backUp(cmd.Context(), args[0])
			if err == nil {
				_, err = fmt.Fprintf(sys.stdout, "%s has the backup: %s, %d bytes.\n", args[0], show.Count(b.files, "file", "files"), b.bytes)
			}
			return err
		},
	}
	q.addServerFlags(cmd)
	return cmd
}

// backUp writes a backup to a temporary directory beside dir, and renames it when it is complete.
func (q *query) backUp(ctx context.Context, dir string) (b backup, err error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return b, err
	}
	// An empty directory is replaced. It is removed now, because this fails if it could not be replaced later.
	switch err := syscall.Rmdir(path); {
	case err == nil, errors.Is(err, syscall.ENOENT):
	case errors.Is(err, syscall.ENOTDIR):
		return b, fmt.Errorf("%s is not a directory: select one that is empty or does not exist", dir)
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return b, fmt.Errorf("%s is not empty: select a directory that is empty or does not exist", dir)
	case errors.Is(err, syscall.EBUSY):
		return b, fmt.Errorf("%s is a mount point, so a complete backup cannot be renamed to it: select a directory in it", dir)
	default:
		return b, fmt.Errorf("replace the directory %s: %w", dir, err)
	}
	body, err := q.client().open(ctx, http.MethodPost, "/v1/backup", nil, &pb.BackupRequest{})
	if err != nil {
		return b, err
	}
	defer func() { _ = body.Close() }() // opened for reading only
	if b.dir, err = os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".partial-"); err != nil {
		return b, fmt.Errorf("write the backup: %w", err)
	}
	err = errors.Join(b.receive(ctx, q.client(), body), b.close())
	if err == nil {
		err = filepath.WalkDir(b.dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			return syncDir(path)
		})
	}
	if err == nil {
		err = os.Rename(b.dir, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(b.dir))
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("there is no space for the backup: free some, or select another directory (%w)", err)
		}
		err = fmt.Errorf("the backup is not complete, and %s was not written: %w", dir, err)
	}
	return b, err
}

// A backup is a backup that is being written to a directory.
type backup struct {
	dir string
	// name and file are the file that is being written.
	name  string
	file  *os.File
	files int
	bytes int64
}

// receive writes the files of a stream, whose parts are in order. It returns an error unless the stream is complete.
func (b *backup) receive(ctx context.Context, c *client, from io.Reader) error {
	for lines := json.NewDecoder(from); ; {
		var part pb.BackupResponse
		if err := c.next(ctx, lines, &part); err != nil {
			return err
		}
		name := filepath.FromSlash(part.GetName())
		switch {
		case name == "" && int(part.GetFiles()) != b.files:
			return fmt.Errorf("%s sent %d of %d files", c.base, b.files, part.GetFiles())
		case name == "":
			return nil
		case !filepath.IsLocal(name):
			return fmt.Errorf("the server sent the file name %q, which is outside of the backup", name)
		}
		if b.file == nil || b.name != name {
			if err := b.close(); err != nil {
				return err
			}
			path := filepath.Join(b.dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			b.name, b.file = name, f
			b.files++
		}
		n, err := b.file.Write(part.GetData())
		if b.bytes += int64(n); err != nil {
			return err
		}
	}
}

// close completes the file that is being written.
func (b *backup) close() error {
	if b.file == nil {
		return nil
	}
	f := b.file
	b.file = nil
	return errors.Join(f.Sync(), f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
