package ipam

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxMessage is the maximum number of bytes of a message.
const MaxMessage = 300

// Plain returns a text as a single line without control characters for terminals.
func Plain(s string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// Cut returns at most size bytes of a text. An ellipsis marks that something is missing.
func Cut(s string, size int) string {
	const ellipsis = "…"
	if len(s) <= size {
		return s
	}
	size -= len(ellipsis)
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return strings.TrimRight(s[:size], " ") + ellipsis
}

// Shorten returns the part of a message that is stored.
func Shorten(s string) string {
	const enough = 4 * MaxMessage // Plain may shorten the text
	if len(s) > enough {
		s = Cut(s, enough)
	}
	// Clone, so that the rest of the text is not kept alive.
	return strings.Clone(Cut(Plain(s), MaxMessage))
}

// SeparatesTenants reports whether the node's end of a pod's veth is a port of Kube-OVN, whose
// tenants (VPCs) may use the same ranges for the first interfaces of pods. Kube-OVN names it ID_h or
// ID_IFACE_h, where ID is the beginning of the sandbox's ID (generateNicName in
// pkg/daemon/ovs_linux.go).
func SeparatesTenants(port string) bool {
	id, named := strings.CutSuffix(port, "_h")
	id, _, _ = strings.Cut(id, "_")
	return named && id != "" && strings.Trim(id, "0123456789abcdef") == ""
}
