// Package web serves the web page: the built assets, with the headers that protect it.
//
// The page is made of the sources in ui by `make generate-web`, and embedded, so that building the
// program needs only Go. It has no data of its own: its script asks the REST API with the credentials
// of the user, so the files are served to everybody.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

//go:embed dist
var dist embed.FS

// Policy is the Content-Security-Policy of the page: nothing inline, and nothing from or to another
// origin.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// index is the name of the page.
const index = "index.html"

// Site serves the page and its assets.
type Site struct {
	files map[string]file // by path, without a slash at the beginning
}

type file struct {
	plain, gzip []byte
	kind        string // media type
	tag         string // ETag of the plain file; the other one has gzipTag
	cache       string
}

// gzipTag ends the ETag of a compressed file, because two representations must not have one ETag.
const gzipTag = "-gzip"

// New reads the embedded files, and compresses them once.
func New() (*Site, error) {
	s := &Site{files: map[string]file{}}
	built, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, fmt.Errorf("read the web page: %w", err)
	}
	err = fs.WalkDir(built, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(built, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(raw)
		f := file{plain: raw, kind: mediaType(name), tag: hex.EncodeToString(sum[:12]), cache: "no-cache"}
		if name != index { // its name changes with its contents
			f.cache = "public, max-age=31536000, immutable"
		}
		f.gzip, err = compressed(raw)
		s.files[name] = f
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the web page: %w", err)
	}
	return s, nil
}

// mediaType returns the type of a file. The table of the system may lack types or have others.
func mediaType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	default:
		return mime.TypeByExtension(path.Ext(name))
	}
}

func compressed(raw []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Index returns a handler that serves the page to browsers, and other to other clients.
func (s *Site) Index(other http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		if !accepts(r.Header.Values("Accept"), "text/html") {
			other.ServeHTTP(w, r)
			return
		}
		s.serve(w, r, index)
	})
}

// ServeHTTP serves the assets of the page by their paths.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, strings.TrimPrefix(r.URL.Path, "/"))
}

func (s *Site) serve(w http.ResponseWriter, r *http.Request, name string) {
	f, ok := s.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Add("Vary", "Accept-Encoding")
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", f.cache)
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	body, tag := f.plain, f.tag
	if len(f.gzip) < len(f.plain) && accepts(r.Header.Values("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body, tag = f.gzip, f.tag+gzipTag
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// accepts reports whether a header like Accept names a value itself, and does not refuse it (q=0).
// Programs that accept everything (*/*) get what they got before there was a page.
func accepts(header []string, value string) bool {
	return slices.ContainsFunc(header, func(line string) bool {
		for item := range strings.SplitSeq(line, ",") {
			name, parameters, _ := strings.Cut(item, ";")
			if !strings.EqualFold(strings.TrimSpace(name), value) {
				continue
			}
			_, weight, _ := strings.Cut(strings.ReplaceAll(strings.ToLower(parameters), " ", ""), "q=")
			return strings.Trim(weight, "0.") != "" || weight == ""
		}
		return false
	})
}
