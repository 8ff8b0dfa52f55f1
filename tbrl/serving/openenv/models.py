"""What an OpenEnv client sends and sees. OpenEnv's own MCP actions are accepted as they are."""

from __future__ import annotations

from typing import Any, Literal

from openenv.core.env_server.mcp_types import CallToolObservation, ListToolsObservation, Tool
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, RootModel


class AgentAction(Action):
    """One turn of the agent. `list_tools` and `call_tool` are, on the wire, OpenEnv's
    ListToolsAction and CallToolAction."""

    type: Literal["message", "call_tool", "list_tools"] = "message"
    text: str = Field("", description="Said to the user; `<DONE>` at its end ends the episode")
    tool_name: str = Field("", description="Of `call_tool`")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Of `call_tool`")


class TaskObservation(Observation):
    """What `reset` gives: everything that the policy starts from."""

    task_ref: str
    domain: str
    policy: str = Field(description="The system prompt")
    query: str = Field(description="The user's first message")
    tools: list[Tool]
    eval_only: bool = Field(description="Must not train")
    max_agent_turns: int = Field(description="Steps after which the episode ends by itself")

    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, for a chat template."""
        return [
            {"role": "system", "content": self.policy},
            {"role": "user", "content": self.query},
        ]


class ToolObservation(CallToolObservation):
    """A tool's answer: `result` is its text, mistakes of the agent included. `error` is set where
    there is no such tool."""

    finish_reason: str = Field("", description="Why the episode ended, see tbrl.types.FinishReason")


class UserObservation(Observation):
    """What is said to the agent; empty where it ended the episode itself."""

    text: str
    finish_reason: str = Field("", description="Why the episode ended, see tbrl.types.FinishReason")


class AnyObservation(
    RootModel[TaskObservation | ToolObservation | UserObservation | ListToolsObservation]
):
    """What GET /schema shows as the observation."""


class EpisodeState(State):
    """What `state` gives."""

    task_ref: str = ""
    domain: str = ""
    done: bool = False
