#!/usr/bin/env bash
# Linux: IPVLAN refuses an address that another slave has, and accepts the one of the device below.
#
# Expected: an address that IPVLAN gives out twice is either refused, because all share one MAC and the driver delivers
# packets by the address, or not looked at. It refuses the second of two slaves, with EADDRINUSE, in other namespaces, too, and
# while the first is down. The device below is not compared: a container gets the node's own address, and the node
# one of a container's, without an error, and duplicate address detection finds nothing,
# because both have one MAC and no frame leaves. The slave has the packets from then on, and the node loses its address.
# So "the driver does not allow duplicates" holds between containers, and not for the address that matters most.
#
# Seen with Linux 6.1.176 (Debian 12), iproute2 6.1.0, mode l2:
#   the second slave: Address already assigned to an ipvlan device
#   a slave with the address of the device below: accepted; the device below with the address of a slave: accepted
#   a slave with the IPv6 address of the device below: accepted, without dadfailed
#   pings of a neighbour for the node's address that get to the node: 3 of 3 before, then 0
# Needs root, the Debian mirror, and Debian's qemu-system-x86, busybox-static and iproute2. Changes nothing outside of its folder.
set -euo pipefail
lib=$(dirname "$(readlink -f "$0")")/lib
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
. "$lib/guest.sh"
guest veth ipvlan <<'JOB' | tee result
ip netns add outside
ip link add e0 type veth peer name e0 netns outside
ip link set e0 up
ip -n outside link set e0 up
ip -n outside addr add 192.0.2.200/24 dev e0
ip addr add 192.0.2.5/24 dev e0
ip -6 addr add fd00::5/64 dev e0 nodad
for n in a b; do
	ip netns add $n
	ip link add v$n link e0 type ipvlan mode l2
	ip link set v$n netns $n
done
try() { # what command
	what=$1
	shift
	if "$@" 2>/tmp/error; then echo "$what: accepted"; else echo "$what: refused: $(cat /tmp/error)"; fi
}
reached() { # whether a neighbour's pings of the node's address get to the node itself
	before=$(awk '/^Icmp: [0-9]/ { print $2 }' /proc/net/snmp)
	ip netns exec outside ping -q -c 3 -W 2 192.0.2.5 >/dev/null 2>&1
	echo "pings that the node itself got, $1: $(($(awk '/^Icmp: [0-9]/ { print $2 }' /proc/net/snmp) - before))"
}
reached "alone"
try "the first slave" ip -n a addr add 192.0.2.7/24 dev va
try "the second slave, while the first is down" ip -n b addr add 192.0.2.7/24 dev vb
ip -n a link set va up
ip -n b link set vb up
try "a slave with the address of the device below" ip -n b addr add 192.0.2.5/24 dev vb
try "the device below with the address of a slave" ip addr add 192.0.2.7/24 dev e0
try "IPv6, a slave with the address of the device below" ip -n b -6 addr add fd00::5/64 dev vb
sleep 3
echo "IPv6: $(ip -n b -6 -o addr show dev vb to fd00::5 | xargs)"
reached "with a slave of the same address"
JOB
for line in "the second slave, while the first is down: refused" "a slave with the address of the device below: accepted" \
	"the device below with the address of a slave: accepted" "IPv6, a slave with the address of the device below: accepted" \
	"got, alone: 3" "got, with a slave of the same address: 0"; do
	grep -qF "$line" result || { echo "changed: not '$line'"; exit 1; }
done
! grep -q dadfailed result || { echo "changed: dadfailed"; exit 1; }
