// Package form defines which strings from outside are valid in which field, and makes other strings
// safe to display. Every string from an agent, the Kubernetes API or a file passes through a Form
// before it is used.
package form

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ipwitness/ipwitness/ipam/advice"
)

// Visible returns the string with advice.Replaced in place of each character that is not printable.
func Visible(s string) string {
	if advice.Printable(s) {
		return s
	}
	return replace(s, unicode.IsPrint)
}

// VisibleLines is like Visible, but keeps tabs and line breaks.
func VisibleLines(s string) string {
	return replace(s, func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) })
}

// replace puts Replaced in place of each character that is not allowed.
func replace(s string, allowed func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if !allowed(r) {
			return advice.Replaced
		}
		return r
	}, s)
}

// A Form defines the valid strings of a field.
type Form struct {
	// most is the maximum length in bytes.
	most int
	// valid reports whether a printable string within the maximum length has the form; nil
	// accepts all such strings.
	valid func(string) bool
	// allowed reports whether a character is kept in an invalid string. If it is nil, invalid
	// strings are dropped because a part of them has no meaning.
	allowed func(rune) bool
}

// Has reports whether a string is valid. The empty string is always valid.
func (f Form) Has(s string) bool {
	return s == "" || len(s) <= f.most && advice.Printable(s) && (f.valid == nil || f.valid(s))
}

// Correct returns s if it is valid. Otherwise it returns s with Replaced in place of characters
// that are not allowed, or the empty string if the form drops invalid strings.
func (f Form) Correct(s string) string {
	if f.Has(s) {
		return s
	}
	if f.allowed == nil {
		return ""
	}
	const mark = string(advice.Replaced)
	long := len(s) > f.most
	if long {
		s = s[:f.most-len(mark)] // the rest is cut off in any case
	}
	corrected := replace(strings.ToValidUTF8(s, mark), f.allowed)
	if !long && corrected == s && !strings.Contains(s, mark) {
		corrected = mark + s // each character is allowed, but not in this position
	}
	if long = long || len(corrected) > f.most; !long {
		return corrected
	}
	room := min(len(corrected), f.most-len(mark))
	for room > 0 && room < len(corrected) && !utf8.RuneStart(corrected[room]) {
		room--
	}
	return corrected[:room] + mark
}

// Text returns the form of printable strings of up to most bytes.
func Text(most int) Form { return Form{most: most, allowed: unicode.IsPrint} }

// Word returns the form of generated names, such as IDs, of up to most bytes. Invalid strings are
// dropped.
func Word(most int) Form {
	return Form{most: most, valid: isWord}
}

// The forms of fields. In names that people choose, characters that are not allowed are replaced:
// an owner holds its address whatever its name is.
var (
	// Digits is a decimal number, such as an inode.
	Digits = Form{most: 20, valid: digits.all}
	// ID is the ID of a container, a pod or a boot.
	ID = Word(512)
	// Node is the name of a node: its Kubernetes name or its hostname.
	Node = Form{most: 253, valid: isWord, allowed: wordChars.has}
	// Label is a DNS label (RFC 1123), such as the name of a Kubernetes namespace.
	Label = Form{most: 63, valid: isLabel, allowed: labelChars.has}
	// Subdomain is a DNS subdomain (RFC 1123), such as the name of a pod.
	Subdomain = Form{most: 253, valid: isSubdomain, allowed: func(r rune) bool { return r == '.' || labelChars.has(r) }}
	// Interface is a printable name that Linux accepts for an interface (dev_valid_name in
	// net/core/dev.c).
	Interface = Form{most: 15, valid: func(s string) bool { return s != "." && s != ".." && only(s, interfaceRune) }, allowed: interfaceRune}
	// Link is the name of an interface followed by up to two VLAN IDs or the number of its namespace.
	Link = Form{most: 32, valid: func(s string) bool { return only(s, interfaceRune) }, allowed: interfaceRune}
	// Name is the name of a container, a network or a network namespace.
	Name = Text(253)
	// Path is the path of a file or a directory.
	Path = Form{most: 1024, valid: func(s string) bool { return s[0] == '/' }}
	// Address is an IP address without a zone.
	Address = Form{most: 45, valid: func(s string) bool {
		a, err := netip.ParseAddr(s)
		return err == nil && a.Zone() == ""
	}}
	// Process is a process, written as NAME (PID) or NAME (PID, ended).
	Process = Form{most: 128, valid: func(s string) bool { return pid(s) != "" }, allowed: unicode.IsPrint}
)

// only reports whether all characters of a string are allowed.
func only(s string, allowed func(rune) bool) bool {
	for _, r := range s {
		if !allowed(r) {
			return false
		}
	}
	return true
}

// chars is a set of ASCII characters. Other bytes are not in it.
type chars [256]bool

func charsOf(all string) *chars {
	var c chars
	for i := range len(all) {
		c[all[i]] = true
	}
	return &c
}

const (
	decimal = "0123456789"
	small   = "abcdefghijklmnopqrstuvwxyz"
	capital = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

var (
	digits       = charsOf(decimal)
	alphanumeric = charsOf(decimal + small + capital)
	wordChars    = charsOf(decimal + small + capital + "-_.")
	labelChars   = charsOf(decimal + small + "-")
)

func (c *chars) has(r rune) bool { return 0 <= r && r < utf8.RuneSelf && c[r] }

// all reports whether all characters of a string are in the set.
func (c *chars) all(s string) bool {
	for i := range len(s) {
		if !c[s[i]] {
			return false
		}
	}
	return true
}

func isWord(s string) bool { return alphanumeric[s[0]] && wordChars.all(s) }

func interfaceRune(r rune) bool {
	return unicode.IsPrint(r) && r != ' ' && r != '/' && r != ':'
}

func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && labelChars.all(s)
}

func isSubdomain(s string) bool {
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 253 || label[0] == '-' || label[len(label)-1] == '-' || !labelChars.all(label) {
			return false
		}
	}
	return true
}

// pid returns the process ID in NAME (PID) or NAME (PID, ended); empty if the string has another
// form.
func pid(process string) string {
	pid, closed := strings.CutSuffix(process[strings.LastIndexByte(process, '(')+1:], ")")
	pid = strings.TrimSuffix(pid, ", ended")
	if !closed || pid == "" || len(pid) > 10 || !digits.all(pid) {
		return ""
	}
	return pid
}
