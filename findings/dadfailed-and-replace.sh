#!/usr/bin/env bash
# Linux: `ip addr replace` on an IPv6 address that failed duplicate address detection ends with 0, and the address stays out of use.
#
# Expected: once the other holder is gone, a program that states its configuration again (`ip addr replace`,
# NLM_F_REPLACE) makes the kernel test the address again; and with nodad, which `ip addr` shows afterwards, the address is
# in use without a test. The kernel only changes the flags and lifetimes of the address that it has. No probe is sent,
# dadfailed and tentative stay, even beside nodad, and no socket can be bound to the address. `ip addr add`, which would say that
# the address is there, refuses it. Only to delete the address and to add it again makes a test.
# So the status 0 of the command says nothing about the address, and a repair of a duplicate is done when dadfailed is
# gone, not when the configuration was applied again.
#
# Seen with Linux 6.18.44, iproute2 6.1.0-3 (Debian 12); nobody else has the address any more:
#   replace:            status 0, probes 0, fd00::5/64 scope global dadfailed tentative; bind: not available
#   replace with nodad: status 0, probes 0, fd00::5/64 scope global nodad dadfailed tentative; bind: not available
#   add: status 2
#   deleted and added:  status 0, probes 1, fd00::5/64 scope global; bind: possible
# Needs root and Debian's iproute2. Changes nothing outside of its namespaces.
set -euo pipefail
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set e0 up
ip -n peer link set e0 up
ip -n peer addr add fd00::5/64 dev e0 nodad

cat >/run/count.py <<'PYTHON'
import signal, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
s.bind(("e0", 0))
s.settimeout(0.2)
ended = False

def end(*_):
    global ended
    ended = True

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
probes = 0
while not ended:
    try:
        f = s.recv(1500)
    except TimeoutError:
        continue
    probes += f[54] == 135 and f[22:38] == bytes(16) and f[62:78] == socket.inet_pton(socket.AF_INET6, "fd00::5")
print(probes)
PYTHON
state() { # once the test is over
	for _ in $(seq 100); do
		shown=$(ip -6 -o addr show dev e0 to fd00::5/128 | sed 's/.*inet6 //; s/ *\\\? *valid_lft.*//')
		[[ -n $shown && $shown == *tentative* && $shown != *dadfailed* ]] || break
		sleep 0.1
	done
}
bind() { python3 -c 'import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).bind(("fd00::5", 9))' 2>/dev/null && echo possible || echo not available; }
try() { # TEXT COMMAND: does it, and waits long enough for a probe
	ip netns exec peer python3 /run/count.py >/run/probes &
	local counter=$!
	until grep -q ready /run/probes; do sleep 0.1; done
	status=0
	eval "$2" || status=$?
	sleep 2
	state
	kill $counter
	wait $counter
	probes=$(tail -n 1 /run/probes) bound=$(bind)
	echo "$1: status $status, probes $probes, $shown; bind: $bound"
}

try "added, while another host has it" "ip addr add fd00::5/64 dev e0"
[[ $probes == 1 && $shown == *dadfailed* ]] || { echo "no statement: the duplicate is not found"; exit 1; }
ip -n peer addr del fd00::5/64 dev e0
try "replace" "ip addr replace fd00::5/64 dev e0"
[[ "$status $probes $shown; $bound" == "0 0 fd00::5/64 scope global dadfailed tentative; not available" ]] || { echo "changed: replace has an effect"; exit 1; }
try "replace with nodad" "ip addr replace fd00::5/64 dev e0 nodad"
[[ "$status $probes $shown; $bound" == "0 0 fd00::5/64 scope global nodad dadfailed tentative; not available" ]] || { echo "changed: replace with nodad has an effect"; exit 1; }
status=0
ip addr add fd00::5/64 dev e0 2>/dev/null || status=$?
echo "add: status $status"
[[ $status == 2 ]] || { echo "changed: the address can be added"; exit 1; }
try "deleted and added" "ip addr del fd00::5/64 dev e0; ip addr add fd00::5/64 dev e0"
[[ "$status $probes $shown; $bound" == "0 1 fd00::5/64 scope global; possible" ]] || { echo "no statement: the address cannot be used at all"; exit 1; }
INSIDE
