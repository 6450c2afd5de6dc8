package top

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

// A page shows the details of one item as text.
type page struct {
	title   string
	address string // that can be explained; empty if there is none, or if this is the explanation
	// render requests the item and returns the text.
	render func(ctx context.Context, layout show.Layout, now time.Time) (string, error)

	lines      []string
	wrapped    []string
	wrappedFor int
	offset     int
	height     int // lines on the screen
	reason     string
	loaded     time.Time
	busy       bool
}

// A pageMsg is the answer to the request for a page.
type pageMsg struct {
	page *page
	text string
	err  error
}

// pageOf returns a page of the message at a path of the API, as write writes it.
func pageOf[T proto.Message](
	s *Server, title, address, path string, ask url.Values, write func(io.Writer, T, show.Layout, time.Time) error,
) *page {
	return &page{title: title, address: address, render: func(ctx context.Context, layout show.Layout, now time.Time) (string, error) {
		var item T
		item = item.ProtoReflect().New().Interface().(T)
		if err := s.Get(ctx, path, ask, item); err != nil {
			return "", err
		}
		var b strings.Builder
		err := write(&b, item, layout, now)
		return b.String(), err
	}}
}

func explainPage(s *Server, address string) *page {
	return pageOf(s, "Explanation of "+address, "", "/v1/explain", url.Values{"address": {address}, "senders": {"true"}}, show.Explain)
}

// helpPage explains the keys and the lists. It needs no server.
func helpPage() *page {
	var b strings.Builder
	for _, k := range []binding{
		keyOpen, keyExplain, keyBack, keyFilter, keySort, keyReverse, keyTabs, keyNext, keyPrior,
		keyUp, keyDown, keyPageUp, keyPage, keyHome, keyEnd, keyRedraw, keySuspend, keyHelp, keyQuit,
	} {
		fmt.Fprintf(&b, "%-11s%s\n", k.name, k.help)
	}
	b.WriteString(`
Conflicts are confirmed (red), suspected (yellow), acknowledged (dim), or resolved within the last five minutes (green).

A filter of nodes selects those whose line contains all of its words. The server filters the other lists: ADDRESS, CIDR, NAMESPACE/POD, MAC, container/NAME, a part of a name, node=NAME, and, except for incidents, namespace=NAME; for conflicts and owners also scope=KIND or state=STATE.

All times are in UTC.
`)
	text := b.String()
	return &page{title: "Help", render: func(context.Context, show.Layout, time.Time) (string, error) { return text, nil }}
}

// load requests the text.
func (p *page) load(ctx context.Context, layout show.Layout, now time.Time) tea.Cmd {
	p.busy = true
	return func() tea.Msg {
		text, err := p.render(ctx, layout, now)
		return pageMsg{p, text, err}
	}
}

// answered shows the text.
func (p *page) answered(m pageMsg, now time.Time) {
	p.busy, p.loaded, p.reason = false, now, ""
	if m.err != nil {
		p.reason = visible(m.err.Error())
		return
	}
	p.lines = strings.Split(strings.TrimRight(m.text, "\n"), "\n")
	p.wrapped = nil
}

// move scrolls.
func (p *page) move(by int) {
	p.offset = max(0, min(p.offset+by, len(p.wrapped)-p.height))
}

// view returns the lines that are on the screen.
func (p *page) view(columns, height int) []string {
	if p.wrapped == nil || p.wrappedFor != columns {
		p.wrapped, p.wrappedFor = wrap(columns, p.lines...), columns
	}
	p.height = height
	p.move(0)
	return p.wrapped[p.offset:min(len(p.wrapped), p.offset+height)]
}
