#!/usr/bin/env bash
# ISC dhcpd: both readers of its file of leases name two holders of one address, when a lease was released and given to another client.
#
# Expected: dhcpd appends each change to dhcpd.leases, and the last declaration of an address is the one that counts
# (dhcpd.leases(5)). dhcp-lease-list, which comes with the server and "prints active DHCP leases", and get_current() of the
# Python library isc-dhcp-leases should follow that. Both look at each declaration for itself: the one of the first client
# still ends in the future, so it counts, although the next declaration says that the lease is free, and a third one that another
# client has it. It lasts until dhcpd writes the file anew. And of a MAC with two leases (the client identifiers of a boot
# loader and of a system) each shows one: dhcp-lease-list the first of the file, whichever ends later, as it compares
# 2026-11-29 with 2026/11/29; get_current() the last. And dhcp-lease-list omits a lease that never ends.
# So a duplicate that these tools show need not be one, and an address that they do not show may be leased.
#
# Seen with isc-dhcp-server 4.4.3-P1-2 and python3-isc-dhcp-leases 0.9.1-4 (Debian 12):
#   dhcpd -T:        6 leases
#   dhcp-lease-list: .50 ...:0a, .50 ...:0b, .70 ...:0d, .80 ...:0e
#   get_current():   .50 ...:0a, .50 ...:0b, .60 ...:0c, .71 ...:0d, .81 ...:0e
# Needs the Debian mirror and perl. Changes nothing outside of its folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "isc-dhcp-server=4.4.3-P1-2" "python3-isc-dhcp-leases=0.9.1-4" python3-six >/dev/null 2>&1
for p in *.deb; do dpkg-deb -x "$p" .; done

at() { date -u -d "$1" '+%w %Y/%m/%d %H:%M:%S'; }
declaration() { # ADDRESS STARTS ENDS STATE MAC CLIENT
	printf 'lease %s {\n  starts %s;\n  ends %s;\n  cltt %s;\n  binding state %s;\n  next binding state free;\n  hardware ethernet %s;\n  uid "%s";\n}\n' "$1" "$2" "$3" "$2" "$4" "$5" "$6"
}
{
	declaration 192.0.2.50 "$(at "-30 min")" "$(at "+30 min")" active 02:00:00:00:00:0a a
	declaration 192.0.2.50 "$(at "-30 min")" "$(at "-20 min")" free 02:00:00:00:00:0a a # it was released
	declaration 192.0.2.50 "$(at "-10 min")" "$(at "+50 min")" active 02:00:00:00:00:0b b
	declaration 192.0.2.60 "$(at "-10 min")" never active 02:00:00:00:00:0c c
	declaration 192.0.2.70 "$(at "-10 min")" "$(at "+20 min")" active 02:00:00:00:00:0d boot
	declaration 192.0.2.71 "$(at "-9 min")" "$(at "+51 min")" active 02:00:00:00:00:0d system
	declaration 192.0.2.80 "$(at "-10 min")" "$(at "+51 min")" active 02:00:00:00:00:0e system
	declaration 192.0.2.81 "$(at "-9 min")" "$(at "+20 min")" active 02:00:00:00:00:0e boot
} >dhcpd.leases
echo 'subnet 192.0.2.0 netmask 255.255.255.0 { range 192.0.2.50 192.0.2.99; }' >dhcpd.conf
usr/sbin/dhcpd -T -cf dhcpd.conf -lf dhcpd.leases 2>log # the server itself reads the file
read=$(grep -o "Wrote .* leases to leases file" log || true)
echo "dhcpd: $read"
if [[ $read != "Wrote 6 leases to leases file" ]] || grep "dhcpd.leases line" log; then echo "no statement: dhcpd reads the file in another way"; exit 1; fi

listed=$(perl usr/sbin/dhcp-lease-list --parsable --lease dhcpd.leases 2>/dev/null | awk '{ print $4, $2 }' | sort | paste -sd, | sed 's/,/, /g')
echo "dhcp-lease-list: $listed"
current=$(PYTHONPATH=$tmp/usr/lib/python3/dist-packages python3 -c '
from isc_dhcp_leases import IscDhcpLeases
print(", ".join(sorted(f"{l.ip} {l.ethernet}" for l in IscDhcpLeases("dhcpd.leases").get_current().values())))')
echo "get_current():   $current"
two="192.0.2.50 02:00:00:00:00:0a, 192.0.2.50 02:00:00:00:00:0b"
[[ $listed == "$two, 192.0.2.70 02:00:00:00:00:0d, 192.0.2.80 02:00:00:00:00:0e" ]] || { echo "changed: dhcp-lease-list"; exit 1; }
[[ $current == "$two, 192.0.2.60 02:00:00:00:00:0c, 192.0.2.71 02:00:00:00:00:0d, 192.0.2.81 02:00:00:00:00:0e" ]] || { echo "changed: get_current()"; exit 1; }
