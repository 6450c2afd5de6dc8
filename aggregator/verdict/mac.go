package verdict

import "strings"

// MAC is a hardware address: its bytes as a string, so that it can be compared.
type MAC string

// String is the usual notation: lower-case hexadecimal with colons.
func (m MAC) String() string {
	if m == "" {
		return ""
	}
	const digits = "0123456789abcdef"
	text := make([]byte, 0, 3*len(m))
	for i := range len(m) {
		if i > 0 {
			text = append(text, ':')
		}
		text = append(text, digits[m[i]>>4], digits[m[i]&15])
	}
	return string(text)
}

// Virtual tells whether the hardware address is a virtual router's (RFC 5798,
// section 7.3; CARP has those of VRRP): whoever is the master at the time has it.
func (m MAC) Virtual() bool {
	return strings.HasPrefix(string(m), "\x00\x00\x5e\x00\x01") || strings.HasPrefix(string(m), "\x00\x00\x5e\x00\x02")
}

// Shared tells whether a hardware address is such that several interfaces have it
// by design, so that it says nothing of where its sender is: a virtual router's,
// one that is made from an address (docker: 02:42, OVN-Kubernetes and others:
// 0a:58), one with which a network plugin answers for others, and the fe:ff:… of
// Xen's back ends.
func (m MAC) Shared() bool {
	return len(m) != 6 || m.Virtual() || strings.HasPrefix(string(m), "\x02\x42") || strings.HasPrefix(string(m), "\x0a\x58") ||
		strings.HasPrefix(string(m), "\x00\x00\x0c\x07\xac") || responders[m] != "" || m == "\xfe\xff\xff\xff\xff\xff"
}

// routers reports whether several routers share the hardware address by design.
func (m MAC) routers() bool {
	return m.Shared() && m[:2] != "\x02\x42" && m[:2] != "\x0a\x58"
}

// Group reports whether no host can have the address: it is a group address or all zeros.
func (m MAC) Group() bool {
	return len(m) == 6 && (m[0]&1 != 0 || m == "\x00\x00\x00\x00\x00\x00")
}

// responders are hardware addresses that network plugins answer with for others.
var responders = map[MAC]string{
	"\xaa\xbb\xcc\xdd\xee\xff": "Antrea",
	"\xee\xee\xee\xee\xee\xee": "Calico",
}

// Responder returns the network plugin that answers for others with a hardware address; empty
// for none.
func (m MAC) Responder() string { return responders[m] }
