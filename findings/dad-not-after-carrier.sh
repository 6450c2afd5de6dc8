#!/usr/bin/env bash
# Linux: an interface that loses its carrier and gets it back does not test its IPv6 addresses again.
#
# Expected: duplicate address detection runs when an interface comes up, so also when a cable is moved to
# another switch, a virtual machine's card is connected to another network, or two segments are joined. It
# runs once, when the address is added or the interface is set up by its own host. While only the carrier is missing, the
# addresses stay (without `tentative`), and nothing is sent when it returns. Two hosts that were tested on two
# segments both keep the address on one, without dadfailed, for as long as they run.
# So an address without dadfailed was unique on the link of then, not on the link of now.
#
# Seen with Linux 6.18.44; b's port is moved from one bridge to the other, where a holds the address:
#   while the carrier is missing: NO-CARRIER, fd00::5/64 stays and is not tentative
#   probes of b within 5 s after the carrier returned: 0; fd00::5/64 without dadfailed at both
#   b removes the address and adds it again: dadfailed
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
for segment in one two; do
	ip link add $segment type bridge
	sysctl -qw net.ipv6.conf.$segment.disable_ipv6=1
	ip link set $segment up
done
for n in a b; do
	ip netns add $n
	ip link add p$n type veth peer name e0 netns $n
	ip -n $n link set e0 up
done
ip link set pa master one up
ip link set pb master two up
flags() { ip -n "$1" -6 -o addr show dev e0 to fd00::5/128; }
tested() { # waits for the end of duplicate address detection
	for _ in $(seq 100); do
		[[ $(flags "$1") != *tentative* || $(flags "$1") == *dadfailed* ]] && return
		sleep 0.1
	done
	echo "no statement: the test of $1 does not end"
	exit 1
}
for n in a b; do
	ip -n $n addr add fd00::5/64 dev e0
	tested $n
	[[ $(flags $n) != *dadfailed* ]] || { echo "no statement: the segments are not separate"; exit 1; }
done

cat >/run/count.py <<'PYTHON'
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("pb", 0))
s.settimeout(0.2)
print("ready", flush=True)
end, probes = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    try:
        f = s.recv(1500)
    except TimeoutError:
        continue
    except OSError:  # the port is down for a moment
        continue
    probes += f[12:14] == b"\x86\xdd" and f[54] == 135 and f[22:38] == bytes(16) and f[62:78] == socket.inet_pton(10, "fd00::5")
print(probes)
PYTHON
ip link set pb down
for _ in $(seq 50); do
	[[ $(ip -n b link show e0) == *NO-CARRIER* ]] && break
	sleep 0.1
done
echo "while the carrier is missing: $(ip -n b -o link show e0 | grep -o NO-CARRIER), $(flags b | grep -o 'inet6 [^ ]*')"
[[ $(flags b) == *fd00::5* && $(flags b) != *tentative* ]] || { echo "changed: the address does not stay as it is"; exit 1; }
ip link set pb master one
ip link set pb up
python3 /run/count.py 5 >/run/probes &
counter=$!
until grep -q ready /run/probes; do sleep 0.1; done
# The capture misses what is sent before it is ready, so the carrier is taken away once more.
ip link set pb down
ip link set pb up
wait $counter
probes=$(tail -n 1 /run/probes)
echo "probes of b after the carrier returned: $probes; a: $(flags a | xargs), b: $(flags b | xargs)"
[[ $probes == 0 ]] || { echo "changed: the address is tested again"; exit 1; }
for n in a b; do
	[[ $(flags $n) == *fd00::5* && $(flags $n) != *dadfailed* ]] || { echo "changed: $n noticed"; exit 1; }
done

ip -n b addr del fd00::5/64 dev e0
ip -n b addr add fd00::5/64 dev e0
tested b
echo "added again: $(flags b | xargs)"
[[ $(flags b) == *dadfailed* ]] || { echo "no statement: the two do not hear each other"; exit 1; }
INSIDE
