package web

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/ipwitness/ipwitness/tests/sim"
)

// violation is what axe-core reports.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML string }
}

// serious returns the serious violations of accessibility that axe-core finds on the page.
func (b *tab) serious() []violation {
	b.t.Helper()
	found := eval[[]violation](b, `axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.slice(0, 3).map(n => ({html: n.html}))})))`)
	return slices.DeleteFunc(found, func(v violation) bool { return v.Impact != "serious" && v.Impact != "critical" })
}

func TestEveryViewIsAccessibleAndKeepsThePolicy(t *testing.T) {
	t.Parallel()
	dir, err := modules()
	if err != nil {
		t.Fatal(err)
	}
	axe, err := os.ReadFile(filepath.Join(dir, "axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	s := calm(t)
	s.accident(t.Context())
	b := newTab(t, s.url, "/")
	b.await("a conflict", card("10.244.0.2", "confirmed"))
	b.do(chromedp.Evaluate(string(axe), nil))
	for _, view := range []struct{ path, ready string }{
		{"/#/", `!!document.querySelector('article.incident .folds .fold')`},
		{"/#/address", `document.querySelectorAll('.ownerrow').length > 10`},
		{"/#/address/10.244.0.2", `document.querySelectorAll('.history rect').length > 2 && !!document.querySelector('.rules') && !!document.querySelector('section[aria-label=Senders]')`},
		{"/#/map/node-12", `document.querySelectorAll('.joins path').length > 0 && document.querySelectorAll('.ownerrow').length > 2`},
		{"/#/ipam", `document.querySelectorAll('tbody tr').length > 3 && (!!document.querySelector('[data-chart]') || (document.querySelector('button.trend')?.click(), false))`},
	} {
		b.open(view.path) // the same document: axe stays
		for _, scheme := range []string{"light", "dark"} {
			b.colours(scheme)
			b.await(view.path, view.ready)
			for _, v := range b.serious() {
				t.Errorf("%s, %s: %s: %s (%s) %v", view.path, scheme, v.Impact, v.ID, v.Help, v.Nodes)
			}
		}
	}
	b.do(chromedp.Evaluate(`document.querySelector('main').append(document.createElement('img'))`, nil))
	if got := b.serious(); len(got) == 0 {
		t.Error("axe does not find an image without a text")
	}

	b.do(chromedp.Evaluate(`(() => { const s = document.createElement('script'); s.textContent = 'window.injected = true'; document.head.append(s); document.body.setAttribute('style', 'display: none') })()`, nil))
	if eval[bool](b, `window.injected === true || getComputedStyle(document.body).display === 'none'`) {
		t.Error("an injected script or style took effect")
	}
	if eval[bool](b, `fetch('http://localhost:1/').then(() => true, () => false)`) {
		t.Error("a request to another origin was answered")
	}
	if got := b.takeMatching("Content Security Policy"); got < 3 {
		t.Errorf("the browser reports %d violations of the policy, want those of a script, a style and a request", got)
	}
	// The check of origins that every tab makes at its end sees such requests.
	b.do(chromedp.Navigate(strings.Replace(s.url, "127.0.0.1", "localhost", 1)))
	if b.takeMatching("another origin") == 0 {
		t.Error("a request to another origin is not noticed")
	}
}

func TestTheKeyboardReachesEverything(t *testing.T) {
	t.Parallel()
	_, b := newPair(t)
	b.do(emulation.SetCPUThrottlingRate(25)) // keys arrive before the page has drawn what the last one changed
	press := func(keys string) { b.do(chromedp.KeyEvent(keys)) }
	press("m")
	b.await("the map", `location.hash === '#/map'`)
	press("?")
	b.await("the help", `document.querySelector('dialog').open`)
	press("\u001b")
	b.await("no help", `!document.querySelector('dialog').open`)
	press("/")
	b.await("the search", `document.activeElement.id === 'search'`)
	b.enter("#search", "127.0.0.1") // Chromium's protocol types the slash into the field, unlike a keyboard
	b.await("the address", `location.hash === '#/address/127.0.0.1'`)
	press("\u001b")
	press("a")
	b.await("the list", `location.hash === '#/address' && document.querySelectorAll('.ownerrow').length > 0`)
	b.do(chromedp.Focus(".ownerlist"))
	press("j")
	b.await("the first row", `document.querySelector('.ownerrow.selected')?.id === 'owner-0'`)
	press("\r")
	b.await("its address", `location.hash.startsWith('#/address/')`)
}

// manyNodes and manyOwners make 50,000 owners.
const manyNodes, manyOwners = 500, 100

func TestFiftyThousandOwnersScrollAndSearch(t *testing.T) {
	h := newHost(t)
	h.serve("aggregator", "--network", "pods=10.0.0.0/8")
	fleet, err := sim.Start(h.Host, "127.0.0.1:9640", sim.Size{Nodes: manyNodes, Owners: manyOwners})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Stop)
	b := newTab(t, h.url, "/")
	b.await("all nodes", fmt.Sprintf(`document.querySelector('.verdict').innerText.includes('on %d of %[1]d nodes')`, manyNodes))

	b.open("/#/address")
	loaded := func(n int) string {
		return fmt.Sprintf(`Number(document.querySelector('[data-loaded]')?.dataset.loaded) >= %d`, n)
	}
	b.await("the first page", loaded(1))
	var worst, sum time.Duration
	steps := 0
	for all := false; !all; steps++ {
		before, had := b.scripting(), eval[int](b, `Number(document.querySelector('[data-loaded]').dataset.loaded)`)
		b.do(chromedp.Evaluate(`(() => { const l = document.querySelector('.ownerlist'); l.scrollTop = l.scrollHeight })()`, nil))
		b.await("the next page", loaded(had+1)+` || document.querySelector('[data-done]').dataset.done === 'true'`)
		took := b.scripting() - before
		worst, sum = max(worst, took), sum+took
		all = eval[bool](b, `document.querySelector('[data-done]').dataset.done === 'true'`)
	}
	t.Logf("to scroll through all owners took %d pages, with %s of scripting for each and %s at most", steps, (sum / time.Duration(steps)).Round(100*time.Microsecond), worst.Round(100*time.Microsecond))
	if got := eval[int](b, `Number(document.querySelector('[data-loaded]').dataset.loaded)`); got < manyNodes*manyOwners {
		t.Errorf("got %d owners, want at least %d", got, manyNodes*manyOwners)
	}
	if got := eval[int](b, `document.querySelectorAll('.ownerrow').length`); got == 0 || got > 100 {
		t.Errorf("got %d rows in the document, want those that are visible", got)
	}
	before := b.scripting()
	b.do(chromedp.Evaluate(`document.querySelector('.ownerlist').scrollTop = 20000 * 34`, nil))
	b.await("a row in the middle", `!!document.querySelector('#owner-20005')`)
	t.Logf("to jump into the middle took %s of scripting", (b.scripting() - before).Round(100*time.Microsecond))

	for query, rows := range map[string]int{"node-77": manyOwners, "default/web-00100-00042": 1, "10.0.12.0/24": manyOwners - 1} {
		before := b.scripting()
		b.enter("#search", query)
		b.await("the owners of "+query, fmt.Sprintf(`document.querySelector('main h1').innerText.includes(%q) && document.querySelector('[data-loaded]')?.dataset.loaded === '%d' && document.querySelector('[data-done]').dataset.done === 'true'`, query, rows))
		t.Logf("to search for %s took %s of scripting, with the keys", query, (b.scripting() - before).Round(100*time.Microsecond))
	}
	b.open("/#/map")
	b.await("the map", fmt.Sprintf(`document.querySelectorAll('.tile').length === %d && document.querySelector('h1').innerText.includes('50,000 owners')`, manyNodes))
	b.await("all of them counted", fmt.Sprintf(`document.querySelector('.segments').innerText.includes('49,500 owners on %d nodes')`, manyNodes))
	if *pictures != "" {
		b.resize(desktop)
		b.picture(filepath.Join(*pictures, "web-map-many.png"))
	}
}
