#!/usr/bin/env bash
# Makes requirements/cpu.lock anew from cpu.in, dev.in and overrides.txt.
#   launch/lock.sh             keeps the versions of the present lock where they still fit
#   launch/lock.sh --upgrade   newest versions that fit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${TBRL_VENV:-.venv}
links=()
# uv does not read pip's configuration, and the +cpu build of torch is where pip finds it.
while read -r link; do
    [ -n "$link" ] && links+=(--find-links "$link")
done < <("$venv/bin/python" -m pip config list | sed -n "s/^.*find-links='\(.*\)'$/\1/p" | tr -s '\\n ' '\n' | sort -u)
"$venv/bin/python" -m uv --version >/dev/null 2>&1 || "$venv/bin/python" -m pip install -q uv
"$venv/bin/python" -m uv pip compile --quiet --python-version 3.11 --no-header \
    --no-emit-index-url --no-emit-find-links "${links[@]}" \
    --overrides requirements/overrides.txt "$@" \
    --output-file requirements/cpu.lock requirements/cpu.in requirements/dev.in
sed -i '1i # Made by launch/lock.sh; do not edit. Python 3.11, Linux, no GPU.' requirements/cpu.lock
echo "requirements/cpu.lock: $(grep -c '==' requirements/cpu.lock) packages"
