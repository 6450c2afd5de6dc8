package web

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// calmText begins the verdict if everything is seen and no address is held twice.
const calmText = "No address is held twice"

// card returns an expression for the row or the card of a conflict about an address in a state.
func card(address, state string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('article.conflict, [data-member]')].some(c => (c.dataset.member ?? c.getAttribute('aria-label')) === %q)`, address+", "+state)
}

// newPair returns a host on which ipwitness observes two pods of one bridge, and a tab that shows it.
func newPair(t *testing.T) (*host, *tab) {
	t.Helper()
	h := newHost(t)
	h.bridged("red", "blue")
	h.serve("run", "--node", "node1", "--data-dir", "/var/lib/ipwitness")
	h.sh("ip -n red addr add 10.1.0.1/24 dev eth0", "ip -n blue addr add 10.1.0.2/24 dev eth0")
	b := newTab(t, h.url, "/")
	b.text(calmText)
	return h, b
}

func TestADuplicateAppearsWithoutReloadAndResolves(t *testing.T) {
	t.Parallel()
	h, b := newPair(t)
	b.await("the facts behind the verdict", `/[0-9]+ owners on 1 of 1 node/.test(document.querySelector('.verdict').innerText)`)
	b.do(chromedp.Evaluate(`window.sameDocument = true`, nil))

	h.sh("ip -n red addr add 10.1.0.9/24 dev eth0")
	begin := time.Now()
	h.sh("ip -n blue addr add 10.1.0.9/24 dev eth0")
	b.await("the duplicate", `!!document.querySelector('article.conflict') && document.title.startsWith('(1)')`)
	t.Logf("the duplicate was on the page %s after the command that made it had started", time.Since(begin).Round(time.Millisecond))
	b.await("the duplicate is confirmed", card("10.1.0.9", "confirmed"))
	b.text("1 address is held twice")
	for _, text := range []string{"red", "blue", "WHAT TO DO", "ipwitness explain 10.1.0.9"} {
		b.text(text)
	}

	begin = time.Now()
	h.sh("ip -n blue addr del 10.1.0.9/24 dev eth0")
	b.await("the duplicate is resolved", `!document.querySelector('article.conflict.confirmed') && document.title === 'ipwitness'`)
	t.Logf("the page showed that it is resolved after %s", time.Since(begin).Round(time.Millisecond))
	b.text(calmText)
	b.await("the duplicate among the resolved ones", `document.querySelector('[data-resolved]')?.innerText.includes('10.1.0.9')`)
	if !eval[bool](b, `window.sameDocument === true`) {
		t.Error("the page was loaded again")
	}
}

func TestHistoryAndExplanationAgreeWithTheAPI(t *testing.T) {
	t.Parallel()
	h, b := newPair(t)
	h.sh("ip -n red addr add 10.1.0.9/24 dev eth0")
	var alone pb.ListOwnersResponse
	wait.Until(t, "the first owner", func() bool {
		err := h.program.Get(t.Context(), "/v1/owners?address=10.1.0.9", &alone)
		return err == nil && len(alone.GetOwners()) == 1
	})
	before := time.Now().UTC()
	h.sh("ip -n blue addr add 10.1.0.9/24 dev eth0")
	b.await("the duplicate is confirmed", card("10.1.0.9", "confirmed"))

	b.open("/#/address/10.1.0.9")
	b.explained(h, "address=10.1.0.9")
	var events pb.ListEventsResponse
	wait.Until(t, "the events", func() bool {
		err := h.program.Get(t.Context(), "/v1/events?address=10.1.0.9", &events)
		return err == nil && len(events.GetEvents()) >= 3
	})
	lanes := map[string]bool{"Held twice": true}
	for _, e := range events.GetEvents() {
		if o := e.GetOwner(); o != nil {
			lanes[o.GetWorkload().GetName()+" · "+o.GetNode()] = true
		}
	}
	if len(lanes) != 3 {
		t.Fatalf("got lanes for %v, want the conflict, red and blue", lanes)
	}
	for lane := range lanes {
		b.await("the lane "+lane, fmt.Sprintf(`[...document.querySelectorAll('.history .lane-name')].some(l => l.textContent === %q)`, lane))
	}

	// The state at a time, by the link and by the slider.
	at := before.Format(time.RFC3339Nano)
	b.open("/#/address/10.1.0.9?at=" + url.QueryEscape(at))
	b.text("The past")
	b.explained(h, "address=10.1.0.9&at="+url.QueryEscape(at))
	b.await("one owner then", `document.querySelectorAll('section[aria-label=Owners] .owner').length === 1`)
	b.do(chromedp.Evaluate(`(() => { const s = document.querySelector('#moment'); s.value = s.max; s.dispatchEvent(new Event('input', {bubbles: true})) })()`, nil))
	b.await("two owners now", `document.querySelectorAll('section[aria-label=Owners] .owner').length === 2 && !location.hash.includes('at=')`)
	b.do(chromedp.Evaluate(`(() => { const s = document.querySelector('#moment'); s.value = 1; s.dispatchEvent(new Event('input', {bubbles: true})) })()`, nil))
	b.await("nobody at the beginning", `location.hash.includes('at=') && document.querySelectorAll('section[aria-label=Owners] .owner').length === 0 && document.body.innerText.includes('The past')`)
}

// explained waits until the page shows the summary that the API gives for a query.
func (b *tab) explained(h *host, query string) {
	b.t.Helper()
	wait.Until(b.t, "the summary of "+query, func() bool {
		var want pb.ExplainResponse
		if err := h.program.Get(b.t.Context(), "/v1/explain?"+query, &want); err != nil {
			b.t.Fatal(err)
		}
		got := eval[string](b, `document.querySelector('[data-summary]')?.textContent ?? ''`)
		return got != "" && got == want.GetSummary()
	})
}

func TestThePageReconnectsAfterTheAggregatorRestarts(t *testing.T) {
	t.Parallel()
	h, b := newPair(t)
	h.sh("ip -n red addr add 10.1.0.9/24 dev eth0")
	if _, err := h.program.Stop(); err != nil {
		t.Fatal(err)
	}
	b.await("the page notices", `document.querySelector('[data-connection]').dataset.connection === 'lost'`)
	b.text("reconnects by itself")
	if eval[bool](b, fmt.Sprintf(`document.body.innerText.includes(%q)`, calmText)) {
		t.Error("the page says that no address is held twice, but it cannot know that")
	}
	h.sh("ip -n blue addr add 10.1.0.9/24 dev eth0")
	h.serve("run", "--node", "node1", "--data-dir", "/var/lib/ipwitness")
	b.await("the page is live again", `document.querySelector('[data-connection]').dataset.connection === 'live'`)
	b.text("Reconnected after")
	b.await("the duplicate that was made meanwhile", card("10.1.0.9", "confirmed"))
	b.takeMatching("net::ERR") // requests while the aggregator did not run
}

func TestOnlyATokenOpensARestrictedPage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const good, bad = "reader-token-0123456789", "wrong-token-0123456789"
	if err := os.WriteFile(h.Path("/run/tokens"), []byte(good+" reader alice\nagent-token-0123456789 agent node1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.serveRestricted("--tokens", "/run/tokens", "--grpc-listen", "127.0.0.1:9640", "--http-listen", "127.0.0.1:9641")
	b := newTab(t, h.url, "/")
	b.text("Log in")
	b.enter("#token", bad)
	b.text("the token is unknown")
	b.enter("#token", good)
	b.await("the page is live", `document.querySelector('[data-connection]').dataset.connection === 'live'`)
	b.text("No agent reports")
	if where := eval[string](b, `location.href + document.cookie + JSON.stringify(localStorage)`); strings.Contains(where, good) {
		t.Errorf("the token is in %s", where)
	}
	if !eval[bool](b, fmt.Sprintf(`JSON.stringify(sessionStorage).includes(%q)`, good)) {
		t.Error("the token is not in the storage of the tab")
	}
	if b.takeMatching("401") == 0 {
		t.Error("got no refused request: the test does not notice errors")
	}
}

func TestThePageWorksThroughTheCommandUI(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve("run", "--node", "node1")
	base := h.ui()
	if !strings.HasPrefix(base, h.url+"/") {
		t.Fatalf("got %q, want an address below %s", base, h.url)
	}
	b := newTab(t, strings.TrimSuffix(base, "/"), "/#/map")
	b.await("the node", `!!document.querySelector('[data-node=node1]')`)
	b.open("/#/")
	b.text(calmText)
	b.url = h.url
	b.open("/")
	b.text("not found")
	if b.takeMatching("404") == 0 {
		t.Error("got no error without the key")
	}
}

// looks are the ways in which the pictures show each view.
var looks = []struct {
	name, scheme string
	size         size
}{{"", "light", desktop}, {"-dark", "dark", desktop}, {"-phone", "light", phone}, {"-phone-dark", "dark", phone}}

func TestPicturesOfTheDocs(t *testing.T) {
	if *pictures == "" {
		t.Skip("run make update-web-pictures")
	}
	s := calm(t)
	b := newTab(t, s.url, "/")
	b.resize(desktop)
	b.colours("light")
	b.text(calmText)
	b.await("the number of owners", `document.querySelector('.verdict').innerText.includes('owners on')`)
	b.picture(filepath.Join(*pictures, "web-calm.png"))
	s.accident(t.Context())
	for _, address := range []string{"10.244.0.2", "10.244.0.3"} {
		b.await("conflict of "+address, card(address, "confirmed"))
	}
	b.await("the other incident", `Number(document.querySelector('.folds').dataset.items) > 1`)
	b.text("node-11")
	for _, view := range []struct{ name, path, ready string }{
		{"now", "/#/", `!!document.querySelector('.unseen') && !!document.querySelector('article.incident .steps')`},
		{"address", "/#/address/10.244.0.2", `document.querySelectorAll('.history rect').length > 2 && !!document.querySelector('.rules')`},
		{"map", "/#/map", `document.querySelectorAll('.joins path').length > 0 && /pods/.test(document.querySelector('.nodes').innerText)`},
		{"ipam", "/#/ipam", `document.querySelectorAll('tbody tr').length > 3`},
	} {
		b.open(view.path)
		for _, look := range looks {
			b.resize(look.size)
			b.colours(look.scheme)
			b.await(view.name, view.ready)
			b.picture(filepath.Join(*pictures, "web-"+view.name+look.name+".png"))
		}
	}
}
