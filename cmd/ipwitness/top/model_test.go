package top

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A fake is a server with n owners, and its requests.
type fake struct {
	owners   int
	asked    []string
	err      error
	conflict *pb.Conflict
}

func (f *fake) ask(format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *fake) server() *Server {
	return &Server{
		Name: "http://127.0.0.1:9641",
		Get: func(_ context.Context, path string, ask url.Values, into proto.Message) error {
			var answer proto.Message
			id := path[strings.LastIndexByte(path, '/')+1:]
			switch strings.TrimSuffix(path, id) {
			case "/v1/conflicts/":
				f.ask("conflict %s", id)
				answer = f.conflict
			case "/v1/findings/":
				f.ask("finding %s", id)
				answer = &pb.Finding{Id: id, Kind: "leaked", Summary: "The finding in words."}
			default:
				if id == "nodes" {
					f.ask("nodes")
					answer = &pb.ListNodesResponse{Nodes: someNodes()}
					break
				}
				f.ask("explain %s", ask.Get("address"))
				if ask.Get("senders") != "true" {
					return fmt.Errorf("a question without senders: %v", ask)
				}
				answer = &pb.ExplainResponse{Address: ask.Get("address"), Summary: "The answer for " + ask.Get("address") + "."}
			}
			proto.Merge(into, answer)
			return f.err
		},
		Members: func(_ context.Context, i *pb.Incident) ([]*pb.Conflict, []*pb.Finding, error) {
			f.ask("members %s", i.GetId())
			i.Summary = "The incident in words."
			return []*pb.Conflict{conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "x", "y"), conflictOf("b", "10.0.0.8", pb.Conflict_CONFIRMED, 0, "x", "y")}, nil, f.err
		},
		Matching: func(_ context.Context, of, filter string) (map[string]bool, error) {
			f.ask("matching %s %q", of, filter)
			if filter == "bad" {
				return nil, errors.New("refused")
			}
			return map[string]bool{map[string]string{"db": "b"}[filter]: true}, f.err
		},
		CheckFilter: func(filter string) error {
			if strings.Contains(filter, "?") {
				return errors.New("no such filter")
			}
			return nil
		},
		Owners: func(_ context.Context, filter, token string) (*pb.ListOwnersResponse, error) {
			f.ask("owners %q %q", filter, token)
			if f.err != nil {
				return nil, f.err
			}
			var start int
			_, _ = fmt.Sscan(token, &start) // empty for the first page
			list := &pb.ListOwnersResponse{}
			for i := start; i < min(start+100, f.owners); i++ {
				list.Owners = append(list.Owners, &pb.Owner{
					Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256), Node: "node-1", Netns: fmt.Sprint(i), State: pb.Owner_LIVE,
					Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: fmt.Sprint("pod-", i)},
				})
			}
			if start+100 < f.owners {
				list.NextPageToken = fmt.Sprint(start + 100)
			}
			return list, nil
		},
	}
}

func someNodes() []*pb.Node {
	return []*pb.Node{
		{Name: "node-1", BootId: "1", State: pb.Node_LIVE, Wire: "tcx", Claims: 7, LastHeard: timestamppb.New(noon)},
		{Name: "node-2", BootId: "2", State: pb.Node_DISCONNECTED, Wire: "tcx", LastHeard: timestamppb.New(noon.Add(-time.Hour))},
		{Name: "node-3", BootId: "3", State: pb.Node_LIVE, Wire: "off", Problems: []string{"frames are not seen"}},
	}
}

// A player drives a model as the library does, and runs its requests at once.
type player struct {
	*model
	t    *testing.T
	now  time.Time
	quit bool
}

func play(t *testing.T, f *fake) *player {
	p := &player{t: t, now: noon}
	p.model = newModel(t.Context(), f.server(), Config{Program: "ipwitness", Color: true, Now: func() time.Time { return p.now }})
	return p
}

// send sends a message to the model, then the answers to the requests that it makes.
func (p *player) send(msg tea.Msg) {
	p.t.Helper()
	_, cmd := p.Update(msg)
	p.run(cmd)
	p.checked()
}

func (p *player) run(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case nil:
	case tea.QuitMsg:
		p.quit = true
	case tea.BatchMsg:
		for _, cmd := range msg[1:] { // the first one is the next tick
			p.run(cmd)
		}
	default:
		_, next := p.Update(msg)
		p.run(next)
	}
}

