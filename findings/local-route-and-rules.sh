#!/usr/bin/env bash
# Linux: a rule that was added and deleted again changes which route wins, until the namespace ends.
#
# A guess from `ip rule` (0: lookup local, 32766: lookup main) is that a matching route of the table
# local always wins over the table main. In a new network namespace it does not: both tables are one
# trie, and the longest prefix wins. The first rule of one's own separates the tables for good, and
# deleting the rule does not join them: the same `ip rule` and `ip route` output then means the opposite.
# So nobody can tell from a list of rules and routes whether the host takes packets to an address for
# its own: ask the FIB (`ip route get`).
#
# Seen with Linux 6.18 (and 6.1), iproute2 6.1.0-3 (Debian 12):
#   in a new namespace:           10.9.0.5 dev d0 src 10.0.0.1
#   after rule add and rule del:  local 10.9.0.5 dev lo table local src 10.9.0.5
# Needs root. Changes nothing outside of its namespace.
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
# The pinned iproute2, if the mirror still has it; any other one prints the same.
if apt-get download iproute2=6.1.0-3 >/dev/null 2>&1; then
	dpkg-deb -x iproute2_*.deb .
	PATH=$tmp/bin:$tmp/sbin:$PATH
fi
ip -V

export PATH
unshare --net bash -euo pipefail <<'INSIDE'
ip link add d0 type veth peer name d1
ip link set d0 up; ip link set d1 up
ip addr add 10.0.0.1/24 dev d0
ip route add local 10.9.0.0/24 dev lo
ip route add 10.9.0.5/32 dev d0
told() { ip rule; ip route show table all | grep 10.9 | sort; }
before=$(told)
first=$(ip -o route get 10.9.0.5 | head -n 1)
ip rule add from 192.0.2.1 lookup main
ip rule del from 192.0.2.1 lookup main
after=$(told)
second=$(ip -o route get 10.9.0.5 | head -n 1)
echo "in a new namespace:           $first"
echo "after rule add and rule del:  $second"
[[ $before == "$after" ]] || { echo "changed: the lists differ: $before / $after"; exit 1; }
[[ $first != local* && $first == *"dev d0"* ]] || { echo "changed: the local route wins at once"; exit 1; }
[[ $second == local* ]] || { echo "changed: the longest prefix still wins"; exit 1; }
echo "rules and routes are listed equally before and after:"
echo "$after"
INSIDE
