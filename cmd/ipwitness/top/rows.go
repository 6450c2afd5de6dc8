package top

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A conflictRow is what the list shows of a conflict. The evidence and the steps to take, which are
// most of it, are requested when the conflict is opened.
type conflictRow struct {
	id, address  string
	state        pb.Conflict_State
	acknowledged bool
	scope, cause string
	owners       []string
	since        time.Time
	resolved     time.Time
}

func newConflictRow(c *pb.Conflict) *conflictRow {
	r := &conflictRow{
		id:           c.GetId(),
		address:      c.GetAddress(),
		state:        c.GetState(),
		acknowledged: c.GetAcknowledgement() != nil,
		scope:        visible(show.ScopeName(c.GetScope())),
		cause:        c.GetCause(),
		since:        moment(c.GetDetectedAt()),
		resolved:     moment(c.GetResolvedAt()),
	}
	for _, name := range show.OwnerNames(c.GetOwners()) {
		r.owners = append(r.owners, visible(name))
	}
	return r
}

// active reports whether the conflict is not resolved.
func (r *conflictRow) active() bool { return r.state != pb.Conflict_RESOLVED }

// rank orders conflicts by how urgent they are.
func (r *conflictRow) rank() int {
	switch {
	case !r.active():
		return 3
	case r.acknowledged:
		return 2
	case r.state == pb.Conflict_CONFIRMED:
		return 0
	default:
		return 1
	}
}

func (r *conflictRow) tone() tone { return [...]tone{bad, warn, dim, good}[r.rank()] }

func (r *conflictRow) stateText() string {
	if r.acknowledged {
		return r.state.String() + " (ack)"
	}
	return r.state.String()
}

// A conflict that is resolved stays in the list for a while, so that its end is seen.
const resolvedFor = 5 * time.Minute

func conflictTable() table[*conflictRow] {
	byAddress := func(a, b *conflictRow) int { return compareAddresses(a.address, b.address) }
	order := func(a, b *conflictRow) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), b.since.Compare(a.since), byAddress(a, b), cmp.Compare(a.id, b.id))
	}
	return newTable(func(r *conflictRow) string { return r.id }, order,
		column[*conflictRow]{
			header: "STATE", cell: func(r *conflictRow, _ time.Time) []string { return one(r.stateText()) }, tone: (*conflictRow).tone,
			compare: func(a, b *conflictRow) int { return cmp.Compare(a.rank(), b.rank()) },
		},
		column[*conflictRow]{header: "ADDRESS", cell: func(r *conflictRow, _ time.Time) []string { return one(r.address) }, compare: byAddress},
		column[*conflictRow]{
			header: "OWNERS", least: 32, cell: func(r *conflictRow, _ time.Time) []string { return r.owners },
			compare: func(a, b *conflictRow) int { return slices.Compare(a.owners, b.owners) },
		},
		column[*conflictRow]{
			header: "SINCE", drop: 1, cell: func(r *conflictRow, now time.Time) []string { return one(ago(r.since, now)) },
			compare: func(a, b *conflictRow) int { return a.since.Compare(b.since) },
		},
		column[*conflictRow]{
			header: "CAUSE", drop: 2, cell: func(r *conflictRow, _ time.Time) []string { return one(r.cause) },
			compare: func(a, b *conflictRow) int { return cmp.Compare(a.cause, b.cause) },
		},
		column[*conflictRow]{
			header: "SCOPE", drop: 3, cell: func(r *conflictRow, _ time.Time) []string { return one(r.scope) },
			compare: func(a, b *conflictRow) int { return cmp.Compare(a.scope, b.scope) },
		},
		column[*conflictRow]{header: "ID", drop: 4, cell: func(r *conflictRow, _ time.Time) []string { return one(r.id) }},
	)
}

// A findingRow is what the list shows of a finding.
type findingRow struct {
	id, kind         string
	severity         pb.Finding_Severity
	address          string // empty if it is not about one address
	addresses, about []string
	nodes            []string
	pool, summary    string
	since            time.Time
}

