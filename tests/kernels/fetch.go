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

// unpacked gives the newest kernel of a series that is under dir. Where there is
// none it gets the package that apt has, and unpacks what we need of it: nothing
// is installed.
func unpacked(dir, series string) (*kernel, error) {
	root := filepath.Join(dir, series)
	if images, _ := filepath.Glob(root + "/boot/vmlinuz-*"); len(images) == 0 {
		deb, err := fetch(dir, series)
		if err != nil {
			return nil, fmt.Errorf("no package linux-image-%s.*-amd64 to be had: %w\n"+
				"Any of Debian's will do: put one (its .deb) into %s, and run this again", series, err, dir)
		}
		// Into a directory beside it first: an unpacking cut short is none.
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

// fetch finds the newest package of a series in dir, and downloads it where
// there is none.
func fetch(dir, series string) (string, error) {
	if deb := newest(dir, series); deb != "" {
		return deb, nil
	}
	err := download(dir, series)
	if err != nil {
		// The lists of packages may be old, or empty as in a new container. That of some
		// other source of packages may be out of reach.
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

// download gets the newest package of a series that apt knows.
func download(dir, series string) error {
	out, err := exec.Command("apt-cache", "pkgnames", "linux-image-"+series+".").Output()
	if err != nil {
		return fmt.Errorf("ask apt-cache: %w", err)
	}
	// Not those for clouds or with PREEMPT_RT, nor those without a signature.
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

// newest gives the package of a series that is in dir; nothing for none.
func newest(dir, series string) string {
	debs, _ := filepath.Glob(filepath.Join(dir, "linux-image-"+series+".*-amd64_*.deb"))
	if len(debs) == 0 {
		return ""
	}
	return debs[len(debs)-1]
}

// sh runs a script of bash.
func sh(script string, args ...string) error {
	cmd := exec.Command("bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// moduleName writes the name of a module as the kernel does.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// load calls add with a module and before it with those that it needs. What
// there is no file of is taken to be built in: a test says if it is missing.
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
