#!/usr/bin/env bash
# dnsmasq: an address that a client has declined, because somebody else uses it, is leased at once to the next one who asks.
#
# Expected: DHCPDECLINE tells the server that the address is taken, and the server keeps it back for a while (RFC
# 2131 has it mark the address as not available; ISC dhcpd and Kea do). dnsmasq forgets the lease and writes one line to
# its log. The client itself is offered another address, but the next client that asks for the declined one
# (option 50, as clients do with an address they had before) is leased it at once; only an
# answer to ping would keep it back, and hosts behind a firewall give none. The file of leases shows
# nothing of the decline, before or after.
# So the record of a duplicate that a client found is in the log alone, and repeats with the next client.
#
# Seen with dnsmasq-base 2.90-4~deb12u2 (Debian 12), Python 3.11.7:
#   client a: leased 192.0.2.100, declines it; leases file: empty
#   client a: is offered 192.0.2.101
#   client b: is leased 192.0.2.100
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
ip addr add 192.0.2.1/24 dev e0
ip link set e0 up
ip -n peer link set e0 up

"$tmp/usr/sbin/dnsmasq" --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root --port=0 --interface=e0 --bind-interfaces \
	--dhcp-range=192.0.2.100,192.0.2.199,1h --dhcp-sequential-ip --dhcp-authoritative --dhcp-leasefile="$tmp/leases" \
	--log-dhcp --log-facility="$tmp/log" &
server=$!
trap 'kill $server' EXIT

cat >/run/client.py <<'PYTHON'
import os, socket, struct, sys, time

DISCOVER, OFFER, REQUEST, DECLINE, ACK = 1, 2, 3, 4, 5
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x800))
s.bind(("e0", 0))
s.settimeout(1)
server = socket.inet_aton("192.0.2.1")

def checksum(b):
    n = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    n = (n >> 16) + (n & 0xFFFF)
    return ~(n + (n >> 16)) & 0xFFFF

def send(mac, kind, options, xid):
    dhcp = struct.pack("!4BI2H16s16s192s4s", 1, 1, 6, 0, xid, 0, 0x8000, b"", mac, b"", b"\x63\x82\x53\x63")
    dhcp += bytes([53, 1, kind]) + b"".join(bytes([k, len(v)]) + v for k, v in options) + b"\xff"
    udp = struct.pack("!4H", 68, 67, 8 + len(dhcp), 0) + dhcp
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes(4), b"\xff" * 4)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    s.send(b"\xff" * 6 + mac + b"\x08\x00" + ip + udp)

def ask(mac, kind, options, want):
    for xid in range(1, 31):
        send(mac, kind, options, xid)
        end = time.time() + 4  # the server pings an address before it offers it
        while time.time() < end:
            try:
                f = s.recv(2000)
            except TimeoutError:
                continue
            if f[23] == 17 and f[34:38] == struct.pack("!2H", 67, 68) and f[46:50] == struct.pack("!I", xid) and f[70:76] == mac and f[282:285] == bytes([53, 1, want]):
                return f[58:62]
    sys.exit("no answer to message %d" % kind)

a, b = bytes.fromhex("02000000000a"), bytes.fromhex("02000000000b")
leases = lambda: open(os.environ["tmp"] + "/leases").read()
address = ask(a, DISCOVER, [], OFFER)
assert ask(a, REQUEST, [(50, address), (54, server)], ACK) == address
assert socket.inet_ntoa(address) in leases()
send(a, DECLINE, [(50, address), (54, server)], 99)
end = time.time() + 10
while socket.inet_ntoa(address) in leases() and time.time() < end:
    time.sleep(0.1)
print("client a: leased %s, declines it; leases file: %s" % (socket.inet_ntoa(address), leases().strip() or "empty"))
if leases().strip():
    sys.exit("changed: the leases file tells of the declined address")
other = ask(a, DISCOVER, [], OFFER)
print("client a: is offered", socket.inet_ntoa(other))
again = ask(b, DISCOVER, [(50, address)], OFFER)
if again == address:
    assert ask(b, REQUEST, [(50, address), (54, server)], ACK) == address
print("client b: is leased", socket.inet_ntoa(again))
if other == address or again != address:
    sys.exit("changed: the declined address is kept back")
PYTHON
for _ in $(seq 100); do
	[[ ! -e $tmp/leases ]] || break
	sleep 0.2
done
ip netns exec peer python3 /run/client.py
grep -o "DHCPDECLINE(e0) 192.0.2.100 .*" "$tmp/log"
INSIDE
