"""The tiny policy really served: a chat client has the conversation that training has."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import httpx
import pytest

from tbrl.config import Config
from tbrl.domains.registry import all_domains
from tbrl.policy.builtin import policy_folder
from tbrl.serving.backend import Backend
from tbrl.serving.completions import VllmCompletions
from tbrl.serving.proxy import Proxy
from tbrl.serving.server import readers
from tbrl.types import Sampling
from tbrl.usage import usage_of_completion

pytestmark = pytest.mark.timeout(900)  # starts vLLM twice

OPENINGS = (
    "I want to return rental 123. My PIN is 4321.",
    "Please extend rental 405 by two days, PIN 1111.",
    "hello",
)
TURNS = 4


def answers(error: str | None, names: list[str]) -> list[dict]:
    if error is not None:
        return [{"role": "tool", "name": "", "content": error}]
    if names:
        return [{"role": "tool", "name": name, "content": '{"ok": true}'} for name in names]
    return [{"role": "user", "content": "yes please"}]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_chat_path_is_the_token_path_on_the_real_engine(tmp_path: Path) -> None:
    config = Config()
    folder = policy_folder("builtin:base")
    renderer, interpreter = readers(config, folder)
    size = next(d for d in all_domains() if d.training).sizes["compact"]
    tools = tuple(tool.spec for tool in size.tools)
    port = free_port()
    log = tmp_path / "backend.log"
    models = (config.model, config.engine, config.topology)
    with Backend.start(folder, "policy", port, *models, log) as backend:
        backend.wait_ready(400)
        engine = VllmCompletions(backend.url, "policy", 1024, renderer.stop_ids)
        app = Proxy(engine, renderer, interpreter, "policy").app
        chats = asyncio.run(chat(app, size.policy, [t.as_function() for t in tools]))
    tokens = asyncio.run(in_process(config, folder, renderer, interpreter, size.policy, tools))
    assert chats == tokens
    assert any(turn["calls"] for turns in chats for turn in turns)


async def chat(app: object, policy: str, tools: list[dict]) -> list[list[dict]]:
    """What each conversation says, turn by turn, through chat completions."""
    conversations = []
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://p", timeout=60) as http:
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        for opening in OPENINGS:
            messages = start(policy, opening)
            turns = []
            for _ in range(TURNS):
                body = {"messages": messages, "tools": tools, "temperature": 0, "max_tokens": 96}
                reply = await http.post("/v1/chat/completions", json=body)
                (choice,) = reply.json()["choices"]
                message = choice["message"]
                calls = [
                    {"name": c["function"]["name"], **json.loads(c["function"]["arguments"])}
                    for c in message.get("tool_calls", ())
                ]
                error = choice["tbrl"]["error"]
                turns.append({"calls": calls, "error": error, "done": choice["tbrl"]["done"]})
                usage = usage_of_completion(reply.json())
                turns[-1]["tokens"] = usage.input + usage.output
                assert usage.unknown == usage.cache_unknown == 0
                assert usage.cached > 0 or len(turns) == 1  # every turn repeats the one before
                messages += [message, *answers(error, [c["name"] for c in calls])]
            conversations.append(turns)
    return conversations


async def in_process(config, folder, renderer, interpreter, policy, tools):  # type: ignore[no-untyped-def]
    """The same by appended token ids on the rollouts' engine."""
    from tbrl.engine.vllm_engine import VllmEngine

    engine = await VllmEngine.start(folder, config.model, config.engine, config.topology)
    reader = interpreter.with_tools(tools)
    conversations = []
    for opening in OPENINGS:
        ids, turns = renderer.prompt(start(policy, opening), tools), []
        for _ in range(TURNS):
            sampled = await engine.generate(ids, Sampling(0.0), 96, 0, renderer.stop_ids)
            reading = reader.read(sampled.ids, sampled.finish_reason)
            calls = [{"name": c.name, **c.arguments} for c in reading.calls]
            turns.append({"calls": calls, "error": reading.error, "done": reading.done})
            turns[-1]["tokens"] = len(ids) + len(sampled.ids)
            observations = answers(reading.error, [c.name for c in reading.calls])
            ids = [*ids, *sampled.ids, *renderer.delta(observations, sampled.ids, tools)]
        conversations.append(turns)
    await engine.shutdown()
    return conversations


def start(policy: str, opening: str) -> list[dict]:
    return [{"role": "system", "content": policy}, {"role": "user", "content": opening}]
