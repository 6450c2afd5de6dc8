package audit

import (
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// NamesID returns the ID of the finding that several nodes have the same name.
func NamesID(p *verdict.Policy, name string) string {
	return verdict.FindingID(p.Cluster, verdict.FindingDuplicateNodeName, name)
}

// Names returns the finding that several nodes have the same name at the same time.
func Names(p *verdict.Policy, name string, machines []verdict.Machine) verdict.Finding {
	slices.SortFunc(machines, func(a, b verdict.Machine) int { return strings.Compare(a.Name, b.Name) })
	return verdict.Finding{
		ID: NamesID(p, name), Kind: verdict.FindingDuplicateNodeName, Severity: verdict.Warning,
		Namesakes: &verdict.Namesakes{Name: name, Machines: machines},
	}
}
