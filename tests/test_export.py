"""Export: the folder holds the weights that were trained, or does not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toy_tokenizers import toy_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from tbrl.errors import ConfigError, InvariantError
from tbrl.learner.checkpoint import Checkpointer
from tbrl.learner.distributed import Ranks
from tbrl.serving import export as module
from tbrl.serving.export import RECORD, export


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    tokenizer = toy_tokenizer("chatml_xml")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config.top_k = 20
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(source: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    torch.manual_seed(1)
    return {name: (p + torch.randn_like(p) * 0.05).detach() for name, p in model.named_parameters()}


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.arange(20)[None]).logits


def test_exported_weights_are_the_trained_ones(source: Path, trained: dict, tmp_path: Path) -> None:
    out = tmp_path / "policy"
    assert export(trained, source, out) <= 1e-5
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[name])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert not torch.allclose(logits(out), logits(source))
    assert model.generation_config.top_k == 20
    assert (
        AutoTokenizer.from_pretrained(out).chat_template
        == toy_tokenizer("chatml_xml").chat_template
    )
    assert not out.with_name("policy.tmp").exists()


def test_large_models_are_sharded_with_an_index(
    source: Path, trained: dict, tmp_path: Path
) -> None:
    out = tmp_path / "policy"
    export(trained, source, out, max_shard_size="40KB")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1 and all((out / shard).is_file() for shard in shards)
    assert set(index["weight_map"]) == set(trained)


def test_checkpoint_of_a_run_is_exported(source: Path, trained: dict, tmp_path: Path) -> None:
    saved = Checkpointer(tmp_path / "checkpoints", Ranks()).save(
        7, {"model": dict(trained)}, {"parity": "abc"}
    )
    out = tmp_path / "policy"
    export(saved.result(), source, out, dtype="bfloat16")
    record = json.loads((out / RECORD).read_text())
    assert (record["step"], record["checkpoint"]) == (7, {"parity": "abc"})
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.dtype == torch.bfloat16
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[name].bfloat16())


def test_incomplete_checkpoint_is_refused(source: Path, trained: dict, tmp_path: Path) -> None:
    saved = Checkpointer(tmp_path / "checkpoints", Ranks()).save(1, {"model": dict(trained)}, {})
    folder, out = saved.result(), tmp_path / "policy"
    shard = next(folder.glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="missing or damaged"):
        export(folder, source, out)
    (folder / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="not a complete checkpoint"):
        export(folder, source, out)
    assert not out.exists()


@pytest.mark.parametrize("fault", ["lack", "hold unknown", "misshape"])
def test_weights_of_another_architecture_are_refused(
    source: Path, trained: dict, tmp_path: Path, fault: str
) -> None:
    weights = dict(trained)
    if fault == "lack":
        del weights["model.norm.weight"]
    elif fault == "hold unknown":
        weights["model.extra.weight"] = torch.zeros(1)
    else:
        weights["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(ConfigError, match=rf"the weights {fault} model\."):
        export(weights, source, tmp_path / "policy")


def test_export_that_loads_back_differently_is_not_named(
    source: Path, trained: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = module._load

    def damaged(folder: Path) -> object:
        model = load(folder)
        torch.nn.init.zeros_(model.model.norm.weight)
        return model

    monkeypatch.setattr(module, "_load", damaged)
    with pytest.raises(InvariantError, match="log probabilities differ"):
        export(trained, source, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_only_an_earlier_export_is_replaced(source: Path, trained: dict, tmp_path: Path) -> None:
    out = tmp_path / "policy"
    export(trained, source, out)
    export(trained, source, out)
    (out / RECORD).unlink()
    with pytest.raises(ConfigError, match="something else lies there"):
        export(trained, source, out)


def test_changed_chat_template_goes_with_the_policy(
    source: Path, trained: dict, tmp_path: Path
) -> None:
    export(trained, source, tmp_path / "policy", chat_template="{{ messages }}")
    assert AutoTokenizer.from_pretrained(tmp_path / "policy").chat_template == "{{ messages }}"
