package casefile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// encoder encodes values. Equal records are one record of the file, wherever they are in
// memory.
type encoder struct {
	tables [len(tables)]struct {
		ids  map[string]json.RawMessage // by content
		rows []member
	}
}

// object encodes the struct that a pointer leads to.
func (e *encoder) object(p any) json.RawMessage { return e.structure(reflect.ValueOf(p).Elem()) }

func (e *encoder) structure(v reflect.Value) json.RawMessage {
	var members []member
	for _, f := range structs[v.Type()] {
		if part := v.FieldByIndex(f.index); !absent(part) {
			members = append(members, member{f.name, e.value(part)})
		}
	}
	return object(members)
}

// absent reports whether a file leaves out a field with the value.
func absent(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

func (e *encoder) value(v reflect.Value) json.RawMessage {
	if l, ok := leaves[v.Type()]; ok {
		return quoted(l.text(v))
	}
	if who, ok := reflect.TypeAssert[verdict.Who](v); ok {
		return e.structure(reflect.ValueOf(who.Workload()))
	}
	switch v.Kind() {
	case reflect.Bool:
		return strconv.AppendBool(nil, v.Bool())
	case reflect.String:
		return quoted(v.String())
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return strconv.AppendUint(nil, v.Uint(), 10)
	case reflect.Int:
		return strconv.AppendInt(nil, v.Int(), 10)
	case reflect.Uint64: // readers of JSON may take numbers for floating-point ones
		return quoted(strconv.FormatUint(v.Uint(), 10))
	case reflect.Struct:
		return e.structure(v)
	case reflect.Pointer:
		return e.pointer(v)
	case reflect.Slice:
		all := make([]json.RawMessage, v.Len())
		for i := range all {
			all[i] = e.value(v.Index(i))
		}
		return array(all)
	}
	panic(fmt.Sprintf("case file: no encoding for %s", v.Type()))
}

// pointer encodes a reference to a record, or a struct of no table in its place.
func (e *encoder) pointer(v reflect.Value) json.RawMessage {
	if v.IsNil() {
		return json.RawMessage("null")
	}
	i := tableOf(v.Type().Elem())
	content := e.structure(v.Elem())
	if i < 0 {
		return content
	}
	t := &e.tables[i]
	if id, ok := t.ids[string(content)]; ok {
		return id
	}
	if t.ids == nil {
		t.ids = map[string]json.RawMessage{}
	}
	name := tables[i].prefix + strconv.Itoa(len(t.rows)+1)
	t.rows = append(t.rows, member{name, content})
	t.ids[string(content)] = quoted(name)
	return t.ids[string(content)]
}
