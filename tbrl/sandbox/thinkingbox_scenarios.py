"""ThinkingBox scenarios as data: what a session is created with and what the agent is told.

Read from a dataset folder (`scenario/*.yaml`, `agent/think.yaml`) or from `scenarios.parquet` with
`agents.parquet` beside it (columns scenario_id, world_state_json, tools_json, bot_instructions; and
agent_id, system_instructions, builtin_tools_json).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import yaml

from tbrl.errors import ConfigError
from tbrl.types import JsonObject, ToolSpec

UNSTABLE: Mapping[str, frozenset[str]] = {
    "zendesk_articles": frozenset({"created_at", "updated_at"}),
    "zendesk_users": frozenset({"created_at", "updated_at"}),
    "zendesk_organizations": frozenset({"created_at", "updated_at"}),
    "zendesk_comments": frozenset({"created_at"}),
    "zendesk_ticket_comments": frozenset({"created_at"}),
    "zendesk_tickets": frozenset({"subject", "description"}),
}
"""Columns of the shared helpdesk tables that its grading leaves out; for attribution only, the
verdict is by the proxy's own hash."""
TICKET_TABLES = frozenset(UNSTABLE)


@dataclass(frozen=True, slots=True)
class ProxyScenario:
    """One scenario of the proxy."""

    server: str
    world: JsonObject
    """Initialisation of the server, without a patch."""
    tools: tuple[str, ...]
    """The allowlist."""
    policy: str
    """The agent's instructions, a blank line, the scenario's: one system message, since not every
    chat template takes two."""
    builtin_tools: tuple[ToolSpec, ...]
    """Of the agent, in front of the scenario's; calling one ends the episode."""


def read_scenarios(path: Path) -> dict[str, ProxyScenario]:
    """{scenario_id: scenario}. Raises ConfigError naming the file."""
    try:
        if path.suffix == ".parquet":
            agent = pl.read_parquet(path.with_name("agents.parquet")).to_dicts()[0]
            rows = pl.read_parquet(path).to_dicts()
            return {row["scenario_id"]: _from_row(row, agent) for row in rows}
        agent = yaml.safe_load((path / "agent" / "think.yaml").read_text())
        files = sorted((path / "scenario").glob("*.yaml"))
        return {file.stem: _scenario(yaml.safe_load(file.read_text()), agent) for file in files}
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        yaml.YAMLError,
        pl.exceptions.PolarsError,
    ) as e:
        raise ConfigError(
            f"sandbox.scenarios={path}: no ThinkingBox scenarios ({type(e).__name__}: {e})"
        ) from None


def _from_row(row: Mapping[str, Any], agent: Mapping[str, Any]) -> ProxyScenario:
    return _scenario(
        {
            "world_state": orjson.loads(row["world_state_json"]),
            "tools": orjson.loads(row["tools_json"]),
            "bot_instructions": row["bot_instructions"],
        },
        {
            "system_instructions": agent["system_instructions"],
            "builtin_tools": orjson.loads(agent["builtin_tools_json"]),
        },
    )


def _scenario(scenario: Mapping[str, Any], agent: Mapping[str, Any]) -> ProxyScenario:
    worlds = scenario["world_state"]
    if len(worlds) != 1:
        raise ValueError(f"a scenario has one server, not {len(worlds)}")
    server, world = next(iter(worlds.items()))
    parts = (agent["system_instructions"], scenario.get("bot_instructions") or "")
    hidden = ("data_patch", "golden_test_case", "rubrics", "rubrics_yesno")
    return ProxyScenario(
        server=server,
        world={k: v for k, v in (world or {}).items() if k not in hidden},
        tools=tuple(tool["name"] for tool in scenario["tools"]),
        policy="\n\n".join(part.strip() for part in parts if part.strip()),
        builtin_tools=tuple(_builtin(agent["builtin_tools"])),
    )


def _builtin(tools: Iterable[Mapping[str, Any]]) -> Iterable[ToolSpec]:
    for tool in tools:
        parameters = {**tool["input_schema"], "additionalProperties": False}
        yield ToolSpec(tool["name"], tool.get("description") or "", parameters, ends_turn=True)
