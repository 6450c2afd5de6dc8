#!/usr/bin/env bash
# dnsmasq: an address that dhcp-host reserves by its second half ([::55]) is leased to other clients, too.
#
# Expected: dnsmasq(8) lets dhcp-host name a full IPv6 address or, with a dynamic prefix (constructor:), "a
# suffix": dhcp-host=02:00:00:00:00:0b,[::55]. Either way an address in dhcp-range that is reserved for one client is leased
# to no other one, as for IPv4.
# Only the full address is. For a suffix, config_find_by_address6 lets the prefix of the range be any, and then compares all 128
# bits of ::55 with those of the address, which are never equal. So the first client that asks gets the
# address; the one that it is reserved for gets another one as long as that lease lasts, or declines it, because a
# machine with the address (set by hand, by its reservation) answers.
#
# Seen with dnsmasq-base 2.90-4~deb12u2 (Debian 12), Python 3.11.7, for a range of two addresses:
#   dhcp-host=02:00:00:00:00:0b,[fd77::55]: another client is offered fd77::56
#   dhcp-host=02:00:00:00:00:0b,[::55]: another client is offered fd77::55 fd77::56
# Needs root and the Debian mirror. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
chmod 755 .
apt-get download "dnsmasq-base=2.90-4~deb12u2" >/dev/null 2>&1
dpkg-deb -x dnsmasq-base_*.deb .
export tmp

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set lo up
ip addr add fd77::1/64 dev e0 nodad
ip link set e0 up
ip -n peer link set e0 up

cat >/run/client.py <<'PYTHON'
import socket, struct, sys, time

SOLICIT, ADVERTISE, CLIENTID, SERVERID, IA_NA, IAADDR = 1, 2, 1, 2, 3, 5

def option(kind, data):
    return struct.pack("!2H", kind, len(data)) + data

def options(data):
    while len(data) >= 4:
        kind, n = struct.unpack("!2H", data[:4])
        yield kind, data[4 : 4 + n]
        data = data[4 + n :]

# IAIDs from 0 on, so that the search for a free address begins at each of those of the range.
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"e0")
s.bind(("::", 546))
s.settimeout(1)
got = set()
for iaid in range(4):
    duid = struct.pack("!2H", 3, 1) + bytes.fromhex("02000000000c")
    message = struct.pack("!I", SOLICIT << 24 | iaid + 1) + option(CLIENTID, duid) + option(IA_NA, struct.pack("!3I", iaid, 0, 0)) + option(8, b"\0\0")
    for attempt in range(60):
        try:
            s.sendto(message, ("ff02::1:2", 547, 0, socket.if_nametoindex("e0")))
            answer = s.recv(2000)
        except OSError: # no answer yet, or the link-local address is still tentative
            time.sleep(0.2)
            continue
        if answer[:4] == struct.pack("!I", ADVERTISE << 24 | iaid + 1):
            break
    else:
        sys.exit("no answer to a SOLICIT")
    for kind, data in options(answer[4:]):
        if kind == IA_NA:
            for kind, data in options(data[12:]):
                if kind == IAADDR:
                    got.add(socket.inet_ntop(socket.AF_INET6, data[:16]))
print(" ".join(sorted(got)))
PYTHON

offered() { # RESERVED
	"$tmp/usr/sbin/dnsmasq" --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root --port=0 --interface=e0 --bind-interfaces \
		--dhcp-range=fd77::55,fd77::56,64,1h --dhcp-host="02:00:00:00:00:0b,[$1]" --dhcp-leasefile=/run/leases >/run/log 2>&1 &
	local server=$!
	ip netns exec peer python3 /run/client.py || { cat /run/log >&2; kill $server; return 1; }
	kill $server
	wait $server || true
}
full=$(offered fd77::55)
half=$(offered ::55)
echo "dhcp-host=02:00:00:00:00:0b,[fd77::55]: another client is offered $full"
echo "dhcp-host=02:00:00:00:00:0b,[::55]: another client is offered $half"
[[ $full == fd77::56 ]] || { echo "changed: a full address is not kept back"; exit 1; }
[[ $half == *fd77::55* ]] || { echo "changed: the second half of an address is kept back"; exit 1; }
INSIDE
