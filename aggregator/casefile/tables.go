package casefile

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A table has all records of one type. Records refer to each other by IDs, which consist of the
// prefix and a number.
type table struct {
	name, prefix string
	of           reflect.Type
}

// tables are all tables, in the order in which they are written.
var tables = [...]table{
	{"claims", "c", reflect.TypeFor[verdict.Claim]()},
	{"interfaces", "i", reflect.TypeFor[verdict.Interface]()},
	{"namespaces", "ns", reflect.TypeFor[verdict.Namespace]()},
	{"links", "l", reflect.TypeFor[verdict.Link]()},
	{"domains", "d", reflect.TypeFor[verdict.Domain]()},
	{"nodes", "n", reflect.TypeFor[verdict.Node]()},
	{"pods", "pod", reflect.TypeFor[verdict.PodObject]()},
	{"allocations", "a", reflect.TypeFor[verdict.Allocation]()},
	{"pools", "pool", reflect.TypeFor[verdict.Pool]()},
}

// tableOf returns the index of the table for a type; -1 if there is none.
func tableOf(t reflect.Type) int {
	for i := range tables {
		if tables[i].of == t {
			return i
		}
	}
	return -1
}

// required are the fields without which a case cannot be judged.
var required = map[string]bool{
	"Case.address": true, "Case.now": true,
	"Claim.interface": true, "Claim.kind": true,
	"Interface.namespace": true, "Namespace.node": true, "Link.node": true, "Domain.node": true,
	"Allocation.pool": true, "AllocationFacts.allocation": true, "NamespaceFacts.namespace": true,
	"Stitch.entered": true, "Stitch.home": true, "Subnet.interface": true,
	"Identity.id": true, "Memory.owners": true, "Course.phase": true, "Member.id": true, "Exclusion.rule": true,
	"Owner.id": true, "Owner.node": true, "Owner.interface": true,
	"Spoof.port": true, "Spoof.sender": true, "Spoof.macs": true,
	"Range.first": true, "Range.last": true,
}

// leftOut are the fields of findings that are never set in a finding about one address.
var leftOut = map[string]bool{"Finding.stock": true, "Finding.overlap": true, "Finding.namesakes": true}

// structs are all struct types of a file, with their fields.
var structs = structsOf(map[reflect.Type][]field{}, reflect.TypeFor[File]())

// structsOf adds the struct types that values of a type may contain.
func structsOf(all map[reflect.Type][]field, t reflect.Type) map[reflect.Type][]field {
	switch {
	case t == reflect.TypeFor[verdict.Who]():
		return structsOf(all, reflect.TypeFor[verdict.Workload]())
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice:
		return structsOf(all, t.Elem())
	case t.Kind() != reflect.Struct || leaves[t].text != nil || all[t] != nil:
		return all
	}
	all[t] = fieldsOf(t, nil)
	for _, f := range all[t] {
		structsOf(all, t.FieldByIndex(f.index).Type)
	}
	return all
}

// A field is a field of a struct, or of a struct embedded in it.
type field struct {
	name     string
	index    []int
	required bool
}

func fieldsOf(t reflect.Type, outer []int) (all []field) {
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(slices.Clone(outer), i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			all = append(all, fieldsOf(f.Type, index)...)
			continue
		}
		name := nameOf(f.Name)
		if leftOut[t.Name()+"."+name] {
			continue
		}
		all = append(all, field{name, index, required[t.Name()+"."+name]})
	}
	return all
}

// nameOf returns the name of a field in a file: the Go name in lower camel case, with abbreviations
// treated as ordinary words.
func nameOf(field string) string {
	runes := []rune(strings.NewReplacer("MACs", "Macs", "IPs", "Ips").Replace(field))
	var name []rune
	for i, r := range runes {
		after := i > 0 && unicode.IsLower(runes[i-1])
		before := i > 0 && i+1 < len(runes) && unicode.IsLower(runes[i+1])
		if !after && !before {
			r = unicode.ToLower(r)
		}
		name = append(name, r)
	}
	return string(name)
}
