#!/usr/bin/env bash
# whereabouts 0.9.2: in a large IPv6 range two pods get one address, because the pool's record is read back as another.
#
# Expected: a range that is accepted can be allocated from; IPPool records each address by its offset from the
# range's address. The offset is written as an unsigned number of 64 bits. What lies 2^64 or more above (a range
# shorter than /64 with a range_start) loses its upper bits and is read back as another address; what lies
# 2^63 or more above is read by strconv.ParseInt, which refuses it, and is dropped. Either way the next pod gets
# the same address, with no error, and the pool does not tell which pods have it.
# The script converts as the store does (toAllocationMap and toIPReservationList in pkg/storage/kubernetes, which
# need an API server), with the module's own exported functions, and allocates with its AssignIP.
#
# Seen with github.com/k8snetworkplumbingwg/whereabouts v0.9.2, go 1.26:
#   fd00::/64 from fd00::5                  key 5                    read back fd00::5   second pod fd00::6
#   fd00::/64 from fd00::8000:0:0:5         key 9223372036854775813  read back nothing   second pod fd00::8000:0:0:5
#   fd00::/48 from fd00:0:0:1::5            key 5                    read back fd00::5   second pod fd00:0:0:1::5
# Needs Go and the module proxy. Changes nothing outside of its folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
export GOWORK=off GOFLAGS='-mod=mod -trimpath -modcacherw' GOPATH=$tmp/go
cat >main.go <<'GO'
package main

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/iphelpers"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
)

func must(err error) {
	if err != nil {
		fmt.Println("changed:", err)
		os.Exit(1)
	}
}

func main() {
	for _, c := range []struct{ prefix, start, readBack, second string }{
		{"fd00::/64", "fd00::5", "fd00::5", "fd00::6"},
		{"fd00::/64", "fd00::8000:0:0:5", "nothing", "fd00::8000:0:0:5"},
		{"fd00::/48", "fd00:0:0:1::5", "fd00::5", "fd00:0:0:1::5"},
	} {
		base, _, err := net.ParseCIDR(c.prefix)
		must(err)
		conf := types.RangeConfiguration{Range: c.prefix, RangeStart: net.ParseIP(c.start)}
		first, reserved, err := allocate.AssignIP(conf, nil, "one", "default/one", "net1")
		must(err)

		// Written to the pool, and read from it.
		offset, err := iphelpers.IPGetOffset(reserved[0].IP, base)
		must(err)
		key := fmt.Sprintf("%d", offset)
		stored, readBack := []types.IPReservation{}, "nothing"
		if n, err := strconv.ParseInt(key, 10, 64); err == nil {
			r := reserved[0]
			r.IP = iphelpers.IPAddOffset(base, uint64(n))
			stored, readBack = append(stored, r), r.IP.String()
		}

		second, _, err := allocate.AssignIP(conf, stored, "two", "default/two", "net1")
		must(err)
		fmt.Printf("%s: first pod %s, key %s, read back %s, second pod %s\n", c.prefix, first.IP, key, readBack, second.IP)
		if first.IP.String() != c.start || readBack != c.readBack || second.IP.String() != c.second {
			fmt.Println("changed")
			os.Exit(1)
		}
	}
}
GO
go mod init findings >/dev/null 2>&1
go get github.com/k8snetworkplumbingwg/whereabouts@v0.9.2 >/dev/null 2>&1
go run . 2>log || { cat log; exit 1; } # the log has the debug lines of the module
