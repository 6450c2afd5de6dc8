#!/usr/bin/env bash
# vishvananda/netlink: an address can be held twice by one interface, and AddrSubscribe reports the loss of one as the loss of it.
#
# Expected: an interface has an address once, and an update of RTM_DELADDR with that address means that it is gone.
# The kernel keeps one IPv4 address several times on an interface if the peers differ (point-to-point
# links, and CNI plugins with a peer per pod). AddrList shows both, with their peers; AddrUpdate has the local
# address as a /32, and no field for the peer. So the two are one for a subscriber, who deletes its record at the
# first deletion, while the kernel goes on answering for the address.
#
# Seen with github.com/vishvananda/netlink v1.3.1, go 1.26, Linux 6.18.44:
#   update: new true, 192.0.2.1/32; update: new true, 192.0.2.1/32; update: new false, 192.0.2.1/32
#   still in AddrList: 192.0.2.1/32 with peer 192.0.2.3/32
# Needs root, Go and the module proxy. Changes nothing outside of its namespace and folder.
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
	"time"

	"github.com/vishvananda/netlink"
)

func check(ok bool, text string) {
	if !ok {
		fmt.Println(text)
		os.Exit(1)
	}
}

func main() {
	lo, err := netlink.LinkByName("lo")
	check(err == nil, "no lo")
	updates := make(chan netlink.AddrUpdate, 10)
	check(netlink.AddrSubscribe(updates, nil) == nil, "no subscription")
	host := func(s string) *net.IPNet { return &net.IPNet{IP: net.ParseIP(s).To4(), Mask: net.CIDRMask(32, 32)} }
	first := &netlink.Addr{IPNet: host("192.0.2.1"), Peer: host("192.0.2.2")}
	second := &netlink.Addr{IPNet: host("192.0.2.1"), Peer: host("192.0.2.3")}
	check(netlink.AddrAdd(lo, first) == nil, "the first address is refused")
	check(netlink.AddrAdd(lo, second) == nil, "changed: the second address is refused")
	check(netlink.AddrDel(lo, first) == nil, "the first address is not deleted")

	for _, added := range []bool{true, true, false} {
		select {
		case u := <-updates:
			fmt.Printf("update: new %v, %s\n", u.NewAddr, &u.LinkAddress)
			check(u.NewAddr == added && u.LinkAddress.String() == "192.0.2.1/32", "changed: another update")
		case <-time.After(30 * time.Second):
			check(false, "no update")
		}
	}
	left, err := netlink.AddrList(lo, netlink.FAMILY_V4)
	check(err == nil, "no list")
	for _, a := range left {
		fmt.Printf("still in AddrList: %s with peer %s\n", a.IPNet, a.Peer)
	}
	check(len(left) == 1 && left[0].IP.Equal(first.IP) && left[0].Peer.String() == "192.0.2.3/32", "changed: the address is gone")
}
GO
go mod init findings >/dev/null 2>&1
go get github.com/vishvananda/netlink@v1.3.1 >/dev/null 2>&1
go build -o subscriber .
unshare --net ./subscriber
