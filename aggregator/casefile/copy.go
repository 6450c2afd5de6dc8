package casefile

import (
	"reflect"
	"unsafe"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Copy returns a deep copy of a case, which Encode can write while the records of the original
// change. Copying takes much less time than encoding.
func Copy(c *verdict.Case) *verdict.Case {
	return copier{}.value(reflect.ValueOf(c)).Interface().(*verdict.Case)
}

// copier maps records to their copies. The type is part of the key, because a struct and its first
// field have the same address.
type copier map[original]reflect.Value

type original struct {
	at unsafe.Pointer
	of reflect.Type
}

func (k copier) value(v reflect.Value) reflect.Value {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		key := original{v.UnsafePointer(), v.Type()}
		if _, ok := k[key]; !ok {
			k[key] = reflect.New(v.Type().Elem())
			k[key].Elem().Set(k.value(v.Elem()))
		}
		return k[key]
	case v.Kind() == reflect.Slice && !v.IsNil():
		all := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			all.Index(i).Set(k.value(v.Index(i)))
		}
		return all
	case v.Kind() == reflect.Struct && v.Type().PkgPath() != "net/netip":
		out := reflect.New(v.Type()).Elem()
		for i := range v.NumField() {
			out.Field(i).Set(k.value(v.Field(i)))
		}
		return out
	}
	return v
}
