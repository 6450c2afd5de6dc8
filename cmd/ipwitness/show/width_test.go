package show

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// longOwners returns owners with the long names that clusters have.
func longOwners() []*pb.Owner {
	one, other := pod("payments-production", "checkout-frontend-7d5f9c6b4-x2x9z", "1"), pod("payments-production", "checkout-backend-6b4c9d5f7-q8wvn", "2")
	one.Node, other.Node = "ip-10-244-17-231.eu-central-1.compute.internal", "ip-10-244-17-232.eu-central-1.compute.internal"
	for _, o := range []*pb.Owner{one, other} {
		o.Address = "2001:db8:1234:5678:9abc:def0:1234:5678"
	}
	return append(owners(), one, other)
}

func longConflict() *pb.Conflict {
	c := conflict(pb.Conflict_CONFIRMED)
	c.Id, c.Address, c.Owners = "6frtk3pjavxaruax", "2001:db8:1234:5678:9abc:def0:1234:5678", longOwners()[9:]
	c.Scope = &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"}
	return c
}

// crowd returns conflicts of many addresses between the same two owners.
func crowd(n int) (all []*pb.Conflict) {
	for i := range n {
		c := conflict(pb.Conflict_CONFIRMED)
		c.Id, c.Address, c.Incident = fmt.Sprintf("id%d", i), fmt.Sprintf("10.244.1.%d", i+1), "abcd"
		c.DetectedAt = at(time.Duration(i) * time.Minute)
		all = append(all, c)
	}
	return all
}

// outputs returns all tables and pages for people.
func outputs(layout Layout) map[string]func(w io.Writer) error {
	many := append(conflicts(), acknowledged(), conflict(pb.Conflict_RESOLVED), longConflict())
	story := story()
	return map[string]func(w io.Writer) error{
		"owners": func(w io.Writer) error { return Owners(w, longOwners(), NewMarks(longOwners(), many), layout, now) },
		"conflicts": func(w io.Writer) error {
			_, err := Conflicts(w, append(many, crowd(200)...), layout, now)
			return err
		},
		"findings": func(w io.Writer) error { return Findings(w, findings(), layout, now) },
		"nodes": func(w io.Writer) error {
			return Nodes(w, &pb.ListNodesResponse{Nodes: []*pb.Node{{
				Name: "ip-10-244-17-231.eu-central-1.compute.internal", State: pb.Node_DISCONNECTED, Version: "v0.1.0", Kernel: "6.8.0-1021-azure", Wire: "clsact", Ports: 254,
				Claims: 1204, LostEvents: 10, LastHeard: at(time.Minute), Problems: []string{strings.Repeat("frames are not seen: ", 8)},
			}}, Kubernetes: &pb.Kubernetes{State: pb.Kubernetes_LIVE, Server: "https://10.96.0.1:443", Pods: 12, Nodes: 3, LastHeard: at(0), Problems: []string{strings.Repeat("no permission ", 9)}}}, layout, now)
		},
		"pools": func(w io.Writer) error { return Pools(w, pools(), layout) },
		"history": func(w io.Writer) error {
			h := NewHistory(w, FormatTable, layout, now)
			h.Gaps(gaps())
			for _, page := range story {
				if err := h.Events(page); err != nil {
					return err
				}
			}
			return h.End()
		},
		"conflict page": func(w io.Writer) error { return Conflict(w, longConflict(), layout, now) },
		"cause page":    func(w io.Writer) error { return Conflict(w, diagnosed(), layout, now) },
		"kube page":     func(w io.Writer) error { return Conflict(w, orphaned(), layout, now) },
		"finding page":  func(w io.Writer) error { return Finding(w, findings()[1], layout, now) },
		"explain": func(w io.Writer) error {
			return Explain(w, &pb.ExplainResponse{
				Address: "10.244.0.7", Summary: strings.Repeat("It has two owners. ", 10), Owners: longOwners(), Conflicts: many,
				Steps: []*pb.ExplainResponse_Step{{Rule: "different-links", Scope: &pb.Scope{Kind: pb.Scope_LINK, Name: "worker-1/veth1"}, Reason: strings.Repeat("each pod is on a link of its own ", 5)}},
			}, layout, now)
		},
		"watch": func(w io.Writer) error {
			watch := NewWatch(w, OwnerKind, layout)
			watch.Begin()
			for _, o := range longOwners() {
				if err := watch.Event(pb.Watch_ADDED, o, now); err != nil {
					return err
				}
			}
			return watch.Event(pb.Watch_BOOKMARK, nil, now)
		},
		"live": func(w io.Writer) error {
			l := NewLive(w, layout)
			l.Owner(owner(pb.Watch_BOOKMARK, nil), now)
			for i, o := range longOwners() {
				l.Owner(owner(pb.Watch_ADDED, o), now.Add(time.Duration(i)*time.Second))
			}
			l.Conflict(conflictEvent(pb.Watch_ADDED, longConflict()), now.Add(time.Minute))
			return l.Err()
		},
	}
}

