package access

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// shortestToken is the minimum length of a token, so that it cannot be guessed.
const shortestToken = 16

// tokens has the bearer tokens of a file, which is read again when it changes. Only their
// hashes are stored.
type tokens struct {
	name string
	log  *slog.Logger

	mu      sync.Mutex
	info    fs.FileInfo
	callers map[[sha256.Size]byte]Caller
	logged  string
}

func openTokens(name string, log *slog.Logger) (t *tokens, err error) {
	t = &tokens{name: name, log: log}
	t.callers, t.info, err = t.read()
	return t, err
}

// find returns the caller of a token; nil for a token that is not in the file.
func (t *tokens) find(token string) *Caller {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := os.Stat(t.name)
	if err != nil || !os.SameFile(info, t.info) || !info.ModTime().Equal(t.info.ModTime()) || info.Size() != t.info.Size() {
		callers, info, err := t.read()
		switch {
		case err == nil:
			t.callers, t.info, t.logged = callers, info, ""
			t.log.Info("reloaded the changed tokens file", "file", t.name, "tokens", len(callers))
		case t.logged != err.Error():
			t.logged = err.Error()
			t.log.Warn("cannot use the changed tokens file: keeping the previous tokens", "error", err)
		}
	}
	// A lookup by hash does not leak through its timing how much of a token is right.
	c, ok := t.callers[sha256.Sum256([]byte(token))]
	if !ok {
		return nil
	}
	return &c
}

// read reads the file. Errors name lines, never tokens.
func (t *tokens) read() (map[[sha256.Size]byte]Caller, fs.FileInfo, error) {
	info, err := os.Stat(t.name)
	if err != nil {
		return nil, nil, fmt.Errorf("read --tokens: %w", err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, nil, fmt.Errorf("every user of this host can access %s: run 'chmod o= %s', or set defaultMode 0440 for a Secret in Kubernetes", t.name, t.name)
	}
	raw, err := os.ReadFile(t.name)
	if err != nil {
		return nil, nil, fmt.Errorf("read --tokens: %w", err)
	}
	callers := map[[sha256.Size]byte]Caller{}
	for i, line := range strings.Split(string(raw), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		failed := func(format string, args ...any) (map[[sha256.Size]byte]Caller, fs.FileInfo, error) {
			return nil, nil, fmt.Errorf("%s, line %d: %w", t.name, i+1, fmt.Errorf(format, args...))
		}
		switch {
		case len(fields) != 3:
			return failed("want TOKEN ROLE NAME")
		case len(fields[0]) < shortestToken:
			return failed("the token has fewer than %d characters: make one with 'openssl rand -hex 32'", shortestToken)
		}
		c := Caller{name: fields[2]}
		switch fields[1] {
		case "agent":
			c.agent, c.node = true, fields[2]
		case "reader":
			c.reader = true
		case "operator":
			c.reader, c.operator = true, true
		default:
			return failed("unknown role %q: use agent, reader or operator", fields[1])
		}
		sum := sha256.Sum256([]byte(fields[0]))
		if _, twice := callers[sum]; twice {
			return failed("duplicate token")
		}
		callers[sum] = c
	}
	return callers, info, nil
}
