#!/usr/bin/env bash
# Linux: every router answers for the first address of its IPv6 prefixes, an address that nobody lists.
#
# Expected: a host answers for the addresses that `ip addr` shows. With net.ipv6.conf.*.forwarding=1 (each
# Kubernetes node) the kernel also joins the subnet-router anycast address, PREFIX::, of every prefix: it is
# in /proc/net/anycast6 and in RTM_GETANYCAST, but no RTM_NEWADDR tells of it. The router answers
# solicitations for it, and also the probes of duplicate address detection. So an allocator that gives out
# the zeroth address of an IPv6 range gives out an address that fails DAD in every subnet with a router, while
# no owner is to be found in any list of addresses; and all routers of a LAN answer for it, rightly.
#
# Seen with Linux 6.18.44:
#   addresses of the router:  fd00::1/64 (and a link-local one)
#   anycast6 of the router:   fd000000000000000000000000000000
#   at the other host:        fd00::/64 dadfailed tentative; without forwarding it passes
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set e0 up
ip -n peer link set e0 up
ip addr add fd00::1/64 dev e0 nodad

dad() { # waits until the address at the peer is not under test any more
	ip -n peer addr add fd00::/64 dev e0
	for _ in $(seq 100); do
		state=$(ip -n peer -6 -o addr show dev e0 to fd00::/128)
		[[ $state == *dadfailed* || $state != *tentative* ]] && break
		sleep 0.2
	done
	ip -n peer addr del fd00::/64 dev e0
}
sysctl -qw net.ipv6.conf.e0.forwarding=0
dad
echo "a host beside it:    ${state#*inet6 }"
[[ $state != *dadfailed* && $state != *tentative* ]] || { echo "changed: fails without a router"; exit 1; }

sysctl -qw net.ipv6.conf.e0.forwarding=1
listed=$(ip -6 -o addr show)
[[ $listed != *"fd00::/"* ]] || { echo "changed: the address is listed"; exit 1; }
joined=$(awk '$3 ~ /^fd0+$/ {print $3}' /proc/net/anycast6)
echo "anycast6:            $joined"
[[ $joined == fd000000000000000000000000000000 ]] || { echo "changed: not joined"; exit 1; }
dad
echo "a router beside it:  ${state#*inet6 }"
[[ $state == *dadfailed* ]] || { echo "changed: the router does not answer the probe"; exit 1; }
INSIDE