// words returns the words of a text, sorted.
func words(text string) []string {
	return slices.Compact(slices.Sorted(slices.Values(strings.Fields(text))))
}

// copied reports whether a line is a command or a URL, which can be copied and is not folded.
func copied(line string) bool {
	return strings.HasPrefix(strings.TrimSpace(line), "kubectl") || strings.Contains(line, "https://") || strings.Contains(line, "ipwitness audit --fix-plan >")
}

func TestOutputFitsTheTerminal(t *testing.T) {
	for name, whole := range outputs(piped) {
		var all bytes.Buffer
		if err := whole(&all); err != nil {
			t.Fatal(err)
		}
		known := words(all.String())
		for _, width := range []int{40, 80, 120, 200} {
			t.Run(fmt.Sprint(name, " ", width), func(t *testing.T) {
				var b bytes.Buffer
				if err := outputs(Layout{Width: width, Program: "ipwitness"})[name](&b); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(b.String()) {
					line = strings.TrimSuffix(line, "\n")
					if n := utf8.RuneCountInString(line); n > width && !copied(line) && len(strings.Fields(line)) > 1 && width >= 80 {
						t.Errorf("got a line of %d characters: %q", n, line)
					}
					if strings.TrimRight(line, " ") != line {
						t.Errorf("got spaces at the end of %q", line)
					}
				}
				for _, word := range words(b.String()) { // no word is cut
					if _, is := slices.BinarySearch(known, word); !is {
						t.Errorf("got the word %q, which the output without a terminal does not have", word)
					}
				}
			})
		}
	}
}

func TestWideTerminalShowsAllColumns(t *testing.T) {
	var pipe, terminal bytes.Buffer
	for to, layout := range map[*bytes.Buffer]Layout{&pipe: piped, &terminal: {Width: 400, Program: "ipwitness"}} {
		if err := Owners(to, longOwners(), nil, layout, now); err != nil {
			t.Fatal(err)
		}
	}
	if pipe.String() != terminal.String() {
		t.Errorf("got\n%s\nwant\n%s", &terminal, &pipe)
	}
}

func TestColumnsAreLeftOutByTheirRank(t *testing.T) {
	header := func(width int) string {
		var b bytes.Buffer
		if err := Owners(&b, owners(), NewMarks(owners(), nil), Layout{Width: width}, now); err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(b.String(), "\n")
		return strings.Join(strings.Fields(line), " ")
	}
	for width, want := range map[int]string{
		150: "ADDRESS WORKLOAD NODE INTERFACE EVIDENCE STATE AGE CONFLICT",
		90:  "ADDRESS WORKLOAD NODE INTERFACE STATE AGE CONFLICT",
		80:  "ADDRESS WORKLOAD NODE STATE AGE CONFLICT",
		70:  "ADDRESS WORKLOAD NODE STATE CONFLICT",
		60:  "ADDRESS WORKLOAD NODE CONFLICT",
		50:  "ADDRESS WORKLOAD CONFLICT",
	} {
		if got := header(width); got != want {
			t.Errorf("%d columns: got %q, want %q", width, got, want)
		}
	}
	if got, want := header(0), header(150); got != want {
		t.Errorf("without a terminal: got %q, want %q", got, want)
	}
}

