package verdict

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
)

// MAC is a hardware address. It is a string of its bytes so that it is comparable.
type MAC string

// String returns the usual notation: lower-case hexadecimal with colons.
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

// MarshalText returns the usual notation.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (m *MAC) UnmarshalText(text []byte) error {
	raw, err := hex.DecodeString(strings.ReplaceAll(string(text), ":", ""))
	if *m = MAC(raw); err != nil || m.String() != string(text) {
		return errors.New("invalid hardware address " + string(text))
	}
	return nil
}

// makes reports whether a kernel makes a link-local address from the hardware address (modified EUI-64, RFC 4291,
// appendix A).
func (m MAC) makes(a netip.Addr) bool {
	if len(m) != 6 || !a.Is6() || !a.IsLinkLocalUnicast() {
		return false
	}
	raw := a.As16()
	return string(raw[8:]) == string([]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

// Virtual reports whether the hardware address belongs to a virtual router (RFC 5798, section 7.3;
// CARP uses the same addresses). It moves to the node that is the master.
func (m MAC) Virtual() bool {
	return strings.HasPrefix(string(m), "\x00\x00\x5e\x00\x01") || strings.HasPrefix(string(m), "\x00\x00\x5e\x00\x02")
}

// Shared reports whether several interfaces have the hardware address by design, so that it does
// not locate its sender: addresses of virtual routers, addresses derived from IP addresses (docker:
// 02:42, OVN-Kubernetes and others: 0a:58), addresses with which network plugins answer for others,
// and fe:ff:ff:ff:ff:ff of Xen back ends.
func (m MAC) Shared() bool {
	return len(m) != 6 || m.Virtual() || strings.HasPrefix(string(m), "\x02\x42") || strings.HasPrefix(string(m), "\x0a\x58") ||
		strings.HasPrefix(string(m), "\x00\x00\x0c\x07\xac") || string(m[:4]) == "\x00\x00\x0c\x9f" && m[4]&0xf0 == 0xf0 ||
		string(m[:4]) == "\x00\x05\x73\xa0" && m[4]&0xf0 == 0 || responders[m] != "" || m == "\xfe\xff\xff\xff\xff\xff"
}

// sharedByRouters reports whether several routers share the hardware address by design.
func (m MAC) sharedByRouters() bool {
	return m.Shared() && m[:2] != "\x02\x42" && m[:2] != "\x0a\x58"
}

// balances reports whether two hardware addresses are those of one group of GLBP (00:07:b4:00:GG:FF), whose master answers by
// turns with the address of each of its forwarders.
func (m MAC) balances(other MAC) bool {
	return len(m) == 6 && len(other) == 6 && strings.HasPrefix(string(m), "\x00\x07\xb4") && m[:5] == other[:5]
}

// Group reports whether no host can have the hardware address because it is a group address or all
// zeros.
func (m MAC) Group() bool {
	return len(m) == 6 && (m[0]&1 != 0 || m == "\x00\x00\x00\x00\x00\x00")
}

// multicast reports whether all members of a group receive frames for the hardware address.
func (m MAC) multicast() bool {
	return len(m) == 6 && m[0]&1 != 0 && m != "\xff\xff\xff\xff\xff\xff"
}

// responders are the hardware addresses with which network plugins answer on behalf of others.
var responders = map[MAC]string{
	"\xaa\xbb\xcc\xdd\xee\xff": "Antrea",
	"\xee\xee\xee\xee\xee\xee": "Calico",
}

// Responder returns the network plugin that answers on behalf of others with the hardware address;
// empty if there is none.
func (m MAC) Responder() string { return responders[m] }
