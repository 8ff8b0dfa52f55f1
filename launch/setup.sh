#!/usr/bin/env bash
# Makes the virtual environment for a machine without a GPU, from requirements/cpu.lock.
#   launch/setup.sh                 .venv (or $TBRL_VENV); does nothing when it is up to date
#   PYTHON=python3.12 launch/setup.sh
# The CPU build of torch (version `+cpu`) is looked for wherever pip is configured to look.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${TBRL_VENV:-$ROOT/.venv}
LOCK=$ROOT/requirements/cpu.lock
STAMP=$VENV/tbrl-setup

fail() {
    echo "setup: $1" >&2
    exit 1
}
say() { echo "setup: $1"; }

wanted=$(cat "$LOCK" "$ROOT/launch/setup.sh" "$ROOT/pyproject.toml" | sha256sum | cut -d' ' -f1)
if [ -x "$VENV/bin/python" ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

python=${PYTHON:-}
for candidate in $python python3.11 python3.12 python3; do
    command -v "$candidate" >/dev/null || continue
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
        python=$candidate
        break
    fi
    python=
done
[ -n "$python" ] || fail "no Python 3.11 or 3.12 found; install one or name it: PYTHON=/path/to/python3.11 launch/setup.sh"
command -v lscpu >/dev/null || fail "lscpu is missing (the CPU engine needs it); install util-linux"

started=$SECONDS
rm -f "$STAMP"
if [ ! -x "$VENV/bin/python" ]; then
    say "virtual environment $VENV ($("$python" --version))"
    "$python" -m venv "$VENV" || fail "cannot make $VENV; on Debian and Ubuntu install python3-venv"
fi
PIP=("$VENV/bin/python" -m pip --disable-pip-version-check --no-input)

torch=$(grep -oE '^torch==[^ ]+\+cpu' "$LOCK")
say "$torch"
"${PIP[@]}" install --quiet --no-deps "$torch" || fail \
    "pip finds no wheel of $torch. Plain torch brings gigabytes of CUDA, so it is not taken instead. Tell pip where CPU wheels are (PyTorch's own CPU wheel index, see its installation page): PIP_EXTRA_INDEX_URL=<index> or PIP_FIND_LINKS=<folder> launch/setup.sh"

say "$(grep -c '==' "$LOCK") packages of requirements/cpu.lock"
with_uv() {
    "${PIP[@]}" install --quiet 'uv<1' 2>/dev/null &&
        "$VENV/bin/python" -m uv pip install --quiet --python "$VENV/bin/python" --no-deps \
            --compile-bytecode -r "$LOCK"
}
with_uv || {
    say "uv cannot be used here; installing with pip (slower)"
    "${PIP[@]}" install --quiet --no-deps -r "$LOCK"
} || fail "the packages of requirements/cpu.lock could not be installed; the lines above say which"

say "tbrl itself, editable"
"${PIP[@]}" install --quiet --no-deps --no-build-isolation \
    --config-settings editable_mode=compat --editable "$ROOT"
echo "$wanted" >"$STAMP"
say "done in $((SECONDS - started)) s"