func TestWideFormatKeepsAllColumns(t *testing.T) {
	var b bytes.Buffer
	if err := Owners(&b, owners(), nil, Layout{Width: 40, Wide: true}, now); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "NOT COMPARED") {
		t.Errorf("got\n%s\nwant all columns", &b)
	}
}

func TestAWatchRepeatsItsHeaderWhenColumnsAreLeftOut(t *testing.T) {
	var b bytes.Buffer
	w := NewWatch(&b, OwnerKind, Layout{Width: 120})
	w.Begin()
	for _, e := range []struct {
		kind pb.Watch_Type
		o    *pb.Owner
	}{{pb.Watch_ADDED, owners()[0]}, {pb.Watch_BOOKMARK, nil}, {pb.Watch_ADDED, longOwners()[9]}, {pb.Watch_ADDED, longOwners()[10]}} {
		if err := w.Event(e.kind, e.o, now); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(b.String(), "EVENT"); got != 2 {
		t.Errorf("got %d headers, want 2:\n%s", got, &b)
	}
}

func TestConflictsOfOneIncidentAreGrouped(t *testing.T) {
	all := append(crowd(200), conflicts()...)
	var b bytes.Buffer
	groups, err := Conflicts(&b, all, piped, now)
	if err != nil {
		t.Fatal(err)
	}
	wantShown(t, "conflicts-grouped", b.String())
	if want := []string{"200 addresses of one incident share a line: 'ipwitness incidents abcd' shows the steps to take, and --ungrouped lists each."}; !slices.Equal(groups, want) {
		t.Errorf("got %v, want %v", groups, want)
	}
	for name, layout := range map[string]Layout{"ungrouped": {Ungrouped: true}, "wide": {Wide: true}} {
		b.Reset()
		groups, err := Conflicts(&b, all, layout, now)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), "\n"); got != 203 || len(groups) > 0 {
			t.Errorf("%s: got %d lines and %d groups, want 203 and none", name, got, len(groups))
		}
	}
}

func TestOnlyAlikeConflictsAreGrouped(t *testing.T) {
	for name, change := range map[string]func(c *pb.Conflict){
		"state":    func(c *pb.Conflict) { c.State = pb.Conflict_SUSPECTED },
		"cause":    func(c *pb.Conflict) { c.Cause = "static-address" },
		"scope":    func(c *pb.Conflict) { c.Scope = &pb.Scope{Kind: pb.Scope_LINK, Name: "l"} },
		"incident": func(c *pb.Conflict) { c.Incident = "other" },
		"ack":      func(c *pb.Conflict) { c.Acknowledgement = &pb.Acknowledgement{} },
		"too few":  func(*pb.Conflict) {},
		"unknown":  func(c *pb.Conflict) { c.Incident = "" },
		"resolved": func(c *pb.Conflict) { c.State, c.ResolvedAt = pb.Conflict_RESOLVED, at(0) },
	} {
		all := crowd(4)
		if name == "too few" {
			all = all[:3]
		}
		change(all[1])
		var b bytes.Buffer
		groups, err := Conflicts(&b, all, piped, now)
		if err != nil || len(groups) > 0 || strings.Count(b.String(), "\n") != len(all)+1 {
			t.Errorf("%s: got %v, %v and\n%s\nwant a line for each", name, groups, err, &b)
		}
	}
}

func TestResolvedConflictsShowHowLongTheyLasted(t *testing.T) {
	var b bytes.Buffer
	if _, err := Conflicts(&b, []*pb.Conflict{conflict(pb.Conflict_RESOLVED)}, piped, now); err != nil {
		t.Fatal(err)
	}
	if want := "3m ago, for 2m30s\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%s\nwant it to end with %q", &b, want)
	}
}

