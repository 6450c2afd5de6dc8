#!/usr/bin/env bash
# Linux: with every proxy_arp at 0 a host still answers for others, by a proxy entry that `ip neigh` does not list.
#
# Expected: proxy_arp is the switch, and the proxy entries (`ip neigh add proxy`) say for which addresses, as
# proxy_ndp and its entries do for IPv6. For IPv4 they are two independent ways: an entry answers with
# proxy_arp=0, if the host forwards and its route to the address leads out of another interface. For IPv6
# the same entry does nothing until proxy_ndp is 1. `ip neigh` and the usual dump of neighbours show the entry
# in neither case; it has a dump of its own (NTF_PROXY, `ip neigh show proxy`).
# Who looks for proxies by the sysctls (or RTM_GETNETCONF) alone misses the IPv4 ones.
#
# Seen with Linux 6.18.44, iputils 3:20221126-1+deb12u1, iproute2 6.1.0-3 (Debian 12):
#   proxy_arp: all 0, e0 0; no entry: answers 0; entry: answers 1; listed by ip neigh: no
#   proxy_ndp: all 0, e0 0; entry: silent; with proxy_ndp=1: answers
# Needs root and the Debian mirror. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "iputils-arping=3:20221126-1+deb12u1" >/dev/null 2>&1
dpkg-deb -x iputils-arping_*.deb .
export PATH=$tmp/usr/bin:$PATH

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link add w0 type veth peer name w1
for i in e0 w0 w1; do ip link set $i up; done
ip -n peer link set e0 up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
sysctl -qw net.ipv4.conf.all.proxy_arp=0 net.ipv4.conf.e0.proxy_arp=0 net.ipv6.conf.all.proxy_ndp=0 net.ipv6.conf.e0.proxy_ndp=0
ip addr add 192.0.2.1/24 dev e0
ip addr add fd00::1/64 dev e0 nodad
ip route add 192.0.2.50/32 dev w0
ip -6 route add fd00::50/128 dev w0
ip -n peer addr add 192.0.2.2/24 dev e0
ip -n peer addr add fd00::2/64 dev e0 nodad

answered() { ip netns exec peer arping -f -c 3 -w 4 -I e0 192.0.2.50 | sed -n 's/^Received \([0-9]*\) response.*/\1/p' || true; }
before=$(answered)
ip neigh add proxy 192.0.2.50 dev e0
ip neigh add proxy fd00::50 dev e0
after=$(answered)
flags=$(sysctl -n net.ipv4.conf.all.proxy_arp net.ipv4.conf.e0.proxy_arp | xargs)
listed=$(ip neigh show | grep -c '\.50 \|::50 ' || true)
echo "proxy_arp (all, e0): $flags; without the entry: answers $before; with it: answers $after; lines in ip neigh: $listed"
[[ $flags == "0 0" && $before == 0 && $after == 1 ]] || { echo "changed: the entry needs proxy_arp"; exit 1; }
[[ $listed == 0 ]] || { echo "changed: the entry is listed"; exit 1; }
proxies=$(ip neigh show proxy)
[[ $proxies == *"192.0.2.50 dev e0 proxy"* ]]

# The peer asks for the address because of a datagram; its table of neighbours tells the outcome.
solicited() {
	ip -n peer neigh flush dev e0
	ip netns exec peer python3 -c 'import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", ("fd00::50", 9))'
	sleep 4
	[[ $(ip -n peer neigh show fd00::50) == *lladdr* ]] && echo answers || echo silent
}
off=$(solicited)
sysctl -qw net.ipv6.conf.e0.proxy_ndp=1
on=$(solicited)
echo "IPv6, the same entry: proxy_ndp 0: $off; proxy_ndp 1: $on"
[[ $off == silent && $on == answers ]] || { echo "changed: IPv6 entries"; exit 1; }
INSIDE
