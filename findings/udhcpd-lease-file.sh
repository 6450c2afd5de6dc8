#!/usr/bin/env bash
# BusyBox' udhcpd: its file of leases does not have the leases that are in use.
#
# Expected: a DHCP server keeps each lease in its file before the client uses the address, as RFC 2131, section 2.1,
# wants (persistent storage), and as dnsmasq, Kea and dhcpd do: whoever reads the file knows who has an address.
# udhcpd writes the file every auto_time seconds, two hours unless configured otherwise, on SIGUSR1 and at its end.
# Until then there is no file, or one that says that the address is free. What it writes is the rest of each lease, in
# seconds from the time in the head of the file; a reader that takes it for a time gets 1970.
#
# Seen with busybox-static 1:1.35.0-4+deb12u1+b1 (Debian 12):
#   the client has 192.0.2.50; the file: none
#   after SIGUSR1: 44 bytes; the lease ends 3597 s after the file was written
# Needs root, and Debian's iproute2 and python3. Changes nothing outside of its namespaces.
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
ip netns add client
ip link add e0 type veth peer name e0 netns client
ip addr add 192.0.2.1/24 dev e0
ip link set e0 up
ip -n client link set e0 up
printf 'start 192.0.2.50\nend 192.0.2.60\ninterface e0\nlease_file %s\npidfile %s\noption lease 3600\n' "$tmp/leases" "$tmp/pid" >"$tmp/conf"
"$busybox" udhcpd -f "$tmp/conf" >"$tmp/log" 2>&1 &
trap 'kill $(cat "$tmp/pid")' EXIT
printf '#!/bin/sh\n[ "$1" = bound ] && ip addr add $ip/24 dev $interface\n' >"$tmp/bound"
chmod +x "$tmp/bound"
until [[ -s $tmp/pid ]]; do sleep 0.1; done
ip netns exec client "$busybox" udhcpc -i e0 -s "$tmp/bound" -n -q -t 10 -T 1 >>"$tmp/log" 2>&1
has=$(ip -n client -4 -o addr show dev e0 | grep -oE '192\.0\.2\.[0-9]+' | head -n 1)
size() { [[ -e $tmp/leases ]] && stat -c '%s bytes' "$tmp/leases" || echo none; }
sleep 3
before=$(size)
echo "the client has $has; the file: $before"
kill -USR1 "$(cat "$tmp/pid")"
until [[ -s $tmp/leases ]]; do sleep 0.1; done
sleep 0.5
rest=$(python3 -c '
import struct, sys
data = open(sys.argv[1], "rb").read()
written, rest = struct.unpack(">qI", data[:12])
print(rest)' "$tmp/leases")
echo "after SIGUSR1: $(size); the lease ends $rest s after the file was written"
[[ $before == none ]] || { echo "changed: the file has been written at once"; exit 1; }
((rest > 3000 && rest <= 3600)) || { echo "changed: the end of the lease is in another form"; exit 1; }
INSIDE
