package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// FindingKind is how findings are listed.
var FindingKind = Kind[*pb.Finding]{Name: "finding", Key: (*pb.Finding).GetId, ID: (*pb.Finding).GetId, Orders: []string{"address", "holder", "id", "kind", "node", "pool", "severity", "since"}, columns: findingColumns}

func findingColumns() []Column[*pb.Finding] {
	return []Column[*pb.Finding]{
		{Header: "SEVERITY", Tone: findingTone, Order: most((*pb.Finding).GetSeverity), room: 8, cell: func(f *pb.Finding, _ time.Time) string { return f.GetSeverity().String() }},
		{Header: "KIND", trait: trait{folds: true}, room: 18, cell: func(f *pb.Finding, _ time.Time) string { return f.GetKind() }},
		{Header: "ADDRESS", Order: byAddress(func(f *pb.Finding) string { return few(findingAddresses(f)) }), trait: trait{folds: true, cut: 15}, room: 15, cell: func(f *pb.Finding, _ time.Time) string { return few(findingAddresses(f)) }, lines: func(f *pb.Finding) []string { return findingAddresses(f) }},
		{Header: "HOLDER", trait: trait{rank: 2, folds: true, cut: 20}, room: 24, cell: func(f *pb.Finding, _ time.Time) string { return few(OwnerNames(f.GetOwners())) }, lines: func(f *pb.Finding) []string { return OwnerNames(f.GetOwners()) }},
		{Header: "NODE", trait: trait{rank: 5, cut: 12}, room: 12, cell: func(f *pb.Finding, _ time.Time) string { return few(FindingNodes(f)) }, lines: func(f *pb.Finding) []string { return FindingNodes(f) }},
		{Header: "POOL", trait: trait{rank: 6, folds: true}, room: 16, cell: func(f *pb.Finding, _ time.Time) string { return PoolName(f.GetPool()) }},
		{Header: "SINCE", trait: trait{rank: 3}, ages: true, at: (*pb.Finding).GetDetectedAt, cell: func(f *pb.Finding, now time.Time) string { return ago(f.GetDetectedAt(), now) }},
		{Header: "ID", trait: trait{rank: 7}, room: 16, cell: func(f *pb.Finding, _ time.Time) string { return f.GetId() }},
		{Header: "ALLOCATED TO", wide: true, cell: func(f *pb.Finding, _ time.Time) string { return allocatedTo(f.GetAllocations()) }},
		{Header: "SUMMARY", trait: trait{rank: 9, cut: 60}, wide: true, cell: func(f *pb.Finding, _ time.Time) string { return f.GetSummary() }},
	}
}

// SortFindings puts findings in order: the most severe first, then by kind, pool, node
// and address.
func SortFindings(findings []*pb.Finding) {
	rank := map[string]int{}
	for i, kind := range verdict.FindingKinds() {
		rank[kind] = i - len(verdict.FindingKinds()) // unknown kinds come last
	}
	slices.SortStableFunc(findings, func(a, b *pb.Finding) int {
		return cmp.Or(
			cmp.Compare(b.GetSeverity(), a.GetSeverity()),
			cmp.Compare(rank[a.GetKind()], rank[b.GetKind()]), cmp.Compare(a.GetKind(), b.GetKind()),
			cmp.Compare(PoolName(a.GetPool()), PoolName(b.GetPool())),
			strings.Compare(a.GetCluster(), b.GetCluster()), slices.Compare(FindingNodes(a), FindingNodes(b)),
			CompareAddresses(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetId(), b.GetId()))
	})
}

// FindingNodes returns the names of the nodes that a finding is about.
func FindingNodes(f *pb.Finding) []string {
	nodes := slices.Clone(f.GetNodes())
	if node := f.GetPool().GetNode(); node != "" && !slices.Contains(nodes, node) {
		nodes = append(nodes, node)
	}
	return nodes
}

// FindingLine describes a finding in one line.
func FindingLine(f *pb.Finding) string {
	about := join(" ", few(findingAddresses(f)), few(OwnerNames(f.GetOwners())), PoolName(f.GetPool()))
	return clean(join(": ", f.GetSeverity().String()+" "+f.GetKind(), about))
}

// findingAddresses returns the addresses, or prefixes, that a finding is about.
func findingAddresses(f *pb.Finding) []string {
	if f.GetAddress() != "" {
		return []string{f.GetAddress()}
	}
	return f.GetAddresses()
}

// named is the number of names that few shows if there are many.
const named = 2

// few joins names with commas. If there are many, it shows the first ones and a count.
func few(all []string) string {
	if len(all) > named+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:named], ", "), len(all)-named)
	}
	return strings.Join(all, ", ")
}

