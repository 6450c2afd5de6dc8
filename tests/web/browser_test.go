package web

import (
	"context"
	"fmt"
	"net/url"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/ipwitness/ipwitness/tests/prometheus"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// chromium is Debian's Chromium.
const chromium = "/usr/bin/chromium"

// tab is a tab of a browser of its own, with an empty profile, that shows the page of one server.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	mu sync.Mutex
	// complaints are errors of scripts and of the console, and requests to other origins.
	complaints []string
	requests   int
}

// size is the size of a window.
type size struct{ width, height int64 }

var (
	desktop = size{1280, 800}
	phone   = size{390, 844}
)

// newTab starts a browser, and shows a path of the page at a URL. When the test ends, it fails for each
// error of the console and each request to another origin.
func newTab(t *testing.T, base, path string) *tab {
	t.Helper()
	// Processes of a browser that has ended may still write to its profile, so t.TempDir does not fit.
	profile, err := os.MkdirTemp("", "ipwitness-chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wait.Until(t, "the profile of the browser to be removed", func() bool { return os.RemoveAll(profile) == nil })
	})
	allocator, stop := chromedp.NewExecAllocator(t.Context(),
		chromedp.ExecPath(chromium), chromedp.UserDataDir(profile), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.WindowSize(int(desktop.width), int(desktop.height)),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(wait.Patience()))
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {})) // it reports events that it does not know
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, url: base}
	chromedp.ListenTarget(ctx, b.listen)
	if err := start(ctx); err != nil {
		t.Fatal(err)
	}
	b.do(network.Enable(), log.Enable(), runtime.Enable(), performance.Enable(),
		browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorDeny))
	b.open(path)
	t.Cleanup(func() {
		for _, c := range b.take() {
			t.Errorf("the browser complains: %s", c)
		}
	})
	return b
}

// window opens another window of the browser, which shows a path of the page.
func (b *tab) window(path string) *tab {
	b.t.Helper()
	var id target.ID
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		id, err = target.CreateTarget("about:blank").WithNewWindow(true).Do(cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser))
		return err
	}))
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithTargetID(id))
	b.t.Cleanup(cancel)
	if err := chromedp.Run(ctx); err != nil { // the window would end with the time limit of its first action
		b.t.Fatal(err)
	}
	other := &tab{t: b.t, ctx: ctx, url: b.url}
	other.open(path)
	return other
}

// start starts the browser of a context. The kernel kills the browser when the thread that started it
// ends, as threads of netlab do, so that thread is kept until the context ends.
func start(ctx context.Context) error {
	started := make(chan error)
	go func() {
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		started <- chromedp.Run(ctx)
		<-ctx.Done()
	}()
	return <-started
}

// listen collects complaints.
func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, "exception: "+e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			b.complaints = append(b.complaints, fmt.Sprintf("console: %s %s", e.Type, e.Args[0].Value))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			b.complaints = append(b.complaints, fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		b.requests++
		u, err := url.Parse(e.Request.URL)
		if err != nil || u.Scheme != "data" && u.Scheme+"://"+u.Host != origin(b.url) {
			b.complaints = append(b.complaints, "request to another origin: "+e.Request.URL)
		}
	}
}

func origin(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// take returns the complaints so far, and forgets them.
func (b *tab) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.complaints
	b.complaints = nil
	return taken
}

// takeMatching forgets the complaints that contain a text, and returns how many there were.
func (b *tab) takeMatching(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.complaints)
	b.complaints = slices.DeleteFunc(b.complaints, func(c string) bool { return strings.Contains(c, text) })
	return before - len(b.complaints)
}

// do runs actions in the browser.
func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := b.try(actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) try(actions ...chromedp.Action) error {
	ctx, cancel := context.WithTimeout(b.ctx, wait.Patience())
	defer cancel()
	return chromedp.Run(ctx, actions...)
}

// open shows a path of the page.
func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.url + path))
}

// eval evaluates an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	var value T
	b.do(chromedp.Evaluate(expression, &value, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return value
}

// await waits until an expression is true in the page, and logs what the page shows if that does not happen.
func (b *tab) await(what, expression string) {
	b.t.Helper()
	err := b.try(chromedp.Poll(expression, nil, chromedp.WithPollingInterval(10*time.Millisecond), chromedp.WithPollingTimeout(0)))
	if err != nil {
		var shown string
		_ = b.try(chromedp.Evaluate(`location.href + '\n' + document.body.innerText`, &shown)) // the error is the one above
		b.t.Fatalf("not %s: %s; the page shows:\n%s", what, err, shown)
	}
}

// text waits until the page shows a text.
func (b *tab) text(text string) {
	b.t.Helper()
	b.await(fmt.Sprintf("the page shows %q", text), fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
}

// enter replaces the text of a field, and presses Enter.
func (b *tab) enter(field, text string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(field), chromedp.Focus(field), chromedp.Evaluate(`document.activeElement.select()`, nil), chromedp.KeyEvent(text+"\r"))
}

// colours makes the page light or dark.
func (b *tab) colours(scheme string) {
	b.t.Helper()
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

// resize gives the window a size.
func (b *tab) resize(to size) {
	b.t.Helper()
	b.do(emulation.SetDeviceMetricsOverride(to.width, to.height, 1, to == phone))
}

// picture writes what the window shows to a file.
func (b *tab) picture(file string) {
	b.t.Helper()
	var png []byte
	b.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		png, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).Do(ctx)
		return err
	}))
	if err := os.WriteFile(file, png, 0o644); err != nil {
		b.t.Fatal(err)
	}
	if err := prometheus.Shrink(file); err != nil {
		b.t.Fatal(err)
	}
}

// scripting returns how long the page has run scripts so far.
func (b *tab) scripting() time.Duration {
	b.t.Helper()
	var total time.Duration
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		metrics, err := performance.GetMetrics().Do(ctx)
		for _, m := range metrics {
			if m.Name == "ScriptDuration" {
				total = time.Duration(m.Value * float64(time.Second))
			}
		}
		return err
	}))
	return total
}
