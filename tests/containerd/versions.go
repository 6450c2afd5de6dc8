package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Version is an installed containerd.
type Version struct {
	// Name is debian, or 2.
	Name string
	// Bin is the value for Options.
	Bin string
	// Missing is the reason why it cannot be used.
	Missing error
}

// Versions returns Debian's containerd, which has no event stream (1.6), and the one in
// bin/containerd, which has one (2).
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

// built returns the directory of the containerd that make builds: IPWITNESS_CONTAINERD_BIN, or
// bin/containerd of the repository that contains the working directory.
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
