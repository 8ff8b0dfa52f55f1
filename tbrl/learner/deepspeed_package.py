"""The optional package deepspeed: is it there, and how it is set up for a device."""

from __future__ import annotations

import logging
import os
import warnings
from importlib.util import find_spec
from typing import Any

from tbrl.errors import ConfigError


def check_deepspeed() -> None:
    """Raises ConfigError when it is not installed. Imports nothing."""
    if find_spec("deepspeed") is None:
        raise ConfigError(
            "topology.learner_engine='zero3' needs the package deepspeed, which is not installed; "
            "install tbrl[zero], or use topology.learner_engine=fsdp2"
        )


def load_deepspeed(device: str, index: int = 0) -> Any:
    """The package, for `cpu` or `cuda`; `index` of the GPU among those this process sees."""
    check_deepspeed()
    # Read at import: a CPU run on a machine with GPUs stays on the CPU.
    os.environ["DS_ACCELERATOR"] = device
    os.environ["LOCAL_RANK"] = str(index)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # It calls collectives by names that torch has renamed, once a micro-batch.
    warnings.filterwarnings("ignore", "`torch.distributed.*is deprecated", FutureWarning)
    if device == "cpu":
        # Gloo serves; this operator would be compiled on first use, for minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