func newFindingRow(f *pb.Finding) *findingRow {
	r := &findingRow{
		id:       f.GetId(),
		kind:     f.GetKind(),
		severity: f.GetSeverity(),
		address:  f.GetAddress(),
		pool:     visible(show.PoolName(f.GetPool())),
		summary:  visible(f.GetSummary()),
		since:    moment(f.GetDetectedAt()),
	}
	addresses := f.GetAddresses()
	if r.address != "" {
		addresses = []string{r.address}
	}
	r.addresses = some(addresses)
	r.about = some(show.OwnerNames(f.GetOwners()))
	r.nodes = some(show.FindingNodes(f))
	return r
}

// most is the maximum number of lines of a cell.
const most = 3

// some returns the first texts, and the number of the others.
func some(texts []string) (lines []string) {
	for i, s := range texts {
		if i == most-1 && len(texts) > most {
			return append(lines, fmt.Sprintf("and %d more", len(texts)-i))
		}
		lines = append(lines, visible(s))
	}
	return lines
}

func (r *findingRow) tone() tone {
	switch r.severity {
	case pb.Finding_CRITICAL:
		return bad
	case pb.Finding_WARNING:
		return warn
	default:
		return plain
	}
}

func findingTable() table[*findingRow] {
	byKind := func(a, b *findingRow) int { return cmp.Compare(a.kind, b.kind) }
	bySeverity := func(a, b *findingRow) int { return cmp.Compare(b.severity, a.severity) }
	byAddress := func(a, b *findingRow) int { return compareAddresses(a.address, b.address) }
	order := func(a, b *findingRow) int {
		return cmp.Or(bySeverity(a, b), byKind(a, b), cmp.Compare(a.pool, b.pool), byAddress(a, b), cmp.Compare(a.id, b.id))
	}
	return newTable(func(r *findingRow) string { return r.id }, order,
		column[*findingRow]{
			header: "SEVERITY", cell: func(r *findingRow, _ time.Time) []string { return one(r.severity.String()) },
			tone: (*findingRow).tone, compare: bySeverity,
		},
		column[*findingRow]{header: "KIND", cell: func(r *findingRow, _ time.Time) []string { return one(r.kind) }, compare: byKind},
		column[*findingRow]{header: "ADDRESS", least: 15, cell: func(r *findingRow, _ time.Time) []string { return r.addresses }, compare: byAddress},
		column[*findingRow]{
			header: "HOLDER", drop: 2, least: 20, cell: func(r *findingRow, _ time.Time) []string { return r.about },
			compare: func(a, b *findingRow) int { return slices.Compare(a.about, b.about) },
		},
		column[*findingRow]{
			header: "NODE", drop: 3, least: 12, cell: func(r *findingRow, _ time.Time) []string { return r.nodes },
			compare: func(a, b *findingRow) int { return slices.Compare(a.nodes, b.nodes) },
		},
		column[*findingRow]{
			header: "POOL", drop: 4, cell: func(r *findingRow, _ time.Time) []string { return one(r.pool) },
			compare: func(a, b *findingRow) int { return cmp.Compare(a.pool, b.pool) },
		},
		column[*findingRow]{
			header: "SINCE", drop: 1, cell: func(r *findingRow, now time.Time) []string { return one(ago(r.since, now)) },
			compare: func(a, b *findingRow) int { return a.since.Compare(b.since) },
		},
		column[*findingRow]{header: "SUMMARY", drop: 5, least: 60, cell: func(r *findingRow, _ time.Time) []string { return one(r.summary) }},
	)
}

// An ownerRow is what the list shows of an owner.
type ownerRow struct {
	address, name   string
	node, place     string
	evidence, state string
	mac, scope      string
	excluded        string
	since           time.Time
	key             string
	// conflict is the state of an active conflict of the address.
	conflict pb.Conflict_State
}

