#!/usr/bin/env bash
# Linux: macvlan devices with one MAC on two hosts do not find that they have one address (duplicate address detection).
#
# Expected: two hosts on a LAN make one link-local address from one MAC, and the detection of duplicates (RFC 4862) stops the
# second one, as it does for two cards with one MAC. A macvlan device never gets the probe or the answer of its twin: the
# driver takes a multicast frame whose source is the MAC of one of its own devices for that device's, and does not give it
# back (macvlan_multicast_rx in drivers/net/macvlan.c). So routers with the MAC of one virtual router (00:00:5e:00:02:xx) on a
# macvlan device each, as FRR wants them, have one link-local address, which VRRP for IPv6 sends from; no kernel
# reports it. FRR's manual therefore asks for `addrgenmode random`.
#
# Seen with Linux 6.18.44:
#   two cards with one MAC:            a: passed, b: failed
#   two macvlan devices with one MAC:  a: passed, b: passed
# Needs root. Changes nothing outside of its namespaces.
set -euo pipefail
unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip link add lan type bridge mcast_snooping 0
ip link set lan up
mac=00:00:5e:00:02:05 address=fe80::200:5eff:fe00:205
for n in a b; do
	ip netns add $n
	for card in e0 e1; do
		ip link add $n$card type veth peer name $card netns $n
		ip link set $n$card master lan up
	done
	ip -n $n link set e0 up
done
dad() { # HOST DEVICE: sets it up, and says what became of its link-local address
	local state
	ip -n $1 link set $2 up
	for _ in $(seq 50); do
		state=$(ip -n $1 -6 -o addr show dev $2 to $address)
		[[ $state == *dadfailed* || -n $state && $state != *tentative* ]] && break
		sleep 0.2
	done
	case $state in
	*dadfailed*) echo failed ;;
	*tentative* | "") echo "not decided" ;;
	*) echo passed ;;
	esac
}
for n in a b; do ip -n $n link set e1 address $mac; done
cards="a: $(dad a e1), b: $(dad b e1)"
echo "two cards with one MAC:            $cards"
for n in a b; do
	ip -n $n link del e1
	ip -n $n link add v0 link e0 type macvlan mode bridge
	ip -n $n link set v0 address $mac
done
twins="a: $(dad a v0), b: $(dad b v0)"
echo "two macvlan devices with one MAC:  $twins"
[[ $cards == "a: passed, b: failed" && $twins == "a: passed, b: passed" ]] || { echo changed; exit 1; }
INSIDE
