package agent

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/agent/cri"
)

func TestDoctorSaysWhetherARuntimeIsAsked(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "missing.sock")
	check := func(flag, wantStatus, want string) {
		t.Helper()
		if c := readRuntime(flag); c.Status != wantStatus || !strings.Contains(c.Detail, want) || (c.Status == StatusOK) != (c.Lost == "") {
			t.Errorf("%s: got %+v, want %s and %q", flag, c, wantStatus, want)
		}
	}
	check(cri.Off, StatusOK, "none is asked")
	check(socket, StatusDegraded, "no such file")
}
