#!/usr/bin/env bash
# Linux: a stable private address (RFC 7217) that is a duplicate is replaced by another one, and is still tried
# again, and fails again, with each router advertisement.
#
# Expected: the kernel counts the failure (DAD_Counter), takes the next address, and keeps to that, as RFC 7217,
# section 6, says. The counter is kept with the address, not with the prefix: the next advertisement makes the
# first address once more, detection fails once more, and so on for ever. The host works, with the second
# address, and all the while its netlink messages say that duplicate address detection failed a moment ago. A
# watcher that raises an alarm at each of them never becomes silent.
#
# Seen with Linux 6.18.44, iproute2 6.1.0-3 (Debian 12), Python 3.11.2: two hosts with one stable_secret, as
# machines cloned with it are (a veth has no permanent MAC, which would otherwise tell them apart).
#   after 3 advertisements: 1 address in use, 2 times deleted as a duplicate
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export tmp
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip link add lan type bridge mcast_snooping 0
ip link set lan up
for host in router first second; do
	ip netns add $host
	ip link add $host type veth peer name e0 netns $host
	ip link set $host master lan up
	ip netns exec $host sysctl -qw net.ipv6.conf.e0.accept_ra=1 net.ipv6.conf.e0.disable_ipv6=0
	[[ $host == router ]] || ip netns exec $host sysctl -qw net.ipv6.conf.e0.stable_secret=2001:db8::1
done
ip -n router link set e0 up
ip -n first link set e0 up
advertise() {
	ip netns exec router python3 - <<'PYTHON'
import socket, struct
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
prefix = struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 3600, 3600, 0, socket.inet_pton(socket.AF_INET6, "fd00:77::"))
s.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0) + prefix, ("ff02::1", 0, 0, socket.if_nametoindex("e0")))
PYTHON
}
# usable HOST: the addresses that it uses
usable() { ip -n "$1" -6 -o addr show dev e0 scope global -tentative -dadfailed | awk '{print $4}'; }
until ip -n router -6 -o addr show dev e0 scope link -tentative | grep -q .; do sleep 0.2; done
until [[ -n $(usable first) ]]; do advertise; sleep 1; done

ip -n second link set e0 up
ip -n second monitor address >"$tmp/events" &
monitor=$!
trap 'kill $monitor' EXIT
until [[ -n $(usable second) ]]; do advertise; sleep 3; done
: >"$tmp/events"
for _ in 1 2 3; do advertise; sleep 3; done
failed=$(grep -ac "^Deleted .*$(usable first).*dadfailed.*stable-privacy" "$tmp/events" || true)
echo "after 3 advertisements: $(usable second | wc -l) address in use, $failed times deleted as a duplicate"
[[ $(usable second) != "$(usable first)" ]] || { echo "changed: both use it"; exit 1; }
((failed >= 2)) || { echo "changed: it is not tried again with each advertisement"; exit 1; }
INSIDE
