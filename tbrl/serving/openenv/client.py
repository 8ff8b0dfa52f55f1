"""A typed OpenEnv client of the server. OpenEnv's GenericEnvClient and MCPToolClient work too.

    async with BusinessEnv("http://127.0.0.1:8002", token) as env:
        task = (await env.reset(seed=17)).observation       # policy, tools, the user's first words
        step = await env.call("get_rental", {"rental_id": "104"})
        step = await env.say("Your rental runs until Friday. <DONE>")
        step.done, step.reward

`env.sync()` gives the same without async. A failure of the environment raises RuntimeError: there
is no reward then, and the episode is to be played again.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import quote

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import Observation

from tbrl.serving.openenv.models import (
    AgentAction,
    EpisodeState,
    TaskObservation,
    ToolObservation,
    UserObservation,
)

AnyAction: TypeAlias = AgentAction | CallToolAction | ListToolsAction


class BusinessEnv(EnvClient[AnyAction, Observation, EpisodeState]):
    def __init__(self, base_url: str, token: str = "", **options: Any) -> None:
        """`options` are EnvClient's."""
        if token:
            scheme, _, rest = base_url.partition("://")
            base_url = f"{scheme}://tbrl:{quote(token, safe='')}@{rest}"
        super().__init__(base_url, **options)

    async def say(self, text: str) -> StepResult[Observation]:
        """Speak to the user; `<DONE>` at the end ends the episode."""
        return await self.step(AgentAction(text=text))

    async def call(
        self, tool_name: str, arguments: dict[str, Any], text: str = ""
    ) -> StepResult[Observation]:
        """Call a tool; `text` is what the agent says with it."""
        action = AgentAction(type="call_tool", tool_name=tool_name, arguments=arguments, text=text)
        return await self.step(action)

    async def list_tools(self) -> list[Tool]:
        """The tools of the episode in progress."""
        return (await self.step(ListToolsAction())).observation.tools

    def _step_payload(self, action: AnyAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        """An observation is known by its fields: they carry no name on the wire."""
        seen, end = payload["observation"], {"done": payload["done"], "reward": payload["reward"]}
        kinds = {
            "policy": TaskObservation,
            "tools": ListToolsObservation,
            "tool_name": ToolObservation,
        }
        kind = next((kind for field, kind in kinds.items() if field in seen), UserObservation)
        return StepResult(observation=kind(**seen, **end), **end)

    def _parse_state(self, payload: dict[str, Any]) -> EpisodeState:
        return EpisodeState(**payload)
