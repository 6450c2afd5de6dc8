#!/usr/bin/env bash
# Linux: what makes a host answer ARP for an address does not make it answer neighbour solicitations.
#
# Expected: a route of type local, or an address on another interface, has the same effect in both
# families. For IPv4 the host answers ARP requests for it on every interface. For IPv6 it stays silent: it
# answers solicitations only for addresses (and anycast addresses) of the very interface that hears them.
# It does take the packets, though, as soon as something routes them to it.
# So a rule "whoever has a local route is a holder on the LAN" is right for IPv4 and raises false alarms for
# IPv6, and a host that takes packets to an IPv6 address by a route cannot be found by any probe.
#
# Seen with Linux 6.18.44, iputils 3:20221126-1+deb12u1 (Debian 12):
#   on the LAN:    192.0.2.77 answers (address on another interface), 192.0.2.99 answers (local route)
#   on the LAN:    fd00::77 is silent (address on another interface), fd00::99 is silent (local route)
#   by a route:    fd00::77 answers, fd00::99 answers
# Needs root and the Debian mirror. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "iputils-ping=3:20221126-1+deb12u1" >/dev/null 2>&1
dpkg-deb -x iputils-ping_*.deb .
export PATH=$tmp/bin:$tmp/usr/bin:$PATH

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set lo up
ip link set e0 up
ip -n peer link set e0 up
ip addr add 192.0.2.1/24 dev e0
ip addr add fd00::1/64 dev e0 nodad
ip -n peer addr add 192.0.2.2/24 dev e0
ip -n peer addr add fd00::2/64 dev e0 nodad

ip link add d0 type bridge
ip link set d0 up
ip addr add 192.0.2.77/32 dev d0
ip addr add fd00::77/128 dev d0 nodad
ip route add local 192.0.2.99/32 dev lo
ip -6 route add local fd00::99/128 dev lo

ping() { ip netns exec peer ping -n -c 2 -W 3 "$1" >/dev/null && echo answers || echo silent; }
expect() {
	local got
	got=$(ping "$1")
	echo "$3: $1 $got"
	[[ $got == "$2" ]] || { echo "changed: expected $2"; exit 1; }
}
expect fd00::1 answers "on the LAN"
expect 192.0.2.77 answers "on the LAN"
expect 192.0.2.99 answers "on the LAN"
expect fd00::77 silent "on the LAN"
expect fd00::99 silent "on the LAN"
ip -n peer -6 route add fd00::77 via fd00::1
ip -n peer -6 route add fd00::99 via fd00::1
expect fd00::77 answers "by a route"
expect fd00::99 answers "by a route"
INSIDE
