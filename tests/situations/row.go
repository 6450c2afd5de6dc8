package situations

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Row is a verdict as values: the subject of a row of docs/situations.md. It leaves out
// everything that differs between runs, arrives at a varying time, or is only wording.
type Row struct {
	Scope     string     `json:"scope,omitempty"`
	Owners    []Owner    `json:"owners"`
	Conflicts []Conflict `json:"conflicts"`
	// Applied and NotApplied are the rules that were evaluated, each with its scope.
	Applied    []string `json:"applied"`
	NotApplied []string `json:"notApplied"`
}

// Owner is a workload or device that holds the address or is seen with it.
type Owner struct {
	Name  string `json:"name"`
	Node  string `json:"node"`
	State string `json:"state"`
	// Excluded is set if the owner is no rival of the others.
	Excluded bool `json:"excluded,omitempty"`
	// Evidence lists the kinds of evidence for the owner, each once.
	Evidence []string `json:"evidence"`
}

// Conflict is one conflict of the address.
type Conflict struct {
	State     string   `json:"state"`
	Scope     string   `json:"scope"`
	Rule      string   `json:"rule"`
	Cause     string   `json:"cause"`
	LinkProof string   `json:"linkProof,omitempty"`
	Owners    []string `json:"owners"`
}

// rowOf returns an explanation as a Row, in an order that does not depend on inodes.
func rowOf(e *ipwitnessv1.ExplainResponse) Row {
	r := Row{Scope: scopeText(e.GetScope()), Owners: []Owner{}, Conflicts: []Conflict{}, Applied: []string{}, NotApplied: []string{}}
	for _, o := range e.GetOwners() {
		owner := Owner{Name: nameOf(o), Node: o.GetNode(), State: o.GetState().String(), Excluded: o.GetExcluded() != ""}
		for _, v := range o.GetEvidence() {
			owner.Evidence = append(owner.Evidence, v.GetKind().String())
		}
		owner.Evidence = set(owner.Evidence)
		r.Owners = append(r.Owners, owner)
	}
	slices.SortFunc(r.Owners, func(a, b Owner) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for _, c := range e.GetConflicts() {
		conflict := Conflict{
			State: c.GetState().String(), Scope: scopeText(c.GetScope()), Rule: c.GetRule(), Cause: c.GetCause(),
		}
		if p := c.GetLinkProof(); p != ipwitnessv1.LinkProof_UNSPECIFIED {
			conflict.LinkProof = p.String()
		}
		for _, o := range c.GetOwners() {
			conflict.Owners = append(conflict.Owners, nameOf(o))
		}
		slices.Sort(conflict.Owners)
		r.Conflicts = append(r.Conflicts, conflict)
	}
	slices.SortFunc(r.Conflicts, func(a, b Conflict) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	for _, s := range e.GetSteps() {
		step := strings.TrimSpace(s.GetRule() + " " + scopeText(s.GetScope()))
		if s.GetApplied() {
			r.Applied = append(r.Applied, step)
		} else {
			r.NotApplied = append(r.NotApplied, step)
		}
	}
	r.Applied, r.NotApplied = set(r.Applied), set(r.NotApplied)
	return r
}

// text returns the row in the format of its file.
func (r Row) text() string {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic(err) // cannot fail: all fields are text
	}
	return Stable(string(data)) + "\n"
}

// nameOf returns the kind and name of an owner. An external device has only its MAC.
func nameOf(o *ipwitnessv1.Owner) string {
	w := o.GetWorkload()
	name := w.GetName()
	switch {
	case w.GetKind() == ipwitnessv1.Workload_EXTERNAL:
		name = o.GetMac()
	case w.GetNamespace() != "":
		name = w.GetNamespace() + "/" + name
	}
	return strings.TrimSpace(w.GetKind().String() + " " + name)
}

func scopeText(s *ipwitnessv1.Scope) string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(s.GetKind().String() + " " + s.GetName())
}

// set returns a sorted list without duplicates.
func set(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
