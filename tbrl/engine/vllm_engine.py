"""One vLLM engine: token ids in, token ids and behaviour logprobs out.

The engine core runs in its own spawned process, on CPU as on GPU. Sampling is refused until the
engine has echoed the policy version it is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tbrl.config import EngineConfig, ModelConfig, TopologyConfig
from tbrl.engine.environment import apply, engine_environment
from tbrl.errors import BackendFailure, InvariantError
from tbrl.types import Generation, Sampling
from tbrl.usage import Usage

GPU_BATCHED_TOKENS = 16384
"""Tokens of one engine step on GPU. Whole prompts of 100,000 tokens would need activations that
leave little room for the KV cache."""


@dataclass(frozen=True, slots=True)
class WeightEcho:
    """What an engine answers to a weight update."""

    policy_version: int
    digest: str
    """Of the weights as received, see engine/digest.py; empty before the first update."""
    cache_reset: bool


class VllmEngine:
    """Wraps vLLM's AsyncLLM. Use `await VllmEngine.start(...)` inside a running event loop."""

    def __init__(self, llm: Any, policy_version: int) -> None:
        self._llm = llm
        self._requests = itertools.count()
        self._updating = False
        self.dead = False
        self.policy_version = policy_version

    @classmethod
    async def start(
        cls, model_path: str, model: ModelConfig, engine: EngineConfig, topology: TopologyConfig
    ) -> VllmEngine:
        """Load the model and return an engine at policy version 0."""
        apply(engine_environment(topology.device, topology.threads_per_engine))
        apply({"VLLM_ENGINE_READY_TIMEOUT_S": str(int(engine.start_timeout_s))})
        from vllm import AsyncEngineArgs
        from vllm.config import WeightTransferConfig
        from vllm.v1.engine.async_llm import AsyncLLM

        on_gpu = topology.device != "cpu"
        dtype: Any = model.engine_dtype
        placement: dict[str, Any] = (
            {
                "gpu_memory_utilization": engine.gpu_memory_utilization,
                "enable_sleep_mode": topology.colocated,
                # Inside a placement group vLLM would ask Ray for GPUs of its own, on any node.
                "distributed_executor_backend": "mp" if topology.tensor_parallel > 1 else "uni",
                "enable_chunked_prefill": True,
                "max_num_batched_tokens": GPU_BATCHED_TOKENS,
            }
            if on_gpu
            else {
                "kv_cache_memory_bytes": engine.kv_cache_mib << 20,
                # A seeded request whose prefill is cut kills the engine on CPU, and cutting would
                # make tokens depend on the batch: prefill whole prompts.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(8192, engine.max_model_len),
            }
        )
        args = AsyncEngineArgs(
            model=model_path,
            dtype=dtype,
            max_model_len=engine.max_model_len,
            max_num_seqs=engine.max_num_seqs,
            block_size=engine.block_size,
            enforce_eager=engine.enforce_eager,
            tensor_parallel_size=topology.tensor_parallel,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            worker_extension_cls="tbrl.engine.worker_extension.WorkerExtension",
            weight_transfer_config=WeightTransferConfig(backend=topology.weight_transfer),
            disable_log_stats=True,
            generation_config="vllm",
            **placement,
        )
        llm = AsyncLLM.from_engine_args(args)
        self = cls(llm, policy_version=0)
        await llm.update_weight_version("0")
        return self

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        seed: int,
        stop_ids: Sequence[int],
    ) -> Generation:
        """Sample one turn. Raises BackendFailure("engine") when the engine died or aborted."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_tokens=max_tokens,
            seed=seed,
            logprobs=0,
            detokenize=False,
            stop_token_ids=list(stop_ids),
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request_id = f"turn-{next(self._requests)}"
        version = self.policy_version
        final = None
        prompt = tokens_input(list(prompt_ids))
        try:
            async for output in self._llm.generate(prompt, params, request_id):
                final = output
        except EngineDeadError as error:
            self.dead = True
            raise BackendFailure("engine", "vllm", str(error) or "the engine died") from error
        if final is None:
            raise BackendFailure("engine", "vllm", "the request ended without output")
        sampled = final.outputs[0]
        if sampled.finish_reason == "abort":
            raise BackendFailure("engine", "vllm", "the request was aborted")
        ids = tuple(sampled.token_ids)
        if sampled.logprobs is None or len(sampled.logprobs) != len(ids):
            raise InvariantError("vLLM returned tokens without a behaviour logprob for each")
        logprobs = tuple(
            float(table[token].logprob) for table, token in zip(sampled.logprobs, ids, strict=True)
        )
        if self.policy_version != version:
            raise InvariantError(f"weights changed from version {version} during a turn")
        return Generation(
            ids=ids,
            logprobs=logprobs,
            finish_reason="length" if sampled.finish_reason == "length" else "stop",
            policy_version=version,
            usage=Usage.of(len(prompt_ids), final.num_cached_tokens, len(ids)),
        )

    async def init_weight_transfer(self, info: dict[str, Any]) -> None:
        """Rendezvous of the transfer backend (a no-op for `shm`)."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))

    async def begin_update(self) -> None:
        """Nothing may be sampling. The policy version is unknown until `end_update`. An update
        whose sender died is closed first: this one replaces all that it left."""
        self.policy_version = -1
        if self._updating:
            await self._llm.finish_weight_update()
            await self._llm.collective_rpc("end_digest")
        self._updating = True
        await self._llm.collective_rpc("begin_digest")
        await self._llm.start_weight_update()

    async def receive_update(self, info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Load the weights that `info` describes (backend-specific)."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))

    async def end_update(self, version: int) -> WeightEcho:
        """Finish, drop every cached prefix, and echo what is loaded now."""
        await self._llm.finish_weight_update(weight_version=str(version))
        self._updating = False
        return await self._echo(version)

    async def _echo(self, version: int) -> WeightEcho:
        digests = set(await self._llm.collective_rpc("end_digest"))
        if len(digests) != 1:
            raise InvariantError(f"workers of one engine received different weights: {digests}")
        reset = bool(await self._llm.reset_prefix_cache())
        if not reset:
            raise InvariantError("the prefix cache could not be reset after a weight update")
        echoed = await self._llm.get_weight_version()
        if echoed != str(version):
            raise InvariantError(f"engine echoes version {echoed}, expected {version}")
        self.policy_version = version
        return WeightEcho(version, digests.pop(), reset)

    async def load_folder(self, path: str, version: int) -> WeightEcho:
        """Replace the weights by those of a Hugging Face folder of the same architecture."""
        self.policy_version = -1
        await self._llm.collective_rpc("begin_digest")
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
        await self._llm.update_weight_version(str(version))
        return await self._echo(version)

    async def sleep(self) -> None:
        """Free the device for the learner (weights to host, KV cache dropped). No-op on CPU."""
        await self._llm.sleep(level=1)

    async def wake(self, part: str) -> None:
        """`weights` first, so that they can be updated while the learner still holds the device;
        `kv_cache` when it has left."""
        await self._llm.wake_up(tags=[part])

    async def shutdown(self) -> None:
        """End the engine core's process. On the loop that started it: called from outside, vLLM
        leaves its sockets to a loop that runs no more, and whoever frees them waits forever."""
        self._llm.shutdown()
        self._llm = None
