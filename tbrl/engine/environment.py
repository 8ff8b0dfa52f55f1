"""Environment of a vLLM process, set before vllm is imported in it.

Each entry answers a trap of vLLM: on CPU a measured one, on GPU one read in its source.
"""

from __future__ import annotations

import os


def engine_environment(device: str, threads: int) -> dict[str, str]:
    """Variables for a process that will import vllm on `device` (`cpu` or `cuda`)."""
    common = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if device != "cpu":
        return {
            **common,
            # CUDA IPC handles hold types, which vLLM passes to its own engine process only so.
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        }
    return {
        **common,
        # One process for EngineCore and worker instead of two: saves one import of vllm (6 s).
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # The first request with logprobs compiles a helper with g++ even under enforce_eager.
        "TORCHDYNAMO_DISABLE": "1",
        # Spinning OpenMP threads collapse throughput when another process needs the core.
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
    }


def apply(environment: dict[str, str]) -> None:
    """Set the variables in this process."""
    os.environ.update(environment)
