#!/usr/bin/env bash
# Linux: the creation time of an address (IFA_CACHEINFO, cstamp) is on no clock that a program can read.
#
# cstamp is in hundredths of a second "since boot", and a good guess is CLOCK_MONOTONIC or CLOCK_BOOTTIME.
# It counts ticks (jiffies), whose count begins some tenths of a second after the monotonic clock, by a
# constant that differs between boots and machines. A program that adds the stamp to the time of boot
# gets times before the moment at which it asked for the address itself, and an order of events that
# contradicts itself. The offset can be measured with an address that one adds oneself, or without
# any change by a BPF program that calls bpf_jiffies64 and bpf_ktime_get_ns.
#
# Seen with Linux 6.18.44 (CONFIG_HZ=250), Python 3.11.7:
#   the address was added between 21563.039 and 21563.041 s of CLOCK_MONOTONIC; its stamp is 21562.940 s
# Needs root. Changes nothing outside of its namespace.
set -euo pipefail
unshare --net python3 - <<'PYTHON'
import socket, struct, subprocess, sys, time

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
before = time.clock_gettime(time.CLOCK_MONOTONIC)
subprocess.run(["ip", "addr", "add", "198.51.100.1/32", "dev", "lo"], check=True)
after = time.clock_gettime(time.CLOCK_MONOTONIC)

RTM_GETADDR, NLM_F_REQUEST_DUMP, IFA_LOCAL, IFA_CACHEINFO, NLMSG_DONE = 22, 0x301, 2, 6, 3
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.send(struct.pack("=IHHIIB7x", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0, socket.AF_INET))
stamp = None
done = False
while not done:
    data = s.recv(65536)
    while data:
        length, kind = struct.unpack_from("=IH", data)
        if kind == NLMSG_DONE:
            done = True
            break
        attrs, local, created = data[24:length], None, None
        while len(attrs) >= 4:
            n, t = struct.unpack_from("=HH", attrs)
            if t == IFA_LOCAL:
                local = socket.inet_ntoa(attrs[4:8])
            if t == IFA_CACHEINFO:  # preferred, valid, cstamp, tstamp
                created = struct.unpack_from("=4I", attrs, 4)[2] / 100
            attrs = attrs[(n + 3) & ~3:]
        if local == "198.51.100.1":
            stamp = created
        data = data[(length + 3) & ~3:]
print(f"the address was added between {before:.3f} and {after:.3f} s of CLOCK_MONOTONIC; its stamp is {stamp:.3f} s")
if before - 0.02 <= stamp <= after + 0.02:
    sys.exit("changed: the stamp is on the monotonic clock (or the offset of this boot is less than 20 ms)")
PYTHON