func newOwnerRow(o *pb.Owner) *ownerRow {
	return &ownerRow{
		address:  o.GetAddress(),
		name:     visible(show.Name(o)),
		node:     visible(o.GetNode()),
		place:    visible(o.GetInterface()),
		evidence: show.EvidenceKinds(o),
		state:    o.GetState().String(),
		mac:      visible(o.GetMac()),
		scope:    visible(show.ScopeName(o.GetScope())),
		excluded: visible(o.GetExcluded()),
		since:    moment(show.HeldSince(o)),
		key:      strings.Join([]string{o.GetAddress(), o.GetNode(), o.GetNetns(), o.GetInterface(), o.GetMac()}, "|"),
	}
}

func (r *ownerRow) tone() tone {
	switch {
	case r.conflict == pb.Conflict_CONFIRMED:
		return bad
	case r.conflict == pb.Conflict_SUSPECTED:
		return warn
	case r.excluded != "":
		return dim
	default:
		return plain
	}
}

func (r *ownerRow) conflictText() string {
	switch {
	case r.conflict != pb.Conflict_UNSPECIFIED:
		return r.conflict.String()
	case r.excluded != "":
		return "not compared"
	default:
		return ""
	}
}

func ownerTable() table[*ownerRow] {
	byAddress := func(a, b *ownerRow) int { return compareAddresses(a.address, b.address) }
	by := func(text func(*ownerRow) string) func(a, b *ownerRow) int {
		return func(a, b *ownerRow) int { return cmp.Compare(text(a), text(b)) }
	}
	name := func(r *ownerRow) string { return r.name }
	node := func(r *ownerRow) string { return r.node }
	place := func(r *ownerRow) string { return r.place }
	state := func(r *ownerRow) string { return r.state }
	cell := func(text func(*ownerRow) string) func(*ownerRow, time.Time) []string {
		return func(r *ownerRow, _ time.Time) []string { return one(text(r)) }
	}
	order := func(a, b *ownerRow) int { return cmp.Or(byAddress(a, b), cmp.Compare(a.key, b.key)) }
	return newTable(func(r *ownerRow) string { return r.key }, order,
		column[*ownerRow]{header: "ADDRESS", cell: cell(func(r *ownerRow) string { return r.address }), tone: (*ownerRow).tone, compare: byAddress},
		column[*ownerRow]{header: "WORKLOAD", least: 24, cell: cell(name), tone: (*ownerRow).tone, compare: by(name)},
		column[*ownerRow]{header: "CONFLICT", drop: 1, cell: cell((*ownerRow).conflictText), tone: (*ownerRow).tone, compare: by((*ownerRow).conflictText)},
		column[*ownerRow]{header: "NODE", drop: 2, least: 12, cell: cell(node), compare: by(node)},
		column[*ownerRow]{header: "INTERFACE", drop: 5, cell: cell(place), compare: by(place)},
		column[*ownerRow]{header: "STATE", drop: 3, cell: cell(state), compare: by(state)},
		column[*ownerRow]{
			header: "AGE", drop: 4, cell: func(r *ownerRow, now time.Time) []string { return one(ago(r.since, now)) },
			compare: func(a, b *ownerRow) int { return a.since.Compare(b.since) },
		},
		column[*ownerRow]{header: "EVIDENCE", drop: 6, cell: cell(func(r *ownerRow) string { return r.evidence })},
		column[*ownerRow]{header: "MAC", drop: 7, cell: cell(func(r *ownerRow) string { return r.mac })},
		column[*ownerRow]{header: "SCOPE", drop: 8, cell: cell(func(r *ownerRow) string { return r.scope })},
	)
}

func nodeTone(n *pb.Node) tone {
	switch {
	case n.GetState() != pb.Node_LIVE:
		return bad
	case len(n.GetProblems()) > 0:
		return warn
	default:
		return good
	}
}

