package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// gap separates the state of the connection from its neighbours.
const gap = 2

// The smallest window in which the lists make sense.
const (
	leastColumns = 60
	leastLines   = 10
)

// clockLayout is the layout of times. All times are in UTC, and the title says so.
const clockLayout = time.TimeOnly

// View implements tea.Model.
func (m *model) View() tea.View {
	lines, cursor := m.draw()
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen, v.Cursor = true, cursor
	return v
}

// draw returns exactly as many lines as the screen has, and where the cursor is, if it is visible.
func (m *model) draw() (lines []string, cursor *tea.Cursor) {
	columns, height := m.screen.columns, m.screen.lines
	if columns < leastColumns || height < leastLines {
		lines = wrap(max(1, columns), fmt.Sprintf("The window is too small: enlarge it to %d columns and %d lines.", leastColumns, leastLines))
		return lines[:min(len(lines), max(1, height))], nil
	}
	lines = append(lines, m.title(), m.heading())
	lines = append(lines, m.banner(height/3)...)
	foot, at := m.foot()
	if at >= 0 {
		cursor = tea.NewCursor(at, height-1)
	}
	body := height - len(lines) - len(foot)
	content := m.body(body)
	lines = append(lines, content[:min(len(content), body)]...)
	for len(lines) < height-len(foot) {
		lines = append(lines, "")
	}
	return append(lines, foot...), cursor
}

// title returns the first line: the server, and the state of the connection.
func (m *model) title() string {
	state := m.worst().state
	word := [...]string{"LIVE", "CATCHING UP", "CONNECTING", "DISCONNECTED"}[state]
	tone := [...]tone{good, warn, warn, bad}[state]
	clock := m.now.UTC().Format(clockLayout) + " UTC"
	right := width(word) + gap + width(clock)
	name := "ipwitness top"
	left := show.Fit(name+"  "+visible(m.server.Name), m.screen.columns-right-gap)
	space := strings.Repeat(" ", max(gap, m.screen.columns-width(left)-right))
	rest, whole := strings.CutPrefix(left, name)
	if !whole {
		name, rest = left, ""
	}
	return m.screen.paint.paint(strong, name) + rest + space + m.screen.paint.paint(tone, word) + strings.Repeat(" ", gap) + clock
}

// worst returns the connection that is in the worst state.
func (m *model) worst() link {
	return slices.MaxFunc(m.links[:], func(a, b link) int { return cmp.Compare(a.state, b.state) })
}

// heading returns the second line: the lists, or the title of the page.
func (m *model) heading() string {
	if p := m.page(); p != nil {
		title := p.title
		if len(p.wrapped) > p.height { // the page is longer than the screen
			title += fmt.Sprintf("  (lines %d to %d of %d)", p.offset+1, min(len(p.wrapped), p.offset+p.height), len(p.wrapped))
		}
		return m.screen.paint.paint(strong, show.Fit(title, m.screen.columns))
	}
	unresolved, urgent := 0, false
	for _, r := range m.lists.conflicts.all {
		if show.Active(r) {
			unresolved++
			urgent = urgent || r.GetState() == pb.Conflict_CONFIRMED && r.GetAcknowledgement() == nil
		}
	}
	names := [tabs]string{
		fmt.Sprint("Conflicts ", unresolved), fmt.Sprint("Findings ", len(m.lists.findings.all)), "Owners", fmt.Sprint("Nodes ", len(m.lists.nodes.all)),
		fmt.Sprint("Incidents ", len(m.lists.incidents.all)),
	}
	wide := 0
	for i, name := range names {
		wide += width(fmt.Sprintf(" %d %s  ", i+1, name))
	}
	var b strings.Builder
	between := " "
	for i, name := range names {
		if wide > m.screen.columns {
			name, _, _ = strings.Cut(name, " ")
			between = ""
		}
		label, tone := fmt.Sprintf(" %d %s ", i+1, name), plain
		if tab(i) == m.tab {
			label, tone = fmt.Sprintf("[%d %s]", i+1, name), strong
		}
		if tab(i) == conflictsTab && urgent {
			tone = bad
		}
		b.WriteString(m.screen.paint.paint(tone, label) + between)
	}
	return strings.TrimRight(b.String(), " ")
}

// A warning is a line of the banner.
type warning struct {
	text string
	tone tone
}

// warnings returns what the user must know to trust the lists.
func (m *model) warnings() (out []warning) {
	if !m.seen {
		return nil
	}
	if l := m.worst(); l.state == disconnected {
		as := "Nothing is known yet."
		if !l.caughtUp.IsZero() {
			as = "The lists show the state of " + l.caughtUp.UTC().Format(clockLayout) + " UTC."
		}
		out = append(out, warning{fmt.Sprintf("Disconnected for %s (%s). Reconnecting. %s", show.Duration(m.now.Sub(l.since)), l.reason, as), bad})
	} else if m.health.nodesReason != "" {
		out = append(out, warning{"The nodes cannot be listed: " + m.health.nodesReason, bad})
	}
	for _, s := range show.Unseen(m.health.coverage) {
		out = append(out, warning{s, warn})
	}
	for _, s := range m.health.problems {
		out = append(out, warning{"Problem of the aggregator: " + visible(s), warn})
	}
	for i, of := range [...]string{"conflicts", "findings", "incidents"} {
		if m.cut[i] {
			out = append(out, warning{fmt.Sprintf("There are more than %d %s: the others are not shown. Start top with a filter, like --namespace.", mostRows, of), bad})
		}
	}
	return out
}

