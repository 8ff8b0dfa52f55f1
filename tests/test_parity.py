"""The parity gate and the replay of recordings. Imports vLLM (seconds)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import toy_tokenizer

from tbrl.episode import cases, corpus, parity, verification
from tbrl.episode.corpus import TOOLS, Corpus
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.episode.serving_parser import ServingParser, compare, our_reading
from tbrl.errors import ConfigError
from tbrl.types import Episode, EpisodeKey, Sampling, Scored, ToolCall, Turn

FAMILIES = [
    ("chatml_xml", None, "refuse"),
    ("hermes_default_system", None, "refuse"),
    ("qwen3", None, "keep_template"),
    ("qwen3", False, "keep_template"),
    ("qwen35", None, "keep_template"),
    ("qwen35", None, "new_segment"),
]


def parts(template: str, thinking: bool | None = None, strips: str = "refuse") -> tuple:
    tokenizer = toy_tokenizer(template)
    renderer = Renderer(tokenizer, enable_thinking=thinking, strips_reasoning=strips)
    reader = Interpreter(tokenizer, TOOLS, reasoning_preopened=renderer.reasoning_preopened)
    return tokenizer, renderer, reader


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_each_family_passes_the_gate(family: tuple) -> None:
    report = parity.check(*parts(*family))
    assert report.differences == ()
    assert report.outputs > 150
    report.require()


@pytest.mark.parametrize("template", ["chatml_xml", "qwen3"])
@given(seed=st.integers(0, 2**32), reasons=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_regular_output_is_read_as_the_server_reads_it(
    template: str, seed: int, reasons: bool
) -> None:
    reader, parser = PARSERS[template]
    turn = Corpus(seed, reasons).assistant()
    spelled = reader.raw_text(RENDERED[template].assistant_turn([*OPENING, turn], TOOLS))
    for text in (spelled, *corpus.mutations(spelled, seed, 6)):
        if reader.read_text(text, "stop").regular:
            text = reader.text(text)
            assert our_reading(reader, text) == parser.read_text(text)


OPENING = [{"role": "user", "content": "hi"}]
RENDERED = {
    "chatml_xml": parts("chatml_xml")[1],
    "qwen3": parts("qwen3", None, "keep_template")[1],
}
PARSERS = {
    name: (
        Interpreter(toy_tokenizer(name), TOOLS),
        ServingParser(toy_tokenizer(name), TOOLS, fmt),
    )
    for name, fmt in (("chatml_xml", "qwen_xml"), ("qwen3", "hermes_json"))
}


def test_hash_is_of_the_agent_not_of_the_check() -> None:
    tokenizer, renderer, reader = parts("chatml_xml")
    once = parity.check(tokenizer, renderer, reader, serving=False)
    tokenizer(["a", "a b"], padding=True)  # sets the tokenizer's padding state
    other_tools = reader.with_tools(())
    assert parity.check(tokenizer, renderer, other_tools, serving=False).hash == once.hash
    assert parity.check(tokenizer, renderer, reader, serving=True).hash == once.hash
    assert once.outputs == 0


def test_hash_tells_agents_apart() -> None:
    tokenizer, renderer, reader = parts("chatml_xml")
    hermes = Interpreter(tokenizer, TOOLS, "hermes_json")
    wider = toy_tokenizer("chatml_xml")
    wider.add_tokens(["mower"])
    spaced = toy_tokenizer("chatml_xml")
    spaced.chat_template = spaced.chat_template.replace("\\n\\nTools:", "\\nTools:")
    found = {
        parity.check(*each, serving=False).hash
        for each in (
            (tokenizer, renderer, reader),
            (tokenizer, renderer, hermes),
            (wider, Renderer(wider), Interpreter(wider, TOOLS)),
            (spaced, Renderer(spaced), Interpreter(spaced, TOOLS)),
            parts("qwen3", None, "keep_template"),
            parts("qwen3", None, "new_segment"),
        )
    }
    assert len(found) == 6


class LosesSeparator(Renderer):
    """The newline between two turns is missing."""

    def delta(self, observations: list, last_sampled: Sequence[int], tools: tuple = ()) -> list:
        return super().delta(observations, last_sampled, tools)[1:]


def test_lost_separator_is_found() -> None:
    tokenizer, _, reader = parts("chatml_xml")
    report = parity.check(tokenizer, LosesSeparator(tokenizer), reader, serving=False)
    assert {d.check for d in report.differences} == {"incremental"}
    with pytest.raises(ConfigError, match=r"model\.path: incremental parity, conversation 1"):
        report.require()


def test_template_that_writes_values_nobody_reads_back_is_found() -> None:
    tokenizer = toy_tokenizer("chatml_xml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "(value | tojson)", "(value | string)"
    )
    report = parity.check(
        tokenizer, Renderer(tokenizer), Interpreter(tokenizer, TOOLS), serving=False
    )
    assert report.differences and {d.check for d in report.differences} == {"round trip"}


def test_parser_that_loses_types_is_found() -> None:
    tokenizer, renderer, reader = parts("chatml_xml")
    reader.with_tools = lambda tools: Interpreter(tokenizer, ())  # type: ignore[method-assign]
    report = parity.check(tokenizer, renderer, reader)
    assert {d.check for d in report.differences} == {"round trip", "serving"}


# ---------------------------------------------------------------- recordings


def recorded_episode(renderer: Renderer, reader: Interpreter) -> Episode:
    messages = Corpus(3, renderer.reasons).conversation(5)
    prompt = renderer.prompt(messages[:2], TOOLS)
    response: list[int] = []
    mask: list[bool] = []
    turns = [
        Turn("system", messages[0]["content"]),
        Turn("user", messages[1]["content"], end=len(prompt)),
    ]
    pending: list[dict] = []
    last: list[int] = []
    for number, message in enumerate(messages[2:], 2):
        if message["role"] != "assistant":
            pending.append(message)
            continue
        if pending:
            delta = renderer.delta(pending, last, TOOLS)
            start = len(prompt) + len(response)
            response += delta
            mask += [False] * len(delta)
            turns += [
                Turn(
                    m["role"],
                    m["content"],
                    tool_name=m.get("name", ""),
                    start=start,
                    end=start + len(delta),
                )
                for m in pending
            ]
            pending = []
        last = renderer.assistant_turn(messages[: number + 1], TOOLS)
        reading = reader.read(last, "stop")
        start = len(prompt) + len(response)
        response += last
        mask += [True] * len(last)
        turns.append(
            Turn(
                "assistant",
                reading.text,
                reading.reasoning,
                reading.calls,
                start=start,
                end=start + len(last),
            )
        )
    return Episode(
        key=EpisodeKey(0, 0, 0, 0),
        task_ref="t",
        domain="d",
        template="t",
        policy_version=0,
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array(response, dtype=np.int32),
        action_mask=np.array(mask),
        behaviour_logprobs=np.zeros(len(response), dtype=np.float32),
        turns=tuple(turns),
        finish_reason="done",
        outcome=Scored(1.0, True),
        sampling=Sampling(),
    )


@pytest.fixture(scope="module")
def recording() -> tuple:
    tokenizer, renderer, reader = parts("qwen35", None, "keep_template")
    return tokenizer, renderer, reader, recorded_episode(renderer, reader)


def test_untouched_episode_verifies(recording: tuple) -> None:
    tokenizer, renderer, reader, episode = recording
    assert verification.verify_episode(episode, TOOLS, reader, renderer) == []
    ids = [*episode.prompt_ids.tolist(), *episode.response_ids.tolist()]
    outputs = [
        verification.Output.of_ids(str(t.start), ids[t.start : t.end], TOOLS, reader)
        for t in episode.turns
        if t.role == "assistant"
    ]
    report = verification.verify_outputs(outputs, tokenizer, reader)
    assert (report.total, report.compared, report.differences) == (5, 5, ())
    assert report.irregular == {}


def altered(episode: Episode, number: int, **changes: object) -> Episode:
    turns = list(episode.turns)
    turns[number] = replace(turns[number], **changes)
    return replace(episode, turns=tuple(turns))


def test_tampered_episode_is_found(recording: tuple) -> None:
    _, renderer, reader, episode = recording
    said = next(i for i, t in enumerate(episode.turns) if t.role == "assistant" and t.text)
    called = next(i for i, t in enumerate(episode.turns) if t.tool_calls)
    answered = next(i for i, t in enumerate(episode.turns) if t.role == "tool")
    ids, prompt = episode.response_ids.copy(), episode.prompt_ids.copy()
    observed = int(np.flatnonzero(~episode.action_mask)[4])
    ids[observed] += 1
    prompt[5] += 1
    changed = {
        "text": altered(episode, said, text="I booked it."),
        "reasoning": altered(episode, said, reasoning="other"),
        "calls": altered(episode, called, tool_calls=(ToolCall("now", {}), ToolCall("now", {}))),
        "error": altered(episode, said, is_error=True),
        "answer": altered(episode, answered, text="refunded"),
        "policy": altered(episode, 0, text="Anything goes."),
        "observed id": replace(episode, response_ids=ids),
        "prompt id": replace(episode, prompt_ids=prompt),
    }
    found = {
        name: {d.check for d in verification.verify_episode(each, TOOLS, reader, renderer)}
        for name, each in changed.items()
    }
    readings = {key: {"reading"} for key in ("text", "reasoning", "calls", "error")}
    tokens = {key: {"tokens"} for key in ("answer", "policy", "observed id", "prompt id")}
    assert found == readings | tokens


def test_sampled_id_exchanged_in_a_record_is_found(recording: tuple) -> None:
    _, renderer, reader, episode = recording
    turn = next(t for t in episode.turns if t.role == "assistant" and t.text)
    ids = episode.response_ids.copy()
    ids[turn.end - len(episode.prompt_ids) - 2] += 1
    changed = replace(episode, response_ids=ids)
    assert {d.check for d in verification.verify_episode(changed, TOOLS, reader, renderer)} == {
        "reading"
    }


def test_irregular_outputs_are_listed_by_kind() -> None:
    tokenizer, _, reader = parts("chatml_xml")
    outputs = [
        verification.Output(case.name, case.text, case.finish_reason, TOOLS)
        for case in cases.cases("qwen_xml")
    ]
    report = verification.verify_outputs(outputs, tokenizer, reader)
    assert report.differences == ()
    assert report.compared + sum(report.irregular.values()) == report.total
    assert report.irregular["malformed_call parameter_not_closed -> 1 calls"] == 2
    assert report.irregular["text call_in_reasoning -> 1 calls"] == 1
    assert report.irregular["calls failed_cast -> RecursionError"] == 1


@pytest.mark.parametrize("template", ["chatml_xml", "qwen3"])
def test_every_difference_to_the_serving_parser_is_documented(template: str) -> None:
    documented = (Path(__file__).parent.parent / "docs" / "interpretation.md").read_text()
    reader, parser = PARSERS[template]
    found = set()
    for case in cases.cases(reader.tool_format):
        if case.finish_reason == "stop" and compare(reader, parser, case.text) is not None:
            reading = reader.read_text(case.text, "stop")
            found.add(reading.rule or reading.kind)
    assert len(found) > 10
    assert [name for name in sorted(found) if f"`{name}`" not in documented] == []


def test_difference_in_a_recorded_regular_output_is_found() -> None:
    tokenizer, _, reader = parts("chatml_xml")
    output = verification.Output("o", cases.xml_call("look_up", id="7"), "stop", TOOLS)
    assert verification.verify_outputs([output], tokenizer, reader).differences == ()
    reader.with_tools = lambda tools: Interpreter(tokenizer, ())  # type: ignore[method-assign]
    (difference,) = verification.verify_outputs([output], tokenizer, reader).differences
    assert (difference.where, difference.check) == ("o", "serving")


def test_turn_without_its_closing_token_was_cut() -> None:
    tokenizer, _, reader = parts("chatml_xml")
    ids = tokenizer.encode(cases.xml_call("now") + "<|im_end|>", add_special_tokens=False)
    of_ids = verification.Output.of_ids
    assert of_ids("o", ids, TOOLS, reader).finish_reason == "stop"
    assert of_ids("o", ids[:-1], TOOLS, reader).finish_reason == "length"
