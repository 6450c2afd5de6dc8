package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// poolColumns returns the columns of a table of pools.
func poolColumns() []Column[*pb.Pool] {
	return []Column[*pb.Pool]{
		{Header: "IPAM", cell: func(p *pb.Pool, _ time.Time) string { return p.GetIpam() }},
		{Header: "POOL", trait: trait{rank: 1}, cell: func(p *pb.Pool, _ time.Time) string { return p.GetName() }},
		{Header: "NETWORK", wide: true, cell: func(p *pb.Pool, _ time.Time) string { return p.GetNetwork() }},
		{Header: "NODE", trait: trait{rank: 3}, cell: func(p *pb.Pool, _ time.Time) string { return p.GetNode() }},
		{Header: "STATE", Tone: func(p *pb.Pool) Tone {
			switch p.GetState() {
			case pb.Pool_KNOWN, pb.Pool_READING:
				return PlainTone
			case pb.Pool_MISSING, pb.Pool_UNREADABLE:
				return BadTone
			}
			return WarnTone
		}, cell: func(p *pb.Pool, _ time.Time) string { return p.GetState().String() }},
		{Header: "ALLOCATED", cell: func(p *pb.Pool, _ time.Time) string { return filled(p) }},
		{Header: "LEAKED", trait: trait{rank: 4}, cell: func(p *pb.Pool, _ time.Time) string { return fmt.Sprint(p.GetLeaked()) }},
		{Header: "FULL IN", trait: trait{rank: 2}, cell: func(p *pb.Pool, _ time.Time) string { return fullIn(p) }},
		{Header: "RANGES", wide: true, cell: func(p *pb.Pool, _ time.Time) string { return few(p.GetRanges()) }},
	}
}

// filled formats the number of allocated addresses of a pool and its size.
func filled(p *pb.Pool) string {
	if p.GetSize() == 0 {
		return fmt.Sprint(p.GetAllocated())
	}
	return fmt.Sprintf("%d/%d (%d%%)", p.GetAllocated(), p.GetSize(), int(fill(p)*100))
}

// fill returns how full a pool is, from 0 to 1.
func fill(p *pb.Pool) float64 {
	if p.GetSize() == 0 {
		return 0
	}
	return float64(p.GetAllocated()) / float64(p.GetSize())
}

// fullIn formats the time until a pool is full.
func fullIn(p *pb.Pool) string {
	switch {
	case p.GetSize() > 0 && p.GetAllocated() >= p.GetSize():
		return "now"
	case p.GetExhaustedIn() == nil:
		return ""
	}
	return Duration(p.GetExhaustedIn().AsDuration())
}

// PoolName returns the short name of a pool. A pool that is a directory is named after its network.
func PoolName(p *pb.Pool) string {
	name := p.GetName()
	if strings.HasPrefix(name, "/") {
		name = cmp.Or(p.GetNetwork(), name)
	}
	return join(" ", p.GetIpam(), name)
}

// poolLine describes a pool in one line.
func poolLine(p *pb.Pool) string {
	if p == nil {
		return ""
	}
	left := fullIn(p)
	if left != "now" {
		left = prefixed("in ", left)
	}
	return join(", ", join(" ", p.GetIpam(), p.GetName()), prefixed("node ", p.GetNode()), prefixed("network ", p.GetNetwork()),
		few(p.GetRanges()), p.GetState().String(), filled(p)+" allocated", fmt.Sprintf("%d leaked", p.GetLeaked()), prefixed("full ", left))
}

// mostPools is the maximum number of pools in a table that is not wide.
const mostPools = 10

// Pools writes pools as a table: first pools whose records are not known, then the fullest pools. It
// limits their number unless the layout is wide.
func Pools(w io.Writer, pools []*pb.Pool, layout Layout) error {
	pools = slices.Clone(pools)
	slices.SortStableFunc(pools, func(a, b *pb.Pool) int {
		bad := func(p *pb.Pool) int {
			if p.GetState() == pb.Pool_KNOWN {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(bad(a), bad(b)), cmp.Compare(fill(b), fill(a)), cmp.Compare(b.GetLeaked(), a.GetLeaked()))
	})
	shown := pools
	if !layout.Wide && len(pools) > mostPools+1 {
		shown = pools[:mostPools]
	}
	if err := list(w, layout, narrow(poolColumns(), layout.Wide), shown, time.Time{}); err != nil {
		return err
	}
	if more := len(pools) - len(shown); more > 0 {
		_, err := fmt.Fprintf(w, "… and %d more pools, which are less full. -o wide lists all.\n", more)
		return err
	}
	return nil
}

// Audited summarizes the audited pools: "3 pools with 120 allocations (host-local, whereabouts)".
func Audited(pools []*pb.Pool) string {
	var allocated uint64
	var ipams []string
	for _, p := range pools {
		allocated += p.GetAllocated()
		if !slices.Contains(ipams, p.GetIpam()) {
			ipams = append(ipams, p.GetIpam())
		}
	}
	slices.Sort(ipams)
	return fmt.Sprintf("%s with %s (%s)", Count(len(pools), "pool", "pools"), Count(int(allocated), "allocation", "allocations"), strings.Join(ipams, ", "))
}
