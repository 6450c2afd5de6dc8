# Runs a script on a kernel of Debian in qemu (emulated, half a minute), for devices that the host's kernel may lack. Source it in a
# folder of the script's own, as root. It needs Debian's qemu-system-x86, busybox-static and iproute2, and the Debian mirror.
kernel=6.1.0-50-amd64
apt-get download "linux-image-$kernel=6.1.176-1" "tcpdump=4.99.3-1" "libpcap0.8=1.10.3-1" >/dev/null 2>&1
for p in *.deb; do dpkg-deb -x "$p" packages; done
depmod -b packages $kernel

# guest MODULES: runs its standard input by busybox' sh, with ip and tcpdump, and prints what that prints.
guest() {
	local root=initrd module file
	mkdir -p $root/{bin,sbin,lib64,etc,proc,sys,dev,run,tmp,modules}
	cp /bin/busybox $root/bin/
	echo 'tcpdump:x:100:100::/:' >$root/etc/passwd # which it becomes
	for file in $(for module in "$@"; do
		sed -nE "s|^(.*/$module\.ko):(.*)|\2 \1|p" packages/lib/modules/$kernel/modules.dep | awk '{ for (i = NF - 1; i >= 1; i--) print $i; print $NF }'
	done | awk '!seen[$0]++'); do
		cp packages/lib/modules/$kernel/"$file" $root/modules/
		echo "${file##*/}" >>$root/order
	done
	cp packages/usr/bin/tcpdump /sbin/ip $root/sbin/
	for file in $(LD_LIBRARY_PATH=packages/usr/lib/x86_64-linux-gnu ldd packages/usr/bin/tcpdump /sbin/ip | grep -oE '[^ ]*/[^ ]*\.so[^ ]*' | sort -u); do
		cp -L "$file" $root/lib64/
	done
	cat >$root/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install /bin 2>/dev/null
export PATH=/bin:/sbin LD_LIBRARY_PATH=/lib64
mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1 </dev/null
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs none /run
for m in $(cat /order); do insmod /modules/$m; done
echo 1 >/proc/sys/kernel/printk
sh /job
echo "the guest has ended"
poweroff -f
INIT
	chmod +x $root/init
	{ echo 'ip() { /sbin/ip "$@"; }' && cat; } >$root/job # and not the one of busybox
	(cd $root && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >initrd.gz
	timeout 240 qemu-system-x86_64 -accel tcg,thread=single -cpu max -smp 1 -m 512 -nodefaults -no-user-config -display none -no-reboot -serial file:serial \
		-kernel packages/boot/vmlinuz-$kernel -initrd initrd.gz -append "console=ttyS0 quiet panic=-1 no_timer_check" </dev/null || true
	tr -d '\r' <serial >output
	grep -q "the guest has ended" output || { echo "no statement: the guest did not end"; tail -n 5 output; exit 1; }
	grep -v -e "the guest has ended" -e "reboot: Power down" output
}
