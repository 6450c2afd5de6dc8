package casefile

import (
	"reflect"
	"unsafe"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Copy returns a deep copy of a case, which Encode can write while the records of the original
// change. Copying takes much less time than encoding.
func Copy(c *verdict.Case) *verdict.Case {
	out := *c
	copier{}.structure(reflect.ValueOf(&out).Elem())
	return &out
}

// copier maps records to their copies.
type copier map[original]reflect.Value

// original identifies a record. The type is part of it, because a struct and its first field have
// the same address.
type original struct {
	at unsafe.Pointer
	of reflect.Type
}

// structure replaces everything that the fields of a struct refer to by copies.
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
	default: // plain values
	}
}
