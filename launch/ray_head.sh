#!/usr/bin/env bash
# Starts the Ray head on this node. The workers then join with launch/ray_worker.sh <address>.
#   TBRL_HEAD_IP=10.0.0.1 launch/ray_head.sh
# Ray's token authentication is on: the token that is made here (~/.ray/auth_token, or the file
# that RAY_AUTH_TOKEN_PATH names) must be readable on every node before it joins.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$ROOT/launch/env.sh"
cd "$ROOT"
ip=${TBRL_HEAD_IP:-$(hostname -I | cut -d' ' -f1)}
port=${TBRL_RAY_PORT:-6379}
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
if [ "$RAY_AUTH_MODE" = token ]; then
    ray get-auth-token --generate >/dev/null
fi
echo "workers join with: launch/ray_worker.sh $ip:$port"
exec ray start --head --node-ip-address="$ip" --port="$port" --dashboard-host=127.0.0.1 \
    --disable-usage-stats "$@"
