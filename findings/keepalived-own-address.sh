#!/usr/bin/env bash
# keepalived: a virtual address that is the only one of the interface already puts the instance in state FAULT, and the peer takes it.
#
# Expected: the router that has the virtual address as its own is the address owner of RFC 5798, with priority 255: it is master, and
# the other one is backup. keepalived does not send advertisements from a virtual address. If the interface has no other one, the
# instance is in state FAULT, whatever its priority is, and keepalived goes on running. The other router hears nobody, becomes master,
# and sets the address. What happens to the own one depends on how the virtual one is written: without a prefix (192.0.2.1, which is
# 192.0.2.1/32), it stays, and the address is a duplicate for good; with the same prefix, keepalived deletes it when it starts, as
# one that an earlier run left behind, and the machine has no address left.
#
# Seen with keepalived 1:2.2.7-1+b2 (Debian 12), Linux 6.18.44:
#   own 192.0.2.1/24, virtual 192.0.2.1:                     held by: a b; a: entering FAULT state (no IPv4 address for interface)
#   own 192.0.2.1/24 and 192.0.2.3/24, virtual 192.0.2.1:    held by: a
#   own 192.0.2.1/24, virtual 192.0.2.1/24:                  held by: b; a: entering FAULT state (no IPv4 address for interface)
# Needs root and the Debian mirror. Changes nothing outside of its namespaces.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "keepalived=1:2.2.7-1+b2" >/dev/null 2>&1
dpkg-deb -x keepalived_*.deb .
for lib in libnl-3-200 libnl-genl-3-200 libnl-route-3-200 libnfnetlink0 libsnmp40 libsensors5; do
	dpkg -s $lib >/dev/null 2>&1 || { apt-get download $lib && dpkg-deb -x ${lib}_*.deb .; } >/dev/null 2>&1 || true
done
export tmp
export LD_LIBRARY_PATH=$tmp/lib/x86_64-linux-gnu:$tmp/usr/lib/x86_64-linux-gnu

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
for n in a b; do ip netns add $n; done
ip -n a link add e0 type veth peer name e0 netns b
for n in a b; do ip -n $n link set lo up; ip -n $n link set e0 up; done
ip -n a addr add 192.0.2.1/24 dev e0
ip -n b addr add 192.0.2.2/24 dev e0

pids=()
stop() { ((${#pids[@]} == 0)) || kill "${pids[@]}"; wait; pids=(); }
trap stop EXIT
start() { # NAME PRIORITY ADDRESS
	printf 'vrrp_instance v {\n state BACKUP\n interface e0\n virtual_router_id 51\n priority %s\n advert_int 1\n virtual_ipaddress {\n  %s\n }\n}\n' "$2" "$3" >/run/$1.conf
	ip netns exec $1 "$tmp/usr/sbin/keepalived" --dont-fork --log-console --vrrp --use-file=/run/$1.conf \
		--pid=/run/$1.pid --vrrp_pid=/run/$1.vrrp.pid >/run/$1.log 2>&1 &
	pids+=($!)
}
holders() { for n in a b; do [[ $(ip -n $n -4 -o addr show dev e0) != *"192.0.2.1/"* ]] || echo $n; done | xargs; }
try() { # WHAT VIRTUAL HOLDERS [FAULT]
	start a 255 "$2"
	start b 100 "$2"
	for _ in $(seq 60); do
		[[ $(holders) != "$3" ]] || break
		sleep 1
	done
	sleep 10
	local now fault
	now=$(holders)
	fault=$(grep -o "entering FAULT state (no IPv4 address for interface)" /run/a.log | head -n 1 || true)
	printf '%-57s held by: %s%s\n' "$1, virtual $2:" "$now" "${fault:+; a: $fault}"
	[[ $now == "$3" && ${fault:+fault} == "${4:-}" ]] && kill -0 "${pids[0]}" || { echo "changed: expected $3 ${4:-}"; cat /run/*.log; exit 1; }
	stop
}
try "own 192.0.2.1/24" 192.0.2.1 "a b" fault
ip -n a addr add 192.0.2.3/24 dev e0
try "own 192.0.2.1/24 and 192.0.2.3/24" 192.0.2.1 a
ip -n a addr flush dev e0
ip -n a addr add 192.0.2.1/24 dev e0
try "own 192.0.2.1/24" 192.0.2.1/24 b fault
INSIDE
