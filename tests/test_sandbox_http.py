"""The same sessions over streamable HTTP, and external MCP servers behind the same interface."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from fixture_domain import DOMAINS, library_task
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tbrl.config import SandboxConfig
from tbrl.errors import BackendFailure, ConfigError
from tbrl.sandbox.embedded import EmbeddedSandbox
from tbrl.sandbox.external import ExternalSandbox
from tbrl.sandbox.http import HttpGateway


@asynccontextmanager
async def gateway(**options: Any) -> AsyncIterator[tuple[EmbeddedSandbox, HttpGateway]]:
    sandbox, served = EmbeddedSandbox(DOMAINS), HttpGateway(**options)
    await served.start()
    try:
        yield sandbox, served
    finally:
        await served.stop()
        await sandbox.close_all()


@asynccontextmanager
async def connected(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_any_mcp_client_of_either_protocol_era_plays_the_session(mode: str) -> None:
    async def run() -> None:
        async with gateway() as (sandbox, served):
            outside, inside = await sandbox.open(library_task()), await sandbox.open(library_task())
            async with connected(served.url, await served.expose(outside), mode) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert names == [tool.name for tool in inside.tools]
                for call in (
                    ("lend", {"member_id": 1, "code": "B1"}),
                    ("lend", {"member_id": 1, "code": "B2"}),
                    ("lend", {"member_id": "x"}),
                    ("no_such_tool", {}),
                ):
                    reply, expected = await client.call_tool(*call), await inside.call_tool(*call)
                    assert reply.content[0].text == expected.text
                    assert reply.is_error == expected.is_error
            assert await outside.finish() == await inside.finish()

    asyncio.run(run())


def test_a_token_opens_its_own_session_only_and_only_while_it_lives() -> None:
    async def run() -> None:
        async with gateway() as (sandbox, served):
            one, other = await sandbox.open(library_task()), await sandbox.open(library_task())
            token_one, token_other = await served.expose(one), await served.expose(other)
            assert len({token_one, token_other, one.session_id, other.session_id}) == 4
            async with connected(served.url, token_one) as client:
                await client.call_tool("lend", {"member_id": 1, "code": "B1"})
            assert (await other.finish()).effects == ()
            assert (await one.finish()).writes == 1
            async with httpx.AsyncClient() as http:
                for token in (token_one, token_other, one.session_id, "none", "x" * 5000):
                    answer = await http.post(
                        served.url, json={}, headers={"Authorization": f"Bearer {token}"}
                    )
                    assert answer.status_code == 401

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/mcp", {}, 401),
        ("/mcp", {"Authorization": "Basic TOKEN"}, 401),
        ("/mcp?token=TOKEN", {}, 401),
        ("/", {"Authorization": "Bearer TOKEN"}, 404),
        ("/sessions", {"Authorization": "Bearer TOKEN"}, 404),
        ("/mcp/../close", {"Authorization": "Bearer TOKEN"}, 404),
        ("/mcp/finish", {"Authorization": "Bearer TOKEN"}, 404),
        ("/mcp", {"Authorization": "Bearer TOKEN", "Host": "evil.example"}, 421),
        ("/mcp", {"Authorization": "Bearer TOKEN", "Origin": "http://evil.example"}, 403),
    ],
)
def test_nothing_but_the_session_is_served(path: str, headers: dict[str, str], status: int) -> None:
    async def run() -> None:
        async with gateway() as (sandbox, served):
            session = await sandbox.open(library_task())
            token = await served.expose(session)
            sent = {name: value.replace("TOKEN", token) for name, value in headers.items()}
            base = served.url.removesuffix("/mcp")
            async with httpx.AsyncClient() as http:
                answer = await http.post(
                    base + path.replace("TOKEN", token),
                    json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
                    headers={"Accept": "application/json, text/event-stream", **sent},
                )
            assert answer.status_code == status
            assert (await session.finish()).effects == ()

    asyncio.run(run())


def test_a_broken_tool_tells_the_client_nothing_and_ends_the_session() -> None:
    async def run() -> None:
        async with gateway() as (sandbox, served):
            session = await sandbox.open(library_task("hostile"))
            async with connected(served.url, await served.expose(session)) as client:
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("write_then_break", {"how": "bug"})
                assert "ZeroDivision" not in str(caught.value)
                with pytest.raises(MCPError):
                    await client.call_tool("get_member", {"member_id": 1})
            with pytest.raises(BackendFailure, match="ZeroDivision"):
                await session.finish()

    asyncio.run(run())


def test_a_slow_client_and_a_huge_body_are_cut_off_and_others_are_served() -> None:
    async def run() -> None:
        async with gateway(request_deadline_s=0.2) as (sandbox, served):
            session = await sandbox.open(library_task())
            token = await served.expose(session)
            port = int(served.url.rsplit(":", 1)[1].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}"
            writer.write(f"{head}\r\nContent-Length: 500\r\n\r\n{{".encode())
            await writer.drain()
            async with connected(served.url, token) as client:
                assert not (await client.call_tool("get_member", {"member_id": 1})).is_error
            await reader.read()  # returns once the server has given up on the slow request
            writer.close()
            async with httpx.AsyncClient() as http:
                answer = await http.post(
                    served.url,
                    content=b"x" * 2_000_000,
                    headers={"Authorization": f"Bearer {token}"},
                )
                assert answer.status_code == 413
            assert (await session.finish()).effects == ()

    asyncio.run(run())


SERVER = '''
import sys
from mcp.server import MCPServer

server = MCPServer("shop")
rows = {"orders": [{"id": 1, "total": 33.0}]}
seen = open(sys.argv[1], "a")

@server.tool()
async def pay(order_id: int) -> str:
    """Pay an order."""
    rows["orders"].append({"id": order_id, "total": 5})
    return "paid"

@server.tool()
async def slow(seconds: float) -> str:
    """Takes its time."""
    import asyncio
    seen.write("slow\\n"); seen.flush()
    await asyncio.sleep(seconds)
    return "done"

@server.tool(name="__reserved__geteffects")
async def effects() -> str:
    """The golden state."""
    seen.write("LEAK\\n"); seen.flush()
    return "CANARY"

@server.tool()
async def setup(scenario_id: str, patch: dict) -> str:
    """Set up."""
    rows.update(patch)
    return "ok"

@server.tool()
async def read_state() -> str:
    """All rows."""
    import json
    return json.dumps(rows)

server.run("stdio")
'''


@pytest.fixture
def shop(tmp_path: Path) -> tuple[str, Path]:
    """Address of a stdio server, and the file where it notes what it was asked."""
    program, seen = tmp_path / "shop.py", tmp_path / "seen"
    program.write_text(SERVER)
    seen.touch()
    return f"stdio:{sys.executable} {program} {seen}", seen


def test_an_external_server_is_driven_like_an_embedded_session(shop: tuple[str, Path]) -> None:
    address, seen = shop

    async def run() -> None:
        config = SandboxConfig(kind="mcp", url=address, call_deadline_s=20)
        sandbox = ExternalSandbox(config, setup_tool="setup", state_tool="read_state")
        patch = {"clients": [{"id": 7}]}
        one, other = [await sandbox.open(library_task(patch=patch)) for _ in range(2)]
        assert [tool.name for tool in one.tools] == ["pay", "slow"]
        assert (await one.call_tool("pay", {"order_id": 2})).text == "paid"
        assert (await one.call_tool("pay", {"order_id": "many"})).is_error
        for name in ("__reserved__geteffects", "setup", "read_state", "nope"):
            assert (await one.call_tool(name, {})).is_error
        paid, untouched = await one.finish(), await other.finish()
        assert paid.state_hash != untouched.state_hash
        assert sandbox.opened == 2 and not sandbox.sessions

    asyncio.run(run())
    assert "LEAK" not in seen.read_text()


def test_an_external_call_past_its_deadline_is_sent_once_and_ends_the_session(
    shop: tuple[str, Path],
) -> None:
    address, seen = shop

    async def run() -> None:
        config = SandboxConfig(kind="mcp", url=address, call_deadline_s=20)
        sandbox = ExternalSandbox(config, state_tool="read_state")
        session = await sandbox.open(library_task())
        config.call_deadline_s = 0.3
        with pytest.raises(BackendFailure) as caught:
            await session.call_tool("slow", {"seconds": 60})
        assert caught.value.kind == "deadline"
        for _ in range(2):
            with pytest.raises(BackendFailure):
                await session.call_tool("slow", {"seconds": 60})
        with pytest.raises(BackendFailure):
            await session.finish()
        assert not sandbox.sessions

    asyncio.run(run())
    assert seen.read_text() == "slow\n"


def test_an_external_server_that_does_not_come_up_is_a_backend_failure(tmp_path: Path) -> None:
    async def run() -> None:
        url = f"stdio:{sys.executable} {tmp_path / 'missing.py'}"
        sandbox = ExternalSandbox(SandboxConfig(url=url, max_sessions=1))
        for _ in range(2):
            with pytest.raises(BackendFailure):
                await sandbox.open(library_task())

    asyncio.run(run())
    with pytest.raises(ConfigError, match=r"sandbox\.url"):
        ExternalSandbox(SandboxConfig(url="ftp://x"))


def test_an_embedded_session_over_http_is_an_external_server_too() -> None:
    async def run() -> None:
        async with gateway() as (sandbox, served):
            session = await sandbox.open(library_task())
            token = await served.expose(session)
            config = SandboxConfig(kind="mcp", url=served.url)
            outside = ExternalSandbox(config, token=token)
            driven = await outside.open(library_task())
            assert driven.tools[0].name == "get_member"
            assert "loan" in (await driven.call_tool("lend", {"member_id": 1, "code": "B1"})).text
            await driven.close()
            assert (await session.finish()).writes == 1

    asyncio.run(run())
