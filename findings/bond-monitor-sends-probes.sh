#!/usr/bin/env bash
# Linux bonding: the ARP monitor of a host without an address sends RFC 5227 probes for its target, for ever.
#
# Expected: `arp_ip_target` makes a bond ask for its gateway several times a second, and each request carries the host's own
# address. It does while the bond, a VLAN on it or a bridge above has one that leads to the target. A hypervisor whose
# bond only carries its guests' frames has none: then the sender is 0.0.0.0, which makes the request a probe, as from
# a host that is about to use the gateway's address. The gateway answers, and the monitor is content. But a probe of
# another host for the same address while one tests it oneself is a conflict (RFC 5227, section 2.1.1): a router that
# tests its address meets one forever, once for each hypervisor; and a watcher that takes a prober for a coming owner
# has an owner that never comes.
#
# Seen with Linux 6.1.176 (Debian 12), iproute2 6.1.0, tcpdump 4.99.3; arp_interval 200, arp_ip_target 192.0.2.1:
#   the bond has 192.0.2.9/24: requests of 192.0.2.9; its bridge has it: requests of 192.0.2.9; nobody has it: of 0.0.0.0
# Needs root, the Debian mirror, and Debian's qemu-system-x86, busybox-static and iproute2. Changes nothing outside of its folder.
set -euo pipefail
lib=$(dirname "$(readlink -f "$0")")/lib
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
. "$lib/guest.sh"
guest veth bridge bonding <<'JOB' | tee result
ip netns add gateway
ip link add s0 type veth peer name g0 netns gateway
ip -n gateway link set g0 up
ip -n gateway addr add 192.0.2.1/24 dev g0
ip link add bond1 type bond mode active-backup arp_interval 200 arp_ip_target 192.0.2.1
ip link set s0 master bond1
ip link set bond1 up
asked() { # the senders of five requests, once the former ones have passed
	sleep 2
	echo "$1: $(ip netns exec gateway tcpdump -lnni g0 -c 5 'arp[6:2] = 1' 2>/dev/null | sed 's/.*tell //; s/,.*//' | sort | uniq -c | xargs)"
}
ip addr add 192.0.2.9/24 dev bond1
asked "the bond has an address"
ip addr flush dev bond1
ip link add br0 type bridge
ip link set bond1 master br0
ip link set br0 up
ip addr add 192.0.2.9/24 dev br0
asked "the bridge has it"
ip addr flush dev br0
asked "nobody has it"
JOB
grep -q "the bond has an address: 5 192.0.2.9" result || { echo "changed: other requests of a bond with an address"; exit 1; }
grep -q "the bridge has it: 5 192.0.2.9" result || { echo "changed: other requests of a bond in a bridge"; exit 1; }
grep -q "nobody has it: 5 0.0.0.0" result || { echo "changed: other requests of a bond without an address"; exit 1; }