// press presses keys: names like <enter>, or characters.
func (p *player) press(keys string) {
	p.t.Helper()
	special := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "down": tea.KeyDown, "up": tea.KeyUp,
		"pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "home": tea.KeyHome, "end": tea.KeyEnd, "backspace": tea.KeyBackspace,
	}
	for len(keys) > 0 {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(keys, "<"), ">"); ok && keys[0] == '<' {
			p.send(tea.KeyPressMsg{Code: special[name]})
			keys = rest
			continue
		}
		p.send(tea.KeyPressMsg{Code: rune(keys[0]), Text: keys[:1]})
		keys = keys[1:]
	}
}

// checked checks that the screen has its size.
func (p *player) checked() []string {
	p.t.Helper()
	lines, _ := p.draw()
	if len(lines) != p.screen.lines && p.screen.columns >= leastColumns && p.screen.lines >= leastLines {
		p.t.Errorf("got %d lines, want %d", len(lines), p.screen.lines)
	}
	for _, line := range lines {
		if width(line) > p.screen.columns {
			p.t.Errorf("got %q with %d columns, want at most %d", line, width(line), p.screen.columns)
		}
	}
	return lines
}

// text returns the screen without styles.
func (p *player) text() string { return ansi.Strip(strings.Join(p.checked(), "\n")) }

// rowsOf returns the rows of conflicts.
func rowsOf(conflicts ...*pb.Conflict) (rows []*pb.Conflict) {
	for _, c := range conflicts {
		rows = append(rows, listedConflict(c))
	}
	return rows
}

// A world is what the watches have sent.
type world struct {
	status
	conflicts []*pb.Conflict
}

// connected returns the world of a server that sees everything.
func connected(conflicts ...*pb.Conflict) world {
	up := link{state: live, since: noon, caughtUp: noon}
	return world{
		status:    status{links: [watches]link{up, up, up}, health: health{coverage: &pb.Coverage{Expected: 3, Heard: 3}}},
		conflicts: conflicts,
	}
}

// shows makes the model know a world.
func (p *player) shows(w world) {
	p.t.Helper()
	p.send(changesMsg{func(m *model) tea.Cmd {
		replace(&m.lists.conflicts, rowsOf(w.conflicts...))
		replace(&m.lists.findings, []*pb.Finding{listedFinding(&pb.Finding{Id: "f1", Kind: "leaked", Severity: pb.Finding_WARNING, Address: "10.0.0.3"})})
		replace(&m.lists.incidents, []*pb.Incident{{Id: "i1", Severity: pb.Finding_CRITICAL, Cause: "ipam-state-lost", AddressCount: 2, Confirmed: 2, Summary: hostile}})
		replace(&m.lists.nodes, someNodes())
		m.status = w.status
		return nil
	}})
}

// replace replaces the items that a watch has sent.
func replace[T any](t *table[T], items []T) {
	t.changes.Begin()
	for _, item := range items {
		t.apply(pb.Watch_ADDED, item)
	}
	var none T
	t.apply(pb.Watch_BOOKMARK, none)
}

