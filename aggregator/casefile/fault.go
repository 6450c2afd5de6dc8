package casefile

import "fmt"

// A fault is an error at one place of a file.
type fault struct {
	path, what string
	// absolute is set if the path begins at the root of the file.
	absolute bool
	// newer is set if the file may have been written by a newer version of ipwitness.
	newer bool
}

func (f *fault) Error() string {
	if f.path == "" {
		return f.what
	}
	return f.path + ": " + f.what
}

func faultf(format string, args ...any) *fault { return &fault{what: fmt.Sprintf(format, args...)} }

// in prepends a step to the path, unless the path is absolute.
func (f *fault) in(step string) *fault {
	if f.absolute {
		return f
	}
	if f.path != "" && f.path[0] != '[' {
		step += "."
	}
	f.path = step + f.path
	return f
}

// asAbsolute makes the path absolute.
func (f *fault) asAbsolute() *fault {
	f.absolute = true
	return f
}

// short returns a value, shortened for an error message.
func short(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "…"
	}
	return string(raw)
}
