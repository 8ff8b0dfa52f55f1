#!/usr/bin/env bash
# Training on 24 H100 (3 nodes x 8) from the head node of a running Ray cluster.
#
#   node 1:  launch/ray_head.sh
#   node 2:  launch/ray_worker.sh <head ip:port>       node 3: the same
#   node 1:  launch/train_h100.sh model.path=/models/policy tasks.source=/data/tasks
#
# Look first: launch/train_h100.sh model.path=... dry_run=true   (memory per GPU and host, by phase)
# After a stop: the same command with resume=true.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$ROOT/launch/env.sh"
cd "$ROOT"
exec python -m tbrl.launch stage=train experiment=reference model=local \
    topology=h100x24 topology.ray_address=auto "$@"