func TestMarksSayWhichOwnersAreInConflict(t *testing.T) {
	alone, one, other, beside := pod("a", "alone", "1"), pod("a", "one", "2"), pod("a", "other", "3"), pod("a", "beside", "4")
	alone.Address = "10.244.0.8"
	c := conflict(pb.Conflict_SUSPECTED)
	c.Owners = []*pb.Owner{one, other}
	wider := conflict(pb.Conflict_CONFIRMED)
	wider.Owners = []*pb.Owner{one, other}
	all := []*pb.Owner{alone, one, other, beside}
	for _, test := range []struct {
		conflicts []*pb.Conflict
		want      []string
	}{
		{nil, []string{"", "shared", "shared", "shared"}},
		{[]*pb.Conflict{c}, []string{"", "SUSPECTED", "SUSPECTED", "shared"}},
		{[]*pb.Conflict{wider, c}, []string{"", "CONFIRMED", "CONFIRMED", "shared"}},
		{[]*pb.Conflict{c, wider}, []string{"", "CONFIRMED", "CONFIRMED", "shared"}},
	} {
		m := NewMarks(all, test.conflicts)
		for i, o := range all {
			if got := m.of(o); got != test.want[i] {
				t.Errorf("%s: got %q, want %q", pb.OwnerName(o), got, test.want[i])
			}
		}
	}
}

