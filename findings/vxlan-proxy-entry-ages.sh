#!/usr/bin/env bash
# Linux: a VXLAN device with the option proxy stops to answer for a neighbour that was added as reachable.
#
# Expected: whoever tells a VXLAN device where a host is (`ip neigh add … nud reachable`) has told it for good: there is
# nothing that the device could verify, and with `nolearning` nothing that it could learn. But the entry ages like one
# of the node's own neighbours. After a random time between 15 and 45 seconds it is STALE, and the device answers only
# from entries that are connected (permanent, noarp, reachable): requests go out into the tunnel, or nowhere if there is
# no remote. Nothing is sent that would renew the entry. The host is reachable for as long as others remember it.
#
# Seen with Linux 6.18.44, iproute2 6.1.0-3, iputils-arping 3:20221126-1+deb12u1 (Debian 12):
#   at first: 2 of 2 requests answered, entry REACHABLE
#   later: 0 of 2 requests answered, entry STALE
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "iputils-arping=3:20221126-1+deb12u1" >/dev/null 2>&1
dpkg-deb -x iputils-arping*.deb packages
export arping=$tmp/packages/usr/bin/arping
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip link set lo up
ip link add lan type bridge mcast_snooping 0
ip link add tunnel type vxlan id 10 dstport 4789 local 127.0.0.1 nolearning proxy
ip link set tunnel master lan
ip netns add host
ip link add port type veth peer name e0 netns host
ip link set port master lan
for link in lan tunnel port; do ip link set $link up; done
ip -n host link set e0 up
ip -n host addr add 10.7.0.1/24 dev e0
ip neigh add 10.7.0.2 lladdr 02:00:00:00:00:02 dev tunnel nud reachable
state() { ip neigh show 10.7.0.2 dev tunnel | awk '{print $NF}'; }
answered() { ip netns exec host "$arping" -c 2 -w 3 -I e0 10.7.0.2 | grep -c 'reply from' || true; }
first=$(answered)
echo "at first: $first of 2 requests answered, entry $(state)"
for _ in {1..120}; do
	[[ $(state) == REACHABLE ]] || break
	sleep 0.5
done
later=$(answered)
echo "later: $later of 2 requests answered, entry $(state)"
((first == 2)) || { echo "changed: it does not answer at first"; exit 1; }
((later == 0)) || { echo "changed: it goes on answering"; exit 1; }
INSIDE
