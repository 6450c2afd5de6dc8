package casefile

import (
	"reflect"
	"unsafe"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Copy returns a copy of a case that has records of its own: Encode can write it while the records
// of the case change. Copying takes a small part of the time of encoding.
func Copy(c *verdict.Case) *verdict.Case {
	out := *c
	copier{}.structure(reflect.ValueOf(&out).Elem())
	return &out
}

// copier has the copies of the records that were copied before.
type copier map[original]reflect.Value

// original is a record. Its type belongs to it, because a struct is where its first field is.
type original struct {
	at unsafe.Pointer
	of reflect.Type
}

// structure replaces what the fields of a struct lead to by copies.
func (k copier) structure(v reflect.Value) {
	for _, f := range structs[v.Type()] {
		k.value(v.FieldByIndex(f.index))
	}
}

func (k copier) value(v reflect.Value) {
	if leaves[v.Type()].text != nil || absent(v) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		k.structure(v)
	case reflect.Slice:
		all := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(all, v)
		for i := range all.Len() {
			k.value(all.Index(i))
		}
		v.Set(all)
	case reflect.Pointer:
		of := original{v.UnsafePointer(), v.Type()}
		made, ok := k[of]
		if !ok {
			made = reflect.New(v.Type().Elem())
			made.Elem().Set(v.Elem())
			k[of] = made
			k.value(made.Elem())
		}
		v.Set(made)
	default: // has no records
	}
}