func TestKeysLeadToPagesAndBack(t *testing.T) {
	tests := map[string]struct {
		keys   string
		titles []string
		asked  string // last request
	}{
		"a conflict":                {"<enter>", []string{"Conflict of 10.0.0.7"}, "conflict a"},
		"its explanation":           {"<enter>x", []string{"Conflict of 10.0.0.7", "Explanation of 10.0.0.7"}, "explain 10.0.0.7"},
		"with Enter, too":           {"<enter><enter>", []string{"Conflict of 10.0.0.7", "Explanation of 10.0.0.7"}, "explain 10.0.0.7"},
		"back to the conflict":      {"<enter>x<esc>", []string{"Conflict of 10.0.0.7"}, "explain 10.0.0.7"},
		"back to the list":          {"<enter>x<esc><esc>", nil, "explain 10.0.0.7"},
		"the explanation at once":   {"<down>x", []string{"Explanation of 10.0.0.8"}, "explain 10.0.0.8"},
		"a finding":                 {"2<enter>", []string{"Finding leaked"}, "finding f1"},
		"the address of a finding":  {"2x", []string{"Explanation of 10.0.0.3"}, "explain 10.0.0.3"},
		"an owner":                  {"3<down><enter>", []string{"Explanation of 10.0.0.1"}, "explain 10.0.0.1"},
		"a node":                    {"4<enter>", []string{"Node node-2"}, "nodes"},
		"no address of a node":      {"4x", nil, ""},
		"an incident":               {"5<enter>", []string{"Incident i1"}, "members i1"},
		"no address of an incident": {"5x", nil, ""},
		"the next list":             {"<tab><enter>", []string{"Finding leaked"}, "finding f1"},
		"help":                      {"?", []string{"Help"}, ""},
		"nothing in an empty list":  {"/nothing<enter><enter>", nil, `matching conflicts "nothing"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{owners: 5, conflict: conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, time.Minute, "web-1", "web-2")}
			p := play(t, f)
			p.shows(connected(f.conflict, conflictOf("b", "10.0.0.8", pb.Conflict_SUSPECTED, time.Minute, "web-3", "web-4")))
			p.press(test.keys)
			var titles []string
			for _, page := range p.pages {
				titles = append(titles, page.title)
			}
			if !slices.Equal(titles, test.titles) {
				t.Errorf("got pages %q, want %q", titles, test.titles)
			}
			var last string
			if len(f.asked) > 0 {
				last = f.asked[len(f.asked)-1]
			}
			if last != test.asked {
				t.Errorf("got the last request %q, want %q", last, test.asked)
			}
		})
	}
}

func TestQuitting(t *testing.T) {
	for _, keys := range []string{"q", "<enter>q", "?q"} {
		p := play(t, &fake{conflict: conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "x", "y")})
		p.shows(connected(conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "x", "y")))
		if p.press(keys); !p.quit {
			t.Errorf("%s does not quit", keys)
		}
	}
	p := play(t, &fake{})
	if p.press("/q"); p.quit || p.typing.text != "q" {
		t.Errorf("q in a filter: got quit %t and text %q, want the text q", p.quit, p.typing.text)
	}
	if p.send(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}); !p.quit {
		t.Error("Ctrl-C in a filter does not quit")
	}
	p = play(t, &fake{})
	if p.send(failedMsg{errors.New("denied")}); !p.quit || p.err == nil {
		t.Errorf("got quit %t and error %v, want the program to end with the error", p.quit, p.err)
	}
}

func TestTheServerSelectsWhatMatchesAFilter(t *testing.T) {
	f := &fake{owners: 5}
	p := play(t, f)
	p.shows(connected(conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "web-1", "web-2"), conflictOf("b", "10.0.0.8", pb.Conflict_CONFIRMED, 0, "other-1", "other-2")))
	p.press("/db")
	if got := ids(&p.lists.conflicts); len(got) != 2 || len(f.asked) > 0 {
		t.Errorf("got %v and requests %q, want both, and no request for a filter that is not complete", got, f.asked)
	}
	p.press("<enter>")
	if p.typing != nil || p.filters[conflictsTab] != "db" {
		t.Errorf("got typing %t and filter %q, want the filter db", p.typing != nil, p.filters[conflictsTab])
	}
	if got := ids(&p.lists.conflicts); !slices.Equal(got, []string{"b"}) || !slices.Equal(f.asked, []string{`matching conflicts "db"`}) {
		t.Errorf("got %v after the requests %q, want b, which only the server knows to match", got, f.asked)
	}
	p.now = p.now.Add(reloadEvery)
	f.err = errors.New("disconnected")
	p.send(tickMsg{})
	if got := ids(&p.lists.conflicts); len(f.asked) != 2 || !slices.Equal(got, []string{"b"}) || p.filters[conflictsTab] != "db" {
		t.Errorf("got %v and filter %q after the requests %q, want the former answer if the server does not answer again", got, p.filters[conflictsTab], f.asked)
	}
	f.err = nil
	p.press("<tab>")
	if len(p.lists.findings.shown) != 1 {
		t.Error("the filter of conflicts filters findings, too")
	}
	p.press("1<esc>")
	if got := ids(&p.lists.conflicts); len(got) != 2 {
		t.Errorf("got %v after Esc, want both", got)
	}
	if p.press("/bad<enter>"); p.filters[conflictsTab] != "" || p.flash != "refused" {
		t.Errorf("got filter %q and %q, want no filter and the reason", p.filters[conflictsTab], p.flash)
	}
	p.send(tea.PasteMsg{Content: "ignored"})
	p.press("/")
	p.send(tea.PasteMsg{Content: "web\n"})
	if p.typing.text != "web " {
		t.Errorf("got %q, want the pasted text", p.typing.text)
	}
}

func TestOwnersAreRequestedPageByPage(t *testing.T) {
	f := &fake{owners: 250}
	p := play(t, f)
	p.shows(connected(conflictOf("a", "10.0.0.1", pb.Conflict_CONFIRMED, 0, "web-1", "web-2")))
	p.press("3")
	o := &p.lists.owners
	at := func(wantFirst, wantCursor string) {
		t.Helper()
		under, _ := o.table.selected()
		if len(o.table.shown) > 100 || o.table.shown[0].GetAddress() != wantFirst || under.GetAddress() != wantCursor {
			t.Errorf("got %d owners from %s with the cursor on %s, want at most 100 from %s with the cursor on %s",
				len(o.table.shown), o.table.shown[0].GetAddress(), under.GetAddress(), wantFirst, wantCursor)
		}
	}
	at("10.0.0.0", "10.0.0.0")
	if o.conflicts[o.table.shown[1].GetAddress()] != pb.Conflict_CONFIRMED || o.conflicts[o.table.shown[2].GetAddress()] != pb.Conflict_UNSPECIFIED {
		t.Errorf("got conflicts %v and %v, want only 10.0.0.1 in conflict", o.conflicts[o.table.shown[1].GetAddress()], o.conflicts[o.table.shown[2].GetAddress()])
	}
	p.press("<end>")
	at("10.0.0.0", "10.0.0.99")
	p.press("<down>")
	at("10.0.0.100", "10.0.0.100")
	p.press("<end><down>")
	at("10.0.0.200", "10.0.0.200")
	p.press("<end><down>")
	at("10.0.0.200", "10.0.0.249")
	if want := "Owners 201 to 250, the last page"; !strings.Contains(p.text(), want) {
		t.Errorf("got\n%s\nwant %q", p.text(), want)
	}
	p.press("<home><up>")
	at("10.0.0.100", "10.0.0.199")
	p.press("s")
	if o.table.sorted != -1 || p.flash == "" {
		t.Error("one page of several was sorted by itself")
	}
	p.now = p.now.Add(reloadEvery)
	p.send(tickMsg{})
	at("10.0.0.100", "10.0.0.199")
	if last := f.asked[len(f.asked)-1]; last != `owners "" "100"` {
		t.Errorf("got the last request %s, want the page on the screen again", last)
	}

	f.owners = 3
	p.press("/node=node-1")
	if o.filter != "" {
		t.Error("owners were requested for a filter that was not complete")
	}
	p.press("?<enter>")
	if p.typing == nil || p.flash != "no such filter" {
		t.Errorf("got typing %t and %q, want the reason why the filter is wrong", p.typing != nil, p.flash)
	}
	p.press("<backspace><enter>")
	if o.filter != "node=node-1" || !o.whole() || len(o.table.shown) != 3 {
		t.Errorf("got filter %q and %d owners, want all three", o.filter, len(o.table.shown))
	}
	p.press("s")
	if o.table.sorted == -1 {
		t.Error("a list that is complete cannot be sorted")
	}

	old := ownersMsg{serial: o.serial - 1, list: &pb.ListOwnersResponse{}}
	p.send(old)
	if len(o.table.shown) != 3 {
		t.Error("the answer to an earlier request replaced the list")
	}
	f.err = errors.New("connection refused")
	p.now = p.now.Add(reloadEvery)
	p.send(tickMsg{})
	if len(o.table.shown) != 3 || !strings.Contains(p.text(), "Cannot load the owners: connection refused") {
		t.Errorf("got %d owners and\n%s\nwant the old list and the reason", len(o.table.shown), p.text())
	}
}

func TestAPageIsKeptUpToDate(t *testing.T) {
	f := &fake{conflict: conflictOf("a", "10.0.0.7", pb.Conflict_SUSPECTED, 0, "web-1", "web-2")}
	p := play(t, f)
	p.shows(connected(f.conflict))
	p.press("<enter>")
	if !strings.Contains(p.text(), "SUSPECTED") {
		t.Fatalf("got\n%s\nwant the state", p.text())
	}
	f.conflict = conflictOf("a", "10.0.0.7", pb.Conflict_CONFIRMED, 0, "web-1", "web-2")
	p.now = p.now.Add(time.Second)
	p.shows(connected(f.conflict))
	if !strings.Contains(p.text(), "CONFIRMED") {
		t.Errorf("got\n%s\nwant the new state", p.text())
	}
	f.err = errors.New("connection refused")
	p.now = p.now.Add(reloadEvery)
	p.send(tickMsg{})
	if text := p.text(); !strings.Contains(text, "Cannot show this: connection refused") || !strings.Contains(text, "CONFIRMED") {
		t.Errorf("got\n%s\nwant the reason and the last text", text)
	}
}
