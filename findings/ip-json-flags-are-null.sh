#!/usr/bin/env bash
# iproute2: in `ip -j neigh` a flag that is set has the value null, so a test of its value finds none.
#
# Expected: a flag in the JSON of ip is true when it is set, as in `ip -j addr` ("dadfailed": true, "tentative": true), or one of a
# list ("flags": [...]), as in `ip -j link`. For neighbours it is a key whose value is null: "router": null is a router,
# "proxy": null an address for which this host answers, "extern_learn": null what a control plane (EVPN) entered.
# `jq 'select(.router)'`, Python's entry.get("proxy") and a boolean in Go's encoding/json all read it as "no",
# for every entry and without an error; only the presence of the key counts (jq: has("router")). A proxy entry has no state and no
# lladdr either, so it looks like an entry that does not work yet.
#
# Seen with iproute2 6.1.0-3 (Debian 12), Linux 6.18.44:
#   router {"router": null, "state": ["PERMANENT"]}; proxy {"proxy": null}; learned {"extern_learn": null, "state": ["PERMANENT"]}
#   an address that failed: {"dadfailed": true, "tentative": true}
# Needs root and the Debian mirror. Changes nothing outside of its namespace and folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download "iproute2=6.1.0-3" >/dev/null 2>&1
dpkg-deb -x iproute2_*.deb .
export PATH=$tmp/bin:$tmp/sbin:$PATH

unshare --net --mount bash -euo pipefail <<'INSIDE'
mount -t tmpfs none /run # `ip netns` keeps its names there
ip netns add peer
ip link add e0 type veth peer name e0 netns peer
ip link set e0 up
ip -n peer link set e0 up
ip -n peer addr add fd00::5/64 dev e0 nodad
ip addr add fd00::5/64 dev e0
for _ in $(seq 100); do [[ $(ip addr show dev e0) != *dadfailed* ]] || break; sleep 0.1; done
ip neigh add fd00::1 lladdr 02:00:00:00:00:01 dev e0 router
ip neigh add fd00::2 lladdr 02:00:00:00:00:02 dev e0 extern_learn
ip neigh add proxy fd00::3 dev e0

python3 - <<'PYTHON'
import json, subprocess, sys

def lists(*command):
    return json.loads(subprocess.run(["ip", "-j", *command], check=True, capture_output=True).stdout)

def entry(address, *command):
    return {k: v for e in lists(*command) if e.get("dst") == address for k, v in e.items() if k not in ("dst", "dev", "lladdr")}

router, learned = entry("fd00::1", "-6", "neigh"), entry("fd00::2", "-6", "neigh")
proxy = entry("fd00::3", "-6", "neigh", "show", "proxy")
failed = [{k: a[k] for k in ("dadfailed", "tentative")} for i in lists("addr", "show", "dev", "e0") for a in i["addr_info"] if a["local"] == "fd00::5"]
for name, e in ("router", router), ("proxy", proxy), ("learned", learned), ("an address that failed", failed[0]):
    print(f"{name}: {json.dumps(e)}")
if (router, proxy) != ({"router": None, "state": ["PERMANENT"]}, {"proxy": None}):
    sys.exit("changed: other keys of a router or a proxy entry")
if learned.get("extern_learn", 0) is not None:
    sys.exit("changed: another value of extern_learn")
if failed != [{"dadfailed": True, "tentative": True}]:
    sys.exit("changed: the flags of an address are not true")
PYTHON
INSIDE
