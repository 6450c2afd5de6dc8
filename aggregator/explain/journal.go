package explain

import (
	"fmt"
	"time"
)

// JournalInMemory returns the problem that the journal is in memory.
func JournalInMemory(dir string, err error) string {
	return fmt.Sprintf("the journal is in memory only and ends with this process: %s: make %s writable, or use another --data-dir", err, dir)
}

// JournalSetAside returns the problem that the journal could not be read, or has damaged records, and has
// another name now.
func JournalSetAside(at time.Time, path string, damaged bool, err error) string {
	if damaged {
		return fmt.Sprintf("the history before %s is not available: the journal was damaged and is now %s: %s: check the disk; "+
			"delete the directory, or keep it for a bug report", rfc3339(at), path, err)
	}
	return fmt.Sprintf("the history before %s is not available: the journal could not be read and is now %s: %s: "+
		"delete it, or keep it for a bug report", rfc3339(at), path, err)
}

// JournalOfNewerVersion returns the problem that a newer version of ipwitness wrote the journal, which has
// another name now.
func JournalOfNewerVersion(at time.Time, path string, err error) string {
	return fmt.Sprintf("the history before %s is not available: the journal could not be read and is now %s: %s: "+
		"delete it, or keep it for that version", rfc3339(at), path, err)
}

// JournalNotWritten returns the problem that the journal cannot be written now.
func JournalNotWritten(dir string, err error) string {
	return fmt.Sprintf("the journal cannot be written, so the history will have a gap: %s: free space in %s", err, dir)
}

// JournalFailed returns the problem that the journal cannot continue.
func JournalFailed(err error) string {
	return fmt.Sprintf("the journal has failed, so nothing is recorded until the aggregator is restarted: %s", err)
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339) }
