#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# disk.sh DEVICE: writes to a disk and reads it back until /tmp/nbd/stop
# exists. Prints the number of rounds; fails if it reads other bytes.
rounds=0
while [ ! -e /tmp/nbd/stop ]; do
    dd if=/dev/urandom of=/tmp/nbd/blob bs=64k count=16 status=none
    dd if=/tmp/nbd/blob of="$1" bs=64k oflag=direct status=none || exit
    dd if="$1" bs=64k count=16 iflag=direct status=none | cmp - /tmp/nbd/blob || exit
    rounds=$((rounds + 1))
    sleep 0.3 # leave the CPU to others
done
nbd-client -d "$1" >/dev/null || exit
echo "$rounds"
