"""The learner engine on DeepSpeed ZeRO-3, with its CPU offload of parameters and optimizer.

The step is engine.py's; this file only says where things live. DeepSpeed cuts every parameter,
flattened and padded, into one piece a rank, and reduces each micro-batch into a flat float32
gradient buffer of this rank's pieces. Three things are settled here:

- DeepSpeed averages over ranks and we sum: the factor is undone with the division.
- Norm, clipping and division are done on the gradient buffer, in the same order as FSDP2 does;
  DeepSpeed's own clipping and loss scaling are off.
- The pieces of a parameter are exactly the shards of a flat DTensor: the common checkpoints and
  digests serve. Digests equal FSDP2's; checkpoints load onto another number of ranks, but a flat
  one not into FSDP2.

Every rank reduces every micro-batch: ranks are aligned, short ranks run dummies.

No operator is compiled at run time. AdamW is torch's fused one, on CPU as on GPU (as fast as
DeepSpeed's CPU Adam, which takes minutes to build), and the shared-memory collectives of
DeepSpeed's CPU build are left out: gloo does the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from tbrl.errors import InvariantError
from tbrl.learner.deepspeed_package import load_deepspeed
from tbrl.learner.distributed import Ranks
from tbrl.learner.engine import Capabilities, EngineSettings, LearnerEngine, adamw, make_moments
from tbrl.learner.head import TokenScores
from tbrl.learner.model import Policy
from tbrl.learner.packing import PackedBatch
from tbrl.learner.spread import Outline, named_tensors
from tbrl.types import Sampling

_BUCKET = 50_000_000
"""Elements of the buffer in which gradients are reduced."""


class Zero3Learner(LearnerEngine):
    """Trains a Policy whose parameters are float32 when it comes; needs a process group.

    A policy given as Outline gets its weights from rank 0, a unit at a time.
    """

    def __init__(
        self,
        model: Policy | Outline,
        ranks: Ranks,
        settings: EngineSettings,
        reference: Policy | Outline | None = None,
    ) -> None:
        super().__init__(ranks, settings, reference)
        deepspeed = load_deepspeed(ranks.device.type, ranks.device.index or 0)
        config = _config(settings, ranks)
        self.reference: Any = None
        if reference is not None:
            frozen, _ = _cut(deepspeed, reference, ranks, config, frozen=True)
            self.reference = _start(deepspeed, frozen, config, None)
        self.model, masters = _cut(deepspeed, model, ranks, config)
        optimizer = adamw(self.model.parameters(), settings)
        self.engine = _start(deepspeed, self.model, config, optimizer)
        self.zero = self.engine.optimizer
        self.optimizer: torch.optim.Optimizer = self.zero.optimizer
        make_moments(self.optimizer, self.zero.fp32_partitioned_groups_flat)
        home = self.zero.grad_partitions_flat_buffer.device
        self.mesh = init_device_mesh(home.type, (ranks.world,))
        for name, parameter in self.model.named_parameters():
            if name in masters:
                # DeepSpeed made the master weights from the rounded ones.
                self._local(parameter).copy_(masters[name])

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(own_pace=self.ranks.world == 1, phase_offload=self.settings.offload)

    # ------------------------------------------------------------ one step

    def _begin(self) -> None:
        self.zero.grad_partitions_flat_buffer.zero_()

    def _backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def _reduce(self) -> None:
        """Every micro-batch was reduced when it came."""

    def _grad_norm(self) -> float:
        buffer = self.zero.grad_partitions_flat_buffer  # what pads a piece is zero
        local = float(torch.linalg.vector_norm(buffer, dtype=torch.float64).square())
        return self.ranks.sum([local])[0] ** 0.5 * self.ranks.world

    def _update(self, factor: float, lr: float) -> None:
        self.zero.grad_partitions_flat_buffer.mul_(factor * self.ranks.world)
        self.zero.set_lr(lr)
        self.engine.step()
        if self.zero.overflow:  # it passes over a step whose norm it finds beyond float32
            raise InvariantError("DeepSpeed refused the step; weights are unchanged")

    def abort_step(self) -> None:
        for bucket in self.zero.ipg_buckets.values():
            bucket.clear_params()  # what a broken backward left
        self._close()

    def _close(self) -> None:
        self.zero.zero_grad(set_to_none=True)
        self.engine.empty_partition_cache()
        self.open = False

    # ------------------------------------------------------------ reading

    def score(self, batch: PackedBatch, samplings: tuple[Sampling, ...]) -> tuple[TokenScores, ...]:
        return self.engine(batch, samplings)

    def _reference_score(
        self, batch: PackedBatch, samplings: tuple[Sampling, ...]
    ) -> tuple[TokenScores, ...]:
        return self.reference(batch, samplings)

    def _named(self) -> list[tuple[str, Any]]:
        """Parameters by Hugging Face name, with what DeepSpeed has put on them."""
        return [(self.model.public_name(name), p) for name, p in self.model.named_parameters()]

    @torch.no_grad()
    def _full_params(self, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._named():
            padded = self._padded(parameter).to(self.ranks.device, dtype)
            whole = padded.new_empty(padded.numel() * self.ranks.world)
            dist.all_gather_single(whole, padded)
            yield name, whole[: parameter.ds_numel].view(parameter.ds_shape)

    def _flat(self, parameter: Any) -> tuple[Tensor, int, int]:
        """Where this rank's piece of a parameter is: buffer of master weights, first, length."""
        group, first, length = self.zero.grad_position[self.zero.get_param_id(parameter)]
        return self.zero.fp32_partitioned_groups_flat[group], first, length

    def _padded(self, parameter: Any, kind: str = "model") -> Tensor:
        """This rank's piece of a parameter's master weights or moments: live, with its padding."""
        flat, first, length = self._flat(parameter)
        source = flat if kind == "model" else self.optimizer.state[flat][kind]
        return source.detach().narrow(0, first, length)

    def _local(self, parameter: Any, kind: str = "model") -> Tensor:
        """The same without padding: shorter, or empty, on the last ranks."""
        piece = self._padded(parameter, kind)
        rest = parameter.ds_numel - self.ranks.rank * piece.numel()
        return piece[: max(0, min(piece.numel(), rest))]

    def state(self) -> dict[str, dict[str, Tensor]]:
        self._rest()
        result: dict[str, dict[str, Tensor]] = {
            kind: {
                name: DTensor.from_local(
                    self._local(parameter, kind),
                    self.mesh,
                    [Shard(0)],
                    shape=torch.Size([parameter.ds_numel]),
                    stride=(1,),
                )
                for name, parameter in self._named()
            }
            for kind in ("model", "exp_avg", "exp_avg_sq")
        }
        result["step"] = {
            name: self.optimizer.state[self._flat(parameter)[0]]["step"]
            for name, parameter in self._named()
        }
        return result

    def flat_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(parameter.ds_shape) for name, parameter in self._named()}

    @torch.no_grad()
    def state_loaded(self) -> None:
        for flat, master in zip(
            self.zero.fp16_partitioned_groups_flat,
            self.zero.fp32_partitioned_groups_flat,
            strict=True,
        ):
            flat.copy_(master)
        # Gathered copies of small parameters, which DeepSpeed keeps, are those of old values.
        self.engine.empty_partition_cache()

    # ------------------------------------------------------------ phases

    def offload(self) -> None:
        """With `settings.offload` everything that lasts is in host memory already."""
        self._rest()
        if self.ranks.device.type == "cuda":
            self.engine.empty_partition_cache()
            torch.cuda.empty_cache()

    def onload(self) -> None:
        """Nothing to bring: pieces come to the GPU as they are used."""


