package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Version is a containerd that is installed here.
type Version struct {
	// Name is debian, or 2.
	Name string
	// Bin is for Options.
	Bin string
	// Missing says why it cannot be used.
	Missing error
}

// Versions are Debian's containerd, which has no stream of events (1.6), and the
// one of bin/containerd, which has (2).
func Versions() []Version {
	debian := Version{Name: "debian"}
	for _, program := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			debian.Missing = fmt.Errorf("needs containerd and runc (Debian: apt-get install containerd runc): %w", err)
		}
	}
	newest := Version{Name: "2", Missing: debian.Missing} // runc
	if newest.Missing == nil {
		newest.Bin, newest.Missing = built()
	}
	return []Version{debian, newest}
}

// built finds the directory of the containerd that make builds:
// IPWITNESS_CONTAINERD_BIN, or bin/containerd of the repository that the working
// directory is in.
func built() (string, error) {
	if dir := os.Getenv("IPWITNESS_CONTAINERD_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		bin := filepath.Join(dir, "bin/containerd")
		if _, err := os.Stat(filepath.Join(bin, "containerd")); err == nil {
			return bin, nil
		}
	}
	return "", errors.New("no containerd in bin/containerd: run 'make containerd', or set IPWITNESS_CONTAINERD_BIN")
}
