package top

import (
	"context"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// reloadEvery is how often the owners and the page on the screen are requested again.
const reloadEvery = 5 * time.Second

// A tab is one of the lists.
type tab int

const (
	conflictsTab tab = iota
	findingsTab
	ownersTab
	nodesTab
	incidentsTab
	tabs // the number of tabs
)

// A screen is the size of the terminal and how to draw on it.
type screen struct {
	columns, lines int
	paint          painter
}

// lists are the lists of the tabs. The owners are requested page by page, the others follow watches.
type lists struct {
	conflicts table[*pb.Conflict]
	findings  table[*pb.Finding]
	owners    owners
	nodes     table[*pb.Node]
	incidents table[*pb.Incident]
}

// model is the state of the program. Update is the only function that changes it, except that View
// keeps what it laid out.
type model struct {
	ctx    context.Context // of requests
	server *Server
	clock  func() time.Time

	program string // how the user invokes this program
	screen  screen
	now     time.Time
	tab     tab
	lists   lists
	filters [tabs]string
	matched time.Time // when the server was asked last what matches the filter on the screen
	status
	seen   bool    // a change has arrived
	pages  []*page // the last one is on the screen
	typing *editor // the filter that is being typed; nil if none is
	flash  string  // a message until the next key
	err    error   // why the program ended
}

func newModel(ctx context.Context, s *Server, c Config) *model {
	states := map[string]pb.Conflict_State{}
	return &model{
		ctx: ctx, server: s, clock: c.Now, now: c.Now(), program: c.Program,
		status: status{links: [watches]link{{state: connecting}, {state: connecting}, {state: connecting}}},
		screen: screen{columns: 80, lines: 24, paint: painter(c.Color)},
		lists:  lists{conflictTable(), findingTable(), owners{table: ownerTable(states), conflicts: states}, nodeTable(), incidentTable()},
	}
}

// The messages that come from outside of the program.
type (
	tickMsg   struct{}
	failedMsg struct{ err error } // the program ends with the error
)

func tick() tea.Cmd { return tea.Tick(time.Second, func(time.Time) tea.Msg { return tickMsg{} }) }

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tick() }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	m.now = m.clock()
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.screen.columns, m.screen.lines = msg.Width, msg.Height
		if p := m.page(); p != nil && !p.busy {
			return m, p.load(m.ctx, m.layout(), m.now)
		}
	case tickMsg:
		return m, tea.Batch(tick(), m.refresh(reloadEvery))
	case changesMsg:
		var requests []tea.Cmd
		for _, change := range msg {
			requests = append(requests, change(m))
		}
		return m, tea.Batch(append(requests, m.settle())...)
	case nodesMsg:
		if msg.err != nil {
			m.health.nodesReason = visible(msg.err.Error())
			return m, m.settle()
		}
		nodes := &m.lists.nodes
		nodes.changes.Begin()
		for _, n := range msg.list.GetNodes() {
			nodes.apply(pb.Watch_UPDATED, n)
		}
		nodes.apply(pb.Watch_BOOKMARK, nil)
		m.health = health{coverage: msg.list.GetCoverage(), problems: msg.list.GetProblems()}
		return m, m.settle()
	case ownersMsg:
		m.lists.owners.answered(msg, m.now)
	case matchesMsg:
		switch {
		case msg.filter != m.filters[msg.tab]:
		case msg.err == nil:
			m.list(msg.tab).match(msg.keys)
		case msg.first:
			m.filters[msg.tab], m.flash = "", visible(msg.err.Error())
		}
	case pageMsg:
		msg.page.answered(msg, m.now)
	case failedMsg:
		m.err = msg.err
		return m, tea.Quit
	case tea.PasteMsg:
		if m.typing != nil {
			m.typing.insert(msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// refresh requests again what is on the screen and does not come from a watch, if it is older than a
// duration.
func (m *model) refresh(older time.Duration) tea.Cmd {
	if p := m.page(); p != nil {
		if p.busy || m.now.Sub(p.loaded) < older {
			return nil
		}
		return p.load(m.ctx, m.layout(), m.now)
	}
	if m.asked() && m.filters[m.tab] != "" && m.now.Sub(m.matched) >= older {
		return m.match(false)
	}
	o := &m.lists.owners
	if m.tab != ownersTab || o.busy || m.now.Sub(o.loaded) < older {
		return nil
	}
	return o.load(m.ctx, m.server, o.at, o.before, false)
}

// page returns the page on the screen, or nil.
func (m *model) page() *page {
	if len(m.pages) == 0 {
		return nil
	}
	return m.pages[len(m.pages)-1]
}

// press handles a key.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	key := msg.String()
	m.flash = ""
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case keySuspend.is(key):
		return tea.Suspend
	case keyRedraw.is(key):
		return tea.ClearScreen
	case m.typing != nil:
		return m.typeFilter(key, msg.Text)
	case keyQuit.is(key):
		return tea.Quit
	case keyHelp.is(key):
		return m.open(helpPage())
	}
	p := m.page()
	if p == nil {
		return m.pressInList(key)
	}
	switch {
	case keyBack.is(key), keyPrior.is(key) && key == "left":
		m.pages = m.pages[:len(m.pages)-1]
		return m.refresh(time.Second)
	case keyExplain.is(key), keyOpen.is(key):
		return m.explain(p.address, keyExplain.is(key))
	}
	p.move(moves(key, p.height, len(p.wrapped)))
	return nil
}

