package model_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// shrink shortens a failing history for as long as it still fails. It removes steps, then records
// of messages, and joins sleeps.
func shrink(t *testing.T, s setting, history []step, difference string) ([]step, string) {
	try := func(some []step) bool {
		d := replay(t, s, some)
		if d != "" {
			history, difference = some, d
		}
		return d != ""
	}
	for before := -1; before != len(history); {
		before = len(history)
		for size := len(history) / 2; size > 0; size /= 2 {
			for at := 0; at+size <= len(history); {
				if !try(slices.Concat(history[:at], history[at+size:])) {
					at += size
				}
			}
		}
		for at := range history {
			for removed := true; removed && history[at].change != nil; {
				removed = slices.ContainsFunc(withoutOne(history[at]), func(less step) bool {
					return try(slices.Concat(history[:at], []step{less}, history[at+1:]))
				})
			}
		}
		for at := 0; at+1 < len(history); at++ {
			if history[at].verb == "sleep" && history[at+1].verb == "sleep" {
				both := step{verb: "sleep", wait: history[at].wait + history[at+1].wait}
				if try(slices.Concat(history[:at], []step{both}, history[at+2:])) {
					at--
				}
			}
		}
	}
	return history, difference
}

// withoutOne returns variants of a step with changes, each without one of its records.
func withoutOne(s step) (list []step) {
	records := 0
	s.change.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.IsList() {
			records += v.List().Len()
		}
		for i := 0; f.IsList() && i < v.List().Len(); i++ {
			less := s
			less.change = proto.CloneOf(s.change)
			rest := less.change.ProtoReflect().NewField(f).List()
			for k := range v.List().Len() {
				if k != i {
					rest.Append(v.List().Get(k))
				}
			}
			if rest.Len() == 0 {
				less.change.ProtoReflect().Clear(f)
			} else {
				less.change.ProtoReflect().Set(f, protoreflect.ValueOfList(rest))
			}
			list = append(list, less)
		}
		return true
	})
	if records < 2 {
		return nil
	}
	return list
}
