package verdict

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Who is a Workload in one string, which takes a third of the memory: there is
// one for each network namespace of a cluster. The first byte is the kind; then
// each text has its length and its form before it.
type Who string

// The forms of a text.
const (
	plain = iota
	hexadecimal
	uuid // with hyphens where Kubernetes writes them
)

// shortestHex is from when on a text is looked at for being hexadecimal. The names
// of workloads are shorter, but ids of containers are not.
const shortestHex = 32

// Who packs the workload.
func (w Workload) Who() Who {
	packed := make([]byte, 0, 256)
	packed = append(packed, byte(w.Kind))
	for _, text := range []string{w.Namespace, w.Name, w.UID, w.ContainerID, w.Source, w.Process, w.VirtualMachine, w.Sources} {
		packed = pack(packed, text)
	}
	if w.PID != 0 || w.Ended {
		process := uint64(w.PID) << 1
		if w.Ended {
			process |= 1
		}
		packed = binary.AppendUvarint(packed, process)
	}
	return Who(packed)
}

func pack(packed []byte, text string) []byte {
	form, raw := shorten(text)
	packed = binary.AppendUvarint(packed, uint64(len(raw)<<2|form))
	return append(packed, raw...)
}

// Packed is a text as a Who has it, to compare it with: to unpack it takes memory.
type Packed string

// Pack packs a text; an empty one is the empty one.
func Pack(text string) Packed {
	if text == "" {
		return ""
	}
	return Packed(pack(nil, text))
}

// shorten is the shortest form of a text.
func shorten(text string) (form int, raw string) {
	if len(text) < shortestHex {
		return plain, text
	}
	form, digits := hexadecimal, text
	if text[8] == '-' && text[13] == '-' && text[18] == '-' && text[23] == '-' {
		form, digits = uuid, text[:8]+text[9:13]+text[14:18]+text[19:23]+text[24:]
	}
	if b, err := hex.DecodeString(digits); err == nil && !strings.ContainsAny(digits, "ABCDEF") {
		return form, string(b)
	}
	return plain, text
}

// lengthen is the text that was shortened.
func lengthen(form int, raw string) string {
	if form == plain {
		return raw
	}
	const digits = "0123456789abcdef"
	var few [72]byte
	text := few[:0]
	for i := range len(raw) {
		if form == uuid && (i == 4 || i == 6 || i == 8 || i == 10) {
			text = append(text, '-')
		}
		text = append(text, digits[raw[i]>>4], digits[raw[i]&15])
	}
	return string(text)
}

// next is the first text, and what comes after it.
func (w Who) next() (text string, rest Who) {
	if w == "" {
		return "", ""
	}
	length, n := uvarint(w)
	end := n + length>>2
	return lengthen(length&3, string(w[n:end])), w[end:]
}

// packed is one of the texts as it is, by its place.
func (w Who) packed(place int) Packed {
	if w == "" {
		return ""
	}
	for w = w.texts(); ; place-- {
		length, n := uvarint(w)
		end := n + length>>2
		switch {
		case place > 0:
			w = w[end:]
		case end == n:
			return ""
		default:
			return Packed(w[:end])
		}
	}
}

// texts are all after the kind.
func (w Who) texts() Who {
	if w == "" {
		return ""
	}
	return w[1:]
}

// uvarint reads a number as binary.AppendUvarint writes it.
func uvarint(w Who) (number, n int) {
	for shift := 0; ; shift += 7 {
		b := w[n]
		n++
		if number |= int(b&127) << shift; b < 128 {
			return number, n
		}
	}
}

// Kind is the workload's kind.
func (w Who) Kind() WorkloadKind {
	if w == "" {
		return 0
	}
	return WorkloadKind(w[0])
}

// Namespace is the workload's namespace.
func (w Who) Namespace() string {
	namespace, _ := w.texts().next()
	return namespace
}

// Name is the workload's name.
func (w Who) Name() string {
	_, rest := w.texts().next()
	name, _ := rest.next()
	return name
}

// UID is the workload's uid, packed.
func (w Who) UID() Packed { return w.packed(2) }

// ContainerID is the workload's container id, packed.
func (w Who) ContainerID() Packed { return w.packed(3) }

// Workload unpacks the workload.
func (w Who) Workload() (out Workload) {
	out.Kind = w.Kind()
	rest := w.texts()
	for _, text := range []*string{&out.Namespace, &out.Name, &out.UID, &out.ContainerID, &out.Source, &out.Process, &out.VirtualMachine, &out.Sources} {
		*text, rest = rest.next()
	}
	if rest != "" {
		process, _ := uvarint(rest)
		out.PID, out.Ended = uint32(process>>1), process&1 != 0
	}
	return out
}

// WorkloadKind is what sort of thing an owner is. The numbers are the contract's.
type WorkloadKind uint8

// The kinds of workloads.
const (
	Pod WorkloadKind = iota + 1
	Container
	VM
	Host
	External
	Unknown
)

// Workload says who an owner is.
type Workload struct {
	Kind                                      WorkloadKind
	Namespace, Name, UID, ContainerID, Source string
	// Process is the oldest in the namespace, as NAME (PID), or NAME (PID, ended) where
	// it was the last one.
	Process string
	// PID is the id of that process; 0 if it is not known. Ended is set if the process has
	// ended and no other process runs in the namespace.
	PID   uint32
	Ended bool
	// VirtualMachine is the one that the pod runs, in the pod's namespace.
	VirtualMachine string
	// Sources are where fields are from that another source than Source gave, as
	// FIELD=SOURCE with commas between, in order.
	Sources string
}

// OnlyNetns tells whether all that is known is a name that `ip netns` gave.
func (w Workload) OnlyNetns() bool { return w.Source == "netns" && w.Name != "" && w.Kind != Host }
