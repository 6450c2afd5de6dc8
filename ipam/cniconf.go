package ipam

import (
	"path/filepath"
	"slices"
)

const (
	// MaxConfSize limits the size of a CNI configuration in bytes.
	MaxConfSize = 1 << 20
	// maxConfFiles is larger than the number of files in any directory of CNI configurations.
	maxConfFiles = 256
)

// ConfFiles returns the files in a directory that libcni reads as configurations, in the order in
// which container runtimes read them (ConfFiles in libcni/conf.go). If it returns an error, there may
// be more.
func ConfFiles(host Host, dir string) (files []string, err error) {
	d, _, err := host.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	entries, err := d.ReadDir(maxConfFiles)
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
			if !e.IsDir() {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(files)
	if len(entries) == 0 {
		return nil, nil // the error is io.EOF: the directory is empty
	}
	return files, err
}
