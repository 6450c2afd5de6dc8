package main

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tree is a directory with the contents of an initramfs.
type tree struct{ dir string }

// add adds a file or a directory, and the directories above it.
func (t tree) add(name string, mode fs.FileMode, data []byte) error {
	path := filepath.Join(t.dir, name)
	if mode.IsDir() {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// pack writes the tree as an initramfs.
func (t tree) pack(file string) error {
	return sh(`(cd "$1" && find . | busybox cpio -o -H newc) >"$2"`, t.dir, file)
}

// program adds a program of this machine and its shared libraries.
func (t tree) program(as, file string) error {
	if err := t.file(as, file); err != nil {
		return err
	}
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	defer func() { _ = f.Close() }()
	if f.Section(".interp") == nil {
		return nil // statically linked
	}
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			if err := t.file(word, word); err != nil {
				return err
			}
		}
	}
	return nil
}

// file adds a file of this machine.
func (t tree) file(as, file string) error {
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return err
	}
	return t.add(as, 0o755, data)
}
