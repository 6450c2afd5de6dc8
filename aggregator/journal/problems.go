package journal

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"
)

// A Problem is something that is wrong with the journal.
type Problem struct {
	Kind ProblemKind
	// Path is the data directory or, if the journal was set aside, its new name.
	Path string
	// At is when the problem was found.
	At  time.Time
	Err error
}

// ProblemKind is the kind of a Problem, in the words of explain.Text.
type ProblemKind string

// Kinds of problems.
const (
	// InMemory means that the directory cannot be used, so that the journal is in memory.
	InMemory ProblemKind = "in-memory"
	// Unreadable means that the journal could not be opened, and was set aside.
	Unreadable ProblemKind = "unreadable"
	// Damaged means that damaged records were found, and the journal was set aside.
	Damaged ProblemKind = "damaged"
	// Missing means that records are missing that had been written.
	Missing ProblemKind = "missing"
	// NotWritten means that the journal cannot be written now.
	NotWritten ProblemKind = "not-written"
	// Failed means that the journal cannot continue before its store is opened again.
	Failed ProblemKind = "failed"
)

// Remedy says what to do about a data directory that cannot be used because of an error.
func Remedy(dir string, err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "let the process open more files (ulimit -n, or LimitNOFILE= of systemd)"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space in " + dir
	case errors.Is(err, syscall.EIO):
		return "check the disk of " + dir
	}
	return "make " + dir + " writable, or use another --data-dir"
}

// maxProblems is the largest number of problems that are kept.
const maxProblems = 8

// say adds a problem. The caller holds the lock.
func (j *Journal) say(p Problem) {
	j.problems = append(slices.Clip(j.problems[max(0, len(j.problems)+1-maxProblems):]), p)
}

// Problems returns the problems of the journal, the oldest first. Journals that were set aside since the
// start are among them until they are deleted, and missing records until they would have been dropped for their age.
func (j *Journal) Problems() []Problem {
	j.mu.RLock()
	defer j.mu.RUnlock()
	problems := slices.DeleteFunc(slices.Clone(j.problems), func(p Problem) bool {
		_, err := os.Lstat(p.Path)
		return (p.Kind == Damaged || p.Kind == Unreadable) && errors.Is(err, os.ErrNotExist) ||
			p.Kind == Missing && j.Clock().Sub(p.At) > j.Retention
	})
	if j.store == nil {
		return problems
	}
	if err := cmp.Or(j.store.fs.failure.Load(), j.store.fs.tableFailure.Load()); err != nil {
		problems = append(problems, Problem{NotWritten, j.Dir, j.Clock(), *err})
	}
	if err := j.store.failure.Load(); err != nil {
		problems = append(problems, Problem{Failed, j.Dir, j.Clock(), *err})
	}
	return problems
}
