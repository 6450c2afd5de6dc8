#!/usr/bin/env bash
# Linux: an error of writing that sync_file_range(2) has returned is not returned by fsync(2) of the same descriptor.
#
# Expected: sync_file_range only starts to write, and its manual says that it gives no guarantee, so that a program may try
# it again; whether the data are on the disk is said by fsync, which returns an error if anything since the last fsync
# could not be written. But with SYNC_FILE_RANGE_WAIT_BEFORE, sync_file_range marks the error as seen for this open
# file. It returns it once; a second call and fsync return 0, although the blocks were never written. The page cache
# still has the data, so that reading does not show it: after a new mount, the file is zero, and e2fsck finds no fault.
# So a program that uses both must treat a failed sync_file_range like a failed fsync: write the data to another file.
#
# Seen with e2fsprogs 1.47.0-2 (Debian 12), ext4 on a loop device without space, Linux 6.18.44:
#   sync_file_range, without space: No space left on device
#   sync_file_range, with space again: 0; fsync: 0; read: data
#   after a new mount: zeros
# Needs root, loop devices, python3 and the Debian mirror. Changes nothing outside of its mount namespace.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
chmod 755 .
apt-get download "e2fsprogs=1.47.0-2*" >/dev/null 2>&1
dpkg-deb -x e2fsprogs_*.deb .
export tmp

unshare --mount --propagation private bash -euo pipefail <<'INSIDE'
mkdir "$tmp/thin" "$tmp/disk"
mount -t tmpfs -o size=16m none "$tmp/thin"
truncate -s 32m "$tmp/thin/image"
"$tmp/sbin/mkfs.ext4" -q -O ^has_journal -E lazy_itable_init=0,nodiscard "$tmp/thin/image"
mount -o loop,errors=continue "$tmp/thin/image" "$tmp/disk"
sync -f "$tmp/disk"
dd if=/dev/zero of="$tmp/thin/fill" bs=64k 2>/dev/null || true # the device has no space any more
python3 - <<'PYTHON' | tee "$tmp/out"
import ctypes, os, time
tmp = os.environ["tmp"]
libc = ctypes.CDLL(None, use_errno=True)
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]
size = 4_000_000
fd = os.open(tmp + "/disk/file", os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * size)

def sync_range():
    failed = libc.sync_file_range(fd, 0, size, 1 | 2)  # SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE
    return os.strerror(ctypes.get_errno()) if failed else "0"

end = time.monotonic() + 60
while (first := sync_range()) == "0" and time.monotonic() < end:
    time.sleep(0.05)
print("sync_file_range, without space:", first)
os.unlink(tmp + "/thin/fill")
second = sync_range()
try:
    os.fsync(fd)
    synced = "0"
except OSError as e:
    synced = e.strerror
print(f"sync_file_range, with space again: {second}; fsync: {synced}; read:", "data" if os.pread(fd, 1, 0) == b"x" else "zeros")
PYTHON
umount "$tmp/disk"
mount -o loop "$tmp/thin/image" "$tmp/disk"
[ "$(stat -c %s "$tmp/disk/file")" = 4000000 ]
echo "after a new mount: $(cmp -s -n 4000000 "$tmp/disk/file" /dev/zero && echo zeros || echo data)" | tee -a "$tmp/out"
umount "$tmp/disk"
INSIDE

diff "$tmp/out" - <<'WANT'
sync_file_range, without space: No space left on device
sync_file_range, with space again: 0; fsync: 0; read: data
after a new mount: zeros
WANT