// typeFilter handles a key while a filter is being typed.
func (m *model) typeFilter(key, text string) tea.Cmd {
	switch key {
	case "esc":
		m.typing = nil
	case "enter":
		filter := m.typing.text
		if m.tab != nodesTab {
			if err := m.server.CheckFilter(filter); err != nil {
				m.flash = visible(err.Error())
				return nil
			}
		}
		m.typing = nil
		return m.filter(filter)
	default:
		if text != "" {
			m.typing.insert(text)
		} else {
			m.typing.key(key)
		}
		if m.tab == nodesTab {
			return m.filter(m.typing.text)
		}
	}
	return nil
}

// asked reports whether the server decides what matches the filter of the list on the screen, whose items a watch sends.
func (m *model) asked() bool { return m.tab != ownersTab && m.tab != nodesTab }

// A matchesMsg says which items of a list match its filter.
type matchesMsg struct {
	tab    tab
	filter string
	first  bool // the first answer for the filter
	keys   map[string]bool
	err    error
}

// match asks the server what matches the filter on the screen.
func (m *model) match(first bool) tea.Cmd {
	m.matched = m.now
	at, filter, ask := m.tab, m.filters[m.tab], m.server.Matching
	return func() tea.Msg {
		keys, err := ask(m.ctx, [tabs]string{conflictsTab: "conflicts", findingsTab: "findings", incidentsTab: "incidents"}[at], filter)
		return matchesMsg{at, filter, first, keys, err}
	}
}

// filter filters the list on the screen.
func (m *model) filter(text string) tea.Cmd {
	m.filters[m.tab] = text
	switch {
	case m.asked():
		m.list(m.tab).filter("") // until the server has answered
		if text == "" {
			return nil
		}
		return m.match(true)
	case m.tab == nodesTab:
		m.list(m.tab).filter(text)
		return nil
	}
	m.lists.owners.filter = text
	m.lists.owners.table.grid.Reset()
	return m.lists.owners.load(m.ctx, m.server, place{}, nil, false)
}

// moves returns by how much a key moves the cursor, if a number of items are on the screen.
func moves(key string, screen, all int) int {
	switch {
	case keyUp.is(key):
		return -1
	case keyDown.is(key):
		return 1
	case keyPageUp.is(key):
		return -screen
	case keyPage.is(key):
		return screen
	case keyHome.is(key):
		return -all
	case keyEnd.is(key):
		return all
	}
	return 0
}

