package main

import (
	"cmp"
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
		Args:  argument("the DIR to write to", "backup needs the DIR to write to, which must be empty or not exist"),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, bytes, err := q.backUp(cmd.Context(), args[0])
			if err == nil {
				_, err = fmt.Fprintf(sys.stdout, "%s has the backup: %s, %d bytes.\n", args[0], show.Count(files, "file", "files"), bytes)
			}
			return err
		},
	}
	q.addServerFlags(cmd)
	return cmd
}

// backUp writes a backup to a temporary directory beside dir, and renames it when it is complete.
func (q *query) backUp(ctx context.Context, dir string) (files int, bytes int64, err error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return 0, 0, err
	}
	// An empty directory is replaced. It is removed now, because this fails if it could not be replaced later.
	if err := syscall.Rmdir(path); err != nil && !errors.Is(err, syscall.ENOENT) {
		return 0, 0, fmt.Errorf("%s must be an empty directory that is no mount point, or not exist: %w", dir, err)
	}
	body, err := q.client().open(ctx, http.MethodPost, "/v1/backup", nil, &pb.BackupRequest{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = body.Close() }() // opened for reading only
	parts, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".partial-")
	if err != nil {
		return 0, 0, fmt.Errorf("write the backup: %w", err)
	}
	files, bytes, err = receiveBackup(ctx, q.client(), body, parts)
	if err == nil {
		err = filepath.WalkDir(parts, func(path string, _ os.DirEntry, err error) error { return cmp.Or(err, syncFile(path)) })
	}
	if err == nil {
		err = os.Rename(parts, path)
	}
	if err == nil {
		err = syncFile(filepath.Dir(path))
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(parts))
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("there is no space for the backup: free some, or select another directory (%w)", err)
		}
		err = fmt.Errorf("the backup is not complete, and %s was not written: %w", dir, err)
	}
	return files, bytes, err
}

// receiveBackup writes the files of a stream, whose parts are in order, to dir. It returns an error unless the stream
// is complete.
func receiveBackup(ctx context.Context, c *client, from io.Reader, dir string) (files int, bytes int64, err error) {
	last := ""
	for lines := json.NewDecoder(from); ; {
		var part pb.BackupResponse
		if err := c.next(ctx, lines, &part); err != nil {
			return files, bytes, err
		}
		name, how := filepath.FromSlash(part.GetName()), os.O_WRONLY|os.O_APPEND
		switch {
		case name == "" && int(part.GetFiles()) != files:
			return files, bytes, fmt.Errorf("%s sent %d of %d files", c.base, files, part.GetFiles())
		case name == "":
			return files, bytes, nil
		case !filepath.IsLocal(name):
			return files, bytes, fmt.Errorf("the server sent the file name %q, which is outside of the backup", name)
		}
		path := filepath.Join(dir, name)
		if name != last {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return files, bytes, err
			}
			how |= os.O_CREATE | os.O_EXCL
			last = name
			files++
		}
		f, err := os.OpenFile(path, how, 0o600)
		if err != nil {
			return files, bytes, err
		}
		n, err := f.Write(part.GetData())
		bytes += int64(n)
		if err := errors.Join(err, f.Close()); err != nil {
			return files, bytes, err
		}
	}
}

// syncFile writes a file or a directory to the disk.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
