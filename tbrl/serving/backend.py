"""vLLM's OpenAI server as a child process: started, awaited, and ended with all it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx

from tbrl.config import EngineConfig, ModelConfig, TopologyConfig
from tbrl.engine.environment import engine_environment
from tbrl.errors import BackendFailure

STOP_GRACE_S = 10.0
POLL_S = 0.25
_PR_SET_PDEATHSIG = 1


def server_command(
    folder: str,
    name: str,
    port: int,
    model: ModelConfig,
    engine: EngineConfig,
    topology: TopologyConfig,
) -> list[str]:
    """Command line of the server; as close to the rollouts' engine as its options allow."""
    options: dict[str, object] = {
        "model": folder,
        "served-model-name": name,
        "host": "127.0.0.1",
        "port": port,
        "dtype": model.engine_dtype,
        "max-model-len": engine.max_model_len,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": max(8192, engine.max_model_len),
        "block-size": engine.block_size,
        "tensor-parallel-size": topology.tensor_parallel,
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
    }
    if topology.device == "cpu":
        options["kv-cache-memory-bytes"] = engine.kv_cache_mib << 20
    else:
        options["gpu-memory-utilization"] = engine.gpu_memory_utilization
    # A seeded request whose prefill is cut kills the engine on CPU.
    flags = ["--no-enable-chunked-prefill", "--enable-prefix-caching", "--disable-log-stats"]
    flags.append("--enable-prompt-tokens-details")  # or cached tokens would not be known
    if engine.enforce_eager:
        flags.append("--enforce-eager")
    # Not `vllm serve`: that command asks for the metadata of a distribution called vllm.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return [*command, *(f"--{key}={value}" for key, value in options.items()), *flags]


def _end_with_parent() -> None:
    """In the child: get SIGTERM when the parent is killed without a chance to clean up (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Backend:
    """A running server. Use as a context manager; leaving it ends the whole process group."""

    def __init__(
        self, command: list[str], url: str, environment: dict[str, str], log: Path
    ) -> None:
        self.url = url
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its workers can be ended with it
                preexec_fn=_end_with_parent,
            )

    @classmethod
    def start(
        cls,
        folder: str,
        name: str,
        port: int,
        model: ModelConfig,
        engine: EngineConfig,
        topology: TopologyConfig,
        log: Path,
    ) -> Backend:
        """Start a server of the model in `folder` on the loopback."""
        command = server_command(folder, name, port, model, engine, topology)
        environment = engine_environment(topology.device, topology.threads_per_engine)
        return cls(command, f"http://127.0.0.1:{port}", environment, log)

    def wait_ready(
        self,
        timeout_s: float,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Return once it answers. Raises BackendFailure when it ended, or at the deadline."""
        deadline = now() + timeout_s
        while not self._answers():
            code = self._process.poll()
            if code is not None:
                raise BackendFailure(
                    "engine",
                    "server",
                    f"ended with code {code} while starting: {self._last_line()}",
                )
            if now() > deadline:
                raise BackendFailure(
                    "deadline", "server", f"did not answer in {timeout_s:g} s; see {self._log}"
                )
            pause(POLL_S)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process group: politely, then not. Idempotent."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_GRACE_S)
        self._signal(signal.SIGKILL)  # also workers that outlived their parent
        self._process.wait(STOP_GRACE_S)

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(self._process.pid, number)

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it wrote nothing to {self._log}"
