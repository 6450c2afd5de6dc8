#!/usr/bin/env bash
# Linux: an interface in a VRF answers ARP for the addresses of the default VRF, but not the other way round.
#
# Expected: a VRF has routing tables of its own, so that an address in it can be in use elsewhere, and neither of two VRFs
# answers for the other's addresses. An interface of the default VRF does not answer for an address in a VRF. But an
# interface in a VRF answers for each address of the default VRF, on whatever device: `ip rule` has the table `local` first,
# at 0, and l3mdev only at 1000, also after a VRF was made. A tenant's network in a VRF that has the address of
# one of the host's own interfaces, or of its loopback, meets a second holder. With the rule of the
# table `local` behind l3mdev, as routing daemons set it, nobody answers.
#
# Seen with Linux 6.1.176 (Debian 12), iproute2 6.1.0; asked is 192.0.2.77, which is on another device:
#   asked on an interface of the default VRF, the address is in VRF red: no answer
#   asked on an interface of VRF red, the address is in the default VRF: answered
#   the same after `ip rule add pref 32765 table local; ip rule del pref 0`: no answer
# Needs root, the Debian mirror, and Debian's qemu-system-x86, busybox-static and iproute2. Changes nothing outside of its folder.
set -euo pipefail
lib=$(dirname "$(readlink -f "$0")")/lib
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
. "$lib/guest.sh"
guest veth dummy vrf <<'JOB' | tee result
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip -n peer link set e0 up
ip -n peer addr add 192.0.2.200/24 dev e0
ip link add other type dummy
ip link add red type vrf table 10
ip link set red up
ask() {
	ip link set e0 up
	ip link set other up
	if ip netns exec peer arping -q -c 3 -w 5 -I e0 192.0.2.77; then echo "$1: answered"; else echo "$1: no answer"; fi
}
ip link set other master red
ip addr add 192.0.2.77/24 dev other
ip addr add 192.0.2.1/24 dev e0
ask "asked in the default VRF for an address of red"
ip link set other nomaster
ip link set e0 master red
ip addr replace 192.0.2.1/24 dev e0
ask "asked in red for an address of the default VRF"
ip rule add pref 32765 table local
ip rule del pref 0
ask "with the table local behind l3mdev"
JOB
grep -q "of red: no answer" result || { echo "changed: the default VRF answers"; exit 1; }
grep -q "of the default VRF: answered" result || { echo "changed: red does not answer"; exit 1; }
grep -q "behind l3mdev: no answer" result || { echo "changed: the rules make no difference"; exit 1; }
