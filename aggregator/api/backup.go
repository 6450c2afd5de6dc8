package api

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Backup sends the files of the data directory.
func (s *Service) Backup(_ *pb.BackupRequest, stream pb.WitnessService_BackupServer) error {
	if s.Journal == nil {
		return errNoBackup
	}
	late := func() error {
		return status.Errorf(codes.ResourceExhausted, "the backup ended because the client read nothing for %s: make it again", sendWithin)
	}
	return patiently(stream, s.Stopped, errBackupStops, late, func(ctx context.Context, send func(*pb.BackupResponse) error, _ func() error) error {
		files, err := s.Journal.Backup(ctx, func(name string, part []byte) error {
			return send(&pb.BackupResponse{Name: name, Data: slices.Clone(part)})
		})
		if err == nil {
			err = send(&pb.BackupResponse{Files: uint32(files)})
		}
		return errBackup(err)
	})
}

var errBackupStops = status.Error(codes.Unavailable, "the aggregator is stopping: make the backup again when it runs")

var errNoBackup = status.Error(codes.FailedPrecondition,
	"there is nothing to back up, because the history and the acknowledgements are in memory only: set --data-dir to a directory that the aggregator can write to")

// errBackup returns the error of a backup that could not be made.
func errBackup(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, journal.ErrInMemory):
		return errNoBackup
	case errors.Is(err, journal.ErrBackupRuns):
		return status.Errorf(codes.Aborted, "%s: wait until it is complete", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return status.Errorf(codes.ResourceExhausted, "the data directory of the aggregator is full: free space in it, then make the backup again (%s)", err)
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.Errorf(codes.Unavailable, "cannot read the data directory: %s", err)
}
