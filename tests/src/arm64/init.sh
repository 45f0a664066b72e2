#!/bin/busybox sh
# The first and only program of the emulated machine: runs /command, and writes all of its results to the disk.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/results/files
mkdir -p /proc /sys /dev /tmp /results/files
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
ip link set lo up
cd /results/files || poweroff -f
timeout -k 5 "$(cat /limit)" sh /command >/results/stdout 2>/results/stderr </dev/null
echo $? >/results/status
for module in /modules/*.ko; do insmod "$module"; done
until [ -b /dev/vda ]; do sleep 0.1; done
tar -c -f /dev/vda -C /results .
sync
poweroff -f
