"""Rendering: a stream of prompt, sampled ids and deltas is the template's own render."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import toy_tokenizer

from tbrl.episode.corpus import TOOLS, Corpus
from tbrl.episode.rendering import Renderer
from tbrl.errors import ConfigError, InvariantError

# template, enable_thinking, strips_reasoning, whether the policy reasons
FAMILIES = [
    ("chatml_xml", None, "refuse", False),
    ("hermes_default_system", None, "refuse", False),
    ("qwen3", None, "keep_template", True),
    ("qwen3", False, "keep_template", False),
    ("qwen35", None, "keep_template", True),
    ("qwen35", False, "keep_template", False),
    ("qwen3", None, "new_segment", True),
    ("qwen35", None, "new_segment", True),
]
RENDERERS = {
    family: Renderer(
        toy_tokenizer(family[0]), enable_thinking=family[1], strips_reasoning=family[2]
    )
    for family in FAMILIES
}


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@given(seed=st.integers(0, 2**32), turns=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_stream_is_the_full_render(family: tuple, seed: int, turns: int) -> None:
    renderer = RENDERERS[family]
    messages = Corpus(seed, reasons=family[3]).conversation(turns)
    first = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
    stream, position = renderer.prompt(messages[:first], TOOLS), first
    while True:
        assert stream == renderer.prompt(messages[:position], TOOLS)
        sampled = renderer.assistant_turn(messages[: position + 1], TOOLS)
        assert sampled[-1] == renderer.end_of_turn
        answered = position + 1
        while answered < len(messages) and messages[answered]["role"] != "assistant":
            answered += 1
        if answered == len(messages):
            break
        observations = messages[position + 1 : answered]
        if renderer.starts_segment(observations):
            stream = renderer.prompt(messages[:answered], TOOLS)
        else:
            stream = [*stream, *sampled, *renderer.delta(observations, sampled, TOOLS)]
        position = answered


def test_sampled_ids_stay_as_sampled() -> None:
    # `he` + `llo` and `hello` spell the same text; the delta depends on neither.
    tokenizer = toy_tokenizer("chatml_xml")
    renderer = Renderer(tokenizer)
    end = renderer.end_of_turn
    ids = {t: tokenizer.convert_tokens_to_ids(t) for t in ("hello", "he", "llo")}
    assert tokenizer.encode("hello", add_special_tokens=False) == [ids["hello"]]
    spellings = ([ids["hello"], end], [ids["he"], ids["llo"], end])
    assert tokenizer.decode(spellings[0]) == tokenizer.decode(spellings[1])
    answer = [{"role": "user", "content": "hello"}]
    stream = renderer.prompt([{"role": "user", "content": "hi"}], TOOLS)
    emitted = []
    for turn in range(3):
        sampled = spellings[turn % 2]
        delta = renderer.delta(answer, sampled, TOOLS)
        assert delta == renderer.delta(answer, spellings[(turn + 1) % 2], TOOLS)
        emitted.append((len(stream), sampled))
        stream = stream + sampled + delta
    assert all(stream[at : at + len(sampled)] == sampled for at, sampled in emitted)


def test_open_turn_is_closed_by_the_delta() -> None:
    renderer = RENDERERS[FAMILIES[0]]
    observations = [{"role": "user", "content": "hi"}]
    closed = renderer.delta(observations, [5, renderer.end_of_turn], TOOLS)
    assert renderer.delta(observations, [5], TOOLS) == [renderer.end_of_turn, *closed]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_prompt_is_what_the_template_gives_and_bos_stands_once(family: tuple) -> None:
    tokenizer = toy_tokenizer(family[0])
    renderer = RENDERERS[family]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    options = {} if family[1] is None else {"enable_thinking": family[1]}
    own = tokenizer.apply_chat_template(
        messages,
        tools=[tool.as_function() for tool in TOOLS],
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    ids = renderer.prompt(messages, TOOLS)
    assert tokenizer.decode(ids) == own
    assert ids.count(tokenizer.bos_token_id) == (family[0] == "hermes_default_system")


def test_tokenizer_that_adds_its_own_bos_does_not_double_it() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = toy_tokenizer("hermes_default_system")
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    messages = [{"role": "user", "content": "u"}]
    assert Renderer(tokenizer).prompt(messages, ()).count(bos[1]) == 1


@pytest.mark.parametrize("template", ["qwen3", "qwen35"])
def test_template_that_drops_reasoning_is_refused_by_default(template: str) -> None:
    with pytest.raises(ConfigError, match=r"strips_reasoning=refuse.*keep_template or new_segment"):
        Renderer(toy_tokenizer(template))


def test_kept_template_keeps_reasoning_and_the_first_prompt() -> None:
    tokenizer = toy_tokenizer("qwen3")
    renderer = Renderer(tokenizer, strips_reasoning="keep_template")
    assert renderer.deviations == ("earlier reasoning is kept by a changed chat template",)
    assert renderer.chat_template != tokenizer.chat_template
    turn = {"role": "assistant", "content": "c", "reasoning_content": "because"}
    history = [{"role": "user", "content": "a"}, turn, {"role": "user", "content": "b"}]
    assert "because" in tokenizer.decode(renderer.prompt(history, ()))


def test_new_segment_starts_where_the_user_speaks() -> None:
    renderer = RENDERERS[("qwen3", None, "new_segment", True)]
    user, tool = {"role": "user", "content": "x"}, {"role": "tool", "name": "f", "content": "x"}
    assert renderer.starts_segment([user]) and not renderer.starts_segment([tool])
    with pytest.raises(InvariantError, match="new segment"):
        renderer.delta([user], [renderer.end_of_turn], TOOLS)
    assert not RENDERERS[FAMILIES[0]].starts_segment([user])


def test_leading_system_messages_are_merged_where_only_one_is_allowed() -> None:
    two = [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]
    user = {"role": "user", "content": "u"}
    merged = RENDERERS[("qwen35", None, "keep_template", True)]
    assert "leading system messages are merged into one" in merged.deviations
    one = [{"role": "system", "content": "a\n\nb"}, user]
    assert merged.prompt([*two, user], ()) == merged.prompt(one, ())
    kept = RENDERERS[FAMILIES[0]]
    assert kept.deviations == () and kept.prompt([*two, user], ()) != kept.prompt(one, ())


def test_what_the_template_refuses_is_a_config_error_with_its_reason() -> None:
    renderer = RENDERERS[("qwen35", None, "keep_template", True)]
    with pytest.raises(ConfigError, match="no user query"):
        renderer.prompt([{"role": "system", "content": "s"}], ())


def test_reasoning_opened_by_the_prompt_is_noticed() -> None:
    opened = {family[:2]: renderer.reasoning_preopened for family, renderer in RENDERERS.items()}
    assert [key for key, value in opened.items() if value] == [("qwen35", None)]


def test_template_without_an_end_of_turn_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="end-of-turn token"):
        Renderer(toy_tokenizer("plain_text"))


def test_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no chat template; add chat_template\.jinja"):
        Renderer(toy_tokenizer(None))


def test_observation_that_changes_what_stands_before_it_is_refused() -> None:
    tokenizer = toy_tokenizer("chatml_xml")
    tokenizer.chat_template = (
        "{{- '<|im_start|>system\n' + (messages | last).content + '<|im_end|>' }}"
        + tokenizer.chat_template
    )
    with pytest.raises(ConfigError, match="depends on the observation"):
        Renderer(tokenizer)


def test_delta_behind_another_beginning_is_refused() -> None:
    tokenizer = toy_tokenizer("chatml_xml")
    tokenizer.chat_template = (
        "{{- '<|im_start|>urgent<|im_end|>' if 'fire' in (messages | last).content else '' }}"
        + tokenizer.chat_template
    )
    renderer = Renderer(tokenizer)
    renderer.delta([{"role": "user", "content": "hi"}], [renderer.end_of_turn], TOOLS)
    with pytest.raises(InvariantError, match="another beginning"):
        renderer.delta([{"role": "user", "content": "fire"}], [renderer.end_of_turn], TOOLS)


def test_template_whose_observations_depend_on_the_tools_is_followed() -> None:
    tokenizer = toy_tokenizer("chatml_xml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "'\\n<tool_response>\\n'",
        "('\\n<of ' + tools[0].function.name if tools else '\\n<of none')",
    )
    renderer = Renderer(tokenizer)
    answer = [{"role": "tool", "name": "f", "content": "x"}]
    for tools in (TOOLS, (), TOOLS[1:], TOOLS):
        end = tokenizer.decode(renderer.delta(answer, [renderer.end_of_turn], tools))
        assert (f"<of {tools[0].name}" if tools else "<of none") in end


def test_template_that_rewrites_a_turn_after_its_tool_answered_is_refused() -> None:
    tokenizer = toy_tokenizer("chatml_xml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{- '<|im_start|>assistant\\n' + message.content }}",
        "{{- '<|im_start|>assistant\\n' + (message.content if loop.last else '') }}",
    )
    for choice in ("refuse", "keep_template", "new_segment"):
        with pytest.raises(ConfigError, match=r"model\.strips_reasoning"):
            Renderer(tokenizer, strips_reasoning=choice)
