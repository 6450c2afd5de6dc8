#!/usr/bin/env bash
# Linux: with a filter by an IPv6 address (CTA_FILTER), conntrack lists all entries but those with that address.
#
# Expected: a dump with CTA_FILTER and a tuple lists the entries whose tuple has the addresses of the filter, for both families.
# For IPv4 it does. For IPv6 the comparison is the wrong way round: entries with the address are left out, and all others are
# listed. No error says so: whoever looks for the connections of one address takes them for none, and whoever deletes what was
# listed deletes those of everybody else. A dump without a filter, filtered by the program, is right.
#
# Seen with Linux 6.18.44, github.com/ti-mo/conntrack v0.5.2, github.com/mdlayher/netlink v1.7.2, go 1.26:
#   192.0.2.2: entries whose reply comes from 192.0.2.2: 1, from 192.0.2.3: 0, from any address: 1
#   2001:db8::2: entries whose reply comes from 2001:db8::2: 0, from 2001:db8::3: 1, from any address: 1
# Needs root, Go and the module proxy. Changes nothing outside of its namespaces and folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
export GOWORK=off GOFLAGS='-mod=mod -trimpath -modcacherw' GOPATH=$tmp/go
cat >main.go <<'GO'
package main

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
)

const (
	dump                            = 1<<8 | 1 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
	tupleReply, filter              = 2, 25    // CTA_TUPLE_REPLY, CTA_FILTER
	tupleIP, ipv4Source, ipv6Source = 1, 1, 3
	filterReply, filterSource       = 2, 1 // CTA_FILTER_REPLY_FLAGS, CTA_FILTER_FLAG(CTA_IP_SRC)
	nested                          = 1 << 15
)

func main() {
	c, err := conntrack.Dial(nil)
	if err != nil {
		panic(err)
	}
	to := netip.MustParseAddr(os.Args[1])
	from := to.Prev()
	if err := c.Create(conntrack.NewFlow(17, 0, from, to, 1000, 2000, 100, 0)); err != nil {
		panic(err)
	}
	fmt.Printf("%s: entries whose reply comes from %s: %d, from %s: %d, from any address: %d\n", to, to, count(to, true), to.Next(), count(to.Next(), true), count(to, false))
}

// count returns the number of entries that the kernel lists, with or without a filter by the source of replies.
func count(a netip.Addr, filtered bool) int {
	conn, err := netlink.Dial(12, nil)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	family, attribute := byte(2), uint16(ipv4Source)
	if a.Is6() {
		family, attribute = 10, ipv6Source
	}
	data := []byte{family, 0, 0, 0}
	if filtered {
		e := netlink.NewAttributeEncoder()
		e.Nested(tupleReply, func(e *netlink.AttributeEncoder) error {
			e.Nested(tupleIP, func(e *netlink.AttributeEncoder) error { e.Bytes(attribute, a.AsSlice()); return nil })
			return nil
		})
		e.Nested(filter, func(e *netlink.AttributeEncoder) error { e.Uint32(filterReply, filterSource); return nil })
		b, err := e.Encode()
		if err != nil {
			panic(err)
		}
		data = append(data, b...)
	}
	m, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: dump, Flags: netlink.Request | netlink.Dump}, Data: data})
	if err != nil {
		panic(err)
	}
	return len(m)
}
GO
cat >go.mod <<'MOD'
module finding

go 1.24

require (
	github.com/mdlayher/netlink v1.7.2
	github.com/ti-mo/conntrack v0.5.2
)
MOD
go mod tidy >/dev/null 2>&1
CGO_ENABLED=0 go build -o count .
for a in 192.0.2.2 2001:db8::2; do
	unshare --net ./count $a
done | tee seen
diff - seen <<'SEEN' || { echo "changed: the filter selects other entries"; exit 1; }
192.0.2.2: entries whose reply comes from 192.0.2.2: 1, from 192.0.2.3: 0, from any address: 1
2001:db8::2: entries whose reply comes from 2001:db8::2: 0, from 2001:db8::3: 1, from any address: 1
SEEN
