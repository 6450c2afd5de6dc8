#!/usr/bin/env bash
# Linux: a proxy ARP router lets probes for an address pass in silence, and answers the announcement that follows.
#
# Expected: a router with proxy_arp=1 answers everybody who asks for an address behind it, or else nobody who
# tests an address before use. A probe (sender 0.0.0.0, RFC 5227) gets no answer, so `arping -D` and the
# conflict detection of DHCP clients find the address free. The announcement of the same address
# (sender = target) is answered like any request, with the MAC of the router: to the client, that has
# just begun to use the address, it is a conflict, to be defended or given up. The router learns the client as
# a neighbour from that frame, too, with arp_accept=0. IPv6 is the other way round: a proxied address answers the
# probes of duplicate address detection, and the address never comes into use.
# So neither a clean probe nor an answer to an announcement tells whether somebody holds the address.
#
# Seen with Linux 6.18.44, Python 3.11.7:
#   198.51.100.9: probe: no answer; announcement: answered by the router; request: answered by the router
#   neighbour of the router, with arp_accept=0: 198.51.100.9 dev e0 lladdr (MAC of the client)
#   fd00::50/64, proxied: dadfailed tentative
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 address 02:00:00:00:00:01 type veth peer name e0 address 02:00:00:00:00:02 netns peer
ip link add w0 type veth peer name w1
for i in e0 w0 w1; do ip link set $i up; done
ip -n peer link set e0 up
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.e0.proxy_arp=1 net.ipv4.conf.e0.arp_accept=0
sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.e0.proxy_ndp=1
ip addr add 192.0.2.1/24 dev e0
ip route add 198.51.100.0/24 dev w0
ip addr add fd00::1/64 dev e0 nodad
ip -6 route add fd00::50/128 dev w0
ip -6 neigh add proxy fd00::50 dev e0

cat >/run/ask.py <<'PYTHON'
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x806))
s.bind(("e0", 0))
s.settimeout(5)  # a proxy waits up to 0.8 s before it answers
mac = s.getsockname()[4]
sender, target = map(socket.inet_aton, sys.argv[1:])
s.send(b"\xff" * 6 + mac + bytes.fromhex("0806 0001 0800 06 04 0001") + mac + sender + bytes(6) + target)
try:
    while True:
        f = s.recv(1500)
        if f[20:22] == b"\0\2" and f[28:32] == target and f[22:28] != mac:
            print("answered by " + f[22:28].hex(":"))
            break
except TimeoutError:
    print("no answer")
PYTHON
ask() { ip netns exec peer python3 /run/ask.py "$@"; }
router="answered by 02:00:00:00:00:01"
probe=$(ask 0.0.0.0 198.51.100.9)
announcement=$(ask 198.51.100.9 198.51.100.9)
neighbour=$(ip neigh show 198.51.100.9)
request=$(ask 192.0.2.2 198.51.100.9)
echo "probe: $probe; announcement: $announcement; request: $request"
echo "neighbour of the router: $neighbour"
[[ $request == "$router" ]] || { echo "changed: no proxy"; exit 1; }
[[ $probe == "no answer" ]] || { echo "changed: the probe is answered"; exit 1; }
[[ $announcement == "$router" ]] || { echo "changed: the announcement is not answered"; exit 1; }
[[ $neighbour == *"dev e0 lladdr 02:00:00:00:00:02"* ]] || { echo "changed: the router learns nothing"; exit 1; }

ip -n peer addr add fd00::50/64 dev e0
for _ in $(seq 50); do
	state=$(ip -n peer -6 -o addr show dev e0 to fd00::50/128)
	[[ $state != *dadfailed* && $state == *tentative* ]] || break
	sleep 0.2
done
echo "IPv6 at the client: $(xargs <<<"${state#*inet6 }")"
[[ $state == *dadfailed* ]] || { echo "changed: the IPv6 probe is not answered"; exit 1; }
INSIDE
