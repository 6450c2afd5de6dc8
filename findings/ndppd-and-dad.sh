#!/usr/bin/env bash
# ndppd: a proxy that answers for a whole prefix answers no probe of duplicate address detection.
#
# Expected: with `static`, ndppd answers each solicitation for an address of the prefix, held by somebody or not. A host
# that takes one of these addresses should find it taken, as with the kernel's proxy (proxy_ndp): that one answers
# probes, and the address stays dadfailed. ndppd takes a probe for a solicitation like others, and sends its
# advertisement to the sender of the probe, the address `::` (RFC 4861 7.2.4: to ff02::1), so that it never leaves the host.
# The prober gets the address, and whoever asks for it afterwards is answered twice, by two MACs: a
# duplicate that duplicate address detection cannot find, made by a configuration that many guides for servers recommend.
#
# Seen with ndppd 0.2.5-6 (Debian 12), Linux 6.18.44:
#   fd00::5/64 at the host: without dadfailed; advertisements that the router sent for its probe: 0
#   asked by a third host: 2 MACs answer for fd00::5
# Needs root and the Debian mirror. Changes nothing outside of its namespaces and folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "ndppd=0.2.5-6" >/dev/null 2>&1
dpkg-deb -x ndppd_*.deb .
export PATH=$tmp/usr/sbin:$PATH

unshare --net --mount --pid --fork --kill-child --mount-proc bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip link add br0 type bridge
sysctl -qw net.ipv6.conf.br0.disable_ipv6=1
ip link set br0 up
for n in router host third; do
	ip netns add $n
	ip link add p$n type veth peer name e0 netns $n
	ip link set p$n master br0 up
	ip -n $n link set e0 up
done
ip netns exec router sysctl -qw net.ipv6.conf.all.forwarding=1
ip -n router addr add fd00::1/64 dev e0 nodad
ip -n third addr add fd00::3/64 dev e0 nodad
cat >/run/ndppd.conf <<'CONF'
proxy e0 {
  router yes
  rule fd00::/64 {
    static
  }
}
CONF
ip netns exec router ndppd -c /run/ndppd.conf >/run/ndppd.log 2>&1 &

cat >/run/macs.py <<'PYTHON'
import socket, struct, sys, time
# macs.py ADDRESS ask: asks for it, and prints how many MACs answer within 3 s; without ask: prints how many answer within 6 s
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
s.bind(("e0", 0))
s.settimeout(0.1)
target = socket.inet_pton(10, sys.argv[1])
if len(sys.argv) > 2:
    mac, source = s.getsockname()[4], socket.inet_pton(10, "fd00::3")
    group = bytes.fromhex("ff0200000000000000000001ff") + target[13:]
    body = bytes([135, 0, 0, 0, 0, 0, 0, 0]) + target + b"\1\1" + mac
    data = source + group + struct.pack("!II", len(body), 58) + body
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    body = body[:2] + struct.pack("!H", ~total & 0xFFFF) + body[4:]
    s.send(b"\x33\x33\xff" + target[13:] + mac + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(body), 58, 255) + source + group + body)
print("ready", flush=True)
macs, end = set(), time.monotonic() + (3 if len(sys.argv) > 2 else 6)
while time.monotonic() < end:
    try:
        f, at = s.recvfrom(1500)
    except TimeoutError:
        continue
    if len(f) >= 78 and f[54] == 136 and f[62:78] == target and at[2] != socket.PACKET_OUTGOING:
        macs.add(f[6:12].hex(":"))
print(len(macs))
PYTHON
# ndppd is ready when it answers for an address that nobody has.
for i in $(seq 20); do
	count=$(ip netns exec third python3 /run/macs.py fd00::99 ask | tail -n 1)
	[[ $count == 0 ]] || break
done
[[ $count == 1 ]] || { echo "no statement: ndppd does not answer"; cat /run/ndppd.log; exit 1; }

ip netns exec host python3 /run/macs.py fd00::5 >/run/answers &
capture=$!
until grep -q ready /run/answers; do sleep 0.1; done
ip -n host addr add fd00::5/64 dev e0
wait $capture
answers=$(tail -n 1 /run/answers)
state=$(ip -n host -6 -o addr show dev e0 to fd00::5/128 | xargs)
echo "at the host: $state; advertisements for its probe: $answers"
[[ $state == *fd00::5* && $state != *tentative* && $state != *dadfailed* ]] || { echo "changed: the host gives way"; exit 1; }
[[ $answers == 0 ]] || { echo "changed: the probe is answered"; exit 1; }
count=$(ip netns exec third python3 /run/macs.py fd00::5 ask | tail -n 1)
echo "asked by a third host: $count MACs answer for fd00::5"
[[ $count == 2 ]] || { echo "changed: not both answer"; exit 1; }
INSIDE
