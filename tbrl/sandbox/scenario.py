"""A scenario, compiled once and shared read-only by its sessions: snapshot, tools, MCP listing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mcp_types as mcp

from tbrl.domains.base import Domain, Tool
from tbrl.errors import ConfigError
from tbrl.sandbox.arguments import ArgumentCheck
from tbrl.sandbox.snapshot import Snapshot
from tbrl.types import ToolSpec


@dataclass(frozen=True, slots=True)
class CompiledTool:
    """A tool and its compiled argument check."""

    tool: Tool
    check: ArgumentCheck


@dataclass(frozen=True, slots=True)
class Scenario:
    """What every session of `<domain>/<size>` shares."""

    scenario_id: str
    domain: Domain
    snapshot: Snapshot
    policy: str
    tools: Mapping[str, CompiledTool]
    """The allowlist: a name that is not here does not exist."""
    specs: tuple[ToolSpec, ...]
    listing: mcp.ListToolsResult
    """The answer to `tools/list`."""


def compile_scenario(scenario_id: str, domains: Mapping[str, Domain]) -> Scenario:
    """Raises ConfigError naming the scenario when there is no such domain or size, or a tool has
    an invalid or repeated name."""
    name, _, size_name = scenario_id.partition("/")
    domain = domains.get(name)
    if domain is None:
        raise ConfigError(
            f"scenario {scenario_id!r}: no domain {name!r}; domains: {', '.join(sorted(domains))}"
        )
    size = domain.sizes.get(size_name)
    if size is None:
        raise ConfigError(
            f"scenario {scenario_id!r}: no size {size_name!r}; sizes: {', '.join(domain.sizes)}"
        )
    specs = tuple(tool.spec for tool in size.tools)
    names = [spec.name for spec in specs]
    domain = domain.at(size_name)
    if len(set(names)) != len(names) or any(n.startswith("_") for n in names):
        raise ConfigError(f"scenario {scenario_id!r}: tool names must be unique, without leading _")
    return Scenario(
        scenario_id=scenario_id,
        domain=domain,
        snapshot=Snapshot(domain),
        policy=size.policy,
        tools={tool.spec.name: CompiledTool(tool, ArgumentCheck(tool.spec)) for tool in size.tools},
        specs=specs,
        listing=mcp.ListToolsResult(
            tools=[
                mcp.Tool(name=s.name, description=s.description, input_schema=s.parameters)
                for s in specs
            ]
        ),
    )
