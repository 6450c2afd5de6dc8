#!/usr/bin/env bash
# vishvananda/netlink: LinkSubscribe reports a veth that leaves a bridge as a deleted link of another type.
#
# Expected: an update with the type RTM_DELLINK means that the link is gone, and Link.Type() of a veth is "veth".
# The kernel tells a bridge's ports in messages of the family AF_BRIDGE, in the same multicast group and
# with the same types: RTM_NEWLINK for a port's state, and RTM_DELLINK when the port leaves the bridge. LinkSubscribe
# passes them on. They have no IFLA_INFO_KIND, so the link is a "device", and its master is the bridge that it has left.
# A subscriber who keeps a table of links forgets a living veth, or its kind with each change of the port's state.
# Only IfInfomsg.Family tells the difference.
#
# Seen with github.com/vishvananda/netlink v1.3.1, go 1.26, Linux 6.18.44:
#   joins:  RTM_NEWLINK family 7: v0, type device (and family 0: v0, type veth)
#   leaves: RTM_DELLINK family 7: v0, type device, with a master; LinkByName afterwards: v0, type veth
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
	updates := make(chan netlink.LinkUpdate, 100)
	check(netlink.LinkSubscribe(updates, nil) == nil, "no subscription")
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}
	check(netlink.LinkAdd(bridge) == nil && netlink.LinkAdd(port) == nil, "no links")
	check(netlink.LinkSetUp(bridge) == nil, "the bridge stays down")

	const added, deleted = 16, 17 // RTM_NEWLINK, RTM_DELLINK
	next := func(typ uint16, family uint8) netlink.LinkUpdate {
		limit := time.After(30 * time.Second)
		for {
			select {
			case u := <-updates:
				if u.Attrs().Name == "v0" && u.Header.Type == typ && u.IfInfomsg.Family == family {
					return u
				}
			case <-limit:
				check(false, fmt.Sprintf("changed: no update of type %d and family %d", typ, family))
			}
		}
	}
	check(next(added, 0).Type() == "veth", "changed: the type of a new veth")

	check(netlink.LinkSetMaster(port, bridge) == nil, "v0 does not join")
	u := next(added, 7)
	fmt.Printf("joins: RTM_NEWLINK family 7: v0, type %s\n", u.Type())
	check(u.Type() == "device", "changed: the type is known")

	check(netlink.LinkSetNoMaster(port) == nil, "v0 does not leave")
	u = next(deleted, 7)
	fmt.Printf("leaves: RTM_DELLINK family 7: v0, type %s, master %d\n", u.Type(), u.Attrs().MasterIndex)
	check(u.Attrs().MasterIndex == bridge.Index, "changed: the master")
	link, err := netlink.LinkByName("v0")
	check(err == nil, "no statement: v0 is gone")
	fmt.Printf("LinkByName afterwards: v0, type %s, master %d\n", link.Type(), link.Attrs().MasterIndex)
	check(link.Type() == "veth" && link.Attrs().MasterIndex == 0, "no statement: v0 has not left")
}
GO
go mod init findings >/dev/null 2>&1
go get github.com/vishvananda/netlink@v1.3.1 >/dev/null 2>&1
go build -o subscriber .
unshare --net ./subscriber
