package verdict

import (
	"encoding/binary"
	"encoding/json"
)

// Who is a Workload packed into one string. There is one for each network namespace of a cluster,
// and packing reduces its memory to a third. The first byte is the kind. Each text follows with its
// length and encoding in front.
type Who string

// The encodings of a text.
const (
	plain = iota
	hexadecimal
	uuid // with hyphens as in a Kubernetes UID
)

// shortestHex is the length from which a text may be packed as hexadecimal. Container IDs are
// longer, most names of workloads are shorter.
const shortestHex = 32

// Who packs the workload.
func (w Workload) Who() Who {
	packed := make([]byte, 0, 256)
	packed = append(packed, byte(w.Kind))
	for _, text := range []string{w.Namespace, w.Name, w.UID, w.ContainerID, w.Source, w.Process, w.VirtualMachine, w.Sources, w.VIPProgram} {
		packed = pack(packed, text)
	}
	process := uint64(w.PID) << 4
	for i, is := range []bool{w.Ended, w.Idle, w.VIPProgramEnded, w.MayForward} {
		if is {
			process |= 1 << i
		}
	}
	if process != 0 {
		packed = binary.AppendUvarint(packed, process)
	}
	return Who(packed)
}

func pack(packed []byte, text string) []byte {
	form, raw := encodeText(text)
	packed = binary.AppendUvarint(packed, uint64(len(raw)<<2|form))
	return append(packed, raw...)
}

// Packed is a text as it is stored in a Who. It can be compared without unpacking, which would
// allocate.
type Packed string

// Pack packs a text. The empty text stays empty.
func Pack(text string) Packed {
	if text == "" {
		return ""
	}
	return Packed(pack(nil, text))
}

// unhex has the values of the lower-case hexadecimal digits, and 255 for other bytes.
var unhex = func() (values [256]byte) {
	for i := range values {
		values[i] = 255
	}
	for v, c := range []byte("0123456789abcdef") {
		values[c] = byte(v) //nolint:gosec // below 16
	}
	return values
}()

// encodeText returns the shortest encoding of a text.
func encodeText(text string) (form int, raw string) {
	if len(text) < shortestHex {
		return plain, text
	}
	form = hexadecimal
	if text[8] == '-' && text[13] == '-' && text[18] == '-' && text[23] == '-' {
		form = uuid
	}
	var few [72]byte
	digits := few[:0]
	for i := range len(text) {
		if v := unhex[text[i]]; v < 16 {
			digits = append(digits, v)
		} else if form != uuid || i != 8 && i != 13 && i != 18 && i != 23 {
			return plain, text
		}
	}
	if len(digits)%2 != 0 {
		return plain, text
	}
	for i := 0; i < len(digits); i += 2 {
		digits[i/2] = digits[i]<<4 | digits[i+1]
	}
	return form, string(digits[:len(digits)/2])
}

// decodeText decodes a text.
func decodeText(form int, raw string) string {
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

// nextText returns the first text and the remainder.
func (w Who) nextText() (text string, rest Who) {
	if w == "" {
		return "", ""
	}
	length, n := uvarint(w)
	end := n + length>>2
	return decodeText(length&3, string(w[n:end])), w[end:]
}

// packed returns the text with an index without unpacking it.
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

// texts returns everything after the kind.
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

// Kind returns the kind of the workload.
func (w Who) Kind() WorkloadKind {
	if w == "" {
		return 0
	}
	return WorkloadKind(w[0])
}

// Namespace returns the namespace of the workload.
func (w Who) Namespace() string {
	namespace, _ := w.texts().nextText()
	return namespace
}

// Name returns the name of the workload.
func (w Who) Name() string {
	_, rest := w.texts().nextText()
	name, _ := rest.nextText()
	return name
}

// UID returns the packed UID of the workload.
func (w Who) UID() Packed { return w.packed(2) }

// ContainerID returns the packed container ID of the workload.
func (w Who) ContainerID() Packed { return w.packed(3) }

// Workload unpacks the workload.
func (w Who) Workload() (out Workload) {
	out.Kind = w.Kind()
	rest := w.texts()
	for _, text := range []*string{&out.Namespace, &out.Name, &out.UID, &out.ContainerID, &out.Source, &out.Process, &out.VirtualMachine, &out.Sources, &out.VIPProgram} {
		*text, rest = rest.nextText()
	}
	if rest != "" {
		process, _ := uvarint(rest)
		out.PID, out.Ended, out.Idle = uint32(process>>4), process&1 != 0, process&2 != 0
		out.VIPProgramEnded, out.MayForward = process&4 != 0, process&8 != 0
	}
	return out
}

// MarshalJSON returns the JSON of the workload.
func (w Who) MarshalJSON() ([]byte, error) { return json.Marshal(w.Workload()) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (w *Who) UnmarshalJSON(data []byte) error {
	var of Workload
	err := json.Unmarshal(data, &of)
	*w = of.Who()
	return err
}

// WorkloadKind is the kind of an owner. The numbers are those of the API.
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

// Workload identifies what runs in an owner.
type Workload struct {
	Kind                                      WorkloadKind
	Namespace, Name, UID, ContainerID, Source string
	// Process is the oldest process in the namespace, as "NAME (PID)", or as "NAME (PID, ended)"
	// for the last process of a namespace without processes.
	Process string
	// PID is the ID of that process; 0 if it is not known. Ended is set if the process has ended
	// and no other process runs in the namespace.
	PID   uint32
	Ended bool
	// Idle is set if the agent sees the processes of its node, and has seen none in the namespace for
	// some seconds.
	Idle bool
	// MayForward is set if the namespace is idle and may be a router or a firewall, which needs no process.
	MayForward bool
	// VIPProgram is the program in the namespace that moves virtual addresses between machines; empty
	// if none was seen. VIPProgramEnded is set if it ran and has ended.
	VIPProgram      string
	VIPProgramEnded bool
	// VirtualMachine is the name of the virtual machine that the pod runs, in the pod's namespace.
	VirtualMachine string
	// Sources has the fields that come from a source other than Source, as FIELD=SOURCE pairs,
	// sorted and separated by commas.
	Sources string
}

// OnlyNetns reports whether only a name given by `ip netns` is known.
func (w Workload) OnlyNetns() bool { return w.Source == "netns" && w.Name != "" && w.Kind != Host }
