package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// archive is an initramfs in the making: a cpio of the kind that the kernel
// reads (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	have map[string]bool
}

// add appends a file or a directory, and the directories above it.
func (a *archive) add(name string, mode fs.FileMode, data []byte) {
	name = strings.TrimPrefix(name, "/")
	if a.have[name] || name == "." {
		return
	}
	if a.have == nil {
		a.have = map[string]bool{}
	}
	a.have[name] = true
	if name != trailer {
		a.add(path.Dir(name), fs.ModeDir|0o755, nil)
	}
	typ := uint32(0o100000)
	if mode.IsDir() {
		typ = 0o040000
	}
	fields := []uint32{
		uint32(len(a.have)), typ | uint32(mode.Perm()), 0, 0, 1, 0, uint32(len(data)), 0, 0, 0, 0, uint32(len(name) + 1), 0,
	}
	a.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(a, "%08x", f)
	}
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(data)
	a.pad()
}

const trailer = "TRAILER!!!"

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// program adds a program of this machine, and the shared libraries that it needs.
func (a *archive) program(as, file string) error {
	if err := a.file(as, file); err != nil {
		return err
	}
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	defer func() { _ = f.Close() }()
	if f.Section(".interp") == nil {
		return nil // static
	}
	out, err := exec.Command("ldd", file).Output()
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			if err := a.file(word, word); err != nil {
				return err
			}
		}
	}
	return nil
}

// file adds a file of this machine.
func (a *archive) file(as, file string) error {
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return err
	}
	a.add(as, 0o755, data)
	return nil
}
