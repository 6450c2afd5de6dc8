package web

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxFirstLoad is the budget for everything that the page loads at first, compressed.
const maxFirstLoad = 150_000

func site(t *testing.T) http.Handler {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", s.Index(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "other") })))
	mux.Handle("GET /assets/", s)
	return mux
}

// get sends a request with pairs of header names and values.
func get(h http.Handler, path string, header ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r io.Reader) string {
	t.Helper()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestOnlyBrowsersGetThePage(t *testing.T) {
	h := site(t)
	for accept, page := range map[string]bool{
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
		"Text/HTML;q=0.5":       true,
		"*/*":                   false, // curl
		"":                      false,
		"application/json":      false,
		"text/html;q=0":         false,
		"text/plain, text/*":    false,
		"text/html; q=0.0, a/b": false,
	} {
		res := get(h, "/", "Accept", accept)
		if got := body(t, res.Body) != "other"; got != page {
			t.Errorf("Accept %q: got the page: %t, want %t", accept, got, page)
		}
		if got := res.Header.Get("Vary"); got != "Accept" {
			t.Errorf("Accept %q: got Vary %q, want Accept", accept, got)
		}
	}
}

// assets returns the files that the page names.
func assets(t *testing.T, page string) []string {
	t.Helper()
	var paths []string
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		path, ok := strings.CutPrefix(m[1], "./")
		if !ok {
			t.Errorf("got address %q in the page, want a relative one, so that the page works behind a prefix", m[1])
		}
		paths = append(paths, "/"+path)
	}
	if len(paths) < 3 {
		t.Fatalf("got the assets %q, want a script, a style and an icon", paths)
	}
	return paths
}

func TestEachFileHasTheHeadersThatProtectIt(t *testing.T) {
	h := site(t)
	page := get(h, "/", "Accept", "text/html")
	html := body(t, page.Body)
	responses := map[string]*http.Response{"/": page}
	for _, path := range assets(t, html) {
		responses[path] = get(h, path)
	}
	for path, res := range responses {
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: got %s", path, res.Status)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": Policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: got %s %q, want %q", path, name, got, want)
			}
		}
		if got, want := strings.Contains(res.Header.Get("Cache-Control"), "immutable"), path != "/"; got != want {
			t.Errorf("%s: got Cache-Control %q, want immutable: %t", path, res.Header.Get("Cache-Control"), want)
		}
	}
	if strings.Contains(html, "<style") || regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(html) || strings.Contains(html, " style=") {
		t.Errorf("the page has inline scripts or styles, which the policy forbids:\n%s", html)
	}
}

func TestTheFirstLoadIsSmall(t *testing.T) {
	h := site(t)
	page := get(h, "/", "Accept", "text/html", "Accept-Encoding", "gzip")
	total := len(body(t, page.Body))
	plain := body(t, get(h, "/", "Accept", "text/html").Body)
	for _, path := range assets(t, plain) {
		res := get(h, path, "Accept-Encoding", "br, gzip")
		if res.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s is not compressed", path)
			continue
		}
		raw := body(t, res.Body)
		total += len(raw)
		z, err := gzip.NewReader(strings.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := body(t, z), body(t, get(h, path).Body); got != want {
			t.Errorf("%s is not the same when it is compressed", path)
		}
	}
	if total == 0 || total > maxFirstLoad {
		t.Errorf("got a first load of %d bytes, want at most %d", total, maxFirstLoad)
	}
}

func TestAFileThatHasNotChangedIsNotSentAgain(t *testing.T) {
	h := site(t)
	for _, encoding := range []string{"gzip", "identity"} {
		first := get(h, "/", "Accept", "text/html", "Accept-Encoding", encoding)
		again := get(h, "/", "Accept", "text/html", "Accept-Encoding", encoding, "If-None-Match", first.Header.Get("ETag"))
		if again.StatusCode != http.StatusNotModified {
			t.Errorf("%s: got %s, want 304", encoding, again.Status)
		}
	}
}

func TestOtherPathsDoNotExist(t *testing.T) {
	h := site(t)
	for _, path := range []string{"/assets/", "/assets/none.js", "/assets/../index.html"} {
		if res := get(h, path); res.StatusCode == http.StatusOK {
			t.Errorf("%s: got %s, want an error", path, res.Status)
		}
	}
}

func TestNoScriptWritesHTML(t *testing.T) {
	scripts, err := fs.Glob(dist, "dist/assets/*.js")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("got the scripts %q, %v", scripts, err)
	}
	for _, name := range scripts {
		raw, err := fs.ReadFile(dist, name)
		if err != nil {
			t.Fatal(err)
		}
		// Preact assigns innerHTML for its property dangerouslySetInnerHTML: the sources are checked for that.
		for _, word := range []string{"insertAdjacentHTML", "document.write", "outerHTML", "eval("} {
			if strings.Contains(string(raw), word) {
				t.Errorf("%s has %s: strings from the network must not become HTML", name, word)
			}
		}
	}
	sources := 0
	err = filepath.WalkDir("ui/src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		sources++
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, word := range []string{"dangerouslySetInnerHTML", "innerHTML", "srcdoc"} {
			if strings.Contains(string(raw), word) {
				t.Errorf("%s has %s: strings from the network must not become HTML", path, word)
			}
		}
		return nil
	})
	if err != nil || sources == 0 {
		t.Fatalf("got %d sources in ui/src, %v", sources, err)
	}
}
