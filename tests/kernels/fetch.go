package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// kernel is an unpacked kernel package.
type kernel struct {
	release string // 6.1.0-56-amd64
	image   string
	modules map[string]string // files by the names of the modules
}

// unpacked returns the newest kernel of a series under dir. If there is none, it downloads the
// package with apt and unpacks the needed part. It installs nothing.
func unpacked(dir, series string) (*kernel, error) {
	root := filepath.Join(dir, series)
	if images, _ := filepath.Glob(root + "/boot/vmlinuz-*"); len(images) == 0 {
		deb, err := fetch(dir, series)
		if err != nil {
			return nil, fmt.Errorf("no package linux-image-%s.*-amd64 to be had: %w\n"+
				"Any of Debian's will do: put one (its .deb) into %s, and run this again", series, err, dir)
		}
		// Unpack into a temporary directory first, so that an interrupted run leaves no incomplete
		// kernel.
		if err := sh(`rm -rf "$2.new" && mkdir "$2.new" && dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2.new" --wildcards \
			'./boot/vmlinuz-*' './lib/modules/*/kernel/net' './lib/modules/*/kernel/lib' './lib/modules/*/kernel/crypto' \
			'./lib/modules/*/kernel/drivers/net' && rm -rf "$2" && mv "$2.new" "$2"`, deb, root); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", deb, err)
		}
	}
	images, _ := filepath.Glob(root + "/boot/vmlinuz-*")
	if len(images) != 1 {
		return nil, fmt.Errorf("%d kernels in %s/boot, want one: delete %s and run this again", len(images), root, root)
	}
	k := &kernel{image: images[0], modules: map[string]string{}}
	k.release = strings.TrimPrefix(filepath.Base(k.image), "vmlinuz-")
	err := filepath.WalkDir(root+"/lib/modules", func(path string, _ os.DirEntry, err error) error {
		if name, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok {
			k.modules[moduleName(name)] = path
		}
		return err
	})
	return k, err
}

// fetch returns the newest package of a series in dir, and downloads one if there is none.
func fetch(dir, series string) (string, error) {
	if deb := newest(dir, series); deb != "" {
		return deb, nil
	}
	err := download(dir, series)
	if err != nil {
		// The package lists may be old, or empty as in a new container. Ignore errors: an unrelated
		// package source may be unreachable.
		_ = sh("apt-get -qq -o Acquire::Retries=3 update")
		err = download(dir, series)
	}
	if err != nil {
		return "", err
	}
	if deb := newest(dir, series); deb != "" {
		return deb, nil
	}
	return "", errors.New("apt-get downloaded nothing")
}

// download downloads the newest package of a series that apt knows.
func download(dir, series string) error {
	out, err := exec.Command("apt-cache", "pkgnames", "linux-image-"+series+".").Output()
	if err != nil {
		return fmt.Errorf("ask apt-cache: %w", err)
	}
	// Exclude the kernels for clouds, with PREEMPT_RT, or without a signature.
	plain := regexp.MustCompile(`(?m)^linux-image-[0-9.]+(-[0-9]+)?(\+deb[0-9]+)?-amd64$`)
	names := plain.FindAllString(string(out), -1)
	if len(names) == 0 {
		return errors.New("apt-cache knows none")
	}
	err = sh(`cd "$1" && apt-get -qq -o Acquire::Retries=3 download "$(printf '%s\n' "${@:2}" | sort -V | tail -n 1)"`, append([]string{dir}, names...)...)
	if err != nil {
		return fmt.Errorf("apt-get download: %w", err)
	}
	return nil
}

// newest returns the newest package of a series in dir, or an empty string.
func newest(dir, series string) string {
	debs, _ := filepath.Glob(filepath.Join(dir, "linux-image-"+series+".*-amd64_*.deb"))
	if len(debs) == 0 {
		return ""
	}
	return debs[len(debs)-1]
}

// sh runs a bash script.
func sh(script string, args ...string) error {
	cmd := exec.Command("bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// moduleName returns the name of a module in the kernel's spelling.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// load calls add for the dependencies of a module and then for the module. A module without a file
// is assumed to be built in; if it is missing, a test will report that.
func (k *kernel) load(name string, seen map[string]bool, add func(name string, data []byte) error) error {
	name = moduleName(name)
	file, ok := k.modules[name]
	if !ok || seen[name] {
		return nil
	}
	seen[name] = true
	data, err := os.ReadFile(filepath.Clean(file))
	if err == nil && strings.HasSuffix(file, ".xz") {
		cmd := exec.Command("xz", "-dc")
		cmd.Stdin = bytes.NewReader(data)
		data, err = cmd.Output()
	}
	if err != nil {
		return fmt.Errorf("read module %s: %w", name, err)
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read module %s: %w", name, err)
	}
	info, err := f.Section(".modinfo").Data()
	if err != nil {
		return fmt.Errorf("read module %s: %w", name, err)
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		needs, ok := strings.CutPrefix(entry, "depends=")
		if !ok || needs == "" {
			continue
		}
		for need := range strings.SplitSeq(needs, ",") {
			if err := k.load(need, seen, add); err != nil {
				return err
			}
		}
	}
	return add(name, data)
}
