#!/usr/bin/env bash
# CNI plugins 1.10.0: host-local has GC, and GC gives back addresses that were kept by a file, and by another runtime.
#
# Expected: an empty file named by an address keeps it from being given out, as it did for years (ADD and DEL
# pass over it, a well-known way to keep an address back); and GC removes what leaked. Since 1.10.0 GC removes
# every file in the network's folder whose content is not an attachment that this one caller lists: the
# empty file, a file with a note, and the reservation of a living container of another runtime that uses a
# network of the same name. The next ADD gives that address to a second container. 1.9.1 has no GC and
# ends it without an error.
# So neither "the file was there" nor "the record is gone" tells any more that an address is free.
#
# Seen with github.com/containernetworking/plugins v1.10.0 and v1.9.1, go 1.26:
#   v1.9.1:  after GC: 10.9.0.2 10.9.0.3 10.9.0.4; the next container gets 10.9.0.5
#   v1.10.0: after GC: 10.9.0.3; the next ones get 10.9.0.5 and on, and ADD number 13 gets 10.9.0.4, of the living container
# Needs Go and the module proxy. Changes nothing outside of its folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
export GOWORK=off GOFLAGS='-mod=mod -trimpath -modcacherw' GOPATH=$tmp/go
export CNI_PATH=$tmp CNI_NETNS=/none CNI_IFNAME=eth0

plugin() { # COMMAND CONTAINER ATTACHMENTS
	printf '{"cniVersion":"1.1.0","name":"net","type":"none","cni.dev/valid-attachments":%s,
		"ipam":{"type":"host-local","dataDir":"%s","ranges":[[{"subnet":"10.9.0.0/28"}]]}}' "$3" "$tmp/data" |
		CNI_COMMAND=$1 CNI_CONTAINERID=$2 ./host-local
}
address() { plugin ADD "$1" '[]' | sed -n 's/.*"address": "\([0-9.]*\).*/\1/p'; }
run() {
	rm -rf go.mod go.sum data
	go mod init findings >/dev/null 2>&1
	go get "github.com/containernetworking/plugins@$1" >/dev/null 2>&1
	go build -o host-local github.com/containernetworking/plugins/plugins/ipam/host-local
	mkdir -p data/net
	: >data/net/10.9.0.2 # kept back by hand
	mine=$(address mine)
	other=$(CNI_IFNAME=eth0 address other) # a container of another runtime, which goes on living
	plugin GC "" '[{"containerID":"mine","ifname":"eth0"}]'
	left=$(cd data/net && echo 10.*)
	next=$(address next)
	echo "$1: mine $mine, other $other; after GC: $left; the next container gets $next"
}
run v1.9.1
[[ "$mine $other $left $next" == "10.9.0.3 10.9.0.4 10.9.0.2 10.9.0.3 10.9.0.4 10.9.0.5" ]] || { echo "changed"; exit 1; }
run v1.10.0
[[ "$mine $other $left" == "10.9.0.3 10.9.0.4 10.9.0.3" ]] || { echo "changed: GC left other files"; exit 1; }
again=$next
for n in $(seq 20); do # it goes on from the last address and comes round
	[[ $again != "$other" ]] || break
	again=$(address "next$n")
done
echo "ADD number $((n + 1)) after GC gets $again, the address of the living container other"
[[ $again == "$other" ]] || { echo "changed: the address is not given out again"; exit 1; }