func TestLinkLocalAddressesAreLeftOutUnlessInConflict(t *testing.T) {
	with := func(address, netns string) *pb.Owner {
		o := pod("a", "b", netns)
		o.Address = address
		return o
	}
	all := []*pb.Owner{with("10.244.0.7", "1"), with("fe80::1", "1"), with("169.254.20.10", "1"), with("fe80::2", "1"), with("fd00::1", "1")}
	twice := &pb.Conflict{State: pb.Conflict_CONFIRMED, Owners: []*pb.Owner{with("fe80::2", "1"), with("fe80::2", "2")}}
	for _, test := range []struct {
		marks *Marks
		want  string
	}{
		{NewMarks(all, []*pb.Conflict{twice}), "10.244.0.7 fe80::2 fd00::1"},
		{NewMarks(all, nil), "10.244.0.7 fd00::1"},
	} {
		var got []string
		for _, o := range test.marks.WithoutLinkLocal(all) {
			got = append(got, o.GetAddress())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// uncoloured removes escape codes.
func uncoloured(text string) string {
	for _, code := range []string{"\x1b[1;31m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"} {
		text = strings.ReplaceAll(text, code, "")
	}
	return text
}

func TestColoursChangeNoText(t *testing.T) {
	for _, width := range []int{0, 80} {
		piped := outputs(Layout{Width: width, Program: "ipwitness"})
		for name, colored := range outputs(Layout{Width: width, Color: true, Program: "ipwitness"}) {
			var got, want bytes.Buffer
			if err := colored(&got); err != nil {
				t.Fatal(err)
			}
			if err := piped[name](&want); err != nil {
				t.Fatal(err)
			}
			if width == 0 && !strings.Contains(got.String(), "\x1b[") { // a narrow terminal may have no room for the state
				t.Errorf("%s: got no colour", name)
			}
			if uncoloured(got.String()) != want.String() {
				t.Errorf("%s: got\n%s\nwant\n%s", name, &got, &want)
			}
		}
	}
}

func TestStatesHaveTones(t *testing.T) {
	for want, text := range map[string]func(w io.Writer) error{
		"\x1b[1;31mCONFIRMED\x1b[0m":    func(w io.Writer) error { return Conflict(w, conflict(pb.Conflict_CONFIRMED), Layout{Color: true}, now) },
		"\x1b[33mSUSPECTED\x1b[0m":      func(w io.Writer) error { return Conflict(w, conflict(pb.Conflict_SUSPECTED), Layout{Color: true}, now) },
		"\x1b[32mRESOLVED\x1b[0m":       func(w io.Writer) error { return Conflict(w, conflict(pb.Conflict_RESOLVED), Layout{Color: true}, now) },
		"\x1b[2mCONFIRMED (ack)\x1b[0m": func(w io.Writer) error { return Conflict(w, acknowledged(), Layout{Color: true}, now) },
		"\x1b[33mSTALE\x1b[0m":          func(w io.Writer) error { return Owners(w, []*pb.Owner{external()}, nil, Layout{Color: true}, now) },
	} {
		var b bytes.Buffer
		if err := text(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %q, want %q in it", &b, want)
		}
	}
}

func TestUnknownTimesHaveNoDuration(t *testing.T) {
	if got := since(&pb.Conflict{ResolvedAt: timestamppb.New(now)}, now); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestARowThatFitsInNoWayLeavesTheOthersAligned(t *testing.T) {
	short, long := conflict(pb.Conflict_CONFIRMED), longConflict()
	table := func(all ...*pb.Conflict) []string {
		var b bytes.Buffer
		if err := conflictTable(&b, all, Layout{Width: 80}); err != nil {
			t.Fatal(err)
		}
		return strings.Split(b.String(), "\n")
	}
	alone, beside := table(short), table(short, long)
	if !slices.Equal(alone[:2], beside[:2]) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(beside[:2], "\n"), strings.Join(alone[:2], "\n"))
	}
	if rest := strings.Join(beside[2:], "\n"); !strings.Contains(rest, "2001:db8:1234:5678:9abc:def0:1234:5678") || !strings.Contains(rest, "payments-production/checkout-backend-6b4c9d5f7-q8wvn") {
		t.Errorf("got\n%s\nwant the address and the owners of the other conflict", rest)
	}
	var b bytes.Buffer
	if err := (&page{layout: Layout{Width: 20}}).table(2).Flush(); err != nil { // no rows
		t.Fatal(err)
	}
	p := &page{layout: Layout{Width: 20}}
	only := p.table(2)
	only.add(nil, "a-word-that-is-longer-than-the-terminal", "text")
	if err := only.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := p.write(&b); err != nil || b.String() != "a-word-that-is-longer-than-the-terminal\n    text\n" {
		t.Errorf("got %q, %v, want the whole row", b.String(), err)
	}
}

func TestTextsAreBelowTheirRowsInANarrowTerminal(t *testing.T) {
	var b bytes.Buffer
	h := NewHistory(&b, FormatTable, Layout{Width: 60}, now)
	for _, page := range story()[:1] {
		if err := h.Events(page); err != nil {
			t.Fatal(err)
		}
	}
	if header, _, _ := strings.Cut(b.String(), "\n"); strings.Contains(header, "DETAILS") || !strings.Contains(header, "OWNER") {
		t.Errorf("got the header %q, want it without DETAILS", header)
	}
	if !strings.Contains(b.String(), "\n              already present when the journal began\n") {
		t.Errorf("got\n%s\nwant the details below the row", &b)
	}
}

func TestAWatchFollowsTheWidthOfTheTerminal(t *testing.T) {
	width := 120
	for name, layout := range map[string]Layout{
		"a terminal":      {Width: 120, Resized: func() int { return width }},
		"an unknown size": {Width: 120, Resized: func() int { return 0 }},
		"wide":            {Width: 120, Wide: true, Resized: func() int { return width }},
	} {
		var b bytes.Buffer
		w := NewWatch(&b, OwnerKind, layout)
		w.Begin()
		longest := func(o *pb.Owner) (columns int) {
			t.Helper()
			b.Reset()
			for _, err := range []error{w.Event(pb.Watch_ADDED, o, now), w.Event(pb.Watch_BOOKMARK, nil, now)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			for line := range strings.Lines(b.String()) {
				columns = max(columns, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
			}
			return columns
		}
		some := owners()
		width = 120
		before := longest(some[0])
		width = 70
		narrow := longest(some[1])
		repeated := strings.Contains(b.String(), "EVENT")
		width = 120
		after := longest(some[2])
		if follows := narrow <= 70 && repeated; before <= 70 || after <= 70 || follows != (name == "a terminal") {
			t.Errorf("%s: got lines of %d, %d and %d columns in a terminal of 120, then 70, then 120", name, before, narrow, after)
		}
	}
}
