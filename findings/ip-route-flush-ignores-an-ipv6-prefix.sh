#!/usr/bin/env bash
# iproute2: `ip route show PREFIX` and `ip route flush PREFIX` of an IPv6 prefix look among the IPv4 routes, find nothing, and end with 0.
#
# Expected: the family follows from the prefix, as it does in `ip route add`, `del` and `get`; or an error, as of any other
# prefix that does not belong to the family. A script that removes leftover routes by `ip route flush "$prefix"`, or that asks by
# `ip route show "$prefix" table N` whether there are any, is right for IPv4, and for IPv6 it is told that all is clean while
# the node still answers for the prefix. `table all` is the exception: there, the same prefix without -6 is found.
#
# Seen with iproute2 6.1.0-3 (Debian 12), Linux 6.18.44:
#   show: [], 0; show table 100: [], 0; flush: 0, flush table 100: 0, and both routes are still there
#   show table all: 2 routes; -6 show: 1 route; `ip route del` without -6 removes it
# Needs root and the Debian mirror. Changes nothing outside of its namespace and folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "iproute2=6.1.0-3" >/dev/null 2>&1
dpkg-deb -x iproute2_*.deb .
export PATH=$tmp/bin:$tmp/sbin:$PATH

unshare --net bash -euo pipefail <<'INSIDE'
prefix=2001:db8:1::/64
ip link set lo up
ip route add 192.0.2.0/24 dev lo table 100 # without it, an error says that the IPv4 table does not exist
ip route add $prefix dev lo
ip route add $prefix dev lo table 100
count() { ip "$@" | grep -c 2001:db8:1:: || true; }

here=$(ip route show $prefix) there=$(ip route show $prefix table 100)
ip route flush $prefix
ip route flush $prefix table 100
all=$(count route show $prefix table all) left=$(count -6 route show) left100=$(count -6 route show table 100)
ip route del $prefix
deleted=$(count -6 route show)
echo "show: [$here]; show table 100: [$there]; both flushes ended with 0"
echo "then: show table all: $all; -6 show: $left and $left100 in table 100; after del without -6: $deleted"
[[ -z $here && -z $there ]] || { echo "changed: show finds IPv6 routes"; exit 1; }
[[ $all == 2 && $left == 1 && $left100 == 1 ]] || { echo "changed: flush removes IPv6 routes, or table all finds none"; exit 1; }
[[ $deleted == 0 ]] || { echo "changed: del does not take the family from the prefix"; exit 1; }
INSIDE
