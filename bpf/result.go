package bpf

import "fmt"

// Result is the result for one frame. String returns the name of its counter.
type Result uint8

// The results. ResultKnown, ResultLost and ResultLimited depend on earlier frames.
const (
	// ResultNone is a frame of another protocol. It is not counted. NDP in a fragment,
	// which receivers ignore (RFC 6980), and NDP behind IPsec also end as ResultNone.
	ResultNone = Result(observeResultRESULT_NONE)
	// ResultEvent is a claim that is reported.
	ResultEvent = Result(observeResultRESULT_EVENT)
	// ResultKnown is a claim that was reported before.
	ResultKnown = Result(observeResultRESULT_KNOWN)
	// ResultProbe is a probe for a free address (RFC 5227, section 2.1.1, and RFC 4862, section
	// 5.4.2). It claims nothing yet.
	ResultProbe = Result(observeResultRESULT_PROBE)
	// ResultMalformed is a truncated frame, ARP that is not for IPv4 over Ethernet, or
	// NDP whose options do not fill it exactly.
	ResultMalformed = Result(observeResultRESULT_MALFORMED)
	// ResultInvalid is a claim to an address that no host can have: a loopback,
	// multicast, class E or broadcast address, the unspecified address in a reply, or an
	// IPv4-mapped address in NDP. It is also NDP that receivers discard by RFC 4861,
	// sections 7.1.1 and 7.1.2, such as a message that a router has forwarded. A claim
	// with a MAC that no host can have is not invalid: Linux accepts it.
	ResultInvalid = Result(observeResultRESULT_INVALID)
	// ResultOther claims nothing: ARP that is neither request nor reply, or NDP without a
	// link-layer address.
	ResultOther = Result(observeResultRESULT_OTHER)
	// ResultLost is a claim for which the ring buffer had no room. It is not marked as reported, so
	// the next frame like it is reported.
	ResultLost = Result(observeResultRESULT_LOST)
	// ResultUnparsedTags is a claim under more than two VLAN tags, or any frame under
	// more than 512 tags. The latter is counted as ARP.
	ResultUnparsedTags = Result(observeResultRESULT_UNPARSED_TAGS)
	// ResultUnparsedExtensions is a packet with more than 256 IPv6 extension headers.
	ResultUnparsedExtensions = Result(observeResultRESULT_UNPARSED_EXTENSIONS)
	// ResultUnparsedOptions is NDP with more than 256 options.
	ResultUnparsedOptions = Result(observeResultRESULT_UNPARSED_OPTIONS)
	// ResultLimited is a claim of a new binding on a port that has used up its limit of
	// new bindings to report. The next frame like it tries again.
	ResultLimited = Result(observeResultRESULT_LIMITED)

	results = Result(observeResultRESULTS)
)

var resultNames = [results]string{
	ResultNone: "none", ResultEvent: "event", ResultKnown: "known", ResultProbe: "probe", ResultMalformed: "malformed",
	ResultInvalid: "invalid", ResultOther: "other", ResultLost: "lost", ResultUnparsedTags: "unparsed_tags",
	ResultUnparsedExtensions: "unparsed_extensions", ResultUnparsedOptions: "unparsed_options", ResultLimited: "limited",
}

// String returns the name of the result in metrics, such as malformed.
func (r Result) String() string {
	if r < results {
		return resultNames[r]
	}
	return fmt.Sprintf("Result(%d)", uint8(r))
}
