package casefile

import (
	"fmt"
	"reflect"
	"strconv"
	"unsafe"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// encoder encodes values. Records with equal content become one record of the file.
type encoder struct {
	tables [len(tables)]struct {
		ids   map[string]text         // IDs by content
		known map[unsafe.Pointer]text // IDs of records that were encoded before
		rows  []entry
	}
}

// object encodes the struct that p points to.
func (e *encoder) object(p any) text { return e.structure(reflect.ValueOf(p).Elem()) }

func (e *encoder) structure(v reflect.Value) text {
	var entries []entry
	for _, f := range structs[v.Type()] {
		if part := v.FieldByIndex(f.index); !absent(part) {
			entries = append(entries, entry{f.name, e.value(part)})
		}
	}
	return object(entries)
}

// absent reports whether a file omits a field with the value.
func absent(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

func (e *encoder) value(v reflect.Value) text {
	if l, ok := leaves[v.Type()]; ok {
		return quoted(l.text(v))
	}
	if who, ok := reflect.TypeAssert[verdict.Who](v); ok {
		return e.structure(reflect.ValueOf(who.Workload()))
	}
	switch v.Kind() {
	case reflect.Bool:
		return text{line: strconv.AppendBool(nil, v.Bool())}
	case reflect.String:
		return quoted(v.String())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return text{line: strconv.AppendUint(nil, v.Uint(), 10)}
	case reflect.Int:
		return text{line: strconv.AppendInt(nil, v.Int(), 10)}
	case reflect.Uint64: // many JSON parsers read numbers as floating-point
		return quoted(strconv.FormatUint(v.Uint(), 10))
	case reflect.Struct:
		return e.structure(v)
	case reflect.Pointer:
		return e.pointer(v)
	case reflect.Slice:
		all := make([]text, v.Len())
		for i := range all {
			all[i] = e.value(v.Index(i))
		}
		return array(all)
	}
	panic(fmt.Sprintf("case file: no encoding for %s", v.Type()))
}

// pointer encodes a reference to a record. A struct that is in no table is encoded in place.
func (e *encoder) pointer(v reflect.Value) text {
	if v.IsNil() {
		return text{line: []byte("null")}
	}
	i := tableOf(v.Type().Elem())
	if i < 0 {
		return e.structure(v.Elem())
	}
	t := &e.tables[i]
	if id, ok := t.known[v.UnsafePointer()]; ok {
		return id
	}
	content := e.structure(v.Elem())
	id, ok := t.ids[string(content.line)]
	if t.ids == nil {
		t.ids, t.known = map[string]text{}, map[unsafe.Pointer]text{}
	}
	if !ok {
		name := tables[i].prefix + strconv.Itoa(len(t.rows)+1)
		id = quoted(name)
		t.rows = append(t.rows, entry{name, content})
		t.ids[string(content.line)] = id
	}
	t.known[v.UnsafePointer()] = id
	return id
}
