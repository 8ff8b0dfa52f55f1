"""Weight transfer between devices: what can be held against vLLM's own code without one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tbrl.engine.environment import engine_environment
from tbrl.engine.weights import VllmSender, info_of_engine

ROUND_TRIP = """
import torch
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
# What torch.multiprocessing.reductions.reduce_tensor gives of a tensor on CUDA.
handle = (torch.Tensor, torch.Size([4]), (1,), 0, torch.UntypedStorage, torch.uint8, 0,
          b"h" * 64, 16, 0, b"counter", 0, b"event", True, False)
call = ("collective_rpc", {"update_info": {"ipc_handles": {"GPU-1": handle}}})
got = MsgpackDecoder().decode(MsgpackEncoder().encode(call))
back = got[1]["update_info"]["ipc_handles"]["GPU-1"]
assert back[0] is torch.Tensor and back[4] is torch.UntypedStorage and back[5] is torch.uint8
"""


def test_memory_handles_pass_through_vllms_messages_in_the_gpu_environment() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP],
        env={**os.environ, **engine_environment("cuda", 1)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]


def test_every_worker_of_every_engine_has_a_rank_of_its_own_in_the_nccl_group() -> None:
    info = {"master_address": "10.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 25}
    offsets = [info_of_engine(info, index, 4)["rank_offset"] for index in range(6)]
    ranks = [0, *(offset + worker for offset in offsets for worker in range(4))]
    assert ranks == list(range(25))
    assert info_of_engine({"packed": True}, 3, 4) == {"packed": True}


def test_the_buffer_of_shared_memory_holds_the_largest_tensor() -> None:
    import torch

    def weights() -> Any:
        yield "small", torch.empty(8, 8, dtype=torch.bfloat16)
        # The output head of an 8B policy, without storage.
        yield "head", torch.empty(151936, 4096, dtype=torch.bfloat16, device="meta")

    sender = VllmSender(None, 0, "ipc", 25, "", 0)  # type: ignore[arg-type]
    sender._source(weights)
    assert sender._info().packed_buffer_size_bytes == 151936 * 4096 * 2 > 1 << 30
