"""The tiny policy: tokenizer, chat template, demonstrations, warm start, shipped checkpoints."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tbrl.config import WarmstartConfig
from tbrl.domains.names import names_of
from tbrl.domains.registry import all_domains, domain_of, training_domains
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.policy.builtin import NAMES, policy_folder
from tbrl.policy.copying import copy_exercise
from tbrl.policy.demonstrations import Conversation, conversations, tokenized
from tbrl.policy.modelcard import CARD, PROVENANCE, domain_digest
from tbrl.policy.tokenizer import SCAFFOLD, SPECIAL, chat_template, train_tokenizer
from tbrl.policy.warmstart import warmstart
from tbrl.rewards.golden import GoldenReplay

DOMAINS = [d for d in all_domains() if "compact" in d.sizes]
shipped = pytest.mark.parametrize("name", NAMES)


@cache
def walked() -> tuple[Conversation, ...]:
    return tuple(conversations(DOMAINS, names_of("warmstart"), 80, noise=0.4, seed=7))


@cache
def tokenizer():  # type: ignore[no-untyped-def]
    plain = train_tokenizer([""], 0, chat_template())
    texts = [render(plain, c, len(c.messages)) for c in walked()]
    return train_tokenizer(texts, 1024, chat_template())


def render(tok, conversation: Conversation, messages: int) -> str:  # type: ignore[no-untyped-def]
    return str(
        tok.apply_chat_template(
            list(conversation.messages[:messages]), tools=list(conversation.tools), tokenize=False
        )
    )


# ---------------------------------------------------------------- tokenizer and template


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    backend = tokenizer().backend_tokenizer
    ids = backend.encode(text, add_special_tokens=False).ids
    assert backend.decode(ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_and_codes_are_spelled_alike_everywhere() -> None:
    tok = tokenizer()
    for text in ("rental R407.", "\nR407\n", '{"id":"R407"}', "(R407)"):
        assert "R|4|0|7" in "|".join(tok.tokenize(text))


def test_only_chat_tokens_are_special_so_that_skipping_them_keeps_the_grammar() -> None:
    tok = tokenizer()
    text = "".join(SCAFFOLD)
    kept = tok.decode(tok.encode(f"{SPECIAL[1]}{text}{SPECIAL[2]}"), skip_special_tokens=True)
    assert kept == text
    for tag in ("<DONE>", "<tool_call>", "</tool_call>", "<think>", "</think>"):
        assert len(tok.tokenize(tag)) == 1


def test_a_longer_conversation_only_appends_to_the_text() -> None:
    tok = tokenizer()
    for conversation in walked():
        before = ""
        for messages in range(1, len(conversation.messages) + 1):
            text = render(tok, conversation, messages)
            assert text.startswith(before)
            before = text


def test_optional_parameters_and_choices_show_in_the_tool_list() -> None:
    text = render(tokenizer(), walked()[0], 1)
    assert "priority:low|high" in text
    assert "note?:string" in text


# ---------------------------------------------------------------- demonstrations


def test_demonstrations_are_deterministic() -> None:
    again = tuple(conversations(DOMAINS, names_of("warmstart"), 80, noise=0.4, seed=7))
    assert [c.messages for c in again] == [c.messages for c in walked()]
    other = tuple(conversations(DOMAINS, names_of("warmstart"), 80, noise=0.4, seed=8))
    assert [c.messages for c in other] != [c.messages for c in walked()]


def test_right_demonstrations_and_only_they_reach_the_golden_state() -> None:
    replay = GoldenReplay({d.name: d for d in DOMAINS})
    for conversation in walked():
        golden = replay.golden(conversation.drafted.task).state_hash
        assert (conversation.terminal.state_hash == golden) == conversation.right
    assert 0.2 < sum(c.right for c in walked()) / len(walked()) < 0.7


def test_a_demonstration_is_what_a_rollout_would_have_recorded() -> None:
    """Prompt, sampled turns and deltas of the episode's renderer, in the same ids."""
    tok = tokenizer()
    renderer = Renderer(tok)
    prefixes: dict[str, str] = {}
    for conversation in walked()[:20]:
        specs = specs_of(conversation)
        messages = list(conversation.messages)
        ids = renderer.prompt(messages[:2], specs)
        mask = [False] * len(ids)
        observed: list[dict] = []
        for end, message in enumerate(messages[2:], start=3):
            if message["role"] != "assistant":
                observed.append(message)
                continue
            if observed:
                delta = renderer.delta(observed, ids, specs)
                ids, mask, observed = ids + delta, mask + [False] * len(delta), []
            turn = renderer.assistant_turn(messages[:end], specs)
            ids, mask = ids + turn, mask + [True] * len(turn)
        demo = tokenized(conversation, tok, prefixes)
        whole = [*demo.prefix, *demo.ids]
        assert whole[: len(ids)] == ids
        assert tok.decode(whole[len(ids) :]) == "\n"
        assert ([False] * len(demo.prefix) + list(demo.mask))[: len(mask)] == mask


