package top

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
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

// text returns what write writes.
func text(write func(*bytes.Buffer) error) (string, error) {
	var b bytes.Buffer
	err := write(&b)
	return b.String(), err
}

func conflictPage(s *Server, r *pb.Conflict) *page {
	return &page{
		title:   "Conflict of " + r.GetAddress(),
		address: r.GetAddress(),
		render: func(ctx context.Context, layout show.Layout, now time.Time) (string, error) {
			c, err := s.Conflict(ctx, r.GetId())
			if err != nil {
				return "", err
			}
			return text(func(b *bytes.Buffer) error { return show.Conflict(b, c, layout, now) })
		},
	}
}

func findingPage(s *Server, r *pb.Finding) *page {
	return &page{
		title:   "Finding " + r.GetKind(),
		address: r.GetAddress(),
		render: func(ctx context.Context, layout show.Layout, now time.Time) (string, error) {
			f, err := s.Finding(ctx, r.GetId())
			if err != nil {
				return "", err
			}
			return text(func(b *bytes.Buffer) error { return show.Finding(b, f, layout, now) })
		},
	}
}

func explainPage(s *Server, address string) *page {
	return &page{
		title: "Explanation of " + address,
		render: func(ctx context.Context, layout show.Layout, now time.Time) (string, error) {
			e, err := s.Explain(ctx, address)
			if err != nil {
				return "", err
			}
			return text(func(b *bytes.Buffer) error { return show.Explain(b, e, layout, now) })
		},
	}
}

func nodePage(s *Server, n *pb.Node) *page {
	key := show.NodeKey(n)
	return &page{
		title: "Node " + visible(n.GetName()),
		render: func(ctx context.Context, layout show.Layout, now time.Time) (string, error) {
			list, err := s.Nodes(ctx)
			if err != nil {
				return "", err
			}
			for _, n := range list.GetNodes() {
				if show.NodeKey(n) == key {
					return text(func(b *bytes.Buffer) error { return show.Node(b, n, layout, now) })
				}
			}
			return "", fmt.Errorf("the server no longer lists node %s", n.GetName())
		},
	}
}

// helpPage explains the keys and the lists. It needs no server.
func helpPage() *page {
	var b strings.Builder
	for _, k := range helpKeys() {
		fmt.Fprintf(&b, "%-11s%s\n", k.name, k.help)
	}
	b.WriteString(`
Conflicts are confirmed (red), suspected (yellow), acknowledged (dim), or resolved within the last five minutes (green).

A filter selects the items that contain all of its words. Owners are filtered by the server: ADDRESS, CIDR, NAMESPACE/POD, MAC, container/NAME, node=NAME, namespace=NAME, scope=KIND or state=STATE.

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
		p.wrapped, p.wrappedFor = wrapAll(p.lines, columns), columns
	}
	p.height = height
	p.move(0)
	return p.wrapped[p.offset:min(len(p.wrapped), p.offset+height)]
}

// position says which part of the page is on the screen; empty if it is the whole page.
func (p *page) position() string {
	if len(p.wrapped) <= p.height {
		return ""
	}
	return fmt.Sprintf("lines %d to %d of %d", p.offset+1, min(len(p.wrapped), p.offset+p.height), len(p.wrapped))
}
