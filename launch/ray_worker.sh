#!/usr/bin/env bash
# Joins this node to a Ray head: launch/ray_worker.sh <head ip:port> [more `ray start` options]
# `--block` keeps it in the foreground (batch systems, containers).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$ROOT/launch/env.sh"
cd "$ROOT"
[ $# -ge 1 ] || { echo "usage: launch/ray_worker.sh <head ip:port> [ray start options]" >&2; exit 2; }
address=$1
shift
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
# The head may need a moment to come up: try for five minutes, then say so.
for attempt in $(seq 30); do
    if ray start --address="$address" --disable-usage-stats "$@"; then
        exit 0
    fi
    echo "ray_worker: $address does not answer (try $attempt of 30)" >&2
    sleep 10
done
echo "ray_worker: gave up on $address; is launch/ray_head.sh running there, with the same token?" >&2
exit 1