def test_the_interpreter_reads_every_expert_turn_as_it_was_meant() -> None:
    tok = tokenizer()
    for conversation in walked():
        interpreter = Interpreter(tok, specs_of(conversation))
        demo = tokenized(conversation, tok, {})
        turns = [m for m in conversation.messages if m["role"] == "assistant"]
        for turn, ids in zip(turns, sampled_turns(demo.ids, demo.mask), strict=True):
            reading = interpreter.read(ids, "stop")
            meant = [c["function"] for c in turn.get("tool_calls", ())]
            assert [{"name": c.name, "arguments": c.arguments} for c in reading.calls] == meant
            assert reading.reasoning == turn.get("reasoning_content", "")
            assert reading.done == turn["content"].endswith("<DONE>")
            assert reading.regular


def specs_of(conversation: Conversation):  # type: ignore[no-untyped-def]
    domain = domain_of(conversation.drafted.task.public.domain)
    return tuple(t.spec for t in domain.sizes["compact"].tools)


def sampled_turns(ids, mask) -> list[list[int]]:  # type: ignore[no-untyped-def]
    turns: list[list[int]] = []
    inside = False
    for token, sampled in zip(ids.tolist(), mask.tolist(), strict=True):
        if sampled and not inside:
            turns.append([])
        if sampled:
            turns[-1].append(token)
        inside = sampled
    return turns


# ---------------------------------------------------------------- warm start


def test_copy_exercises_ask_only_for_digits_that_were_seen() -> None:
    ids, mask = copy_exercise(tokenizer(), random.Random(0))
    for row, asked in zip(ids.tolist(), mask.tolist(), strict=True):
        for place, wanted in enumerate(asked):
            if wanted and not asked[place - 1]:
                key, number = row[place - 1], row[place : place + 3]
                first = row.index(key)
                assert first < place - 1
                assert row[first + 1 : first + 1 + len(number)] == number


def test_a_warm_start_is_deterministic_and_can_be_refined(tmp_path: Path) -> None:
    config = WarmstartConfig(
        copy_steps=1,
        steps=1,
        demonstrations=32,
        refine_steps=1,
        refine_demonstrations=16,
        seed=3,
        threads=1,
    )
    domains = [domain_of("rental")]
    for name in ("one", "two"):
        metrics = warmstart(config, tmp_path / name, 0.3, domains=domains)
    weights = "model.safetensors"
    assert (tmp_path / "one" / weights).read_bytes() == (tmp_path / "two" / weights).read_bytes()
    assert metrics.steps == 1
    assert 0 < metrics.right_share < 1
    refined = warmstart(config, tmp_path / "three", 0.0, start=tmp_path / "one", domains=domains)
    assert refined.right_share == 1
    assert (tmp_path / "one" / weights).read_bytes() != (tmp_path / "three" / weights).read_bytes()
    card = (tmp_path / "three" / CARD).read_text()
    assert "reference" in card and "rental" in card


# ---------------------------------------------------------------- shipped checkpoints


@shipped
def test_a_shipped_policy_is_small_and_loads(name: str) -> None:
    folder = Path(policy_folder(f"builtin:{name}"))
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 4 * 2**20
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    assert sum(p.numel() for p in model.parameters()) <= 1_500_000
    tok = AutoTokenizer.from_pretrained(folder)
    assert len(tok) <= model.config.vocab_size
    assert model.config.vocab_size % 64 == 0
    assert model.config.eos_token_id == tok.convert_tokens_to_ids("<|im_end|>")
    assert tok.chat_template == chat_template()


@shipped
def test_a_shipped_policy_was_made_for_the_domains_as_they_are(name: str) -> None:
    """Fails when a domain's compact tools, templates or policy changed since: rebuild with
    stage=warmstart."""
    folder = Path(policy_folder(f"builtin:{name}"))
    made_for = json.loads((folder / PROVENANCE).read_text())["domains"]
    assert {d.name for d in training_domains() if "compact" in d.sizes} <= set(made_for)
    assert {n: domain_digest(domain_of(n)) for n in made_for} == made_for
    assert (folder / CARD).read_text().startswith("# tbrl tiny policy")


@shipped
def test_a_shipped_tokenizer_spells_each_tool_name_as_one_token(name: str) -> None:
    tok = AutoTokenizer.from_pretrained(policy_folder(f"builtin:{name}"))
    for domain in DOMAINS:
        for tool in domain.sizes["compact"].tools:
            assert len(tok.tokenize(tool.spec.name)) == 1
