#!/usr/bin/env bash
# Wireshark: "duplicate use of an address" compares IPv4 addresses across VLANs, for the whole capture, and IPv6 addresses never.
#
# Expected: a filter for duplicates (arp.duplicate-address-detected) keeps the VLANs of a trunk apart, as the same private
# address is in many of them; it lets an address move to another machine; and it has a counterpart for neighbour discovery. The
# table of addresses that it compares with has the IPv4 address alone as its key, and keeps whom it saw first: another VLAN's
# holder is a duplicate, a new holder is one with each of its frames, hours after the old one was last heard. For IPv6, two MACs that
# advertise one address on one LAN raise no remark.
# So in a capture of a trunk, or of a failover, the remark proves nothing, and its absence says nothing for IPv6.
#
# Seen with tshark 4.0.17-0+deb12u3 (Debian 12); a frame with + has the remark:
#   one address in VLAN 10 and VLAN 20, one MAC in each: -+-+
#   moved to another MAC, which is heard again after two hours: -++
#   an IPv6 address in one LAN, two MACs: ---- and no other remark
# Needs the Debian mirror. Changes nothing outside of its folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get install --reinstall -y --no-install-recommends --print-uris "tshark=4.0.17-0+deb12u3" 2>/dev/null | # with the libraries that are missing here
	awk '/^.http/ { sub("_[^_]*$", "", $2); sub("_", "=", $2); gsub("%3a", ":", $2); print $2 }' | xargs -r apt-get download >/dev/null 2>&1
for p in *.deb; do dpkg-deb -x "$p" packages; done
export PATH=$tmp/packages/usr/bin:$PATH LD_LIBRARY_PATH=$tmp/packages/usr/lib/x86_64-linux-gnu

python3 - <<'PYTHON'
import socket, struct

a, b = bytes.fromhex("02000000000a"), bytes.fromhex("02000000000b")
four, six = socket.inet_aton("192.0.2.9"), socket.inet_pton(socket.AF_INET6, "fd00::9")

def announcement(mac, vlan=None):
    tag = struct.pack("!HH", 0x8100, vlan) if vlan else b""
    return (b"\xff" * 6 + mac + tag + struct.pack("!HHHBBH", 0x806, 1, 0x800, 6, 4, 1) + mac + four + bytes(6) + four).ljust(60, b"\0")

def advertisement(mac):
    to = socket.inet_pton(socket.AF_INET6, "ff02::1")
    icmp = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + six + b"\x02\x01" + mac
    sum_ = sum(struct.unpack("!36H", six + to + struct.pack("!II", len(icmp), 58) + icmp))
    while sum_ >> 16:
        sum_ = (sum_ >> 16) + (sum_ & 0xFFFF)
    icmp = icmp[:2] + struct.pack("!H", ~sum_ & 0xFFFF) + icmp[4:]
    return b"\x33\x33\0\0\0\x01" + mac + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(icmp), 58, 255) + six + to + icmp

def capture(name, frames):
    with open(name, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for seconds, frame in frames:
            f.write(struct.pack("<4I", 1700000000 + seconds, 0, len(frame), len(frame)) + frame)

capture("vlans", [(0, announcement(a, 10)), (1, announcement(b, 20)), (2, announcement(a, 10)), (3, announcement(b, 20))])
capture("moved", [(0, announcement(a)), (60, announcement(b)), (7200, announcement(b))])
capture("six", [(0, advertisement(a)), (1, advertisement(b)), (2, advertisement(a)), (3, advertisement(b))])
PYTHON

remarks() { HOME=$tmp timeout 120 tshark -r "$1" -T fields -e frame.number -e "$2" 2>/dev/null | awk '{ printf "%s", (NF > 1 ? "+" : "-") }'; }
vlans=$(remarks vlans arp.duplicate-address-detected)
moved=$(remarks moved arp.duplicate-address-detected)
six=$(remarks six _ws.expert.message)
[[ $(remarks six icmpv6.nd.na.target_address) == ++++ ]] || { echo "no statement: the advertisements are not read"; exit 1; }
echo "one address in VLAN 10 and VLAN 20, one MAC in each: $vlans"
echo "moved to another MAC, which is heard again after two hours: $moved"
echo "an IPv6 address in one LAN, two MACs: $six"
[[ $vlans == -+-+ ]] || { echo "changed: VLANs are kept apart"; exit 1; }
[[ $moved == -++ ]] || { echo "changed: an address that has moved is another case"; exit 1; }
[[ $six == ---- ]] || { echo "changed: there are remarks for IPv6"; exit 1; }
