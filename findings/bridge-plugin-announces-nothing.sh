#!/usr/bin/env bash
# CNI plugins 1.9.1: a container of the plugin bridge announces its address to nobody, although the plugin sets arp_notify.
#
# Expected: the plugin sets net.ipv4.conf.eth0.arp_notify=1 in the container so that neighbours learn the MAC of the next
# container that gets an address. The sysctl makes Linux announce when an interface comes up or its MAC changes, and the
# neighbours learn nothing here: another container on the bridge, and the host, keep the MAC of the former container.
#
# Seen with github.com/containernetworking/plugins v1.9.1, go 1.26, Linux 6.18:
#   arp_notify of the container is 1; container and host keep the former MAC
# Needs root, Go and the module proxy. Changes nothing outside of its folder and its namespaces.
set -euo pipefail
if [[ $# == 0 ]]; then
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	self=$(readlink -f "$0")
	cd "$tmp"
	export GOWORK=off GOFLAGS='-mod=mod -trimpath -modcacherw' GOPATH=$tmp/go
	go mod init findings >/dev/null 2>&1
	go get github.com/containernetworking/plugins@v1.9.1 >/dev/null 2>&1
	go build -o . github.com/containernetworking/plugins/plugins/main/bridge github.com/containernetworking/plugins/plugins/ipam/static
	unshare --net --mount "$self" inside # its namespaces end with it
	exit
fi
mkdir -p /run/netns
mount -t tmpfs none /run/netns
ip link set lo up
export CNI_PATH=$PWD CNI_IFNAME=eth0

plugin() { # COMMAND CONTAINER ADDRESS
	printf '{"cniVersion":"1.0.0","name":"net","type":"bridge","bridge":"cni0","isGateway":true,
		"ipam":{"type":"static","addresses":[{"address":"%s/24","gateway":"10.66.0.1"}]}}' "$3" |
		CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 ./bridge >/dev/null
}
add() { ip netns add "$1" && plugin ADD "$1" "$2"; }
mac() { ip -n "$1" -br link show eth0 | awk '{print $3}'; }
known() { ip ${1:+-n "$1"} neigh show 10.66.0.7 | sed -n 's/.*lladdr \([0-9a-f:]*\).*/\1/p'; }

add a 10.66.0.5
add b 10.66.0.7
former=$(mac b)
for _ in $(seq 50); do
	ip netns exec a bash -c 'echo >/dev/udp/10.66.0.7/9'
	echo >/dev/udp/10.66.0.7/9
	[[ $(known a) != "$former" || $(known "") != "$former" ]] || break
	sleep 0.1
done
plugin DEL b 10.66.0.7
ip netns del b
add c 10.66.0.7
for _ in $(seq 20); do # an announcement would have come by now
	[[ $(known a) == "$former" && $(known "") == "$former" ]] || break
	sleep 0.1
done
notify=$(ip netns exec c sysctl -n net.ipv4.conf.eth0.arp_notify)
echo "arp_notify $notify; the MAC was $former and is $(mac c); container a knows $(known a), the host $(known "")"
[[ $notify == 1 && $(mac c) != "$former" && $(known a) == "$former" && $(known "") == "$former" ]] || { echo "changed"; exit 1; }
