#!/usr/bin/env bash
# OVN: a port's dynamic address is taken from it as soon as another port, a router or exclude_ips names it.
#
# Expected: a dynamic address, once given to a port, stays the port's until the port is deleted, as with a DHCP server or
# a CNI plugin; a request for an address that is in use ("dynamic 10.9.0.2") is refused or gets another one, as ovn-nbctl
# refuses a static address that another port of the switch has. ovn-northd checks all dynamic addresses at each change, and an
# address that is named wins: the new port gets the address, the port that had it another one, with status 0. The same happens if a router
# port of the switch gets the address, or exclude_ips comes to cover it. The machine behind the port knows nothing: it goes on with the
# address that it has until its lease is renewed, while another machine boots with it.
# So dynamic_addresses tells what a port will have, not what its machine has.
#
# Seen with OVN 23.03.1-1~deb12u2 and Open vSwitch 3.1.0-2+deb12u1 (Debian 12), the subnet 10.9.0.0/28:
#   at first:                           a 10.9.0.2 b 10.9.0.3 c 10.9.0.4
#   static 10.9.0.2 for another port:   status 1
#   "dynamic 10.9.0.2" for port d:      status 0: a 10.9.0.5 b 10.9.0.3 c 10.9.0.4 d 10.9.0.2
#   a router port with 10.9.0.3:        a 10.9.0.5 b 10.9.0.6 c 10.9.0.4 d 10.9.0.2
#   exclude_ips=10.9.0.4:               a 10.9.0.5 b 10.9.0.6 c 10.9.0.7 d 10.9.0.2
# Needs the Debian mirror. Changes nothing outside of its folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "ovn-common=23.03.1-1~deb12u2" "ovn-central=23.03.1-1~deb12u2" "openvswitch-common=3.1.0-2+deb12u1" \
	libunbound8 libevent-2.1-7 libnuma1 libxdp1 libbpf1 >/dev/null 2>&1
for p in *.deb; do dpkg-deb -x "$p" packages; done
export PATH=$tmp/packages/usr/bin:$tmp/packages/usr/sbin:$PATH
export LD_LIBRARY_PATH=$tmp/packages/lib/x86_64-linux-gnu:$tmp/packages/usr/lib/x86_64-linux-gnu
export OVN_RUNDIR=$tmp OVS_RUNDIR=$tmp OVN_LOGDIR=$tmp OVS_LOGDIR=$tmp

for db in nb sb; do ovsdb-tool create $db.db packages/usr/share/ovn/ovn-$db.ovsschema; done
ovsdb-server --unixctl="$tmp/db.ctl" --remote=punix:"$tmp/ovn.sock" nb.db sb.db 2>log-db &
db=$!
trap 'kill $db; rm -rf "$tmp"' EXIT
for _ in $(seq 100); do [[ ! -S ovn.sock ]] || break; sleep 0.1; done
ovn-northd --unixctl="$tmp/northd.ctl" --ovnnb-db=unix:"$tmp/ovn.sock" --ovnsb-db=unix:"$tmp/ovn.sock" 2>log-northd &
northd=$!
trap 'kill $northd $db; rm -rf "$tmp"' EXIT

nb() { ovn-nbctl --db=unix:"$tmp/ovn.sock" --timeout=60 --wait=sb "$@"; } # waits until ovn-northd has seen the change
addresses() {
	for port in a b c d; do
		nb --if-exists get logical_switch_port $port dynamic_addresses | tr -d '"' | awk -v port=$port 'NF { print port, $2 }'
	done | xargs
}
expect() { # TEXT ADDRESSES
	got=$(addresses)
	echo "$1: $got"
	[[ $got == "$2" ]] || { echo "changed: not $2"; exit 1; }
}

nb ls-add net -- set logical_switch net other_config:subnet=10.9.0.0/28
for port in a b c; do nb lsp-add net $port -- lsp-set-addresses $port dynamic; done
expect "at first" "a 10.9.0.2 b 10.9.0.3 c 10.9.0.4"
status=0
nb lsp-add net e -- lsp-set-addresses e "02:00:00:00:00:0e 10.9.0.2" 2>/dev/null || status=$?
echo "static 10.9.0.2 for another port: status $status"
[[ $status == 1 ]] || { echo "changed: a static duplicate is accepted"; exit 1; }
nb lsp-add net d -- lsp-set-addresses d "dynamic 10.9.0.2"
expect '"dynamic 10.9.0.2" for port d: status 0' "a 10.9.0.5 b 10.9.0.3 c 10.9.0.4 d 10.9.0.2"
nb lr-add router -- lrp-add router r0 02:00:00:00:00:01 10.9.0.3/28 -- lsp-add net to-router \
	-- lsp-set-type to-router router -- lsp-set-addresses to-router router -- lsp-set-options to-router router-port=r0
expect "a router port with 10.9.0.3" "a 10.9.0.5 b 10.9.0.6 c 10.9.0.4 d 10.9.0.2"
nb set logical_switch net other_config:exclude_ips=10.9.0.4
expect "exclude_ips=10.9.0.4" "a 10.9.0.5 b 10.9.0.6 c 10.9.0.7 d 10.9.0.2"
