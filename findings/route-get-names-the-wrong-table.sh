#!/usr/bin/env bash
# Linux: the answer to RTM_GETROUTE says that an IPv4 route of table 300 is of table 254 (main); for IPv6 it says 300.
#
# Expected: RTA_TABLE of the answer names the table whose route the kernel took, for both families, as `ip route get` shows it.
# For IPv4 the kernel fills it only if the request has RTM_F_LOOKUP_TABLE (0x1000), which iproute2 sets. Otherwise it writes
# main, without a sign that it has not looked; IPv6 names the table in any case. jsimonetti/rtnetlink sets no flag by itself.
# Whoever deletes the route that a lookup has found then deletes it from the wrong table, where it does not exist, or where
# another route to the same prefix does.
#
# Seen with Linux 6.18.44 and github.com/jsimonetti/rtnetlink/v2 v2.0.3, go 1.26:
#   198.51.100.1: Route.Get: table 254, ip route get: table 300
#   2001:db8::1: Route.Get: table 300, ip route get: table 300
# Needs root, ip, Go and the module proxy. Changes nothing outside of its namespace and folder.
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

	"github.com/jsimonetti/rtnetlink/v2"
)

func main() {
	conn, err := rtnetlink.Dial(nil)
	if err != nil {
		panic(err)
	}
	for _, to := range os.Args[1:] {
		a := netip.MustParseAddr(to)
		family := uint8(2) // AF_INET
		if a.Is6() {
			family = 10
		}
		routes, err := conn.Route.Get(&rtnetlink.RouteMessage{
			Family: family, DstLength: uint8(a.BitLen()), Attributes: rtnetlink.RouteAttributes{Dst: a.AsSlice()},
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(routes[0].Attributes.Table)
	}
}
GO
cat >go.mod <<'MOD'
module finding

go 1.24

require github.com/jsimonetti/rtnetlink/v2 v2.0.3
MOD
go mod tidy >/dev/null 2>&1
CGO_ENABLED=0 go build -o get .

unshare --net bash -euo pipefail <<'INSIDE'
ip link set lo up
ip rule add to 198.51.100.0/24 lookup 300
ip route add 198.51.100.0/24 dev lo table 300
ip -6 rule add to 2001:db8::/64 lookup 300
ip -6 route add 2001:db8::/64 dev lo table 300
table() { ip route get "$1" | sed -n 's/.* table \([0-9]*\).*/\1/p'; }
for a in 198.51.100.1 2001:db8::1; do
	echo "$a: Route.Get: table $(./get $a), ip route get: table $(table $a)"
done | tee seen
diff - seen <<'SEEN' || { echo "changed: Route.Get and the kernel name other tables"; exit 1; }
198.51.100.1: Route.Get: table 254, ip route get: table 300
2001:db8::1: Route.Get: table 300, ip route get: table 300
SEEN
INSIDE
