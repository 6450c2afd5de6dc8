package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// settleCharts gives the files in the packaged charts the time of the commit. Helm gives them the time of
// packaging, so that each package would have other bytes.
func (o options) settleCharts() error {
	charts, err := filepath.Glob(filepath.Join(o.dir, "*.tgz"))
	if err != nil {
		return err
	}
	for _, name := range charts {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if text, err = settled(text, time.Unix(o.epoch, 0).UTC()); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// settled returns an archive with another time of all its files.
func settled(archive []byte, at time.Time) ([]byte, error) {
	unzip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	zip.Extra, zip.Comment = unzip.Extra, unzip.Comment // by which Helm knows its packages
	from, to := tar.NewReader(unzip), tar.NewWriter(zip)
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		h.ModTime = at
		if err := to.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(to, from); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(to.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
