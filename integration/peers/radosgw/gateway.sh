#!/bin/bash
# Ceph's S3 gateway for `make peer-radosgw`: a monitor, a daemon that keeps objects in memory, and
# the gateway, all in DIR. All end with this process.
#
#   integration/peers/radosgw/gateway.sh DIR PORT
#
# It prints "ready" when it serves http://127.0.0.1:PORT. Its keys: test, "the secret of the test".
#
# It takes the programs of this machine, or else those of Debian's packages in DIR/root. It does not
# need root.
set -euo pipefail
dir=$(realpath -m "$1") port=$2
mkdir -p "$dir"/{run,mon}
if ! command -v radosgw ceph-mon ceph-osd >/dev/null; then
    of_machine=$(uname -m)-linux-gnu
    libraries=$dir/root/usr/lib/$of_machine
    export PATH="$dir/root/usr/bin:$PATH" LD_LIBRARY_PATH="$libraries:$libraries/ceph:$dir/root/usr/lib/ceph:$dir/root/lib/$of_machine"
    places="erasure code dir = $libraries/ceph/erasure-code
plugin dir = $libraries/ceph
osd class dir = $libraries/rados-classes"
fi
fsid=$(cat /proc/sys/kernel/random/uuid)
monitor=127.0.0.1:$((port + 1))
cat >"$dir/ceph.conf" <<END
[global]
fsid = $fsid
mon host = v1:$monitor
auth cluster required = none
auth service required = none
auth client required = none
run dir = $dir/run
admin socket = $dir/run/\$name.asok
pid file = $dir/run/\$name.pid
log file = $dir/run/\$name.log
mon data = $dir/mon/\$name
osd data = $dir/osd
keyring = $dir/keyring
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr2 = false
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd crush chooseleaf type = 0
osd crush initial weight = 1
osd class update on start = false
mon allow pool size one = true
mon max pg per osd = 1000
${places:-}
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw enable usage log = false
END
export CEPH_CONF=$dir/ceph.conf
rm -rf "$dir/mon/mon.a" "$dir/osd"
mkdir -p "$dir/mon/mon.a" "$dir/osd"
# Nothing is kept. After SIGTERM the gateway would wait for a daemon that is gone.
trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT
trap 'exit 0' TERM INT

monmaptool --create --clobber --addv a "[v1:$monitor]" --fsid "$fsid" "$dir/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$dir/monmap"
ceph-mon -f -i a &
ceph-osd -i 0 --mkfs --osd-uuid "$(cat /proc/sys/kernel/random/uuid)"
# The monitor refuses a daemon's first request now and then ("wrong fsid"), less often with the map.
# Then the daemon ends, and so does this script.
ceph-osd -f -i 0 --monmap "$dir/monmap" &
radosgw -f -n client.rgw &
until timeout 20 radosgw-admin user info --uid=test >/dev/null 2>&1; do
    [ "$(jobs -pr | wc -l)" = 3 ] || { echo "one of them ended: see $dir/run" >&2; exit 1; }
    timeout 20 radosgw-admin user create --uid=test --display-name=test --access-key=test --secret-key="the secret of the test" >/dev/null 2>&1 || sleep 1
done
until curl -s "http://127.0.0.1:$port" >/dev/null; do sleep 1; done
echo ready
wait
