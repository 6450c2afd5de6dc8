package journal

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An owner is stored as its message. In front of it are the identifiers that nearly every owner has, with
// another value: in binary, they take less than half of the space. A byte says which of them have their
// usual form; the others are in the message.
var identifiers = [...]struct {
	size      int // in bytes
	separator string
	before    []int // the bytes before which the separator is
	of        func(*pb.Owner) *string
}{
	{16, "-", []int{4, 6, 8, 10}, func(o *pb.Owner) *string { return &workloadOf(o).Uid }},
	{containerDigits / 2, "", nil, func(o *pb.Owner) *string { return &workloadOf(o).ContainerId }},
	{6, ":", []int{1, 2, 3, 4, 5}, func(o *pb.Owner) *string { return &o.Mac }},
}

const (
	// tailSize is the number of bytes in the digits at the end of a host interface.
	tailSize = 4
	// containerDigits is the number of digits of a container's ID that are recorded.
	containerDigits = 12
)

// workloadOf returns the workload of an owner; an empty one that is not part of the owner if it has none.
func workloadOf(o *pb.Owner) *pb.Workload {
	if o.Workload == nil {
		return &pb.Workload{}
	}
	return o.Workload
}

// identifierText returns the usual form of an identifier.
func identifierText(i int, raw []byte) string {
	var text []byte
	for n := range raw {
		if slices.Contains(identifiers[i].before, n) {
			text = append(text, identifiers[i].separator...)
		}
		text = hex.AppendEncode(text, raw[n:n+1])
	}
	return string(text)
}

// After the identifiers, the hexadecimal digits at the end of the host interface, the inode of the network
// namespace, and the milliseconds from the times to that of the record are in binary, too.
const (
	hasTail = 1 << (len(identifiers) + iota)
	hasNetns
	hasFirstSeen
	hasAssignedAt
)

// appendOwner appends an owner, which it changes, as part of a record at a time.
func appendOwner(v []byte, o *pb.Owner, at stamp) ([]byte, error) {
	start := len(v)
	v = append(v, 0)
	for i := range identifiers {
		form, text := &identifiers[i], identifiers[i].of(o)
		raw, err := hex.DecodeString(strings.ReplaceAll(*text, form.separator, ""))
		if err == nil && len(raw) == form.size && identifierText(i, raw) == *text {
			v[start] |= 1 << i
			v, *text = append(v, raw...), ""
		}
	}
	if stem := max(0, len(o.GetHostInterface())-2*tailSize); stem > 0 {
		tail := o.GetHostInterface()[stem:]
		if raw, err := hex.DecodeString(tail); err == nil && hex.EncodeToString(raw) == tail {
			v[start] |= hasTail
			v, o.HostInterface = append(v, raw...), o.GetHostInterface()[:stem]
		}
	}
	if n, err := strconv.ParseInt(o.GetNetns(), 10, 64); err == nil && strconv.FormatInt(n, 10) == o.GetNetns() {
		v[start] |= hasNetns
		v, o.Netns = binary.AppendVarint(v, n), ""
	}
	if o.FirstSeen != nil {
		v[start] |= hasFirstSeen
		v, o.FirstSeen = binary.AppendVarint(v, at/1e3-o.FirstSeen.AsTime().UnixMilli()), nil
	}
	if o.AssignedAt != nil {
		v[start] |= hasAssignedAt
		v, o.AssignedAt = binary.AppendVarint(v, at/1e3-o.AssignedAt.AsTime().UnixMilli()), nil
	}
	return marshal.MarshalAppend(v, o)
}

// parseOwner parses the owner of a record at a time.
func parseOwner(v []byte, at stamp) (*pb.Owner, error) {
	if len(v) == 0 {
		return &pb.Owner{}, nil
	}
	set, v := v[0], v[1:]
	var texts [len(identifiers)]string
	var tail string
	var numbers [3]int64
	for i := range 8 {
		size := 0
		switch {
		case set&(1<<i) == 0:
			continue
		case i < len(identifiers):
			if size = identifiers[i].size; len(v) >= size {
				texts[i] = identifierText(i, v[:size])
			}
		case i == len(identifiers):
			if size = tailSize; len(v) >= size {
				tail = hex.EncodeToString(v[:size])
			}
		case i < len(identifiers)+1+len(numbers):
			numbers[i-len(identifiers)-1], size = binary.Varint(v)
		}
		if size <= 0 || len(v) < size {
			return nil, errDamagedRecord
		}
		v = v[size:]
	}
	o := &pb.Owner{}
	if err := proto.Unmarshal(v, o); err != nil {
		return nil, errors.Join(errDamagedRecord, err)
	}
	for i := range identifiers {
		if texts[i] != "" {
			*identifiers[i].of(o) = texts[i]
		}
	}
	o.HostInterface += tail
	if set&hasNetns != 0 {
		o.Netns = strconv.FormatInt(numbers[0], 10)
	}
	if set&hasFirstSeen != 0 {
		o.FirstSeen = timestamppb.New(time.UnixMilli(at/1e3 - numbers[1]))
	}
	if set&hasAssignedAt != 0 {
		o.AssignedAt = timestamppb.New(time.UnixMilli(at/1e3 - numbers[2]))
	}
	return o, nil
}
