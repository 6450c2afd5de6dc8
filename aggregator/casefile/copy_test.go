package casefile

import (
	"bytes"
	"reflect"
	"testing"
	"unsafe"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// memoryOf collects the addresses of all records and lists that a value refers to.
func memoryOf(v reflect.Value, all map[unsafe.Pointer]bool) {
	switch v.Kind() {
	case reflect.Struct:
		for i := 0; i < v.NumField() && v.Type().PkgPath() != "net/netip"; i++ {
			memoryOf(v.Field(i), all)
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		all[v.UnsafePointer()] = true
		for i := range v.Len() {
			memoryOf(v.Index(i), all)
		}
	case reflect.Pointer:
		if !v.IsNil() && !all[v.UnsafePointer()] {
			all[v.UnsafePointer()] = true
			memoryOf(v.Elem(), all)
		}
	default:
	}
}

func TestACopySharesNoRecordWithItsCase(t *testing.T) {
	f := &File{Policy: &verdict.Policy{}, Case: &verdict.Case{}}
	new(filler).fill(reflect.ValueOf(f.Case).Elem())
	// Two references to one record still refer to one record in the copy.
	twice := &verdict.Node{Name: "twice"}
	f.Case.Claims[0].Interface.Namespace.Node, f.Case.Claims[0].Link.Node = twice, twice
	want, err := Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	was, is := map[unsafe.Pointer]bool{}, map[unsafe.Pointer]bool{}
	memoryOf(reflect.ValueOf(*f.Case), was)
	f.Case = Copy(f.Case)
	memoryOf(reflect.ValueOf(*f.Case), is)
	if len(was) < 50 || len(was) != len(is) {
		t.Errorf("got %d records and lists, want as many as the %d of the case", len(is), len(was))
	}
	for at := range is {
		if was[at] {
			t.Errorf("%p is the case's own", at)
		}
	}
	if c := f.Case.Claims[0]; c.Interface.Namespace.Node != c.Link.Node {
		t.Error("one node became two")
	}
	got, err := Encode(f)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %v and\n%s, want\n%s", err, got, want)
	}
}
