"""The proxy: what is served is what was trained; bad requests are answered clearly."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from toy_tokenizers import toy_tokenizer

from tbrl.episode import cases, corpus
from tbrl.episode.corpus import TOOLS, Corpus
from tbrl.episode.interpretation import Interpreter
from tbrl.episode.rendering import Renderer
from tbrl.errors import BackendFailure
from tbrl.serving.completions import Chunk, VllmCompletions
from tbrl.serving.memory import ConversationMemory
from tbrl.serving.proxy import Limits, Proxy
from tbrl.serving.replies import ReplyStream, read_reply
from tbrl.usage import Usage, usage_of_completion

TOKENIZER = toy_tokenizer("chatml_xml")
RENDERER = Renderer(TOKENIZER)
READER = Interpreter(TOKENIZER, TOOLS)
FUNCTIONS = [tool.as_function() for tool in TOOLS]
HI = [{"role": "user", "content": "hi"}]
LOOK = "Looking.\n" + cases.xml_call("look_up", id="7")


def spell(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class ScriptedEngine:
    """Answers by a function of the prompt, in pieces of two ids."""

    max_model_len = 4000

    def __init__(self, policy: Callable[[list[int]], list[int]], cached: int | None = None) -> None:
        self.policy = policy
        self.cached = cached
        self.calls: list[tuple[list[int], dict, int]] = []

    async def stream(
        self, prompt_ids: Sequence[int], sampling: dict, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        self.calls.append((list(prompt_ids), sampling, max_tokens))
        ids = self.policy(list(prompt_ids))
        finish = "length" if len(ids) > max_tokens else "stop"
        ids = ids[:max_tokens]
        for start in range(0, len(ids), 2):
            await asyncio.sleep(0)
            last = start + 2 >= len(ids)
            yield Chunk(tuple(ids[start : start + 2]), finish if last else None)
        if self.cached is not None:
            yield Chunk((), cached_tokens=self.cached)


def says(text: str) -> ScriptedEngine:
    return ScriptedEngine(lambda _: spell(text + "<|im_end|>"))


class DeadEngine:
    max_model_len = 4000

    def __init__(self, after: int = 0, kind: str = "engine") -> None:
        self.after, self.kind = after, kind

    async def stream(self, *_: object) -> AsyncIterator[Chunk]:
        for _number in range(self.after):
            yield Chunk(tuple(spell("hello")))
        raise BackendFailure(self.kind, "completions", "it is gone")


def proxy(engine: object, **options: object) -> Proxy:
    return Proxy(engine, RENDERER, READER, "policy", **options)  # type: ignore[arg-type]


def client(app: object, key: str = "") -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://proxy", headers=headers
    )


def post(app: object, body: object, key: str = "") -> httpx.Response:
    async def run() -> httpx.Response:
        async with client(app, key) as http:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await http.post("/v1/chat/completions", content=content)

    return asyncio.run(run())


def get(app: object, path: str, key: str = "") -> httpx.Response:
    async def run() -> httpx.Response:
        async with client(app, key) as http:
            return await http.get(path)

    return asyncio.run(run())


# ---------------------------------------------------------------- replies


def test_tool_call_comes_back_in_openai_form() -> None:
    engine = says(LOOK)
    body = {"messages": HI, "tools": FUNCTIONS, "seed": 5, "temperature": 0.5, "max_tokens": 90}
    answer = post(proxy(engine).app, body).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Looking."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look_up", "arguments": '{"id": 7}'}
    (prompt, sampling, limit) = engine.calls[0]
    assert prompt == RENDERER.prompt(HI, TOOLS)
    assert (sampling["seed"], sampling["temperature"], limit) == (5, 0.5, 90)
    sampled = len(spell(LOOK + "<|im_end|>"))
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": sampled,
        "total_tokens": len(prompt) + sampled,
    }


@pytest.mark.parametrize("cached", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_cached_prompt_tokens_are_passed_on_as_the_engine_says_them(
    cached: int, stream: bool
) -> None:
    engine = ScriptedEngine(lambda _: spell("Hi<|im_end|>"), cached)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = post(proxy(engine).app, {"messages": HI, **options})
    if stream:
        usage = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    else:
        usage = answer.json()["usage"]
    assert usage_of_completion({"usage": usage}) == Usage.of(
        len(RENDERER.prompt(HI, ())), cached, len(spell("Hi<|im_end|>"))
    )


def test_reasoning_is_kept_apart_and_done_stays_in_the_content() -> None:
    engine = says("<think>\nwhy\n</think>\n\nBooked. <DONE>")
    (choice,) = post(proxy(engine).app, {"messages": HI}).json()["choices"]
    assert choice["message"]["reasoning_content"] == "why"
    assert choice["message"]["content"] == "Booked. <DONE>"
    assert choice["tbrl"]["done"] is True


def test_malformed_call_is_text_and_the_reading_says_so() -> None:
    engine = says(LOOK[:-5])
    (choice,) = post(proxy(engine).app, {"messages": HI, "tools": FUNCTIONS}).json()["choices"]
    assert choice["message"]["content"] == LOOK[:-5]
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
    assert choice["tbrl"]["rule"] == "call_not_closed"
    assert choice["tbrl"]["error"] == READER.read_text(LOOK[:-5], "stop").error


def test_cut_output_has_finish_reason_length_and_no_call() -> None:
    body = {"messages": HI, "tools": FUNCTIONS, "max_tokens": len(spell(LOOK))}
    (choice,) = post(proxy(says(LOOK)).app, body).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


@given(seed=st.integers(0, 2**32), reasons=st.booleans(), cut=st.booleans())
@settings(max_examples=150, deadline=None)
def test_streamed_deltas_join_to_the_whole_reply(seed: int, reasons: bool, cut: bool) -> None:
    rng = random.Random(seed)
    turn = Corpus(seed, reasons).assistant()
    opening = [{"role": "user", "content": "hi"}]
    text = READER.raw_text(RENDERER.assistant_turn([*opening, turn], TOOLS))
    if reasons:
        text = f"<think>\n{turn['reasoning_content']}\n</think>\n\n{text}"
    for output in (text, *corpus.mutations(text, seed, 3)):
        finish = "length" if cut else "stop"
        by_letter = [token for letter in output for token in spell(letter)]
        ids = rng.choice((spell(output), by_letter))  # tags that arrive in pieces
        stream, joined = ReplyStream(READER), {"reasoning_content": "", "content": ""}
        deltas, start = [], 0
        while start < len(ids):
            size = rng.randint(1, 4)
            deltas += stream.feed(ids[start : start + size])
            start += size
        reply, last = stream.finish(finish)
        calls: list = []
        for delta in (*deltas, *last):
            calls += delta.pop("tool_calls", [])
            for field, piece in delta.items():
                joined[field] += piece
        whole = read_reply(READER, ids, finish)
        assert joined == {
            "reasoning_content": whole.reading.reasoning,
            "content": whole.content,
        }
        assert [call["function"] for call in calls] == [c["function"] for c in whole.tool_calls]
        assert reply.finish_reason == whole.finish_reason


def test_openai_client_streams_through_the_proxy() -> None:
    async def run() -> tuple:
        app = proxy(says(f"<think>\nwhy\n</think>\n\n{LOOK}"), api_key="secret").app
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        openai = AsyncOpenAI(base_url="http://proxy/v1", api_key="secret", http_client=http)
        stream = await openai.chat.completions.create(
            model="policy",
            messages=HI,
            tools=FUNCTIONS,
            stream=True,
            stream_options={"include_usage": True},
        )
        content, reasoning, calls, finish, usage = "", "", [], None, None
        async for event in stream:
            usage = event.usage or usage
            for choice in event.choices:
                content += choice.delta.content or ""
                reasoning += (choice.delta.model_extra or {}).get("reasoning_content", "")
                calls += choice.delta.tool_calls or []
                finish = choice.finish_reason or finish
        await http.aclose()
        return content, reasoning, calls, finish, usage

    content, reasoning, calls, finish, usage = asyncio.run(run())
    assert (content, reasoning, finish) == ("Looking.", "why", "tool_calls")
    assert [(c.index, c.function.name, c.function.arguments) for c in calls] == [
        (0, "look_up", '{"id": 7}')
    ]
    assert usage.prompt_tokens == len(RENDERER.prompt(HI, TOOLS))


# ---------------------------------------------------------------- chat path = token path


def odd_speller(prompt: list[int]) -> list[int]:
    """A policy that spells its words letter by letter, unlike the tokenizer."""
    rng = random.Random(len(prompt))
    texts = (LOOK, "hello, which booking?", LOOK[:-7], cases.xml_call("now"), "hello <think>")
    letters = [spell(letter) for letter in rng.choice(texts)]
    return [token for letter in letters for token in letter] + [RENDERER.end_of_turn]


def plain_speller(prompt: list[int]) -> list[int]:
    return spell(READER.raw_text(odd_speller(prompt)))


def token_path(policy: Callable, opening: list[dict], turns: int) -> list[list[int]]:
    """Prompts of each turn, by appended ids."""
    ids, prompts = RENDERER.prompt(opening, TOOLS), []
    for turn in range(turns):
        prompts.append(ids)
        sampled = policy(ids)
        reading = READER.read(sampled, "stop")
        observations = answers(reading.error, [c.name for c in reading.calls], turn)
        ids = [*ids, *sampled, *RENDERER.delta(observations, sampled, TOOLS)]
    return prompts


def chat_path(policy: Callable, opening: list[dict], turns: int) -> tuple[list[list[int]], Proxy]:
    """Prompts that the engine saw while a chat client had the same conversation."""
    engine = ScriptedEngine(policy)
    server, messages = proxy(engine), list(opening)
    for turn in range(turns):
        (choice,) = post(server.app, {"messages": messages, "tools": FUNCTIONS}).json()["choices"]
        message = choice["message"]
        names = [call["function"]["name"] for call in message.get("tool_calls", ())]
        messages += [message, *answers(choice["tbrl"]["error"], names, turn)]
    return [prompt for prompt, _, _ in engine.calls], server


def answers(error: str | None, names: list[str], turn: int) -> list[dict]:
    if error is not None:
        return [{"role": "tool", "name": "", "content": error}]
    if names:
        return [{"role": "tool", "name": name, "content": f"ok {turn}"} for name in names]
    return [{"role": "user", "content": f"hello {turn}"}]


@pytest.mark.parametrize("opening", ["hi", "hello there", "booking 123"])
def test_chat_path_is_the_token_path(opening: str) -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": opening}]
    for policy, respelled in ((plain_speller, False), (odd_speller, True)):
        prompts, server = chat_path(policy, first, 6)
        assert prompts == token_path(policy, first, 6)
        assert (get(server.app, "/healthz").json()["respelled"] > 0) == respelled


def test_conversation_with_two_spellings_is_rendered() -> None:
    memory = ConversationMemory(RENDERER)
    reply = {"role": "assistant", "content": "hello", "reasoning_content": ""}
    later = [*HI, reply, {"role": "user", "content": "x"}]
    prompt = RENDERER.prompt(HI, TOOLS)
    odd = [token for letter in "hello" for token in spell(letter)] + [RENDERER.end_of_turn]
    rendered = RENDERER.prompt(later, TOOLS)
    assert memory.prompt(later, TOOLS) == rendered
    memory.remember(HI, reply, TOOLS, [*prompt, *spell("hello<|im_end|>")])
    memory.remember(HI, reply, TOOLS, [*prompt, *odd])
    assert memory.prompt(later, TOOLS) == rendered
    fresh = ConversationMemory(RENDERER)
    fresh.remember(HI, reply, TOOLS, [*prompt, *odd])
    assert fresh.prompt(later, TOOLS) != rendered


def test_memory_forgets_the_oldest() -> None:
    memory = ConversationMemory(RENDERER, capacity=2)
    odd = [token for letter in "hello" for token in spell(letter)] + [RENDERER.end_of_turn]
    histories = [[{"role": "user", "content": text}] for text in ("a", "b", "c")]
    reply = {"role": "assistant", "content": "hello", "reasoning_content": ""}
    for history in histories:
        memory.remember(history, reply, TOOLS, [*RENDERER.prompt(history, TOOLS), *odd])
    after = [{"role": "user", "content": "x"}]
    changed = [
        memory.prompt([*h, reply, *after], TOOLS) != RENDERER.prompt([*h, reply, *after], TOOLS)
        for h in histories
    ]
    assert changed == [False, True, True]


# ---------------------------------------------------------------- refusals and limits


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        ([], 400, "not a JSON object"),
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": ["hi"]}, 400, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role='wizard'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content"),
        (
            {"messages": [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            400,
            "messages[1].tool_calls",
        ),
        ({"messages": HI, "model": "gpt"}, 404, "model='gpt' is not served; use 'policy'"),
        ({"messages": HI, "n": 2}, 400, "n=2"),
        ({"messages": HI, "logprobs": True}, 400, "logprobs is not supported"),
        ({"messages": HI, "tool_choice": "required"}, 400, "tool_choice"),
        ({"messages": HI, "temperature": "hot"}, 400, "temperature='hot'"),
        ({"messages": HI, "temperature": -1}, 400, "temperature=-1"),
        ({"messages": HI, "seed": True}, 400, "seed=True"),
        ({"messages": HI, "max_tokens": 0}, 400, "max_tokens=0"),
        ({"messages": HI, "max_tokens": 5000}, 400, "do not fit the context of 4000"),
        ({"messages": HI, "tools": [{"name": "f"}]}, 400, "tools"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_request_is_named(body: object, status: int, names: str, stream: bool) -> None:
    if isinstance(body, dict) and stream:
        body = body | {"stream": True}
    answer = post(proxy(says("hi")).app, body)
    assert answer.status_code == status
    assert names in answer.json()["error"]["message"]


def test_api_key_guards_the_model_and_not_the_probes() -> None:
    app = proxy(says("hi"), api_key="secret").app
    assert post(app, {"messages": HI}).status_code == 401
    assert post(app, {"messages": HI}, "wrong").status_code == 401
    assert get(app, "/v1/models").status_code == 401
    assert post(app, {"messages": HI}, "secret").status_code == 200
    assert get(app, "/v1/models", "secret").json()["data"][0]["id"] == "policy"
    assert get(app, "/healthz").status_code == get(app, "/readyz").status_code == 200


def test_large_body_is_refused() -> None:
    app = proxy(says("hi"), limits=Limits(max_body_bytes=100)).app
    body = {"messages": [{"role": "user", "content": "x" * 200}]}
    assert post(app, body).status_code == 413
    assert post(app, {"messages": HI}).status_code == 200


def test_more_requests_than_allowed_are_turned_away_and_slots_come_back() -> None:
    async def run() -> list[list[int]]:
        app = proxy(says("hello"), limits=Limits(max_concurrency=2)).app
        async with client(app) as http:
            body = {"messages": HI}
            return [
                sorted(
                    r.status_code
                    for r in await asyncio.gather(
                        *(
                            http.post("/v1/chat/completions", json=body | {"stream": n == 0})
                            for n in range(3)
                        )
                    )
                )
                for _ in range(2)
            ]

    assert asyncio.run(run()) == [[200, 200, 429]] * 2


def test_readyz_follows_the_engine_and_healthz_does_not() -> None:
    assert get(proxy(says("hi")).app, "/readyz").json() == {"status": "ready"}
    app = proxy(DeadEngine()).app
    answer = get(app, "/readyz")
    assert (answer.status_code, "it is gone" in answer.json()["reason"]) == (503, True)
    assert get(app, "/healthz").status_code == 200


@pytest.mark.parametrize(("kind", "status"), [("engine", 502), ("deadline", 504)])
@pytest.mark.parametrize("stream", [False, True])
def test_dead_engine_is_a_server_error(kind: str, status: int, stream: bool) -> None:
    answer = post(proxy(DeadEngine(kind=kind)).app, {"messages": HI, "stream": stream})
    assert answer.status_code == status
    assert "the engine failed: it is gone" in answer.json()["error"]["message"]


def test_engine_that_dies_in_a_stream_ends_it_with_an_error() -> None:
    answer = post(proxy(DeadEngine(after=3)).app, {"messages": HI, "stream": True})
    events = [line for line in answer.text.split("\n\n") if line]
    assert "it is gone" in json.loads(events[-1].removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in answer.text


# ---------------------------------------------------------------- the engine's HTTP client


def completions(handler: Callable[[httpx.Request], httpx.Response]) -> VllmCompletions:
    engine = VllmCompletions("http://engine", "policy", 100, stop_ids=(9,))
    engine._client = httpx.AsyncClient(
        transport=httpx.MockTransport(handler), base_url="http://engine"
    )
    return engine


def collect(engine: VllmCompletions) -> list[Chunk]:
    async def run() -> list[Chunk]:
        return [chunk async for chunk in engine.stream([1, 2], {"seed": 3}, 7)]

    return asyncio.run(run())


def events(*choices: dict) -> httpx.Response:
    lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")


def test_engine_gets_ids_and_gives_ids_with_the_stop_token() -> None:
    seen = {}

    def handler(request: httpx.Request) -> httpx.Response:
        seen.update(json.loads(request.content))
        end = {"token_ids": [6], "finish_reason": "stop", "stop_reason": 9}
        return events({"token_ids": [4, 5]}, end)

    chunks = collect(completions(handler))
    assert [token for chunk in chunks for token in chunk.ids] == [4, 5, 6, 9]
    assert chunks[-1].finish_reason == "stop"
    assert (seen["prompt"], seen["seed"], seen["max_tokens"]) == ([1, 2], 3, 7)
    assert seen["stop_token_ids"] == [9] and seen["return_token_ids"] is True


@pytest.mark.parametrize(
    ("details", "cached"),
    [({"prompt_tokens_details": {"cached_tokens": 2}}, 2), ({}, None)],
)
def test_engine_says_at_the_end_what_was_cached(details: dict, cached: int | None) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1, **details}}
    text = events({"token_ids": [9], "finish_reason": "stop"}).text
    text = text.replace("data: [DONE]", f"data: {json.dumps(usage)}\n\ndata: [DONE]")
    chunks = collect(completions(lambda _: httpx.Response(200, text=text)))
    assert (chunks[0].ids, chunks[-1].cached_tokens) == ((9,), cached)


def test_engine_that_refuses_or_breaks_off_is_a_failure() -> None:
    refused = httpx.Response(400, json={"error": {"message": "too long"}})
    with pytest.raises(BackendFailure, match="too long"):
        collect(completions(lambda _: refused))
    with pytest.raises(BackendFailure, match="broke off"):
        collect(completions(lambda _: events({"token_ids": [4]})))

    def unreachable(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no")

    with pytest.raises(BackendFailure, match="ConnectError"):
        collect(completions(unreachable))
