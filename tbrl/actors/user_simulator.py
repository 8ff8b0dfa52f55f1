"""UserSimulator: speaks for the users of all episodes."""

from __future__ import annotations

from tbrl.actors.actor import actor
from tbrl.config import UserConfig
from tbrl.types import PublicTask, Turn, UserReply
from tbrl.users.build import build_user


@actor(restarts=-1)
class UserSimulator:
    """Stateless: a restart loses nothing."""

    def __init__(self, config: UserConfig) -> None:
        self._user = build_user(config)

    async def reply(self, task: PublicTask, visible: list[Turn], seed: int) -> UserReply:
        return await self._user.reply(task, visible, seed)
