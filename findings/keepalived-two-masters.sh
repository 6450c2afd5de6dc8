#!/usr/bin/env bash
# keepalived: a router whose list of addresses is longer by one makes both routers master, and the shared address is held twice.
#
# Expected: of two routers with one virtual_router_id on a LAN the one with the higher priority is master, whatever the lists
# of addresses are (in RFC 5798 a difference may be logged, and the advertisement counts). keepalived drops
# advertisements whose addresses are not its own, and acts as if nobody else were there. So while a new
# virtual address is rolled out node by node, both are master and each address of the old list is
# a duplicate on the LAN, for as long as the configurations differ; and two clusters that chose one virtual_router_id
# by mistake do not disturb each other's election, so nothing but a line in the log a second tells of it.
#
# Seen with keepalived 1:2.2.7-1+b2 (Debian 12), Linux 6.18.44:
#   equal lists:        192.0.2.100 is held by: b
#   b has one more:     192.0.2.100 is held by: a b
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
start() { # NAME PRIORITY ADDRESS...
	local n=$1 priority=$2
	shift 2
	printf 'vrrp_instance v {\n state BACKUP\n interface e0\n virtual_router_id 51\n priority %s\n advert_int 1\n virtual_ipaddress {\n' "$priority" >/run/$n.conf
	printf '  %s/24\n' "$@" >>/run/$n.conf
	printf ' }\n}\n' >>/run/$n.conf
	ip netns exec $n "$tmp/usr/sbin/keepalived" --dont-fork --log-console --vrrp --use-file=/run/$n.conf \
		--pid=/run/$n.pid --vrrp_pid=/run/$n.vrrp.pid >/run/$n.log 2>&1 &
	pids+=($!)
}
holders() { for n in a b; do [[ $(ip -n $n -4 -o addr show dev e0) != *"192.0.2.100/"* ]] || echo $n; done | xargs; }
settled() { # waits up to a minute until the holders are $1, and says who they are ten seconds later
	for _ in $(seq 60); do
		[[ $(holders) != "$1" ]] || break
		sleep 1
	done
	sleep 10
	holders
}
start a 100 192.0.2.100
start b 150 192.0.2.100
one=$(settled b)
echo "equal lists:     192.0.2.100 is held by: $one"
[[ $one == b ]] || { cat /run/*.log; echo "no statement: no single master with equal lists"; exit 1; }
stop

start a 100 192.0.2.100
start b 150 192.0.2.100 192.0.2.200
two=$(settled "a b")
echo "b has one more:  192.0.2.100 is held by: $two"
[[ $two == "a b" ]] || { echo "changed: one of them is backup"; exit 1; }
INSIDE
