#!/bin/busybox sh
# The first process of a guest: it sets up a small system from the initramfs, runs the
# suites, prints the result of each, and turns the machine off.
export PATH=/usr/sbin:/bin HOME=/tmp TMPDIR=/tmp
export IPWITNESS_ROOT_TESTS=1 IPWITNESS_KERNEL_MATRIX=1 IPWITNESS_BIN=/bin/ipwitness IPWITNESS_CNI_BIN=/cni
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount --make-rshared /
ip link set lo up

# The file lists modules after their dependencies.
while read -r module; do
	insmod "/modules/$module" || echo "ipwitness-guest: cannot load $module"
done </modules/order

cd /home
while read -r name command; do
	begin=$(date +%s)
	echo "ipwitness-guest: begin $name"
	$command 2>&1
	echo "ipwitness-guest: end $name $? $(($(date +%s) - begin))"
done </suites
echo "ipwitness-guest: done"
poweroff -f