func (m *model) pressInList(key string) tea.Cmd {
	switch {
	case keyTabs.is(key):
		return m.show(tab(key[0] - '1'))
	case keyNext.is(key):
		return m.show((m.tab + 1) % tabs)
	case keyPrior.is(key):
		return m.show((m.tab + tabs - 1) % tabs)
	case keyBack.is(key):
		if m.filters[m.tab] != "" {
			return m.filter("")
		}
	case keyFilter.is(key):
		m.typing = &editor{m.filters[m.tab]}
	case keySort.is(key), keyReverse.is(key):
		switch {
		case m.tab == ownersTab && !m.lists.owners.whole():
			m.flash = "Owners of several pages are in the order of their addresses. Filter them first (/)."
		case keyReverse.is(key):
			m.list(m.tab).reverse()
		default:
			m.list(m.tab).sortNext()
		}
	case keyOpen.is(key):
		if p := m.list(m.tab).open(m.server); p != nil {
			return m.open(p)
		}
	case keyExplain.is(key):
		return m.explain(m.list(m.tab).address(), true)
	default:
		by := moves(key, max(1, m.list(m.tab).screenful()), m.list(m.tab).len())
		if m.tab == ownersTab {
			return m.lists.owners.move(m.ctx, m.server, by)
		}
		m.list(m.tab).move(by)
	}
	return nil
}

// show switches to another list.
func (m *model) show(t tab) tea.Cmd {
	m.tab = t
	return m.refresh(time.Second)
}

// open shows a page.
func (m *model) open(p *page) tea.Cmd {
	m.pages = append(m.pages, p)
	return p.load(m.ctx, m.layout(), m.now)
}

// layout returns the layout of pages.
func (m *model) layout() show.Layout {
	return show.Layout{Width: m.screen.columns, Color: bool(m.screen.paint), Program: m.program}
}

// explain shows the explanation of an address. If there is none, it says so.
func (m *model) explain(address string, say bool) tea.Cmd {
	if address != "" {
		return m.open(explainPage(m.server, address))
	}
	if say {
		m.flash = "There is no address to explain."
	}
	return nil
}

// list returns the table of a tab.
func (m *model) list(t tab) list {
	return [...]list{&m.lists.conflicts, &m.lists.findings, &m.lists.owners.table, &m.lists.nodes, &m.lists.incidents}[t]
}

// A binding is a key, or several, and what they do.
type binding struct {
	keys  []string
	name  string // as shown to people
	help  string
	short string // for the last line of the screen
}

// The keys. Each list of keys is in one place, and the help is made of it.
var (
	keyQuit    = binding{[]string{"q", "ctrl+c"}, "q", "quit", "quit"}
	keyHelp    = binding{[]string{"?", "f1"}, "?", "help", "help"}
	keySuspend = binding{[]string{"ctrl+z"}, "Ctrl-Z", "suspend", ""}
	keyRedraw  = binding{[]string{"ctrl+l"}, "Ctrl-L", "draw the screen again", ""}
	keyBack    = binding{[]string{"esc", "backspace"}, "Esc", "go back, or remove the filter", "back"}
	keyOpen    = binding{[]string{"enter"}, "Enter", "open the selected item", "open"}
	keyExplain = binding{[]string{"x"}, "x", "explain the address", "explain"}
	keyFilter  = binding{[]string{"/"}, "/", "filter", "filter"}
	keySort    = binding{[]string{"s"}, "s", "sort by the next column", "sort"}
	keyReverse = binding{[]string{"r"}, "r", "reverse the order", ""}
	keyTabs    = binding{[]string{"1", "2", "3", "4", "5"}, "1 to 5", "conflicts, findings, owners, nodes, incidents", ""}
	keyNext    = binding{[]string{"tab", "right", "l"}, "Tab", "next list", "next list"}
	keyPrior   = binding{[]string{"shift+tab", "left", "h"}, "Shift-Tab", "previous list", ""}
	keyUp      = binding{[]string{"up", "k"}, "Up, k", "one line up", ""}
	keyDown    = binding{[]string{"down", "j"}, "Down, j", "one line down", ""}
	keyPageUp  = binding{[]string{"pgup", "ctrl+b"}, "PgUp", "one screen up", ""}
	keyPage    = binding{[]string{"pgdown", "space", "ctrl+f"}, "PgDn", "one screen down", ""}
	keyHome    = binding{[]string{"home", "g"}, "Home, g", "first item", ""}
	keyEnd     = binding{[]string{"end", "G"}, "End, G", "last item", ""}
)

// is reports whether a key belongs to the binding.
func (b binding) is(key string) bool { return slices.Contains(b.keys, key) }
