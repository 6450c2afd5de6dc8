package kernel

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// mostTranslations limits the entries of an answer, and translatedWithin is how long the connection tracking is read for it.
	mostTranslations = 64
	translatedWithin = 300 * time.Millisecond
)

// Asked returns the answer to a question about an address: the entries of neighbour tables, the node's own route, and the entries of
// the connection tracking.
func (k *Mirror) Asked(addr netip.Addr) *ipwitnessv1.BeliefAnswer {
	out := k.Believed(addr)
	out.Route = k.askedRoute(addr)
	all, more, err := rtnetlink.Translated(addr, mostTranslations, translatedWithin)
	switch {
	case errors.Is(err, unix.EPERM):
		out.TranslationsRead = ipwitnessv1.TranslationRecord_NOT_PERMITTED
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT): // no such subsystem, no such sockets
		out.TranslationsRead = ipwitnessv1.TranslationRecord_NOT_SUPPORTED
	case err != nil:
		out.TranslationsRead = ipwitnessv1.TranslationRecord_FAILED
		k.log.Warn("cannot read the connection tracking", "address", addr, "error", err)
	case more:
		out.TranslationsRead = ipwitnessv1.TranslationRecord_SOME
	default:
		out.TranslationsRead = ipwitnessv1.TranslationRecord_ALL
	}
	for _, c := range all {
		r := &ipwitnessv1.TranslationRecord{
			Protocol: uint32(c.Protocol), Source: c.From.Addr().AsSlice(), SourcePort: uint32(c.From.Port()),
			Destination: c.To.Addr().AsSlice(), DestinationPort: uint32(c.To.Port()), Port: uint32(c.Receiver.Port()), Zone: uint32(c.Zone),
		}
		if !c.Existed.IsZero() {
			r.ExistedAt = timestamppb.New(c.Existed)
		}
		out.Translations = append(out.Translations, r)
	}
	return out
}
