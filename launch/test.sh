#!/usr/bin/env bash
# Makes the environment where it is missing, then checks and tests.
#   launch/test.sh                      ruff, mypy, pytest
#   launch/test.sh tests/test_x.py -k y pytest alone, with these arguments
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$ROOT/launch/setup.sh"
source "$ROOT/launch/env.sh"
cd "$ROOT"
# Tests never reach for the network: models and data are in the repository.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 MPLBACKEND=Agg
if [ $# -eq 0 ]; then
    ruff check .
    mypy
fi
exec python -m pytest "$@"