// Findings writes sorted findings as a table. Many findings of the same kind, pool and node share one
// line, unless the layout is wide.
func Findings(w io.Writer, findings []*pb.Finding, layout Layout, now time.Time) error {
	rows := findings
	if !layout.Wide {
		rows = grouped(findings, func(f *pb.Finding) string {
			if f.GetAddress() == "" {
				return ""
			}
			p := f.GetPool()
			return strings.Join(append(FindingNodes(f), f.GetCluster(), f.GetSeverity().String(), f.GetKind(), p.GetIpam(), p.GetName(), p.GetNode()), "\x00")
		}, func(all []*pb.Finding) *pb.Finding {
			f := all[0]
			out := &pb.Finding{
				Severity: f.GetSeverity(), Kind: fmt.Sprintf("%s (%d)", f.GetKind(), len(all)), Pool: f.GetPool(), Nodes: f.GetNodes(), Cluster: f.GetCluster(),
			}
			for _, f := range all {
				out.Addresses = append(out.Addresses, f.GetAddress())
				out.Owners = append(out.Owners, f.GetOwners()...)
				if CompareTimes(f.GetDetectedAt(), out.GetDetectedAt()) < 0 {
					out.DetectedAt = f.GetDetectedAt()
				}
			}
			return out
		})
	}
	return list(w, layout, clustered(narrow(findingColumns(), layout.Wide), findings), rows, now)
}

// allocatedTo lists the workloads that an address is allocated to.
func allocatedTo(allocations []*pb.Allocation) string {
	var out []string
	for _, al := range allocations {
		who := cmp.Or(prefixed("container/", pb.ShortID(al.GetContainerId())), prefixed("mac/", al.GetMac()))
		if al.GetPod() != "" {
			who = al.GetNamespace() + "/" + al.GetPod()
		}
		out = append(out, cmp.Or(join("", who, prefixed("@", al.GetNode())), al.GetLocation(), "?"))
	}
	return strings.Join(out, " | ")
}

// Finding writes the details of one finding as a page.
func Finding(w io.Writer, f *pb.Finding, layout Layout, now time.Time) error {
	p := &page{layout: layout, now: now}
	p.text("", f.GetSummary())
	p.line("")
	var since string
	var addresses []string
	if at := f.GetDetectedAt(); at != nil {
		since = clock(at, now) + ", for " + age(at, now)
	}
	pool := ""
	if of := f.GetPool(); of != nil {
		left := fullIn(of)
		if left != "now" {
			left = prefixed("in ", left)
		}
		pool = join(", ", join(" ", of.GetIpam(), of.GetName()), prefixed("node ", of.GetNode()), prefixed("network ", of.GetNetwork()),
			few(of.GetRanges()), of.GetState().String(), filled(of)+" allocated", fmt.Sprintf("%d leaked", of.GetLeaked()), prefixed("full ", left))
	}
	p.fields("Finding", f.GetId(), "Cluster", f.GetCluster(), "Kind", f.GetKind())
	p.toned(findingTone(f), f.GetSeverity().String(), "Severity:  ", f.GetSeverity().String())
	p.fields(
		"Address", f.GetAddress(),
		"Since", since,
		"Nodes", strings.Join(f.GetNodes(), ", "),
		"Pool", pool,
	)
	if f.GetRunbook() != "" {
		p.link("Runbook:   ", f.GetRunbook())
	}
	p.fields("Times", zone)
	p.bullets("Evidence:", "  - ", f.GetEvidence()...)
	for chunk := range slices.Chunk(f.GetAddresses(), 8) {
		addresses = append(addresses, strings.Join(chunk, " "))
	}
	p.bullets("Addresses:", "  - ", addresses...)
	p.allocations(f.GetAllocations())
	p.owners("Held by:", f.GetOwners())
	p.remedy(f.GetRemedy())
	p.fixes(f.GetFixes())
	return p.write(w)
}

// fixes adds the commands that repair IPAM.
func (p *page) fixes(fixes []*pb.Fix) {
	if len(fixes) == 0 {
		return
	}
	p.line("")
	p.text("", "Repair commands (ipwitness changes nothing; `"+p.layout.Program+" audit --fix-plan` prints all of them as one script):")
	for i, f := range fixes {
		f = readable(f)
		where := "where kubectl works"
		if f.GetNode() != "" {
			where = "on node " + f.GetNode()
		}
		if f.GetManual() {
			where += ", by hand"
		}
		p.text(fmt.Sprintf("  %d. ", i+1), where+": "+f.GetWhat())
		for line := range strings.Lines(f.GetCommand()) {
			p.line("       %s", strings.TrimRight(line, "\n"))
		}
	}
}

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
