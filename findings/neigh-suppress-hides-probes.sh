#!/usr/bin/env bash
# Linux: a bridge port with neigh_suppress swallows the probes of duplicate address detection, and requests pass.
#
# Expected: neigh_suppress (set on the VXLAN ports of an EVPN) answers from the bridge's table what it knows and
# floods the rest; so with an empty table it changes nothing. Requests do pass then. But ARP probes and
# announcements (sender 0.0.0.0, or sender = target) and IPv6 probes (from ::) never leave by such a
# port, whatever the table holds. Both hosts' kernels find the address free: `arping -D` ends with 0, the IPv6 address
# is without dadfailed, and no frame of either holder is seen at the other end. Only a plain request gets there.
# Who watches such a network cannot build on DAD, on announcements, or on probes of its own; it must ask
# with a sender address, or compare what the hosts have.
#
# Seen with Linux 6.18.44, iputils 3:20221126-1+deb12u1 (Debian 12); an empty table, the address is held behind the port:
#   neigh_suppress on:   arping -D: free;  arping: answered;  fd00::9/64 without dadfailed
#   neigh_suppress off:  arping -D: taken; arping: answered;  fd00::9/64 dadfailed
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
ip link add br0 type bridge mcast_snooping 0
ip link set br0 up
for n in here there; do
	ip netns add $n
	ip link add $n type veth peer name e0 netns $n
	ip link set $n master br0 up
	ip -n $n link set e0 up
done
ip -n here addr add 192.0.2.1/24 dev e0
ip -n there addr add 192.0.2.9/24 dev e0
ip -n there addr add fd00::9/64 dev e0 nodad

try() {
	bridge link set dev there neigh_suppress "$1"
	ip netns exec here arping -q -D -c 3 -w 4 -I e0 192.0.2.9 && probe=free || probe=taken
	ip netns exec here arping -q -f -c 3 -w 4 -I e0 192.0.2.9 && request=answered || request=silent
	ip -n here addr add fd00::9/64 dev e0
	for _ in $(seq 50); do
		state=$(ip -n here -6 -o addr show dev e0 to fd00::9/128)
		[[ $state != *dadfailed* && $state == *tentative* ]] || break
		sleep 0.2
	done
	[[ $state == *dadfailed* ]] && six=dadfailed || six=passed
	[[ $state != *tentative* || $six == dadfailed ]] || six=tentative
	ip -n here addr del fd00::9/64 dev e0
	echo "neigh_suppress $1: arping -D: $probe; arping: $request; fd00::9/64: $six"
}
table=$(ip neigh show dev br0)
[[ -z $table ]]
try on
[[ "$probe $request $six" == "free answered passed" ]] || { echo "changed"; exit 1; }
try off
[[ "$probe $request $six" == "taken answered dadfailed" ]] || { echo "changed"; exit 1; }
INSIDE
