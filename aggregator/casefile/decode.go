package casefile

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// decoder decodes values. References to the same record of a table give the same pointer.
type decoder struct {
	tables [len(tables)]map[string]*row
}

// A row is a record of a table.
type row struct {
	raw json.RawMessage
	// record is a pointer to the decoded record; it is invalid until the record is first
	// referenced.
	record reflect.Value
}

// addTable adds the records of a table.
func (d *decoder) addTable(m member) *fault {
	i := slices.IndexFunc(tables[:], func(t table) bool { return t.name == m.key })
	if i < 0 {
		return unknown().in(m.key)
	}
	all, err := membersOf(m.value)
	if err != nil {
		return err.in(m.key)
	}
	d.tables[i] = make(map[string]*row, len(all))
	for _, r := range all {
		d.tables[i][r.key] = &row{raw: r.value}
	}
	return nil
}

func unknown() *fault {
	return &fault{what: "unknown key", newer: true}
}

// unused decodes the records without references, so that errors in them are found, too.
func (d *decoder) unused() *fault {
	for i := range d.tables {
		for _, id := range slices.Sorted(maps.Keys(d.tables[i])) {
			if _, err := d.reference(i, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// reference returns the record with an ID.
func (d *decoder) reference(i int, id string) (reflect.Value, *fault) {
	r := d.tables[i][id]
	switch {
	case r == nil:
		return reflect.Value{}, faultf("%s has no %q: the file may have been edited or truncated", tables[i].name, id)
	case r.record.IsValid():
		return r.record, nil
	}
	record := reflect.New(tables[i].of)
	if err := d.structure(r.raw, record.Elem()); err != nil {
		return record, err.in(id).in(tables[i].name).asAbsolute()
	}
	r.record = record
	return record, nil
}

// object decodes a value into the struct that p points to.
func (d *decoder) object(raw json.RawMessage, p any) *fault {
	return d.structure(raw, reflect.ValueOf(p).Elem())
}

func (d *decoder) structure(raw json.RawMessage, into reflect.Value) *fault {
	all, err := membersOf(raw)
	if err != nil {
		return err
	}
	fields := structs[into.Type()]
	for _, m := range all {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == m.key })
		if i < 0 {
			return unknown().in(m.key)
		}
		if err := d.value(m.value, into.FieldByIndex(fields[i].index)); err != nil {
			return err.in(m.key)
		}
	}
	for _, f := range fields {
		if f.required && absent(into.FieldByIndex(f.index)) {
			return faultf("missing").in(f.name)
		}
	}
	return nil
}

func (d *decoder) value(raw json.RawMessage, into reflect.Value) *fault {
	if l, ok := leaves[into.Type()]; ok {
		return decodeLeaf(l, raw, into)
	}
	if into.Type() == reflect.TypeFor[verdict.Who]() {
		var w verdict.Workload
		if err := d.object(raw, &w); err != nil {
			return err
		}
		into.Set(reflect.ValueOf(w.Who()))
		return nil
	}
	switch into.Kind() {
	case reflect.Struct:
		return d.structure(raw, into)
	case reflect.Pointer:
		return d.pointer(raw, into)
	case reflect.Slice:
		return d.list(raw, into)
	case reflect.Uint64:
		var digits string
		n, err := uint64(0), json.Unmarshal(raw, &digits)
		if err == nil {
			n, err = strconv.ParseUint(digits, 10, 64)
		}
		if err != nil {
			return faultf("got %s, expected a number in quotes", short(raw))
		}
		into.SetUint(n)
		return nil
	}
	if string(raw) == "null" || json.Unmarshal(raw, into.Addr().Interface()) != nil {
		return faultf("got %s, expected a value like %#v", short(raw), into.Interface())
	}
	return nil
}

func decodeLeaf(l leaf, raw json.RawMessage, into reflect.Value) *fault {
	var text string
	value, err := any(nil), json.Unmarshal(raw, &text)
	if err == nil {
		value, err = l.parse(text)
	}
	if err != nil {
		return &fault{what: "got " + short(raw) + `, expected a value like "` + l.example + `"`, newer: true}
	}
	into.Set(reflect.ValueOf(value))
	return nil
}

// pointer decodes a reference to a record, or a struct that is in no table.
func (d *decoder) pointer(raw json.RawMessage, into reflect.Value) *fault {
	i := tableOf(into.Type().Elem())
	if i < 0 {
		into.Set(reflect.New(into.Type().Elem()))
		return d.structure(raw, into.Elem())
	}
	var id string
	if json.Unmarshal(raw, &id) != nil || id == "" {
		return faultf("got %s, expected the ID of a record in %s", short(raw), tables[i].name)
	}
	record, err := d.reference(i, id)
	if err == nil {
		into.Set(record)
	}
	return err
}

func (d *decoder) list(raw json.RawMessage, into reflect.Value) *fault {
	all, err := elementsOf(raw)
	if err != nil {
		return err
	}
	into.Set(reflect.MakeSlice(into.Type(), len(all), len(all)))
	for i, element := range all {
		if err := d.value(element, into.Index(i)); err != nil {
			return err.in("[" + strconv.Itoa(i) + "]")
		}
	}
	return nil
}
