#!/usr/bin/env bash
# Linux: a VXLAN device with `proxy` answers an IPv6 probe, but to the address `::`, and so the prober finds the address free.
#
# Expected: with `proxy`, a VXLAN device answers from its node's neighbour table for addresses behind other nodes, so
# that nobody has to be asked over the tunnel; who tests one of these addresses gets an answer and gives way. For
# ARP it is so. For IPv6, RFC 4861 7.2.4 has a solicitation from `::` answered to ff02::1, but the device
# sends its advertisement to the sender of the probe, `::`; and it keeps the probe from the tunnel, so that the holder
# cannot defend itself either. What comes of it depends on the prober's routes. With a default route, as pods have,
# the answer is dropped in silence, and the address is in use twice without dadfailed. Without one, the kernel wants to tell
# the sender of the answer, fd00::5, that `::` is unreachable; to do so it asks for fd00::5 from another
# address of its own, gets an answer, and gives the address up because of that.
#
# Seen with Linux 6.18.44, busybox 1.35; the entries are for fd00::5 and 192.0.2.5, held by 02:00:00:00:00:05:
#   ARP probe for 192.0.2.5: arping -D ends with 1
#   IPv6 probe for fd00::5: advertisement from 02:00:00:00:00:05 to ::
#   with a default route: fd00::5/64 without dadfailed; without a default route: dadfailed
#   solicitation from fd00::7: advertisement to fd00::7
# Needs root and Debian's busybox. Changes nothing outside of its namespaces.
set -euo pipefail
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add pod
ip -n pod link set lo up
ip link set lo up
ip link add up0 type veth peer name up1
ip link set up0 up
ip link set up1 up
ip addr add 198.51.100.1/24 dev up0
ip neigh replace 198.51.100.2 lladdr 02:00:00:00:00:02 dev up0 nud permanent
ip link add br0 type bridge
ip link set br0 up
sysctl -qw net.ipv6.conf.br0.disable_ipv6=1
ip link add vx0 type vxlan id 7 local 198.51.100.1 dstport 4789 nolearning proxy
ip link set vx0 master br0 up
ip link add p0 type veth peer name e0 netns pod
ip link set p0 master br0 up
ip -n pod link set e0 up
ip -n pod addr add fd00::7/64 dev e0 nodad
holder=02:00:00:00:00:05
ip -6 neigh replace fd00::5 lladdr $holder dev vx0 nud permanent
ip neigh replace 192.0.2.5 lladdr $holder dev vx0 nud permanent
bridge fdb append $holder dev vx0 dst 198.51.100.2
bridge fdb append 00:00:00:00:00:00 dev vx0 dst 198.51.100.2

cat >/run/ask.py <<'PYTHON'
import socket, sys
answers = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
answers.bind(("e0", 0))
answers.settimeout(5)
want = socket.inet_pton(10, "fd00::5")
print("ready", flush=True)
try:
    while True:
        f = answers.recv(1500)
        if len(f) >= 78 and f[54] == 136 and f[62:78] == want:
            print(f[6:12].hex(":"), socket.inet_ntop(10, f[38:54]))
            break
except TimeoutError:
    print("nobody -")
PYTHON
answer() { # the MAC and the destination of the first advertisement for fd00::5 after the command
	ip netns exec pod python3 /run/ask.py >/run/answer &
	local asker=$!
	until grep -q ready /run/answer; do sleep 0.1; done
	"$@"
	wait $asker
	read -r mac to < <(tail -n 1 /run/answer)
}
status=0
ip netns exec pod busybox arping -q -D -c 2 -I e0 192.0.2.5 || status=$?
echo "ARP probe for 192.0.2.5: arping -D ends with $status"
[[ $status == 1 ]] || { echo "changed: the ARP probe is not answered"; exit 1; }

probe() { # sets state to what the kernel says of fd00::5 after its test
	answer ip -n pod addr add fd00::5/64 dev e0
	for _ in $(seq 100); do
		state=$(ip -n pod -6 -o addr show dev e0 to fd00::5/128 | xargs)
		[[ $state != *tentative* || $state == *dadfailed* ]] && break
		sleep 0.1
	done
	ip -n pod addr del fd00::5/64 dev e0
	echo "IPv6 probe for fd00::5 $1: advertisement from $mac to $to; $state"
	[[ $mac == "$holder" ]] || { echo "changed: the probe is not answered"; exit 1; }
	[[ $to == :: ]] || { echo "changed: the answer goes to $to"; exit 1; }
}
ip -n pod -6 route add default via fd00::1
probe "with a default route"
[[ $state == *fd00::5* && $state != *dadfailed* ]] || { echo "changed: the prober gives way"; exit 1; }
ip -n pod -6 route del default
ip -n pod -6 neigh flush dev e0
probe "without one"
[[ $state == *dadfailed* ]] || { echo "changed: the prober does not give way"; exit 1; }

answer ip netns exec pod busybox ping6 -q -c 1 -W 1 -I fd00::7 fd00::5 >/dev/null || true
echo "solicitation from fd00::7: advertisement from $mac to $to"
[[ $mac == "$holder" && $to == fd00::7 ]] || { echo "changed: an ordinary solicitation is answered by $mac to $to"; exit 1; }
INSIDE
