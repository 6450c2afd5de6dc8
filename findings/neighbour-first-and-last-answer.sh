#!/usr/bin/env bash
# Linux: of two holders of an address, the one that answers first gets the packets for IPv4, and the one that answers last for IPv6.
#
# Expected: two hosts that answer for one address are treated alike in both families; a guess is that the later answer wins,
# as it does in a switch. For IPv4 the kernel passes over answers that come within a second of the one that it
# took (/proc/sys/net/ipv4/neigh/*/locktime). Neighbour discovery has no such time: an advertisement with the flag override,
# as holders send it, replaces the one before. So of a dual-stack service whose two addresses are held by the same two hosts,
# clients reach the fast host by IPv4 and the slow one by IPv6; and a program that asks once and takes the first answer,
# as ndisc6 does, names the holder that the kernel does not use.
#
# Seen with Linux 6.18.44, ndisc6 1.0.5-1+b2 (Debian 12), Python 3.11.7; ...:0a answers first, ...:0b at once after it; three times:
#   192.0.2.9 lladdr 02:00:00:00:00:0a
#   fd00::9 lladdr 02:00:00:00:00:0b; ndisc6: 02:00:00:00:00:0a
# Needs root and the Debian mirror. Changes nothing outside of its namespaces and folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "ndisc6=1.0.5-1+b2" >/dev/null 2>&1
dpkg-deb -x ndisc6_*.deb .
export PATH=$tmp/usr/bin:$PATH

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set e0 up
ip -n peer link set e0 up
ip addr add 192.0.2.1/24 dev e0
ip addr add fd00::1/64 dev e0 nodad

# Two holders, whose answers to each request by multicast or broadcast follow each other.
cat >/run/holders.py <<'PYTHON'
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("e0", 0))
holders = [bytes.fromhex("02000000000a"), bytes.fromhex("02000000000b")]
four, six = socket.inet_aton("192.0.2.9"), socket.inet_pton(socket.AF_INET6, "fd00::9")

def checksum(b):
    n = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    while n >> 16:
        n = (n >> 16) + (n & 0xFFFF)
    return ~n & 0xFFFF

def advertisement(f, mac):
    to = f[22:38]
    icmp = struct.pack("!BBHI", 136, 0, 0, 0x60000000) + six + b"\x02\x01" + mac  # solicited, override
    sum = checksum(six + to + struct.pack("!II", len(icmp), 58) + icmp)
    icmp = icmp[:2] + struct.pack("!H", sum) + icmp[4:]
    return f[6:12] + mac + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(icmp), 58, 255) + six + to + icmp

print("ready", flush=True)
while True:
    f, at = s.recvfrom(2000)
    if at[2] == socket.PACKET_OUTGOING or not f[0] & 1:
        continue
    for mac in holders:
        if f[12:14] == b"\x08\x06" and f[20:22] == b"\0\x01" and f[38:42] == four:
            s.send(f[6:12] + mac + f[12:21] + b"\x02" + mac + four + f[22:32])
        if f[12:14] == b"\x86\xdd" and f[20] == 58 and f[54] == 135 and f[62:78] == six:
            s.send(advertisement(f, mac))
PYTHON
ip netns exec peer python3 /run/holders.py >/run/log &
holders=$!
trap 'kill $holders' EXIT
until grep -q ready /run/log; do sleep 0.1; done

for n in 1 2 3; do
	python3 -c 'import socket
for family, address in (socket.AF_INET, "192.0.2.9"), (socket.AF_INET6, "fd00::9"):
    socket.socket(family, socket.SOCK_DGRAM).sendto(b"", (address, 9))'
	for _ in $(seq 50); do
		four=$(ip neigh show 192.0.2.9 dev e0) six=$(ip neigh show fd00::9 dev e0)
		[[ "$four $six" == *REACHABLE*REACHABLE* ]] && break
		sleep 0.1
	done
	sleep 0.5 # for the second answers
	four=$(ip neigh show 192.0.2.9 dev e0) six=$(ip neigh show fd00::9 dev e0)
	first=$(ndisc6 -q fd00::9 e0)
	echo "$four; $six; ndisc6: $first"
	[[ $four == *02:00:00:00:00:0a* ]] || { echo "changed: IPv4 does not take the first answer"; exit 1; }
	[[ $six == *02:00:00:00:00:0b* ]] || { echo "changed: IPv6 does not take the last answer"; exit 1; }
	[[ $first == 02:00:00:00:00:0A ]] || { echo "changed: ndisc6 does not take the first answer"; exit 1; }
	ip neigh flush dev e0
done
INSIDE
