package ipam

import "encoding/json"

// An Item is a value in a list or map of JSON that may be unreadable without hiding the others. If it is, Value has
// what could be read of it.
type Item[T any] struct {
	Value T
	Err   error
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Item[T]) UnmarshalJSON(data []byte) error {
	i.Err = json.Unmarshal(data, &i.Value)
	return nil
}
