#!/usr/bin/env bash
# Linux: an IPv4 address on an interface that is down is still answered for, on every other interface.
#
# Expected: `ip link set d0 down` takes the address of d0 out of use, and an address that is added to an
# interface that was never up is not in use yet. IPv6 behaves so: its addresses go when the interface goes
# down. IPv4 keeps the route in the table local in both cases, so the host answers ARP requests for the
# address on its other interfaces and takes the packets, while `ip -br addr` shows DOWN beside it.
# Who watches addresses must not skip interfaces that are down, and "set it down" is no remedy for a
# duplicate: the address has to be deleted (or arp_ignore set on the interface that answers).
#
# Seen with Linux 6.18.44, iputils 3:20221126-1+deb12u1 (Debian 12):
#   never up:  d0 DOWN 192.0.2.77/24; requests answered: 1
#   up, down:  d0 DOWN 192.0.2.77/24; requests answered: 1
#   deleted:   requests answered: 0
#   and fd00::77, which d0 had while it was up: none after it went down
# Needs root and the Debian mirror. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "iputils-arping=3:20221126-1+deb12u1" >/dev/null 2>&1
dpkg-deb -x iputils-arping_*.deb .
export PATH=$tmp/usr/bin:$PATH

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip addr add 192.0.2.1/24 dev e0
ip link set e0 up
ip -n peer addr add 192.0.2.2/24 dev e0
ip -n peer link set e0 up
answered() { ip netns exec peer arping -c 1 -w 2 -I e0 192.0.2.77 | sed -n 's/^Received \([0-9]*\) response.*/\1/p' || true; }
shown() { ip -4 -br addr show dev d0 | xargs; }

ip link add d0 type bridge
ip addr add 192.0.2.77/24 dev d0
new=$(answered) shown=$(shown)
echo "never up:  $shown; requests answered: $new"
[[ $shown == "d0 DOWN 192.0.2.77/24" && $new == 1 ]] || { echo "changed: not answered before the interface was up"; exit 1; }

ip link set d0 up
ip addr add fd00::77/64 dev d0 nodad
ip link set d0 down
down=$(answered) shown=$(shown)
echo "up, down:  $shown; requests answered: $down"
[[ $shown == "d0 DOWN 192.0.2.77/24" && $down == 1 ]] || { echo "changed: not answered after the interface went down"; exit 1; }
six=$(ip -6 addr show dev d0)
[[ -z $six ]] || { echo "changed: IPv6 addresses stay: $six"; exit 1; }

ip addr del 192.0.2.77/24 dev d0
gone=$(answered)
echo "deleted:   requests answered: $gone"
[[ $gone == 0 ]] || { echo "changed: answered without an address"; exit 1; }
INSIDE
