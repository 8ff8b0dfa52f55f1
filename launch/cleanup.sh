#!/usr/bin/env bash
# Ends the Ray, vLLM and MCP processes that a killed run of this checkout left behind, and removes
# its shared memory and Ray session folders. Runs that are alive keep theirs.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$ROOT/launch/env.sh"
cd "$ROOT"
exec python -m tbrl.actors.leftovers
