#!/usr/bin/env bash
# iputils arping -D: two hosts that probe for one address at the same time both find it free.
#
# Expected: RFC 5227 counts another host's probe for the same address as a conflict, and `arping -D` is
# the program in the scripts that bring addresses up (ifup, cluster agents). It takes note only of frames
# whose sender is the address: a probe has the sender 0.0.0.0 and is passed over. Machines that start together, as
# after a power cut or when a Deployment is scaled, all get the exit status 0 and all take the address.
# So "both sides tested the address" is no evidence against a duplicate.
#
# Seen with iputils 3:20221126-1+deb12u1 (Debian 12), Linux 6.18.44:
#   a: exit status 0, a heard the other's probes: 4 or more; b: exit status 0, likewise
#   a prober against one who holds the address: exit status 1
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
ip netns add a
ip netns add b
ip -n a link add e0 type veth peer name e0 netns b
for n in a b; do ip -n $n link set e0 up; done

cat >/run/count.py <<'PYTHON'
import socket, subprocess
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x806))
s.bind(("e0", 0))
status = subprocess.run(["arping", "-q", "-D", "-c", "6", "-w", "8", "-I", "e0", "192.0.2.9"]).returncode
s.setblocking(False)
heard = 0
try:
    while True:
        f, at = s.recvfrom(1500)
        heard += at[2] != socket.PACKET_OUTGOING and f[28:32] == bytes(4) and f[38:42] == socket.inet_aton("192.0.2.9")
except BlockingIOError:
    pass
print(status, heard)
PYTHON
ip netns exec a python3 /run/count.py >/run/a &
pid=$!
ip netns exec b python3 /run/count.py >/run/b
wait $pid
for n in a b; do
	read -r status heard </run/$n
	echo "$n: exit status $status, heard the other's probes: $heard"
	((heard > 0)) || { echo "no statement: the two did not overlap"; exit 1; }
	[[ $status == 0 ]] || { echo "changed: the other's probe is a conflict"; exit 1; }
done

ip -n b addr add 192.0.2.9/24 dev e0
status=0
ip netns exec a arping -q -D -c 6 -w 8 -I e0 192.0.2.9 || status=$?
echo "against a holder: exit status $status"
[[ $status == 1 ]] || { echo "changed: a holder is not found"; exit 1; }
INSIDE
