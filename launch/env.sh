# Settings that every process of tbrl shares; sourced by the other scripts.
# One thread a process: on a busy machine two spinning OpenMP threads are slower than one, and
# bitwise reproducibility holds with one. Topologies raise it per actor (topology.threads_per_*).
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}"
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
export TOKENIZERS_PARALLELISM=false
export RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_DISABLE_TELEMETRY=1

TBRL_VENV="${TBRL_VENV:-$ROOT/.venv}"
export PATH="$TBRL_VENV/bin:$PATH"