@torch.no_grad()
def _cut(
    deepspeed: Any,
    given: Policy | Outline,
    ranks: Ranks,
    config: dict[str, Any],
    frozen: bool = False,
) -> tuple[Policy, dict[str, Tensor]]:
    """The policy, ready for DeepSpeed, and this rank's exact pieces of its parameters where the
    compute dtype loses them. Collective."""
    policy = given.policy if isinstance(given, Outline) else given
    policy.requires_grad_(not frozen)
    wrong = {p.dtype for p in policy.parameters()} - {torch.float32}
    if wrong:
        raise InvariantError(f"ZeRO-3 starts from float32 parameters, not {wrong}")
    source = given.source if isinstance(given, Outline) else given
    whole = named_tensors(source) if source is not None else {}
    names = {parameter: name for name, parameter in policy.named_parameters()}
    dtype = torch.bfloat16 if config["bf16"]["enabled"] else torch.float32
    masters: dict[str, Tensor] = {}
    for unit in [*policy.shard_units(), policy]:
        for parameter in unit.parameters():
            if parameter not in names:
                continue  # in an earlier unit
            name = names.pop(parameter)
            tensor = _from_first(whole.get(name), parameter, ranks)
            if dtype != torch.float32 and not frozen:
                masters[name] = _piece(tensor, ranks).to("cpu", copy=True)
            new = torch.nn.Parameter(tensor.to(dtype), requires_grad=not frozen)
            torch.utils.swap_tensors(parameter, new)
        # At most one unit is whole.
        deepspeed.zero.Init(module=unit, config_dict_or_path=config, dtype=dtype)
    for name, buffer in list(policy.named_buffers()):
        owner, _, key = name.rpartition(".")
        policy.get_submodule(owner)._buffers[key] = _from_first(whole.get(name), buffer, ranks)
    return policy, masters


def _from_first(whole: Tensor | None, like: Tensor, ranks: Ranks) -> Tensor:
    """Rank 0's tensor on every rank's device. Collective."""
    if whole is None:
        whole = torch.empty(like.shape, dtype=like.dtype)
    received = whole.detach().to(ranks.device).contiguous()
    dist.broadcast(received, 0)
    return received


def _start(
    deepspeed: Any, policy: Policy, config: dict[str, Any], optimizer: torch.optim.Optimizer | None
) -> Any:
    """A DeepSpeed engine around the policy on the process group that is there."""
    engine, *_ = deepspeed.initialize(
        model=policy, optimizer=optimizer, config=config, dist_init_required=False
    )
    return engine


def _config(settings: EngineSettings, ranks: Ranks) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": 3,
        "overlap_comm": False,  # not with a step of our own length
        "reduce_bucket_size": _BUCKET,
    }
    if settings.offload:
        host = {"device": "cpu", "pin_memory": ranks.device.type == "cuda"}
        zero |= {"offload_param": host, "offload_optimizer": host}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": None,
        # A step is as many micro-batches as there are: `step` is the only boundary.
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": settings.compute_dtype == "bfloat16"},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
    }


def _piece(tensor: Tensor, ranks: Ranks) -> Tensor:
    """This rank's share of a whole tensor, as DeepSpeed cuts it, without padding."""
    length = -(-tensor.numel() // ranks.world)
    return tensor.reshape(-1)[ranks.rank * length : (ranks.rank + 1) * length]