func nodeTable() table[*pb.Node] {
	byName := func(a, b *pb.Node) int { return cmp.Compare(a.GetName(), b.GetName()) }
	rank := func(n *pb.Node) int { return [...]int{bad: 0, warn: 1, good: 2}[nodeTone(n)] }
	order := func(a, b *pb.Node) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), byName(a, b), cmp.Compare(show.NodeKey(a), show.NodeKey(b)))
	}
	count := func(n uint32) []string { return one(fmt.Sprint(n)) }
	return newTable(show.NodeKey, order,
		column[*pb.Node]{
			header: "STATE", cell: func(n *pb.Node, _ time.Time) []string { return one(nodeState(n)) }, tone: nodeTone,
			compare: func(a, b *pb.Node) int { return cmp.Compare(rank(a), rank(b)) },
		},
		column[*pb.Node]{header: "NAME", least: 16, cell: func(n *pb.Node, _ time.Time) []string { return one(n.GetName()) }, compare: byName},
		column[*pb.Node]{
			header: "HEARD", cell: func(n *pb.Node, now time.Time) []string { return one(ago(moment(n.GetLastHeard()), now)) },
			compare: func(a, b *pb.Node) int { return moment(b.GetLastHeard()).Compare(moment(a.GetLastHeard())) },
		},
		column[*pb.Node]{
			header: "WIRE", drop: 1, least: 6, cell: func(n *pb.Node, _ time.Time) []string { return one(n.GetWire()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(a.GetWire(), b.GetWire()) },
		},
		column[*pb.Node]{
			header: "PORTS", drop: 4, cell: func(n *pb.Node, _ time.Time) []string { return count(n.GetPorts()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(b.GetPorts(), a.GetPorts()) },
		},
		column[*pb.Node]{
			header: "CLAIMS", drop: 3, cell: func(n *pb.Node, _ time.Time) []string { return count(n.GetClaims()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(b.GetClaims(), a.GetClaims()) },
		},
		column[*pb.Node]{
			header: "LOST", drop: 5, cell: func(n *pb.Node, _ time.Time) []string { return count(n.GetLostEvents()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(b.GetLostEvents(), a.GetLostEvents()) },
		},
		column[*pb.Node]{
			header: "VERSION", drop: 6, cell: func(n *pb.Node, _ time.Time) []string { return one(n.GetVersion()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(a.GetVersion(), b.GetVersion()) },
		},
		column[*pb.Node]{
			header: "KERNEL", drop: 7, cell: func(n *pb.Node, _ time.Time) []string { return one(n.GetKernel()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(a.GetKernel(), b.GetKernel()) },
		},
		column[*pb.Node]{
			header: "PROBLEMS", drop: 2, least: 20, cell: func(n *pb.Node, _ time.Time) []string { return some(n.GetProblems()) },
			compare: func(a, b *pb.Node) int { return cmp.Compare(len(b.GetProblems()), len(a.GetProblems())) },
		},
	)
}

// nodeState returns the word for the state of a node's agent.
func nodeState(n *pb.Node) string {
	if n.GetState() == pb.Node_DISCONNECTED {
		return "DISCONNECTED"
	}
	return n.GetState().String()
}

// one returns a cell with one line.
func one(s string) []string { return []string{visible(s)} }

// moment returns a time, or the zero time if it is not known.
func moment(ts *timestamppb.Timestamp) time.Time {
	if ts == nil {
		return time.Time{}
	}
	return ts.AsTime()
}

// ago formats the time since t.
func ago(t, now time.Time) string {
	if t.IsZero() || now.IsZero() {
		return ""
	}
	return show.Duration(now.Sub(t))
}

// compareAddresses compares addresses as numbers, IPv4 first. Other texts come last.
func compareAddresses(a, b string) int {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	switch {
	case errX == nil && errY == nil:
		return x.Compare(y)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return strings.Compare(a, b)
}
