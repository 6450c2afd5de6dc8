#!/usr/bin/env bash
# Linux: an IPv6 address with a lifetime that fails duplicate address detection is gone; it is not kept as dadfailed.
#
# Expected: a failed address stays with the flag dadfailed until somebody deletes it, as the flag suggests.
# That holds only for permanent addresses. One with a lifetime (from router advertisements, DHCPv6, or `ip
# addr add ... valid_lft`) is deleted in the moment of the failure: `ip addr` shows nothing, and all that
# remains is one RTM_DELADDR whose flags hold dadfailed, for those who listened just then. A watcher that
# polls, or that drops deleted addresses without a look at their flags, never learns of the conflict,
# and these are just the addresses that hosts give themselves without anybody at the keyboard.
#
# Seen with Linux 6.18.44, iproute2 6.1.0-3 (Debian 12):
#   permanent:         inet6 fd00::5/64 scope global dadfailed tentative
#   with a lifetime:   nothing is listed; ip monitor: "Deleted ... fd00::5/64 scope global dadfailed tentative dynamic"
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export tmp
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set e0 up
ip -n peer link set e0 up
ip -n peer addr add fd00::5/64 dev e0 nodad

ip monitor address >"$tmp/events" &
monitor=$!
trap 'kill $monitor' EXIT
# It listens when it hears of an address that comes and goes.
for _ in $(seq 100); do
	ip addr add 192.0.2.1/32 dev e0
	ip addr del 192.0.2.1/32 dev e0
	sleep 0.2
	! grep -q 192.0.2.1 "$tmp/events" || break
done
grep -q 192.0.2.1 "$tmp/events"

dad() {
	ip addr add fd00::5/64 dev e0 "$@"
	for _ in $(seq 100); do
		state=$(ip -6 -o addr show dev e0 to fd00::5/128)
		[[ -n $state && $state != *dadfailed* && $state == *tentative* ]] || break
		sleep 0.2
	done
}
dad
echo "permanent:        $(xargs <<<"${state#*inet6 }")"
[[ $state == *"dadfailed tentative"* ]] || { echo "changed: not kept as dadfailed"; exit 1; }
sleep 1
if grep "^Deleted .*fd00::5" "$tmp/events"; then echo "changed: a permanent address is deleted"; exit 1; fi
ip addr del fd00::5/64 dev e0
sleep 1
: >"$tmp/events"

dad valid_lft 600 preferred_lft 600
echo "with a lifetime:  ${state:-nothing is listed}"
[[ -z $state ]] || { echo "changed: it is still there"; exit 1; }
sleep 1
grep -a "^Deleted .*fd00::5/64.*dadfailed.*dynamic" "$tmp/events" || { echo "changed: no deletion with the flag dadfailed"; exit 1; }
INSIDE