// banner returns the warnings in at most some lines.
func (m *model) banner(most int) (lines []string) {
	all := m.warnings()
	for i, w := range all {
		wrapped := wrap(m.screen.columns, w.text)
		rest := len(all) - i - 1
		if len(lines)+len(wrapped) > most || rest > 0 && len(lines)+len(wrapped) == most {
			more := fmt.Sprintf("%s not shown: enlarge the window.", show.Count(rest+1, "warning is", "warnings are"))
			return append(lines, m.screen.paint.paint(bad, show.Fit(more, m.screen.columns)))
		}
		lines = append(lines, m.screen.paint.all(w.tone, wrapped)...)
	}
	return lines
}

// body returns the list or the page.
func (m *model) body(height int) []string {
	columns, paint := m.screen.columns, m.screen.paint
	if p := m.page(); p != nil {
		var lines []string
		if p.reason != "" {
			lines = paint.all(bad, wrap(columns, "Cannot show this: "+p.reason))
		}
		if p.lines == nil {
			if p.busy {
				lines = append(lines, paint.paint(dim, "Loading…"))
			}
			return lines
		}
		return append(lines, p.view(columns, max(1, height-len(lines)))...)
	}
	if m.list(m.tab).len() == 0 {
		return wrap(columns, m.empty()...)
	}
	if m.tab != ownersTab {
		return m.list(m.tab).view(paint, columns, height, m.now)
	}
	lines := m.list(m.tab).view(paint, columns, height-1, m.now)
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	o := &m.lists.owners // which owners the page has
	text := fmt.Sprintf("Owners %d to %d", o.at.start+1, o.at.start+len(o.table.all))
	switch {
	case o.next != "":
		text += ", and more on the next page"
	case len(o.before) > 0:
		text += ", the last page"
	default:
		text = show.Count(len(o.table.all), "owner", "owners")
	}
	text += ", as of " + o.loaded.UTC().Format(clockLayout)
	if o.reason != "" {
		text = "Cannot load the owners: " + o.reason
	}
	return append(lines, paint.paint(dim, show.Fit(text, columns)))
}

// empty says why a list is empty.
func (m *model) empty() []string {
	filtered := m.filters[m.tab] != ""
	o := &m.lists.owners
	switch {
	case m.tab == ownersTab && o.reason != "":
		return []string{"Cannot load the owners: " + o.reason}
	case m.tab == ownersTab && o.loaded.IsZero():
		return []string{"Loading…"}
	case m.tab != ownersTab && (!m.seen || m.links[conflicts].caughtUp.IsZero() || m.tab == findingsTab && m.links[findings].caughtUp.IsZero() ||
		m.tab == incidentsTab && m.links[incidents].caughtUp.IsZero()):
		return []string{"Waiting for " + visible(m.server.Name) + "…"}
	case filtered:
		return []string{"Nothing matches the filter. Esc removes it."}
	case m.tab == findingsTab:
		return []string{"No findings."}
	case m.tab == incidentsTab:
		return []string{"No incidents."}
	case m.tab == ownersTab:
		return []string{"No owners: no agent has reported an address yet."}
	case m.tab == nodesTab:
		return []string{"No nodes: no agent has connected yet."}
	}
	c := m.health.coverage
	if c.GetIncomplete() || m.worst().state != live {
		return []string{"No conflicts are known."}
	}
	claims := 0
	for _, n := range m.lists.nodes.all {
		claims += int(n.GetClaims())
	}
	return []string{
		"No conflicts.",
		fmt.Sprintf("%s on %d of %s, and no address is held twice.", show.Count(claims, "claim", "claims"),
			c.GetHeard(), show.Count(int(c.GetExpected()), "node", "nodes")),
	}
}

// foot returns the last lines, and the column of the cursor if a filter is being typed, or -1.
func (m *model) foot() (lines []string, cursor int) {
	columns, paint := m.screen.columns, m.screen.paint
	switch p := m.page(); {
	case m.flash != "":
		return paint.all(warn, wrap(columns, m.flash)), -1
	case m.typing != nil:
		prompt := "Filter: "
		if m.tab != nodesTab {
			prompt = "Filter (address, CIDR, pod, MAC, node=NAME): "
		}
		room := columns - width(prompt) - 1
		text := m.typing.text
		if width(text) > room {
			text = "…" + show.Tail(text, room-1)
		}
		return []string{paint.paint(strong, prompt) + text}, width(prompt) + width(text)
	case p != nil && p.address != "":
		return m.hints(keyBack, keyExplain, keyHelp, keyQuit), -1
	case p != nil:
		return m.hints(keyBack, keyHelp, keyQuit), -1
	case m.filters[m.tab] != "":
		const before, after = "Filter: ", "   Esc removes it"
		return []string{before + show.Fit(m.filters[m.tab], columns-len(before)-len(after)) + paint.paint(dim, after)}, -1
	default:
		return m.hints(keyOpen, keyExplain, keyFilter, keyHelp, keyQuit, keySort, keyNext), -1
	}
}

// hints names as many keys as fit into a line.
func (m *model) hints(keys ...binding) []string {
	var line string
	for _, k := range keys {
		hint := k.name + " " + k.short
		if line != "" {
			hint = "   " + hint
		}
		if width(line)+width(hint) > m.screen.columns {
			break
		}
		line += hint
	}
	return []string{m.screen.paint.paint(dim, line)}
}
