#!/usr/bin/env bash
# systemd-networkd: with SendDecline=yes, a client that gives its address up to another host sends no DHCPDECLINE, and
# takes the same address again.
#
# Expected: according to systemd.network(5), SendDecline=yes makes the client test the leased address and tell the server
# if another host has it. networkd does note the second claim of another host and deletes the address (RFC 5227, section
# 2.4), but it deletes the address and its route first: the DHCPDECLINE, which it sends by unicast, then fails with
# "Network is unreachable". The server never learns of the duplicate and
# leases the same address to the same client, which takes it, although the other host is still there.
# So a server's log proves nothing about duplicates that its clients found.
#
# Seen with systemd 252.39-1~deb12u2 and dnsmasq-base 2.90-4~deb12u2 (Debian 12), Linux 6.18.44:
#   before: the client has the address; after two claims: deleted
#   declines at the server: 0
#   acknowledged leases of the address: 2 or more
# Needs root and the Debian mirror. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
chmod 755 .
apt-get download "systemd=252.39-1~deb12u2" "dnsmasq-base=2.90-4~deb12u2" >/dev/null 2>&1
for package in *.deb; do dpkg-deb -x "$package" .; done
export tmp

unshare --net --mount --propagation private bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add client
ip netns add rival
ip link add br0 type bridge
ip addr add 192.0.2.1/24 dev br0
ip link set lo up
ip link set br0 up
for n in client rival; do
	ip link add v$n type veth peer name e0 netns $n
	ip link set v$n master br0 up
	ip -n $n link set e0 up
done
"$tmp/usr/sbin/dnsmasq" --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root --port=0 --interface=br0 --bind-interfaces \
	--no-ping --dhcp-range=192.0.2.100,192.0.2.199,1h --dhcp-leasefile=/run/leases --log-dhcp --log-facility=/run/dnsmasq.log &
server=$!
mkdir -p /run/systemd/netif/leases /run/systemd/netif/links /run/systemd/netif/lldp /run/systemd/network
chown -R systemd-network /run/systemd/netif
cat >/run/systemd/network/10.network <<'NETWORK'
[Match]
Name=e0
[Network]
DHCP=ipv4
LinkLocalAddressing=no
[DHCPv4]
ClientIdentifier=mac
SendDecline=yes
NETWORK
ip netns exec client env LD_LIBRARY_PATH="$tmp/usr/lib/$(uname -m)-linux-gnu/systemd:$tmp/lib/$(uname -m)-linux-gnu/systemd" \
	unshare --mount sh -c 'mount -o remount,bind,ro /sys; exec "$1/lib/systemd/systemd-networkd"' sh "$tmp" >/run/networkd.log 2>&1 &
client=$!
trap 'kill $server $client' EXIT
has() { ip -n client -4 -o addr show dev e0 | grep -o 'inet [0-9.]*' | cut -d' ' -f2; }
for _ in $(seq 300); do
	address=$(has) && break
	sleep 0.1
done
sleep 15 # beyond its own announcements
[[ $(has) == "$address" ]]

cat >/run/claim.py <<'PYTHON'
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x806))
s.bind(("e0", 0))
mac, a = s.getsockname()[4], socket.inet_aton(sys.argv[1])
s.send(b"\xff" * 6 + mac + b"\x08\x06\0\1\x08\0\6\4\0\1" + mac + a + bytes(6) + a)
PYTHON
for _ in 1 2; do
	ip netns exec rival python3 /run/claim.py "$address"
	sleep 2
done
echo "before: the client has the address; after two claims: $([[ $(has) == "$address" ]] && echo kept || echo deleted)"
for _ in $(seq 300); do
	acks=$(grep -c "DHCPACK(br0) $address " /run/dnsmasq.log)
	((acks < 2)) || break
	sleep 0.1
done
declines=$(grep -c DHCPDECLINE /run/dnsmasq.log || true)
echo "declines at the server: $declines"
echo "acknowledged leases of the address: $acks"
grep -q "conflict was detected" /run/networkd.log || { echo "no statement: networkd noticed nothing"; exit 1; }
[[ $declines == 0 ]] || { echo "changed: the client declines"; exit 1; }
((acks >= 2)) || { echo "changed: the client gets another address"; exit 1; }
INSIDE
