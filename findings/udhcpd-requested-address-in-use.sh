#!/usr/bin/env bash
# BusyBox' udhcpd leases an address that another host answers for, if the client requests it.
#
# Expected: udhcpd asks by ARP before it offers an address (arpping), so that it leases none that a host uses. RFC 2131,
# section 2.2, says that a server SHOULD probe a reused address. udhcpd does so only for an address that it chooses
# itself: one that the client requests in its DHCPDISCOVER (option 50, as clients do with their last address) is offered
# and acknowledged without a question. Whoever relies on the probe to keep static addresses inside the range is wrong.
#
# Seen with busybox-static 1:1.35.0-4+deb12u1+b1 (Debian 12):
#   192.0.2.55 answers ARP; the client that requests it has 192.0.2.55
# Needs root, and Debian's iproute2. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "busybox-static=1:1.35.0-4+deb12u1+b1" >/dev/null 2>&1
dpkg-deb -x busybox-static*.deb packages
export tmp busybox=$tmp/packages/bin/busybox
$busybox | sed -n 1p
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run
ip link add br0 type bridge
ip link set br0 up
ip addr add 192.0.2.1/24 dev br0
for n in holder client; do
	ip netns add $n
	ip link add v$n type veth peer name e0 netns $n
	ip link set v$n master br0 up
	ip -n $n link set e0 up
done
ip -n holder addr add 192.0.2.55/24 dev e0
"$busybox" arping -q -c 3 -w 5 -f -I br0 192.0.2.55
echo -n "192.0.2.55 answers ARP; "
: >"$tmp/leases"
printf 'start 192.0.2.50\nend 192.0.2.60\ninterface br0\nlease_file %s\npidfile %s\noption lease 3600\n' "$tmp/leases" "$tmp/pid" >"$tmp/conf"
"$busybox" udhcpd -f "$tmp/conf" >"$tmp/log" 2>&1 &
trap 'kill $(cat "$tmp/pid")' EXIT
printf '#!/bin/sh\n[ "$1" = bound ] && echo $ip >%s\nexit 0\n' "$tmp/has" >"$tmp/bound"
chmod +x "$tmp/bound"
until [[ -s $tmp/pid ]]; do sleep 0.1; done
ip netns exec client "$busybox" udhcpc -i e0 -s "$tmp/bound" -r 192.0.2.55 -n -q -t 10 -T 1 >>"$tmp/log" 2>&1
echo "the client that requests it has $(cat "$tmp/has")"
[[ $(cat "$tmp/has") == 192.0.2.55 ]] || { echo "changed: udhcpd has asked first"; exit 1; }
INSIDE
