"""A policy saved in 16 bits is trained from float32 master weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_toys import write_policy
from learner_toys import tiny_causal_lm
from transformers import AutoModelForCausalLM

from tbrl.errors import ConfigError
from tbrl.learner.model import load_policy, prepare_policy


def test_a_bfloat16_folder_is_loaded_as_float32_master_weights(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "policy", 0)
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(folder)
    policy = load_policy(str(folder))
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


def test_master_weights_of_less_than_32_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="load the model in float32"):
        prepare_policy(tiny_causal_lm().bfloat16())
