#!/usr/bin/env bash
# One command: makes the environment where it is missing, then runs `python -m tbrl.launch`.
#   launch/pipeline.sh                               the six stages on the embedded tasks
#   launch/pipeline.sh stage=evaluate run=embedded   any stage, any override
#   launch/pipeline.sh dry_run=true                  shows the plan and starts nothing
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$ROOT/launch/setup.sh"
source "$ROOT/launch/env.sh"
cd "$ROOT"
exec python -m tbrl.launch "$@"
