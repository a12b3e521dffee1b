#!/usr/bin/env bash
# A real S3 server on loopback for the tests: Ceph's RGW with one monitor and one OSD in memory.
#
#   object-store.sh start DIR      start it; its settings, logs and pids lie in DIR
#   object-store.sh env DIR        print what a client needs:  eval "$(object-store.sh env DIR)"
#   object-store.sh destroy DIR    stop what was started in DIR, by pid, and delete DIR
#
# Debian: apt-get install -y --no-install-recommends ceph-mon ceph-osd radosgw curl
set -euo pipefail
PATH=/usr/sbin:/sbin:$PATH
[ $# -eq 2 ] || { sed -n '2,8s/^# \?//p' "$0" >&2; exit 2; }
command=$1
dir=$(realpath -m -- "$2")
conf=$dir/ceph.conf
access_key=evertrain-tests
secret_key=evertrain-tests-secret

free_port() { # one with the next one free too, below the range that clients' sockets take
  local port
  for port in $(shuf -i 20000-32000 -n 100); do
    if ! { : <"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null &&
      ! { : <"/dev/tcp/127.0.0.1/$((port + 1))"; } 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  echo "no free port" >&2
  exit 1
}

start() {
  local port id
  port=$(free_port)
  id=$(cat /proc/sys/kernel/random/uuid)
  mkdir -p "$dir"/{mon.a,osd.0,client.rgw,pids}
  echo "$port" >"$dir/port"
  # No authentication between the daemons: all of them listen on loopback only. The client's
  # mode is crc because the secure default needs keys.
  # Without tcp_nodelay the end of most answers waits 40 ms for the client's acknowledgement.
  cat >"$conf" <<CONF
[global]
fsid = $id
mon host = [v2:127.0.0.1:$((port + 1))/0]
public addr = 127.0.0.1
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = true
ms mon client mode = crc
pid file = $dir/pids/\$name
log file = $dir/\$name.log
run dir = $dir
crash dir = $dir
admin socket =
mon data = $dir/mon.a
osd data = $dir/osd.0
rgw data = $dir/client.rgw
osd objectstore = memstore
memstore device bytes = 8589934592
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
mon max pg per osd = 1000
paxos propose interval = 0.05
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
rgw rados pool pg num min = 1
rgw override bucket index max shards = 1
rgw gc obj min wait = 10
rgw gc processor period = 10
CONF
  monmaptool --create --fsid "$id" --addv a "[v2:127.0.0.1:$((port + 1))/0]" "$dir/monmap"
  ceph-mon -c "$conf" -i a --mkfs --monmap "$dir/monmap"
  ceph-mon -c "$conf" -i a
  timeout 30 ceph -c "$conf" --log-file=/dev/null osd new "$id" 0
  ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$id"
  ceph-osd -c "$conf" -i 0
  timeout 60 radosgw-admin -c "$conf" --log-file=/dev/null user create --uid=tests \
    --display-name=tests --access-key="$access_key" --secret="$secret_key" --max-buckets=0
  timeout 60 radosgw -c "$conf" -n client.rgw
  curl -sS -o "$dir/answer" --retry 100 --retry-delay 1 --retry-connrefused --max-time 60 \
    "http://127.0.0.1:$port/"
}

print_env() {
  cat <<ENV
export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat "$dir/port")
export AWS_ACCESS_KEY_ID=$access_key
export AWS_SECRET_ACCESS_KEY=$secret_key
export AWS_DEFAULT_REGION=us-east-1
export AWS_EC2_METADATA_DISABLED=true
ENV
}

destroy() {
  local pid_file pid
  for pid_file in "$dir"/pids/*; do
    pid=$(cat "$pid_file" 2>/dev/null) || continue
    # A pid that another program has by now is not ours to stop.
    grep -qzF -- "$conf" "/proc/$pid/cmdline" 2>/dev/null && kill -KILL "$pid" || true
  done
  rm -rf -- "$dir"
}

case $command in
start)
  mkdir -p "$dir"
  start </dev/null >"$dir/start.log" 2>&1 || { cat "$dir/start.log" >&2; exit 1; }
  ;;
env) print_env ;;
destroy) destroy ;;
*) echo "unknown command: $command" >&2; exit 2 ;;
esac
