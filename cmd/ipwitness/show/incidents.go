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

// IncidentKind is how incidents are listed.
var IncidentKind = Kind[*pb.Incident]{
	Name: "incident", Key: (*pb.Incident).GetId, ID: (*pb.Incident).GetId, columns: incidentColumns,
	Orders: []string{"addresses", "cause", "id", "node", "severity", "since", "twice"},
}

func incidentColumns() []Column[*pb.Incident] {
	return []Column[*pb.Incident]{
		{Header: "ID", room: 16, cell: func(i *pb.Incident, _ time.Time) string { return i.GetId() }},
		{Header: "SEVERITY", Tone: incidentTone, Order: most((*pb.Incident).GetSeverity), trait: trait{rank: 6}, room: 8, cell: func(i *pb.Incident, _ time.Time) string { return i.GetSeverity().String() }},
		{Header: "CAUSE", trait: trait{folds: true}, room: 20, cell: func(i *pb.Incident, _ time.Time) string { return i.GetCause() }},
		{Header: "ADDRESSES", Order: most((*pb.Incident).GetAddressCount), trait: trait{rank: 2}, room: 9, cell: func(i *pb.Incident, _ time.Time) string { return fmt.Sprint(i.GetAddressCount()) }},
		{Header: "TWICE", Order: most(twice), trait: trait{rank: 3}, room: 5, cell: func(i *pb.Incident, _ time.Time) string { return fmt.Sprint(twice(i)) }},
		{Header: "NODE", trait: trait{rank: 7, folds: true}, room: 12, cell: func(i *pb.Incident, _ time.Time) string { return few(i.GetNodes()) }},
		{Header: "SINCE", trait: trait{rank: 4}, ages: true, at: (*pb.Incident).GetDetectedAt, cell: func(i *pb.Incident, now time.Time) string { return ago(i.GetDetectedAt(), now) }},
		{Header: "POOL", wide: true, cell: func(i *pb.Incident, _ time.Time) string { return PoolName(i.GetPool()) }},
		{Header: "FIRST ADDRESSES", wide: true, cell: func(i *pb.Incident, _ time.Time) string { return few(i.GetAddresses()) }},
		{Header: "FINDINGS", wide: true, cell: func(i *pb.Incident, _ time.Time) string { return fmt.Sprint(i.GetFindings()) }},
		{Header: "SUMMARY", trait: trait{folds: true, below: true}, cell: func(i *pb.Incident, _ time.Time) string { return i.GetSummary() }},
	}
}

// twice returns the number of conflicts of an incident.
func twice(i *pb.Incident) uint32 { return i.GetConfirmed() + i.GetSuspected() + i.GetAcknowledged() }

// heldTwice counts the conflicts of incidents by their state; "none" if there are none.
func heldTwice(all ...*pb.Incident) string {
	var confirmed, suspected, acknowledged uint32
	for _, i := range all {
		confirmed, suspected, acknowledged = confirmed+i.GetConfirmed(), suspected+i.GetSuspected(), acknowledged+i.GetAcknowledged()
	}
	var parts []string
	for _, n := range []struct {
		count uint32
		what  string
	}{{confirmed, "confirmed"}, {suspected, "suspected"}, {acknowledged, "acknowledged"}} {
		if n.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.count, n.what))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

func incidentTone(i *pb.Incident) Tone { return findingTone(&pb.Finding{Severity: i.GetSeverity()}) }

// SortIncidents puts incidents in order: the most severe first, then those with conflicts, then the newest.
func SortIncidents(incidents []*pb.Incident) {
	slices.SortStableFunc(incidents, CompareIncidents)
}

// CompareIncidents is the order of SortIncidents.
func CompareIncidents(a, b *pb.Incident) int {
	return cmp.Or(
		cmp.Compare(b.GetSeverity(), a.GetSeverity()), cmp.Compare(b.GetConfirmed(), a.GetConfirmed()), cmp.Compare(b.GetSuspected(), a.GetSuspected()),
		CompareTimes(b.GetDetectedAt(), a.GetDetectedAt()), strings.Compare(a.GetId(), b.GetId()))
}

// IncidentLine describes an incident in one line.
func IncidentLine(i *pb.Incident) string {
	return clean(i.GetSeverity().String() + " " + i.GetSummary())
}

// Incidents writes incidents as a table.
func Incidents(w io.Writer, incidents []*pb.Incident, layout Layout, now time.Time) error {
	return list(w, layout, clustered(narrow(incidentColumns(), layout.Wide), incidents), incidents, now)
}

// Incident writes the details of one incident as a page: what it is, what to do, and its members in rows. The details of
// an incident with only one member are those of the member.
func Incident(w io.Writer, i *pb.Incident, conflicts []*pb.Conflict, findings []*pb.Finding, layout Layout, now time.Time) error {
	switch {
	case len(conflicts) == 1 && len(findings) == 0:
		return Conflict(w, conflicts[0], layout, now)
	case len(conflicts) == 0 && len(findings) == 1:
		return Finding(w, findings[0], layout, now)
	}
	p := &page{layout: layout, now: now}
	p.text("", i.GetSummary())
	p.line("")
	since := ""
	if at := i.GetDetectedAt(); at != nil {
		since = clock(at, now) + ", for " + age(at, now)
	}
	p.fields("Incident", i.GetId(), "Cluster", i.GetCluster(), "Cause", i.GetCause())
	p.toned(incidentTone(i), i.GetSeverity().String(), "Severity:  ", i.GetSeverity().String())
	p.fields(
		"Since", since,
		"Nodes", few(i.GetNodes()),
		"Pool", PoolName(i.GetPool()),
		"Addresses", fmt.Sprint(i.GetAddressCount()),
		"Conflicts", heldTwice(i),
		"Findings", fmt.Sprint(i.GetFindings()),
	)
	if i.GetRunbook() != "" {
		p.link("Runbook:   ", i.GetRunbook())
	}
	p.fields("Times", zone)
	p.remedy(i.GetRemedy())
	if len(conflicts) > 0 {
		p.heading("Conflicts:")
		layout.Ungrouped = true
		if _, err := Conflicts(p, conflicts, layout, now); err != nil {
			return err
		}
	}
	if len(findings) > 0 {
		p.heading("Findings:")
		if err := Findings(p, findings, layout, now); err != nil {
			return err
		}
	}
	return p.write(w)
}
